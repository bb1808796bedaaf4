"""Boolean masks: picking and replacing the elements for which they are True."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym
from axonym import Axis, dslice
from tests.named.updates import UPDATES


base = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4) - 9
x = nym.named(base, ("batch", "pos", "embed"))
row = np.array([True, False, True])
table = np.array([[True, False, True], [False, False, True]])
pos = nym.named(row, "pos")
both = nym.named(jnp.asarray(table.T), ("pos", "batch"))


def test_a_mask_picks_the_elements_for_which_it_is_true():
    for mask in (row, row.tolist(), jnp.asarray(row), pos):
        picked = x["pos", mask]
        assert picked.names == x.names and np.array_equal(picked.array, base[:, row])
    assert np.array_equal(x.take("pos", pos).array, base[:, row])
    assert np.array_equal(x.at["pos", pos].get().array, base[:, row])
    assert x["pos", np.zeros(3, bool)].shape == (2, 0, 4)
    assert np.array_equal(x["pos", row, "embed", 1].array, base[:, row, 1])
    two = x["pos", row, "embed", np.array([True, False, False, True])]
    assert np.array_equal(two.array, base[np.ix_([0, 1], [0, 2], [0, 3])])


def test_a_mask_that_is_known_picks_inside_jit_too():
    assert np.array_equal(jax.jit(lambda x: x["pos", row])(x).array, base[:, row])
    assert np.array_equal(jax.jit(lambda x: x["pos", pos])(x).array, base[:, row])


def test_fill_stands_where_a_mask_is_false():
    for mask in (row, pos):
        for filled in (
            nym.index(x, {"pos": mask}, fill=0.5),
            x.at["pos", mask].get(fill=0.5),
            nym.take(x, "pos", mask, fill=0.5),
            jax.jit(lambda x, mask: x.at["pos", mask].get(fill=0.5))(x, mask),
        ):
            assert filled.names == x.names and np.array_equal(filled.array, np.where(row[:, None], base, 0.5))
    filled = x.at["pos", both].get(fill=nym.named([0.0, 1.0, 2.0, 3.0], "embed"))
    assert np.array_equal(filled.array, np.where(table[..., None], base, np.arange(4.0)))
    every = x > 0
    assert np.array_equal(x.at["embed", every].get(fill=0).array, np.maximum(base, 0))


def test_the_sign_of_a_fill_of_zero_is_kept():
    x, far = nym.ones({"pos": 2}), nym.named([9], "i")
    for _ in range(2):
        for fill in (0.0, -0.0, 0, float("nan")):
            got = nym.index(x, {"pos": far}, fill=fill, mode="fill").array
            np.testing.assert_array_equal(np.signbit(got), np.signbit([float(fill)]))
            np.testing.assert_array_equal(got, [fill])


def test_fill_beside_other_indices():
    whole = np.where(table[..., None], base, -1)
    index = nym.named([2, 0], "i")
    at = {"pos": both}
    assert np.array_equal(nym.index(x, at | {"batch": 1}, fill=-1).array, whole[1])
    assert np.array_equal(nym.index(x, at | {"embed": index}, fill=-1).array, whole[..., [2, 0]])
    assert np.array_equal(nym.index(x, at | {"embed": dslice(1, 2)}, fill=-1).array, whole[..., 1:3])
    assert np.array_equal(nym.index(x, at | {"batch": slice(None, None, -1)}, fill=-1).array, whole[::-1])
    two = nym.index(x, {"pos": both, "embed": np.arange(4) > 1}, fill=-1)
    assert np.array_equal(two.array, np.where(np.arange(4) > 1, whole, -1))
    far = nym.index(x, {"pos": both, "embed": nym.named([0, 9], "i")}, fill=-1, mode="fill")
    assert np.array_equal(far.array[..., 0], whole[..., 0]) and (np.asarray(far.array[..., 1]) == -1).all()


@pytest.mark.parametrize("method", UPDATES)
def test_an_update_replaces_only_where_a_mask_is_true(method):
    value = nym.named([2.0, 3.0, 2.0, 1.0], "embed")
    new = UPDATES[method](base, np.asarray(value))
    for mask, where in ((pos, row[:, None]), (both, table[..., None])):
        changed = jax.jit(lambda x, mask, value: getattr(x.at["pos", mask], method)(value))(x, mask, value)
        assert changed.names == x.names and np.allclose(changed.array, np.where(where, new, base))
    some = getattr(x.at["pos", both, "embed", 1:3], method)(2.0)
    inside = table[..., None] & np.array([False, True, True, False])
    assert np.allclose(some.array, np.where(inside, UPDATES[method](base, np.float32(2)), base))


def test_an_update_beside_other_indices():
    last = base.copy()
    last[0, [0, 2], 3] += 5
    assert np.array_equal(x.at["pos", both, "batch", 0, "embed", 3].add(5.0).array, last)
    repeated = base.copy()
    repeated[table] += [2, 0, 0, 1]
    index = nym.named([0, 3, 0], "i")
    assert np.array_equal(x.at["pos", both, "embed", index].add(1.0).array, repeated)
    window = base.copy()
    window[:, row, 1:3] = 0
    assert np.array_equal(x.at["pos", row, "embed", dslice(1, 2)].set(0.0).array, window)
    value = nym.named([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], ("batch", "pos"))
    assert np.array_equal(
        x.at["pos", both].set(value).array, np.where(table[..., None], np.asarray(value)[..., None], base)
    )


def test_a_function_is_applied_only_where_a_mask_is_true():
    expected = np.where(table[..., None], np.sqrt(np.abs(base)), base)
    assert np.allclose(x.at["pos", both].apply(lambda y: jnp.sqrt(jnp.abs(y))).array, expected)
    truth = (x > 0).at["pos", both].apply(jnp.logical_not)
    assert truth.dtype == bool and np.array_equal(truth.array, (base > 0) ^ table[..., None])
    once = base.copy()
    once[table] *= [4, 1, 2, 1]
    doubled = x.at["pos", both, "embed", nym.named([0, 2, 0], "i")].apply(lambda y: 2 * y)
    assert np.array_equal(doubled.array, once)


def test_gradients_of_masks_are_those_of_where():
    weights = nym.named(np.arange(24, dtype=np.float32).reshape(2, 3, 4), x.names)
    kept = np.asarray(weights) * table[..., None]
    assert np.allclose(jax.grad(lambda x: (x.at["pos", both].get(fill=0.0) * weights).sum().array)(x).array, kept)
    assert np.allclose(jax.grad(lambda x: (x["pos", row] ** 2).sum().array)(x).array, 2 * base * row[:, None])
    replaced = jax.grad(lambda x, v: (x.at["pos", both].set(v) * weights).sum().array, argnums=(0, 1))
    value = nym.ones({"embed": 4})
    of_x, of_value = replaced(x, value)
    assert np.allclose(of_x.array, np.asarray(weights) - kept) and np.allclose(of_value.array, kept.sum((0, 1)))


@pytest.mark.parametrize(("method", "bad", "by"), [("multiply", np.inf, 1), ("divide", 1, 0), ("power", -1, 0.5)])
def test_what_a_mask_leaves_out_does_not_spoil_gradients(method, bad, by):
    array, value = nym.where(both, nym.abs(x) + 1, bad), nym.where(both, 2.0, by)
    seen = nym.where(both, 1.0, 0.0)
    for items in ({"pos": both}, {"pos": both, "embed": slice(0, 3)}):

        def loss(array, value, items=items):
            return (nym.where(both, getattr(array.at[items], method)(value), 0.0) * seen).sum().array

        for gradient in jax.grad(loss, (0, 1))(array, value):
            assert np.isfinite(np.asarray(gradient)).all()
    root = jax.grad(lambda x: x.at["pos", both].apply(jnp.sqrt).sum().array)(seen)
    assert np.isfinite(np.asarray(root)).all()


SHARDED = (
    lambda y, value, mask, wide: y.at["pos", wide].get(fill=value),
    lambda y, value, mask, wide: y.at["batch", mask].set(value),
    lambda y, value, mask, wide: y.at["batch", nym.named([0, 2, 0], "i")].apply(jnp.negative),
    lambda y, value, mask, wide: y.at["batch", mask].get(fill=0.0),
    lambda y, value, mask, wide: y.at["pos", wide, "batch", 2:6].get(fill=0.0),
    lambda y, value, mask, wide: y.at["pos", wide].divide(3.0),
    lambda y, value, mask, wide: y.at["pos", wide, "embed", nym.named([0, 2], "i")].add(1.0),
    lambda y, value, mask, wide: y.at["batch", mask].apply(jnp.abs),
    lambda y, value, mask, wide: y.at["pos", wide, "embed", 1].power(2),
    lambda y, value, mask, wide: y.at["batch", [1, 3]].subtract(value),
)


def test_sharded_arrays(mapped, draw):
    y, value = draw(batch=8, pos=3, embed=4), draw(embed=4)
    mask, wide = draw(batch=8) > 0, draw(pos=3, batch=8) > 0
    operands = (y, value, mask, wide)
    sharded = nym.shard(operands)
    inside = jax.jit(lambda *operands: [operation(*operands) for operation in SHARDED])(*sharded)
    for at, (operation, result) in enumerate(zip(SHARDED, inside, strict=True)):
        expected = operation(*operands)
        for found in (result, operation(*sharded)) if at < 3 else (result,):
            assert found.names == expected.names and np.allclose(found.array, expected.array), at
            if mapped.axis_types[0] == AxisType.Explicit:
                assert found.sharding.spec == jax.P("data", None, "model"), at
    picked = nym.shard(y)["batch", np.arange(8) % 2 == 0]
    assert np.array_equal(picked.array, y.array[::2])


@pytest.mark.parametrize(
    ("items", "kind", "text"),
    [
        (("pos", np.ones(4, bool)), ValueError, "axis 'pos' has size 3 and size 4 in (batch: 2, pos: 3, embed: 4)"),
        (("pos", [True, False]), ValueError, "axis 'pos' has size 3 and size 2 in"),
        (("poss", row), ValueError, "no axis 'poss' in (batch: 2, pos: 3, embed: 4); did you mean 'pos'?"),
        (("pos", row, Axis("pos", 3), 0), ValueError, "axis 'pos' is given more than once"),
        (
            ("pos", nym.named([True, False], "batch")),
            ValueError,
            "a mask for axis 'pos' of (batch: 2, pos: 3, embed: 4) needs that axis, it has (batch: 2)",
        ),
        (
            ("pos", nym.named(np.ones((3, 5), bool), ("pos", "q"))),
            ValueError,
            "a mask for axis 'pos' of (batch: 2, pos: 3, embed: 4) must have axes of that array only, it has (pos: 3,",
        ),
        (("pos", table), ValueError, "an index of shape (2, 3) for axis 'pos'"),
    ],
)
def test_wrong_masks(items, kind, text):
    for pick in (lambda: x[items], lambda: x.at[items].set(0.0), lambda: nym.index(x, items, fill=0.0)):
        with pytest.raises(kind, match=escape(text)):
            pick()


def test_a_mask_that_cannot_pick_is_an_error_with_the_remedy():
    remedy = "keep the axes and fill the other elements, as in `axonym.index(x, {'pos': mask}, fill=0)`"
    text = "a mask with the axes (pos, batch) may pick a different number of elements along axis 'pos' of (batch: 2, "
    with pytest.raises(ValueError, match=f"{escape(text)}.*{escape(remedy)}"):
        x["pos", both]
    text = "axis 'pos' of (batch: 2, pos: 3, embed: 4) is indexed by a traced mask"
    with pytest.raises(TypeError, match=f"{escape(text)}.*{escape(remedy)}"):
        jax.jit(lambda x, mask: x["pos", mask])(x, pos)


def test_fill_that_does_not_fit():
    with pytest.raises(ValueError, match="`fill` needs a mask, or mode='fill' for indices out of range"):
        x.at["pos", 0].get(fill=0.0)
    with pytest.raises(ValueError, match=escape("`fill` has axes (q), which the chosen elements (batch: 2, pos: 3")):
        x.at["pos", pos].get(fill=nym.ones({"q": 2}))
    with pytest.raises(TypeError, match=r"A plain array of shape .* has no axis names"):
        x.at["pos", pos].get(fill=np.ones(4))
    for number in (nym.ones({"pos": 3}), np.ones(2)):
        with pytest.raises(TypeError, match="With mode='fill', `fill` must be a known number, not an array of sha"):
            x.at["pos", [9]].get(fill=number, mode="fill")
    filled = x.at["pos", [0, 9]].get(fill=nym.named(7, ()), mode="fill")
    assert np.array_equal(filled.array, np.stack([base[:, 0], np.full((2, 4), 7)], 1))

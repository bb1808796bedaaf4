"""Boolean masks: picking and replacing the elements for which they are True."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import dslice
from tests.named.comparing import UPDATES, assert_close, assert_same
from tests.refusals import refusal


base = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 9
x = nym.named(base, ("batch", "pos", "embed"))
row = np.array([True, False, True])
table = np.array([[True, False, True], [False, False, True]])
pos = nym.named(row, "pos")
both = nym.named(np.ascontiguousarray(table.T), ("pos", "batch"))
where = table[..., None]


def test_a_mask_picks_the_elements_for_which_it_is_true():
    @jax.jit
    def pick(x):
        whole = [x["pos", mask] for mask in (row, row.tolist(), pos)]
        columns = np.array([True, False, False, True])
        return [*whole, x.take("pos", pos)], x["pos", np.zeros(3, bool)], x["pos", row, "embed", columns]

    whole, nothing, two = pick(x)
    for picked in (*whole, x["pos", jnp.asarray(row)], x.at["pos", pos].get()):
        assert_same(picked, x.names, base[:, row])
    assert nothing.shape == (2, 0, 4)
    assert_same(two, x.names, base[np.ix_([0, 1], [0, 2], [0, 3])])


def test_fill_stands_where_a_mask_is_false():
    @jax.jit
    def fill(x, both):
        filled = [nym.take(x, "pos", row, fill=0.5), *(x.at["pos", mask].get(fill=0.5) for mask in (row, pos))]
        by_column = x.at["pos", both].get(fill=nym.named(np.arange(4.0), "embed"))
        return filled, by_column, x.at["embed", x > 0].get(fill=0)

    filled, by_column, positive = fill(x, both)
    for result in (*filled, nym.index(x, {"pos": pos}, fill=0.5)):
        assert_same(result, x.names, np.where(row[:, None], base, 0.5))
    assert_same(by_column, x.names, np.where(where, base, np.arange(4.0)))
    assert_same(positive, x.names, np.maximum(base, 0))


def test_the_sign_of_a_fill_of_zero_is_kept():
    x, far = nym.ones({"pos": 2}), nym.named([9], "i")
    for _ in range(2):
        for fill in (0.0, -0.0, 0, float("nan")):
            filled = nym.index(x, {"pos": far}, fill=fill, mode="fill").array
            np.testing.assert_array_equal(np.signbit(filled), np.signbit([float(fill)]))
            np.testing.assert_array_equal(filled, [fill])


def test_fill_beside_other_indices():
    whole = np.where(where, base, -1)

    @jax.jit
    def fill(x, both):
        at = {"pos": both}
        others = [{"batch": 1}, {"embed": nym.named([2, 0], "i")}, {"embed": dslice(1, 2)}]
        others += [{"batch": slice(None, None, -1)}, {"embed": np.arange(4) > 1}]
        far = nym.index(x, at | {"embed": nym.named([0, 9], "i")}, fill=-1, mode="fill")
        return [nym.index(x, at | other, fill=-1) for other in others], far

    results, far = fill(x, both)
    beyond = np.stack([whole[..., 0], np.full((2, 3), -1)], -1)
    expected = whole[1], whole[..., [2, 0]], whole[..., 1:3], whole[::-1], np.where(np.arange(4) > 1, whole, -1), beyond
    for result, values in zip((*results, far), expected, strict=True):
        np.testing.assert_array_equal(result.array, values)


def test_an_update_replaces_only_where_a_mask_is_true():
    values = np.array([2.0, 3.0, 2.0, 1.0], np.float32)

    @jax.jit
    def update(x, both, value):
        whole = {method: getattr(x.at["pos", both], method)(value) for method in UPDATES}
        some = {method: getattr(x.at["pos", both, "embed", 1:3], method)(2.0) for method in UPDATES}
        return whole, some, x.at["pos", pos].multiply(value)

    whole, some, known = update(x, both, nym.named(values, "embed"))
    inside = where & np.array([False, True, True, False])
    for method, compute in UPDATES.items():
        assert_close(whole[method], x.names, np.where(where, compute(base, values), base))
        assert_close(some[method], x.names, np.where(inside, compute(base, np.float32(2)), base))
    assert_same(known, x.names, np.where(row[:, None], base * values, base))


def test_an_update_beside_other_indices():
    values = np.arange(1, 7, dtype=np.float32).reshape(2, 3)

    @jax.jit
    def update(x, both):
        return (
            x.at["pos", both, "batch", 0, "embed", 3].add(5.0),
            x.at["pos", both, "embed", nym.named([0, 3, 0], "i")].add(1.0),
            x.at["pos", row, "embed", dslice(1, 2)].set(0.0),
            x.at["pos", both].set(nym.named(values, ("batch", "pos"))),
            x.at["pos", both].apply(lambda y: jnp.sqrt(jnp.abs(y))),
            x.at["pos", both, "embed", nym.named([0, 2, 0], "i")].apply(lambda y: 2 * y),
        ), (x > 0).at["pos", both].apply(jnp.logical_not)

    last, repeated, window, doubled = (base.copy() for _ in range(4))
    last[0, [0, 2], 3] += 5
    repeated[table] += [2, 0, 0, 1]
    window[:, row, 1:3] = 0
    doubled[table] *= [4, 1, 2, 1]
    results, truth = update(x, both)
    replaced, roots = np.where(where, values[..., None], base), np.where(where, np.sqrt(np.abs(base)), base)
    for result, expected in zip(results, (last, repeated, window, replaced, roots, doubled), strict=True):
        assert_close(result, x.names, expected)
    assert truth.dtype == bool and np.array_equal(truth.array, (base > 0) ^ where)


def test_what_a_mask_leaves_out_does_not_spoil_gradients():
    hidden = {"multiply": (np.inf, 1), "divide": (1, 0), "power": (-1, 0.5)}

    @jax.jit
    def differentiate(x, both):
        def compute_loss(array, value, items, method):
            return nym.where(both, getattr(array.at[items], method)(value), 0.0).sum()

        seen = nym.where(both, 1.0, 0.0)
        gradients = [nym.grad(lambda x: x.at["pos", both].apply(jnp.sqrt).sum())(seen)]
        for method, (bad, by) in hidden.items():
            array, value = nym.where(both, nym.abs(x) + 1, bad), nym.where(both, 2.0, by)
            items = {"pos": both} if method == "divide" else {"pos": both, "embed": slice(0, 3)}
            gradients += nym.grad(compute_loss, (0, 1))(array, value, items, method)
        return gradients

    for gradient in differentiate(x, both):
        assert np.isfinite(np.asarray(gradient)).all()


def test_wrong_masks():
    for items, text in (
        (("pos", np.ones(4, bool)), "axis 'pos' has size 3 and size 4 in (batch: 2, pos: 3, embed: 4)"),
        (
            ("pos", nym.named([True, False], "batch")),
            "a mask for axis 'pos' of (batch: 2, pos: 3, embed: 4) needs that axis, it has (batch: 2)",
        ),
        (
            ("pos", nym.named(np.ones((3, 5), bool), ("pos", "q"))),
            "a mask for axis 'pos' of (batch: 2, pos: 3, embed: 4) must have axes of that array only, it has (pos: 3,",
        ),
        (("pos", table), "an index of shape (2, 3) for axis 'pos'"),
    ):
        for pick in (lambda x, at: x[at], lambda x, at: x.at[at].set(0.0), lambda x, at: nym.index(x, at, fill=0.0)):
            with refusal(text):
                pick(x, items)


def test_a_mask_that_cannot_pick_is_an_error_with_the_remedy():
    remedy = "keep the axes and fill the other elements, as in `axonym.index(x, {'pos': mask}, fill=0)`"
    with refusal("a mask with the axes (pos, batch) may pick a different number of elements along axis 'pos'") as error:
        x["pos", both]
    assert remedy in str(error.value)
    with refusal("axis 'pos' of (batch: 2, pos: 3, embed: 4) is indexed by a traced mask", TypeError) as error:
        jax.jit(lambda x, mask: x["pos", mask])(x, pos)
    assert remedy in str(error.value)


def test_fill_that_does_not_fit():
    with refusal("`fill` needs a mask, or mode='fill' for indices out of range"):
        x.at["pos", 0].get(fill=0.0)
    with refusal("`fill` has axes (q), which the chosen elements (batch: 2, pos: 3"):
        x.at["pos", pos].get(fill=nym.ones({"q": 2}))
    with pytest.raises(TypeError, match=r"A plain array of shape .* has no axis names"):
        x.at["pos", pos].get(fill=np.ones(4))
    for number in (nym.ones({"pos": 3}), np.ones(2)):
        with refusal("With mode='fill', `fill` must be a known number, not an array of sha", TypeError):
            x.at["pos", [9]].get(fill=number, mode="fill")
    filled = x.at["pos", [0, 9]].get(fill=nym.named(7, ()), mode="fill")
    assert_same(filled, x.names, np.stack([base[:, 0], np.full((2, 4), 7)], 1))

"""`vmap` over named axes, against a loop in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis


x = nym.named(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4), ("a", "b", "c"))
v = nym.named(np.array([1.0, -2.0, 3.0], np.float32), "b")


def same(one, other):
    return (
        one.names == other.names
        and one.dtype == other.dtype
        and np.allclose(one.array, other.array, rtol=1e-5, atol=1e-5)
    )


def slices(x, axis="b"):
    return x.unbind(axis)


def test_vmap_is_a_loop_over_slices():
    mapped = nym.vmap(lambda row, factor: row.sum("c") * factor, "b")(x, v)
    expected = nym.stack("b", [row.sum("c") * factor for row, factor in zip(slices(x), slices(v), strict=True)])
    assert mapped.names == ("b", "a") and same(mapped, expected)
    assert same(nym.vmap(lambda row: row, Axis("b", 3))(x), x.rearrange(("b", ...)))


def test_vmap_over_several_axes_puts_the_first_outermost():
    for axes in (("a", "c"), ["a", Axis("c", 4)], iter(("a", "c"))):
        mapped = nym.vmap(lambda row: nym.softmax(row, "b"), axes)(x)
        assert same(mapped, nym.softmax(x, "b").rearrange(("a", "c", "b")))
    fn = lambda row: row  # noqa: E731
    assert nym.vmap(fn, ()) is fn


def test_what_lacks_the_axis_is_given_whole():
    w = nym.ones({"c": 4})
    seen = []

    def fn(row, w, number, text, *, key=None):
        seen.append((row.names, w.names, number, text, key))
        return row * w

    result = nym.vmap(fn, "b")(x, w, 2, "text", key={"nested": (None, 3.5)})
    assert same(result, x.rearrange(("b", ...)))
    assert seen == [(("a", "c"), ("c",), 2, "text", {"nested": (None, 3.5)})]


def test_plain_arrays_take_part_along_their_first_axis():
    plain = jnp.arange(6.0).reshape(3, 2)
    for array in (plain, np.asarray(plain)):
        result, sums = nym.vmap(lambda factor, row: (factor, row.sum()), "b")(v, array)
        assert same(result, v) and isinstance(sums, jax.Array) and np.array_equal(sums, plain.sum(1))
    scalar = jnp.float32(2)
    assert same(nym.vmap(lambda factor, scale: factor * scale, "b")(v, scalar), v * 2)
    keys = jax.random.split(jax.random.key(0), 3)
    assert nym.vmap(lambda key: jax.random.uniform(key, (2,)), Axis("b", 3))(keys).shape == (3, 2)


def test_vmap_goes_through_jit_and_grad():
    fn = nym.vmap(lambda row, factor: (row * factor).sum("c"), "b")
    assert same(jax.jit(fn)(x, v), fn(x, v))
    gradient = jax.grad(lambda x: (fn(x, v) ** 2).sum().scalar())(x)
    assert same(gradient, jax.grad(lambda x: (((x * v).sum("c")) ** 2).sum().scalar())(x))


@pytest.mark.parametrize("inside", [True, False], ids=["jit", "eager"])
def test_on_a_mesh_a_mapped_axis_stays_sharded(mapped, inside, draw):
    run = jax.jit if inside else lambda fn: fn
    y, w = draw(batch=8, pos=4, embed=4), draw(embed=4)
    expected = y * 2 + w
    fn = lambda row, w: nym.auto_sharded(row * 2 + w)  # noqa: E731
    for axis, names, spec in (
        ("batch", ("batch", "pos", "embed"), ("data", None, "model")),
        ("pos", ("pos", "batch", "embed"), (None, "data", "model")),
        (("batch", "pos"), ("batch", "pos", "embed"), ("data", None, "model")),
    ):
        result = run(nym.vmap(fn, axis))(*nym.shard((y, w)))
        assert same(result, expected.rearrange(names))
        assert result.sharding.is_equivalent_to(jax.NamedSharding(mapped, jax.P(*spec)), 3)


def test_on_an_auto_mesh_constraints_inside_divide_the_axis(auto_mesh):
    with jax.set_mesh(auto_mesh), nym.axis_mapping({"batch": "data", "embed": "model"}):
        whole = nym.named(jnp.ones((8, 4)), ("batch", "embed"))
        result = jax.jit(nym.vmap(nym.auto_sharded, "batch"))(whole)
        assert result.sharding.spec == jax.P("data", "model")


def test_on_a_mesh_vmap_gathers_nothing(mapped, draw):
    y = nym.shard(draw(batch=8, embed=4))
    compiled = jax.jit(nym.vmap(lambda row: nym.auto_sharded(nym.exp(row)), "batch")).lower(y).compile().as_text()
    assert "all-gather" not in compiled and "all-reduce" not in compiled and "all-to-all" not in compiled


def test_arguments_can_be_given_whole_and_plain_arrays_cut_where_one_says():
    tall, wide = jnp.arange(6.0).reshape(3, 2), jnp.arange(6.0).reshape(2, 3)

    def fn(row, rows, wide, tree):
        return row.array.sum(), rows.sum(), wide, tree

    said = (True, False, 1, {"last": -1, "own": lambda array: array.ndim - 1, "whole": None})
    tree = {"last": wide, "own": wide, "whole": tall}
    for run in (lambda f: f, jax.jit):
        sums, whole, cut, tree_of = run(nym.vmap(fn, "b", args=said))(v, v, wide, tree)
        assert np.array_equal(sums, v.array) and whole.names == ("b",) and np.array_equal(whole.array, [2.0] * 3)
        assert np.array_equal(cut, wide.T) and np.array_equal(tree_of["last"], wide.T)
        assert np.array_equal(tree_of["own"], wide.T) and tree_of["whole"].shape == (3, 3, 2)


def test_keyword_arguments_have_parts_of_their_own():
    whole = jnp.arange(5.0)
    fn = nym.vmap(lambda row, *, other, plain: (row * other.sum(), plain), "b", kwargs={"other": False, "plain": False})
    scaled, plain = fn(v, plain=whole, other=v)
    assert same(scaled, v * 2) and plain.shape == (3, 5)
    defaults = nym.vmap(lambda row, *, w: w, "b", default=False, kwargs={"missing": True})
    assert defaults(v, w=whole).shape == (3, 5)


def test_default_may_be_a_position():
    wide = jnp.arange(6.0).reshape(2, 3)
    assert np.array_equal(nym.vmap(lambda row, w: w, "b", default=1)(v, wide), wide.T)
    assert nym.vmap(lambda row, w: w, "b", default=None)(v, wide).shape == (3, 2, 3)
    assert nym.map(lambda row, w: w, "b", is_mapped=-1)(v, wide).shape == (3, 2)


def test_modules_and_other_leaves_take_what_is_said_of_the_whole_argument():
    tree = {"array": jnp.ones(3), "number": 2, "name": "text", "none": None, "scalar": jnp.float32(1)}
    results = []
    nym.vmap(lambda tree: results.append(tree), Axis("b", 3), args=(True,))(tree)
    (seen,) = results
    assert seen["array"].shape == () and (seen["number"], seen["name"], seen["none"]) == (2, "text", None)


def test_what_is_said_has_to_fit_the_arguments():
    fn = lambda *args: args[0]  # noqa: E731
    with pytest.raises(ValueError, match="the specs given to `vmap` for argument 1 are a tree that does not fit it"):
        nym.vmap(fn, "b", args=(True, {"k": True}))(v, {"l": jnp.ones(3)})
    with pytest.raises(ValueError, match="`vmap` with `args` for 2 positional arguments was given 1"):
        nym.vmap(fn, "b", args=(True, True))(v)
    with pytest.raises(ValueError, match=r"a plain array of shape \(3,\) has no axis at position 1"):
        nym.vmap(fn, "b", args=(True, 1))(v, jnp.ones(3))
    with pytest.raises(TypeError, match="must be True, False, None or the position of an axis, not 'first'"):
        nym.vmap(fn, "b", args=(True, "first"))(v, jnp.ones(3))
    with pytest.raises(ValueError, match=r"axis 'b' is given more than once in \(b, b\)"):
        nym.vmap(fn, ("b", Axis("b", 3)))


def test_an_axis_without_elements():
    empty = nym.zeros({"b": 0, "c": 2})
    assert nym.vmap(lambda row: row.sum(), "b")(empty).shape == {"b": 0}


@pytest.mark.parametrize("types", ["Explicit Explicit", "Auto Explicit"])
def test_arrays_may_be_sharded_differently_along_the_mapped_axis(types):
    kinds = tuple(jax.sharding.AxisType[kind] for kind in types.split())
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=kinds)
    x, weight = np.arange(8.0, dtype=np.float32)[::-1], np.arange(32.0, dtype=np.float32).reshape(4, 8)
    with jax.set_mesh(mesh), nym.axis_mapping({"a": "y", "b": "y"}):
        sharded = nym.shard(nym.named(x, "a")).rename({"a": "g"})
        other = nym.shard(nym.named(weight, ("b", "g")))
        product = x[:, None] * weight.T
        cases = [
            (sharded, nym.sort(sharded, "g"), x * np.sort(x)),
            (sharded, other, product),
            (other, sharded, product),
            (other, x, product),
        ]
        multiply = nym.vmap(lambda x, y: x * y, "g")
        for one, two, wanted in cases:
            for fn in (multiply, jax.jit(multiply)):
                assert np.array_equal(fn(one, two).array, wanted)

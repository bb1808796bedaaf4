"""`lift`: positional functions over named axes, against the same functions of plain arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis
from tests.refusals import refusal


def same(x, array, names):
    return x.names == names and np.allclose(x.array, array, rtol=1e-4, atol=1e-4)


@pytest.fixture
def x(draw):
    return draw(a=2, b=3, c=4)


def test_the_function_sees_the_axes_named_and_no_others(x):
    shapes = []

    def fn(array):
        shapes.append(array.shape)
        return jnp.median(array)

    for axes, rest, order in (
        (("b",), ("a", "c"), (0, 2, 1)),
        (("c", "a"), ("b",), (1, 2, 0)),
        ((Axis("c", 4),), ("a", "b"), (0, 1, 2)),
        (("b", "c", "a"), (), (1, 2, 0)),
    ):
        core = tuple(range(len(rest), 3))
        assert same(nym.lift(fn, *axes)(x), jnp.median(jnp.transpose(x.array, order), axis=core), rest)
    assert set(shapes) == {(3,), (4, 2), (4,), (3, 4, 2)}


def test_without_axes_every_element_is_given(x):
    assert same(nym.lift(lambda v: jnp.where(v > 0, v, -v))(x), jnp.abs(x.array), ("a", "b", "c"))


def test_results_with_as_many_axes_keep_their_names_whatever_their_sizes(x):
    assert same(nym.lift(jnp.diff, "b")(x), jnp.moveaxis(jnp.diff(x.array, axis=1), 1, -1), ("a", "c", "b"))
    assert nym.lift(lambda m: m.T, "b", "c")(x).shape == {"a": 2, "b": 4, "c": 3}


def test_out_axes_name_the_axes_of_results(draw):
    x, m = draw(a=2, b=3), draw(b=3, c=4)
    both = nym.lift(jnp.matmul, "b", "c", out_axes="c")
    assert same(both(x, m), x.array @ m.array, ("a", "c"))
    outer = jnp.einsum("ab,bc->abc", x.array, m.array)
    assert same(
        nym.lift(jnp.outer, "a", "c", out_axes=("a", Axis("c", 4)))(x, m), outer.swapaxes(0, 1), ("b", "a", "c")
    )
    columns = nym.lift(lambda row: jnp.outer(row, row), "b", out_axes={"row": 3, "column": None})(x)
    assert columns.shape == {"a": 2, "row": 3, "column": 3}


def test_arguments_broadcast_by_name(draw):
    m, v, w = draw(i=3, batch=2, j=3), draw(i=3), draw(batch=2, i=3)
    solve = nym.lift(jnp.linalg.solve, "i", "j", out_axes="j")
    plain = np.asarray(m.rearrange(("batch", "i", "j")).array)
    for right in (v, w):
        rows = np.broadcast_to(np.asarray(right.array), (2, 3))
        assert same(solve(m, right), np.linalg.solve(plain, rows[..., None])[..., 0], ("batch", "j"))
    at, xp, fp = draw(batch=2, q=5), nym.arange(Axis("k", 4)), draw(batch=2, k=4)
    expected = jax.vmap(jnp.interp, (0, None, 0))(at.array, xp.array, fp.array)
    assert same(nym.lift(jnp.interp, "k")(at, xp, fp), expected, ("batch", "q"))


def test_several_results_and_trees_of_them(draw):
    m = draw(i=3, batch=2, j=3)
    plain = np.asarray(m.rearrange(("batch", "i", "j")).array)
    results = nym.lift(jnp.linalg.slogdet, "i", "j")(m)
    assert type(results).__name__ == "SlogdetResult"
    for result, expected in zip(results, np.linalg.slogdet(plain), strict=True):
        assert same(result, expected, ("batch",))
    u, s, vh = nym.lift(jnp.linalg.svd, "i", "j", out_axes=[("i", "k"), "k", ("k", "j")])(m)
    assert same(nym.dot(u, s, vh, axis="k", out_axes=("batch", "i", "j")), plain, ("batch", "i", "j"))
    tree = nym.lift(lambda v: {"sum": v.sum(), "kind": "text", "none": None, "number": 3}, "j")(m)
    assert tree["sum"].names == ("i", "batch") and (tree["kind"], tree["none"], tree["number"]) == ("text", None, 3)


def test_plain_arguments_and_options_are_given_to_every_call(x):
    seen = []

    def fn(array, scale, *, mask, axis, extra):
        seen.append((scale.shape, mask.shape, axis, extra))
        return jnp.where(mask, array * scale, 0).sum(axis)

    mask = x.sum("a") > 0
    result = nym.lift(fn, "c")(x, jnp.arange(4.0), mask=mask, axis=0, extra={"k": ("text", None)})
    expected = np.where(np.asarray(mask.array), np.asarray(x.array) * np.arange(4.0), 0).sum(-1)
    assert same(result, expected, ("a", "b"))
    assert set(map(repr, seen)) == {repr(((4,), (4,), 0, {"k": ("text", None)}))}


def test_numbers_are_static(x):
    top = nym.lift(lambda row, k: jax.lax.top_k(row, k), "c", out_axes=("k", "k"))
    values, indices = top(x, 2)
    assert same(values, jnp.sort(x.array, axis=-1)[..., :-3:-1], ("a", "b", "k"))
    assert indices.dtype == jnp.int32 and top(x, 3)[0].shape == {"a": 2, "b": 3, "k": 3}


def test_it_goes_through_jit_grad_and_vmap(x):
    fn = nym.lift(lambda row: jnp.cumsum(row) ** 2, "b")
    expected = jnp.moveaxis(jnp.cumsum(x.array, axis=1) ** 2, 1, -1)
    assert same(jax.jit(fn)(x), expected, ("a", "c", "b")) and same(fn(x), expected, ("a", "c", "b"))
    gradient = nym.grad(lambda x: fn(x).sum())(x)
    assert same(gradient, jax.grad(lambda x: (jnp.cumsum(x, axis=1) ** 2).sum())(x.array), ("a", "b", "c"))
    assert same(nym.vmap(fn, "c")(x), expected.swapaxes(0, 1), ("c", "a", "b"))


def test_under_jit_it_is_traced_once_per_signature(x):
    traced = []

    def fn(array, *, power=1):
        traced.append(1)
        return array.sum() ** power

    run, squared = jax.jit(nym.lift(fn, "b")), nym.named_jit(nym.lift(fn, "b"))
    for _ in range(3):
        run(x)
        squared(x, power=2)
    assert len(traced) == 2


def test_on_a_mesh_loop_axes_stay_sharded(mapped, draw):
    m, v = draw(embed=4, batch=8, j=4), draw(batch=8, embed=4)
    solve = nym.lift(jnp.linalg.solve, "embed", "j", out_axes="j")
    plain = np.asarray(m.rearrange(("batch", "embed", "j")).array) + 4 * np.eye(4, dtype=np.float32)
    m = nym.named(jnp.asarray(plain), ("batch", "embed", "j"))
    expected = np.linalg.solve(plain, np.asarray(v.array)[..., None])[..., 0]
    result = jax.jit(solve)(*nym.shard((m, v)))
    assert same(result, expected, ("batch", "j"))
    assert result.sharding.is_equivalent_to(jax.NamedSharding(mapped, jax.P("data", None)), 2)
    assert same(solve(nym.named(jax.device_put(plain), m.axes), nym.shard(v)), expected, ("batch", "j"))
    assert same(nym.lift(jnp.cumsum, "batch")(nym.shard(v)), np.cumsum(v, axis=0).T, ("embed", "batch"))
    gradient = jax.jit(nym.grad(lambda v: nym.lift(jnp.cumsum, "batch")(v).sum()))(nym.shard(v))
    assert same(gradient, np.tile(np.arange(8.0, 0, -1)[:, None], 4), ("batch", "embed"))


def test_on_a_mesh_a_lifted_function_gathers_nothing_along_loops(mapped, draw):
    v = nym.shard(draw(batch=8, pos=4))
    compiled = jax.jit(nym.lift(jnp.median, "pos")).lower(v).compile().as_text()
    assert "all-gather" not in compiled and "all-to-all" not in compiled


def test_errors_of_axes(x):
    for call, text in (
        (lambda: nym.lift(jnp.sum, "z")(x), "no axis 'z' in (a: 2, b: 3, c: 4)"),
        (lambda: nym.lift(jnp.sum, Axis("b", 5))(x), "axis 'b' has size 3 here, 5 was asked for"),
        (lambda: nym.lift(jnp.sum, "b", "b"), "axis 'b' is given more than once"),
        (lambda: nym.lift(jnp.add, "b")(x, nym.ones({"c": 2})), "axis 'c' has size 4 and size 2"),
        (lambda: nym.lift(jnp.dot, "b")(x, nym.ones({"b": 5})), "axis 'b' has size 3 and size 5"),
        (lambda: nym.lift(jnp.dot, "b")(x, nym.ones({"b": 3, "d": 2})), "cannot broadcast"),
    ):
        with refusal(text):
            call()
    with refusal("given by an `Axis` or by its name, not by 0", TypeError):
        nym.lift(jnp.sum, 0)  # pyright: ignore[reportArgumentType]
    with refusal("needs a named array among its arguments", TypeError):
        nym.lift(jnp.sum, "b")(jnp.ones(3))


def test_errors_of_results(x):
    def fn(row):
        return row

    several = "returned 2 arrays: `out_axes` must be a sequence of 2 selections, not"
    for call, text in (
        (nym.lift(lambda m: m.sum(0), "b", "c"), "over (b, c) returned an array of shape (4,); name its axes with"),
        (nym.lift(fn, "b", out_axes=("b", "d")), "shape (3,), `out_axes` has 2 names for it: (b, d)"),
        (nym.lift(fn, "b", out_axes=Axis("d", 5)), "`fn` returned axis 'd' with size 3, not 5"),
        (nym.lift(fn, "b", out_axes="a"), "axis 'a' occurs more than once"),
        *((nym.lift(lambda row: (row, row), "b", out_axes=axes), several) for axes in ("b", ("b",), ("b", "b", "b"))),
    ):
        with refusal(text):
            call(x)
    with refusal("returned a named array; `lift` is for functions of plain arrays", TypeError):
        nym.lift(lambda row: x, "b")(x)


def test_axes_may_be_given_as_a_sequence():
    x = nym.ones({"i": 2, "batch": 3, "j": 2})
    assert nym.lift(jnp.trace, ("i", "j"))(x).names == ("batch",)

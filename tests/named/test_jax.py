"""Named arrays in JAX's own transformations: whole they pass through, cut by position they are found out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis
from tests.refusals import refusal


x = nym.named(np.arange(6.0, dtype=np.float32).reshape(2, 3), ("a", "b"))
v = nym.named(np.array([1.0, -2.0, 3.0], np.float32), "b")


def same(x, array, names):
    return isinstance(x, nym.NamedArray) and x.names == names and np.allclose(x.array, array, rtol=1e-5, atol=1e-5)


def test_named_arrays_are_carried_by_loops():
    @jax.jit
    def compute(v):
        summed = jax.lax.scan(lambda carry, i: (carry + v * i, carry.sum()), v, np.arange(3.0, dtype=np.float32))
        counted = jax.lax.fori_loop(0, 4, lambda i, carry: carry * 2, v)
        return *summed, counted, jax.lax.while_loop(lambda c: c.max().scalar() < 100, lambda c: c * 2, v)

    total, steps, counted, grown = compute(v)
    assert same(total, v.array * 4, ("b",))
    assert steps.names == () and np.allclose(steps.array, [2.0, 2.0, 4.0])  # with an axis that only JAX knows
    assert same(counted, v.array * 16, ("b",)) and same(grown, v.array * 64, ("b",))


def test_a_named_scalar_decides_and_chooses():
    for positive, factor in ((True, 2), (False, -1)):
        chosen = jax.lax.cond((v.sum() > (0 if positive else 9)).scalar(), lambda v: v * 2, lambda v: -v, v)
        assert same(chosen, v.array * factor, ("b",))
    for at in range(3):
        branches = [lambda v, k=k: v + k for k in range(3)]
        assert same(jax.jit(lambda at, v: jax.lax.switch(at, branches, v))(at, v), v.array + at, ("b",))  # noqa: B023


def test_forward_and_backward_derivatives():
    out, tangent = jax.jvp(nym.sin, (x,), (nym.ones_like(x),))
    assert same(out, np.sin(x.array), ("a", "b")) and same(tangent, np.cos(x.array), ("a", "b"))
    out, backward = jax.vjp(lambda x, v: (x * v).sum("b"), x, v)
    for_x, for_v = backward(nym.ones_like(out))
    assert same(for_x, np.broadcast_to(v.array, (2, 3)), ("a", "b")) and same(for_v, x.array.sum(0), ("b",))
    out, linear = jax.linearize(nym.sin, x)
    assert same(linear(x), np.cos(x.array) * x.array, ("a", "b"))
    (transposed,) = jax.linear_transpose(lambda v: v * 2, v)(v)
    assert same(transposed, v.array * 2, ("b",))
    for differentiate in (jax.grad, jax.jacfwd, jax.jacrev):
        assert same(differentiate(lambda x: (x * x).sum().scalar())(x), 2 * x.array, ("a", "b"))
    for differentiate in (jax.jacfwd, jax.jacrev):  # with respect to a number
        assert same(differentiate(lambda scale: x * scale)(2.0), x.array, ("a", "b"))


def test_shapes_without_computing():
    shaped = jax.eval_shape(lambda x: nym.dot(x, v, axis="b"), x)
    assert shaped.names == ("a",) and shaped.array == jax.ShapeDtypeStruct((2,), jnp.float32)
    assert jax.eval_shape(lambda s: s * 2, shaped).axes == (Axis("a", 2),)


def test_calls_back_into_python():
    def doubled(x):
        return nym.named(np.asarray(x.array) * 2, x.names)

    shape = jax.eval_shape(lambda x: x, x)
    assert same(jax.jit(lambda x: jax.pure_callback(doubled, shape, x))(x), x.array * 2, ("a", "b"))


FIRST = {
    "minus": lambda row: -row,
    "itself": lambda row: row * row,
    "three operands": lambda row: nym.where(True, row, 0),
    "comparison": lambda row: row > 0,
    "function": nym.exp,
    "reduction": lambda row: row.sum("b"),
    "index": lambda row: row["b", 0],
    "update": lambda row: row.at["b", 0].set(0.0),
    "dot": lambda row: nym.dot(row, v, axis="b"),
    "rename": lambda row: row.rename({"b": "c"}),
    "stack": lambda row: nym.stack("k", [row, row]),
    "shape": lambda row: row.shape,
    "has_axis": lambda row: row.has_axis("b"),
    "rearrange": lambda row: row.rearrange(("b", "a")),
    "axes": lambda row: row.axes,
    "axis_size": lambda row: row.axis_size("b"),
    "vmap": nym.vmap(lambda row: row, "b"),
    "map": nym.map(lambda row: row, "b"),
    "lift": nym.lift(jnp.sum, "b"),
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_the_first_operation_on_what_was_cut_by_position_is_an_error(first):
    text = "an array of shape (3,) has the names (a, b): `jax.vmap` or a similar function, which ignores names, has"
    with refusal(f"{text} changed its axes; use `axonym.vmap` or `axonym.scan`"):
        jax.vmap(lambda row: (first(row), row)[1])(x)


@pytest.mark.parametrize(
    "cut",
    [lambda fn, x: jax.vmap(fn)(x), jax.lax.map, lambda fn, x: jax.lax.scan(lambda carry, row: (carry, fn(row)), 0, x)],
    ids=["vmap", "map", "scan"],
)
def test_whatever_cuts_by_position_is_found_out(cut):
    with refusal("has the names (a, b)"):
        cut(lambda row: row * 2, x)


def test_what_lost_an_axis_still_has_a_repr():
    seen = []
    jax.vmap(lambda row: seen.append(repr(row)) or row)(x)
    assert seen[0].startswith("NamedArray(") and "(a, b)" in seen[0]


@pytest.mark.parametrize("differentiate", [jax.jacfwd, jax.jacrev, jax.hessian, eqx.filter_jacrev])
def test_jacobians_say_that_they_take_plain_arrays(differentiate):
    text = (
        "`jax.jacrev`, `jax.hessian`, `jax.vmap` or a similar function, which ignores names, has changed its axes; use"
    )
    for fn in (lambda v: v**3, lambda v: (v**3).sum(), lambda v: (v**3).array):
        jacobian = jax.jit(differentiate(fn))(v)
        with refusal(f"{text} `axonym.vmap`, and take Jacobians of plain arrays, as in"):
            _ = jacobian + 1


def test_a_named_scalar_that_gained_an_axis_is_found_out():
    many = jax.vmap(lambda number: nym.named(number, ()))(jnp.arange(3.0))
    for wrong in (lambda many: many + 1, lambda many: many * v, lambda many: many.sum()):
        with refusal("an array of shape (3,) has the names ()"):
            wrong(many)


def test_control_flow_takes_the_plain_array_of_a_named_scalar():
    done, x = nym.ones({}) > 0, nym.ones({"i": 2})
    with pytest.raises(TypeError, match=r"Error interpreting argument to .* as a JAX value.*NamedArray"):
        jax.lax.cond(done, lambda: 1, lambda: 2)
    with pytest.raises(TypeError, match=r"Error interpreting argument to .* as a JAX value.*NamedArray"):
        eqx.error_if(x, ~done, "stop")
    assert jax.jit(lambda done: jax.lax.cond(done.scalar(), lambda: 1, lambda: 2))(done) == 1
    assert np.array_equal(eqx.error_if(x, ~done.scalar(), "stop").array, x.array)
    assert nym.where(done, 1.0, 2.0).scalar() == 1

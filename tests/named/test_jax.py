"""Named arrays in JAX's own transformations: whole they pass through, cut by position they are found out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.refusals import refusal


x = nym.named(np.arange(6.0, dtype=np.float32).reshape(2, 3), ("a", "b"))
v = nym.named(np.array([1.0, -2.0, 3.0], np.float32), "b")


def same(x, array, names):
    return isinstance(x, nym.NamedArray) and x.names == names and np.allclose(x.array, array, rtol=1e-5, atol=1e-5)


def test_forward_and_backward_derivatives():
    out, tangent = jax.jvp(nym.sin, (x,), (nym.ones_like(x),))
    assert same(out, np.sin(x.array), ("a", "b")) and same(tangent, np.cos(x.array), ("a", "b"))
    out, backward = jax.vjp(lambda x, v: (x * v).sum("b"), x, v)
    for_x, for_v = backward(nym.ones_like(out))
    assert same(for_x, np.broadcast_to(v.array, (2, 3)), ("a", "b")) and same(for_v, x.array.sum(0), ("b",))
    for differentiate in (jax.grad, jax.jacfwd, jax.jacrev):
        assert same(differentiate(lambda x: (x * x).sum().scalar())(x), 2 * x.array, ("a", "b"))
    for differentiate in (jax.jacfwd, jax.jacrev):  # with respect to a number
        assert same(differentiate(lambda scale: x * scale)(2.0), x.array, ("a", "b"))


FIRST = {
    "minus": lambda row: -row,
    "itself": lambda row: row * row,
    "three operands": lambda row: nym.where(True, row, 0),
    "comparison": lambda row: row > 0,
    "function": nym.exp,
    "reduction": lambda row: row.sum("b"),
    "cumulative": lambda row: row.cumsum("b"),
    "softmax": lambda row: nym.softmax(row, "b"),
    "merge": lambda row: row.flatten_axes(("a", "b"), "c"),
    "unbind": lambda row: row.unbind("a"),
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

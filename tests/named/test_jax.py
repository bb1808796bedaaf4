"""Named arrays in JAX's own transformations: whole they pass through, cut by position they are found out."""

from re import escape

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis


x = nym.named(np.arange(6.0, dtype=np.float32).reshape(2, 3), ("a", "b"))
v = nym.named(np.array([1.0, -2.0, 3.0], np.float32), "b")


def same(x, array, names):
    return isinstance(x, nym.NamedArray) and x.names == names and np.allclose(x.array, array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("run", [lambda fn: fn, jax.jit], ids=["eager", "jit"])
def test_named_arrays_are_carried_by_loops(run):
    total, steps = run(lambda v: jax.lax.scan(lambda carry, i: (carry + v * i, carry.sum()), v, jnp.arange(3.0)))(v)
    assert same(total, v.array * 4, ("b",))
    assert steps.names == () and np.allclose(steps.array, [2.0, 2.0, 4.0])  # with an axis that only JAX knows
    counted = run(lambda v: jax.lax.fori_loop(0, 4, lambda i, carry: carry * 2, v))(v)
    assert same(counted, v.array * 16, ("b",))
    grown = run(lambda v: jax.lax.while_loop(lambda c: c.max().scalar() < 100, lambda c: c * 2, v))(v)
    assert same(grown, v.array * 64, ("b",))


def test_a_named_scalar_decides_and_chooses():
    assert same(jax.lax.while_loop(lambda c: (c.max() < 100).array, lambda c: c * 2, v), v.array * 64, ("b",))
    for positive, factor in ((True, 2), (False, -1)):
        chosen = jax.lax.cond((v.sum() > (0 if positive else 9)).scalar(), lambda v: v * 2, lambda v: -v, v)
        assert same(chosen, v.array * factor, ("b",))
    for at in range(3):
        branches = [lambda v, k=k: v + k for k in range(3)]
        assert same(jax.jit(lambda at, v: jax.lax.switch(at, branches, v))(at, v), v.array + at, ("b",))  # noqa: B023


def test_branches_must_agree_on_names():
    with pytest.raises(TypeError, match="must have the same"):
        jax.lax.cond(True, lambda x: x, lambda x: x.rearrange(("b", "a")), nym.ones({"a": 3, "b": 3}))


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.dots_saveable], ids=["all", "policy"])
def test_checkpointed_functions(policy):
    def fn(x):
        return nym.dot(nym.sin(x), v, axis="b")

    saved = jax.checkpoint(fn, policy=policy)
    assert same(saved(x), fn(x).array, ("a",))
    assert same(nym.grad(lambda x: saved(x).sum())(x), nym.grad(lambda x: fn(x).sum())(x).array, ("a", "b"))


def test_derivatives_of_ones_own():
    @jax.custom_vjp
    def clipped(x):
        return x * 3

    clipped.defvjp(lambda x: (clipped(x), x), lambda kept, cotangent: (cotangent * 10 + kept * 0,))

    @jax.custom_jvp
    def tripled(x):
        return x * 3

    @tripled.defjvp
    def _(primals, tangents):
        return tripled(primals[0]), tangents[0] * 10

    for fn in (clipped, tripled):
        assert same(fn(x), x.array * 3, ("a", "b"))
        assert same(nym.grad(lambda x, fn=fn: fn(x).sum())(x), np.full((2, 3), 10.0), ("a", "b"))


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


def test_where_axes_go_can_be_said():
    turned = jax.vmap(lambda row: row, in_axes=1, out_axes=1)(x)
    assert same(turned, x.array, ("a", "b"))  # whatever is done to it in between is found out, see below


FIRST = {
    "minus": lambda row: -row,
    "a number": lambda row: row + 1,
    "from the right": lambda row: 1 - row,
    "itself": lambda row: row * row,
    "another": lambda row: row * nym.ones({"b": 3}),
    "three operands": lambda row: nym.where(True, row, 0),
    "comparison": lambda row: row > 0,
    "function": nym.exp,
    "clip": lambda row: row.clip(0, 1),
    "reduction": lambda row: row.sum("b"),
    "reduction of all": lambda row: row.mean(),
    "softmax": lambda row: nym.softmax(row, "b"),
    "index": lambda row: row["b", 0],
    "update": lambda row: row.at["b", 0].set(0.0),
    "dot": lambda row: nym.dot(row, v, axis="b"),
    "rearrange": lambda row: row.rearrange(("b", "a")),
    "rename": lambda row: row.rename({"b": "c"}),
    "stack": lambda row: nym.stack("k", [row, row]),
    "axes": lambda row: row.axes,
    "shape": lambda row: row.shape,
    "axis_size": lambda row: row.axis_size("b"),
    "has_axis": lambda row: row.has_axis("b"),
    "vmap": nym.vmap(lambda row: row, "b"),
    "map": nym.map(lambda row: row, "b"),
    "lift": nym.lift(jnp.sum, "b"),
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_the_first_operation_on_what_was_cut_by_position_is_an_error(first):
    text = escape(
        "an array of shape (3,) has the names (a, b): `jax.vmap` or a similar function, which ignores names, has"
    )
    with pytest.raises(ValueError, match=f"{text} changed its axes; use `axonym.vmap` or `axonym.scan`"):
        jax.vmap(lambda row: (first(row), row)[1])(x)


@pytest.mark.parametrize(
    "cut",
    [
        lambda fn, x: jax.vmap(fn)(x),
        jax.lax.map,
        lambda fn, x: jax.lax.scan(lambda carry, row: (carry, fn(row)), 0, x),
    ],
    ids=["vmap", "map", "scan"],
)
def test_whatever_cuts_by_position_is_found_out(cut):
    with pytest.raises(ValueError, match=r"has the names \(a, b\)"):
        cut(lambda row: row * 2, x)


def test_what_lost_an_axis_still_has_a_repr():
    seen = []
    jax.vmap(lambda row: seen.append(repr(row)) or row)(x)
    assert seen[0].startswith("NamedArray(") and "(a, b)" in seen[0]


@pytest.mark.parametrize("run", [lambda fn: fn, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("differentiate", [jax.jacfwd, jax.jacrev, jax.hessian, eqx.filter_jacrev])
def test_jacobians_say_that_they_take_plain_arrays(run, differentiate):
    text = (
        "`jax.jacrev`, `jax.hessian`, `jax.vmap` or a similar function, which ignores names, has changed its axes; use"
    )
    for fn in (lambda v: v**3, lambda v: (v**3).sum(), lambda v: (v**3).array):
        jacobian = run(differentiate(fn))(v)
        with pytest.raises(ValueError, match=f"{text} `axonym.vmap`, and take Jacobians of plain arrays, as in"):
            _ = jacobian + 1


def test_a_named_scalar_that_gained_an_axis_is_found_out():
    many = jax.vmap(lambda number: nym.named(number, ()))(jnp.arange(3.0))
    for wrong in (lambda many: many + 1, lambda many: many * v, lambda many: many.sum()):
        with pytest.raises(ValueError, match=escape("an array of shape (3,) has the names ()")):
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

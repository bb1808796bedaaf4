"""`grad` and `value_and_grad`, against JAX's own of plain arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym


def loss(x, w):
    return (nym.sin(x) * w).sum()


def plain(x, w):
    return (jnp.sin(x) * jnp.broadcast_to(w, x.shape)).sum()


def same(x, array, names):
    return x.names == names and np.allclose(x.array, array, rtol=1e-5, atol=1e-5)


@pytest.fixture
def x(draw):
    return draw(a=2, b=3)


@pytest.fixture
def w(draw):
    return draw(b=3)


@pytest.mark.parametrize("run", [lambda fn: fn, jax.jit], ids=["eager", "jit"])
def test_gradients_are_named_as_the_arguments(run, x, w):
    value, gradient = run(nym.value_and_grad(loss))(x, w)
    expected = jax.value_and_grad(plain, (0, 1))(x.array, w.array)
    assert value.names == () and np.allclose(value.array, expected[0])
    assert same(gradient, expected[1][0], ("a", "b"))
    assert same(run(nym.grad(loss, 1))(x, w), expected[1][1], ("b",))
    assert same(run(nym.grad(loss, -1))(x, w), expected[1][1], ("b",))
    first, second = run(nym.grad(loss, (1, 0)))(x, w)
    assert same(first, expected[1][1], ("b",)) and same(second, expected[1][0], ("a", "b"))
    (alone,) = run(nym.grad(loss, [0]))(x, w)
    assert same(alone, expected[1][0], ("a", "b"))


def test_the_value_is_what_the_function_returned(x, w):
    value, _ = nym.value_and_grad(lambda x: loss(x, w).scalar())(x)
    assert isinstance(value, jax.Array) and value.shape == ()
    value, _ = nym.value_and_grad(lambda x: loss(x, w))(x)
    assert isinstance(value, nym.NamedArray) and value.names == ()


def test_what_else_a_function_computed_is_handed_on(x, w):
    def fn(x, *, w):
        return loss(x, w), {"row": x.sum("a"), "text": "done", "number": 3}

    gradient, aux = nym.grad(fn, has_aux=True)(x, w=w)
    assert same(gradient, jax.grad(plain)(x.array, w.array), ("a", "b"))
    assert same(aux["row"], x.array.sum(0), ("b",)) and (aux["text"], aux["number"]) == ("done", 3)
    (value, aux), _ = nym.value_and_grad(fn, has_aux=True)(x, w=w)
    assert value.names == () and aux["text"] == "done"


def test_trees_with_leaves_that_are_no_arrays(x, w):
    class Model(eqx.Module):
        weight: nym.NamedArray
        count: nym.NamedArray
        table: np.ndarray
        scale: float
        repeats: int
        name: str
        activation: object

        def __call__(self, x):
            return (self.activation(x) * self.weight * self.scale * self.repeats * self.count.sum()).sum()

    model = Model(w, nym.arange(nym.Axis("k", 3)), np.ones(2, np.float32), 0.5, 2, "model", nym.sin)
    gradient = nym.grad(lambda model, x: model(x))(model, x)
    assert isinstance(gradient, Model) and same(gradient.weight, 3 * np.sin(x.array).sum(0), ("b",))
    assert gradient.count.array is None and gradient.count.names == ("k",)
    assert np.array_equal(gradient.table, np.zeros(2)) and gradient.table.dtype == np.float32
    assert (gradient.scale, gradient.repeats, gradient.name, gradient.activation) == (None, None, None, None)
    stepped = eqx.apply_updates(model, gradient)
    assert same(stepped.weight, model.weight.array + gradient.weight.array, ("b",)) and stepped.name == "model"


def test_numbers_that_are_arguments_themselves():
    assert nym.grad(lambda t: t**2)(3.0) == 6
    assert nym.grad(lambda t: t**2)(np.float32(3)) == 6
    assert np.array_equal(nym.grad(lambda t: (t**2).sum())(np.ones(2, np.float32)), [2, 2])


def test_gradients_of_gradients(x, w):
    second = nym.grad(lambda x: nym.dot(nym.grad(loss)(x, w), w, axis="b").sum())(x)
    expected = jax.grad(lambda x: (jax.grad(plain)(x, w.array) @ w.array).sum())(x.array)
    assert same(second, expected, ("a", "b"))


def test_under_transformations_of_ours(x, w):
    each = nym.vmap(nym.grad(loss), "a")(x, w)
    assert same(each, jax.grad(plain)(x.array, w.array), ("a", "b"))


def test_on_a_mesh_gradients_are_sharded_as_what_they_are_for(mapped, draw):
    y, u = draw(batch=8, embed=4), draw(embed=4)
    expected = jax.grad(plain, (0, 1))(y.array, u.array)
    for run in (lambda fn: fn, jax.jit):
        gradients = run(nym.grad(loss, (0, 1)))(*nym.shard((y, u)))
        assert same(gradients[0], expected[0], ("batch", "embed")) and same(gradients[1], expected[1], ("embed",))
        assert gradients[0].sharding.is_equivalent_to(jax.NamedSharding(mapped, jax.P("data", "model")), 2)


def test_a_gradient_is_that_of_a_scalar(x, w):
    with pytest.raises(ValueError, match=r"the function returned \(a: 2, b: 3\); use `.sum\(\)` or `.mean\(\)`"):
        nym.grad(lambda x: x * 2)(x)
    with pytest.raises(ValueError, match=r"the function returned an array of shape \(2, 3\); use `.sum\(\)`"):
        nym.value_and_grad(lambda x: x.array)(x)
    with pytest.raises(ValueError, match=r"the function returned \(b: 3\); use"):
        nym.grad(lambda x: (x.sum("a"), None), has_aux=True)(x)


def test_arguments_must_have_something_to_differentiate_by(x):
    for argument, kind in (
        (3, "int"),
        ("text", "str"),
        (None, "NoneType"),
        (nym.arange(nym.Axis("k", 3)), "NamedArray int32"),
    ):
        with pytest.raises(
            TypeError, match=f"Argument 1 has no array of real numbers to differentiate; it is of type {kind}"
        ):
            nym.grad(lambda x, y: x.sum(), 1)(x, argument)
    for at in (2, -3):
        with pytest.raises(ValueError, match=f"positional argument {at}, but 2 are given by position"):
            nym.grad(loss, at)(x, x)


def test_a_function_with_aux_returns_a_pair(x):
    for wrong in (lambda x: x.sum(), lambda x: (x.sum(),), lambda x: [x.sum(), 1]):
        with pytest.raises(TypeError, match="with `has_aux=True` must return a pair"):
            nym.grad(wrong, has_aux=True)(x)


PRODUCTS_AND_ORDERS = {
    "masked prod": lambda x: nym.prod(x, "batch", where=x > 0),
    "masked nanprod": lambda x: nym.nanprod(x, "embed", where=x > 0),
    "prod of all": nym.prod,
    "prod in bfloat16": lambda x: nym.prod(x, "embed", dtype=jnp.bfloat16).astype(jnp.float32),
    "descending": lambda x: nym.sort(x, "batch", descending=True),
    "argsort": lambda x: nym.take_along_axis(x * x, nym.argsort(x, "embed"), "embed"),
    "vmap of sort": nym.vmap(lambda x: nym.sort(x, "embed"), "batch"),
    "vmap of prod": nym.vmap(lambda x: nym.prod(x, "batch"), "embed"),
    "checkpoint": jax.checkpoint(lambda x: nym.sort(x, "batch") * nym.prod(x, "batch")),
    "second": lambda x: nym.grad(lambda x: (nym.prod(x, "batch") ** 2).sum() + (nym.sort(x, "embed") ** 3).sum())(x),
}


def test_gradients_that_jax_has_no_sharding_rule_for(mapped, draw):
    x = draw(batch=8, embed=4)

    def differentiate(x):
        return {name: nym.grad(lambda x, fn=fn: (fn(x) ** 2).sum())(x) for name, fn in PRODUCTS_AND_ORDERS.items()}

    with jax.set_mesh(None):
        expected = jax.jit(differentiate)(x)
    for name, gradient in jax.jit(differentiate)(nym.shard(x)).items():
        if mapped.axis_types[0] == AxisType.Explicit:
            assert gradient.sharding.spec == jax.P("data", "model"), name
        assert np.allclose(gradient.array, expected[name].array, rtol=1e-3, atol=1e-5), name
    eager = nym.grad(lambda x: (nym.sort(x, "batch") * nym.prod(x, "embed")).sum())
    assert np.allclose(eager(nym.shard(x)).array, eager(x).array, rtol=1e-4, atol=1e-6)

"""`grad` and `value_and_grad`, against derivatives by hand and those of one device."""

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym
from tests.named.comparing import assert_close
from tests.refusals import refusal


WEIGHTS = np.array([0.5, -1.0, 2.0], np.float32)
x = nym.named(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), ("a", "b"))
w = nym.named(WEIGHTS, "b")
OF_X, OF_W = np.cos(x.array) * WEIGHTS, np.sin(x.array).sum(0)


def compute_loss(x, w):
    return (nym.sin(x) * w).sum()


@pytest.mark.parametrize("run", [lambda fn: fn, jax.jit], ids=["eager", "jit"])
def test_gradients_are_named_as_the_arguments(run):
    def differentiate(x, w):
        single = nym.grad(compute_loss, 1)(x, w), nym.grad(compute_loss, -1)(x, w)
        return nym.value_and_grad(compute_loss)(x, w), single, nym.grad(compute_loss, (1, 0))(x, w)

    (value, gradient), single, several = run(differentiate)(x, w)
    assert value.names == () and np.allclose(value.array, (np.sin(x.array) * WEIGHTS).sum())
    for of_x in (gradient, several[1], *nym.grad(compute_loss, [0])(x, w)):
        assert_close(of_x, "ab", OF_X)
    for of_w in (*single, several[0]):
        assert_close(of_w, "b", OF_W)


def test_the_value_is_what_the_function_returned():
    def compute(x, *, w):
        return compute_loss(x, w), {"row": x.sum("a"), "text": "done", "number": 3}

    value, _ = nym.value_and_grad(lambda x: compute_loss(x, w).scalar())(x)
    assert isinstance(value, jax.Array) and value.shape == ()
    (value, aux), gradient = nym.value_and_grad(compute, has_aux=True)(x, w=w)
    assert value.names == ()
    assert_close(gradient, "ab", OF_X)
    assert_close(aux["row"], "b", x.array.sum(0))
    assert (aux["text"], aux["number"]) == ("done", 3)
    assert nym.grad(compute, has_aux=True)(x, w=w)[1]["text"] == "done"


def test_trees_with_leaves_that_are_no_arrays():
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
    assert isinstance(gradient, Model)
    assert_close(gradient.weight, "b", 3 * OF_W)
    assert gradient.count.array is None and gradient.count.names == ("k",)
    assert np.array_equal(gradient.table, np.zeros(2)) and gradient.table.dtype == np.float32
    assert (gradient.scale, gradient.repeats, gradient.name, gradient.activation) == (None, None, None, None)
    stepped = eqx.apply_updates(model, gradient)
    assert_close(stepped.weight, "b", WEIGHTS + 3 * OF_W)
    assert stepped.name == "model"


def test_numbers_that_are_arguments_themselves():
    assert nym.grad(lambda t: t**2)(3.0) == 6
    assert nym.grad(lambda t: t**2)(np.float32(3)) == 6
    assert np.array_equal(nym.grad(lambda t: (t**2).sum())(np.ones(2, np.float32)), [2, 2])


def test_gradients_of_gradients_and_under_vmap():
    @jax.jit
    def differentiate(x, w):
        second = nym.grad(lambda x: nym.dot(nym.grad(compute_loss)(x, w), w, axis="b").sum())(x)
        return second, nym.vmap(nym.grad(compute_loss), "a")(x, w)

    second, each = differentiate(x, w)
    assert_close(second, "ab", -np.sin(x.array) * WEIGHTS**2)
    assert_close(each, "ab", OF_X)


def test_on_a_mesh_gradients_are_sharded_as_what_they_are_for(mapped, draw):
    y, u = draw(batch=8, embed=4), draw(embed=4)
    for run in (lambda fn: fn, jax.jit):
        of_y, of_u = run(nym.grad(compute_loss, (0, 1)))(*nym.shard((y, u)))
        assert_close(of_y, ("batch", "embed"), np.cos(y.array) * np.asarray(u))
        assert_close(of_u, ("embed",), np.sin(y.array).sum(0))
        assert of_y.sharding.is_equivalent_to(jax.NamedSharding(mapped, jax.P("data", "model")), 2)


def test_a_gradient_is_that_of_a_scalar():
    with refusal("the function returned (a: 2, b: 3); use `.sum()` or `.mean()`"):
        nym.grad(lambda x: x * 2)(x)
    with refusal("the function returned an array of shape (2, 3); use `.sum()`"):
        nym.value_and_grad(lambda x: x.array)(x)
    with refusal("the function returned (b: 3); use"):
        nym.grad(lambda x: (x.sum("a"), None), has_aux=True)(x)
    for wrong in (lambda x: x.sum(), lambda x: (x.sum(),), lambda x: [x.sum(), 1]):
        with refusal("with `has_aux=True` must return a pair", TypeError):
            nym.grad(wrong, has_aux=True)(x)


def test_arguments_must_have_something_to_differentiate_by():
    whole = nym.arange(nym.Axis("k", 3))
    for argument, kind in ((3, "int"), ("text", "str"), (None, "NoneType"), (whole, "NamedArray int32")):
        text = f"Argument 1 has no array of real numbers to differentiate; it is of type {kind}"
        with refusal(text, TypeError):
            nym.grad(lambda x, y: x.sum(), 1)(x, argument)
    for at in (2, -3):
        with refusal(f"positional argument {at}, but 2 are given by position"):
            nym.grad(compute_loss, at)(x, x)


PRODUCTS_AND_ORDERS = {
    "masked prod": lambda x: nym.prod(x, "batch", where=x > 0),
    "vmap of sort": nym.vmap(lambda x: nym.sort(x, "embed"), "batch"),
    "checkpoint": jax.checkpoint(lambda x: nym.sort(x, "batch") * nym.prod(x, "batch")),
    "second": lambda x: nym.grad(lambda x: (nym.prod(x, "batch") ** 2).sum() + (nym.sort(x, "embed") ** 3).sum())(x),
}


@pytest.mark.parametrize("name", [*list(PRODUCTS_AND_ORDERS)[:-1], pytest.param("second", marks=pytest.mark.thorough)])
def test_gradients_that_jax_has_no_sharding_rule_for(mapped, draw, name):
    x, differentiate = draw(batch=8, embed=4), nym.grad(lambda x: (PRODUCTS_AND_ORDERS[name](x) ** 2).sum())
    with jax.set_mesh(None):
        expected = jax.jit(differentiate)(x)
    explicit = mapped.axis_types[0] == AxisType.Explicit
    for run in (jax.jit, lambda fn: fn) if explicit and name == "masked prod" else (jax.jit,):
        gradient = run(differentiate)(nym.shard(x))
        assert gradient.sharding.spec == jax.P("data", "model") or not explicit
        np.testing.assert_allclose(gradient.array, expected.array, rtol=1e-3, atol=1e-5)

"""Activation functions and softmax: the functions of `jax.nn`, under every name."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


NAMES = (
    "celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid mish relu relu6 selu "
    "sigmoid silu soft_sign softplus sparse_plus sparse_sigmoid squareplus swish tanh log1mexp"
).split()
ALONG = ["log_softmax", "logmeanexp", "logsumexp", "softmax"]
OURS = {"quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x), "relu_squared": lambda x: jnp.maximum(x, 0) ** 2}
ELSEWHERE = set("glu dot_product_attention one_hot standardize".split())
NOT_BY_NAME = {"get_scaled_dot_general_config", "scaled_dot_general", "scaled_matmul"}
X = nym.named(np.linspace(-8, 8, 48, dtype=np.float32).reshape(8, 6), ("batch", "mlp"))


def test_every_function_of_jax_is_there_and_tested():
    functions = {name for name, thing in vars(jax.nn).items() if callable(thing) and not name.startswith("_")}
    assert functions - NOT_BY_NAME == {*NAMES, *ALONG, *ELSEWHERE}
    assert all(hasattr(nym.nn, name) for name in {*NAMES, *ALONG, *OURS, *ELSEWHERE})


def test_activations_are_those_of_jax():
    def compute(find_function, x):
        results = {}
        for name in (*NAMES, *OURS):
            function, operand = find_function(name), x + 8.1 if name == "log1mexp" else x
            gradient = jax.grad(lambda x, function=function: jnp.sum(getattr(function(x), "array", function(x))))
            results[name] = function(operand), gradient(operand), function(operand.astype(jnp.bfloat16))
        return results

    @jax.jit
    def compute_both(x):
        own = functools.partial(getattr, nym.nn)
        plain = {name: own(name)(x.array + 8.1) for name in (*NAMES, *OURS)}
        by_jax = compute(lambda name: OURS.get(name) or getattr(jax.nn, name), x.array)
        return compute(own, x), by_jax, plain, {name: own(name)(x + 8.1) for name in plain}

    results, expected, plain, named = compute_both(X)
    for name, arrays in results.items():
        for result, target in zip(arrays, expected[name], strict=True):
            assert result.names == X.names and result.dtype == target.dtype
            np.testing.assert_allclose(
                np.float32(result.array),
                np.float32(target),
                1e-6,
                1e-6 + 0.02 * (target.dtype != "float32"),
                err_msg=name,
            )
        assert allclose(plain[name], named[name].array)


def test_parameters_of_activations_are_those_of_jax():
    for name, option in {"elu": "alpha", "celu": "alpha", "leaky_relu": "negative_slope", "squareplus": "b"}.items():
        function, expected = getattr(nym.nn, name), getattr(jax.nn, name)(X.array, 0.3)
        assert np.array_equal(function(X, 0.3).array, expected)
        assert np.array_equal(function(X, **{option: 0.3}).array, expected)


def test_gelu_is_approximate_unless_told_otherwise():
    exact = nym.nn.gelu(X, approximate=False).array
    assert np.array_equal(exact, jax.nn.gelu(X.array, approximate=False))
    assert not np.array_equal(exact, nym.nn.gelu(X).array)
    assert np.array_equal(nym.nn.gelu(X, False).array, exact)
    gated = nym.nn.geglu(X, "mlp", approximate=False).array
    assert allclose(gated, X.array[:, :3] * exact[:, 3:], atol=1e-6)


def test_softmax_and_its_kin_go_along_an_axis(check):
    """Their logarithms and sums are added up, to differentiate all of them at once."""

    def reference(_, x):
        sums = jax.nn.logmeanexp(x.array, axis=1) + 2 * jax.nn.logsumexp(x.array, axis=1)
        return nym.named(jax.nn.softmax(x.array, 1) * jax.nn.log_softmax(x.array, 1) + sums[:, None], x.names)

    def compute(_, x):
        sums = nym.nn.logmeanexp(x, "mlp") + 2 * nym.nn.logsumexp(x, "mlp")
        assert sums.names == ("batch",)
        return nym.nn.softmax(x, "mlp") * nym.nn.log_softmax(x, "mlp") + sums

    check(compute, reference, None, X)
    for name in ALONG:
        assert allclose(getattr(nym.nn, name)(X).array, getattr(jax.nn, name)(X.array, axis=(0, 1)))


def test_an_activation_keeps_the_sharding_of_its_input(mesh):
    with nym.axis_mapping({"batch": "data", "mlp": "model"}):
        result = jax.jit(functools.partial(nym.nn.gelu, approximate=False))(nym.shard(X))
    assert tuple(result.sharding.spec) == ("data", "model")


def test_glu_halves_its_axis(mesh):
    x = nym.named(np.linspace(-2, 2, 64, dtype=np.float32).reshape(8, 8), ("mlp", "batch"))
    with jax.set_mesh(None):
        expected = jax.nn.glu(x.array, axis=0)
    assert nym.nn.glu(x, "mlp").names == ("mlp", "batch")
    with nym.axis_mapping({"batch": "data", "mlp": "model"}):
        result = nym.named_jit(nym.nn.glu)(nym.shard(x), "mlp")
    assert allclose(result.array, expected) and result.shape == {"mlp": 4, "batch": 8}


@pytest.mark.parametrize("name", ["swiglu", "geglu", "reglu"])
def test_gate_is_the_second_half_unless_told_otherwise(draw, name):
    activation = {"swiglu": jax.nn.silu, "geglu": jax.nn.gelu, "reglu": jax.nn.relu}[name]
    function, x = getattr(nym.nn, name), draw(nym.Axis("mlp", 8), nym.Axis("batch", 8))
    expected = x.array[:4] * activation(x.array[4:])
    swapped = nym.named(np.concatenate([x.array[4:], x.array[:4]]), x.names)
    assert allclose(function(x, "mlp").array, expected, atol=1e-6)
    assert allclose(function(swapped, "mlp", gate_first=True).array, expected, atol=1e-6)
    assert function(x.astype(jnp.bfloat16), "mlp").dtype == jnp.bfloat16
    with refusal(f"`{name}` takes an axis of even size, not (i: 3)"):
        function(nym.ones({"i": 3}), "i")


def test_one_hot_is_that_of_jax(mesh):
    ids, Label = nym.named(np.arange(16).reshape(8, 2) - 2, ("batch", "pos")), nym.Axis("label", 6)
    expected = np.equal(np.asarray(ids.array)[..., None], np.arange(6))
    for mapping in ({"batch": "data", "label": "model"}, {"pos": "model"}):
        with nym.axis_mapping(mapping):
            for result in (nym.nn.one_hot(ids, Label), nym.named_jit(nym.nn.one_hot)(nym.shard(ids), Label)):
                assert result.names == ("batch", "pos", "label") and result.dtype == jnp.float32
                assert result.sharding.is_equivalent_to(nym.sharding_for_axis(result.axes), 3)
                assert np.array_equal(jax.device_get(result.array), expected)
    assert nym.nn.one_hot(2, nym.Axis("i", 3), dtype=int).array.tolist() == [0, 0, 1]


def test_errors_name_the_function_and_the_axes():
    Label, x = nym.Axis("label", 3), nym.ones({"i": 3})
    with refusal("`glu` takes an axis of even size, not (i: 3)"):
        nym.nn.glu(x, nym.Axis("i", 3))
    with refusal("`one_hot` takes integers, not float32", TypeError):
        nym.nn.one_hot(x, Label)
    with refusal("`one_hot` takes a named array of integers or an integer, not 1.5", TypeError):
        nym.nn.one_hot(1.5, Label)
    with refusal("`one_hot` takes the new axis as an `Axis` with a size, not 'label'", TypeError):
        nym.nn.one_hot(1, "label")
    with refusal("the input (label: 2) has axis 'label' already; `rename` it"):
        nym.nn.one_hot(nym.zeros({"label": 2}, int), Label)
    with refusal("gelu: `approximate` must be True or False, not 'none'.", TypeError):
        nym.nn.gelu(x, approximate="none")
    with refusal("An operand is a named array or a number, not RmsNorm(", TypeError):
        nym.nn.relu(nym.nn.RmsNorm.init(Label))

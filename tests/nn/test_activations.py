"""Activation functions and softmax: the functions of `jax.nn`, under every name."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..comparing import allclose


NAMES = (
    "celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid mish relu relu6 selu "
    "sigmoid silu soft_sign softplus sparse_plus sparse_sigmoid squareplus swish tanh log1mexp"
).split()
ALONG = ["log_softmax", "logmeanexp", "logsumexp", "softmax"]
OURS = ["quick_gelu", "relu_squared"]
ELSEWHERE = set("glu dot_product_attention one_hot standardize".split())
NOT_BY_NAME = {"get_scaled_dot_general_config", "scaled_dot_general", "scaled_matmul"}
x = nym.named(jnp.linspace(-8, 8, 48).reshape(8, 6), ("batch", "mlp"))


def test_every_function_of_jax_is_there_and_tested():
    functions = {name for name, thing in vars(jax.nn).items() if callable(thing) and not name.startswith("_")}
    assert functions - NOT_BY_NAME == {*NAMES, *ALONG, *ELSEWHERE}
    assert all(hasattr(nym.nn, name) for name in {*NAMES, *ALONG, *OURS, *ELSEWHERE})


def compute_quick_gelu(x):
    return x * jax.nn.sigmoid(1.702 * x)


def compute_relu_squared(x):
    return jnp.maximum(x, 0) ** 2


@pytest.mark.parametrize("name", [*NAMES, *OURS])
def test_activation_is_that_of_jax(name):
    function, jax_function = getattr(nym.nn, name), getattr(jax.nn, name, None) or globals()[f"compute_{name}"]
    x = nym.named(jnp.linspace(0.1, 8, 48).reshape(8, 6), ("batch", "mlp")) if name == "log1mexp" else globals()["x"]
    assert function(x).names == x.names
    same = functools.partial(allclose, rtol=1e-6, atol=1e-6) if name in OURS else np.array_equal
    assert same(function(x).array, jax_function(x.array))
    assert same(function(x.array), jax_function(x.array))
    low = function(x.astype(jnp.bfloat16))
    assert low.dtype == jnp.bfloat16 and low.names == x.names
    gradients = jax.jit(jax.grad(lambda own_x, x: function(own_x).sum().scalar() + jax_function(x).sum(), (0, 1)))(
        x, x.array
    )
    assert same(gradients[0].array, gradients[1])


def test_parameters_of_activations_are_those_of_jax():
    for name, option in {"elu": "alpha", "celu": "alpha", "leaky_relu": "negative_slope", "squareplus": "b"}.items():
        function, jax_function = getattr(nym.nn, name), getattr(jax.nn, name)
        assert np.array_equal(function(x, 0.3).array, jax_function(x.array, 0.3))
        assert np.array_equal(function(x, **{option: 0.3}).array, jax_function(x.array, 0.3))


def test_gelu_is_approximate_unless_told_otherwise():
    exact = nym.nn.gelu(x, approximate=False).array
    assert np.array_equal(exact, jax.nn.gelu(x.array, approximate=False))
    assert not np.array_equal(exact, nym.nn.gelu(x).array)
    assert np.array_equal(nym.nn.gelu(x, False).array, exact)


@pytest.mark.parametrize("name", ALONG)
def test_softmax_and_its_kin_go_along_an_axis(check, name):
    jax_function = getattr(jax.nn, name)
    names = ("batch",) if name in ("logmeanexp", "logsumexp") else ("batch", "mlp")

    def reference(_, x):
        return nym.named(jax_function(x.array, axis=1), names)

    check(lambda _, x: getattr(nym.nn, name)(x, "mlp"), reference, None, x)
    everything = getattr(nym.nn, name)(x).array
    assert allclose(everything, jax_function(x.array, axis=(0, 1)))


def test_an_activation_keeps_the_sharding_of_its_input(mesh):
    with nym.axis_mapping({"batch": "data", "mlp": "model"}):
        result = jax.jit(functools.partial(nym.nn.gelu, approximate=False))(nym.shard(x))
    assert tuple(result.sharding.spec) == ("data", "model")


def test_glu_halves_its_axis(mesh):
    x = nym.named(jnp.linspace(-2, 2, 64).reshape(8, 8), ("mlp", "batch"))
    expected = jax.nn.glu(x.array, axis=0)
    assert nym.nn.glu(x, "mlp").names == ("mlp", "batch") and np.array_equal(nym.nn.glu(x, "mlp").array, expected)
    with nym.axis_mapping({"batch": "data", "mlp": "model"}):
        result = nym.named_jit(nym.nn.glu)(nym.shard(x), "mlp")
    assert allclose(result.array, expected) and result.shape == {"mlp": 4, "batch": 8}
    with pytest.raises(ValueError, match=r"`glu` takes an axis of even size, not \(i: 3\)"):
        nym.nn.glu(nym.ones({"i": 3}), nym.Axis("i", 3))
    with pytest.raises(ValueError, match=r"no axis 'ml' in \(mlp: 8, batch: 8\); did you mean 'mlp'\?"):
        nym.nn.glu(x, "ml")


@pytest.mark.parametrize("name", ["swiglu", "geglu", "reglu"])
def test_gate_is_the_second_half_unless_told_otherwise(check, draw, name):
    activation = {"swiglu": jax.nn.silu, "geglu": jax.nn.gelu, "reglu": jax.nn.relu}[name]
    function = getattr(nym.nn, name)

    def reference(_, x):
        return nym.named(x.array[:4] * activation(x.array[4:]), x.names)

    x = draw(nym.Axis("mlp", 8), nym.Axis("batch", 8))
    check(lambda _, x: function(x, "mlp"), reference, None, x)
    halves = x["mlp", 4:].array, x["mlp", :4].array
    swapped = nym.named(jnp.concatenate(halves), x.names)
    assert np.array_equal(function(x, "mlp").array, function(swapped, "mlp", gate_first=True).array)
    assert function(x.astype(jnp.bfloat16), "mlp").dtype == jnp.bfloat16
    with pytest.raises(ValueError, match=rf"`{name}` takes an axis of even size, not \(i: 3\)"):
        function(nym.ones({"i": 3}), "i")


def test_exact_gelu_gates_if_asked_for():
    result = nym.nn.geglu(x, "mlp", approximate=False).array
    assert allclose(result, x.array[:, :3] * jax.nn.gelu(x.array[:, 3:], approximate=False), atol=1e-6)


def test_one_hot_is_that_of_jax(mesh):
    ids, Label = nym.named(jnp.arange(16).reshape(8, 2) - 2, ("batch", "pos")), nym.Axis("label", 6)
    expected = jax.nn.one_hot(jax.device_get(ids.array), 6)
    for mapping in ({"batch": "data", "label": "model"}, {"pos": "model"}):
        with nym.axis_mapping(mapping):
            for result in (nym.nn.one_hot(ids, Label), nym.named_jit(nym.nn.one_hot)(nym.shard(ids), Label)):
                assert result.names == ("batch", "pos", "label")
                assert result.sharding.is_equivalent_to(nym.sharding_for_axis(result.axes), 3)
                assert np.array_equal(jax.device_get(result.array), jax.device_get(expected))
    assert nym.nn.one_hot(2, nym.Axis("i", 3), dtype=int).array.tolist() == [0, 0, 1]


def test_one_hot_takes_integers_and_a_new_axis():
    Label = nym.Axis("label", 3)
    with pytest.raises(TypeError, match="`one_hot` takes integers, not float32"):
        nym.nn.one_hot(nym.ones({"i": 2}), Label)
    with pytest.raises(TypeError, match=r"`one_hot` takes a named array of integers or an integer, not 1\.5"):
        nym.nn.one_hot(1.5, Label)
    with pytest.raises(TypeError, match="`one_hot` takes the new axis as an `Axis` with a size, not 'label'"):
        nym.nn.one_hot(1, "label")
    with pytest.raises(ValueError, match=r"the input \(label: 2\) has axis 'label' already; `rename` it"):
        nym.nn.one_hot(nym.zeros({"label": 2}, int), Label)

"""Activation functions and softmax: the functions of `jax.nn`, under every name."""

import functools

import jax
import jax.numpy as jnp
import pytest

import axonym as nym


NAMES = (
    "elu gelu hard_tanh leaky_relu log_sigmoid relu relu6 sigmoid silu softplus swish log_softmax logsumexp softmax"
).split()
x = nym.named(jnp.linspace(-8, 8, 48).reshape(8, 6), ("batch", "mlp"))


def test_every_function_is_tested():
    functions = [name for name, thing in vars(nym.nn).items() if callable(thing) and thing.__name__ == name]
    lower = {name for name in functions if name == name.lower()}
    assert lower - set(NAMES) == {
        "causal_mask",
        "cross_entropy_loss",
        "dot_product_attention",
        "glu",
        "rotary_embedding",
    }


@pytest.mark.parametrize("name", NAMES[:11])
def test_activation_is_that_of_jax(name):
    own, theirs = getattr(nym.nn, name), getattr(jax.nn, name)
    assert own(x).names == x.names
    assert jnp.array_equal(own(x).array, theirs(x.array))
    assert jnp.array_equal(own(x.array), theirs(x.array))
    assert own(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    gradient = jax.grad(lambda x: own(x).sum().scalar())(x)
    assert jnp.array_equal(gradient.array, jax.grad(lambda x: theirs(x).sum())(x.array))


def test_gelu_is_approximate_unless_told_otherwise():
    exact = nym.nn.gelu(x, approximate=False).array
    assert jnp.array_equal(exact, jax.nn.gelu(x.array, approximate=False))
    assert not jnp.array_equal(exact, nym.nn.gelu(x).array)
    assert jnp.array_equal(nym.nn.gelu(x, False).array, exact)


@pytest.mark.parametrize("name", NAMES[11:])
def test_softmax_and_its_kin_go_along_an_axis(check, name):
    theirs = getattr(jax.nn, name)
    names = ("batch",) if name == "logsumexp" else ("batch", "mlp")

    def reference(_, x):
        return nym.named(theirs(x.array, axis=1), names)

    check(lambda _, x: getattr(nym.nn, name)(x, "mlp"), reference, None, x)
    everything = getattr(nym.nn, name)(x).array
    assert jnp.allclose(everything, theirs(x.array, axis=(0, 1)))


def test_an_activation_keeps_the_sharding_of_its_input(mesh):
    with nym.axis_mapping({"batch": "data", "mlp": "model"}):
        found = jax.jit(functools.partial(nym.nn.gelu, approximate=False))(nym.shard(x))
    assert tuple(found.sharding.spec) == ("data", "model")


def test_glu_halves_its_axis(mesh):
    x = nym.named(jnp.linspace(-2, 2, 64).reshape(8, 8), ("mlp", "batch"))
    expected = jax.nn.glu(x.array, axis=0)
    assert nym.nn.glu(x, "mlp").names == ("mlp", "batch") and jnp.array_equal(nym.nn.glu(x, "mlp").array, expected)
    with nym.axis_mapping({"batch": "data", "mlp": "model"}):
        found = nym.named_jit(nym.nn.glu)(nym.shard(x), "mlp")
    assert jnp.allclose(found.array, expected) and found.shape == {"mlp": 4, "batch": 8}
    with pytest.raises(ValueError, match=r"`glu` takes an axis of even size, not \(i: 3\)"):
        nym.nn.glu(nym.ones({"i": 3}), nym.Axis("i", 3))
    with pytest.raises(ValueError, match=r"no axis 'ml' in \(mlp: 8, batch: 8\); did you mean 'mlp'\?"):
        nym.nn.glu(x, "ml")

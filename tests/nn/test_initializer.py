"""Initializers: fan-in and fan-out by name, values that do not depend on sharding, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


Embed, Heads, HeadDim = nym.make_axes(embed=64, heads=8, head_dim=16)
KEY = jax.random.key(0)
INITIALIZERS = jax.nn.initializers


@pytest.mark.parametrize("init", [INITIALIZERS.he_normal(), INITIALIZERS.glorot_uniform(), INITIALIZERS.orthogonal()])
def test_values_are_those_of_merged_axes_in_any_order(init):
    expected = init(KEY, (64, 128), jnp.float32).reshape(64, 8, 16)
    weight = nym.nn.initialize_weight(init, KEY, Embed, (Heads, HeadDim))
    assert weight.names == ("heads", "head_dim", "embed")
    assert np.array_equal(weight.rearrange(("embed", "heads", "head_dim")).array, expected)
    target = nym.nn.initialize_weight(init, KEY, Embed, (Heads, HeadDim), (Heads, Embed, HeadDim))
    assert np.array_equal(target.rearrange(weight.names).array, weight.array)
    rounded = nym.nn.initialize_weight(init, KEY, Embed, (Heads, HeadDim), dtype=jnp.bfloat16)
    assert np.array_equal(rounded.array, weight.array.astype(jnp.bfloat16))


def test_layers_pass_their_axes_to_the_initializer():
    seen = []

    def init(key, shape, dtype):
        seen.append((shape, dtype))
        return jnp.ones(shape, dtype)

    make = functools.partial(nym.nn.Linear.init, (Heads, HeadDim), Embed, key=KEY)
    layer = make(initializer=init, bias_initializer=init, init_scale=0.5, dtype=jnp.bfloat16)
    assert (layer.weight == 0.5).all() and (layer.bias == 1).all()
    assert layer.weight.dtype == layer.bias.dtype == jnp.bfloat16
    assert sorted(seen) == [((64,), jnp.float32), ((128, 64), jnp.float32)]
    seen.clear()
    nym.nn.Embedding.init(Embed, (Heads, HeadDim), key=KEY, initializer=init)
    nym.nn.Conv.init(("y", "x"), Embed, Heads, (3, 2), groups=4, key=KEY, initializer=init, use_bias=False)
    nym.nn.MLP.init(Embed, Heads, 32, 1, key=KEY, initializer=init, bias_initializer=init, use_final_bias=False)
    shapes = [shape for shape, dtype in seen]
    assert shapes == [(64, 128), (3, 2, 16, 8), (64, 32), (32,), (32, 8)]
    assert nym.nn.Linear.init((), Embed, key=KEY, initializer=init).weight.shape == {"embed": 64}


def test_windows_count_in_both_fans():
    axes = nym.make_axes(out=50, inputs=40, y=3, x=4)
    weight = nym.nn.initialize_weight(INITIALIZERS.lecun_normal(), KEY, axes[1], axes[0], axes)
    assert abs(weight.var().item() * 40 * 12 - 1) < 0.05
    fan_out = INITIALIZERS.variance_scaling(2.0, "fan_out", "normal")
    weight = nym.nn.initialize_weight(fan_out, KEY, axes[1], axes[0], axes)
    assert abs(weight.var().item() * 50 * 12 - 2) < 0.1


def test_weight_and_bias_have_keys_of_their_own():
    normal = INITIALIZERS.normal(1.0)
    layer = nym.nn.Linear.init((), Embed, key=KEY, initializer=normal, bias_initializer=normal)
    assert not np.isin(layer.weight.array, layer.bias.array).any()


def test_weights_are_sharded_as_they_are_drawn(mesh):
    init = INITIALIZERS.glorot_normal()
    mapping = {"heads": "data", "embed": "model"}
    with jax.set_mesh(None):
        expected = jax.device_get(nym.nn.initialize_weight(init, KEY, Embed, (Heads, HeadDim)).array)
    make = functools.partial(nym.nn.Linear.init, Embed, (Heads, HeadDim), initializer=init)
    with nym.axis_mapping(mapping):
        for layer in (make(key=KEY), nym.named_jit(lambda key: make(key=key))(KEY)):
            assert tuple(layer.weight.sharding.spec) == ("data", None, "model")
            np.testing.assert_allclose(jax.device_get(layer.weight.array), expected, rtol=1e-5, atol=1e-7)
        draw = jax.jit(lambda key: nym.nn.initialize_weight(init, key, Embed, (Heads, HeadDim)).array)
        text = draw.lower(KEY).compile().as_text()
    assert "f32[64,128]" not in text and "all-gather" not in text  # each device draws its own shard


def test_errors_name_the_initializer():
    with refusal("The initializer `he_normal` returned a function; call it first: `he_normal()`.", TypeError):
        nym.nn.Linear.init(Embed, Heads, key=KEY, initializer=INITIALIZERS.he_normal)
    with refusal("An initializer is a function of a key, a shape and a dtype, such as", TypeError):
        nym.nn.Linear.init(Embed, Heads, key=KEY, initializer=0.02)
    with refusal("The initializer `<lambda>` returned shape (), (64, 8) was asked for.", TypeError):
        nym.nn.Linear.init(Embed, Heads, key=KEY, initializer=lambda key, shape, dtype: 0.0)
    with refusal("the axes (embed: 64) of a weight lack its axis heads: 8"):
        nym.nn.initialize_weight(INITIALIZERS.ones, KEY, Embed, Heads, Embed)

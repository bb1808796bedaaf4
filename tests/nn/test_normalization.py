"""Normalisation: parity with Equinox, element types, and what is kept for the backward pass."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Embed, Batch, Pos = nym.make_axes(embed=16, batch=8, pos=3)
PAIRS = [(nym.nn.RmsNorm, eqx.nn.RMSNorm), (nym.nn.LayerNorm, eqx.nn.LayerNorm)]


def keyless(kind):
    return lambda *args, key, **kwargs: kind.init(*args, **kwargs)


def reference(kind):
    def computed(layer, x):
        equinox_layer = kind(Embed.size, eps=layer.eps, use_weight=True, use_bias=layer.bias is not None)
        equinox_layer = eqx.tree_at(lambda layer: layer.weight, equinox_layer, layer.weight.array)
        if layer.bias is not None:
            equinox_layer = eqx.tree_at(lambda layer: layer.bias, equinox_layer, layer.bias.array)
        moved = x.rearrange((..., "embed"))
        return nym.named(jax.vmap(jax.vmap(equinox_layer))(moved.array), moved.names).rearrange(x.names)

    return computed


@pytest.mark.parametrize(("kind", "own"), PAIRS)
def test_it_is_that_of_equinox(check, draw, kind, own):
    layer = draw.layer(keyless(kind), Embed, 1e-3, use_bias=True)
    x = 1 + 2 * draw(Batch, Embed, Pos)
    check(lambda layer, x: layer(x), reference(own), layer, x)


@pytest.mark.parametrize(("kind", "own"), PAIRS)
def test_low_precision_is_kept_and_statistics_are_not_in_it(draw, kind, own):
    layer = draw.layer(keyless(kind), Embed)
    x = (10 + draw(Batch, Pos, Embed)).astype(jnp.bfloat16)
    result = layer(x)
    assert result.dtype == jnp.bfloat16
    exact = layer(x.astype(jnp.float32)).astype(jnp.bfloat16)
    assert (result == exact).all()


def test_dtype_to_compute_in_can_be_chosen(draw):
    x = (10 + draw(Batch, Pos, Embed)).astype(jnp.bfloat16)
    low = nym.nn.LayerNorm.init(Embed, use_weight=False, use_bias=False, compute_dtype=jnp.bfloat16)
    centred = x - x.mean("embed")
    expected = centred * nym.rsqrt((centred * centred).mean("embed") + 1e-5)
    assert allclose(low(x).array, expected.array, rtol=0.03, atol=0.03)
    assert low(x.astype(jnp.float32)).dtype == jnp.float32
    assert not np.array_equal(low(x).array, nym.nn.LayerNorm.init(Embed)(x).array)


def test_axes_are_merged_for_export_and_split_again(draw):
    layer = draw.layer(keyless(nym.nn.LayerNorm), (Pos, Embed))
    flat = layer.flatten_for_export()
    assert flat.weight.shape == flat.bias.shape == {"__OUT": 48} and flat.axis == (nym.Axis("__OUT", 48),)
    assert eqx.tree_equal(flat.unflatten_from_export(layer), layer)
    single = nym.nn.RmsNorm.init(Embed)
    assert eqx.tree_equal(single.flatten_for_export(), single)


def test_several_axes_are_normalised_together(draw):
    x = draw(Pos, Batch, Embed)
    for kind in (nym.nn.RmsNorm, nym.nn.LayerNorm):
        result = kind.init((Embed, Pos), 0.0, use_weight=False)(x)
        assert result.names == x.names
        assert allclose((result * result).mean(("pos", "embed")).array, 1, atol=1e-5)


def test_which_parameters_there_are():
    rms, layer = nym.nn.RmsNorm.init(Embed), nym.nn.LayerNorm.init(Embed, dtype=jnp.bfloat16)
    assert rms.bias is None and (rms.weight == 1).all()
    assert (layer.weight == 1).all() and (layer.bias == 0).all()
    assert layer.weight.dtype == layer.bias.dtype == jnp.bfloat16
    bare = nym.nn.LayerNorm.init(Embed, use_weight=False, use_bias=False)
    assert bare.weight is None and bare.bias is None


def kept(fn, *args):
    """The shapes of the arrays of full size that the backward pass needs."""
    _, backward = jax.vjp(fn, *args)
    return [leaf.shape for leaf in jax.tree.leaves(backward) if leaf.size >= Batch.size * Embed.size]


@pytest.mark.parametrize("kind", [nym.nn.RmsNorm, nym.nn.LayerNorm])
def test_as_much_is_kept_for_the_backward_pass_as_by_hand(kind):
    def by_hand(weight, x):
        centred = x - jnp.mean(x, 1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.mean(centred * centred, 1, keepdims=True) + 1e-5) * weight[None]

    x = nym.ones((Batch, Embed))
    layer = kind.init(Embed)
    result = kept(lambda weight, x: kind(weight, layer.bias, layer.axis, layer.eps)(x), layer.weight, x)
    assert result == kept(by_hand, layer.weight.array, x.array)


def test_errors_name_the_layer_and_the_axes():
    with refusal("RmsNorm (embed: 16): no axis 'embed' in (batch: 8, embde: 16); did you mean 'embde'?"):
        nym.nn.RmsNorm.init(Embed)(nym.ones({"batch": 8, "embde": 16}))
    with refusal("LayerNorm (embed: 16): axis 'embed' has size 4 here, 16 was asked for"):
        nym.nn.LayerNorm.init(Embed)(nym.ones({"embed": 4}))
    with refusal("LayerNorm (embed: 16): the input must be a named array", TypeError):
        nym.nn.LayerNorm.init(Embed)(jnp.ones(16))

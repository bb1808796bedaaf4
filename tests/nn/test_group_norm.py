"""Group normalisation: parity with Equinox, sharding, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Channels, Batch, Height = nym.make_axes(mlp=8, batch=8, height=3)


def keyless(*args, key, **kwargs):
    return nym.nn.GroupNorm.init(*args, **kwargs)


def reference(layer, x):
    equinox_layer = eqx.nn.GroupNorm(layer.groups, 8, eps=layer.eps)
    equinox_layer = eqx.tree_at(
        lambda layer: (layer.weight, layer.bias), equinox_layer, (layer.weight.array, layer.bias.array)
    )
    moved = x.rearrange(("batch", "mlp", "height"))
    with jax.numpy_rank_promotion("allow"):
        return nym.named(jax.vmap(equinox_layer)(moved.array), moved.names).rearrange(x.names)


def test_it_is_that_of_equinox(check, draw):
    layer = draw.layer(keyless, Channels, 4, "height", 1e-3)
    check(lambda layer, x: layer(x), reference, layer, 1 + 2 * draw(Height, Channels, Batch), tolerance=1e-4)


def test_groups_need_not_be_divisible_as_the_channels_are(mesh, draw):
    layer, x = draw.layer(keyless, Channels, 2, "height"), draw(Batch, Height, Channels)
    with jax.set_mesh(None):
        expected = jax.device_get(reference(layer, x).array)
    mapping = {"mlp": ("data", "model")}
    result = nym.named_jit(lambda layer, x: layer(x), mapping)(layer, nym.shard(x, mapping))
    assert tuple(result.sharding.spec) == (None, None, ("data", "model"))
    assert allclose(jax.device_get(result.array), expected, atol=1e-4)


def test_other_axes_are_not_normalised_over(draw):
    x = draw(Batch, Height, Channels)
    result = nym.nn.GroupNorm.init(Channels, 8, use_weight=False, use_bias=False)(x)
    assert allclose(result.array, 0, atol=1e-5)
    whole = nym.nn.GroupNorm.init(Channels, 1, ("height", "batch"), 0.0, use_weight=False, use_bias=False)(x)
    assert allclose((whole * whole).mean().array, 1, atol=1e-5) and allclose(whole.mean().array, 0, atol=1e-5)


def test_low_precision_is_kept_and_statistics_are_not_in_it(draw):
    layer, x = draw.layer(keyless, Channels, 2, "height"), (10 + draw(Batch, Height, Channels)).astype(jnp.bfloat16)
    assert layer(x).dtype == jnp.bfloat16
    assert (layer(x) == layer(x.astype(jnp.float32)).astype(jnp.bfloat16)).all()
    low = nym.nn.GroupNorm.init(Channels, 2, dtype=jnp.bfloat16)
    assert low.weight.dtype == low.bias.dtype == jnp.bfloat16


def test_errors_name_the_layer_and_the_axes():
    with refusal("GroupNorm (mlp: 8): the number of channels is not divisible by 3 groups"):
        nym.nn.GroupNorm.init(Channels, 3)
    with refusal("GroupNorm: `Channels` is an `Axis`, not 'mlp'", TypeError):
        nym.nn.GroupNorm.init("mlp", 2)
    with refusal("axis 'mlp' is given more than once in (mlp, mlp)"):
        nym.nn.GroupNorm.init(Channels, 2, "mlp")
    with refusal("GroupNorm (mlp: 8): no axis 'height' in (heigth: 2, mlp: 8); did you mean 'heigth'?"):
        nym.nn.GroupNorm.init(Channels, 2, "height")(nym.ones({"heigth": 2, "mlp": 8}))

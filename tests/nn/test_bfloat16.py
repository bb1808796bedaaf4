"""Layers in bfloat16: values and gradients are those in float32 up to rounding, sharded and not."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


Embed, Mlp, Batch, Height = nym.make_axes(embed=8, mlp=8, batch=8, height=4)
MAPPING = {"batch": "data", "mlp": "model"}


def keyless(init: Any) -> Any:
    return lambda *args, key, **kwargs: init(*args, **kwargs)


@pytest.fixture
def layers(draw: Any) -> dict[str, Any]:
    nn = nym.nn
    return {
        "linear": draw.layer(nn.Linear.init, Embed, Mlp),
        "mlp": draw.layer(nn.MLP.init, Embed, Mlp, nym.Axis("hidden", 4), 1, nn.mish),
        "conv": draw.layer(nn.Conv.init, "height", Embed, Mlp, 3, padding="SAME"),
        "transposed": draw.layer(nn.ConvTranspose.init, "height", Embed, Mlp, 2, stride=2),
        "rms": draw.layer(keyless(nn.RmsNorm.init), Embed),
        "layer": draw.layer(keyless(nn.LayerNorm.init), (Embed, Height)),
        "group": draw.layer(keyless(nn.GroupNorm.init), Embed, 2, "height"),
        "max": lambda x: nn.max_pool({"height": 2}, x),
        "mean": lambda x: nn.mean_pool({"height": 2}, x, padding="SAME"),
        "gate": lambda x: nn.swiglu(x, "embed"),
        "standard": lambda x: nn.standardize(x, "height", epsilon=0.1),
    }


def compute(layers: dict[str, Any], x: nym.NamedArray) -> Any:
    """Returns the results of all layers, and the gradients of a loss of all of them."""

    def loss(differentiated: Any) -> Any:
        layers, x = eqx.combine(differentiated, static)
        outs = {name: layer(x) for name, layer in layers.items()}
        return sum(nym.sin(out.astype(jnp.float32)).mean().scalar() for out in outs.values()), outs

    differentiated, static = eqx.partition((layers, x), eqx.is_inexact_array)
    gradients, outs = jax.grad(loss, has_aux=True)(differentiated)
    return outs, gradients


def test_values_and_gradients_are_close_to_those_in_float32(auto_mesh, explicit_mesh, layers, draw):
    x = draw(Batch, Height, Embed)
    lower = lambda tree: jax.tree.map(lambda a: a.astype(jnp.bfloat16) if eqx.is_array(a) else a, tree)  # noqa: E731
    raised = jax.tree.map(lambda a: a.astype(jnp.float32) if eqx.is_array(a) else a, lower((layers, x)))
    expected = jax.device_get(jax.tree.leaves(nym.named_jit(compute)(*raised)))
    for mesh in (auto_mesh, explicit_mesh):
        with jax.set_mesh(mesh):
            result = nym.named_jit(compute, MAPPING)(*nym.shard(lower((layers, x)), MAPPING))
        for actual, target in zip(jax.tree.leaves(result), expected, strict=True):
            assert actual.dtype == jnp.bfloat16
            scale = 0.02 * max(1e-3, float(np.abs(target).max()))
            np.testing.assert_allclose(jax.device_get(actual).astype(np.float32), target, rtol=0.1, atol=2 * scale)

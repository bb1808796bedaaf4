"""Batch normalisation: parity with Equinox over several batches, global statistics, and what is refused."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Channels, Batch, Height = nym.make_axes(mlp=4, batch=8, height=3)


def make(draw, **options):
    layer, state = eqx.nn.make_with_state(nym.nn.BatchNorm.init)(Channels, momentum=0.7, **options)
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (draw(Channels), draw(Channels))), state


def make_equinox(layer):
    equinox_layer, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", momentum=0.7, mode=layer.mode)
    return eqx.tree_at(
        lambda layer: (layer.weight, layer.bias), equinox_layer, (layer.weight.array, layer.bias.array)
    ), state


def call_equinox(layer, x, state):
    moved = x.rearrange(("batch", "mlp", "height"))
    with jax.numpy_rank_promotion("allow"):
        y, state = jax.vmap(layer, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(moved.array, state)
    return nym.named(y, moved.names).rearrange(x.names), state


def train(call, layer, batches, state):
    """Returns what two batches in sequence give, the gradients of a loss of both, and the state after them."""

    def loss(layer, batches, state):
        outs = []
        for batch in batches:
            out, state = call(layer, batch, state)
            outs.append(out)
        return sum((nym.sin(out) * out).sum().scalar() for out in outs), (outs, state)

    (_, (outs, state)), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(layer, batches, state)
    return outs, gradients, state


def call_own(layer, x, state):
    return layer(x, state)


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_it_is_that_of_equinox_on_every_mesh(auto_mesh, explicit_mesh, draw, mode):
    layer, state = make(draw, mode=mode)
    batches = [1 + 2 * draw(Height, Channels, Batch), draw(Height, Channels, Batch) - 3]
    arrays, static = eqx.partition(layer, eqx.is_inexact_array)
    call = lambda arrays, x, state: call_own(eqx.combine(arrays, static), x, state)  # noqa: E731
    step = lambda arrays, batches, state: train(call, arrays, batches, state)  # noqa: E731

    def reference(arrays, x, state):
        equinox_layer, _ = make_equinox(eqx.combine(arrays, static))
        return call_equinox(equinox_layer, x, state)

    _, initial = make_equinox(layer)
    own_outs, own_gradients, own_state = jax.jit(lambda *args: train(reference, *args))(arrays, batches, initial)
    states = [make(draw, mode=mode)[1] for _ in range(3)]
    results = [jax.jit(step)(arrays, batches, states.pop())]
    mapping = {"batch": "data", "mlp": "model"}
    for mesh in (auto_mesh, explicit_mesh):
        with jax.set_mesh(mesh):
            result = nym.named_jit(step, mapping)(*nym.shard((arrays, batches), mapping), states.pop())
            assert tuple(result[2].get(layer.statistics).mean.sharding.spec) == ("model",)
            results.append(result)
    running = [array for array in jax.tree.leaves(own_state) if array.ndim == 1]
    for outs, gradients, state in results:
        for actual, expected in zip(outs, own_outs, strict=True):
            np.testing.assert_allclose(
                jax.device_get(actual.array), jax.device_get(expected.array), rtol=1e-4, atol=1e-4
            )
        for actual, expected in zip(jax.tree.leaves(gradients), jax.tree.leaves(own_gradients), strict=True):
            np.testing.assert_allclose(jax.device_get(actual), jax.device_get(expected), rtol=1e-3, atol=1e-3)
        statistics = jax.device_get(state.get(layer.statistics))
        assert statistics.batches == 2
        np.testing.assert_allclose(statistics.mean.array, running[0], rtol=1e-4, atol=1e-5)
        if mode == "ema":  # in the other mode, the variance of Equinox begins at 1 instead of 0
            np.testing.assert_allclose(statistics.variance.array, running[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_inference_uses_the_weighted_mean_of_past_batches(draw, mode):
    layer, state = make(draw, mode=mode)
    batches = [1 + 2 * draw(Batch, Channels), draw(Batch, Channels) - 3]
    for batch in batches:
        _, state = layer(batch, state)
    weights = jnp.array([0.7, 0.3]) if mode == "ema" else jnp.array([0.7 * 0.3, 0.3]) / (1 - 0.7**2)
    mean = sum(weight * batch.array.mean(0) for weight, batch in zip(weights, batches, strict=True))
    variance = sum(weight * batch.array.var(0) for weight, batch in zip(weights, batches, strict=True))
    x = draw(Channels, Batch)
    result, after = eqx.nn.inference_mode(layer)(x, state)
    expected = (x.array.T - mean[None]) / jnp.sqrt(variance + 1e-5)[None] * layer.weight.array[None] + layer.bias.array[
        None
    ]
    assert allclose(result.array.T, expected, rtol=1e-4, atol=1e-4)
    assert eqx.tree_equal(after, state)
    again, _ = layer(x, state, inference=True)
    assert (again == result).all()


def test_inference_before_training_changes_nothing_but_scale(draw):
    layer, state = eqx.nn.make_with_state(nym.nn.BatchNorm.init)(Channels, inference=True)
    x = draw(Batch, Channels)
    assert allclose(layer(x, state)[0].array, x.array, atol=1e-4)


def test_low_precision_is_kept_and_statistics_are_not_in_it(draw):
    layer, state = make(draw)
    x = (10 + draw(Batch, Channels)).astype(jnp.bfloat16)
    exact, _ = layer(x.astype(jnp.float32), make(draw)[1])
    result, state = layer(x, state)
    assert result.dtype == jnp.bfloat16 and (result == exact.astype(jnp.bfloat16)).all()
    assert state.get(layer.statistics).mean.dtype == jnp.float32


def test_errors_name_the_layer_and_the_axes(draw):
    layer, state = make(draw)
    with refusal("BatchNorm (mlp: 4): no axis 'mlp' in (batch: 8, mpl: 4); did you mean 'mpl'?"):
        layer(nym.ones({"batch": 8, "mpl": 4}), state)
    with refusal("BatchNorm (mlp: 4): the input (mlp: 4) has no other axis to compute statistics over"):
        layer(nym.ones(Channels), state)
    with refusal("BatchNorm: `mode` is 'batch' or 'ema', not 'legacy'"):
        nym.nn.BatchNorm.init(Channels, mode="legacy")

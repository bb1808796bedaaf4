"""`axonym.haliax.quantization` in a training loop written for Haliax, and what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import axonym.haliax as hax

from ..comparing import allclose


Embed, Mlp, Batch = hax.make_axes(embed=16, mlp=8, batch=4)


class Steps(hax.quantization.CustomGradientAccumulation):
    """Counts the backward passes in its gradient."""

    steps: jax.Array

    def accumulate(self, other):
        return dataclasses.replace(self, steps=self.steps + other.steps)


def test_a_training_loop_of_haliax_updates_the_histories():
    layer = hax.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    config = hax.quantization.QuantizationConfig(fp8=True, amax_history_length=2)
    tree = {"layer": hax.quantization.quantize_linear_layers(layer, config), "steps": Steps(jnp.zeros(()))}
    x = hax.random.normal(jax.random.key(1), (Batch, Embed))
    total = jax.tree.map(jnp.zeros_like, tree)
    for scale in (1, 4, 2):
        gradients = jax.jit(jax.grad(lambda tree, scale: tree["layer"](scale * x).sum().scalar()))(tree, scale)
        gradients["steps"] = Steps(jnp.ones(()))
        total = hax.quantization.accumulate_gradients(total, gradients)
    overwrites, gradients = hax.quantization.partition_for_grad_overwrite(total)
    assert gradients["layer"].dot_general is None and gradients["steps"] is None
    tree = hax.quantization.apply_updates(tree, gradients, overwrites)
    assert allclose(tree["layer"].dot_general.input_amax_history, jnp.array([4 * abs(x).max().array, 0]))
    assert allclose(tree["layer"].bias.array, 3 * Batch.size) and tree["steps"].steps == 3
    assert allclose(tree["layer"].dot_general.kernel_amax_history[0], abs(layer.weight).max().array)
    assert tree["layer"].dot_general.output_grad_amax_history.tolist() == [1, 0]


def test_histories_and_scales_have_the_order_of_haliax():
    layer = hax.nn.Linear.init(Embed, Mlp, key=jax.random.key(0), use_bias=False)
    config = hax.quantization.QuantizationConfig(fp8=True, amax_history_length=4)
    layer = hax.quantization.quantize_linear_layers(layer, config)
    history, scale = jnp.zeros(4), jnp.ones(1)
    for amax in (3.0, 1.0, 2.0):
        gradients = jax.grad(lambda layer, x: layer(x).sum().scalar())(layer, hax.full((Batch, Embed), amax))
        overwrites, gradients = hax.quantization.partition_for_grad_overwrite(gradients)
        layer = hax.quantization.apply_updates(layer, jax.tree.map(jnp.zeros_like, gradients), overwrites)
        scale = hax.quantization.compute_scale(history.max(), scale, 448.0)
        history = jnp.roll(history, -1).at[0].set(amax)
        assert allclose(layer.dot_general.input_amax_history, history)
        assert allclose(layer.dot_general.input_scale, scale)


def test_no_element_type_changes_nothing_and_two_are_refused():
    layer = hax.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    assert hax.quantization.quantize_linear_layers(layer, hax.quantization.QuantizationConfig()) is layer
    with pytest.raises(ValueError, match="`fp8` and `int8` are both set; choose one of them"):
        hax.quantization.QuantizationConfig(fp8=True, int8=True)
    assert hax.quantization.DotGeneralOp.default() == hax.quantization.DefaultDotGeneralOp.init()

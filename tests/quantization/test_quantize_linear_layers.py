"""Which layers are quantised, what stays as it is, and that training in 8 bits follows training in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.quantization import (
    Float8DotGeneral,
    Int8DotGeneral,
    apply_updates,
    partition_overwrites,
    quantize_linear_layers,
)

from ..refusals import refusal
from .blocks import Embed, Mlp, make_stack, squared_error


INT8 = Int8DotGeneral()


def find_quantized(tree):
    is_linear = lambda x: isinstance(x, nym.nn.Linear)  # noqa: E731
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_linear)
    quantized = [path for path, leaf in leaves if is_linear(leaf) and leaf.dot_general is not None]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path in quantized]


@pytest.fixture(scope="module")
def model():
    return {"blocks": make_stack(), "head": nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(1)), "norm": jnp.ones(3)}


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (None, ["blocks/stacked/up", "blocks/stacked/down", "head"]),
        ("up$", ["blocks/stacked/up"]),
        (["down", "head"], ["blocks/stacked/down", "head"]),
        (lambda path, layer: layer.Out == (Mlp,), ["blocks/stacked/up", "head"]),
        (lambda path, layer: "attention" in path, []),
    ],
)
def test_targets_choose_layers_by_path(model, targets, expected):
    quantized = quantize_linear_layers(model, INT8, targets)
    assert find_quantized(quantized) == expected
    assert find_quantized(model) == []
    assert jax.tree.leaves(quantized) == jax.tree.leaves(model)  # the same arrays
    assert find_quantized(quantize_linear_layers(quantized, None)) == []


def test_mistyped_targets_and_trees_without_layers_are_errors(model):
    paths = "their paths are blocks/stacked/up, blocks/stacked/down, head"
    with refusal(f"target 'upp' matches no linear layer; {paths}"):
        quantize_linear_layers(model, INT8, ["head", "upp"])
    with refusal("there are no linear layers in this tree"):
        quantize_linear_layers({"norm": jnp.ones(3)}, INT8)


def test_histories_of_stacked_layers_have_the_axis_of_the_layers(model):
    dot_general = Float8DotGeneral.init(4)
    quantized = quantize_linear_layers(model, dot_general)
    assert quantized["head"].dot_general.lhs_amax.axes == (nym.Axis("amax_history", 4),)
    stacked = quantized["blocks"].stacked.up.dot_general
    assert stacked.lhs_amax.axes == (nym.Axis("layers", 2), nym.Axis("amax_history", 4))
    made = nym.nn.Stacked.init(nym.Axis("layers", 2), nym.nn.Linear)(
        Embed, Mlp, key=jax.random.key(0), dot_general=dot_general
    )
    assert made.stacked.dot_general.lhs_amax.axes == stacked.lhs_amax.axes


def test_each_layer_has_arrays_of_its_own_which_a_step_may_donate(model):
    quantized = quantize_linear_layers([model["head"], model["head"]], Float8DotGeneral.init(4))
    histories = jax.tree.leaves([layer.dot_general for layer in quantized])
    assert len(histories) == len({id(leaf) for leaf in histories}) == 6


def test_a_function_may_be_the_dot_general_of_a_layer_in_any_transform(draw):
    def halve(x, y, dims, **options):
        return jax.lax.dot_general(x, y, dims, **options) / 2

    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0), dot_general=halve, use_bias=False)
    x = draw(batch=4, embed=16)
    gradient = jax.jit(jax.grad(lambda layer: layer(x).sum().scalar()))(layer)
    plain = quantize_linear_layers(layer, None)
    np.testing.assert_allclose(layer(x).array, plain(x).array / 2, rtol=1e-6)
    expected = jax.grad(lambda layer: layer(x).sum().scalar())(plain).weight.array / 2
    np.testing.assert_allclose(gradient.weight.array, expected, rtol=1e-5)


def train(dot_general, x, y):
    """Returns the losses of a stack with float32 parameters that computes in bfloat16."""
    stack = quantize_linear_layers(make_stack(), dot_general)

    @jax.jit
    def step(stack):
        def loss(stack):
            low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), stack)
            return squared_error(low, x.astype(jnp.bfloat16), y)

        value, gradients = jax.value_and_grad(loss)(stack)
        overwrites, gradients = partition_overwrites(gradients)
        return value, apply_updates(stack, jax.tree.map(lambda leaf: -0.1 * leaf, gradients), overwrites)

    losses = []
    for _ in range(60):
        value, stack = step(stack)
        losses.append(float(value))
    return np.array(losses)


def test_training_in_8_bits_follows_training_in_bfloat16():
    """For a function that the stack can learn: half of the loss goes, and the curves stay together."""
    x = nym.random.normal(jax.random.key(3), {"batch": 32, "embed": 16})
    y = nym.sin(nym.roll(x, 1, "embed"))
    expected = train(None, x, y)
    assert expected[-1] < expected[0] / 2
    for dot_general in (INT8, Float8DotGeneral.init(8)):
        losses = train(dot_general, x, y)
        assert losses[-1] < losses[0] / 2
        np.testing.assert_allclose(losses, expected, rtol=0.05)


def test_arguments_of_another_kind_are_refused(model):
    with refusal("A `dot_general` must be a function or a module such as `axonym.quantization.Int8Dot", TypeError):
        quantize_linear_layers(model, "int8")
    with refusal("not `Int8DotGeneral`; make an instance of it.", TypeError):
        quantize_linear_layers(model, Int8DotGeneral)
    with refusal("target 'mlp[' is not a regular expression: unterminated character set at position 3; `re.escape`"):
        quantize_linear_layers(model, INT8, "mlp[")
    message = (
        "The `targets` of `quantize_linear_layers` are regular expressions or a function of a path and a layer, not "
    )
    for targets, name in ((3, "3."), ([model["head"]], "a list of length 1.")):
        with refusal(message + name, TypeError):
            quantize_linear_layers(model, INT8, targets)

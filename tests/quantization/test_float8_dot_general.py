"""Dots in 8-bit floats: equal to the same rounding in NumPy, scaled by the steps before, sharded and not."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym
from axonym.quantization import Float8DotGeneral, accumulate_gradients, apply_updates, partition_overwrites

from ..refusals import refusal
from .blocks import COMPUTE, PARAMETERS, Embed, Mlp, assert_trees_close, check_products, make_stack, squared_error


def round_to_float8(x, history, dtype=ml_dtypes.float8_e4m3fn):
    limit = float(ml_dtypes.finfo(dtype).max)
    scale = np.float32(max(history) / limit if max(history) else 1)
    return np.clip(x / scale, -limit, limit).astype(dtype).astype(np.float32) * scale


def with_history(dot_general, **amax):
    for name, values in amax.items():
        history = nym.named(np.asarray(values, np.float32), "amax_history")
        dot_general = eqx.tree_at(lambda module, name=name: getattr(module, name), dot_general, history)
    return dot_general


def make_layer():
    return nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0), dot_general=Float8DotGeneral.init(2))


def take_step(layer, x, g):
    """Returns the result, the gradients, and the layer after a step that changes nothing but the histories."""
    out, pull = jax.vjp(lambda layer, x: layer(x), layer, x)
    gradients = pull(g)
    overwrites, rest = partition_overwrites(gradients[0])
    return out, gradients, apply_updates(layer, jax.tree.map(jnp.zeros_like, rest), overwrites)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_and_gradients_are_those_of_rounded_operands(draw, dtype):
    lhs, rhs, gradient = [1.5, 0], [0.5, 3], [0.1, 1.25]  # the first clips
    dot_general = with_history(Float8DotGeneral.init(2), lhs_amax=lhs, rhs_amax=rhs, gradient_amax=gradient)
    largest = check_products(
        draw,
        dot_general,
        lambda x, name: round_to_float8(x, lhs if name == "x" else rhs),
        lambda g: round_to_float8(g, gradient, ml_dtypes.float8_e5m2),
        dtype,
        1e-5 if dtype == "float32" else 0.01,
    )
    assert largest > 1.5


@pytest.mark.parametrize(("dtype", "summed"), [("float32", "f32"), ("bfloat16", "bf16"), ("float16", "f32")])
def test_the_three_products_are_of_8_bit_floats(draw, dtype, summed):
    """Devices add up `bfloat16` as for products in it; `float16` has not the range of products that are not scaled."""
    layer = make_layer()
    layer = dataclasses.replace(layer, weight=layer.weight.astype(dtype), bias=layer.bias.astype(dtype))
    x, g = draw(batch=4, embed=16).astype(dtype), draw(batch=4, mlp=8).astype(dtype)
    program = jax.jit(take_step).lower(layer, x, g).as_text()
    products = [line.partition(" : ")[2] for line in program.splitlines() if "stablehlo.dot_general" in line]
    assert products == [
        f"(tensor<4x16xf8E4M3FN>, tensor<8x16xf8E4M3FN>) -> tensor<4x8x{summed}>",
        f"(tensor<4x8xf8E5M2>, tensor<8x16xf8E4M3FN>) -> tensor<4x16x{summed}>",
        f"(tensor<4x8xf8E5M2>, tensor<4x16xf8E4M3FN>) -> tensor<8x16x{summed}>",
    ]


def test_a_step_puts_its_largest_magnitudes_in_front_of_the_histories(draw):
    layer = make_layer()
    expected = {"lhs_amax": [0, 0], "rhs_amax": [0, 0], "gradient_amax": [0, 0]}
    step = jax.jit(take_step)
    for _ in range(3):
        x, g = draw(batch=4, embed=16), draw(batch=4, mlp=8)
        _, _, layer = step(layer, x, g)
        for name, operand in zip(expected, (x, layer.weight, g), strict=True):
            expected[name] = [np.abs(operand.array).max(), expected[name][0]]
            np.testing.assert_allclose(getattr(layer.dot_general, name).array, expected[name], rtol=1e-6)


def test_a_step_that_overflows_leaves_the_scale_as_it_is():
    history = with_history(Float8DotGeneral.init(3), lhs_amax=[1, 4, 2])
    infinite, absent = (with_history(Float8DotGeneral.init(3), lhs_amax=[value, 0, 0]) for value in (jnp.inf, 0.0))
    assert history.overwrite(infinite).lhs_amax.array.tolist() == [4, 1, 4]
    assert history.overwrite(absent).lhs_amax.array.tolist() == [0, 1, 4]
    frozen = eqx.filter(infinite, lambda leaf: False)  # as the gradient of a module that is not trained
    assert history.overwrite(frozen).lhs_amax.array.tolist() == [1, 4, 2]


def test_repeated_use_does_not_clip_and_microbatches_keep_the_maximum(draw):
    layer = make_layer()
    x, g = draw(batch=4, embed=16), draw(batch=4, mlp=8)
    gradient = jax.jit(jax.grad(lambda layer, x: (layer(x) + layer(2 * x)).sum().scalar()))(layer, x)
    assert np.isclose(gradient.dot_general.lhs_amax.array[0], 3 * abs(x).max().array)
    total = jax.tree.map(jnp.zeros_like, layer)
    step = jax.jit(take_step)
    for scale in (1, 3, 2):
        _, (gradient, _), _ = step(layer, scale * x, g)
        total = accumulate_gradients(total, gradient)
    overwrites, rest = partition_overwrites(total)
    after = apply_updates(layer, jax.tree.map(lambda leaf: -leaf / 3, rest), overwrites)
    np.testing.assert_allclose(after.dot_general.lhs_amax.array, [3 * abs(x).max().array, 0], rtol=1e-6)
    np.testing.assert_allclose(after.bias.array, -g.sum("batch").array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis_types", [pytest.param("auto", marks=pytest.mark.thorough), "explicit"])
def test_stacked_layers_are_sharded_as_without_quantisation(request, draw, axis_types):
    stack = nym.quantization.quantize_linear_layers(make_stack(), Float8DotGeneral.init(2))
    x, y = draw(batch=8, embed=16), draw(batch=8, embed=16)

    def step(stack, x, y):
        loss, gradients = jax.value_and_grad(squared_error)(stack, x, y)
        overwrites, gradients = partition_overwrites(gradients)
        return loss, apply_updates(stack, jax.tree.map(lambda leaf: -leaf, gradients), overwrites)

    def take_steps(step, stack, x, y):
        _, stack = step(stack, x, y)
        return step(stack, x, y)  # scaled by the histories

    expected = take_steps(jax.jit(step), stack, x, y)
    fsdp_step = nym.fsdp(step, PARAMETERS, COMPUTE, in_axis_resources=(PARAMETERS, COMPUTE, COMPUTE))
    with jax.set_mesh(request.getfixturevalue(f"{axis_types}_mesh")):
        loss, updated = take_steps(fsdp_step, nym.shard(stack, PARAMETERS), *nym.shard((x, y), COMPUTE))
    assert tuple(updated.stacked.up.weight.sharding.spec) == (None, "model", "data")
    assert updated.stacked.up.dot_general.gradient_amax.sharding.is_fully_replicated
    assert_trees_close((loss, updated), expected, 1e-4)


def test_devices_of_shard_map_share_their_largest_magnitudes(explicit_mesh, draw):
    layer = make_layer()
    x, g = draw(batch=8, embed=16).array, draw(batch=8, mlp=8).array

    def step(layer, x, g):
        x, g = nym.named(x, ("batch", "embed")), nym.named(g, ("batch", "mlp"))
        _, (gradient, _), layer = take_step(layer, x, g)
        return gradient, layer

    expected = jax.jit(step)(layer, x, g)
    with jax.set_mesh(explicit_mesh):
        mapped = jax.shard_map(step, in_specs=(P(), P("data"), P("data")), out_specs=P())
        result = jax.jit(mapped)(layer, *jax.device_put((x, g), jax.NamedSharding(explicit_mesh, P("data"))))
    assert_trees_close(result, expected, 1e-5)


def test_errors_name_what_is_wrong(draw):
    with refusal("`history_length` must be at least 1, not 0"):
        Float8DotGeneral.init(0)
    with refusal("`history_length` must be an integer, not 16.0", TypeError):
        Float8DotGeneral.init(16.0)
    with refusal("`gradient_dtype` must be an element type such as", TypeError):
        Float8DotGeneral.init(gradient_dtype="fp8")
    with refusal("bfloat16 is not an 8-bit float; use `jnp.float8_e4m3fn`"):
        Float8DotGeneral.init(dtype=jnp.bfloat16)
    with refusal("`Float8DotGeneral` multiplies floating-point arrays, not int32 and float32", TypeError):
        Float8DotGeneral.init(2)(jnp.ones((2, 3), jnp.int32), jnp.ones((3, 4)), (((1,), (0,)), ((), ())))
    stack = nym.quantization.quantize_linear_layers(make_stack(), Float8DotGeneral.init(2))
    with refusal("the histories have axes (layers: 2, amax_history: 2), those of several"):
        stack.stacked.up(draw(batch=4, embed=16))

"""Dots in 8-bit integers: equal to the same rounding in NumPy, in value and gradient, sharded and not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.quantization import Int8DotGeneral

from ..refusals import refusal
from .blocks import COMPUTE, PARAMETERS, Embed, Mlp, assert_trees_close, check_products


def round_to_int8(x, contracted):
    scale = np.abs(x).max(contracted, keepdims=True) / 127.5
    scale[scale == 0] = 1
    return np.clip(np.round(x / scale), -127, 127) * scale


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_and_gradients_are_those_of_rounded_operands(draw, dtype):
    contracted = {"x": (2, 3), "w": (0, 3)}
    round_operand = lambda x, name: round_to_int8(x, contracted[name])  # noqa: E731
    check_products(draw, Int8DotGeneral(), round_operand, lambda g: g, dtype, 1e-5 if dtype == "float32" else 0.04)


def test_the_product_is_one_of_8_bit_integers_summed_in_32(draw):
    x, w = draw(batch=8, embed=16), draw(embed=16, mlp=8)
    program = jax.jit(lambda x, w: nym.dot(x, w, axis="embed", dot_general=Int8DotGeneral())).lower(x, w).as_text()
    products = [line for line in program.splitlines() if "stablehlo.dot_general" in line]
    assert "(tensor<8x16xi8>, tensor<16x8xi8>) -> tensor<8x8xi32>" in products[0]
    assert "tensor<8x1xf32>, tensor<1x8xf32>" in products[1] and len(products) == 2  # the scales
    kept = jax.eval_shape(lambda x, w: jax.vjp(Int8DotGeneral(), x, w, (((1,), (0,)), ((), ())))[1], x.array, w.array)
    assert {leaf.dtype for leaf in jax.tree.leaves(kept) if leaf.shape in ((8, 16), (16, 8))} == {jnp.dtype("int8")}


def test_layers_are_sharded_as_without_quantisation(mesh, draw, getkey):
    layer = nym.nn.Linear.init(Embed, Mlp, key=getkey(), dot_general=Int8DotGeneral())
    x, g = draw(batch=8, embed=16), draw(batch=8, mlp=8)

    def run(layer, x, g):
        out, pull = jax.vjp(lambda layer, x: layer(x), layer, x)
        return out, pull(g)

    with jax.set_mesh(None):
        expected = jax.jit(run)(layer, x, g)
    with nym.axis_mapping(COMPUTE):
        out, gradients = nym.named_jit(run)(nym.shard(layer, PARAMETERS), *nym.shard((x, g)))
    assert tuple(out.sharding.spec) == ("data", "model")
    assert_trees_close((out, gradients), expected, 1e-5)
    assert_trees_close(jax.jit(run)(layer, x, g), expected, 1e-5)  # without a mapping


def test_zeros_and_empty_sums_are_exact_and_the_result_type_is_kept():
    dims = (((1,), (0,)), ((), ()))
    dot_general = jax.jit(Int8DotGeneral(), static_argnums=2, static_argnames="preferred_element_type")
    assert (dot_general(np.zeros((2, 3), np.float32), np.ones((3, 4), np.float32), dims) == 0).all()
    assert (dot_general(np.zeros((2, 0), np.float32), np.ones((0, 4), np.float32), dims) == 0).all()
    assert np.isnan(dot_general(np.float32([[np.nan, 1]]), np.ones((2, 1), np.float32), dims)).all()
    x = jax.ShapeDtypeStruct((3, 3), jnp.bfloat16)
    multiply = lambda x: dot_general(x, x, dims, preferred_element_type=jnp.float32)  # noqa: E731
    assert jax.eval_shape(multiply, x).dtype == jnp.float32
    with refusal("`Int8DotGeneral` multiplies floating-point arrays, not float32 and int32", TypeError):
        dot_general(jnp.ones((2, 3)), jnp.ones((3, 4), jnp.int32), dims)

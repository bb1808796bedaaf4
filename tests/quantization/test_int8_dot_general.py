"""Dots in 8-bit integers: equal to the same rounding in NumPy, in value and gradient, sharded and not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.quantization import Int8DotGeneral
from tests.quantization.blocks import COMPUTE, PARAMETERS, Embed, Mlp, assert_trees_close


def round_to_int8(x, contracted):
    scale = np.abs(x).max(contracted, keepdims=True) / 127.5
    scale[scale == 0] = 1
    return np.clip(np.round(x / scale), -127, 127) * scale


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_and_gradients_are_those_of_rounded_operands(draw, dtype):
    """For a contraction of two axes with a batch axis, with axes of the operands in different orders."""
    x, w = draw(heads=2, batch=8, embed=4, pos=3).astype(dtype), draw(embed=4, mlp=5, batch=8, pos=3).astype(dtype)
    g = draw(batch=8, heads=2, mlp=5)

    def multiply(x, w):
        return nym.dot(x, w, axis=("embed", "pos"), dot_general=Int8DotGeneral())

    def loss(x, w):
        out = multiply(x, w)
        return (out.astype(jnp.float32) * g).sum().scalar(), out

    (for_x, for_w), out = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(x, w)
    plain_x, plain_w = (np.asarray(one.array, np.float32) for one in (x, w))
    left, right = round_to_int8(plain_x, (2, 3)), round_to_int8(plain_w, (0, 3))
    tolerance = 1e-5 if dtype == "float32" else 0.04
    expected = np.einsum("hbep,embp->bhm", left, right)
    assert out.names == ("batch", "heads", "mlp") and out.dtype == for_x.dtype == for_w.dtype == dtype
    np.testing.assert_allclose(np.asarray(out.array, np.float32), expected, rtol=tolerance, atol=tolerance)
    for found, equation, other in ((for_x, "bhm,embp->hbep", right), (for_w, "bhm,hbep->embp", left)):
        expected = np.einsum(equation, np.asarray(g.array), other)
        np.testing.assert_allclose(np.asarray(found.array, np.float32), expected, rtol=tolerance, atol=tolerance)


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
    dot_general, dims = Int8DotGeneral(), (((1,), (0,)), ((), ()))
    assert (dot_general(jnp.zeros((2, 3)), jnp.ones((3, 4)), dims) == 0).all()
    assert (dot_general(jnp.zeros((2, 0)), jnp.ones((0, 4)), dims) == 0).all()
    x = jnp.ones((2, 3), jnp.bfloat16)
    assert dot_general(x, x.T, dims, preferred_element_type=jnp.float32).dtype == jnp.float32
    assert jnp.isnan(dot_general(jnp.array([[jnp.nan, 1.0]]), jnp.ones((2, 1)), dims)).all()


def test_integers_are_refused():
    with pytest.raises(TypeError, match="`Int8DotGeneral` multiplies floating-point arrays, not float32 and int32"):
        Int8DotGeneral()(jnp.ones((2, 3)), jnp.ones((3, 4), jnp.int32), (((1,), (0,)), ((), ())))

"""Dots in 8-bit integers: both operands are quantised for each row and column, and gradients pass straight through."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ._operands import DimensionNumbers, Dims, prepare_operands


_BOUND = 127.5  # The integers from -127 to 127, each with half a step to both sides, as AQT and Qwix have it.


class Int8DotGeneral(eqx.Module):
    """A `dot_general` that multiplies 8-bit integers and adds in 32 bits, with straight-through gradients.

    Each vector that is contracted has a scale of its own, the largest magnitude in it divided by 127.5; its elements
    are divided by the scale and rounded to integers from -127 to 127. So activations have a scale for each token, and
    weights one for each output. Nothing is stored between steps.

    Gradients are those of the product of the rounded operands, with the rounding itself taken as the identity
    ([Bengio et al., 2013](https://arxiv.org/abs/1308.3432)). They are computed in the element type of the operands;
    between the passes, the operands are kept as integers. Values are those of
    [AQT](https://github.com/google/aqt)'s 8-bit forward pass.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> Embed, Mlp = nym.make_axes(embed=64, mlp=8)
        >>> layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
        >>> low = nym.quantization.quantize_linear_layers(layer, nym.quantization.Int8DotGeneral())
        >>> x = nym.random.normal(jax.random.key(1), {"batch": 4, "embed": 64})
        >>> float(abs(low(x) - layer(x)).max()) < 0.05
        True
    """

    def __call__(
        self,
        lhs: jax.Array,
        rhs: jax.Array,
        dimension_numbers: DimensionNumbers,
        precision: Any = None,
        preferred_element_type: Any = None,
        out_sharding: Any = None,
    ) -> jax.Array:
        """Multiplies two plain arrays, with the arguments of `jax.lax.dot_general`.

        Args:
            lhs: The left operand, of floating-point numbers.
            rhs: The right operand, of floating-point numbers.
            dimension_numbers: The contracted dimensions of both operands, and their batch dimensions.
            precision: Of the gradients; the integers are exact.
            preferred_element_type: Element type of the result, by default that of the operands.
            out_sharding: Sharding of the result on an Explicit mesh.

        Returns:
            The batch dimensions, then the others of the left and of the right operand.

        Raises:
            TypeError: If an operand is not an array of floating-point numbers.
        """
        lhs, rhs, dims = prepare_operands("Int8DotGeneral", lhs, rhs, dimension_numbers)
        result: Any = _multiply_int8(dims, precision, out_sharding, lhs.dtype, lhs, rhs)
        return result.astype(preferred_element_type or lhs.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _multiply_int8(dims: Dims, precision: Any, sharding: Any, dtype: Any, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return _multiply_int8_forward(dims, precision, sharding, dtype, lhs, rhs)[0]


def _multiply_int8_forward(
    dims: Dims, precision: Any, sharding: Any, dtype: Any, lhs: jax.Array, rhs: jax.Array
) -> tuple[jax.Array, Any]:
    quantized = _quantize_int8(lhs, dims[0][0]), _quantize_int8(rhs, dims[0][1])
    (left, left_scale), (right, right_scale) = quantized
    total = jax.lax.dot_general(left, right, dims, preferred_element_type=jnp.int32, out_sharding=sharding)
    # The contracted dimensions of the scales have size 1, so XLA makes this an elementwise product.
    scale = jax.lax.dot_general(left_scale, right_scale, dims, out_sharding=sharding)
    return total.astype(jnp.float32) * scale, quantized


def _multiply_int8_backward(
    dims: Dims, precision: Any, sharding: Any, dtype: Any, quantized: Any, gradient: jax.Array
) -> tuple[jax.Array, ...]:
    rounded = [(x.astype(jnp.float32) * scale).astype(dtype) for x, scale in quantized]
    multiply = functools.partial(
        jax.lax.dot_general, dimension_numbers=dims, precision=precision, out_sharding=sharding
    )
    return jax.vjp(multiply, *rounded)[1](gradient.astype(dtype))


_multiply_int8.defvjp(_multiply_int8_forward, _multiply_int8_backward)


def _quantize_int8(x: jax.Array, contracted: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Returns integers, and their scales along the dimensions that are not contracted."""
    x = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), contracted, keepdims=True, initial=0)
    scale = jnp.where(largest == 0, 1, largest / _BOUND)
    return jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8), scale

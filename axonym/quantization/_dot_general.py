"""Dots in 8 bits: of integers with a scale for each row and column, and of floats with delayed scaling.

With delayed scaling the scale of a step is computed from the largest magnitudes of the steps before.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .._ground.arguments import check_dtype, check_integer
from ..named._array import NamedArray, is_named_array
from ..named._axis import Axis
from ..named._base import format_shape
from ..named._creation import zeros
from ..named._elementwise._arithmetic import where
from ..named._elementwise._logic import isfinite
from ..named._shape._slice import roll
from ..named._sharding import find_varying_axes
from ._overwrite_with_gradient import OverwriteWithGradient


Dims = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]
"""The contracted dimensions of both operands, and their batch dimensions."""

DimensionNumbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


def prepare_operands(name: str, lhs: Any, rhs: Any, numbers: DimensionNumbers) -> tuple[jax.Array, jax.Array, Dims]:
    """Returns the operands of a dot in their common element type, and its dimension numbers as tuples.

    Raises:
        TypeError: If an operand is not an array of floating-point numbers.
    """
    for x in (lhs, rhs):
        if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
            raise TypeError(
                f"`{name}` multiplies floating-point arrays, not {jnp.result_type(lhs)} and {jnp.result_type(rhs)}; "
                "convert both with `astype` first."
            )
    common = jnp.result_type(lhs, rhs)
    (left, right), (left_batch, right_batch) = numbers
    dims = (tuple(left), tuple(right)), (tuple(left_batch), tuple(right_batch))
    return jnp.asarray(lhs, common), jnp.asarray(rhs, common), dims


_BOUND = 127.5  # The integers from -127 to 127 and half a step at both ends, as in AQT and Qwix.


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
    scale = jnp.where(largest == 0, 1, largest / _BOUND)  # a vector of zeros is not divided by zero
    return jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8), scale


def multiply_gradient(
    gradient: jax.Array, lhs: jax.Array, rhs: jax.Array, dims: Dims, precision: Any, dtype: Any
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradients of a product for its operands, in an element type, from the gradient of its result."""
    (left, right), (left_batch, right_batch) = dims
    # The gradient has the batch dimensions, then the free ones of the left operand, then those of the right one.
    right_start = lhs.ndim - len(left)
    left_dims, right_dims = tuple(range(len(left_batch), right_start)), tuple(range(right_start, gradient.ndim))
    return (
        _multiply_transposed(gradient, right_dims, lhs, left, left_batch, rhs, right, right_batch, precision, dtype),
        _multiply_transposed(gradient, left_dims, rhs, right, right_batch, lhs, left, left_batch, precision, dtype),
    )


def _multiply_transposed(
    gradient: jax.Array,
    summed: tuple[int, ...],
    operand: jax.Array,
    contracted: tuple[int, ...],
    batch: tuple[int, ...],
    other: jax.Array,
    other_contracted: tuple[int, ...],
    other_batch: tuple[int, ...],
    precision: Any,
    dtype: Any,
) -> jax.Array:
    """Returns the gradient for one operand: the product with the other one, summed over the other's free dimensions."""
    free, other_free = _find_free(operand, contracted, batch), _find_free(other, other_contracted, other_batch)
    # `dot_general` puts the contracted dimensions last, in their order in the other operand.
    contracted_in_other_order = [dim for _, dim in sorted(zip(other_contracted, contracted, strict=True))]
    order = (*batch, *free, *contracted_in_other_order)
    product = jax.lax.dot_general(
        gradient,
        other,
        ((summed, other_free), (tuple(range(len(batch))), other_batch)),
        precision=precision,
        preferred_element_type=dtype,
        out_sharding=_permute_sharding(operand, order),
    )
    return jnp.transpose(product, tuple(map(order.index, range(operand.ndim))))


def _find_free(x: jax.Array, contracted: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dim for dim in range(x.ndim) if dim not in contracted and dim not in batch)


def _permute_sharding(x: jax.Array, order: tuple[int, ...]) -> NamedSharding | None:
    """Returns the sharding of an array with its dimensions in another order, None unless a mesh axis is Explicit."""
    sharding = jax.typeof(x).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(*(sharding.spec.partitions[dim] for dim in order)))


_HISTORY = "amax_history"


class Float8DotGeneral(OverwriteWithGradient):
    """A `dot_general` that multiplies 8-bit floats, with delayed scaling.

    The operands are multiplied as `float8_e4m3fn`, and the gradient of the result as `float8_e5m2` with the operands
    ([Micikevicius et al., 2022](https://arxiv.org/abs/2209.05433)); a device adds up in `float32`, and several devices
    in `bfloat16` if operands and results are. These are rounded twice then, before and after they are scaled. Each of
    the three tensors has one scale, with which the largest magnitude of the last steps becomes the largest number of
    the type; larger ones are clipped. So the scale is known before the tensor is. In the first step it is 1.

    The largest magnitudes of the last steps, newest first, are arrays of the module. Their gradient has those of this
    step as its first elements, and zeros as the others; `apply_updates` puts them in front of the histories. Where JAX
    adds gradients, because a layer is used several times in a step or mapped by `vmap`, the sum takes the place of the
    largest magnitude: nothing more is clipped, and small numbers are rounded more.

    Attributes:
        lhs_amax: The largest magnitudes of the left operand, the activations of a layer.
        rhs_amax: The largest magnitudes of the right operand, its weights.
        gradient_amax: The largest magnitudes of the gradients of its results.
        dtype: Element type of the operands.
        gradient_dtype: Element type of the gradients.
    """

    lhs_amax: NamedArray
    rhs_amax: NamedArray
    gradient_amax: NamedArray
    dtype: Any = eqx.field(static=True)
    gradient_dtype: Any = eqx.field(static=True)

    @classmethod
    def init(
        cls, history_length: int = 1024, *, dtype: Any = jnp.float8_e4m3fn, gradient_dtype: Any = jnp.float8_e5m2
    ) -> Self:
        """Makes a dot without a history.

        Args:
            history_length: How many steps the largest magnitude is taken over.
            dtype: Element type of the operands; AMD's MI300 multiplies `float8_e4m3fnuz`.
            gradient_dtype: Element type of the gradients; `float8_e5m2fnuz` there.

        Returns:
            A dot whose histories have an axis `amax_history`.

        Raises:
            ValueError: If the length is less than 1, or an element type is not an 8-bit float.

        Example:
            >>> import axonym as nym
            >>> import jax
            >>> Embed, Mlp = nym.make_axes(embed=64, mlp=8)
            >>> layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
            >>> low = nym.quantization.quantize_linear_layers(layer, nym.quantization.Float8DotGeneral.init(16))
            >>> low.dot_general.lhs_amax.shape
            (amax_history: 16)
            >>> x = nym.random.normal(jax.random.key(1), {"batch": 4, "embed": 64})
            >>> float(abs(low(x) - layer(x)).max()) < 0.2
            True
        """
        history_length = check_integer("Float8DotGeneral: `history_length`", history_length, 1)
        check_dtype(dtype)
        check_dtype(gradient_dtype, "`gradient_dtype`")
        for float_dtype in map(jnp.dtype, (dtype, gradient_dtype)):
            if not (jnp.issubdtype(float_dtype, jnp.floating) and float_dtype.itemsize == 1):
                raise ValueError(
                    f"{float_dtype.name} is not an 8-bit float; use `jnp.float8_e4m3fn` or `jnp.float8_e5m2`"
                )
        # One array each, so that a step may donate them.
        lhs, rhs, gradient = (zeros(Axis(_HISTORY, history_length), jnp.float32) for _ in range(3))
        return cls(lhs, rhs, gradient, jnp.dtype(dtype), jnp.dtype(gradient_dtype))

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
            precision: As for `jax.lax.dot_general`. None is the default for the result and the highest for gradients:
                on NVIDIA GPUs, fast and exact accumulation.
            preferred_element_type: Element type of the result, by default that of the operands.
            out_sharding: Sharding of the result on an Explicit mesh.

        Returns:
            The batch dimensions, then the others of the left and of the right operand.

        Raises:
            TypeError: If an operand is not an array of floating-point numbers.
            ValueError: If the histories have more axes, those of stacked layers.
        """
        lhs, rhs, dims = prepare_operands("Float8DotGeneral", lhs, rhs, dimension_numbers)
        if self.lhs_amax.ndim != 1:
            raise ValueError(
                f"the histories have axes {format_shape(self.lhs_amax)}, those of several layers; apply the layers one "
                "at a time, with `Stacked` or `vmap`"
            )
        dtype = jnp.dtype(preferred_element_type or lhs.dtype)
        options = _Options(dims, precision, out_sharding, lhs.dtype, dtype, self.dtype, self.gradient_dtype)
        histories = self.lhs_amax.array, self.rhs_amax.array, self.gradient_amax.array
        lhs, rhs = _vary_alike(lhs, rhs, *histories)[:2]
        result: Any = _multiply_float8(options, lhs, rhs, *histories)
        return result.astype(dtype)

    def overwrite(self, gradient: Any) -> Self:
        """Returns this dot with the magnitudes of a step in its histories.

        Args:
            gradient: The gradient of this dot.
        """
        return jax.tree.map(_push_amax, self, gradient, is_leaf=is_named_array)

    def accumulate(self, other: Any) -> Self:
        """Combines the gradients of two microbatches: the larger magnitudes."""
        return jax.tree.map(jnp.maximum, self, other)


def _push_amax(history: NamedArray, gradient: NamedArray) -> NamedArray:
    if gradient.array is None:  # the module was not differentiated
        return history
    amax = gradient[_HISTORY, 0]
    # A step that overflowed says nothing about the next one, so the largest magnitude so far is repeated.
    amax = where(isfinite(amax), amax, history.max(_HISTORY))
    return roll(history, 1, _HISTORY).at[_HISTORY, 0].set(amax.astype(history.dtype))


class _Options(NamedTuple):
    dims: Dims
    precision: Any
    out_sharding: Any
    operand_dtype: Any
    result_dtype: Any
    dtype: Any
    gradient_dtype: Any


def _choose_sum_dtype(dtype: Any) -> Any:
    """Returns the type in which devices add up their products: `bfloat16` if the result has it, or else `float32`.

    In `float16`, products would overflow before they are scaled. Each device adds up its own in `float32`.
    """
    return jnp.bfloat16 if dtype == jnp.bfloat16 else jnp.float32


class _Quantized(NamedTuple):
    values: jax.Array
    scale: jax.Array
    amax: jax.Array


def _quantize_float8(x: jax.Array, history: jax.Array, dtype: Any) -> _Quantized:
    """Returns a tensor in 8 bits with the scale of the steps before, and its largest magnitude in this step."""
    limit = float(jnp.finfo(dtype).max)
    largest = jnp.max(history).astype(jnp.float32)
    scale = jnp.where(largest > 0, largest / limit, 1)  # 1 in the first step
    values = jnp.clip(x.astype(jnp.float32) / scale, -limit, limit).astype(dtype)
    amax = jnp.max(jnp.abs(x), initial=0)
    # In `shard_map` each device has a part of the tensor, and the history is that of all parts.
    mesh_axes = tuple(find_varying_axes(amax) - find_varying_axes(history))
    return _Quantized(values, scale, jax.lax.pmax(amax, mesh_axes) if mesh_axes else amax)


def _vary_alike(*arrays: jax.Array) -> list[jax.Array]:
    """Returns arrays that vary over the same mesh axes in `shard_map`, as arguments of a `custom_vjp` must."""
    varying_axes = [find_varying_axes(x) for x in arrays]
    all_axes = frozenset().union(*varying_axes)
    return [
        jax.lax.pcast(x, tuple(all_axes - axes), to="varying") for x, axes in zip(arrays, varying_axes, strict=True)
    ]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply_float8(options: _Options, lhs: jax.Array, rhs: jax.Array, *histories: jax.Array) -> jax.Array:
    return _multiply_float8_forward(options, lhs, rhs, *histories)[0]


def _multiply_float8_forward(
    options: _Options, lhs: jax.Array, rhs: jax.Array, *histories: jax.Array
) -> tuple[jax.Array, Any]:
    # The third history is that of the gradient, for the backward pass.
    left = _quantize_float8(lhs, histories[0], options.dtype)
    right = _quantize_float8(rhs, histories[1], options.dtype)
    total = jax.lax.dot_general(
        left.values,
        right.values,
        options.dims,
        precision=options.precision,
        preferred_element_type=_choose_sum_dtype(options.result_dtype),
        out_sharding=options.out_sharding,
    )
    return total * (left.scale * right.scale), (left, right, histories)


def _multiply_float8_backward(options: _Options, residuals: Any, gradient: jax.Array) -> tuple[jax.Array, ...]:
    left, right, histories = residuals
    out = _quantize_float8(gradient, histories[2], options.gradient_dtype)
    # On NVIDIA GPUs, HIGHEST adds up exactly, without the fast accumulation of 8-bit products, as gradients need.
    precision = jax.lax.Precision.HIGHEST if options.precision is None else options.precision
    left_gradient, right_gradient = multiply_gradient(
        out.values, left.values, right.values, options.dims, precision, _choose_sum_dtype(options.operand_dtype)
    )
    return (
        (left_gradient * (out.scale * right.scale)).astype(options.operand_dtype),
        (right_gradient * (out.scale * left.scale)).astype(options.operand_dtype),
        # The "gradient" of a history is what `overwrite` puts in front of it.
        *(
            jnp.zeros_like(history).at[0].set(tensor.amax.astype(history.dtype))
            for history, tensor in zip(histories, (left, right, out), strict=True)
        ),
    )


_multiply_float8.defvjp(_multiply_float8_forward, _multiply_float8_backward)

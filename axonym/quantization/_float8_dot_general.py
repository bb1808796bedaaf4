"""Dots in 8-bit floats with delayed scaling: the scale of a step is known from the magnitudes of the steps before."""

import functools
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from ..named._ambient import find_varying_axes
from ..named._arguments import check_dtype, check_integer
from ..named._array import NamedArray, is_named_array
from ..named._axis import Axis
from ..named._base import format_shape
from ..named._creation import zeros
from ..named._elementwise._arithmetic import where
from ..named._elementwise._logic import isfinite
from ..named._shape._slice import roll
from ._operands import DimensionNumbers, Dims, prepare_operands
from ._overwrite_with_gradient import OverwriteWithGradient
from ._transposed_dots import multiply_gradient


_HISTORY = "amax_history"


class Float8DotGeneral(OverwriteWithGradient):
    """A `dot_general` that multiplies 8-bit floats, with delayed scaling.

    The operands are multiplied as `float8_e4m3fn`, and the gradient of the result as `float8_e5m2` with the operands
    ([Micikevicius et al., 2022](https://arxiv.org/abs/2209.05433)); sums are kept in `float32`. Each of the three
    tensors has one scale, with which the largest magnitude of the last steps becomes the largest number of the type;
    larger ones are clipped. So the scale is known before the tensor is. In the first step it is 1.

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
        for given in map(jnp.dtype, (dtype, gradient_dtype)):
            if not (jnp.issubdtype(given, jnp.floating) and given.itemsize == 1):
                raise ValueError(f"{given.name} is not an 8-bit float; use `jnp.float8_e4m3fn` or `jnp.float8_e5m2`")
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
        options = _Options(dims, precision, out_sharding, lhs.dtype, self.dtype, self.gradient_dtype)
        histories = self.lhs_amax.array, self.rhs_amax.array, self.gradient_amax.array
        lhs, rhs = _vary_alike(lhs, rhs, *histories)[:2]
        result: Any = _multiply_float8(options, lhs, rhs, *histories)
        return result.astype(preferred_element_type or lhs.dtype)

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
    amax = where(isfinite(amax), amax, history.max(_HISTORY))  # as if the step had not been
    return roll(history, 1, _HISTORY).at[_HISTORY, 0].set(amax.astype(history.dtype))


class _Options(NamedTuple):
    dims: Dims
    precision: Any
    out_sharding: Any
    operand_dtype: Any
    dtype: Any
    gradient_dtype: Any


class _Quantized(NamedTuple):
    values: jax.Array
    scale: jax.Array
    amax: jax.Array


def _quantize_float8(x: jax.Array, history: jax.Array, dtype: Any) -> _Quantized:
    """Returns a tensor in 8 bits with the scale of the steps before, and its own largest magnitude."""
    limit, largest = float(jnp.finfo(dtype).max), jnp.max(history).astype(jnp.float32)
    scale = jnp.where(largest > 0, largest / limit, 1)
    values = jnp.clip(x.astype(jnp.float32) / scale, -limit, limit).astype(dtype)
    amax = jnp.max(jnp.abs(x), initial=0)
    devices = tuple(find_varying_axes(amax) - find_varying_axes(history))  # of `shard_map`, each with its own part
    return _Quantized(values, scale, jax.lax.pmax(amax, devices) if devices else amax)


def _vary_alike(*arrays: jax.Array) -> list[jax.Array]:
    """Returns arrays that vary over the same mesh axes in `shard_map`, as arguments of a `custom_vjp` must."""
    own = [*map(find_varying_axes, arrays)]
    missing = [tuple(frozenset().union(*own) - axes) for axes in own]
    pairs = zip(arrays, missing, strict=True)
    return [jax.lax.pcast(x, axes, to="varying") for x, axes in pairs]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _multiply_float8(options: _Options, lhs: jax.Array, rhs: jax.Array, *histories: jax.Array) -> jax.Array:
    return _multiply_float8_forward(options, lhs, rhs, *histories)[0]


def _multiply_float8_forward(
    options: _Options, lhs: jax.Array, rhs: jax.Array, *histories: jax.Array
) -> tuple[jax.Array, Any]:
    left, right = (_quantize_float8(x, own, options.dtype) for x, own in zip((lhs, rhs), histories, strict=False))
    total = jax.lax.dot_general(
        left.values,
        right.values,
        options.dims,
        precision=options.precision,
        preferred_element_type=jnp.float32,
        out_sharding=options.out_sharding,
    )
    return total * (left.scale * right.scale), (left, right, histories)


def _multiply_float8_backward(options: _Options, residuals: Any, gradient: jax.Array) -> tuple[jax.Array, ...]:
    left, right, histories = residuals
    own = _quantize_float8(gradient, histories[2], options.gradient_dtype)
    precision = jax.lax.Precision.HIGHEST if options.precision is None else options.precision
    for_left, for_right = multiply_gradient(own.values, left.values, right.values, options.dims, precision)
    return (
        (for_left * (own.scale * right.scale)).astype(options.operand_dtype),
        (for_right * (own.scale * left.scale)).astype(options.operand_dtype),
        *(
            jnp.zeros_like(history).at[0].set(x.amax.astype(history.dtype))
            for history, x in zip(histories, (left, right, own), strict=True)
        ),
    )


_multiply_float8.defvjp(_multiply_float8_forward, _multiply_float8_backward)

"""Parameters drawn by an initializer of JAX, which gets fan-in and fan-out from the names of axes."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from ..named._ambient import constrain_sharding, context, place_array
from ..named._arguments import check_dtype, check_number
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec, check_unique_names, get_names_and_sizes, parse_axes
from ..named._base import get_plain_array
from ..named._format import format_axes, format_value
from ..named._operation import run_operation
from ..random import truncated_normal
from ..random._sampling import as_plain_key


Initializer: TypeAlias = Callable[..., Any]
"""Function of a key, a shape and a dtype, as `jax.nn.initializers` has them."""


def initialize_weight(
    initializer: Initializer,
    key: jax.Array,
    In: AxisSpec,
    Out: AxisSpec,
    axes: AxisSpec | None = None,
    dtype: Any = None,
) -> NamedArray:
    """Draws a weight with an initializer of `jax.nn.initializers`, for which the axes give fan-in and fan-out.

    The initializer draws an array whose last two axes are the input axes and the output axes, each merged into one, as
    JAX's initializers expect it. The values are therefore the same in each order of `axes`.

    Args:
        initializer: Function of a key, a shape and a dtype, such as `jax.nn.initializers.he_normal()`.
        key: A random key.
        In: The input axes, whose sizes multiply to the fan-in.
        Out: The output axes, whose sizes multiply to the fan-out.
        axes: All axes of the weight in order, the output axes and then the input axes if None. Axes that are neither
            input nor output are the window of a convolution, whose sizes count in both fans.
        dtype: dtype of the weight; JAX's default float dtype if None.

    Returns:
        Array with these axes, sharded by the active mapping. Under a mapping no device holds more than its shard.

    Raises:
        TypeError: If `initializer` is not a function that returns an array, or an axis has no size.
        ValueError: If a name occurs twice, or `axes` lacks an input or output axis.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> Embed, Heads, HeadDim = nym.make_axes(embed=100, heads=20, head_dim=50)
        >>> init = jax.nn.initializers.lecun_normal()  # variance 1 / fan-in
        >>> weight = nym.nn.initialize_weight(init, jax.random.key(0), Embed, (Heads, HeadDim))
        >>> weight.shape, round(weight.var().item(), 4)
        ((heads: 20, head_dim: 50, embed: 100), 0.01)
    """
    inputs, outputs = parse_axes(In), parse_axes(Out)
    order = (*outputs, *inputs) if axes is None else parse_axes(axes)
    if missing := [axis for axis in (*inputs, *outputs) if axis not in order]:
        raise ValueError(f"the axes {format_axes(*get_names_and_sizes(order))} of a weight lack its axis {missing[0]}")
    window = tuple(axis for axis in order if axis not in inputs and axis not in outputs)
    shape = (*(axis.size for axis in window), _count_elements(inputs), _count_elements(outputs))
    return _draw_parameter(initializer, key, shape, (*window, *inputs, *outputs), order, dtype)


def draw_scaled_normal(key: jax.Array, axes: tuple[Axis, ...], In: AxisSpec, scale: float, dtype: Any) -> NamedArray:
    """Draws from a normal distribution truncated at three standard deviations, times `scale / sqrt(inputs)`."""
    check_init_scale(scale)
    return truncated_normal(key, axes, -3, 3, float if dtype is None else dtype) * (scale / math.sqrt(count_fan(In)))


def check_init_scale(scale: Any) -> None:
    """Raises an error for a factor that is not a number; it may be traced, such as another one for each layer."""
    if not isinstance(get_plain_array(scale), jax.Array):
        check_number("`init_scale`", scale)


def count_fan(axes: AxisSpec) -> int:
    """Returns the number of elements of the input or output axes of a weight, at least 1."""
    return max(1, _count_elements(parse_axes(axes)))


def initialize_bias(initializer: Initializer, key: jax.Array, Out: tuple[Axis, ...], dtype: Any) -> NamedArray:
    """Draws a bias, for which the initializer gets a shape of one axis."""
    return _draw_parameter(initializer, key, (_count_elements(Out),), Out, Out, dtype)


def _count_elements(axes: tuple[Axis, ...]) -> int:
    return math.prod(axis.size for axis in axes)


def _draw_parameter(
    initializer: Initializer,
    key: jax.Array,
    shape: tuple[int, ...],
    drawn: tuple[Axis, ...],
    order: tuple[Axis, ...],
    dtype: Any,
) -> NamedArray:
    """Draws a plain array of a shape, splits it into the axes drawn, and puts these in order."""
    if not callable(initializer):
        raise TypeError(
            "An initializer is a function of a key, a shape and a dtype, such as `jax.nn.initializers.he_normal()`, "
            f"not {format_value(initializer)}."
        )
    names, sizes = get_names_and_sizes(order)
    check_unique_names(names)
    check_dtype(dtype)
    found = [axis.name for axis in drawn]
    dtype = jnp.result_type(float if dtype is None else dtype)

    def draw_values(key: Any) -> jax.Array:
        values = initializer(key, shape, dtype)
        _check_values(initializer, values, shape)
        split = jnp.reshape(values, tuple(axis.size for axis in drawn))
        return jnp.transpose(split, tuple(map(found.index, names)))

    def draw_named(key: Any) -> NamedArray:
        array = run_operation(draw_values, [()], names, key, by_compiler=True, sizes=sizes)
        return constrain_sharding(NamedArray(array, names))

    plain_key = as_plain_key(key)
    # Compiled anew for each call, because functions of users are not cached; without a mapping nothing is sharded.
    return draw_named(plain_key) if context.value is None else place_array(jax.jit(draw_named)(plain_key))


def _check_values(initializer: Initializer, values: Any, shape: tuple[int, ...]) -> None:
    name = getattr(initializer, "__name__", type(initializer).__name__)
    if callable(values):
        raise TypeError(f"The initializer `{name}` returned a function; call it first: `{name}()`.")
    if jnp.shape(values) != shape:
        raise TypeError(f"The initializer `{name}` returned shape {jnp.shape(values)}, {shape} was asked for.")

"""Pooling: the maximum, minimum or mean of windows that slide along named axes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._ground.caches import cached_jit
from .._ground.jax_compat import is_tracing
from ..named._array import NamedArray
from ..named._axis import AxisSpec, Names, get_names_and_sizes, parse_axes
from ..named._base import with_array
from ..named._operation import run_operation, use_operand_layout
from ..named._sharding import constrain_sharding, reshard_by_name
from ._layer import cast_array, check_input, widen_array
from ._map_shards import find_layout, shard_map_by_name
from ._window import (
    ByAxis,
    Halo,
    Padding,
    Pairs,
    add_halo,
    find_padding,
    parse_by_axis,
    parse_padding,
    plan_halo,
)


class PoolPlan(NamedTuple):
    """Windows along some dimensions of a plain array."""

    dims: tuple[int, ...]
    windows: tuple[int, ...]
    strides: tuple[int, ...]
    padding: Pairs
    ceil: tuple[int, ...]
    """How much more is added to the end of each dimension, so that windows cover all elements."""


def max_pool(
    Window: AxisSpec, x: NamedArray, stride: ByAxis | None = None, padding: Padding = "VALID", use_ceil: bool = False
) -> NamedArray:
    """Takes the maximum of each window.

    Args:
        Window: The axes pooled over, each with the size of the window.
        x: Array with these axes, in other sizes, and any others.
        stride: How far the window moves each time: a number, one for each axis of `Window`, or a mapping by name; 1 if
            None.
        padding: `"VALID"` for none, `"SAME"` or `"SAME_LOWER"` for as much as keeps sizes, divided by the stride, or
            numbers as for `Conv.init`. What is padded never is the maximum.
        use_ceil: Whether elements at the end that do not fill a window get one too.

    Returns:
        Array with the axes of `x`, sharded by the active mapping.

    Raises:
        TypeError: If `x` is not a named array, an axis has no size, or an option is not made of integers.
        ValueError: If `x` lacks an axis or is shorter than the window, or an option is given for other axes.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([1, 5, 2, 0, 3], "pos")
        >>> nym.nn.max_pool(nym.Axis("pos", 2), x, stride=2).array.tolist()
        [5, 2]
        >>> nym.nn.max_pool(nym.Axis("pos", 2), x, stride=2, use_ceil=True).array.tolist()
        [5, 2, 3]
    """
    plan = plan_pool("max_pool", Window, x, stride, padding, use_ceil)
    return _apply_windows(_compute_window_extremes, x, plan, jax.lax.max)


def min_pool(
    Window: AxisSpec, x: NamedArray, stride: ByAxis | None = None, padding: Padding = "VALID", use_ceil: bool = False
) -> NamedArray:
    """Takes the minimum of each window. Arguments as for `max_pool`.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([1, 5, 2, 0, 3], "pos")
        >>> nym.nn.min_pool(nym.Axis("pos", 3), x).array.tolist()
        [1, 0, 0]
    """
    plan = plan_pool("min_pool", Window, x, stride, padding, use_ceil)
    return _apply_windows(_compute_window_extremes, x, plan, jax.lax.min)


def mean_pool(
    Window: AxisSpec,
    x: NamedArray,
    stride: ByAxis | None = None,
    padding: Padding = "VALID",
    *,
    use_ceil: bool = False,
    count_include_pad: bool = False,
) -> NamedArray:
    """Takes the mean of each window, in float32 at least. Arguments as for `max_pool`, and one more.

    Args:
        Window: The axes pooled over, each with the size of the window.
        x: Array with these axes, in other sizes, and any others.
        stride: How far the window moves each time; see `max_pool`.
        padding: How much is padded; see `max_pool`.
        use_ceil: Whether elements at the end that do not fill a window get one too.
        count_include_pad: Whether padded elements count as zeros; the mean is of the others if False.

    Returns:
        Array with the axes of `x`, sharded by the active mapping, in the dtype of `x` or a float dtype for integers.

    Raises:
        TypeError: If `x` is not a named array, an axis has no size, or an option is not made of integers.
        ValueError: If `x` lacks an axis or is shorter than the window, or an option is given for other axes.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([1.0, 5.0, 3.0], "pos")
        >>> nym.nn.mean_pool(nym.Axis("pos", 2), x, padding=1).array.tolist()
        [1.0, 3.0, 4.0, 3.0]
        >>> nym.nn.mean_pool(nym.Axis("pos", 2), x, padding=1, count_include_pad=True).array.tolist()
        [0.5, 3.0, 4.0, 1.5]
    """
    plan = plan_pool("mean_pool", Window, x, stride, padding, use_ceil)
    result = _apply_windows(_compute_window_mean, widen_array(x), plan, count_include_pad)
    return cast_array(result, x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else result


def plan_pool(function: str, Window: AxisSpec, x: Any, stride: Any, padding: Any, use_ceil: bool) -> PoolPlan:
    """Returns the windows of a named array, which the name of the function stands before in errors."""
    names, windows = get_names_and_sizes(parse_axes(Window))
    dims = check_input(function, x, names)
    sizes = tuple(x.array.shape[dim] for dim in dims)
    windows = parse_by_axis(function, "Window", windows, names)
    strides = parse_by_axis(function, "stride", 1 if stride is None else stride, names)
    pads = find_padding(function, parse_padding(function, padding, names), names, sizes, windows, strides)
    for name, window, pair in zip(names, windows, pads, strict=True):
        if max(pair) >= window:
            raise ValueError(
                f"{function}: `padding` along axis {name!r} must be less than the window of {window}, not {max(pair)}"
            )
    ceil = [0] * len(dims)
    if use_ceil:
        spans = [sum((size, *pair)) - window for size, pair, window in zip(sizes, pads, windows, strict=True)]
        ceil = [-span % step for span, step in zip(spans, strides, strict=True)]
    return PoolPlan(dims, windows, strides, pads, tuple(ceil))


def _apply_windows(fn: Callable[..., Any], x: NamedArray, plan: PoolPlan, *static: Any) -> NamedArray:
    return constrain_sharding(with_array(x, cached_jit(fn, x.names, plan, *static)(x.array)))


def reduce_windows(names: Names, plan: PoolPlan, init: Any, fn: Callable[..., Any], array: Any) -> Any:
    """Reduces each window of a plain array with a function of two elements; see `jax.lax.reduce_window`.

    Each device reduces the windows of its shards: XLA's partitioner gives wrong results and gradients for windows that
    reach over the end of a shard. Without a mapping on an Auto mesh, the dimensions of windows are replicated instead.
    """
    dims = plan.dims
    padding = {
        dim: (before, after + ceil) for dim, (before, after), ceil in zip(dims, plan.padding, plan.ceil, strict=True)
    }

    def reduce(array: Any) -> Any:
        windows, strides, pads = [1] * array.ndim, [1] * array.ndim, [(0, 0)] * array.ndim
        for dim, window, stride in zip(dims, plan.windows, plan.strides, strict=True):
            windows[dim], strides[dim] = window, stride
            before, after = padding[dim]
            # `reduce_window` takes no negative padding, which a shard may have.
            array = jax.lax.slice_in_dim(array, 0, array.shape[dim] + min(after, 0), axis=dim)
            pads[dim] = before, max(after, 0)
        return jax.lax.reduce_window(array, init, fn, windows, strides, pads)

    shape = jax.eval_shape(reduce, jax.ShapeDtypeStruct(array.shape, array.dtype)).shape
    with use_operand_layout((names,), (array,)):
        layout = find_layout((names, names), (array.shape, shape))
        if layout.mesh is None:
            whole = {names[dim] for dim in dims}
            return run_operation(reduce, [names], names, array, whole=whole, misses_auto_shards=True)
        halos: dict[int, Halo] = {}
        for dim, window, stride in zip(dims, plan.windows, plan.strides, strict=True):
            count = layout.count_shards((names[dim],))
            halo = plan_halo(count, array.shape[dim], shape[dim], window, stride, padding[dim][0])
            if halo is not None:
                halos[dim] = halo
                padding[dim] = halo.padding  # of the shard, for `reduce` below

        def reduce_shards(array: Any) -> tuple[Any]:
            for dim, halo in halos.items():
                array = add_halo(array, dim, halo, layout, names[dim], init)
            return (reduce(array),)

        sharded = tuple("" if dim in dims and dim not in halos else name for dim, name in enumerate(names))
        call = shard_map_by_name(reduce_shards, layout, (sharded,), (sharded,))
        (result,) = (call if is_tracing() else jax.jit(call))(reshard_by_name(array, sharded))
        return reshard_by_name(result, names)


def _compute_window_extremes(names: Names, plan: PoolPlan, fn: Callable[..., Any], array: Any) -> Any:
    """Returns the maximum or the minimum of each window, by `jax.lax.max` or `jax.lax.min`."""
    if jnp.issubdtype(array.dtype, jnp.bool_):
        least, greatest = False, True
    elif jnp.issubdtype(array.dtype, jnp.inexact):
        least, greatest = -np.inf, np.inf
    else:
        least, greatest = jnp.iinfo(array.dtype).min, jnp.iinfo(array.dtype).max
    return reduce_windows(names, plan, np.array(least if fn is jax.lax.max else greatest, array.dtype), fn, array)


def _compute_window_mean(names: Names, plan: PoolPlan, count_include_pad: bool, array: Any) -> Any:
    total = reduce_windows(names, plan, np.array(0, array.dtype), jax.lax.add, array)
    for dim, window, stride, (before, after) in zip(plan.dims, plan.windows, plan.strides, plan.padding, strict=True):
        # How many elements each window has along this dimension, of which the mean is taken.
        starts = np.arange(total.shape[dim]) * stride - before
        first, last = (-before, array.shape[dim] + after) if count_include_pad else (0, array.shape[dim])
        counts = np.minimum(starts + window, last) - np.maximum(starts, first)
        counts = np.maximum(counts, 1)  # a window of padding alone has sum 0
        total = total / np.expand_dims(counts.astype(total.dtype), tuple(set(range(array.ndim)) - {dim}))
    return total

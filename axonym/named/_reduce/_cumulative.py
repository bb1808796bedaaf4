"""Functions along one axis that keep it: cumulative sums and products, differences, sorting."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..._ground.caches import cached_jit
from ..._ground.formats import format_axes
from .._axis import AxisSelector, Names, check_matching_sizes, find_axis
from .._base import A, NamedBase, format_shape, with_array
from .._broadcasting import align_axes, split_operand
from .._operation import run_operation
from .._sharding import vary_like
from ._apply_reduction import apply_along, find_position


def cumsum(x: A, axis: AxisSelector | int, *, dtype: Any = None) -> A:
    """Adds up the elements along an axis, keeping all partial sums; see `jax.numpy.cumsum`.

    Args:
        x: Array of any axes.
        axis: The axis to run along.
        dtype: Element type of the result.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> nym.cumsum(nym.arange(nym.Axis("i", 4)), "i").array
        Array([0, 1, 3, 6], dtype=int32)
    """
    return apply_along(jnp.cumsum, x, axis, dtype=dtype)


def cumprod(x: A, axis: AxisSelector | int, *, dtype: Any = None) -> A:
    """Multiplies the elements along an axis, keeping all partial products; see `jax.numpy.cumprod`.

    Arguments as for `cumsum`.

    Example:
        >>> import axonym as nym
        >>> nym.cumprod(nym.arange(nym.Axis("i", 4), start=1), "i").array
        Array([ 1,  2,  6, 24], dtype=int32)
    """
    return apply_along(jnp.cumprod, x, axis, misses_auto_shards=True, dtype=dtype)


def nancumsum(x: A, axis: AxisSelector | int, *, dtype: Any = None) -> A:
    """Adds up the elements along an axis, with 0 for NaN; see `jax.numpy.nancumsum`. Arguments as for `cumsum`.

    Example:
        >>> import axonym as nym
        >>> nym.nancumsum(nym.named([1.0, float("nan"), 4.0], "i"), "i").array
        Array([1., 1., 5.], dtype=float32)
    """
    return apply_along(jnp.nancumsum, x, axis, dtype=dtype)


def nancumprod(x: A, axis: AxisSelector | int, *, dtype: Any = None) -> A:
    """Multiplies the elements along an axis, with 1 for NaN; see `jax.numpy.nancumprod`. Arguments as for `cumsum`.

    Example:
        >>> import axonym as nym
        >>> nym.nancumprod(nym.named([2.0, float("nan"), 4.0], "i"), "i").array
        Array([2., 2., 8.], dtype=float32)
    """
    return apply_along(jnp.nancumprod, x, axis, misses_auto_shards=True, dtype=dtype)


def cumulative_sum(x: A, axis: AxisSelector | int, *, dtype: Any = None, include_initial: bool = False) -> A:
    """Adds up the elements along an axis, optionally starting at 0; see `jax.numpy.cumulative_sum`.

    Args:
        x: Array of any axes.
        axis: The axis to run along.
        dtype: Element type of the result.
        include_initial: Whether the result begins with the empty sum, 0, and so has one more element.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> nym.cumulative_sum(nym.named([1, 2], "i"), "i", include_initial=True).array
        Array([0, 1, 3], dtype=int32)
    """
    return _apply_cumulative(jnp.cumulative_sum, 0, x, axis, dtype, include_initial)


def cumulative_prod(x: A, axis: AxisSelector | int, *, dtype: Any = None, include_initial: bool = False) -> A:
    """Multiplies the elements along an axis, optionally starting at 1; see `jax.numpy.cumulative_prod`.

    Arguments as for `cumulative_sum`.

    Example:
        >>> import axonym as nym
        >>> nym.cumulative_prod(nym.named([2, 3], "i"), "i", include_initial=True).array
        Array([1, 2, 6], dtype=int32)
    """
    return _apply_cumulative(jnp.cumulative_prod, 1, x, axis, dtype, include_initial)


def _apply_cumulative(
    fn: Callable[..., Any], initial: int, x: Any, axis: Any, dtype: Any, include_initial: bool
) -> Any:
    # Of the two, only products are wrong along an axis that is sharded over Auto mesh axes.
    misses_auto_shards = fn is jnp.cumulative_prod
    if not include_initial:
        return apply_along(fn, x, axis, misses_auto_shards=misses_auto_shards, dtype=dtype)
    options = {"accumulate": fn, "initial": initial, "dtype": dtype}
    return apply_along(_prepend_initial, x, axis, resizes=True, misses_auto_shards=misses_auto_shards, **options)


def _prepend_initial(array: Any, axis: int, accumulate: Callable[..., Any], initial: int, dtype: Any) -> Any:
    result = accumulate(array, axis=axis, dtype=dtype)
    first = jnp.full_like(result, initial, shape=(*result.shape[:axis], 1, *result.shape[axis + 1 :]))
    sharding = jax.typeof(result).sharding
    if any(sharding.spec.partitions):  # on an Explicit mesh, JAX joins only arrays that are sharded alike
        first = jax.reshard(first, sharding)
    return jnp.concatenate([first, result], axis=axis)


def diff(
    x: A,
    axis: AxisSelector | int,
    *,
    n: int = 1,
    prepend: NamedBase | ArrayLike | None = None,
    append: NamedBase | ArrayLike | None = None,
) -> A:
    """Computes differences of neighbouring elements along an axis; see `jax.numpy.diff`.

    Args:
        x: Array of any axes.
        axis: The axis to run along, which becomes shorter by `n` elements.
        n: The number of times to take differences.
        prepend: Values to put before `x` first: a scalar, or an array with some of its axes, which must have the same
            size except for `axis`. Without `axis` it is one element.
        append: Values to put after `x` first, likewise.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, an `Axis` given has another size, `n` is negative, or `prepend` or
            `append` does not fit.

    Example:
        >>> import axonym as nym
        >>> nym.diff(nym.named([1, 4, 9], "i"), "i", prepend=0).array
        Array([1, 3, 5], dtype=int32)
    """
    ends: dict[str, Any] = {"prepend": prepend, "append": append}
    if not isinstance(x, NamedBase):
        return jnp.diff(x, n=n, axis=find_position(x, axis), **ends)
    selector: Any = axis
    dim = find_axis(x.names, x.array.shape, selector)
    if n < 0:
        raise ValueError(f"`n`, the number of times to take differences, must not be negative, {n} was given")
    named_ends: list[tuple[str, Names]] = []
    arrays = []
    for key, end in ends.items():
        if end is None:
            continue
        array, names = split_operand(end)
        if not set(names) <= set(x.names):
            raise ValueError(
                f"`prepend` and `append` must have axes of {format_shape(x)} only, not "
                f"{format_axes(names, array.shape)}"
            )
        sizes = dict(zip(names, array.shape if names else (), strict=True))
        sizes.pop(x.names[dim], None)  # along which the ends may have any size
        check_matching_sizes((x.names, x.array.shape), (tuple(sizes), tuple(sizes.values())))
        named_ends.append((key, names))
        arrays.append(array)
    return with_array(x, cached_jit(_compute_diff, x.names, dim, n, tuple(named_ends))(x.array, *arrays))


def _compute_diff(names: Names, dim: int, n: int, ends: tuple[tuple[str, Names], ...], *arrays: Any) -> Any:
    operands = [names, *(end_names for _, end_names in ends)]

    def subtract_neighbours(array: Any, *end_arrays: Any) -> Any:
        pairs = zip(ends, end_arrays, strict=True)
        widened = {key: _broadcast_end(array, end, names, dim, end_names) for (key, end_names), end in pairs}
        return jnp.diff(array, n=n, axis=dim, **widened)

    size = arrays[0].shape[dim] - n
    for end_names, end in zip(operands[1:], arrays[1:], strict=True):
        size += end.shape[end_names.index(names[dim])] if names[dim] in end_names else 1
    # With as many ends as differences the axis keeps its size, and its sharding.
    same_size = size == arrays[0].shape[dim]
    results = names if same_size else (*names[:dim], "", *names[dim + 1 :])
    return run_operation(subtract_neighbours, operands, results, *arrays, whole=(names[dim],))


def _broadcast_end(array: Any, end: Any, names: Names, dim: int, end_names: Names) -> Any:
    """Returns the values to prepend or append, with all axes of the array."""
    end = align_axes(end, end_names, names)
    length = end.shape[dim] if end_names else 1
    shape = (*array.shape[:dim], length, *array.shape[dim + 1 :])
    sharding = jax.typeof(array).sharding
    end = jnp.broadcast_to(end, shape)
    if any(sharding.spec.partitions) or any(jax.typeof(end).sharding.spec.partitions):
        end = jax.reshard(end, sharding.spec)
    return end


def sort(x: A, axis: AxisSelector | int, *, stable: bool = True, descending: bool = False) -> A:
    """Sorts the elements along an axis, smallest first; see `jax.numpy.sort`.

    Args:
        x: Array of any axes.
        axis: The axis to run along.
        stable: Whether equal elements keep their order.
        descending: Whether the largest comes first.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `x` lacks the axis, or an `Axis` given has another size.

    Example:
        >>> import axonym as nym
        >>> nym.sort(nym.named([3, 9, 4], "i"), "i").array
        Array([3, 4, 9], dtype=int32)
    """
    return apply_along(
        jnp.sort, x, axis, by_compiler=True, misses_auto_shards=True, stable=stable, descending=descending
    )


def argsort(x: A, axis: AxisSelector | int, *, stable: bool = True, descending: bool = False) -> A:
    """Returns the positions that sort the elements along an axis; see `jax.numpy.argsort`. Arguments as for `sort`.

    Example:
        >>> import axonym as nym
        >>> nym.argsort(nym.named([3, 9, 4], "i"), "i").array
        Array([0, 2, 1], dtype=int32)
    """
    return apply_along(_compute_argsort, x, axis, by_compiler=True, stable=stable, descending=descending)


def _compute_argsort(array: Any, **options: Any) -> Any:
    return vary_like(jnp.argsort(array, **options), array)  # JAX forgets this type; see `docs/known-faults.md`

"""Removing and adding axes of size 1."""

from typing import Any

import jax
import jax.numpy as jnp

from .._ambient import replicate_dims
from .._axis import Axis, AxisSelection, axis_name, check_unique_names, find_axes, intern_names, parse_selection
from .._base import N, check_named, format_shape, with_array
from .._cached_jit import cached_jit


def squeeze(x: N, axis: AxisSelection | None = None) -> N:
    """Removes axes of size 1; see `jax.numpy.squeeze`.

    Args:
        x: Array of any axes.
        axis: The axes to remove; all of size 1 if None.

    Returns:
        Array with the other axes.

    Raises:
        ValueError: If an axis is missing or has another size.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 1, "pos": 3, "embed": 1})
        >>> nym.squeeze(x).shape, nym.squeeze(x, "batch").shape
        ((pos: 3), (pos: 3, embed: 1))
    """
    check_named(x)
    sizes = x.array.shape
    dims = find_axes(x.names, sizes, axis)
    if axis is None:
        dims = tuple(dim for dim in dims if sizes[dim] == 1)
    for dim in dims:
        if sizes[dim] != 1:
            raise ValueError(
                f"axis {x.names[dim]!r} of {format_shape(x)} has size {sizes[dim]}, `squeeze` removes size 1"
            )
    if not dims:
        return x
    names = tuple(name for dim, name in enumerate(x.names) if dim not in dims)
    return with_array(x, cached_jit(_compute_squeeze, dims)(x.array), intern_names(names))


def _compute_squeeze(dims: tuple[int, ...], array: Any) -> Any:
    return jax.lax.squeeze(replicate_dims(array, dims), dims)


def expand(x: N, axes: AxisSelection) -> N:
    """Adds leading axes of size 1; see `jax.numpy.expand_dims`.

    Args:
        x: Array of any axes.
        axes: The new axes in order, each a name or an `Axis` of size 1.

    Returns:
        Array with the new axes followed by those of `x`.

    Raises:
        ValueError: If an `Axis` has another size, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> nym.expand(nym.zeros({"embed": 4}), ("batch", "pos")).shape
        (batch: 1, pos: 1, embed: 4)
    """
    check_named(x)
    new = parse_selection(axes)
    for axis in new:
        if isinstance(axis, Axis) and axis.size != 1:
            raise ValueError(
                f"axis {axis.name!r} has size {axis.size}, `expand` adds axes of size 1; use `broadcast_axis` to "
                "repeat the values along it"
            )
    if not new:
        return x
    names = (*map(axis_name, new), *x.names)
    check_unique_names(names)
    return with_array(x, cached_jit(_compute_expand, len(new))(x.array), intern_names(names))


def _compute_expand(count: int, array: Any) -> Any:
    return jnp.expand_dims(array, tuple(range(count)))

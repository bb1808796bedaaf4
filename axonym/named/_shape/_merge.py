"""Several axes made one, and one axis made several."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._ambient import get_entry_axes, get_out_sharding, replicate_dims
from .._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    Names,
    axis_name,
    check_unique_names,
    find_axes,
    find_axis,
    format_axes,
    get_names_and_sizes,
    intern_names,
    make_hashable_selection,
    parse_axes,
)
from .._base import N, check_named, format_shape, with_array
from .._cached_jit import cached_jit
from ._order import rearrange
from ._unit import expand


def flatten_axes(x: N, old_axes: AxisSelection, new_axis: AxisSelector) -> N:
    """Merges axes into one, the first given varying slowest.

    Args:
        x: Array of any axes.
        old_axes: The axes to merge, in the order in which they are merged.
        new_axis: The axis that they become, a name or an `Axis` of the product of their sizes.

    Returns:
        Array in which the new axis stands where the first of the old ones stood.

    Raises:
        ValueError: If no axis is given, one is not there, or the sizes do not fit.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "heads": 3, "head_dim": 4})
        >>> nym.flatten_axes(x, ("heads", "head_dim"), "embed").shape
        (batch: 2, embed: 12)
    """
    check_named(x)
    axis_name(new_axis)  # what is no axis may not be hashable
    return _applied(x, _flat_plan(x.names, x.array.shape, make_hashable_selection(old_axes), new_axis))


class _Plan(NamedTuple):
    """How to reshape an array: the new order of its axes if that changes first, and its sizes and names at last."""

    order: tuple[int, ...] | None
    sizes: tuple[int, ...]
    names: Names
    later: range = range(0)  # the axes that are merged into one before them
    split: tuple[int, int] | None = None  # an axis that is split, and the size of its first part


@functools.lru_cache(maxsize=8192)
def _flat_plan(names: Names, sizes: tuple[int, ...], old_axes: AxisSelection | None, new_axis: AxisSelector) -> _Plan:
    merged = find_axes(names, sizes, old_axes)
    if not merged:
        raise ValueError(f"no axes of {format_axes(names, sizes)} to merge into {axis_name(new_axis)!r} were given")
    rest = [at for at in range(len(names)) if at not in merged]
    before = sum(at < min(merged) for at in rest)
    order = (*rest[:before], *merged, *rest[before:])
    size = math.prod(sizes[at] for at in merged)
    if isinstance(new_axis, Axis) and new_axis.size != size:
        moved = format_axes([names[at] for at in order], [sizes[at] for at in order])
        raise ValueError(
            f"axes {format_axes([names[at] for at in merged])} of {moved} have {size} elements, not {new_axis.size}"
        )
    return _Plan(
        order if order != tuple(range(len(names))) else None,
        (*(sizes[at] for at in rest[:before]), size, *(sizes[at] for at in rest[before:])),
        _checked((*(names[at] for at in rest[:before]), axis_name(new_axis), *(names[at] for at in rest[before:]))),
        range(before + 1, before + len(merged)),
    )


def _checked(names: Names) -> Names:
    check_unique_names(names)
    return intern_names(names)


def unflatten_axis(x: N, axis: AxisSelector, new_axes: AxisSpec) -> N:
    """Splits an axis into several, the first varying slowest.

    Args:
        x: Array of any axes.
        axis: The axis to split.
        new_axes: The axes that it becomes; the product of their sizes must be its size.

    Returns:
        Array in which the new axes stand where the old one stood.

    Raises:
        ValueError: If the axis is not there, the sizes do not fit, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "embed": 12})
        >>> nym.unflatten_axis(x, "embed", {"heads": 3, "head_dim": 4}).shape
        (batch: 2, heads: 3, head_dim: 4)
    """
    check_named(x)
    axis_name(axis)  # what is no axis may not be hashable
    return _applied(x, _split_plan(x.names, x.array.shape, axis, parse_axes(new_axes)))


@functools.lru_cache(maxsize=8192)
def _split_plan(names: Names, sizes: tuple[int, ...], axis: AxisSelector, new_axes: tuple[Axis, ...]) -> _Plan:
    index, (new, parts) = find_axis(names, sizes, axis), get_names_and_sizes(new_axes)
    if math.prod(parts) != sizes[index]:
        raise ValueError(
            f"axis {names[index]!r} of {format_axes(names, sizes)} has {sizes[index]} elements, {format_axes(new, parts)} have "
            f"{math.prod(parts)}"
        )
    return _Plan(
        None,
        (*sizes[:index], *parts, *sizes[index + 1 :]),
        _checked((*names[:index], *new, *names[index + 1 :])),
        split=(index, next((size for size in parts if size > 1), 1)),
    )


def ravel(x: N, new_axis_name: AxisSelector) -> N:
    """Merges all axes into one, the first varying slowest; see `jax.numpy.ravel`.

    Args:
        x: Array of any axes.
        new_axis_name: The axis that they become, a name or an `Axis` of the number of elements.

    Returns:
        Array with that axis; it has size 1 if `x` has no axes.

    Raises:
        ValueError: If an `Axis` has another size.

    Example:
        >>> import axonym as nym
        >>> nym.ravel(nym.zeros({"batch": 2, "embed": 3}), "element").shape
        (element: 6)
    """
    check_named(x)
    if isinstance(new_axis_name, Axis) and new_axis_name.size != x.size:
        raise ValueError(f"{format_shape(x)} has {x.size} elements, {new_axis_name} was asked for")
    return _applied(x, _Plan(None, (x.size,), _checked((axis_name(new_axis_name),)), range(1, x.ndim)))


def flatten(x: N, new_axis: AxisSelector) -> N:
    """Merges all axes into one: `ravel` by another name. Arguments as for `ravel`.

    Example:
        >>> import axonym as nym
        >>> nym.flatten(nym.zeros({"batch": 2, "embed": 3}), nym.Axis("element", 6)).shape
        (element: 6)
    """
    return ravel(x, new_axis)


def flatten_all_axes_but(
    x: N, axis_name: AxisSelector, axis: AxisSelection, reorder_to_front: bool = False
) -> tuple[N, Callable[[N], N]]:
    """Merges all axes but some into one, and returns what splits it again.

    Args:
        x: Array of any axes.
        axis_name: The axis that the others become, a name or an `Axis` of the product of their sizes.
        axis: The axes to keep.
        reorder_to_front: Whether the new axis comes first, rather than where the first of the merged ones stood. If
            there are none to merge, it has size 1 and comes first.

    Returns:
        The array, and a function that takes an array with the new axis and puts those merged in its place. An array
        that then has the axes of `x` gets their order.

    Raises:
        ValueError: If an axis to keep is not there, the size does not fit, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "pos": 3, "embed": 4})
        >>> flat, unflatten = nym.flatten_all_axes_but(x, "token", "embed")
        >>> flat.shape
        (token: 6, embed: 4)
        >>> unflatten(flat.sum("embed")).shape
        (batch: 2, pos: 3)
    """
    check_named(x)
    kept = find_axes(x.names, x.array.shape, axis)
    merged = tuple(one for dim, one in enumerate(x.axes) if dim not in kept)
    names = x.names
    flat = flatten_axes(x, merged, axis_name) if merged else expand(x, axis_name)
    if reorder_to_front:
        flat = rearrange(flat, (axis_name, ...))

    def unflatten(y: N) -> N:
        y = unflatten_axis(y, axis_name, merged)
        return rearrange(y, names) if set(y.names) == set(names) else y

    return flat, unflatten


def _applied(x: N, plan: _Plan) -> N:
    return with_array(x, cached_jit(_reshaped, plan)(x.array), plan.names)


def _reshaped(plan: _Plan, array: Any) -> Any:
    order, sizes, names, later, split = plan
    array = array if order is None else jnp.transpose(array, order)
    sharding = get_out_sharding(names, sizes)
    if sharding is None:  # nothing says how the new axes are divided, so that only their first part may be
        array = replicate_dims(array, later)
        if split is not None and split[1] % _parts(array, split[0]):
            array = replicate_dims(array, split[:1])
    return jax.lax.reshape(array, sizes, out_sharding=sharding)


def _parts(array: Any, dim: int) -> int:
    """Returns into how many parts Explicit mesh axes divide an array along a dimension."""
    sharding = jax.typeof(array).sharding
    entry = (*sharding.spec, *(None for _ in array.shape))[dim]
    return math.prod(sharding.mesh.shape[axis] for axis in get_entry_axes(entry))

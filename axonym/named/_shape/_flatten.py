"""Merging axes into one axis, and splitting an axis into several."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._ambient import get_out_sharding
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
    get_names_and_sizes,
    intern_names,
    make_hashable_selection,
    parse_axes,
)
from .._axis_layout import read_layout
from .._base import N, check_named, with_array
from .._broadcasting import jit_inline
from .._cache import cached_plan
from .._format import format_axes
from .._operation import name_dims, run_operation
from ._rearrange import rearrange


def flatten_axes(x: N, old_axes: AxisSelection, new_axis: AxisSelector) -> N:
    """Merges axes into one, the first given varying slowest.

    Args:
        x: Array of any axes.
        old_axes: The axes to merge, in order.
        new_axis: The merged axis, a name or an `Axis` of the product of their sizes.

    Returns:
        Array with the new axis at the position of the first old axis; in front, with size 1, if there is no old axis.

    Raises:
        ValueError: If an axis is missing, or the sizes do not fit.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "heads": 3, "head_dim": 4})
        >>> nym.flatten_axes(x, ("heads", "head_dim"), "embed").shape
        (batch: 2, embed: 12)
    """
    check_named(x)
    axis_name(new_axis)  # others may not be hashable
    call, names = _plan_flatten(x.names, x.array.shape, make_hashable_selection(old_axes, x.names), new_axis)
    return with_array(x, call(x.array), names)


@cached_plan
def _plan_flatten(
    names: Names, sizes: tuple[int, ...], old_axes: AxisSelection | None, new_axis: AxisSelector
) -> tuple[Callable[..., Any], Names]:
    merged = find_axes(names, sizes, old_axes)
    rest = [at for at in range(len(names)) if at not in merged]
    first = sum(at < min(merged, default=0) for at in rest)
    order = (*rest[:first], *merged, *rest[first:])
    size = math.prod(sizes[at] for at in merged)
    if isinstance(new_axis, Axis) and new_axis.size != size:
        moved = format_axes([names[at] for at in order], [sizes[at] for at in order])
        raise ValueError(
            f"axes {format_axes([names[at] for at in merged])} of {moved} have {size} elements, not {new_axis.size}"
        )
    transpose = order if order != tuple(range(len(names))) else None
    left, right = rest[:first], rest[first:]
    new_names = (*(names[at] for at in left), axis_name(new_axis), *(names[at] for at in right))
    new_sizes = (*(sizes[at] for at in left), size, *(sizes[at] for at in right))
    return _plan_reshape(new_names, new_sizes, order=transpose, replicated=range(first + 1, first + len(merged)))


def unflatten_axis(x: N, axis: AxisSelector, new_axes: AxisSpec) -> N:
    """Splits an axis into several, the first varying slowest.

    Args:
        x: Array of any axes.
        axis: The axis to split.
        new_axes: The new axes; the product of their sizes must be the size of `axis`.

    Returns:
        Array with the new axes at the position of the old axis.

    Raises:
        ValueError: If the axis is missing, the sizes do not fit, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "embed": 12})
        >>> nym.unflatten_axis(x, "embed", {"heads": 3, "head_dim": 4}).shape
        (batch: 2, heads: 3, head_dim: 4)
    """
    check_named(x)
    axis_name(axis)  # others may not be hashable
    call, names = _plan_unflatten(x.names, x.array.shape, axis, parse_axes(new_axes))
    return with_array(x, call(x.array), names)


@cached_plan
def _plan_unflatten(
    names: Names, sizes: tuple[int, ...], axis: AxisSelector, new_axes: tuple[Axis, ...]
) -> tuple[Callable[..., Any], Names]:
    index, (new, parts) = find_axis(names, sizes, axis), get_names_and_sizes(new_axes)
    if math.prod(parts) != sizes[index]:
        raise ValueError(
            f"axis {names[index]!r} of {format_axes(names, sizes)} has {sizes[index]} elements, "
            f"{format_axes(new, parts)} have {math.prod(parts)}"
        )
    new_names = (*names[:index], *new, *names[index + 1 :])
    new_sizes = (*sizes[:index], *parts, *sizes[index + 1 :])
    return _plan_reshape(new_names, new_sizes, split=(index, next((size for size in parts if size > 1), 1)))


def ravel(x: N, new_axis_name: AxisSelector) -> N:
    """Merges all axes into one, the first varying slowest; see `jax.numpy.ravel`.

    Args:
        x: Array of any axes.
        new_axis_name: The merged axis, a name or an `Axis` of the number of elements.

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
    return flatten_axes(x, x.names, new_axis_name)


def flatten(x: N, new_axis: AxisSelector) -> N:
    """Merges all axes into one, as `ravel` does, with the same arguments.

    Example:
        >>> import axonym as nym
        >>> nym.flatten(nym.zeros({"batch": 2, "embed": 3}), nym.Axis("element", 6)).shape
        (element: 6)
    """
    return ravel(x, new_axis)


def flatten_all_axes_but(
    x: N, axis_name: AxisSelector, axis: AxisSelection, reorder_to_front: bool = False
) -> tuple[N, Callable[[N], N]]:
    """Merges all other axes into one, and returns a function that splits it again.

    Args:
        x: Array of any axes.
        axis_name: The merged axis, a name or an `Axis` of the product of the sizes.
        axis: The axes to keep.
        reorder_to_front: Whether the new axis comes first, rather than at the position of the first merged axis. With
            no axes to merge, it has size 1 and comes first.

    Returns:
        The array, and a function that splits the new axis of an array into the merged axes. If the result has the
        axes of `x`, it gets their order.

    Raises:
        ValueError: If an axis to keep is missing, the size does not fit, or a name would occur twice.

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
    flat = flatten_axes(x, merged, axis_name)
    if reorder_to_front:
        flat = rearrange(flat, (axis_name, ...))

    def unflatten(y: N) -> N:
        y = unflatten_axis(y, axis_name, merged)
        return rearrange(y, names) if set(y.names) == set(names) else y

    return flat, unflatten


def _plan_reshape(
    names: Names,
    sizes: tuple[int, ...],
    order: tuple[int, ...] | None = None,
    replicated: range = range(0),
    split: tuple[int, int] | None = None,
) -> tuple[Callable[..., Any], Names]:
    """Returns a compiled reshape, and its checked names.

    The axes are transposed to `order` first. Axes `replicated` are merged into the axis before them; `split` is an axis
    that is split, and the size of its first part.
    """
    check_unique_names(names)
    names = intern_names(names)
    return jit_inline(functools.partial(_compute_reshape, names, sizes, order, replicated, split)), names


def _compute_reshape(
    names: Names,
    sizes: tuple[int, ...],
    order: tuple[int, ...] | None,
    replicated: range,
    split: tuple[int, int] | None,
    array: Any,
) -> Any:
    array = array if order is None else jnp.transpose(array, order)
    sharding = get_out_sharding(names, sizes)
    reshape = functools.partial(jax.lax.reshape, new_sizes=sizes, out_sharding=sharding)
    if sharding is not None:
        return reshape(array)
    # Without a sharding for the new axes, only the first part of each may be sharded.
    positions = name_dims(array)
    whole = {positions[dim] for dim in replicated}
    if split is not None and split[1] % read_layout(positions, array).count_shards((positions[split[0]],)):
        whole.add(positions[split[0]])
    return run_operation(reshape, [positions], None, array, whole=whole)

"""Merging axes into one axis, and splitting an axis into several."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..._ground.caches import cached_plan, jit_inline
from ..._ground.formats import format_axes
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
from .._operation import name_dims, run_operation
from .._sharding import get_out_sharding
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
    axis_name(new_axis)  # raises an error for anything else, which may not be hashable
    call, names = _plan_flatten(x.names, x.array.shape, make_hashable_selection(old_axes, x.names), new_axis)
    return with_array(x, call(x.array), names)


@cached_plan
def _plan_flatten(
    names: Names, sizes: tuple[int, ...], old_axes: AxisSelection | None, new_axis: AxisSelector
) -> tuple[Callable[..., Any], Names]:
    merged = find_axes(names, sizes, old_axes)
    position = min(merged, default=0)  # of the new axis
    dims_before = range(position)
    dims_after = [dim for dim in range(position, len(names)) if dim not in merged]
    order = (*dims_before, *merged, *dims_after)
    size = math.prod(sizes[dim] for dim in merged)
    if isinstance(new_axis, Axis) and new_axis.size != size:
        transposed = format_axes([names[dim] for dim in order], [sizes[dim] for dim in order])
        raise ValueError(
            f"axes {format_axes([names[dim] for dim in merged])} of {transposed} have {size} elements, not "
            f"{new_axis.size}"
        )
    return _plan_reshape(
        (*(names[dim] for dim in dims_before), axis_name(new_axis), *(names[dim] for dim in dims_after)),
        (*(sizes[dim] for dim in dims_before), size, *(sizes[dim] for dim in dims_after)),
        order=order if order != tuple(range(len(names))) else None,
        replicated=range(position + 1, position + len(merged)),
    )


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
    axis_name(axis)  # raises an error for anything else, which may not be hashable
    call, names = _plan_unflatten(x.names, x.array.shape, axis, parse_axes(new_axes))
    return with_array(x, call(x.array), names)


@cached_plan
def _plan_unflatten(
    names: Names, sizes: tuple[int, ...], axis: AxisSelector, new_axes: tuple[Axis, ...]
) -> tuple[Callable[..., Any], Names]:
    dim = find_axis(names, sizes, axis)
    part_names, part_sizes = get_names_and_sizes(new_axes)
    if math.prod(part_sizes) != sizes[dim]:
        raise ValueError(
            f"axis {names[dim]!r} of {format_axes(names, sizes)} has {sizes[dim]} elements, "
            f"{format_axes(part_names, part_sizes)} have {math.prod(part_sizes)}"
        )
    return _plan_reshape(
        (*names[:dim], *part_names, *names[dim + 1 :]),
        (*sizes[:dim], *part_sizes, *sizes[dim + 1 :]),
        # Parts of size 1 do not matter for how the elements are divided among the devices.
        split=(dim, next((size for size in part_sizes if size > 1), 1)),
    )


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
    unmerged_dims = find_axes(x.names, x.array.shape, axis)
    merged = tuple(axis for dim, axis in enumerate(x.axes) if dim not in unmerged_dims)
    names = x.names  # so that `unflatten` does not hold the array
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

    The axes are transposed to `order` first. Axes in `replicated` are merged into the axis before them. `split` is the
    position of an axis that is split, and the size of its first part that is larger than 1.
    """
    check_unique_names(names)

    def reshape(array: Any) -> Any:
        if order is not None:
            array = jnp.transpose(array, order)
        sharding = get_out_sharding(names, sizes)
        reshape_array = functools.partial(jax.lax.reshape, new_sizes=sizes, out_sharding=sharding)
        if sharding is not None:
            return reshape_array(array)
        # JAX then infers the sharding. It can where only the first axis of those merged is sharded, and where the first
        # part of an axis that is split is divisible by the number of its shards.
        dim_names = name_dims(array)
        whole = {dim_names[dim] for dim in replicated}
        if split is not None:
            split_dim, first_size = split
            if first_size % read_layout(dim_names, array).count_shards((dim_names[split_dim],)):
                whole.add(dim_names[split_dim])
        return run_operation(reshape_array, [dim_names], None, array, whole=whole)

    return jit_inline(reshape), intern_names(names)

"""Operations that add, remove, rename and order axes."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..._ground.caches import cached_jit
from ..._ground.errors import make_error
from ..._ground.formats import format_axes, format_value
from .._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    Names,
    axis_name,
    check_matching_sizes,
    check_unique_names,
    find_axes,
    find_axis,
    get_names_and_sizes,
    intern_names,
    parse_axes,
    parse_selection,
)
from .._base import N, NamedBase, check_named, format_shape, with_array
from .._broadcasting import align_axes, broadcast_names, check_scalar
from .._operation import run_operation
from .._sharding import get_out_sharding, reshard_by_name


def broadcast_to(x: N, axes: AxisSpec, ensure_order: bool = True, enforce_no_extra_axes: bool = True) -> N:
    """Repeats the values along the axes that `x` lacks.

    Args:
        x: Array of any axes.
        axes: All axes of the result, in order; those of `x` must be among them.
        ensure_order: Whether the axes come in that order. If not, the axes that `x` lacks come first, followed by its
            own in their order, which moves no data.
        enforce_no_extra_axes: Whether other axes of `x` are an error. If not, they come last.

    Returns:
        Array with the axes given.

    Raises:
        ValueError: If an axis of `x` is not among them or has another size.

    Example:
        >>> import axonym as nym
        >>> Batch, Embed = nym.make_axes(batch=2, embed=3)
        >>> nym.broadcast_to(nym.ones(Embed), (Embed, Batch)).shape
        (embed: 3, batch: 2)
    """
    check_named(x)
    target_axes = parse_axes(axes)
    names, sizes = get_names_and_sizes(target_axes)
    check_matching_sizes((x.names, x.array.shape), (names, sizes))
    extra = [axis for axis in x.axes if axis.name not in names]
    if extra and enforce_no_extra_axes:
        lacking = format_axes([axis.name for axis in extra])
        raise ValueError(f"{format_shape(x)} cannot be broadcast to {format_axes(names, sizes)}, which lacks {lacking}")
    if ensure_order:
        result_axes = (*target_axes, *extra)
    else:
        result_axes = (*(axis for axis in target_axes if axis.name not in x.names), *x.axes)  # with the extra ones
    names, sizes = get_names_and_sizes(result_axes)
    if names == x.names:
        return x
    return with_array(x, cached_jit(_compute_broadcast, x.names, names, sizes)(x.array), intern_names(names))


def _compute_broadcast(array_names: Names, names: Names, sizes: tuple[int, ...], array: Any) -> Any:
    aligned = align_axes(reshard_by_name(array, array_names), array_names, names)
    return jnp.broadcast_to(aligned, sizes, out_sharding=get_out_sharding(names, sizes))


def broadcast_axis(x: N, axes: AxisSpec) -> N:
    """Adds the axes that `x` lacks as leading axes, by repeating its values along them.

    Args:
        x: Array of any axes.
        axes: Axes of the result, of the same size as in `x` if it has them.

    Returns:
        Array with the missing axes in the order given, followed by the axes of `x`.

    Raises:
        ValueError: If an axis of `x` has another size.

    Example:
        >>> import axonym as nym
        >>> nym.broadcast_axis(nym.ones({"embed": 3}), nym.Axis("batch", 2)).shape
        (batch: 2, embed: 3)
    """
    return broadcast_to(x, axes, ensure_order=False, enforce_no_extra_axes=False)


def broadcast_arrays(*arrays: Any, require_subset: bool = True, ensure_order: bool = True) -> tuple[Any, ...]:
    """Broadcasts arrays to the same axes; see `jax.numpy.broadcast_arrays`.

    Args:
        *arrays: Named arrays; scalars and None may be among them and stay as they are.
        require_subset: Whether one array must have the axes of all the others. If not, the result has the axes of the
            first array, followed by the axes that each further array adds.
        ensure_order: Whether all results have their axes in the order of the array with most axes. If not, each keeps
            its own order, after the axes that it lacked.

    Returns:
        As many arrays as were given.

    Raises:
        ValueError: If a name has two sizes, or no array has the axes of all the others.
        TypeError: If there is a plain array with axes, which has no names.

    Example:
        >>> import axonym as nym
        >>> x, y = nym.broadcast_arrays(nym.zeros({"embed": 3}), nym.zeros({"batch": 2, "embed": 3}))
        >>> x.shape
        (batch: 2, embed: 3)
    """
    return broadcast_arrays_and_return_axes(*arrays, require_subset=require_subset, ensure_order=ensure_order)[0]


def broadcast_arrays_and_return_axes(
    *arrays: Any, require_subset: bool = True, ensure_order: bool = True
) -> tuple[tuple[Any, ...], tuple[Axis, ...]]:
    """Broadcasts arrays to the same axes, and returns these axes too.

    Arguments as for `broadcast_arrays`.

    Returns:
        The arrays, and the axes in their common order.

    Example:
        >>> import axonym as nym
        >>> arrays = nym.zeros({"embed": 3}), nym.zeros({"batch": 2, "embed": 3})
        >>> nym.broadcast_arrays_and_return_axes(*arrays)[1]
        (Axis(name='batch', size=2), Axis(name='embed', size=3))
    """
    operands = [(x.names, tuple(x.array.shape)) for x in arrays if isinstance(x, NamedBase)]
    for x in arrays:
        if not isinstance(x, NamedBase) and x is not None:
            check_scalar(x)
    check_matching_sizes(*operands)
    sizes = {name: size for operand in operands for name, size in zip(*operand, strict=True)}
    names = broadcast_names(*operands) if require_subset and operands else tuple(sizes)
    axes = tuple(Axis(name, sizes[name]) for name in names)
    results = tuple(broadcast_to(x, axes, ensure_order) if isinstance(x, NamedBase) else x for x in arrays)
    return results, axes


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
    return with_array(x, cached_jit(_compute_squeeze, x.names, dims)(x.array), intern_names(names))


def _compute_squeeze(names: Names, dims: tuple[int, ...], array: Any) -> Any:
    whole = tuple(names[dim] for dim in dims)
    return run_operation(functools.partial(jax.lax.squeeze, dimensions=dims), [names], None, array, whole=whole)


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
    new_axes = parse_selection(axes)
    for axis in new_axes:
        if isinstance(axis, Axis) and axis.size != 1:
            raise ValueError(
                f"axis {axis.name!r} has size {axis.size}, `expand` adds axes of size 1; use `broadcast_axis` to "
                "repeat the values along it"
            )
    if not new_axes:
        return x
    names = (*map(axis_name, new_axes), *x.names)
    check_unique_names(names)
    return with_array(x, cached_jit(_compute_expand, len(new_axes))(x.array), intern_names(names))


def _compute_expand(count: int, array: Any) -> Any:
    return jnp.expand_dims(array, tuple(range(count)))


def rename(x: N, renames: Mapping[Any, AxisSelector]) -> N:
    """Renames axes; no data moves.

    Args:
        x: Array of any axes.
        renames: New axis for old axis, each a name or an `Axis` of the size in `x`.

    Returns:
        Array with the same axes in the same order under the new names.

    Raises:
        ValueError: If an axis is missing, has another size, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> nym.rename(nym.zeros({"pos": 4, "embed": 2}), {"pos": "key_pos"}).shape
        (key_pos: 4, embed: 2)
    """
    check_named(x)
    if not hasattr(renames, "items"):
        raise make_error(
            TypeError,
            "`rename` takes a mapping from old to new names, such as {'pos': 'key_pos'}, not "
            f"{format_value(renames)}.",
        )
    names = list(x.names)
    for old_axis, new_axis in renames.items():
        dim = find_axis(x.names, x.array.shape, old_axis)
        if isinstance(new_axis, Axis) and new_axis.size != x.array.shape[dim]:
            raise make_error(
                ValueError,
                f"axis {x.names[dim]!r} has size {x.array.shape[dim]}, it cannot become "
                f"{format_axes([new_axis.name], [new_axis.size])}",
            )
        names[dim] = axis_name(new_axis)
    check_unique_names(tuple(names))
    return with_array(x, x.array, intern_names(tuple(names)))

"""Operations that change which axes an array has: renaming, reordering, merging, splitting, joining and repeating."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ._align import check_sizes, lined_up
from ._ambient import out_sharding, resharded, undivided
from ._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    Names,
    PartialAxisSpec,
    axis_name,
    check_unique,
    intern_names,
    listed,
    ordered,
    position,
    positions,
    shown,
    sized_axis,
    spec_axes,
)
from ._base import N, check_named, described, like
from ._plan import planned


def rename(x: N, renames: Mapping[Any, AxisSelector]) -> N:
    """Gives axes other names; no data moves.

    Args:
        x: Array of any axes.
        renames: New axis for old axis, each a name or an `Axis` of the size found.

    Returns:
        Array with the same axes in the same order under the new names.

    Raises:
        ValueError: If an axis is not there, has another size, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> nym.rename(nym.zeros({"pos": 4, "embed": 2}), {"pos": "key_pos"}).shape
        (key_pos: 4, embed: 2)
    """
    check_named(x)
    names = list(x.names)
    for old, new in renames.items():
        index = position(x.names, x.array.shape, old)
        if isinstance(new, Axis) and new.size != x.array.shape[index]:
            raise ValueError(
                f"axis {x.names[index]!r} has size {x.array.shape[index]}, it cannot become "
                f"{listed([new.name], [new.size])}"
            )
        names[index] = axis_name(new)
    check_unique(tuple(names))
    return like(x, x.array, intern_names(tuple(names)))


def rearrange(x: N, order: PartialAxisSpec) -> N:
    """Puts the axes into another order.

    Args:
        x: Array of any axes.
        order: The axes in their new order; `...` stands for those not named, in the order they have now.

    Returns:
        Array with the same axes in the new order; `x` itself if it has that order.

    Raises:
        TypeError: If the order is no sequence.
        ValueError: If an axis is unknown, given twice, or left out without `...`.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "pos": 3, "embed": 4})
        >>> nym.rearrange(x, ("embed", ..., "batch")).shape
        (embed: 4, pos: 3, batch: 2)
    """
    check_named(x)
    if isinstance(order, str | Axis) or not isinstance(order, Iterable):
        raise TypeError(f"`rearrange` takes a sequence of axes, such as ('batch', ...), not {shown(order)}.")
    dims, names = _new_order(x.names, x.array.shape, tuple(order))
    return x if names == x.names else like(x, planned(_transpose, dims)(x.array), names)


@functools.lru_cache(maxsize=8192)
def _new_order(names: Names, sizes: tuple[int, ...], order: tuple[Any, ...]) -> tuple[tuple[int, ...], Names]:
    result = ordered(names, sizes, order)
    return tuple(map(names.index, result)), intern_names(result)


def _transpose(order: tuple[int, ...], array: Any) -> Any:
    return jnp.transpose(array, order)


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
    merged = tuple(x.names[i] for i in positions(x.names, x.array.shape, old_axes))
    if not merged:
        raise ValueError(f"no axes of {described(x)} to merge into {axis_name(new_axis)!r} were given")
    first = min(x.names.index(name) for name in merged)
    rest = tuple(name for name in x.names if name not in merged)
    before = tuple(name for name in x.names[:first] if name in rest)
    x = rearrange(x, (*before, *merged, *(name for name in rest if name not in before)))
    size = math.prod(x.axis_size(name) for name in merged)
    if isinstance(new_axis, Axis) and new_axis.size != size:
        raise ValueError(f"axes {listed(merged)} of {described(x)} have {size} elements, not {new_axis.size}")
    sizes = (*x.array.shape[: len(before)], size, *x.array.shape[len(before) + len(merged) :])
    return _reshape(x, sizes, (*before, axis_name(new_axis), *x.names[len(before) + len(merged) :]))


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
    index, new = position(x.names, x.array.shape, axis), spec_axes(new_axes)
    sizes = tuple(one.size for one in new)
    if math.prod(sizes) != x.array.shape[index]:
        raise ValueError(
            f"axis {x.names[index]!r} of {described(x)} has {x.array.shape[index]} elements, "
            f"{listed([one.name for one in new], sizes)} have {math.prod(sizes)}"
        )
    names = (*x.names[:index], *(one.name for one in new), *x.names[index + 1 :])
    return _reshape(x, (*x.array.shape[:index], *sizes, *x.array.shape[index + 1 :]), names)


def _reshape(x: N, sizes: tuple[int, ...], names: Names) -> N:
    check_unique(names)
    return like(x, planned(_reshaped, sizes, intern_names(names))(x.array), intern_names(names))


def _reshaped(sizes: tuple[int, ...], names: Names, array: Any) -> Any:
    return jax.lax.reshape(array, sizes, out_sharding=out_sharding(names, sizes))


def broadcast_to(x: N, axes: AxisSpec) -> N:
    """Repeats the values along the axes that `x` lacks.

    Args:
        x: Array of any axes.
        axes: All axes of the result, in order; those of `x` must be among them.

    Returns:
        Array with just the axes given.

    Raises:
        ValueError: If an axis of `x` is not among them or has another size.

    Example:
        >>> import axonym as nym
        >>> Batch, Embed = nym.make_axes(batch=2, embed=3)
        >>> nym.broadcast_to(nym.ones(Embed), (Embed, Batch)).shape
        (embed: 3, batch: 2)
    """
    check_named(x)
    wanted = spec_axes(axes)
    names, sizes = tuple(axis.name for axis in wanted), tuple(axis.size for axis in wanted)
    check_sizes((x.names, x.array.shape), (names, sizes))
    if extra := [name for name in x.names if name not in names]:
        raise ValueError(f"{described(x)} cannot be broadcast to {listed(names, sizes)}, which lacks {listed(extra)}")
    if names == x.names:
        return x
    return like(x, planned(_repeated, x.names, names, sizes)(x.array), intern_names(names))


def _repeated(own: Names, names: Names, sizes: tuple[int, ...], array: Any) -> Any:
    return jnp.broadcast_to(lined_up(array, own, names), sizes, out_sharding=out_sharding(names, sizes))


def broadcast_axis(x: N, axes: AxisSpec) -> N:
    """Adds the axes that `x` lacks, in front, by repeating its values along them.

    Args:
        x: Array of any axes.
        axes: The axes that the result must have; those of `x` must have the size found there.

    Returns:
        Array with the missing axes in the order given, followed by those of `x`.

    Raises:
        ValueError: If an axis of `x` has another size.

    Example:
        >>> import axonym as nym
        >>> nym.broadcast_axis(nym.ones({"embed": 3}), nym.Axis("batch", 2)).shape
        (batch: 2, embed: 3)
    """
    check_named(x)
    wanted = spec_axes(axes)
    check_sizes((x.names, x.array.shape), (tuple(one.name for one in wanted), tuple(one.size for one in wanted)))
    return broadcast_to(x, (*(one for one in wanted if one.name not in x.names), *x.axes))


def stack(axis: AxisSelector, arrays: Sequence[N]) -> N:
    """Joins arrays of the same axes along a new axis, which comes first.

    Args:
        axis: The new axis, a name or an `Axis` whose size is the number of arrays.
        arrays: At least one array; all have the same axes, in any order.

    Returns:
        Array with the new axis followed by those of the first array.

    Raises:
        TypeError: If one of them is not a named array.
        ValueError: If there is no array, the number does not fit, or the axes differ.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 3))
        >>> nym.stack("copy", [x, -x]).shape
        (copy: 2, i: 3)
    """
    rows, name = _rows("stack", axis, arrays, None), axis_name(axis)
    first = rows[0]
    if isinstance(axis, Axis) and axis.size != len(rows):
        raise ValueError(f"axis {name!r} has size {axis.size}, {len(rows)} arrays were given to `stack`")
    check_unique((name, *first.names))
    names = intern_names((name, *first.names))
    return like(first, planned(_stacked, names)(*(row.array for row in rows)), names)


def _stacked(names: Names, *arrays: Any) -> Any:
    return resharded(jnp.stack([resharded(array, names[1:]) for array in arrays]), names)


def concatenate(axis: AxisSelector, arrays: Sequence[N]) -> N:
    """Joins arrays end to end along an axis that all of them have.

    Args:
        axis: The axis, a name or an `Axis` of the size of the result.
        arrays: At least one array; all have the same axes, in any order, and the same sizes but along `axis`.

    Returns:
        Array with the axes of the first array in its order.

    Raises:
        TypeError: If one of them is not a named array.
        ValueError: If there is no array, an axis is missing, or sizes do not fit.

    Example:
        >>> import axonym as nym
        >>> nym.concatenate("i", [nym.zeros({"i": 2}), nym.ones({"i": 3})]).shape
        (i: 5)
    """
    rows = _rows("concatenate", axis, arrays, axis_name(axis))
    first = rows[0]
    index = position(first.names, first.array.shape, axis_name(axis))
    size = sum(row.array.shape[index] for row in rows)
    if isinstance(axis, Axis) and axis.size != size:
        raise ValueError(f"axis {axis.name!r} has size {axis.size}, the arrays given to `concatenate` have {size}")
    return like(first, planned(_concatenated, first.names, index)(*(row.array for row in rows)))


def _concatenated(names: Names, index: int, *arrays: Any) -> Any:
    rest = (*names[:index], "", *names[index + 1 :])  # pieces may not be divided along the axis that grows
    return resharded(jnp.concatenate([resharded(array, rest) for array in arrays], axis=index), names)


def _rows(function: str, axis: AxisSelector, arrays: Iterable[N], but: str | None) -> list[N]:
    """Returns the arrays with their axes in one order, checked to be the same ones of the same sizes, but for one."""
    rows = list(arrays)
    if not rows:
        raise ValueError(f"`{function}` along {axis_name(axis)!r} needs at least one array")
    for x in rows:
        check_named(x)
    return [_same_axes(function, x, rows[0], but) for x in rows]


def _same_axes(function: str, x: N, first: N, but: str | None) -> N:
    if set(x.names) != set(first.names):
        raise ValueError(f"`{function}` takes arrays of the same axes, not {described(first)} and {described(x)}")
    x = rearrange(x, first.names)
    for name, size, wanted in zip(x.names, x.array.shape, first.array.shape, strict=True):
        if name != but and size != wanted:
            raise ValueError(
                f"axis {name!r} has size {wanted} and size {size} in {described(first)} and {described(x)}"
            )
    return x


def unbind(x: N, axis: AxisSelector) -> tuple[N, ...]:
    """Takes an array apart along an axis.

    Args:
        x: Array of any axes.
        axis: The axis to take apart.

    Returns:
        As many arrays as the axis has elements, each with the other axes of `x`.

    Raises:
        ValueError: If the axis is not there or has another size.

    Example:
        >>> import axonym as nym
        >>> q, k = nym.unbind(nym.zeros({"qk": 2, "embed": 3}), "qk")
        >>> q.shape
        (embed: 3)
    """
    check_named(x)
    index = position(x.names, x.array.shape, axis)
    names = x.names[:index] + x.names[index + 1 :]
    pieces = planned(_pieces, index)(x.array)
    return tuple(like(x, piece, intern_names(names)) for piece in pieces)


def _pieces(index: int, array: Any) -> tuple[Any, ...]:
    array = undivided(array, (index,))
    return tuple(
        jax.lax.squeeze(jax.lax.slice_in_dim(array, i, i + 1, axis=index), (index,)) for i in range(array.shape[index])
    )


def split(x: N, axis: AxisSelector, new_axes: Sequence[Axis]) -> tuple[N, ...]:
    """Cuts an array into consecutive pieces along an axis.

    Args:
        x: Array of any axes.
        axis: The axis to cut.
        new_axes: The axis of each piece, whose sizes add up to that of `axis`.

    Returns:
        One array for each new axis, which stands where the old one stood.

    Raises:
        TypeError: If a new axis has no size.
        ValueError: If the axis is not there, the sizes do not add up, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 5))
        >>> head, tail = nym.split(x, "i", nym.make_axes(head=2, tail=3))
        >>> tail.array
        Array([2, 3, 4], dtype=int32)
    """
    check_named(x)
    index, pieces = position(x.names, x.array.shape, axis), tuple(map(sized_axis, new_axes))
    sizes = tuple(one.size for one in pieces)
    if sum(sizes) != x.array.shape[index]:
        raise ValueError(f"axis {x.names[index]!r} of {described(x)} cannot be cut into pieces of {sizes} elements")
    names = tuple(intern_names((*x.names[:index], one.name, *x.names[index + 1 :])) for one in pieces)
    for own in names:
        check_unique(own)
    arrays = planned(_cut, index, sizes, names)(x.array)
    return tuple(like(x, array, own) for array, own in zip(arrays, names, strict=True))


def _cut(index: int, sizes: tuple[int, ...], names: tuple[Names, ...], array: Any) -> tuple[Any, ...]:
    pieces = jax.lax.split(undivided(array, (index,)), sizes, axis=index)
    return tuple(resharded(piece, own) for piece, own in zip(pieces, names, strict=True))

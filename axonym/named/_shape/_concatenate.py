"""Joining, splitting and repeating arrays along an axis."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._ambient import reshard_by_name
from .._arguments import check_integer
from .._axis import (
    Axis,
    AxisSelector,
    Names,
    axis_name,
    check_rank,
    check_unique_names,
    find_axes,
    find_axis,
    intern_names,
    make_missing_axis_error,
    parse_one_axis,
)
from .._base import N, NamedBase, check_named, format_shape, is_traced, with_array
from .._broadcasting import align_axes, apply_to_whole_axes, cached_jit, jit_inline
from .._cache import cached_plan
from .._format import format_axes, format_value
from .._operation import run_operation
from .._traceback import strip_library_frames


_Operand: TypeAlias = tuple[Names, tuple[int, ...]]


def stack(axis: AxisSelector, arrays: Iterable[N]) -> N:
    """Joins arrays of the same axes along a new axis, which comes first.

    Args:
        axis: The new axis, a name or an `Axis` whose size is the number of arrays.
        arrays: At least one array; all have the same axes, in any order.

    Returns:
        Array with the new axis followed by those of the first array.

    Raises:
        TypeError: If one of them is not a named array.
        ValueError: If no array is given, an `Axis` has another size, or the axes differ.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 3))
        >>> nym.stack("copy", [x, -x]).shape
        (copy: 2, i: 3)
    """
    return _join_arrays("stack", _plan_stack, axis, arrays)


@cached_plan
def _plan_stack(axis: AxisSelector, operands: tuple[_Operand, ...]) -> tuple[Callable[..., Any], Names]:
    name = axis_name(axis)
    first = _check_same_axes("stack", name, operands, None)
    if isinstance(axis, Axis) and axis.size != len(operands):
        raise strip_library_frames(
            ValueError(f"axis {name!r} has size {axis.size}, {len(operands)} arrays were given to `stack`")
        )
    check_unique_names((name, *first))
    names = intern_names((name, *first))
    own_names = tuple(own for own, _ in operands)
    return jit_inline(functools.partial(_compute_stack, names, own_names)), names


def _compute_stack(names: Names, operands: tuple[Names, ...], *arrays: Any) -> Any:
    def stack_rows(*arrays: Any) -> Any:
        rows = [align_axes(array, row_names, names[1:]) for array, row_names in zip(arrays, operands, strict=True)]
        return jnp.stack([reshard_by_name(row, names[1:]) for row in rows])

    return run_operation(stack_rows, operands, names, *arrays)


def concatenate(axis: AxisSelector, arrays: Iterable[N]) -> N:
    """Joins arrays end to end along an axis that all of them have.

    Args:
        axis: The axis, a name or an `Axis` of the size of the result.
        arrays: At least one array; all have the same axes, in any order, and the same sizes except along `axis`.

    Returns:
        Array with the axes of the first array, in its order.

    Raises:
        TypeError: If one of them is not a named array.
        ValueError: If no array is given, an axis is missing, or sizes do not fit.

    Example:
        >>> import axonym as nym
        >>> nym.concatenate("i", [nym.zeros({"i": 2}), nym.ones({"i": 3})]).shape
        (i: 5)
    """
    return _join_arrays("concatenate", _plan_concatenate, axis, arrays)


@cached_plan
def _plan_concatenate(axis: AxisSelector, operands: tuple[_Operand, ...]) -> tuple[Callable[..., Any], Names]:
    name = axis_name(axis)
    names = _check_same_axes("concatenate", name, operands, name)
    if name not in names:
        raise make_missing_axis_error(name, *operands[0])
    index = names.index(name)
    size = sum(sizes[own.index(name)] for own, sizes in operands)
    if isinstance(axis, Axis) and axis.size != size:
        raise strip_library_frames(
            ValueError(f"axis {name!r} has size {axis.size}, the arrays given to `concatenate` have {size}")
        )
    own_names = tuple(own for own, _ in operands)
    return jit_inline(functools.partial(_compute_concatenate, names, index, own_names)), names


def _compute_concatenate(names: Names, index: int, operands: tuple[Names, ...], *arrays: Any) -> Any:
    row_names = (*names[:index], "", *names[index + 1 :])

    def concatenate_rows(*arrays: Any) -> Any:
        rows = [align_axes(array, array_names, names) for array, array_names in zip(arrays, operands, strict=True)]
        return jnp.concatenate([reshard_by_name(row, row_names) for row in rows], axis=index)

    return run_operation(concatenate_rows, operands, names, *arrays)


def _join_arrays(function: str, plan: Callable[..., Any], axis: AxisSelector, arrays: Iterable[N]) -> N:
    if type(axis) is not str and not isinstance(axis, str | Axis):
        given = f"{format_value(axis)} and {format_value(arrays)}"
        raise strip_library_frames(
            TypeError(f"`{function}` takes an axis and a list of arrays, `{function}('pos', [x, y])`, not {given}.")
        )
    rows = list(arrays)
    for x in rows:
        check_named(x)
    call, names = plan(axis, tuple([(x.names, x.array.shape) for x in rows]))
    return with_array(rows[0], call(*[x.array for x in rows]), names)


def _check_same_axes(function: str, name: str, operands: tuple[_Operand, ...], but: str | None) -> Names:
    """Returns the names of the first array, which all must have, with the same sizes except along `but`."""
    if not operands:
        raise strip_library_frames(ValueError(f"`{function}` along {name!r} needs at least one array"))
    check_rank(*operands[0])
    first = dict(zip(*operands[0], strict=True))
    for operand in operands:
        check_rank(*operand)
        own = dict(zip(*operand, strict=True))
        if own.keys() != first.keys():
            shown = f"{format_axes(*operands[0])} and {format_axes(*operand)}"
            raise strip_library_frames(ValueError(f"`{function}` takes arrays of the same axes, not {shown}"))
        for key, size in first.items():
            if key != but and own[key] != size:
                moved = format_axes(tuple(first), [own[one] for one in first])
                raise strip_library_frames(
                    ValueError(
                        f"axis {key!r} has size {size} and size {own[key]} in {format_axes(*operands[0])} and {moved}"
                    )
                )
    return operands[0][0]


def unbind(x: N, axis: AxisSelector) -> tuple[N, ...]:
    """Splits an array into its slices along an axis.

    Args:
        x: Array of any axes.
        axis: The axis to remove.

    Returns:
        One array for each element of the axis, with the other axes of `x`.

    Raises:
        ValueError: If the axis is missing or has another size.

    Example:
        >>> import axonym as nym
        >>> q, k = nym.unbind(nym.zeros({"qk": 2, "embed": 3}), "qk")
        >>> q.shape
        (embed: 3)
    """
    check_named(x)
    index = find_axis(x.names, x.array.shape, axis)
    names = intern_names(x.names[:index] + x.names[index + 1 :])
    return tuple([with_array(x, piece, names) for piece in cached_jit(_compute_unbind, x.names, index)(x.array)])


def _compute_unbind(names: Names, index: int, array: Any) -> tuple[Any, ...]:
    def take_slices(array: Any) -> tuple[Any, ...]:
        return tuple(jax.lax.index_in_dim(array, i, index, keepdims=False) for i in range(array.shape[index]))

    return run_operation(take_slices, [names], None, array, whole=(names[index],))


def split(x: N, axis: AxisSelector, new_axes: Sequence[Axis]) -> tuple[N, ...]:
    """Splits an array into consecutive pieces along an axis.

    Args:
        x: Array of any axes.
        axis: The axis to split.
        new_axes: The axis of each piece, whose sizes add up to the size of `axis`.

    Returns:
        One array for each new axis, with that axis in place of the old one.

    Raises:
        TypeError: If a new axis has no size.
        ValueError: If the axis is missing, the sizes do not add up, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 5))
        >>> head, tail = nym.split(x, "i", nym.make_axes(head=2, tail=3))
        >>> tail.array
        Array([2, 3, 4], dtype=int32)
    """
    check_named(x)
    if not isinstance(new_axes, Iterable):
        raise TypeError(
            f"`split` takes the axes of the pieces, as in make_axes(head=2, tail=3), not {format_value(new_axes)}."
        )
    axis_name(axis)  # others may not be hashable
    pieces = tuple([one if isinstance(one, Axis) else parse_one_axis(one) for one in new_axes])
    call, names = _plan_split(x.names, x.array.shape, axis, pieces)
    return tuple([with_array(x, array, own) for array, own in zip(call(x.array), names, strict=True)])


@cached_plan
def _plan_split(
    names: Names, sizes: tuple[int, ...], axis: AxisSelector, pieces: tuple[Axis, ...]
) -> tuple[Callable[..., Any], tuple[Names, ...]]:
    """Returns the compiled split, and the names of each piece."""
    index, lengths = find_axis(names, sizes, axis), tuple(one.size for one in pieces)
    if sum(lengths) != sizes[index]:
        raise ValueError(
            f"axis {names[index]!r} of {format_axes(names, sizes)} cannot be split into pieces of {lengths} elements"
        )
    results = tuple(intern_names((*names[:index], one.name, *names[index + 1 :])) for one in pieces)
    for own in results:
        check_unique_names(own)

    def split_array(array: Any) -> tuple[Any, ...]:
        cut = functools.partial(jax.lax.split, sizes=lengths, axis=index)
        return run_operation(cut, [names], [*results], array, whole=(names[index],))

    return jit_inline(split_array), results


def repeat(x: N, repeats: Any, axis: AxisSelector, total_repeat_length: int | None = None) -> N:
    """Repeats each element along an axis; see `jax.numpy.repeat`.

    Args:
        x: Array of any axes.
        repeats: The number of repeats: one integer, or one for each element, as a named array with only that axis, a
            plain 1-D array or a list.
        axis: The axis, which keeps its name.
        total_repeat_length: The new size of the axis, needed if `repeats` is traced. Further elements are dropped, and
            missing ones filled with the last element.

    Returns:
        Array with the axes of `x`, one of them longer.

    Raises:
        ValueError: If the axis is missing, `repeats` has other axes or a negative number, or its sum is not known.
        TypeError: If `repeats` does not hold integers.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 3))
        >>> nym.repeat(x, 2, "i").array
        Array([0, 0, 1, 1, 2, 2], dtype=int32)
        >>> nym.repeat(x, [1, 0, 2], "i").array
        Array([0, 2, 2], dtype=int32)
    """
    check_named(x)
    dim = find_axis(x.names, x.array.shape, axis)
    counts = _parse_repeats(x, dim, repeats)
    total = None if total_repeat_length is None else check_integer("repeat: `total_repeat_length`", total_repeat_length)
    if isinstance(counts, int):
        return apply_to_whole_axes(_repeat_equally, x, (dim,), counts, total)
    if total is None:
        if is_traced(counts):
            raise ValueError(
                f"`repeats` for axis {x.names[dim]!r} of {format_shape(x)} is traced, so its new size is not known; "
                "give `total_repeat_length`"
            )
        total = int(np.sum(np.broadcast_to(counts, x.array.shape[dim])))
    return apply_to_whole_axes(_repeat_each, x, (dim,), total, args=(counts,))


def _parse_repeats(x: NamedBase, dim: int, repeats: Any) -> Any:
    """Returns the numbers of repeats, an integer or an array with one for each element, checked if known."""
    name, size = x.names[dim], x.array.shape[dim]
    counts = repeats.array if isinstance(repeats, NamedBase) else repeats
    counts = counts if isinstance(counts, jax.Array) else np.asarray(counts)
    if not jnp.issubdtype(counts.dtype, jnp.integer) and counts.size:
        raise TypeError(f"axis {name!r} of {format_shape(x)} is repeated by integers, not by {format_value(repeats)}")
    if isinstance(repeats, NamedBase) and repeats.names not in ((), (name,)):
        raise ValueError(f"`repeats` along {name!r} must have just that axis, it has {format_shape(repeats)}")
    if counts.shape not in ((), (size,)):
        raise ValueError(f"axis {name!r} of {format_shape(x)} has {size} elements, `repeats` has shape {counts.shape}")
    if is_traced(counts):
        return counts
    if counts.size and counts.min() < 0:
        raise ValueError(f"axis {name!r} of {format_shape(x)} cannot be repeated a negative number of times")
    return counts.astype(int) if counts.ndim else int(counts)


def _repeat_equally(array: Any, dims: tuple[int, ...], count: int, total: int | None) -> Any:
    return jnp.repeat(array, count, dims[0], total_repeat_length=total)


def _repeat_each(array: Any, dims: tuple[int, ...], total: int, counts: Any) -> Any:
    counts = jnp.broadcast_to(reshard_by_name(counts, ("",) * counts.ndim), (array.shape[dims[0]],))
    return jnp.repeat(array, counts, dims[0], total_repeat_length=total)


def tile(x: N, reps: Mapping[Any, int]) -> N:
    """Repeats the entire array along axes; see `jax.numpy.tile`.

    Args:
        x: Array of any axes.
        reps: The number of repeats for each axis, an `Axis` or its name; the other axes stay as they are.

    Returns:
        Array with the axes of `x`, some of them longer.

    Raises:
        TypeError: If `reps` is not a mapping, or a number not an integer.
        ValueError: If an axis is missing or given twice, or a number is negative.

    Example:
        >>> import axonym as nym
        >>> nym.tile(nym.arange(nym.Axis("i", 3)), {"i": 2}).array
        Array([0, 1, 2, 0, 1, 2], dtype=int32)
    """
    check_named(x)
    if not isinstance(reps, Mapping):
        raise TypeError(f"`tile` takes a mapping from axis to number, such as {{'pos': 2}}, not {format_value(reps)}.")
    dims = find_axes(x.names, x.array.shape, tuple(reps))
    counts = tuple([check_integer("tile: a number of repetitions", count) for count in reps.values()])
    if any(count < 0 for count in counts):
        negative = [x.names[dim] for dim, count in zip(dims, counts, strict=True) if count < 0]
        raise ValueError(
            f"axes {format_axes(negative)} of {format_shape(x)} cannot be repeated a negative number of times"
        )
    return apply_to_whole_axes(_compute_tile, x, dims, counts) if dims else x


def _compute_tile(array: Any, dims: tuple[int, ...], counts: tuple[int, ...]) -> Any:
    reps = dict(zip(dims, counts, strict=True))
    return jnp.tile(array, tuple(reps.get(dim, 1) for dim in range(array.ndim)))

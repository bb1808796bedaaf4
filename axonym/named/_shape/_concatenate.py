"""Joining, splitting and repeating arrays along an axis."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._ground.arguments import check_integer
from ..._ground.caches import cached_jit, cached_plan, jit_inline
from ..._ground.errors import make_error
from ..._ground.formats import format_axes, format_value
from ..._ground.jax_compat import is_traced
from .._axis import (
    Axis,
    AxisSelector,
    Names,
    Operand,
    axis_name,
    check_rank,
    check_unique_names,
    find_axes,
    find_axis,
    intern_names,
    make_missing_axis_error,
    parse_one_axis,
)
from .._base import N, NamedBase, check_named, format_shape, with_array
from .._broadcasting import align_axes, apply_to_whole_axes, widen_integers
from .._operation import replicate_axes, run_operation
from .._sharding import reshard_by_name
from .._wide_sums import widen_gradient


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
def _plan_stack(axis: AxisSelector, operands: tuple[Operand, ...]) -> tuple[Callable[..., Any], Names]:
    name = axis_name(axis)
    first_names = _check_same_axes("stack", name, operands, None)
    if isinstance(axis, Axis) and axis.size != len(operands):
        raise make_error(
            ValueError, f"axis {name!r} has size {axis.size}, {len(operands)} arrays were given to `stack`"
        )
    check_unique_names((name, *first_names))
    names = intern_names((name, *first_names))
    operand_names = [array_names for array_names, _ in operands]

    def stack_arrays(*arrays: Any) -> Any:
        return jnp.stack(_align_arrays(arrays, operand_names, first_names, first_names))

    return jit_inline(functools.partial(run_operation, stack_arrays, operand_names, names)), names


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
def _plan_concatenate(axis: AxisSelector, operands: tuple[Operand, ...]) -> tuple[Callable[..., Any], Names]:
    name = axis_name(axis)
    names = _check_same_axes("concatenate", name, operands, name)
    if name not in names:
        raise make_missing_axis_error(name, *operands[0])
    dim = names.index(name)
    size = sum(sizes[array_names.index(name)] for array_names, sizes in operands)
    if isinstance(axis, Axis) and axis.size != size:
        raise make_error(
            ValueError, f"axis {name!r} has size {axis.size}, the arrays given to `concatenate` have {size}"
        )
    operand_names = [array_names for array_names, _ in operands]
    # Not sharded along the axis: an array may have fewer elements there than the mesh axis has devices.
    sharded_names = (*names[:dim], "", *names[dim + 1 :])

    def concatenate_arrays(*arrays: Any) -> Any:
        return jnp.concatenate(_align_arrays(arrays, operand_names, names, sharded_names), axis=dim)

    return jit_inline(functools.partial(run_operation, concatenate_arrays, operand_names, names)), names


def _align_arrays(
    arrays: Sequence[Any], operand_names: Sequence[Names], names: Names, sharded_names: Names
) -> list[Any]:
    """Returns arrays to join with their axes in the same order and sharded alike."""
    aligned = [align_axes(array, array_names, names) for array, array_names in zip(arrays, operand_names, strict=True)]
    return [reshard_by_name(array, sharded_names) for array in aligned]


def _join_arrays(function: str, plan: Callable[..., Any], axis: AxisSelector, arrays: Iterable[N]) -> N:
    if type(axis) is not str and not isinstance(axis, str | Axis):
        raise make_error(
            TypeError,
            f"`{function}` takes an axis and a list of arrays, `{function}('pos', [x, y])`, not "
            f"{format_value(axis)} and {format_value(arrays)}.",
        )
    operands = list(arrays)
    for x in operands:
        check_named(x)
    call, names = plan(axis, tuple([(x.names, x.array.shape) for x in operands]))
    return with_array(operands[0], call(*[x.array for x in operands]), names)


def _check_same_axes(function: str, name: str, operands: tuple[Operand, ...], joined_axis: str | None) -> Names:
    """Returns the names of the first array, which all must have, with the same sizes except along `joined_axis`."""
    if not operands:
        raise make_error(ValueError, f"`{function}` along {name!r} needs at least one array")
    check_rank(*operands[0])
    first_sizes = dict(zip(*operands[0], strict=True))
    for operand in operands:
        check_rank(*operand)
        sizes = dict(zip(*operand, strict=True))
        if sizes.keys() != first_sizes.keys():
            raise make_error(
                ValueError,
                f"`{function}` takes arrays of the same axes, not {format_axes(*operands[0])} and "
                f"{format_axes(*operand)}",
            )
        for axis, size in first_sizes.items():
            if axis != joined_axis and sizes[axis] != size:
                # In the order of the first array, so that the sizes that differ stand at the same place.
                aligned = format_axes(tuple(first_sizes), [sizes[key] for key in first_sizes])
                raise make_error(
                    ValueError,
                    f"axis {axis!r} has size {size} and size {sizes[axis]} in {format_axes(*operands[0])} and "
                    f"{aligned}",
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
    dim = find_axis(x.names, x.array.shape, axis)
    names = intern_names(x.names[:dim] + x.names[dim + 1 :])
    return tuple([with_array(x, piece, names) for piece in cached_jit(_compute_unbind, x.names, dim)(x.array)])


def _compute_unbind(names: Names, dim: int, array: Any) -> tuple[Any, ...]:
    def take_slices(array: Any) -> tuple[Any, ...]:
        return tuple(jax.lax.index_in_dim(array, i, dim, keepdims=False) for i in range(array.shape[dim]))

    return run_operation(take_slices, [names], None, array, whole=(names[dim],))


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
    axis_name(axis)  # raises an error for what is not an axis, and may not be hashable
    pieces = tuple([piece if isinstance(piece, Axis) else parse_one_axis(piece) for piece in new_axes])
    call, names = _plan_split(x.names, x.array.shape, axis, pieces)
    return tuple([with_array(x, array, array_names) for array, array_names in zip(call(x.array), names, strict=True)])


@cached_plan
def _plan_split(
    names: Names, sizes: tuple[int, ...], axis: AxisSelector, pieces: tuple[Axis, ...]
) -> tuple[Callable[..., Any], tuple[Names, ...]]:
    """Returns the compiled split, and the names of each piece."""
    dim, lengths = find_axis(names, sizes, axis), tuple(piece.size for piece in pieces)
    if sum(lengths) != sizes[dim]:
        raise ValueError(
            f"axis {names[dim]!r} of {format_axes(names, sizes)} cannot be split into pieces of {lengths} elements"
        )
    results = tuple(intern_names((*names[:dim], piece.name, *names[dim + 1 :])) for piece in pieces)
    for piece_names in results:
        check_unique_names(piece_names)

    def split_array(array: Any) -> tuple[Any, ...]:
        split_dim = functools.partial(jax.lax.split, sizes=lengths, axis=dim)
        # Replicated first: a piece may have the name of the axis, and a size that its mesh axes do not divide.
        array = replicate_axes(array, names, (names[dim],))
        return run_operation(split_dim, [names], [*results], array)

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
    # One number is part of the program, an array of numbers an operand.
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
    counts = counts if is_traced(counts) else np.asarray(counts)  # a known array would be traced within a jit
    if not jnp.issubdtype(counts.dtype, jnp.integer) and counts.size:
        raise TypeError(f"axis {name!r} of {format_shape(x)} is repeated by integers, not by {format_value(repeats)}")
    if isinstance(repeats, NamedBase) and repeats.names not in ((), (name,)):
        raise ValueError(f"`repeats` along {name!r} must have just that axis, it has {format_shape(repeats)}")
    if counts.shape not in ((), (size,)):
        raise ValueError(f"axis {name!r} of {format_shape(x)} has {size} elements, `repeats` has shape {counts.shape}")
    if is_traced(counts):
        return widen_integers(counts)
    if counts.size and counts.min() < 0:
        raise ValueError(f"axis {name!r} of {format_shape(x)} cannot be repeated a negative number of times")
    return counts.astype(int) if counts.ndim else int(counts)


def _repeat_equally(array: Any, dims: tuple[int, ...], count: int, total: int | None) -> Any:
    return jnp.repeat(array, count, dims[0], total_repeat_length=total)


def _repeat_each(array: Any, dims: tuple[int, ...], total: int, counts: Any) -> Any:
    counts = jnp.broadcast_to(reshard_by_name(counts, ("",) * counts.ndim), (array.shape[dims[0]],))
    repeat = functools.partial(jnp.repeat, axis=dims[0], total_repeat_length=total)
    return widen_gradient(repeat, array, counts)


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

"""Joining arrays along a new axis or an existing one."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import jax.numpy as jnp

from .._ambient import reshard_by_name, use_operand_shardings
from .._axis import (
    Axis,
    AxisSelector,
    Names,
    axis_name,
    check_rank,
    check_unique_names,
    format_axes,
    format_value,
    intern_names,
    make_missing_axis_error,
)
from .._base import N, check_named, with_array
from .._broadcasting import align_axes, jit_inline
from .._cache import cached_plan
from .._resize import unname_axis
from .._traceback import blame_caller


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
        raise blame_caller(
            ValueError(f"axis {name!r} has size {axis.size}, {len(operands)} arrays were given to `stack`")
        )
    check_unique_names((name, *first))
    names = intern_names((name, *first))
    own_names = tuple(own for own, _ in operands)
    return jit_inline(functools.partial(_compute_stack, names, own_names)), names


def _compute_stack(names: Names, operands: tuple[Names, ...], *arrays: Any) -> Any:
    with use_operand_shardings(operands, arrays):
        rows = (align_axes(array, own, names[1:]) for own, array in zip(operands, arrays, strict=True))
        return reshard_by_name(jnp.stack([reshard_by_name(row, names[1:]) for row in rows]), names)


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
        raise blame_caller(
            ValueError(f"axis {name!r} has size {axis.size}, the arrays given to `concatenate` have {size}")
        )
    own_names = tuple(own for own, _ in operands)
    return jit_inline(functools.partial(_compute_concatenate, names, index, own_names)), names


def _compute_concatenate(names: Names, index: int, operands: tuple[Names, ...], *arrays: Any) -> Any:
    rest = unname_axis(names, index)
    with use_operand_shardings(operands, arrays):
        rows = (align_axes(array, own, names) for own, array in zip(operands, arrays, strict=True))
        return reshard_by_name(jnp.concatenate([reshard_by_name(row, rest) for row in rows], axis=index), names)


def _join_arrays(function: str, plan: Callable[..., Any], axis: AxisSelector, arrays: Iterable[N]) -> N:
    if type(axis) is not str and not isinstance(axis, str | Axis):
        given = f"{format_value(axis)} and {format_value(arrays)}"
        raise blame_caller(
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
        raise blame_caller(ValueError(f"`{function}` along {name!r} needs at least one array"))
    check_rank(*operands[0])
    first = dict(zip(*operands[0], strict=True))
    for operand in operands:
        check_rank(*operand)
        own = dict(zip(*operand, strict=True))
        if own.keys() != first.keys():
            shown = f"{format_axes(*operands[0])} and {format_axes(*operand)}"
            raise blame_caller(ValueError(f"`{function}` takes arrays of the same axes, not {shown}"))
        for key, size in first.items():
            if key != but and own[key] != size:
                moved = format_axes(tuple(first), [own[one] for one in first])
                raise blame_caller(
                    ValueError(
                        f"axis {key!r} has size {size} and size {own[key]} in {format_axes(*operands[0])} and {moved}"
                    )
                )
    return operands[0][0]

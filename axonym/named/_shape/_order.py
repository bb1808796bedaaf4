"""Names and their order."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp

from .._axis import (
    Axis,
    AxisSelector,
    Names,
    PartialAxisSpec,
    axis_name,
    check_unique_names,
    complete_order,
    find_axis,
    format_axes,
    format_value,
    intern_names,
)
from .._base import N, check_named, with_array
from .._cached_jit import cached_jit
from ._rearrange import apply_pattern


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
        index = find_axis(x.names, x.array.shape, old)
        if isinstance(new, Axis) and new.size != x.array.shape[index]:
            raise ValueError(
                f"axis {x.names[index]!r} has size {x.array.shape[index]}, it cannot become "
                f"{format_axes([new.name], [new.size])}"
            )
        names[index] = axis_name(new)
    check_unique_names(tuple(names))
    return with_array(x, x.array, intern_names(tuple(names)))


def rearrange(x: N, order: PartialAxisSpec | str, /, **aliases: AxisSelector | int) -> N:
    """Puts the axes into another order; an expression may also split and merge them, much as `einops.rearrange` does.

    An expression has the axes that there are left of its `->`, and those of the result right of it:

    - Without braces the identifiers on the left stand for the axes by position, whatever they are called, and `...`
      for any number of others: `"b h w c -> b c h w"`. The axes keep their names.
    - In braces they are names of axes, in any order, and axes that are not mentioned need no `...`: `"{h} -> h ..."`.
    - `(name: a b)` on the right merges axes into a new one, the first varying slowest; on the left it splits one, by
      position, where it needs no name, or by name. Aliases give the sizes, of which one may be left out:
      `rearrange(x, "{(embed: heads head_dim)} -> heads ... head_dim", heads=4)`.
    - `...` on the right stands for the axes not mentioned, in their order; in a group it merges them. If there are
      several, each of these axes stands before or behind those between two `...` as it did before:
      `"{h w} -> ... (pixel: h w) ..."` merges two axes where the first of them is.

    Args:
        x: Array of any axes.
        order: The axes in their new order, where `...` stands for those not named, in the order they have now; or an
            expression.
        **aliases: What identifiers of an expression stand for: an axis or its name, checked if there is one already;
            or only a size.

    Returns:
        Array with the axes in the new order; `x` itself if it has that order. What is done is at most a reshape, a
        transpose and another reshape, each only if it is needed.

    Raises:
        TypeError: If the order is no sequence, or an alias no axis.
        ValueError: If an axis is unknown, given twice, or left out without `...`, sizes do not fit, or the expression
            cannot be read: a caret shows where.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "pos": 3, "embed": 4})
        >>> nym.rearrange(x, ("embed", ..., "batch")).shape
        (embed: 4, pos: 3, batch: 2)
        >>> nym.rearrange(x, "b p e -> e (token: b p)").shape
        (embed: 4, token: 6)
        >>> nym.rearrange(x, "{(embed: heads head_dim)} -> heads ... head_dim", heads=2).shape
        (heads: 2, batch: 2, pos: 3, head_dim: 2)
    """
    check_named(x)
    if isinstance(order, str):
        return apply_pattern(x, order, aliases)
    if aliases:
        raise TypeError(
            f"Only an expression such as 'b h -> h b' has aliases, {format_axes(tuple(aliases))} were given."
        )
    if type(order) is not tuple and (isinstance(order, Axis) or not isinstance(order, Iterable)):
        raise TypeError(f"`rearrange` takes a sequence of axes, such as ('batch', ...), not {format_value(order)}.")
    stated = tuple(order)
    for one in stated:
        if type(one) is not str and one is not ...:
            axis_name(one)  # what is no axis may not be hashable
    call, names = _new_order(x.names, x.array.shape, stated)
    return x if call is None else with_array(x, call(x.array), names)


@functools.lru_cache(maxsize=8192)
def _new_order(names: Names, sizes: tuple[int, ...], order: tuple[Any, ...]) -> tuple[Callable[..., Any] | None, Names]:
    """Returns what transposes an array, compiled, None if the order is that of the array; and the names in order."""
    result = complete_order(names, sizes, order)
    dims = tuple(map(names.index, result))
    return None if result == names else cached_jit(_transpose, dims), intern_names(result)


def _transpose(order: tuple[int, ...], array: Any) -> Any:
    return jnp.transpose(array, order)

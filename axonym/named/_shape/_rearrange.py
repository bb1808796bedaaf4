"""`rearrange`: another order of the axes, or an expression that also splits and merges them."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp

from .._axis import (
    Axis,
    AxisSelector,
    Names,
    PartialAxisSpec,
    axis_name,
    check_ordered,
    complete_order,
    format_axes,
    format_value,
    intern_names,
)
from .._base import N, check_named, with_array
from .._broadcasting import jit_inline
from .._cache import cached_plan
from ._rearrange_pattern import apply_pattern


def rearrange(x: N, order: PartialAxisSpec | str, /, **aliases: AxisSelector | int) -> N:
    """Changes the order of the axes; an expression may also split and merge them, similar to `einops.rearrange`.

    An expression has the axes of `x` left of its `->` and the axes of the result right of it:

    - Without braces the identifiers on the left stand for axes by position, whatever their names, and `...` for any
      number of other axes: `"b h w c -> b c h w"`. The axes keep their names.
    - In braces they are names of axes, in any order, and other axes need no `...`: `"{h} -> h ..."`. Names that are
      not identifiers are written in quotes: `"{'key pos'} -> 'key pos' ..."`.
    - `(name: a b)` on the right merges axes into a new axis, the first varying slowest; on the left it splits an axis,
      by position, where the name may be left out, or by name. Aliases give the sizes, of which one may be left out:
      `rearrange(x, "{(embed: heads head_dim)} -> heads ... head_dim", heads=4)`. A part may have the name of the axis,
      as in `{(height: patch height)}`; its alias then gives the size of the part.
    - `...` on the right stands for the other axes, in their order; in a group it merges them. With several `...`, the
      other axes keep their place before or after the axes in between: `"{h w} -> ... (pixel: h w) ..."` merges two
      axes at the position of the first.

    Args:
        x: Array of any axes.
        order: The axes in their new order, where `...` stands for the other axes in their present order; or an
            expression.
        **aliases: The axis, its name, or only the size that an identifier of an expression stands for.

    Returns:
        Array with the axes in the new order; `x` itself if it has that order. At most it takes a reshape, a transpose
        and another reshape, each only if needed.

    Raises:
        TypeError: If the order is not a sequence, or an alias has a wrong type.
        ValueError: If an axis is unknown, given twice, or left out without `...`, sizes do not fit, or the expression
            cannot be parsed: a caret shows where.

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
            f"Only an expression such as 'b h -> h b' takes aliases, {format_axes(tuple(aliases))} were given."
        )
    if type(order) is not tuple:
        check_ordered(order)
        if isinstance(order, Axis) or not isinstance(order, Iterable):
            raise TypeError(f"`rearrange` takes a sequence of axes, such as ('batch', ...), not {format_value(order)}.")
    stated = tuple(order)
    for one in stated:
        if type(one) is not str and one is not ...:
            axis_name(one)  # others may not be hashable
    call, names = _plan_transpose(x.names, x.array.shape, stated)
    return x if call is None else with_array(x, call(x.array), names)


@cached_plan
def _plan_transpose(
    names: Names, sizes: tuple[int, ...], order: tuple[Any, ...]
) -> tuple[Callable[..., Any] | None, Names]:
    """Returns the compiled transpose, or None if the order stays the same, and the names of the result."""
    result = complete_order(names, sizes, order)
    dims = tuple(map(names.index, result))
    call = None if result == names else jit_inline(functools.partial(jnp.transpose, axes=dims))
    return call, intern_names(result)

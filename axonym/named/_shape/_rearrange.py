"""`rearrange`: another order of the axes, or an expression that also splits and merges them."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._ground.caches import cached_plan, jit_inline
from ..._ground.formats import format_axes, format_value, suggest_name
from .._axis import (
    Axis,
    AxisSelector,
    Names,
    PartialAxisSpec,
    axis_name,
    check_ordered,
    check_rank,
    complete_order,
    intern_names,
)
from .._base import N, check_named, with_array
from .._operation import run_operation
from .._pattern_parser import (
    REST,
    Alias,
    Binding,
    Expression,
    Fault,
    Term,
    check_aliases,
    explain_fault,
    parse_pattern,
)
from .._sharding import get_out_sharding


def apply_pattern(x: N, text: str, aliases: Mapping[str, Any]) -> N:
    """Rearranges an array by an expression; see `rearrange`."""
    call, names = _plan_pattern(text, x.names, tuple(x.array.shape), check_aliases(aliases))
    if call is None:
        return x if names == x.names else with_array(x, x.array, names)
    return with_array(x, call(x.array), names)


@cached_plan
def _plan_pattern(
    text: str, names: Names, sizes: tuple[int, ...], aliases: tuple[tuple[str, Alias], ...]
) -> tuple[Callable[..., Any] | None, Names]:
    """Returns the compiled reshapes and transpose, or None if only names change, and the names of the result."""
    expression = parse_pattern(text)
    check_rank(names, sizes)
    with explain_fault(text, f"cannot rearrange {format_axes(names, sizes)}"):
        binding = Binding(expression, aliases)
        parts = _split_operand_axes(expression, binding, names, sizes)
        result = _order_result_axes(expression, binding, parts)
    order = tuple(i for _, part_indices in result for i in part_indices)
    part_names, part_sizes = tuple(part.name for part in parts), tuple(part.size for part in parts)
    result_names = intern_names(tuple(name for name, _ in result))
    result_sizes = tuple(math.prod(part_sizes[i] for i in part_indices) for _, part_indices in result)
    # A reshape that changes no size is left out, and without a transpose a single reshape does both.
    transposes = order != tuple(range(len(order)))
    splits = transposes and part_sizes != sizes
    merges = result_sizes != (tuple(part_sizes[i] for i in order) if transposes else sizes)
    if not transposes and not merges:
        return None, result_names

    def rearrange_array(array: Any) -> Any:
        if splits:
            array = jax.lax.reshape(array, part_sizes, out_sharding=get_out_sharding(part_names, part_sizes))
        if transposes:
            array = jnp.transpose(array, order)
        if merges:
            array = jax.lax.reshape(array, result_sizes, out_sharding=get_out_sharding(result_names, result_sizes))
        return array

    return jit_inline(functools.partial(run_operation, rearrange_array, [names], None)), result_names


class _Part(NamedTuple):
    """An axis after splitting and before merging."""

    name: str
    size: int
    identifier: str  # "" if there is none
    column: int  # in the text of the expression, for errors


def _split_operand_axes(
    expression: Expression, binding: Binding, names: Names, sizes: Sequence[int]
) -> tuple[_Part, ...]:
    """Returns the axes after the splits of the left side."""
    if len(expression.operands) > 1:
        raise Fault(expression.operands[1].at, "`rearrange` takes one operand")
    if not expression.operands:
        raise Fault(0, "the left side must name the axes; write '{...}' to name none")
    side = expression.operands[0]
    terms = binding.match_axes(side, names, sizes)
    parts: list[_Part] = []
    for dim, (name, size) in enumerate(zip(names, sizes, strict=True)):
        term = terms.get(dim)
        if term is None:
            parts.append(_Part(name, size, "", 0))
        elif term.parts is None:
            parts.append(_Part(name, size, term.name, term.at))
        else:
            part_sizes = _infer_part_sizes(term, binding, name, size)
            for part, part_size in zip(term.parts, part_sizes, strict=True):
                parts.append(_Part(binding.get_name(part.name), part_size, part.name, part.at))
    # An axis that the expression does not state may have the name of a part.
    for term in (part for group in side.groups for part in group.parts or ()):
        if [part.name for part in parts].count(binding.get_name(term.name)) > 1:
            raise Fault(
                term.at, f"there is an axis {binding.get_name(term.name)!r} already; give another name with an alias"
            )
    return tuple(parts)


def _infer_part_sizes(term: Term, binding: Binding, name: str, size: int) -> list[int]:
    parts = term.parts or ()
    sizes = [binding.get_size(part.name) for part in parts]
    unknown = [i for i, part_size in enumerate(sizes) if part_size is None]
    if len(unknown) > 1:
        raise Fault(
            parts[unknown[1]].at,
            f"the sizes of {parts[unknown[0]].name!r} and {parts[unknown[1]].name!r} are both unknown; give one of "
            f"them: {parts[unknown[1]].name}=...",
        )
    # The one unknown size follows from the others, unless these have no elements.
    known_size = math.prod(part_size for part_size in sizes if part_size is not None)
    fits = known_size == size
    if unknown:
        fits = known_size != 0 and size % known_size == 0
    if not fits:
        raise Fault(term.at, f"axis {name!r} has {size} elements, the parts with known sizes have {known_size}")
    return [size // known_size if part_size is None else part_size for part_size in sizes]


def _order_result_axes(
    expression: Expression, binding: Binding, parts: tuple[_Part, ...]
) -> list[tuple[str, tuple[int, ...]]]:
    """Returns each axis of the result: its name, and the parts that it is merged from."""
    side = expression.result
    # The right side may also name an axis that the left side leaves to `...` or does not state.
    indices = {part.identifier: i for i, part in enumerate(parts) if part.identifier}
    stated = {term: _find_part(term, binding, parts, indices) for term in side.flat if term.name != REST}
    unstated = [i for i in range(len(parts)) if i not in stated.values()]
    _check_unstated(expression, parts, unstated)
    # The axes between two `...` are a section; the unstated axes are put between sections.
    sections: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    for term in side.terms:
        if term.name == REST:
            sections.append([])
        elif term.parts is None:
            sections[-1].append((parts[stated[term]].name, (stated[term],)))
        else:
            merged = tuple(i for part in term.parts for i in (unstated if part.name == REST else [stated[part]]))
            binding.check_size(term, math.prod(parts[i].size for i in merged))
            sections[-1].append((binding.get_name(term.name), merged))
    result = _insert_unstated(sections, [(parts[i].name, (i,)) for i in unstated])
    for group in side.groups:
        if [name for name, _ in result].count(binding.get_name(group.name)) > 1:
            raise Fault(group.at, f"the result would have two axes {binding.get_name(group.name)!r}")
    return result


def _find_part(term: Term, binding: Binding, parts: tuple[_Part, ...], indices: Mapping[str, int]) -> int:
    """Returns the index of the part that a term of the right side names."""
    if term.name in indices:
        return indices[term.name]
    name, names = binding.get_name(term.name), [part.name for part in parts]
    if name not in names:
        label = repr(name) if name == term.name else f"{name!r} for {term.name!r}"
        raise Fault(term.at, f"no axis {label} on the left side{suggest_name(name, [*indices, *names])}")
    index = names.index(name)
    if parts[index].identifier:
        raise Fault(term.at, f"axis {name!r} is {parts[index].identifier!r} on the left side")
    binding.check_size(term, parts[index].size)
    return index


def _check_unstated(expression: Expression, parts: tuple[_Part, ...], unstated: list[int]) -> None:
    operand, result = expression.operands[0], expression.result
    for i in unstated:
        if parts[i].identifier:
            raise Fault(parts[i].column, f"the right side leaves out {parts[i].identifier!r}")
    if unstated and not result.rest:
        names, sizes = [parts[i].name for i in unstated], [parts[i].size for i in unstated]
        raise Fault(result.at, f"the right side leaves out {format_axes(names, sizes)}; write '...' for the others")
    if result.rest and operand.ordered and not operand.rest:
        raise Fault(result.rest[0].at, "this '...' needs one on the left side")


def _insert_unstated(
    sections: list[list[tuple[str, tuple[int, ...]]]], unstated: list[tuple[str, tuple[int, ...]]]
) -> list[tuple[str, tuple[int, ...]]]:
    """Inserts the unstated axes between the sections that `...` separates, each before the axes that it preceded."""
    if len(sections) == 1:
        return sections[0]
    # An axis is put before a section if it was before the first part of it. The last section follows all axes.
    first_section, *remaining, last_section = sections
    result = [*first_section]
    starts = [min(i for _, part_indices in section for i in part_indices) for section in remaining]
    for name, part_indices in unstated:
        while remaining and part_indices[0] > starts[0]:
            result += remaining.pop(0)
            starts.pop(0)
        result.append((name, part_indices))
    return result + [item for section in remaining for item in section] + last_section


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
    selectors = tuple(order)
    for selector in selectors:
        if type(selector) is not str and selector is not ...:
            axis_name(selector)  # raises an error for anything else, which may not be hashable
    call, names = _plan_transpose(x.names, x.array.shape, selectors)
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

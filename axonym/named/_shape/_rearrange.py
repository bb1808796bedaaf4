"""The string form of `rearrange`: axes split, put into another order and merged, as an expression says."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._ambient import get_out_sharding
from .._axis import Names, check_rank, format_axes, intern_names, suggest_name
from .._base import N, with_array
from .._cached_jit import cached_jit
from .._pattern_parser import (
    REST,
    Alias,
    Binding,
    Expression,
    Fault,
    Side,
    Term,
    check_aliases,
    explain_fault,
    parse_pattern,
)


Axes = tuple[tuple[str, int], ...]


class Plan(NamedTuple):
    """What an expression asks of arrays with certain axes; a step that would do nothing is None."""

    split: Axes | None
    order: tuple[int, ...] | None
    merged: Axes | None
    names: Names


def apply_pattern(x: N, text: str, aliases: Mapping[str, Any]) -> N:
    """Rearranges an array as an expression says; see `rearrange`."""
    plan = _planned(text, x.names, tuple(x.array.shape), check_aliases(aliases))
    if plan[:3] == (None, None, None):
        return x if plan.names == x.names else with_array(x, x.array, plan.names)
    return with_array(x, cached_jit(_run, *plan[:3])(x.array), plan.names)


def _run(split: Axes | None, order: tuple[int, ...] | None, merged: Axes | None, array: Any) -> Any:
    array = array if split is None else _reshaped(array, split)
    array = array if order is None else jnp.transpose(array, order)
    return array if merged is None else _reshaped(array, merged)


def _reshaped(array: Any, axes: Axes) -> Any:
    names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
    return jax.lax.reshape(array, sizes, out_sharding=get_out_sharding(names, sizes))


@functools.lru_cache(maxsize=8192)
def _planned(text: str, names: Names, sizes: tuple[int, ...], aliases: tuple[tuple[str, Alias], ...]) -> Plan:
    expression = parse_pattern(text)
    check_rank(names, sizes)
    with explain_fault(text, f"cannot rearrange {format_axes(names, sizes)}"):
        binding = Binding(expression, aliases)
        parts = _split(_one_operand(expression), binding, names, sizes)
        result = _result(expression, binding, parts)
    flat = tuple(i for _, places in result for i in places)
    split = tuple((part.name, part.size) for part in parts)
    merged = tuple((name, math.prod(parts[i].size for i in places)) for name, places in result)
    return _steps(sizes, split, flat, merged)


def _steps(sizes: tuple[int, ...], split: Axes, order: tuple[int, ...], merged: Axes) -> Plan:
    names = intern_names(tuple(name for name, _ in merged))
    shapes = [tuple(size for _, size in axes) for axes in (split, merged)]
    if order == tuple(range(len(order))):
        return Plan(None, None, merged if shapes[1] != sizes else None, names)
    moved = tuple(shapes[0][i] for i in order)
    return Plan(split if shapes[0] != sizes else None, order, merged if shapes[1] != moved else None, names)


class _Part(NamedTuple):
    """An axis as it is between splitting and merging."""

    name: str
    size: int
    identifier: str  # "" if none stands for it
    at: int


def _one_operand(expression: Expression) -> Side:
    if len(expression.operands) > 1:
        raise Fault(expression.operands[1].at, "one array is rearranged, so there is one operand")
    if not expression.operands:
        raise Fault(0, "the left side names the axes, or is '{...}' if none has to be named")
    return expression.operands[0]


def _split(side: Side, binding: Binding, names: Names, sizes: Sequence[int]) -> tuple[_Part, ...]:
    """Returns the axes that there are once the left side has split some."""
    terms, found = binding.places(side, names, sizes), []
    for place, (name, size) in enumerate(zip(names, sizes, strict=True)):
        term = terms.get(place)
        if term is None or term.parts is None:
            found.append(_Part(name, size, term.name if term else "", term.at if term else 0))
        else:
            lengths = _part_sizes(term, binding, name, size)
            found += [
                _Part(binding.name(part.name), length, part.name, part.at)
                for part, length in zip(term.parts, lengths, strict=True)
            ]
    for term in (part for group in side.groups for part in group.parts or ()):
        if [part.name for part in found].count(binding.name(term.name)) > 1:
            raise Fault(term.at, f"there is an axis {binding.name(term.name)!r} already; an alias gives another name")
    return tuple(found)


def _part_sizes(term: Term, binding: Binding, name: str, size: int) -> list[int]:
    parts = term.parts or ()
    sizes = [binding.size(part.name) for part in parts]
    unknown = [i for i, one in enumerate(sizes) if one is None]
    if len(unknown) > 1:
        raise Fault(
            parts[unknown[1]].at,
            f"the sizes of {parts[unknown[0]].name!r} and {parts[unknown[1]].name!r} are both unknown; give one of "
            f"them: {parts[unknown[1]].name}=...",
        )
    known = math.prod(one for one in sizes if one is not None)
    if (known == 0 or size % known) if unknown else known != size:
        raise Fault(term.at, f"axis {name!r} has {size} elements, the parts with known sizes have {known}")
    return [size // known if one is None else one for one in sizes]


def _result(expression: Expression, binding: Binding, parts: tuple[_Part, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Returns each axis of the result: its name, and which parts it is merged of."""
    side, places = expression.result, {part.identifier: i for i, part in enumerate(parts) if part.identifier}
    stated = {term: _place(term, binding, parts, places) for term in side.flat if term.name != REST}
    left = [i for i in range(len(parts)) if i not in stated.values()]
    _check_rest(expression, parts, left)
    sections: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    for term in side.terms:
        if term.name == REST:
            sections.append([])
        elif term.parts is None:
            sections[-1].append((parts[stated[term]].name, (stated[term],)))
        else:
            merged = tuple(i for part in term.parts for i in (left if part.name == REST else [stated[part]]))
            binding.check_size(term, math.prod(parts[i].size for i in merged))
            sections[-1].append((binding.name(term.name), merged))
    result = _filled(sections, [(parts[i].name, (i,)) for i in left])
    for group in side.groups:
        if [name for name, _ in result].count(binding.name(group.name)) > 1:
            raise Fault(group.at, f"the result would have two axes {binding.name(group.name)!r}")
    return result


def _place(term: Term, binding: Binding, parts: tuple[_Part, ...], places: Mapping[str, int]) -> int:
    """Returns which part a term of the right side is."""
    if term.name in places:
        return places[term.name]
    name, names = binding.name(term.name), [part.name for part in parts]
    if name not in names:
        shown = repr(name) if name == term.name else f"{name!r} for {term.name!r}"
        raise Fault(term.at, f"no axis {shown} on the left side{suggest_name(name, [*places, *names])}")
    place = names.index(name)
    if parts[place].identifier:
        raise Fault(term.at, f"axis {name!r} is {parts[place].identifier!r} on the left side")
    binding.check_size(term, parts[place].size)
    return place


def _check_rest(expression: Expression, parts: tuple[_Part, ...], left: list[int]) -> None:
    operand, result = expression.operands[0], expression.result
    for i in left:
        if parts[i].identifier:
            raise Fault(parts[i].at, f"the right side leaves out {parts[i].identifier!r}")
    if left and not result.rest:
        names, sizes = [parts[i].name for i in left], [parts[i].size for i in left]
        raise Fault(result.at, f"the right side leaves out {format_axes(names, sizes)}; write '...' for the others")
    if result.rest and operand.ordered and not operand.rest:
        raise Fault(result.rest[0].at, "this '...' stands for nothing, because there is none on the left side")


def _filled(sections: list[list[tuple[str, tuple[int, ...]]]], left: list[Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Puts the axes left between the sections that `...` divides: behind those of a section if they stood so before."""
    if len(sections) == 1:
        return sections[0]
    found, hole = list(sections[0]), 1
    for name, places in left:
        while hole < len(sections) - 1 and min(i for _, some in sections[hole] for i in some) < places[0]:
            found += sections[hole]
            hole += 1
        found.append((name, places))
    return found + [item for section in sections[hole:] for item in section]

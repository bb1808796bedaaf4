"""`haliax._src.parsing`: the parts of expressions such as `b (e: h d), e m -> b m`."""

import dataclasses
from types import EllipsisType

from ...named._pattern_parser import REST, Side, Term, parse_pattern
from .._operations import drop_commas, drop_result_braces


@dataclasses.dataclass(frozen=True)
class AxisCapture:
    """An item of an expression: an identifier or a group.

    Attributes:
        binding: The identifier, or the name of the group, None if it has none.
        axes: The identifiers in it.

    Example:
        >>> from axonym.haliax._src.parsing import parse_rearrangement
        >>> parse_rearrangement("(m: a b) -> a b")[0].captures
        (AxisCapture(binding='m', axes=('a', 'b')),)
    """

    binding: str | None
    axes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Expression:
    """A side of an expression.

    Attributes:
        captures: Its items.
        is_ordered: Whether they stand for axes by position; if not, by name in braces.

    Example:
        >>> from axonym.haliax._src.parsing import parse_rearrangement
        >>> parse_rearrangement("{a} -> a ...")[0].is_ordered
        False
    """

    captures: tuple[AxisCapture | EllipsisType, ...]
    is_ordered: bool


def parse_rearrangement(expression: str) -> tuple[Expression, Expression]:
    """Returns the two sides of an expression of `rearrange`.

    Raises:
        ValueError: If it cannot be parsed, or has several operands.

    Example:
        >>> from axonym.haliax._src.parsing import parse_rearrangement
        >>> [capture.binding for capture in parse_rearrangement("a b -> b a")[1].captures]
        ['b', 'a']
    """
    operands, result = parse_einsum(expression)
    if operands is None or len(operands) != 1:
        raise ValueError(f"`rearrange` takes one operand, {expression!r} has {len(operands or ())}")
    return operands[0], result


def parse_einsum(expression: str) -> tuple[list[Expression] | None, Expression]:
    """Returns the operands of an equation of `einsum`, None if it has none, and the result.

    Raises:
        ValueError: If it cannot be parsed.

    Example:
        >>> from axonym.haliax._src.parsing import parse_einsum
        >>> len(parse_einsum("a b, b c -> a c")[0])
        2
    """
    text = drop_commas(expression)
    ordered_text = drop_result_braces(text)
    parsed = parse_pattern(ordered_text)
    operands = [Expression(_convert_terms(side), side.ordered) for side in parsed.operands]
    return operands or None, Expression(_convert_terms(parsed.result), ordered_text == text)


def _convert_terms(side: Side) -> tuple[AxisCapture | EllipsisType, ...]:
    return tuple(... if term.name == REST else _convert_term(term) for term in side.terms)


def _convert_term(term: Term) -> AxisCapture:
    if term.parts is None:
        return AxisCapture(term.name, (term.name,))
    return AxisCapture(term.name or None, tuple(part.name for part in term.parts))

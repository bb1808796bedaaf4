"""Parsing of expressions such as `b (e: h d), e m -> b m`, and binding of their identifiers to axes.

The operands are left of the `->`, the result is right of it. Errors are raised as a `Fault` with a position in the
text, which `explain_fault` turns into an error with a caret at that position.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

from .._ground.errors import make_error
from .._ground.formats import format_axes, format_value, suggest_name
from .._ground.similar_names import find_similar_name
from ._axis import Axis, AxisSelector, Names, axis_name, check_selected_once, intern_names, make_missing_axis_error


REST = "..."


class Fault(Exception):
    """An error in an expression, and its position."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at


class Term(NamedTuple):
    """An item of a side: an identifier or a name in quotes, `...`, or a group `(name: a b)`, whose name may be ""."""

    name: str
    parts: "tuple[Term, ...] | None"
    at: int


class Side(NamedTuple):
    """The axes of an operand or of the result: in order, or by name in braces."""

    terms: tuple[Term, ...]
    ordered: bool
    at: int

    @property
    def flat(self) -> tuple[Term, ...]:
        """The identifiers and `...`, with groups replaced by their parts."""
        return tuple(part for term in self.terms for part in term.parts or (term,))

    @property
    def groups(self) -> tuple[Term, ...]:
        return tuple(term for term in self.terms if term.parts is not None)

    @property
    def rest(self) -> tuple[Term, ...]:
        """Every `...`, also within groups."""
        return tuple(term for term in self.flat if term.name == REST)


class Expression(NamedTuple):
    """A parsed expression: the operands, which may be left out, and the result."""

    operands: tuple[Side, ...]
    result: Side

    @property
    def identifiers(self) -> dict[str, int]:
        """Each identifier and its first position."""
        positions: dict[str, int] = {}
        for side in (*self.operands, self.result):
            for term in (*side.flat, *side.groups):
                if term.name not in ("", REST):
                    positions.setdefault(term.name, term.at)
        return positions


@contextmanager
def explain_fault(text: str, problem: str) -> Iterator[None]:
    """Raises a ValueError for a `Fault`: the message, the expression, and a caret at the position."""
    try:
        yield
    except Fault as fault:
        message = f"{problem}: {fault}\n{_make_printable(text)}\n{' ' * fault.at}^"
        raise make_error(ValueError, message) from None


def _make_printable(text: str) -> str:
    """Returns a text of the same length on one line."""
    return "".join(char if char.isprintable() else " " for char in text)


def parse_pattern(text: str) -> Expression:
    with explain_fault(text, f"cannot parse '{_make_printable(text)}'"):
        return _Parser(text).parse_expression()


class _Token(NamedTuple):
    text: str
    at: int

    @property
    def is_name(self) -> bool:
        return self.text[:1] == "_" or self.text[:1].isalpha() or self.is_quoted

    @property
    def is_quoted(self) -> bool:
        return len(self.text) > 1 and self.text[0] in _QUOTES

    @property
    def name(self) -> str:
        return self.text[1:-1] if self.is_quoted else self.text


_QUOTES = "\"'"
# In this order: signs of several characters, identifiers, names in quotes, and any other character.
_TOKENS = re.compile(r"""\.\.\.|->|[^\W\d]\w*|"[^"]*"|'[^']*'|\S""")
_ENDS = ("", "->", ",", "{", "}")  # before these a missing bracket is reported at the one that it would close


class _Parser:
    """Parses the tokens of an expression from left to right."""

    def __init__(self, text: str) -> None:
        self.tokens = [_Token(match.group(), match.start()) for match in _TOKENS.finditer(text)]
        self.tokens.append(_Token("", len(text)))
        self.index = 0

    @property
    def next(self) -> _Token:
        return self.tokens[self.index]

    def take(self) -> _Token:
        self.index += 1
        return self.tokens[self.index - 1]

    def parse_expression(self) -> Expression:
        operands = () if self.next.text == "->" else self.parse_operands()
        if self.next.text != "->":
            if self.next.text:
                raise self.make_fault()
            raise Fault(self.next.at, "there is no '->' before the result")
        self.take()
        if self.next.text == "{":
            raise Fault(self.next.at, "the result has an order, so it takes no braces")
        result = self.parse_side()
        if self.next.text:
            raise self.make_fault()
        _check_result(result)
        return Expression(operands, result)

    def parse_operands(self) -> tuple[Side, ...]:
        sides = [self.parse_side()]
        while self.next.text == ",":
            self.take()
            sides.append(self.parse_side())
        for side in sides:
            _check_operand(side)
        return tuple(sides)

    def parse_side(self) -> Side:
        first = self.next
        if first.text != "{":
            return Side(self.parse_terms(), True, first.at)
        self.take()
        terms = self.parse_terms()
        self.take_closing("}", first)
        if self.next.text not in ("", "->", ","):
            raise Fault(self.next.at, "a '}' must be followed by ',' or '->'")
        return Side(terms, False, first.at)

    def parse_terms(self) -> tuple[Term, ...]:
        terms = []
        while self.next.is_name or self.next.text in (REST, "("):
            terms.append(self.parse_group() if self.next.text == "(" else self.parse_name())
        return tuple(terms)

    def parse_name(self) -> Term:
        token = self.take()
        if token.is_quoted and token.name in ("", REST):
            raise Fault(token.at, "a name in quotes is not empty, nor '...'")
        return Term(token.name, None, token.at)

    def parse_group(self) -> Term:
        start, name = self.take(), ""
        if self.next.is_name and self.tokens[self.index + 1].text == ":":
            name = self.parse_name().name
            self.take()
        parts = []
        while self.next.is_name or self.next.text == REST:
            parts.append(self.parse_name())
        if self.next.text == "(":
            raise Fault(self.next.at, "groups do not nest")
        self.take_closing(")", start)
        if not parts:
            raise Fault(start.at, "a group needs at least one axis")
        return Term(name, tuple(parts), start.at)

    def take_closing(self, bracket: str, opening: _Token) -> None:
        if self.next.text != bracket:
            if self.next.text in _ENDS:
                raise Fault(opening.at, f"a {opening.text!r} is not closed")
            raise self.make_fault()
        self.take()

    def make_fault(self) -> Fault:
        """Returns the fault for an unexpected token."""
        text, position = self.next
        if text in _MISPLACED:
            return Fault(position, _MISPLACED[text])
        if text in _QUOTES:
            return Fault(position, "a quote is not closed")
        return Fault(
            position,
            f"{text!r} has no meaning here; names have letters, digits and '_', and do not begin with a digit, or are "
            "in quotes",
        )


_MISPLACED = {
    "->": "there is more than one '->'",
    ",": "there is only one result; ',' separates operands",
    ")": "this ')' closes nothing",
    "}": "this '}' closes nothing",
    "{": "a '{' comes before all axes of an operand",
    ":": "a ':' comes after the name of a group, as in '(name: a b)'",
    ".": "write '...' for the other axes",
}


def _check_operand(side: Side) -> None:
    _check_distinct(side.flat, "an operand")
    _check_distinct([term for term in side.terms if term.name], "an operand")
    if len(side.rest) > 1:
        raise Fault(side.rest[1].at, "'...' may occur only once in an operand")
    for group in side.groups:
        if any(part.name == REST for part in group.parts or ()):
            raise Fault(group.at, "an axis is split into named axes, not into '...'")
        if not group.name and not side.ordered:
            raise Fault(group.at, "within braces a split needs the name of its axis: '(name: a b)'")


def _check_result(side: Side) -> None:
    _check_distinct(side.flat, "the result")
    _check_distinct([term for term in side.terms if term.parts is None or term.name], "the result")
    for group in side.groups:
        if not group.name:
            raise Fault(group.at, "a merge needs the name of the new axis: '(name: a b)'")
        if len(side.rest) > 1 and any(part.name == REST for part in group.parts or ()):
            raise Fault(group.at, "a '...' in a group must be the only one")
    for term, next_term in zip(side.terms, side.terms[1:], strict=False):
        if term.name == next_term.name == REST:
            raise Fault(next_term.at, "between two '...' there must be an axis")


def _check_distinct(terms: Iterable[Term], where: str) -> None:
    names: set[str] = set()
    for term in terms:
        if term.name in names and term.name != REST:
            raise Fault(term.at, f"{term.name!r} occurs more than once in {where}")
        names.add(term.name)


class Alias(NamedTuple):
    """The axis that an identifier stands for, and its size, each None if not given."""

    name: str | None
    size: int | None


def check_aliases(aliases: Mapping[str, Any]) -> tuple[tuple[str, Alias], ...]:
    """Returns aliases in a hashable form."""
    return tuple([(identifier, _parse_alias(identifier, value)) for identifier, value in aliases.items()])


def _parse_alias(identifier: str, value: Any) -> Alias:
    if isinstance(value, Axis):
        return Alias(value.name, value.size)
    if isinstance(value, str):
        return Alias(intern_names((value,))[0], None)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"The alias {identifier!r} must be an `Axis`, its name, or a size, not {format_value(value)}.")
    return Alias(None, Axis(identifier, value).size)


class Binding:
    """The axes that the identifiers of an expression stand for, each for a different one."""

    def __init__(self, expression: Expression, aliases: tuple[tuple[str, Alias], ...]) -> None:
        self.aliases = dict(aliases)
        self.axes: dict[str, str] = {}
        positions = expression.identifiers
        for identifier in self.aliases:
            if identifier not in positions:
                similar = find_similar_name(identifier, list(positions))
                position = 0 if similar is None else positions[similar]
                hint = suggest_name(identifier, list(positions))
                raise Fault(position, f"the alias {identifier!r} is not used{hint}")

    def get_name(self, identifier: str) -> str:
        """Returns the axis that an identifier stands for, by position, by its alias, or by its own name."""
        if identifier in self.axes:
            return self.axes[identifier]
        return self.aliases.get(identifier, _NO_ALIAS).name or identifier

    def get_size(self, identifier: str) -> int | None:
        """Returns the size that an alias gives, or None."""
        return self.aliases.get(identifier, _NO_ALIAS).size

    def bind(self, term: Term, name: str) -> None:
        """Binds an identifier to an axis; raises a Fault if either is bound to another."""
        expected = self.aliases.get(term.name, _NO_ALIAS).name
        if expected not in (None, name):
            raise Fault(term.at, f"{term.name!r} is axis {expected!r} by its alias, and axis {name!r} by its position")
        if self.axes.setdefault(term.name, name) != name:
            raise Fault(
                term.at, f"{term.name!r} stands for axis {self.axes[term.name]!r} already, and here for axis {name!r}"
            )
        for identifier, axis in self.axes.items():
            if axis == name and identifier != term.name:
                raise Fault(term.at, f"{identifier!r} and {term.name!r} both stand for axis {name!r}")

    def check_size(self, term: Term, size: int) -> None:
        """Raises a Fault if an alias gives another size for an axis; in `(a: b a)` the alias of `a` sizes the part."""
        is_own_part = any(part.name == term.name for part in term.parts or ())
        expected = None if is_own_part else self.get_size(term.name)
        if expected not in (None, size):
            raise Fault(term.at, f"axis {self.get_name(term.name)!r} has size {size} here, {expected} was asked for")

    def match_axes(self, side: Side, names: Names, sizes: Sequence[int]) -> dict[int, Term]:
        """Returns the term of an operand for each axis that has one, by position."""
        if side.ordered:
            pairs = _match_by_position(side, names, sizes)
        else:
            pairs = [(self.find_axis(term, names, sizes), term) for term in side.terms if term.name != REST]
        for dim, term in pairs:
            if not term.name:
                continue
            # Without an alias, a term that has the name of another axis is more likely a mistake than a new identifier.
            has_alias = self.aliases.get(term.name, _NO_ALIAS).name is not None
            if side.ordered and not has_alias and term.name in set(names) - {names[dim]}:
                raise Fault(
                    term.at,
                    f"{term.name!r} is at the position of axis {names[dim]!r} of {format_axes(names, sizes)}; give "
                    "the axes in their order, or by name in braces",
                )
            self.bind(term, names[dim])
            self.check_size(term, sizes[dim])
        return dict(pairs)

    def find_axis(self, term: Term, names: Names, sizes: Sequence[int] | None) -> int:
        """Returns the position of the axis that an identifier refers to."""
        name = self.get_name(term.name)
        if name not in names:
            raise Fault(term.at, str(make_missing_axis_error(name, names, sizes)))
        return names.index(name)


_NO_ALIAS = Alias(None, None)


def _match_by_position(side: Side, names: Names, sizes: Sequence[int]) -> list[tuple[int, Term]]:
    """Returns the terms of an operand without braces, each with the position of its axis."""
    ellipsis = next((index for index, term in enumerate(side.terms) if term.name == REST), None)
    term_count = len(side.terms) - (ellipsis is not None)
    if term_count > len(names) or (ellipsis is None and term_count < len(names)):
        hint = "; write '...' for the others" if term_count < len(names) else ""
        raise Fault(side.at, f"{format_axes(names, sizes)} has {len(names)} axes, {term_count} are given here{hint}")
    if ellipsis is None:
        return [*enumerate(side.terms)]
    last_terms = side.terms[ellipsis + 1 :]
    return [*enumerate(side.terms[:ellipsis]), *enumerate(last_terms, len(names) - len(last_terms))]


AxisDescription: TypeAlias = str | Sequence[AxisSelector | EllipsisType] | AbstractSet[AxisSelector | EllipsisType]
"""The expected axes of an array: `"batch embed ..."`, a sequence in this order, or a set of them in any order."""


@dataclass(frozen=True, slots=True)
class AxisPattern:
    """A parsed description of axes: the expected axes, whether in this order, and whether others may follow."""

    items: tuple[AxisSelector | EllipsisType, ...]
    ordered: bool

    @classmethod
    def parse(cls, description: AxisDescription | Axis) -> "AxisPattern":
        items = _split_description(description)
        ordered = not isinstance(description, AbstractSet)
        if not ordered:  # sets with the same axes make equal patterns and the same text
            items = tuple(sorted(items, key=lambda item: (item is ..., "" if item is ... else axis_name(item))))
        pattern = cls(items, ordered)
        check_selected_once(pattern.names)
        if items.count(...) > 1:
            raise ValueError("`...` may occur only once in a description of axes")
        return pattern

    @property
    def names(self) -> Names:
        return tuple(axis_name(item) for item in self.items if not isinstance(item, EllipsisType))

    def matches(self, names: Names, sizes: tuple[int, ...]) -> bool:
        """Returns whether axes with these names and sizes match the description."""
        sizes_by_name = dict(zip(names, sizes, strict=True))
        if any(isinstance(item, Axis) and sizes_by_name.get(item.name) != item.size for item in self.items):
            return False
        if ... not in self.items:
            return names == self.names if self.ordered else set(names) == set(self.names)
        if not self.ordered:
            return set(names) >= set(self.names)
        # As names are unique, the first and the last ones cannot overlap where both match.
        ellipsis = self.items.index(...)
        first_names, last_names = self.names[:ellipsis], self.names[ellipsis:]
        return names[:ellipsis] == first_names and names[len(names) - len(last_names) :] == last_names

    def __str__(self) -> str:
        text = " ".join("..." if isinstance(item, EllipsisType) else axis_name(item) for item in self.items)
        return text if self.ordered else f"{{{text}}}"


def _split_description(description: Any) -> tuple[Any, ...]:
    if isinstance(description, str):
        words = description.split()
        for word in words:
            if set(word) & set(",=*#?()"):  # patterns of jaxtyping and einops, which have no meaning here
                raise ValueError(f"{word!r} is not a name; names are separated by spaces, and '...' means any others")
        return tuple(... if word == "..." else word for word in words)
    if isinstance(description, Axis):
        return (description,)
    if not isinstance(description, Iterable):
        raise TypeError(
            f"Axes are described by a string such as 'batch embed ...', not by {format_value(description)}."
        )
    return tuple(description)

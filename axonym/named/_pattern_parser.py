"""Expressions such as `b (e: h d), e m -> b m`: how they are read, and which axes their identifiers stand for.

The operands stand left of the `->` and the result right of it. What is wrong is raised as a `Fault`, which knows where
in the text it is; `explained` makes the error of it that users see, with a caret under the place.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ._axis import Axis, Names, format_axes, format_value, intern_names, make_missing_axis_error, suggest_name


REST = "..."


class Fault(Exception):
    """What is wrong with an expression, and at which character of it."""

    def __init__(self, at: int, message: str) -> None:
        """Keeps both."""
        super().__init__(message)
        self.at = at


class Term(NamedTuple):
    """One item of a side: an identifier, `...`, or a group `(name: a b)`, whose name is "" if it has none."""

    name: str
    parts: "tuple[Term, ...] | None"
    at: int


class Side(NamedTuple):
    """The axes of one operand or of the result: in their order, or in braces and so by name."""

    terms: tuple[Term, ...]
    ordered: bool
    at: int

    @property
    def flat(self) -> tuple[Term, ...]:
        """The identifiers and `...`, with the parts of a group in its place."""
        return tuple(part for term in self.terms for part in ((term,) if term.parts is None else term.parts))

    @property
    def groups(self) -> tuple[Term, ...]:
        """The groups alone."""
        return tuple(term for term in self.terms if term.parts is not None)

    @property
    def rest(self) -> tuple[Term, ...]:
        """Every `...`, those within groups as well."""
        return tuple(term for term in self.flat if term.name == REST)


class Expression(NamedTuple):
    """What was read: the operands, none if only the result is stated, and the result."""

    operands: tuple[Side, ...]
    result: Side

    @property
    def identifiers(self) -> dict[str, int]:
        """Each identifier and where it stands first."""
        terms = [term for side in (*self.operands, self.result) for term in (*side.flat, *side.groups)]
        found: dict[str, int] = {}
        for term in terms:
            if term.name not in ("", REST):
                found.setdefault(term.name, term.at)
        return found


@contextmanager
def explain_fault(text: str, what: str) -> Iterator[None]:
    """Raises a ValueError for a `Fault`: what went wrong, the expression, and a caret under the place."""
    try:
        yield
    except Fault as fault:
        raise ValueError(f"{what}: {fault}\n{_printable(text)}\n{' ' * fault.at}^") from None


def _printable(text: str) -> str:
    """Returns a text of the same length that takes one line."""
    return "".join(char if char.isprintable() else " " for char in text)


@functools.lru_cache(maxsize=8192)
def parse_pattern(text: str) -> Expression:
    """Reads an expression.

    Raises:
        ValueError: If it is none.
    """
    with explain_fault(text, f"cannot read '{_printable(text)}'"):
        return _Reader(text).expression()


class _Token(NamedTuple):
    text: str
    at: int

    @property
    def is_name(self) -> bool:
        return self.text[:1] == "_" or self.text[:1].isalpha()


_TOKENS = re.compile(r"\.\.\.|->|[^\W\d]\w*|\S")
_ENDS = ("", "->", ",", "{", "}")


class _Reader:
    """Reads the tokens of an expression from left to right."""

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

    def expression(self) -> Expression:
        operands = () if self.next.text == "->" else self.operands()
        if self.next.text != "->":
            raise self.misplaced() if self.next.text else Fault(self.next.at, "there is no '->' before the result")
        self.take()
        if self.next.text == "{":
            raise Fault(self.next.at, "the result has an order, so it has no braces")
        result = self.side()
        if self.next.text:
            raise self.misplaced()
        _check_result(result)
        return Expression(operands, result)

    def operands(self) -> tuple[Side, ...]:
        sides = [self.side()]
        while self.next.text == ",":
            self.take()
            sides.append(self.side())
        for side in sides:
            _check_operand(side)
        return tuple(sides)

    def side(self) -> Side:
        first = self.next
        if first.text != "{":
            return Side(self.terms(), True, first.at)
        self.take()
        terms = self.terms()
        if self.next.text != "}":
            raise Fault(first.at, "a '{' is never closed") if self.next.text in _ENDS else self.misplaced()
        self.take()
        if self.next.text not in ("", "->", ","):
            raise Fault(self.next.at, "behind a '}' there must be ',' or '->'")
        return Side(terms, False, first.at)

    def terms(self) -> tuple[Term, ...]:
        found = []
        while self.next.is_name or self.next.text in (REST, "("):
            found.append(self.group() if self.next.text == "(" else self.name())
        return tuple(found)

    def name(self) -> Term:
        token = self.take()
        return Term(token.text, None, token.at)

    def group(self) -> Term:
        start, name = self.take(), ""
        if self.next.is_name and self.tokens[self.index + 1].text == ":":
            name = self.take().text
            self.take()
        parts = []
        while self.next.is_name or self.next.text == REST:
            parts.append(self.name())
        if self.next.text != ")":
            if self.next.text == "(":
                raise Fault(self.next.at, "groups do not nest")
            raise Fault(start.at, "a '(' is never closed") if self.next.text in _ENDS else self.misplaced()
        self.take()
        if not parts:
            raise Fault(start.at, "a group has at least one axis, this one has none")
        return Term(name, tuple(parts), start.at)

    def misplaced(self) -> Fault:
        """Returns the fault for a token that nothing begins or goes on with."""
        text, at = self.next
        if text in _MISPLACED:
            return Fault(at, _MISPLACED[text])
        return Fault(at, f"{text!r} has no meaning here; names have letters, digits and '_', and begin with no digit")


_MISPLACED = {
    "->": "there is more than one '->'",
    ",": "there is one result, and ',' stands between operands",
    ")": "this ')' closes nothing",
    "}": "this '}' closes nothing",
    "{": "a '{' stands in front of all axes of an operand",
    ":": "a ':' stands behind the name of a group, as in '(name: a b)'",
    ".": "the axes that are not named are written '...'",
}


def _check_operand(side: Side) -> None:
    _check_distinct(side.flat, "an operand")
    _check_distinct([term for term in side.terms if term.name], "an operand")
    if len(side.rest) > 1:
        raise Fault(side.rest[1].at, "'...' may stand only once in an operand")
    for group in side.groups:
        if any(part.name == REST for part in group.parts or ()):
            raise Fault(group.at, "an axis is split into axes with names, not into '...'")
        if not group.name and not side.ordered:
            raise Fault(group.at, "within braces a split says which axis it splits: '(name: a b)'")


def _check_result(side: Side) -> None:
    _check_distinct(side.flat, "the result")
    _check_distinct([term for term in side.terms if term.parts is None or term.name], "the result")
    for group in side.groups:
        if not group.name:
            raise Fault(group.at, "a merge says what the new axis is called: '(name: a b)'")
        if len(side.rest) > 1 and any(part.name == REST for part in group.parts or ()):
            raise Fault(group.at, "beside a '...' in a group there is no other")
    for one, other in zip(side.terms, side.terms[1:], strict=False):
        if one.name == other.name == REST:
            raise Fault(other.at, "between two '...' there must be an axis")


def _check_distinct(terms: Iterable[Term], where: str) -> None:
    found: set[str] = set()
    for term in terms:
        if term.name in found and term.name != REST:
            raise Fault(term.at, f"{term.name!r} stands more than once in {where}")
        found.add(term.name)


class Alias(NamedTuple):
    """What the caller says about an identifier: which axis it stands for, and of which size; None if not said."""

    name: str | None
    size: int | None


def check_aliases(aliases: Mapping[str, Any]) -> tuple[tuple[str, Alias], ...]:
    """Returns what aliases say, to be hashed.

    Raises:
        TypeError: If an alias is neither an axis nor a size.
    """
    return tuple([(identifier, _alias(identifier, value)) for identifier, value in aliases.items()])


def _alias(identifier: str, value: Any) -> Alias:
    if isinstance(value, Axis):
        return Alias(value.name, value.size)
    if isinstance(value, str):
        return Alias(intern_names((value,))[0], None)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(
            f"The alias {identifier!r} is an `Axis`, the name of one, or a size, not {format_value(value)}."
        )
    return Alias(None, Axis(identifier, value).size)


class Binding:
    """Which axes the identifiers of one expression stand for: each for one, and no two for the same."""

    def __init__(self, expression: Expression, aliases: tuple[tuple[str, Alias], ...]) -> None:
        """Starts with the aliases alone.

        Raises:
            Fault: If an alias is used nowhere.
        """
        self.aliases = dict(aliases)
        self.axes: dict[str, str] = {}
        found = expression.identifiers
        for identifier in self.aliases:
            if identifier not in found:
                near = suggest_name(identifier, list(found))
                at = next((at for name, at in found.items() if near.endswith(f"{name!r}?")), 0)
                raise Fault(at, f"there is no {identifier!r} for the alias of that name{near}")

    def name(self, identifier: str) -> str:
        """Returns the axis that an identifier stands for, by position, by its alias, or because it has its name."""
        if identifier in self.axes:
            return self.axes[identifier]
        return self.aliases.get(identifier, _UNSAID).name or identifier

    def size(self, identifier: str) -> int | None:
        """Returns the size that an alias gives, or None."""
        return self.aliases.get(identifier, _UNSAID).size

    def bind(self, term: Term, name: str) -> None:
        """Notes which axis an identifier stands for.

        Raises:
            Fault: If it stands for another one, or another one for this axis.
        """
        said = self.aliases.get(term.name, _UNSAID).name
        if said not in (None, name):
            raise Fault(term.at, f"{term.name!r} is axis {said!r} by its alias, and axis {name!r} by its place")
        if self.axes.setdefault(term.name, name) != name:
            raise Fault(
                term.at, f"{term.name!r} stands for axis {self.axes[term.name]!r} already, here for axis {name!r}"
            )
        for other, axis in self.axes.items():
            if axis == name and other != term.name:
                raise Fault(
                    term.at, f"{other!r} and {term.name!r} both stand for axis {name!r}, which is one in all operands"
                )

    def check_size(self, term: Term, size: int) -> None:
        """Raises a Fault if an alias says that an axis has another size."""
        said = self.size(term.name)
        if said not in (None, size):
            raise Fault(term.at, f"axis {self.name(term.name)!r} has size {size} here, {said} was asked for")

    def places(self, side: Side, names: Names, sizes: Sequence[int]) -> dict[int, Term]:
        """Returns which term of an operand stands for the axis at which place.

        Raises:
            Fault: If there is no such axis, or they are too many or too few.
        """
        found = _by_place(side, names, sizes) if side.ordered else self._by_name(side, names, sizes)
        for place, term in found.items():
            if not term.name:
                continue
            said = self.aliases.get(term.name, _UNSAID).name
            if side.ordered and said is None and term.name in set(names) - {names[place]}:
                raise Fault(
                    term.at,
                    f"{term.name!r} stands where axis {names[place]!r} of {format_axes(names, sizes)} is; give the axes in "
                    "their order, or in braces to go by name",
                )
            self.bind(term, names[place])
            self.check_size(term, sizes[place])
        return found

    def _by_name(self, side: Side, names: Names, sizes: Sequence[int]) -> dict[int, Term]:
        found: dict[int, Term] = {}
        for term in side.terms:
            if term.name != REST:
                found[self.place(term, names, sizes)] = term
        return found

    def place(self, term: Term, names: Names, sizes: Sequence[int] | None) -> int:
        """Returns where the axis is that an identifier stands for.

        Raises:
            Fault: If there is none.
        """
        name = self.name(term.name)
        if name not in names:
            raise Fault(term.at, str(make_missing_axis_error(name, names, sizes)))
        return names.index(name)


_UNSAID = Alias(None, None)


def _by_place(side: Side, names: Names, sizes: Sequence[int]) -> dict[int, Term]:
    rest = next((i for i, term in enumerate(side.terms) if term.name == REST), None)
    stated = len(side.terms) - (rest is not None)
    if stated > len(names) or (rest is None and stated < len(names)):
        fewer = "; write '...' for the others" if stated < len(names) else ""
        raise Fault(side.at, f"{format_axes(names, sizes)} has {len(names)} axes, {stated} are given here{fewer}")
    behind = len(names) - len(side.terms)
    return {
        i if rest is None or i < rest else i + behind: term for i, term in enumerate(side.terms) if term.name != REST
    }

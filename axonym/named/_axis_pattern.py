"""`AxisPattern`: names in order, with `...` for any others, or a set of names."""

from collections.abc import Iterable, Sequence, Set as AbstractSet
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeAlias

from ._axis import Axis, AxisSelector, Names, axis_name, check_selected_once, format_value


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
        named = tuple(axis_name(item) for item in items if not isinstance(item, EllipsisType))
        check_selected_once(named)
        if len(items) - len(named) > 1:
            raise ValueError("`...` may occur only once in a description of axes")
        ordered = not isinstance(description, AbstractSet)
        if not ordered:
            items = tuple(sorted(items, key=lambda item: (item is ..., "" if item is ... else axis_name(item))))
        return cls(items, ordered)

    @property
    def names(self) -> Names:
        return tuple(axis_name(item) for item in self.items if not isinstance(item, EllipsisType))

    def matches(self, names: Names, sizes: tuple[int, ...]) -> bool:
        """Returns whether axes with these names and sizes match the description."""
        open_ended = ... in self.items
        if len(names) < len(self.names) or (len(names) > len(self.names) and not open_ended):
            return False
        found = dict(zip(names, sizes, strict=True))
        if any(isinstance(item, Axis) and found.get(item.name) != item.size for item in self.items):
            return False
        if not self.ordered:
            return set(self.names) <= set(names)
        hole = self.items.index(...) if open_ended else len(self.items)
        after = len(self.names) - hole
        return names[:hole] == self.names[:hole] and (after == 0 or names[-after:] == self.names[hole:])

    def __str__(self) -> str:
        text = " ".join("..." if isinstance(item, EllipsisType) else axis_name(item) for item in self.items)
        return text if self.ordered else f"{{{text}}}"


def _split_description(description: Any) -> tuple[Any, ...]:
    if isinstance(description, str):
        return tuple(map(_parse_word, description.split()))
    if isinstance(description, Axis):
        return (description,)
    if not isinstance(description, Iterable):
        raise TypeError(
            f"Axes are described by a string such as 'batch embed ...', not by {format_value(description)}."
        )
    return tuple(description)


def _parse_word(word: str) -> Any:
    if set(word) & set(",=*#?()"):
        raise ValueError(f"{word!r} is not a name; names are separated by spaces, and '...' means any others")
    return ... if word == "..." else word

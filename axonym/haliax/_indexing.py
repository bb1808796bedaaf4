"""Indexing with the options of Haliax, and with NumPy's rule for the place of several index arrays."""

from collections.abc import Mapping
from typing import Any

from ..named._axis import AxisSelector, axis_name
from ..named._base import NamedBase
from ..named._index import At as NamedAt, Updates as NamedUpdates, dslice, index as index_by_name, take as take_by_name
from ..named._shape import _rearrange


def index(array: Any, slices: Any) -> Any:
    """Selects elements by named axis: `index(x, {"pos": 3})` is `x["pos", 3]`.

    Args:
        array: Array of any axes.
        slices: Axes and indices.

    Returns:
        Array with the remaining axes and those of the index arrays. Several index arrays follow NumPy: their axes take
        the place of the indexed axes if these are adjacent, and come first if not. An axis that an index array shares
        with `x` counts as indexed.

    Example:
        >>> import axonym.haliax as hax
        >>> x = hax.ones({"a": 2, "b": 3, "c": 4})
        >>> x["a", hax.named([0, 1], "i"), "c", hax.named([1, 2], "j")].shape
        {'j': 2, 'i': 2, 'b': 3}
    """
    return _order_index_axes(array, slices, index_by_name(array, slices))


def take(array: Any, axis: AxisSelector, index: Any, **options: Any) -> Any:
    """Selects elements along one axis; new axes come first if the index shares other axes with the array.

    Example:
        >>> import axonym.haliax as hax
        >>> x = hax.ones({"batch": 2, "pos": 3, "vocab": 4})
        >>> hax.take(x, "vocab", hax.named([[0, 1, 2], [1, 2, 3]], ("batch", "i"))).shape
        {'i': 3, 'batch': 2, 'pos': 3}
    """
    result = take_by_name(array, axis, index, **options)
    rest = [name for name in array.names if name != axis_name(axis)]
    if not isinstance(index, NamedBase) or not set(rest) & set(index.names):
        return result
    return _rearrange.rearrange(result, (*(name for name in index.names if name not in rest), *rest))


def _order_index_axes(x: Any, items: Any, result: Any) -> Any:
    """Returns the elements with the axes of the indices where Haliax, and NumPy, put them."""
    pairs = list(items.items()) if isinstance(items, Mapping) else list(zip(items[::2], items[1::2], strict=True))
    arrays: list[tuple[tuple[str, ...], int]] = []
    places: set[int] = set()
    for axis, at in pairs:
        name = axis_name(axis)
        if isinstance(at, dslice):
            arrays.append(((name,), at.length))
        elif isinstance(at, NamedBase) and at.names:
            arrays.append((at.names, at.size))
            places |= {x.names.index(one) for one in at.names if one in x.names}
        elif isinstance(at, slice) or getattr(at, "ndim", 0) or isinstance(at, list):
            continue
        places.add(x.names.index(name))
    if not arrays or len(places) < 2:
        return result
    order = _broadcast_index_names(arrays)
    rest = [name for name in result.names if name not in order]
    adjacent = sorted(places) == list(range(min(places), max(places) + 1))
    first = sum(name in rest for name in x.names[: min(places)]) if adjacent else 0
    return _rearrange.rearrange(result, (*rest[:first], *order, *rest[first:]))


def _broadcast_index_names(arrays: list[tuple[tuple[str, ...], int]]) -> tuple[str, ...]:
    """Returns the names of index arrays as Haliax broadcasts them: to the largest, each before those it has so far."""
    order = max(arrays, key=lambda one: one[1])[0]
    for names, _ in arrays:
        order = (*(name for name in names if name not in order), *order)
    return order


class At(NamedAt[Any]):
    """The elements of an array chosen by an index: the result of `x.at[...]`."""

    __slots__ = ("_items",)

    def __init__(self, x: Any, items: Any) -> None:
        """Parses the index."""
        super().__init__(x, items)
        self._items = items

    def get(self, *, fill_value: Any = None, mode: Any = None, **options: Any) -> Any:
        """Returns the elements; with `fill_value`, this value for indices out of range."""
        mode = "fill" if mode is None and fill_value is not None else mode
        elements = super().get(fill=fill_value if mode == "fill" else None, mode=mode, **options)
        return _order_index_axes(self._x, self._items, elements)


class Updates(NamedUpdates[Any]):
    """The value of `x.at`."""

    def __getitem__(self, items: Any) -> At:
        """Chooses elements, as `index` does."""
        return At(self._x, items)

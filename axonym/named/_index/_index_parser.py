"""What users write as an index, taken apart: what is static about it, axis by axis, and the arrays that it holds."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._axis import AxisSelector, axis_name, format_value
from .._base import NamedBase, format_shape, is_traced
from ._index_plan import IndexPlan, Part
from ._windows import dslice


Index: TypeAlias = int | slice | dslice | Sequence[int] | NamedBase | jax.Array | np.ndarray | np.integer[Any]
Items: TypeAlias = Mapping[Any, Any] | tuple[Any, ...]


def parse_index(x: NamedBase, items: Items) -> tuple[tuple[Part, ...], tuple[Any, ...]]:
    """Returns the parts of an index, and for each the array or the integer that it holds, None if it holds none.

    Raises:
        ValueError: If axes and indices do not alternate, or an index of several axes has no names.
        TypeError: If an index is none.
    """
    parts: list[Part] = []
    arrays: list[Any] = []
    for selector, index in _pairs(items):
        kind, detail, array = _classified(x, axis_name(selector), index)
        parts.append((selector, kind, detail, array.shape if kind in ("array", "mask") else ()))
        arrays.append(array)
    return tuple(parts), tuple(arrays)


def convert_mask(x: NamedBase, part: Part, array: Any) -> tuple[Part, Any]:
    """Returns a mask as the integers at which it is True, which must be known, and any other part as it is.

    Raises:
        ValueError: If it lies along several axes, of which it would pick no rectangle.
        TypeError: If its elements are traced: how many are True would be the size of an axis.
    """
    selector, kind, own, _ = part
    if kind != "mask":
        return part, array
    name = axis_name(selector)
    remedy = f"keep the axes with a value for the others, as in `axonym.index(x, {{{name!r}: mask}}, fill=0)`"
    if len(own) > 1:
        raise ValueError(
            f"a mask of the axes ({', '.join(own)}) does not say which elements of axis {name!r} of "
            f"{format_shape(x)} to pick for all of them: {remedy}"
        )
    if is_traced(array):
        raise TypeError(
            f"axis {name!r} of {format_shape(x)} is indexed by a traced mask, so nobody knows how many elements it "
            f"picks: {remedy}"
        )
    at = np.flatnonzero(np.asarray(array))
    return (selector, "array", own, at.shape), at


def check_index_range(x: NamedBase, plan: IndexPlan, arrays: tuple[Any, ...]) -> None:
    """Raises an IndexError for integers that are known here and out of range: JAX would take other elements."""
    for (at, kind, _), array in zip(plan.held, arrays, strict=True):
        if type(array) is int:
            low = high = array
        elif isinstance(array, np.ndarray) and array.size:
            low, high = array.min(), array.max()
        else:
            continue
        if kind != "window" and not -x.array.shape[at] <= low <= high < x.array.shape[at]:
            name = x.names[at]
            raise IndexError(
                f"an index of axis {name!r} of {format_shape(x)} is out of range; if it may be, say with `mode` what is "
                f"meant, as in `axonym.index(x, {{{name!r}: index}}, mode='clip')` or "
                f"`x.at[{name!r}, index].set(value, mode='drop')`"
            )


def _pairs(items: Items) -> Iterable[tuple[AxisSelector, Any]]:
    if isinstance(items, tuple) and not len(items) % 2:
        return zip(items[::2], items[1::2], strict=True)
    if isinstance(items, Mapping):
        return items.items()
    raise ValueError(
        f"an index names its axes, as in x['pos', 3], x['pos', 3, 'batch', 0:2] or x[{{'pos': 3}}], not {format_value(items)}"
    )


def _classified(x: NamedBase, name: str, index: Any) -> tuple[str, Any, Any]:
    """Returns the kind of an index, what else is static about it, and the array it holds, None if it holds none."""
    if type(index) is int:
        return "scalar", (), index
    if isinstance(index, slice):
        bounds = (index.start, index.stop, index.step)
        return "slice", tuple([None if i is None else operator.index(i) for i in bounds]), None
    if isinstance(index, dslice):
        start = index.start if type(index.start) is int else _integers(x, name, index.start)
        if np.ndim(start):
            raise ValueError(
                f"a `dslice` of axis {name!r} of {format_shape(x)} starts at {format_value(start)}, not at an integer"
            )
        return "window", index.length, start
    array = _elements(index)
    if not isinstance(index, NamedBase) and array.ndim > 1:
        raise ValueError(
            f"an index of shape {array.shape} for axis {name!r} of {format_shape(x)} has no axis names; "
            "give it some with `axonym.named(index, axes)`"
        )
    names = index.names if isinstance(index, NamedBase) else (name,) * array.ndim
    if array.dtype.kind not in "iu":  # which is quick to tell
        if names and array.dtype == np.bool_:
            return "mask", names, array
        array = _integers(x, name, index)
    return ("array", names, array) if names else ("scalar", (), array)


def _elements(index: Any) -> Any:
    array = index.array if isinstance(index, NamedBase) else index
    array = array if isinstance(array, jax.Array) else np.asarray(array)
    return array.astype(int) if isinstance(index, Sequence) and not array.size else array


def _integers(x: NamedBase, name: str, index: Any) -> Any:
    array = _elements(index)
    if jnp.issubdtype(array.dtype, jnp.integer):
        return array
    if jnp.issubdtype(array.dtype, jnp.bool_):
        raise TypeError(
            f"axis {name!r} of {format_shape(x)} is indexed by integers or by a mask that has this axis, not by one truth "
            "value; use `axonym.where` to choose by a condition"
        )
    what = format_value(index) if array.dtype.kind in "OUS" else array.dtype
    raise TypeError(f"axis {name!r} of {format_shape(x)} is indexed by integers, not by {what}")

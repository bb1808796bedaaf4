"""What users write as an index, turned into parts: an axis, a kind, what else is static about it, and its array."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .._axis import AxisSelector, axis_name, shown
from .._base import NamedBase, described, is_traced
from ._entries import IndexPlan, planned_index
from ._windows import dslice


Index: TypeAlias = int | slice | dslice | Sequence[int] | NamedBase | jax.Array | np.ndarray | np.integer[Any]
Items: TypeAlias = Mapping[Any, Any] | tuple[Any, ...]


class Part(NamedTuple):
    """The index of one axis; `detail` is as in `IndexEntry`."""

    selector: AxisSelector
    kind: str
    detail: Any
    array: Any  # the array or the integer that it holds, None if it holds none


def parts_of(x: NamedBase, items: Items) -> tuple[Part, ...]:
    """Returns the parts of an index of an array.

    Raises:
        ValueError: If axes and indices do not alternate, or an index of several axes has no names.
        TypeError: If an index is none.
    """
    return tuple(Part(selector, *_classified(x, axis_name(selector), index)) for selector, index in _pairs(items))


def plan_of(x: NamedBase, parts: tuple[Part, ...]) -> tuple[IndexPlan, tuple[Any, ...]]:
    """Returns the plan of an index, and the arrays of its entries in their order; masks are left out of both."""
    static = tuple(
        (selector, kind, detail, tuple(array.shape) if kind in ("array", "mask") else ())
        for selector, kind, detail, array in parts
    )
    plan, order = planned_index(x.names, x.array.shape, static)
    return plan, tuple(parts[i].array for i in order if parts[i].array is not None)


def compressed(x: NamedBase, part: Part) -> Part:
    """Returns a mask as the integers at which it is True, which must be known, and any other part as it is.

    Raises:
        ValueError: If it lies along several axes, of which it would pick no rectangle.
        TypeError: If its elements are traced: how many are True would be the size of an axis.
    """
    if part.kind != "mask":
        return part
    name = axis_name(part.selector)
    remedy = f"keep the axes with a value for the others, as in `axonym.index(x, {{{name!r}: mask}}, fill=0)`"
    if len(part.detail) > 1:
        raise ValueError(
            f"a mask of the axes ({', '.join(part.detail)}) does not say which elements of axis {name!r} of "
            f"{described(x)} to pick for all of them: {remedy}"
        )
    if is_traced(part.array):
        raise TypeError(
            f"axis {name!r} of {described(x)} is indexed by a traced mask, so nobody knows how many elements it "
            f"picks: {remedy}"
        )
    return Part(part.selector, "array", part.detail, np.flatnonzero(np.asarray(part.array)))


def check_range(x: NamedBase, plan: IndexPlan, arrays: tuple[Any, ...]) -> None:
    """Raises an IndexError for integers that are known here and out of range: JAX would take other elements."""
    held = [entry for entry in plan.entries if entry.kind != "slice"]
    for entry, array in zip(held, arrays, strict=True):
        if entry.kind == "window" or not (type(array) is int or (isinstance(array, np.ndarray) and array.size)):
            continue
        low, high = (array.min(), array.max()) if isinstance(array, np.ndarray) else (array, array)
        if not -x.array.shape[entry.position] <= low <= high < x.array.shape[entry.position]:
            name = x.names[entry.position]
            raise IndexError(
                f"an index of axis {name!r} of {described(x)} is out of range; if it may be, say with `mode` what is "
                f"meant, as in `axonym.index(x, {{{name!r}: index}}, mode='clip')` or "
                f"`x.at[{name!r}, index].set(value, mode='drop')`"
            )


def _pairs(items: Items) -> list[tuple[AxisSelector, Any]]:
    if isinstance(items, Mapping):
        return list(items.items())
    if not isinstance(items, tuple) or len(items) % 2:
        raise ValueError(
            "an index names its axes, as in x['pos', 3], x['pos', 3, 'batch', 0:2] or x[{'pos': 3}], "
            f"not {shown(items)}"
        )
    return list(zip(items[::2], items[1::2], strict=True))


def _classified(x: NamedBase, name: str, index: Any) -> tuple[str, Any, Any]:
    """Returns the kind of an index, what else is static about it, and the array it holds, None if it holds none."""
    if type(index) is int:
        return "scalar", (), index
    if isinstance(index, slice):
        bounds = (index.start, index.stop, index.step)
        return "slice", tuple(None if i is None else operator.index(i) for i in bounds), None
    if isinstance(index, dslice):
        start = index.start if type(index.start) is int else _integers(x, name, index.start)
        if np.ndim(start):
            raise ValueError(
                f"a `dslice` of axis {name!r} of {described(x)} starts at {shown(start)}, not at an integer"
            )
        return "window", index.length, start
    array = _elements(index)
    if not isinstance(index, NamedBase) and array.ndim > 1:
        raise ValueError(
            f"an index of shape {array.shape} for axis {name!r} of {described(x)} has no axis names; "
            "give it some with `axonym.named(index, axes)`"
        )
    names = index.names if isinstance(index, NamedBase) else (name,) * array.ndim
    if names and array.dtype == np.bool_:
        return "mask", names, array
    if array.dtype.kind not in "iu":  # which is quick to tell
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
            f"axis {name!r} of {described(x)} is indexed by integers or by a mask that has this axis, not by one truth "
            "value; use `axonym.where` to choose by a condition"
        )
    what = shown(index) if array.dtype.kind in "OUS" else array.dtype
    raise TypeError(f"axis {name!r} of {described(x)} is indexed by integers, not by {what}")

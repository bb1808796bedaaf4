"""Picking elements by named axis: what `x["pos", 3]`, `take` and `x.at["pos", 3].set(v)` share.

An index is normalised once into what is static about it (which axes, which kind) and the arrays it holds, and one
compiled gather or scatter per static part serves every call. Sizes never choose an axis: an unnamed integer array
indexes the axis it was given for, and nothing else.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ._align import check_sizes, lined_up, operand
from ._ambient import out_sharding, resharded, undivided
from ._axis import Axis, AxisSelector, Names, axis_name, listed, shown
from ._base import N, NamedBase, check_named, described, is_traced, like
from ._plan import Entries, IndexEntry, IndexPlan, planned, planned_index


@dataclass(frozen=True)
class dslice:
    """A slice whose start may be traced and whose length is fixed.

    Where it would reach past an end it is moved back inside, as `jax.lax.dynamic_slice` does, whether elements are
    read or replaced. A negative start counts from the end.

    Args:
        start: First element, an integer or an integer scalar array, named or not.
        size: Number of elements, an integer or an `Axis` of that size.

    Example:
        >>> import axonym as nym
        >>> nym.arange(nym.Axis("i", 8))["i", nym.dslice(2, 3)].array
        Array([2, 3, 4], dtype=int32)
    """

    start: Any
    size: int | Axis

    @property
    def length(self) -> int:
        """The number of elements."""
        return self.size.size if isinstance(self.size, Axis) else operator.index(self.size)


Index: TypeAlias = int | slice | dslice | Sequence[int] | NamedBase | jax.Array | np.ndarray | np.integer[Any]
Items: TypeAlias = Mapping[Any, Any] | tuple[Any, ...]


def _pairs(items: Items) -> list[tuple[AxisSelector, Any]]:
    if isinstance(items, Mapping):
        return list(items.items())
    if not isinstance(items, tuple) or len(items) % 2:
        raise ValueError(
            "an index names its axes, as in x['pos', 3], x['pos', 3, 'batch', 0:2] or x[{'pos': 3}], "
            f"not {shown(items)}"
        )
    return list(zip(items[::2], items[1::2], strict=True))


def _part(x: NamedBase, name: str, index: Any) -> tuple[str, Any, Any]:
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
    array = _integers(x, name, index)
    if isinstance(index, NamedBase):
        return "array" if index.names else "scalar", index.names, array
    if array.ndim > 1:
        raise ValueError(
            f"an index of shape {array.shape} for axis {name!r} of {described(x)} has no axis names; "
            "give it some with `axonym.named(index, axes)`"
        )
    return ("array", (name,), array) if array.ndim else ("scalar", (), array)


def _integers(x: NamedBase, name: str, index: Any) -> Any:
    array = index.array if isinstance(index, NamedBase) else index
    array = array if isinstance(array, jax.Array) else np.asarray(array)
    if isinstance(index, Sequence) and not array.size:
        return array.astype(int)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        remedy = "; use `axonym.where` to choose by a condition" if jnp.issubdtype(array.dtype, jnp.bool_) else ""
        what = shown(index) if array.dtype.kind in "OUS" else array.dtype
        raise TypeError(f"axis {name!r} of {described(x)} is indexed by integers, not by {what}{remedy}")
    return array


def _normalised(x: NamedBase, items: Items) -> tuple[IndexPlan, tuple[Any, ...]]:
    parts, arrays = [], []
    for selector, index in _pairs(items):
        kind, detail, array = _part(x, axis_name(selector), index)
        parts.append((selector, kind, detail, array.shape if kind == "array" else ()))
        arrays.append(array)
    plan, order = planned_index(x.names, x.array.shape, tuple(parts))
    return plan, tuple(arrays[i] for i in order if arrays[i] is not None)


def _check_range(x: NamedBase, plan: IndexPlan, arrays: tuple[Any, ...]) -> None:
    """Raises an IndexError for integers that are known here and out of range: JAX would take other elements."""
    held = [entry for entry in plan.entries if entry.kind != "slice"]
    for entry, array in zip(held, arrays, strict=True):
        if entry.kind == "window" or not (type(array) is int or (isinstance(array, np.ndarray) and array.size)):
            continue
        low, high = (array.min(), array.max()) if isinstance(array, np.ndarray) else (array, array)
        if not -x.array.shape[entry.position] <= low <= high < x.array.shape[entry.position]:
            raise IndexError(
                f"an index of axis {x.names[entry.position]!r} of {described(x)} is out of range; if it may be, say "
                "with `mode` what is meant, such as 'clip' or 'fill'"
            )


def _gather(
    names: Names, sizes: tuple[int, ...], result: Names, entries: Entries, arrays: tuple[Any, ...]
) -> tuple[tuple[Any, ...], Names]:
    """Returns a positional index, and the names of what it picks in the order that NumPy's rules give them."""
    index: list[Any] = [slice(None)] * len(names)
    held: dict[int, tuple[Names, Any]] = {}  # positions indexed by arrays, with the names of those arrays
    supply = iter(arrays)
    for entry in entries:
        if entry.kind == "slice":
            index[entry.position] = slice(*entry.detail)
        else:
            held[entry.position] = entry.detail, next(supply)
    held |= _aligned(names, sizes, held)
    if not held:
        return tuple(index), names
    kept = [name for at, name in enumerate(names) if at not in held]
    picked = tuple(name for name in result if name not in kept)
    for at, (own, array) in held.items():
        index[at] = lined_up(array, own, picked)
    first, last = min(held), max(held)
    front = first if last - first + 1 == len(held) else 0
    return tuple(index), (*kept[:front], *picked, *kept[front:])


def _aligned(names: Names, sizes: tuple[int, ...], held: dict[int, tuple[Names, Any]]) -> dict[int, tuple[Names, Any]]:
    """Returns an index for each axis that is not indexed itself but occurs in the names of an index array."""
    shared = {name for own, _ in held.values() for name in own}
    return {at: ((name,), jnp.arange(sizes[at])) for at, name in enumerate(names) if at not in held and name in shared}


def _first_window(entries: Entries, arrays: tuple[Any, ...]) -> tuple[IndexEntry | None, Any, Entries, tuple[Any, ...]]:
    """Returns the first window and its start, then the other entries and their arrays."""
    held = [entry for entry in entries if entry.kind != "slice"]
    for at, entry in enumerate(held):
        if entry.kind == "window":
            return entry, arrays[at], tuple(one for one in entries if one is not entry), arrays[:at] + arrays[at + 1 :]
    return None, None, entries, arrays


def _get(names: Names, plan: IndexPlan, mode: str | None, array: Any, *arrays: Any) -> Any:
    array = undivided(array, {entry.position for entry in plan.entries if entry.kind != "array"})
    window, start, entries, arrays = _first_window(plan.entries, arrays)
    while window is not None:  # a slice moves less than a gather
        array = jax.lax.dynamic_slice_in_dim(array, start, window.detail, axis=window.position)
        window, start, entries, arrays = _first_window(entries, arrays)
    where, natural = _gather(names, array.shape, plan.names, entries, arrays)
    sizes = tuple(plan.sizes[plan.names.index(name)] for name in natural)
    picked = array.at[where].get(mode=mode, out_sharding=out_sharding(natural, sizes))
    if natural != plan.names:
        picked = jnp.transpose(picked, tuple(map(natural.index, plan.names)))
    return resharded(picked, plan.names)


def _put(
    names: Names, plan: IndexPlan, mode: str | None, own: Names, method: str, array: Any, value: Any, *arrays: Any
) -> Any:
    cut = {entry.position for entry in plan.entries if entry.kind == "window"}
    left = tuple("" if at in cut else name for at, name in enumerate(names))

    def replaced(array: Any, entries: Entries, arrays: tuple[Any, ...]) -> Any:
        window, start, entries, arrays = _first_window(entries, arrays)
        if window is not None:  # a slice moves less than a scatter
            part = jax.lax.dynamic_slice_in_dim(array, start, window.detail, axis=window.position)
            part = replaced(part, entries, arrays)
            return jax.lax.dynamic_update_slice_in_dim(array, part, start, axis=window.position)
        where, natural = _gather(names, array.shape, plan.names, entries, arrays)
        values = lined_up(_converted(value, array.dtype), own, natural)
        sharding = out_sharding(left, array.shape)
        if not entries:
            return _WHOLE[method](array, jnp.broadcast_to(values, array.shape, out_sharding=sharding))
        return getattr(array.at[where], method)(values, mode=mode, out_sharding=sharding)

    if not cut:
        return replaced(array, plan.entries, arrays)
    return resharded(replaced(resharded(undivided(array, cut), left), plan.entries, arrays), names)


_WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "set": lambda _, value: value,
    "add": jnp.add,
    "multiply": jnp.multiply,
    "min": jnp.minimum,
    "max": jnp.maximum,
}


def _converted(value: Any, dtype: Any) -> Any:
    """Returns a value as an array of an element type, which must not lose its fractions or imaginary parts."""
    value = jnp.asarray(value)
    for kind in (jnp.inexact, jnp.complexfloating):
        if jnp.issubdtype(value.dtype, kind) and not jnp.issubdtype(dtype, kind):
            raise TypeError(f"Elements of {dtype} cannot take values of {value.dtype}; convert either with `astype`.")
    return value.astype(dtype)


def index(x: N, items: Items, *, mode: str | None = None) -> N:
    """Picks elements by named axis; `x[...]` is the same.

    Args:
        x: Array of any axes.
        items: Axes and indices, alternating or as a mapping. An index is an integer (the axis goes), a slice or
            `dslice` (the axis stays), a list or plain array of integers (the axis stays), or a named integer array:
            its axes come in place of the one indexed; a name it shares with `x` is aligned.
        mode: What JAX does with an index out of range, see `jax.numpy.ndarray.at`. If None, JAX's default for those
            that are known to JAX alone, and an error for others.

    Returns:
        Array with the axes left and the axes of the index arrays.

    Raises:
        ValueError: If an axis is not there, is indexed twice, or an index of several axes has no names.
        TypeError: If an index is not made of integers.
        IndexError: If an integer, list or NumPy array holds an index out of range and `mode` is None.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "pos": 3, "embed": 4})
        >>> x["pos", 0, "embed", 1:3].shape
        (batch: 2, embed: 2)
        >>> x["pos", nym.named([0, 2], "batch")].shape  # one position for each element of the batch
        (batch: 2, embed: 4)
    """
    return At(x, items).get(mode=mode)


def take(x: N, axis: AxisSelector, index: Index, *, mode: str | None = None) -> N:
    """Picks elements along one axis: `take(x, "vocab", tokens)` is `x["vocab", tokens]`.

    Args:
        x: Array of any axes.
        axis: The axis to pick from.
        index: An integer, a plain 1-D integer array, or a named integer array, whose axes replace `axis`.
        mode: As for `index`.

    Returns:
        Array in which the axes of `index` stand where `axis` stood.

    Raises:
        ValueError: If the axis is not there or has another size.
        TypeError: If the index is not made of integers.
        IndexError: As for `index`.

    Example:
        >>> import axonym as nym
        >>> table = nym.zeros({"vocab": 10, "embed": 4})
        >>> nym.take(table, "vocab", nym.named([[1, 2, 3]], ("batch", "pos"))).shape
        (batch: 1, pos: 3, embed: 4)
    """
    return At(x, (axis, index)).get(mode=mode)


class At(Generic[N]):
    """The elements of an array chosen by an index, to be read or replaced: what `x.at[...]` returns."""

    __slots__ = ("_arrays", "_plan", "_x")

    def __init__(self, x: N, items: Items) -> None:
        """Keeps the array and the index; nothing is computed yet."""
        check_named(x)
        self._x = x
        self._plan, self._arrays = _normalised(x, items)

    def _result(self, body: Callable[..., Any], mode: str | None, static: tuple[Any, ...], *values: Any) -> Any:
        """Runs a body: compiled if the array has elements, and as it is, integers staying known, if it is traced."""
        if mode is None:
            _check_range(self._x, self._plan, self._arrays)
        static = (self._x.names, self._plan, mode, *static)
        run = functools.partial(body, *static) if is_traced(self._x.array) else planned(body, *static)
        return run(self._x.array, *values, *self._arrays)

    def _update(self, method: str, value: Any, mode: str | None) -> N:
        array, names = operand(value)
        if extra := [name for name in names if name not in self._plan.names]:
            chosen = listed(self._plan.names, self._plan.sizes)
            raise ValueError(f"the value has axes {listed(extra)} that the elements chosen, {chosen}, have not")
        if names:
            check_sizes((self._plan.names, self._plan.sizes), (names, array.shape))
        return like(self._x, self._result(_put, mode, (names, method), array))

    def get(self, *, mode: str | None = None) -> N:
        """Returns the elements."""
        return like(self._x, self._result(_get, mode, ()), self._plan.names) if self._plan.entries else self._x

    def set(self, value: Any, *, mode: str | None = None) -> N:
        """Returns the array with the elements replaced by a scalar or a named array of some of their axes."""
        return self._update("set", value, mode)

    def add(self, value: Any, *, mode: str | None = None) -> N:
        """Returns the array with a value added to the elements; repeated indices add up."""
        return self._update("add", value, mode)

    def multiply(self, value: Any, *, mode: str | None = None) -> N:
        """Returns the array with the elements multiplied by a value."""
        return self._update("multiply", value, mode)

    def min(self, value: Any, *, mode: str | None = None) -> N:
        """Returns the array with the elements limited from above by a value."""
        return self._update("min", value, mode)

    def max(self, value: Any, *, mode: str | None = None) -> N:
        """Returns the array with the elements limited from below by a value."""
        return self._update("max", value, mode)


class Updates(Generic[N]):
    """What `x.at` is: index it by named axis to choose the elements to replace.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"i": 4})
        >>> x.at["i", 1:3].add(2.0).array
        Array([0., 2., 2., 0.], dtype=float32)
    """

    def __init__(self, x: N) -> None:
        """Keeps the array."""
        self._x = x

    def __getitem__(self, items: Items) -> At[N]:
        """Chooses elements, as `index` does."""
        return At(self._x, items)

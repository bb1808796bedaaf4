"""What `x.at[...]` gives: the elements of an index, to be read, replaced, or changed by a function."""

import functools
from collections.abc import Callable
from typing import Any, Generic

import jax.numpy as jnp
import numpy as np

from .._axis import Names, format_axes, format_value
from .._base import N, NamedBase, check_named, format_shape, is_traced, with_array
from .._broadcasting import check_matching_sizes, split_operand
from .._cached_jit import cached_jit
from ._bodies import Options, get, get_filled, is_unique, put, put_masked
from ._index_parser import Items, check_index_range, convert_mask, parse_index
from ._index_plan import IndexPlan, Part, plan_index


class At(Generic[N]):
    """The elements of an array chosen by an index, to be read or replaced: what `x.at[...]` returns.

    Each method takes, by keyword, what the one of the same name takes in `jax.numpy.ndarray.at`: `mode`, what an index
    out of range means; `indices_are_sorted` and `unique_indices`, promises that may save time. If `mode` is None, an
    index out of range is an error where it is known; where only a program knows it, as of a traced index, the nearest
    element is read and nothing is replaced. Where there is a mask, elements for which it is False are not replaced.

    Values are scalars or named arrays of some of the axes of the elements; along the axes of a mask they have its full
    size. They are converted to the element type of the array, which must not lose fractions.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 4))
        >>> x.at["i", nym.named([True, False, False, True], "i")].multiply(10).array
        Array([ 0,  1,  2, 30], dtype=int32)
    """

    __slots__ = ("_arrays", "_given", "_masks", "_parts", "_plan", "_x")

    def __init__(self, x: N, items: Items) -> None:
        """Keeps the array and the index; nothing is computed yet."""
        check_named(x)
        self._keep(x, *parse_index(x, items))

    def _keep(self, x: N, parts: tuple[Part, ...], given: tuple[Any, ...]) -> None:
        self._x, self._parts, self._given = x, parts, given
        self._plan, arrays, self._masks = plan_index(x.names, x.array.shape, parts)
        self._arrays = tuple([given[i] for i in arrays])

    def get(
        self, *, fill: Any = None, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> N:
        """Returns the elements; for `fill` see `axonym.index`."""
        options = _options(mode, indices_are_sorted, unique_indices)
        if fill is None:
            return self._picked(options)
        if not self._masks and mode != "fill":
            raise ValueError("`fill` stands where a mask is False, or with mode='fill' for what is out of range")
        if mode == "fill":
            options = (*options, ("fill_value", _number(fill)))
        if not self._masks:
            return self._picked(options)
        return self._filled(fill, options)

    def set(self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False) -> N:
        """Returns the array with the elements replaced by a value."""
        return self._update("set", value, _options(mode, indices_are_sorted, unique_indices))

    def add(self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False) -> N:
        """Returns the array with a value added to the elements; repeated indices add up."""
        return self._update("add", value, _options(mode, indices_are_sorted, unique_indices))

    def subtract(
        self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> N:
        """Returns the array with a value subtracted from the elements; repeated indices add up."""
        return self._update("subtract", value, _options(mode, indices_are_sorted, unique_indices))

    def multiply(
        self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> N:
        """Returns the array with the elements multiplied by a value; `mul` is the same."""
        return self._update("multiply", value, _options(mode, indices_are_sorted, unique_indices))

    mul = multiply

    def divide(
        self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> N:
        """Returns the array, which must not be one of integers, with the elements divided by a value."""
        if not jnp.issubdtype(self._x.dtype, jnp.inexact):
            raise TypeError(f"Quotients are no elements of {self._x.dtype}; convert the array with `astype`.")
        return self._update("divide", value, _options(mode, indices_are_sorted, unique_indices))

    def power(
        self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> N:
        """Returns the array with the elements raised to a power."""
        return self._update("power", value, _options(mode, indices_are_sorted, unique_indices))

    def min(self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False) -> N:
        """Returns the array with the elements limited from above by a value."""
        return self._update("min", value, _options(mode, indices_are_sorted, unique_indices))

    def max(self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False) -> N:
        """Returns the array with the elements limited from below by a value."""
        return self._update("max", value, _options(mode, indices_are_sorted, unique_indices))

    def apply(
        self,
        fn: Callable[[Any], Any],
        *,
        mode: Any = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> N:
        """Returns the array with the elements replaced by what an elementwise function of plain arrays makes of them.

        To an element that an index array names twice it is applied twice, as in JAX, which has no gradient of that:
        for one, promise `unique_indices=True`.
        """
        options = _options(mode, indices_are_sorted, unique_indices)
        if not unique_indices and not is_unique(self._x.names, self._plan.entries):
            return self._put("apply", fn, (), options, compiled=False)
        elements = self._filled(jnp.ones((), self._x.dtype), options) if self._masks else self._picked(options)
        value = fn(elements.array)
        if np.shape(value) != elements.array.shape:
            raise ValueError(
                f"a function applied to elements {format_shape(elements)} must keep their shape, it returned "
                f"{np.shape(value)}"
            )
        return self._put("set", value, elements.names, options)

    def _picked(self, options: Options) -> N:
        if self._masks:
            chosen: At[N] = object.__new__(At)
            pairs = zip(self._parts, self._given, strict=True)
            chosen._keep(self._x, *zip(*(convert_mask(self._x, part, array) for part, array in pairs), strict=True))
            return chosen._picked(options)
        return with_array(self._x, self._run(get, options, ()), self._plan.names) if self._plan.entries else self._x

    def _filled(self, fill: Any, options: Options) -> N:
        array, names = split_operand(fill)
        check_axes("`fill`", array, names, self._x.names, self._x.array.shape)
        masks, arrays = self._mask_names(), (self._given[i] for i in self._masks)
        return with_array(self._x, self._run(get_filled, options, (masks, names), array, *arrays), self._plan.names)

    def _mask_names(self) -> tuple[Names, ...]:
        return tuple(self._parts[i][2] for i in self._masks)

    def _update(self, method: str, value: Any, options: Options) -> N:
        array, names = split_operand(value)
        check_axes("the value", array, names, self._plan.names, self._plan.sizes)
        return self._put(method, array, names, options)

    def _put(self, method: str, value: Any, names: Names, options: Options, compiled: bool = True) -> N:
        if not self._masks:
            return with_array(self._x, self._run(put, options, (names, method), value, compiled=compiled))
        static, arrays = (names, method, self._mask_names()), (self._given[i] for i in self._masks)
        return with_array(self._x, self._run(put_masked, options, static, value, *arrays, compiled=compiled))

    def _run(
        self, body: Callable[..., Any], options: Options, static: tuple[Any, ...], *values: Any, compiled: bool = True
    ) -> Any:
        if not options or dict(options).get("mode") is None:
            check_index_range(self._x, self._plan, self._arrays)
        return run(body, self._x, self._plan, options, static, values, self._arrays, compiled)


def run(
    body: Callable[..., Any],
    x: NamedBase,
    plan: IndexPlan,
    options: Options,
    static: tuple[Any, ...],
    values: tuple[Any, ...],
    arrays: tuple[Any, ...],
    compiled: bool = True,
) -> Any:
    """Runs a body: compiled if the array has elements, and as it is, integers staying known, if it is traced."""
    make = cached_jit if compiled and not is_traced(x.array) else functools.partial
    return make(body, x.names, plan, options, *static)(x.array, *values, *arrays)


def picked(x: N, items: Items, fill: Any, mode: Any) -> N:
    """Returns the elements that an index picks: what `At(x, items).get()` does, quicker for a plain index."""
    if fill is not None or mode is not None:
        return At(x, items).get(fill=fill, mode=mode)
    check_named(x)
    parts, given = parse_index(x, items)
    plan, held, masks = plan_index(x.names, x.array.shape, parts)
    if masks or not parts:
        return At(x, items).get()
    arrays = tuple([given[i] for i in held])
    check_index_range(x, plan, arrays)
    return with_array(x, run(get, x, plan, (), (), (), arrays), plan.names)


class Updates(Generic[N]):
    """What `x.at` is: index it by named axis to choose the elements to read or replace, see `At`.

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


def _options(mode: Any, indices_are_sorted: bool, unique_indices: bool) -> Options:
    """Returns the options that differ from what JAX does without them."""
    if not mode and not indices_are_sorted and not unique_indices:
        return ()
    given = ("mode", mode), ("indices_are_sorted", indices_are_sorted), ("unique_indices", unique_indices)
    return tuple((key, value) for key, value in given if value)


def check_axes(what: str, array: Any, names: Names, known: Names, sizes: tuple[int, ...]) -> None:
    """Raises a ValueError if a value does not fit elements of these axes."""
    if extra := [name for name in names if name not in known]:
        raise ValueError(
            f"{what} has axes {format_axes(extra)} that the elements chosen, {format_axes(known, sizes)}, have not"
        )
    if names:
        check_matching_sizes((known, sizes), (names, tuple(array.shape)))


def _number(fill: Any) -> Any:
    array = fill.array if isinstance(fill, NamedBase) else fill
    if is_traced(array) or np.ndim(array):
        raise TypeError(f"With mode='fill', `fill` is a number that is known, not {format_value(array)}.")
    return np.asarray(array).item()

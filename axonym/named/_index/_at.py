"""Taking and updating parts of arrays: `take` and `x.at[...]`."""

import functools
from collections.abc import Callable
from typing import Any, Generic

import jax.numpy as jnp
import numpy as np

from ..._ground.caches import cached_jit, make_static_key
from ..._ground.errors import make_error
from ..._ground.formats import format_axes, format_value
from ..._ground.jax_compat import is_traced
from .._axis import Axis, AxisSelector, Names, check_matching_sizes
from .._base import N, NamedBase, check_named, format_shape, with_array
from .._broadcasting import split_operand
from .._numpy_input import check_values
from ._gather_scatter import (
    Options,
    gather_elements,
    gather_with_fill,
    has_unique_indices,
    scatter_values,
    scatter_where,
)
from ._index_parser import Index, IndexPlan, Items, check_index_range, convert_mask, parse_index, plan_index


def index(x: N, items: Items, *, fill: Any = None, mode: Any = None) -> N:
    """Selects elements by named axis; `x[...]` is the same.

    Args:
        x: Array of any axes.
        items: Axes and indices, alternating or as a mapping. An index is an integer (which removes the axis), a slice
            or `dslice` (which keeps it), a list or plain array of integers (which keeps it), or a named integer array,
            whose axes replace the indexed axis; a name it shares with `x` is aligned. A mask, which is a boolean array
            with this axis, plain or named, selects the elements for which it is True.
        fill: The value where a mask is False, a scalar or an array with some axes of `x`: the axis then keeps its
            size, as with `where(mask, x, fill)`. A mask that is traced or has several axes of `x` needs it. With mode
            "fill" it must be a number, which is used for indices out of range as well.
        mode: The treatment of an index out of range, see `jax.numpy.ndarray.at`: "clip", "fill" or
            "promise_in_bounds". If None, a traced index takes the nearest element, and others raise an error. The
            elements of a `dslice` count as indices, while a slice ends at the end of the axis.

    Returns:
        Array with the remaining axes and the axes of the index arrays.

    Raises:
        ValueError: If an axis is missing or indexed twice, an index with several axes has no names, or a mask with
            several axes has no `fill`.
        TypeError: If an index holds neither integers nor booleans, or a mask without `fill` is traced.
        IndexError: If an integer, list or NumPy array holds an index out of range, or a `dslice` with a known start
            runs over an end, and `mode` is None.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "pos": 3, "embed": 4})
        >>> x["pos", 0, "embed", 1:3].shape
        (batch: 2, embed: 2)
        >>> x["pos", nym.named([0, 2], "batch")].shape  # one position for each batch element
        (batch: 2, embed: 4)
        >>> mask = nym.named([True, False, True], "pos")
        >>> x["pos", mask].shape, nym.index(x, {"pos": mask}, fill=-1.0).shape
        ((batch: 2, pos: 2, embed: 4), (batch: 2, pos: 3, embed: 4))
    """
    return _select_elements(x, items, fill, mode)


def take(x: N, axis: AxisSelector, index: Index, *, fill: Any = None, mode: Any = None) -> N:
    """Selects elements along one axis: `take(x, "vocab", tokens)` is `x["vocab", tokens]`.

    Args:
        x: Array of any axes.
        axis: The axis to select from.
        index: An integer, a plain 1-D integer array, or a named integer array, whose axes replace `axis`; or any
            other index that `axonym.index` takes.
        fill: As for `index`.
        mode: As for `index`.

    Returns:
        Array in which the axes of `index` replace `axis`.

    Raises:
        ValueError: If the axis is missing or has another size.
        TypeError: If the index holds neither integers nor booleans.
        IndexError: As for `index`.

    Example:
        >>> import axonym as nym
        >>> table = nym.zeros({"vocab": 10, "embed": 4})
        >>> nym.take(table, "vocab", nym.named([[1, 2, 3]], ("batch", "pos"))).shape
        (batch: 1, pos: 3, embed: 4)
    """
    if type(axis) is not str and not isinstance(axis, str | Axis):
        raise make_error(
            TypeError, f"`take` takes the axis before the index, `take(x, 'vocab', index)`, not {format_value(axis)}."
        )
    return _select_elements(x, (axis, index), fill, mode)


def _select_elements(x: N, items: Items, fill: Any, mode: Any) -> N:
    """Returns `At(x, items).get(...)`, with less overhead for an index without masks, the common case."""
    if fill is not None:
        return At(x, items).get(fill=fill, mode=mode)
    check_named(x)
    parts, part_arrays = parse_index(x, items)
    plan, array_parts, mask_parts = plan_index(x.names, x.array.shape, parts)
    if mask_parts or not parts:
        return At(x, items).get(mode=mode)
    options = () if mode is None else (("mode", mode),)
    arrays = tuple([part_arrays[i] for i in array_parts])  # a list is faster than a generator
    return with_array(x, call_with_plan(gather_elements, x, plan, arrays, options), plan.names)


class At(Generic[N]):
    """The elements of an array chosen by an index, to be read or updated: the result of `x.at[...]`.

    Methods take the keyword arguments of `jax.numpy.ndarray.at`: `mode`, the treatment of indices out of range;
    `indices_are_sorted` and `unique_indices`, promises that may save time. If `mode` is None, an index out of range is
    an error where it is known; a traced index reads the nearest element and updates nothing. Elements for which a mask
    is False are not updated.

    Values are scalars or named arrays with some of the axes of the elements; along the axes of a mask they have its
    full size. They are converted to the element type of the array, which must not lose fractions.

    Example:
        >>> import axonym as nym
        >>> x = nym.arange(nym.Axis("i", 4))
        >>> x.at["i", nym.named([True, False, False, True], "i")].multiply(10).array
        Array([ 0,  1,  2, 30], dtype=int32)
    """

    __slots__ = ("_arrays", "_mask_parts", "_part_arrays", "_parts", "_plan", "_x")

    def __init__(self, x: N, items: Items) -> None:
        """Parses the index; nothing is computed yet."""
        check_named(x)
        self._x = x
        self._parts, self._part_arrays = parse_index(x, items)
        self._plan, array_parts, self._mask_parts = plan_index(x.names, x.array.shape, self._parts)
        self._arrays = tuple([self._part_arrays[i] for i in array_parts])

    def get(
        self, *, fill: Any = None, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> N:
        """Returns the elements; for `fill` see `axonym.index`."""
        options = _collect_options(mode, indices_are_sorted, unique_indices)
        if fill is None:
            return self._gather_elements(options)
        if not self._mask_parts and mode != "fill":
            raise ValueError("`fill` needs a mask, or mode='fill' for indices out of range")
        value = fill.array if isinstance(fill, NamedBase) else fill
        if mode == "fill":
            if is_traced(value) or np.ndim(value):
                raise TypeError(f"With mode='fill', `fill` must be a known number, not {format_value(value)}.")
            value = np.asarray(value).item()
            options = (*options, ("fill_value", make_static_key(value)))
        # With a mask, the result has the common dtype of the elements and `fill`.
        check_values(value, jnp.result_type(self._x.dtype, value) if self._mask_parts else self._x.dtype)
        return self._gather_filled(fill, options) if self._mask_parts else self._gather_elements(options)

    def set(self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False) -> N:
        """Returns the array with the elements replaced by a value."""
        return self._update_elements("set", value, mode, indices_are_sorted, unique_indices)

    def add(self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False) -> N:
        """Returns the array with a value added to the elements; repeated indices add up."""
        return self._update_elements("add", value, mode, indices_are_sorted, unique_indices)

    def subtract(
        self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> N:
        """Returns the array with a value subtracted from the elements; repeated indices add up."""
        return self._update_elements("subtract", value, mode, indices_are_sorted, unique_indices)

    def multiply(
        self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> N:
        """Returns the array with the elements multiplied by a value; `mul` is the same."""
        return self._update_elements("multiply", value, mode, indices_are_sorted, unique_indices)

    mul = multiply

    def divide(
        self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> N:
        """Returns the array, whose elements must not be integers, with the elements divided by a value."""
        if not jnp.issubdtype(self._x.dtype, jnp.inexact):
            raise TypeError(f"An array of {self._x.dtype} cannot hold quotients; convert it with `astype`.")
        return self._update_elements("divide", value, mode, indices_are_sorted, unique_indices)

    def power(
        self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False
    ) -> N:
        """Returns the array with the elements raised to a power."""
        return self._update_elements("power", value, mode, indices_are_sorted, unique_indices)

    def min(self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False) -> N:
        """Returns the array with the elements limited from above by a value."""
        return self._update_elements("min", value, mode, indices_are_sorted, unique_indices)

    def max(self, value: Any, *, mode: Any = None, indices_are_sorted: bool = False, unique_indices: bool = False) -> N:
        """Returns the array with the elements limited from below by a value."""
        return self._update_elements("max", value, mode, indices_are_sorted, unique_indices)

    def apply(
        self,
        fn: Callable[[Any], Any],
        *,
        mode: Any = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> N:
        """Returns the array with an elementwise function of plain arrays applied to the elements.

        The function is applied twice to an element that is indexed twice, as in JAX, which has no gradient of that;
        for a gradient, promise `unique_indices=True`.
        """
        options = _collect_options(mode, indices_are_sorted, unique_indices)
        if not unique_indices and not has_unique_indices(self._x.names, self._plan.entries):
            # A compiled program would ignore later changes of the values that `fn` reads.
            return self._scatter_values("apply", fn, (), options, compiled=False)
        if self._mask_parts:  # where a mask is False, `fn` gets ones, and its results are dropped
            elements = self._gather_filled(jnp.ones((), self._x.dtype), options)
        else:
            elements = self._gather_elements(options)
        value = fn(elements.array)
        if np.shape(value) != elements.array.shape:
            raise ValueError(
                f"a function applied to elements {format_shape(elements)} must keep their shape, it returned "
                f"{np.shape(value)}"
            )
        return self._scatter_values("set", value, elements.names, options)

    def _gather_elements(self, options: Options) -> N:
        plan, arrays = self._plan, self._arrays
        if self._mask_parts:
            pairs = zip(self._parts, self._part_arrays, strict=True)
            converted = [convert_mask(self._x, part, array) for part, array in pairs]
            parts = tuple(part for part, _ in converted)
            plan, array_parts, _ = plan_index(self._x.names, self._x.array.shape, parts)
            arrays = tuple(converted[i][1] for i in array_parts)
        if not plan.entries:
            return self._x
        return with_array(self._x, call_with_plan(gather_elements, self._x, plan, arrays, options), plan.names)

    def _gather_filled(self, fill: Any, options: Options) -> N:
        array, names = split_operand(fill)
        check_axes("`fill`", array, names, self._x.names, self._x.array.shape)
        masks, mask_names = self._get_masks()
        static, values = (mask_names, names), (array, *masks)
        elements = call_with_plan(gather_with_fill, self._x, self._plan, self._arrays, options, static, values)
        return with_array(self._x, elements, self._plan.names)

    def _get_masks(self) -> tuple[tuple[Any, ...], tuple[Names, ...]]:
        masks = tuple(self._part_arrays[i] for i in self._mask_parts)
        return masks, tuple(self._parts[i].detail for i in self._mask_parts)

    def _update_elements(self, method: str, value: Any, mode: Any, indices_are_sorted: bool, unique_indices: bool) -> N:
        array, names = split_operand(value)
        check_axes("the value", array, names, self._plan.names, self._plan.sizes)
        options = _collect_options(mode, indices_are_sorted, unique_indices)
        return self._scatter_values(method, array, names, options)

    def _scatter_values(self, method: str, value: Any, names: Names, options: Options, compiled: bool = True) -> N:
        if method != "apply":
            check_values(value, self._x.dtype)
        if self._mask_parts:
            masks, mask_names = self._get_masks()
            fn, static, values = scatter_where, (names, method, mask_names), (value, *masks)
        else:
            fn, static, values = scatter_values, (names, method), (value,)
        updated = call_with_plan(fn, self._x, self._plan, self._arrays, options, static, values, compiled)
        return with_array(self._x, updated)


def call_with_plan(
    fn: Callable[..., Any],
    x: NamedBase,
    plan: IndexPlan,
    arrays: tuple[Any, ...],
    options: Options,
    static: tuple[Any, ...] = (),
    values: tuple[Any, ...] = (),
    compiled: bool = True,
) -> Any:
    """Calls a gather or scatter, compiled unless the array is traced: then known integers stay known."""
    if not options or dict(options).get("mode") is None:  # the first test spares most calls a dict
        check_index_range(x, plan, arrays)
    bind_static = cached_jit if compiled and not is_traced(x.array) else functools.partial
    return bind_static(fn, x.names, plan, options, *static)(x.array, *values, *arrays)


class Updates(Generic[N]):
    """The value of `x.at`: index it by named axis to choose elements to read or update, see `At`.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"i": 4})
        >>> x.at["i", 1:3].add(2.0).array
        Array([0., 2., 2., 0.], dtype=float32)
    """

    def __init__(self, x: N) -> None:
        self._x = x

    def __getitem__(self, items: Items) -> At[N]:
        """Chooses elements, as `index` does."""
        return At(self._x, items)


def _collect_options(mode: Any, indices_are_sorted: bool, unique_indices: bool) -> Options:
    """Returns the options that differ from the defaults of JAX."""
    if not mode and not indices_are_sorted and not unique_indices:
        return ()
    options = ("mode", mode), ("indices_are_sorted", indices_are_sorted), ("unique_indices", unique_indices)
    return tuple((key, value) for key, value in options if value)


def check_axes(label: str, value: Any, value_names: Names, names: Names, sizes: tuple[int, ...]) -> None:
    """Raises a ValueError, which names the value by a label, if a value does not fit elements with these axes."""
    if extra := [name for name in value_names if name not in names]:
        raise ValueError(
            f"{label} has axes {format_axes(extra)}, which the chosen elements {format_axes(names, sizes)} lack"
        )
    if value_names:
        check_matching_sizes((names, sizes), (value_names, tuple(value.shape)))

"""Mutable arrays with named axes: `NamedRef`, a `jax.Ref` with names, which a loop or a step can write to in place.

Integers and slices use JAX's own operations on parts of a `jax.Ref`. Other indices read or write the entire array,
which the compiler reduces to the part needed.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import ref as refs

from .._ground.formats import format_value
from ._array import NamedArray
from ._axis import Axis, Names
from ._base import Shape, check_named
from ._broadcasting import align_axes, split_operand
from ._index import At, IndexPlan, check_axes, check_index_range, parse_index, plan_index
from ._numpy_input import check_values


class NamedRef:
    """A mutable array whose axes have names; `new_ref` makes one from a named array.

    `ref[...]` reads all elements, `ref["pos", i]` reads some, and `ref["pos", i] = value` replaces them. Indices are
    as for `axonym.index`; a value is a scalar or a named array with some axes of the elements. An index out of range
    raises an error if it is not traced. For a traced index the nearest element is read; whether an element is replaced
    is undefined.

    It is a pytree with one child, the `jax.Ref`. It may be an argument of a function under `jax.jit`, or be closed over
    by the body of a loop. In JAX no function may return a `jax.Ref` that it was given.

    Args:
        ref: The `jax.Ref`; `new_ref` makes one.
        names: The name of each axis, in order.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> cache = nym.new_ref(nym.zeros({"pos": 4}))
        >>> @jax.jit
        ... def write(cache, i, value):
        ...     cache["pos", i] = value
        >>> write(cache, 2, 5.0)
        >>> cache[...].array
        Array([0., 0., 5., 0.], dtype=float32)
    """

    __slots__ = ("names", "ref")

    ref: Any
    names: Names

    def __init__(self, ref: Any, names: Names) -> None:
        """Stores both; `new_ref` makes them consistent."""
        self.ref = ref
        self.names = names

    @property
    def shape(self) -> Shape:
        """The sizes, which can also be indexed by name."""
        return Shape(tuple(self.ref.shape), self.names)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes in order."""
        return tuple(Axis(name, size) for name, size in self.shape.items())

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.ref.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.names)

    def __repr__(self) -> str:
        """Formats element type and axes."""
        return f"NamedRef({self.dtype}{''.join(f', {axis}' for axis in self.axes)})"

    def __getitem__(self, items: Any) -> NamedArray:
        """Reads elements by named axis; see `get`."""
        return get(self, items)

    def __setitem__(self, items: Any, value: Any) -> None:
        """Replaces elements by named axis; see `swap`."""
        plan, ref_index = _plan_ref_index(self, items)
        if ref_index is not None:
            refs.set(self.ref, ref_index, _convert_ref_value(self, plan, value))
        else:
            self[...] = At(_read_all(self), items).set(value)


jax.tree_util.register_dataclass(NamedRef, data_fields=["ref"], meta_fields=["names"])


def new_ref(value: NamedArray, *, memory_space: Any = None, kind: str | None = None) -> NamedRef:
    """Makes a mutable array from a copy of a named array; see `jax.new_ref`.

    Args:
        value: Array of any axes.
        memory_space: As for `jax.new_ref`.
        kind: As for `jax.new_ref`.

    Returns:
        Mutable array of the same axes.

    Raises:
        TypeError: If the value is not a named array.

    Example:
        >>> import axonym as nym
        >>> total = nym.new_ref(nym.zeros({"i": 3}))
        >>> total["i", 0] += 2.0
        >>> total[...].array
        Array([2., 0., 0.], dtype=float32)
    """
    check_named(value)
    return NamedRef(refs.new_ref(value.array, memory_space=memory_space, kind=kind), value.names)


def freeze(ref: NamedRef) -> NamedArray:
    """Returns the elements of a mutable array, which must not be used afterwards; see `jax.freeze`.

    Args:
        ref: Mutable array.

    Returns:
        Array of the same axes.

    Raises:
        TypeError: If it is not a `NamedRef`.

    Example:
        >>> import axonym as nym
        >>> nym.freeze(nym.new_ref(nym.ones({"i": 2})))
        NamedArray(float32, i: 2, [1., 1.])
    """
    _check_ref(ref)
    return NamedArray(refs.freeze(ref.ref), ref.names)


def get(ref: NamedRef, idx: Any = None) -> NamedArray:
    """Reads elements of a mutable array: `get(ref, ("pos", 3))` is `ref["pos", 3]`; see `jax.ref.get`.

    Args:
        ref: Mutable array.
        idx: Axes and indices as for `axonym.index`; all elements if it is None or `...`.

    Returns:
        Array with the remaining axes and the axes of the index arrays.

    Raises:
        TypeError: If the first argument is not a `NamedRef`, or an index is not made of integers.
        ValueError: If an axis is missing or indexed twice.
        IndexError: If an integer, list or NumPy array holds an index out of range.

    Example:
        >>> import axonym as nym
        >>> ref = nym.new_ref(nym.arange(nym.Axis("i", 4)))
        >>> nym.get(ref, ("i", slice(1, 3))).array
        Array([1, 2], dtype=int32)
    """
    _check_ref(ref)
    plan, ref_index = _plan_ref_index(ref, idx)
    if ref_index is None:
        return At(_read_all(ref), idx).get()
    return NamedArray(refs.get(ref.ref, ref_index), plan.names)


def swap(ref: NamedRef, idx: Any, value: Any) -> NamedArray:
    """Replaces elements of a mutable array and returns the previous ones; see `jax.ref.swap`.

    Args:
        ref: Mutable array, which is modified.
        idx: Axes and indices as for `axonym.index`; all elements if it is None or `...`.
        value: A scalar, or a named array with some axes of the elements. It is converted to the element type, which
            must not lose fractions. With a mask, elements for which it is False are not replaced.

    Returns:
        The previous elements, as `get` returns them.

    Raises:
        TypeError: If the first argument is not a `NamedRef`, the value is a plain array with axes or loses fractions,
            or an index is not made of integers.
        ValueError: If an axis is missing or indexed twice, or the value has axes that the elements lack.
        IndexError: If an integer, list or NumPy array holds an index out of range.

    Example:
        >>> import axonym as nym
        >>> ref = nym.new_ref(nym.arange(nym.Axis("i", 4)))
        >>> nym.swap(ref, ("i", 3), 7).item(), ref[...].array
        (3, Array([0, 1, 2, 7], dtype=int32))
    """
    _check_ref(ref)
    plan, ref_index = _plan_ref_index(ref, idx)
    if ref_index is None:
        previous = At(_read_all(ref), idx).get()
        ref[idx] = value
        return previous
    return NamedArray(refs.swap(ref.ref, ref_index, _convert_ref_value(ref, plan, value)), plan.names)


def _check_ref(ref: Any) -> None:
    if not isinstance(ref, NamedRef):
        raise TypeError(f"A `NamedRef` is needed, not {format_value(ref)}; make one with `axonym.new_ref(array)`.")


def _read_all(ref: NamedRef) -> NamedArray:
    return NamedArray(ref.ref[...], ref.names)


def _plan_ref_index(ref: NamedRef, idx: Any) -> tuple[IndexPlan, Any]:
    """Returns the plan of an index, and the index for `jax.ref`, or None if `jax.ref` does not support it."""
    outline = NamedArray(jax.ShapeDtypeStruct(ref.ref.shape, ref.dtype), ref.names)
    parts, index_arrays = parse_index(outline, () if idx is None or idx is ... else idx)
    plan, array_numbers, _ = plan_index(outline.names, tuple(ref.ref.shape), parts)
    arrays = tuple(index_arrays[number] for number in array_numbers)
    check_index_range(outline, plan, arrays)
    if not parts:
        return plan, ...
    # `jax.ref` takes integers and slices that go forward, and only of arrays that are not sharded.
    is_supported = all(kind == "scalar" or (kind == "slice" and (detail[2] or 1) > 0) for _, kind, detail, _ in parts)
    if not is_supported or _is_ref_sharded(ref):
        return plan, None
    ref_index: list[Any] = [slice(None)] * len(ref.names)
    integers = iter(arrays)
    for entry in plan.entries:
        ref_index[entry.position] = slice(*entry.detail) if entry.kind == "slice" else next(integers)
    return plan, tuple(ref_index)


def _is_ref_sharded(ref: NamedRef) -> bool:
    """Returns whether the array is sharded or reduced over an Explicit mesh axis; JAX then has no access to parts."""
    spec = jax.typeof(ref.ref).sharding.spec
    return any(spec.partitions) or bool(spec.reduced)


def _convert_ref_value(ref: NamedRef, plan: IndexPlan, value: Any) -> Any:
    """Returns a value with the shape, element type and sharding of the elements that it replaces."""
    array, names = split_operand(value)
    check_axes("the value", array, names, plan.names, plan.sizes)
    check_values(array, ref.dtype)
    array = jnp.broadcast_to(align_axes(jnp.asarray(array, ref.dtype), names, plan.names), plan.sizes)
    return jax.reshard(array, jax.typeof(ref.ref).sharding) if _is_ref_sharded(ref) else array

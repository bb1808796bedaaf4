"""`NamedArray`, the public class of named arrays; its methods are functions of this package of the same names."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import numpy as np
from numpy.ma import MaskedArray

from .._ground.arguments import check_dtype
from .._ground.errors import make_error
from .._ground.formats import format_axes
from .._ground.jax_compat import find_refusing_jax_functions
from . import _dot, _matrix
from ._array_protocols import ArrayProtocols
from ._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    Names,
    axis_name,
    check_ordered,
    check_unique_names,
    find_axes,
    find_axis,
    intern_names,
    parse_selection,
)
from ._base import NamedBase, format_shape, set_array, set_names, with_array
from ._broadcasting import get_array
from ._elementwise import _arithmetic, _functions, _logic
from ._foreign_names import make_foreign_function_error, suggest_named_way
from ._index import Items, Updates, index, take
from ._numpy_input import MASK_PROBLEM
from ._operation import replicate_axes
from ._pattern_parser import AxisDescription, AxisPattern
from ._reduce import _cumulative, _reductions
from ._shape import _broadcast, _concatenate, _flatten, _rearrange, _slice


class NamedArray(ArrayProtocols):
    """An array whose axes have names. It holds the array and the names; sizes are read from the array.

    It is an immutable pytree with one child, the array; the names are part of the tree structure.

    Args:
        array: Anything with a shape and an element type: a JAX or NumPy array, a `jax.ShapeDtypeStruct`.
        axes: One name or `Axis` for each axis of the array, in order; or a mapping from name to size.

    Raises:
        ValueError: If a name is empty or occurs twice, the number of names is wrong, or an `Axis` has another size.
        TypeError: If the array or an axis has another type, or the array is a masked one of NumPy.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> x = nym.NamedArray(jnp.zeros((2, 3)), ("batch", "embed"))
        >>> x
        NamedArray(float32, batch: 2, embed: 3,
          [[0., 0., 0.],
           [0., 0., 0.]])
        >>> x.shape["embed"]
        3
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __class_getitem__(cls, axes: Any) -> type["NamedArray"]:
            """Makes `Named["batch embed"]` a `NamedArray` for type checkers; at run time `Named` is another class."""
            ...

    def __init__(self, array: Any, axes: AxisSelector | Sequence[AxisSelector]) -> None:
        """Checks names and sizes; see the class."""
        set_array(self, array)
        set_names(self, parse_array_names(array, axes))

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises an AttributeError, since named arrays are immutable."""
        raise make_error(AttributeError, f"A `NamedArray` never changes, so {name!r} cannot be set; make a new one.")

    def __delattr__(self, name: str) -> None:
        """Raises an AttributeError, since named arrays are immutable."""
        raise make_error(AttributeError, f"A `NamedArray` never changes, so {name!r} cannot be deleted.")

    if not TYPE_CHECKING:  # type checkers report these by themselves

        def __getattr__(self, name: str) -> Any:
            """Raises an AttributeError that shows the named way for attributes of other array libraries."""
            if name == "__jax_array__" and (functions := find_refusing_jax_functions()):
                raise make_foreign_function_error("JAX", functions, format_shape(self))
            hint = "" if name.startswith("_") else suggest_named_way(name)
            if hint:
                raise make_error(
                    AttributeError, f"A `NamedArray` has no attribute {name!r}{hint}.", name=name, obj=self
                )
            return object.__getattribute__(self, name)  # raises Python's own error, or that of a property, again

        def __setitem__(self, items: Items, *value: Any) -> None:
            """Raises a TypeError, since named arrays are immutable."""
            raise make_error(TypeError, "A `NamedArray` never changes; use `x = x.at['axis', index].set(value)`.")

        __delitem__ = __setitem__

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies the array and the names."""
        return _rebuild_array, (self.array, self.names)

    def scalar(self) -> jax.Array:
        """Returns the plain array of a named array without axes.

        Raises:
            ValueError: If the array has axes.
        """
        if self.names:
            raise make_error(ValueError, f"{format_shape(self)} is not a scalar; reduce or index its axes first")
        return self.array

    def item(self) -> Any:
        """Returns the only element as a Python number."""
        if self.names and self.size != 1:
            raise make_error(
                ValueError, f"{format_shape(self)} is not a single element; reduce or index its axes first"
            )
        return self.array.item()

    def tolist(self) -> Any:
        """Returns the elements as nested lists of Python numbers."""
        return self.array.tolist()

    def tobytes(self) -> bytes:
        """Returns the elements as bytes, the last axis varying fastest."""
        return np.asarray(self.array).tobytes()

    def axis_indices(self, axis: AxisSelection) -> Any:
        """Returns the position of an axis, or a tuple of the positions of several axes."""
        dims = find_axes(self.names, self.array.shape, axis)
        return dims[0] if isinstance(axis, str | Axis) else dims

    def matches_axes(self, axes: AxisDescription) -> bool:
        """Returns whether the axes match a description: `"batch embed ..."`, or a set of names in any order."""
        pattern = getattr(axes, "pattern", None) or AxisPattern.parse(axes)
        return pattern.matches(self.names, tuple(self.array.shape))

    @property
    def real(self) -> Self:
        """The real part."""
        return _functions.real(self)

    @property
    def imag(self) -> Self:
        """The imaginary part."""
        return _functions.imag(self)

    def astype(self, dtype: Any) -> Self:
        """Returns the array with another element type."""
        try:
            return with_array(self, get_array(self).astype(dtype))
        except TypeError:
            check_dtype(dtype)
            raise

    def block_until_ready(self) -> Self:
        """Waits until the elements are computed, and returns the array."""
        jax.block_until_ready(self.array)
        return self

    @property
    def at(self) -> "Updates[Self]":
        """Selects elements to replace: `x.at["pos", 3].set(0.0)`; see `Updates`."""
        return Updates(self)

    def __getitem__(self, items: Items) -> Self:
        """Selects elements by named axis; see `axonym.index`."""
        return index(self, items)

    def __iter__(self) -> Iterator[Any]:
        """Iterates over an array with one axis; raises a TypeError for any other."""
        if len(self.names) != 1:
            remedy = "use `unbind(x, axis)`, or `x.array` for a plain array"
            raise make_error(TypeError, f"Iterating over {format_shape(self)} needs an axis; {remedy}.")
        # The elements of a sharded axis are not sharded, so on an Explicit mesh the axis is replicated first.
        replicated = replicate_axes(self.array, self.names, self.names)
        return (with_array(self, element, ()) for element in replicated)

    def __len__(self) -> int:
        """Returns the size of the only axis; raises a TypeError if there are none or several."""
        if len(self.names) != 1:
            raise make_error(
                TypeError, f"{format_shape(self)} has no single length; use `x.axis_size(axis)`, `x.size` or `x.array`."
            )
        return self.array.shape[0]

    def __format__(self, spec: str) -> str:
        """Formats the number of an array without axes: `f"{loss:.3f}"`."""
        return super().__format__(spec) if self.names or not spec else format(self.array, spec)

    def __bool__(self) -> bool:
        """Returns the truth value of the only element."""
        if self.names and self.size != 1:
            raise make_error(
                ValueError, f"the truth value of {format_shape(self)} is ambiguous; use `x.all()` or `x.any()`"
            )
        return bool(self.array)

    def __int__(self) -> int:
        """Returns the only element as an integer."""
        return int(self._get_scalar_element())

    def __float__(self) -> float:
        """Returns the only element as a float."""
        return float(self._get_scalar_element())

    def __complex__(self) -> complex:
        """Returns the only element as a complex number."""
        return complex(self._get_scalar_element())

    def __round__(self, decimals: int = 0) -> Self:
        """Rounds the elements to a number of decimals."""
        return _arithmetic.round(self, decimals)

    def __index__(self) -> int:
        """Returns the only element, which must be an integer."""
        return self._get_scalar_element().__index__()

    def _get_scalar_element(self) -> Any:
        if self.names:
            raise make_error(TypeError, f"{format_shape(self)} is not a scalar; reduce or index its axes first")
        return self.array

    def __matmul__(self, other: Any) -> Any:
        """Raises a TypeError, since the axes to contract are needed."""
        raise make_error(TypeError, "`@` cannot name the axes to contract; use `dot(x, y, axis=...)`.")

    __rmatmul__ = __matmul__
    __hash__: ClassVar[None] = None  # pyright: ignore[reportIncompatibleMethodOverride]

    __add__ = __radd__ = _arithmetic.add
    __mul__ = __rmul__ = _arithmetic.multiply
    __sub__ = _arithmetic.subtract
    __truediv__ = _arithmetic.divide
    __floordiv__ = _arithmetic.floor_divide
    __mod__ = _arithmetic.mod
    __pow__ = _arithmetic.power
    __and__ = __rand__ = _logic.bitwise_and
    __or__ = __ror__ = _logic.bitwise_or
    __xor__ = __rxor__ = _logic.bitwise_xor
    __lshift__ = _logic.left_shift
    __rshift__ = _logic.right_shift
    __lt__ = _logic.less
    __le__ = _logic.less_equal
    __gt__ = _logic.greater
    __ge__ = _logic.greater_equal
    __neg__ = _arithmetic.negative
    __pos__ = _arithmetic.positive
    __abs__ = _arithmetic.abs
    __divmod__ = _arithmetic.divmod
    __invert__ = _logic.bitwise_not

    def __eq__(self, other: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compares elementwise with an array or a number; a named array equals nothing else."""
        return _compare_elements(_logic.equal, self, other)

    def __ne__(self, other: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compares elementwise with an array or a number; a named array differs from anything else."""
        return _compare_elements(_logic.not_equal, self, other)

    def __rsub__(self, other: Any) -> Self:
        """Returns `other - self`."""
        return _arithmetic.subtract(other, self)

    def __rtruediv__(self, other: Any) -> Self:
        """Returns `other / self`."""
        return _arithmetic.divide(other, self)

    def __rfloordiv__(self, other: Any) -> Self:
        """Returns `other // self`."""
        return _arithmetic.floor_divide(other, self)

    def __rmod__(self, other: Any) -> Self:
        """Returns `other % self`."""
        return _arithmetic.mod(other, self)

    def __rdivmod__(self, other: Any) -> tuple[Self, Self]:
        """Returns `divmod(other, self)`."""
        return _arithmetic.divmod(other, self)

    def __rpow__(self, other: Any) -> Self:
        """Returns `other ** self`."""
        return _arithmetic.power(other, self)

    def __rlshift__(self, other: Any) -> Self:
        """Returns `other << self`."""
        return _logic.left_shift(other, self)

    def __rrshift__(self, other: Any) -> Self:
        """Returns `other >> self`."""
        return _logic.right_shift(other, self)

    all = _reductions.all
    any = _reductions.any
    argmax = _reductions.argmax
    argmin = _reductions.argmin
    argsort = _cumulative.argsort
    broadcast_axis = _broadcast.broadcast_axis
    broadcast_to = _broadcast.broadcast_to
    clip = _arithmetic.clip
    conj = conjugate = _functions.conj
    copy = _arithmetic.copy
    cumprod = _cumulative.cumprod
    cumsum = _cumulative.cumsum
    dot = _dot.dot
    expand = _broadcast.expand
    flatten = _flatten.flatten
    flatten_axes = _flatten.flatten_axes
    max = _reductions.max
    mean = _reductions.mean
    min = _reductions.min
    prod = product = _reductions.prod
    ptp = _reductions.ptp
    ravel = _flatten.ravel
    rearrange = _rearrange.rearrange
    rename = _broadcast.rename
    round = _arithmetic.round
    slice = _slice.slice
    sort = _cumulative.sort
    split = _concatenate.split
    squeeze = _broadcast.squeeze
    std = _reductions.std
    sum = _reductions.sum
    take = take
    trace = _matrix.trace
    unbind = _concatenate.unbind
    unflatten_axis = _flatten.unflatten_axis
    updated_slice = _slice.updated_slice
    var = _reductions.var


# Comparing with anything else, such as a string or None, is left to Python, which compares identities.
_OPERANDS = (NamedBase, int, float, complex, np.ndarray, np.generic, jax.Array)


def _compare_elements(fn: Callable[[Any, Any], Any], x: NamedArray, other: Any) -> Any:
    return fn(x, other) if isinstance(other, _OPERANDS) else NotImplemented


def is_named_array(x: Any) -> bool:
    """Returns whether something is a named array, for `is_leaf` or as a filter.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> tree = {"x": nym.ones({"i": 2}), "y": 1.0}
        >>> [nym.is_named_array(leaf) for leaf in jax.tree.leaves(tree, is_leaf=nym.is_named_array)]
        [True, False]
    """
    return isinstance(x, NamedArray)


def parse_array_names(array: Any, axes: Any) -> Names:
    """Returns the names of axes given by name, as `Axis` or as a mapping, checked against the array."""
    if isinstance(array, NamedBase):
        raise make_error(TypeError, f"{format_shape(array)} has names already; use `rename` to change them.")
    if not hasattr(array, "shape"):
        raise make_error(
            TypeError, f"A `NamedArray` holds an array, not a {type(array).__name__}; `axonym.named` makes one of it."
        )
    if isinstance(array, MaskedArray):
        raise make_error(TypeError, f"An array of shape {array.shape} {MASK_PROBLEM}.")
    if type(axes) is not tuple:
        check_ordered(axes)
    axes = parse_selection(axes)
    sizes = tuple(array.shape)
    names = intern_names(tuple(axis_name(axis) for axis in axes))
    if len(names) != len(sizes):
        hint = "; give several names as a tuple" if len(names) == 1 and " " in names[0] else ""
        raise make_error(
            ValueError,
            f"an array of shape {sizes} has {len(sizes)} axes, {len(names)} are named: {format_axes(names)}{hint}",
        )
    check_unique_names(names)
    for axis in axes:
        if isinstance(axis, Axis):
            find_axis(names, sizes, axis)  # raises an error if it has another size
    if not isinstance(array, jax.Array | np.ndarray | jax.ShapeDtypeStruct):
        _check_order(array, names)
    return names


def _check_order(array: Any, names: Names) -> None:
    """Raises a ValueError if an array of xarray or pandas has a dimension of one of the names at another position."""
    if hasattr(array, "dims"):
        dims = array.dims
    elif hasattr(array, "index") and hasattr(array, "columns"):
        dims = (array.index.name, array.columns.name)
    else:
        return
    if any(name in dims and name != dim for name, dim in zip(names, dims, strict=False)):
        raise make_error(
            ValueError,
            f"the dimensions of the `{type(array).__name__}` are {format_axes([*map(str, dims)])}, which the names "
            f"{format_axes(names)} would exchange; give them in that order, and `rearrange` the result",
        )


def _rebuild_array(array: Any, names: Names) -> NamedArray:
    result = object.__new__(NamedArray)
    set_array(result, array)
    set_names(result, intern_names(names))
    return result


def register_array_class(kind: type[NamedArray]) -> None:
    """Makes a class of named arrays a pytree with one child, the array; the names are part of the tree structure."""

    def unflatten_array(names: Names, children: Any) -> NamedArray:
        result = _new(kind)
        set_array(result, children[0])
        set_names(result, names)
        return result

    jax.tree_util.register_pytree_with_keys(
        kind,
        lambda x: (((_ARRAY_KEY, x.array),), x.names),
        unflatten_array,
        lambda x: ((x.array,), x.names),
    )


_new = object.__new__  # looked up once: JAX unflattens the arrays of a model at each call
_ARRAY_KEY = jax.tree_util.GetAttrKey("array")

register_array_class(NamedArray)

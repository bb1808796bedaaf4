"""`NamedArray` with the attributes and orders of axes of Haliax, its annotations, and the conversion of results."""

import dataclasses
import functools
from collections.abc import Set
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

import jax
import jax.numpy as jnp

from ..named import _array
from ..named._axis import Axis, AxisSelection, AxisSelector
from ..named._base import set_array, set_names
from ..named._elementwise._arithmetic import clip
from ..named._reduce._reductions import var
from ..named._shape._flatten import ravel
from . import _axis_names, _operations


@dataclasses.dataclass(frozen=True, repr=False)
class NamedArrayAxes:
    """The axes, and perhaps the dtype, that an annotation such as `f32["batch embed ..."]` describes.

    Args:
        before: Names before `...`, or all of them.
        after: Names after `...`.
        ordered: Whether the names have an order.
        subset: Whether there may be other axes, where the `...` is.
        dtype: A dtype, or a kind of dtypes such as `jnp.floating`; None for any.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.NamedArrayAxes(("batch",), subset=True)
        NamedArray[batch ...]
    """

    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    ordered: bool = True
    subset: bool = False
    dtype: Any = None

    @staticmethod
    def parse(spec: Any, dtype: Any = None) -> "NamedArrayAxes":
        """Returns the description given as a string, a sequence, a set, an annotation or as it is."""
        if get_args(spec):  # of `Annotated[NamedArray, axes]`
            spec = get_args(spec)[1]
        if isinstance(spec, NamedArrayAxes):
            return spec
        items = spec.split() if isinstance(spec, str) else list(spec)
        names = ["..." if item is ... else item for item in items]
        if names.count("...") > 1 or not all(isinstance(name, str) for name in names):
            raise ValueError(f"axes are names in order or in a set, with at most one `...`, not {spec!r}")
        ordered, subset = not isinstance(spec, Set), "..." in names
        if subset and ordered:
            position = names.index("...")
            return NamedArrayAxes(tuple(names[:position]), tuple(names[position + 1 :]), ordered, subset, dtype)
        return NamedArrayAxes(tuple(name for name in names if name != "..."), (), ordered, subset, dtype)

    @staticmethod
    def annotate(array: type, axes: Any, dtype: Any = None) -> Any:
        """Returns the annotation of an array class with axes and a dtype."""
        return Annotated[array, NamedArrayAxes.parse(axes, dtype)]

    def matches(self, names: tuple[str, ...], dtype: Any) -> bool:
        """Returns whether names and a dtype are as described."""
        kind = getattr(self.dtype, "category", self.dtype)  # a `DTypeCategory` has the kind of dtypes in a field
        if kind is not None and not jnp.issubdtype(dtype, kind):
            return False
        described = (*self.before, *self.after)
        if len(names) < len(described) or (len(names) > len(described) and not self.subset):
            return False
        if not self.ordered:
            return set(described) <= set(names)
        return names[: len(self.before)] == self.before and names[len(names) - len(self.after) :] == self.after

    def __repr__(self) -> str:
        """Formats the names."""
        dots = ["..."] if self.subset else []
        if self.ordered:
            text = " ".join([*self.before, *dots, *self.after])
        else:
            text = f"{{{', '.join([*self.before, *dots])}}}"
        return f"NamedArray[{text}]" if self.dtype is None else f"NamedArray[{self.dtype} {text}]"


T = TypeVar("T")


@dataclasses.dataclass
class _Fields:
    """The fields that `dataclasses.replace` sees in an array."""

    array: Any
    axis_names: Any


class NamedArray(_array.NamedArray):
    """An `axonym.NamedArray` with the attributes of Haliax's and its orders of axes.

    Operations on it return the same class. `shape` is a dict, `dot` keeps the order in which axes occur in the
    operands, several index arrays follow NumPy's rule, `split` and `unbind` return lists, and `dataclasses.replace`
    accepts it.

    Args:
        array: Anything with a shape and an element type.
        axis_names: One name or `Axis` for each axis of the array, in order; or a mapping from name to size.
        axes: The same, under its older name.

    Example:
        >>> import axonym.haliax as hax
        >>> import dataclasses
        >>> x = hax.ones({"batch": 2, "embed": 3})
        >>> x.shape.keys() - {"batch"}, dataclasses.replace(x, array=2 * x.array).sum().item()
        ({'embed'}, 12.0)
    """

    __slots__ = ()
    # With these, `dataclasses.replace` calls the constructor with the fields that do not change.
    __dataclass_fields__: ClassVar[Any] = _Fields.__dataclass_fields__

    def __init__(self, array: Any, axis_names: Any = None, *, axes: Any = None) -> None:
        """Checks names and sizes; see the class."""
        super().__init__(array, axis_names if axes is None else axes)

    def __class_getitem__(cls, axes: Any) -> Any:
        """Returns the annotation of an array with these axes."""
        return NamedArrayAxes.annotate(cls, axes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies the array and the names."""
        return NamedArray, (self.array, self.names)

    @property
    def shape(self) -> dict[str, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The sizes by name."""
        return dict(super().shape.items())

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The names in order."""
        return self.names

    @property
    def at(self) -> Any:
        """Selects elements to read or replace: `x.at["pos", 3].set(0.0)`."""
        return _operations.Updates(self)

    def __getitem__(self, items: Any) -> Self:
        """Selects elements by named axis; several index arrays follow NumPy's rule for the place of their axes."""
        return _operations.index(self, items)

    def __matmul__(self, other: Any) -> Any:
        """Raises a ValueError, since the axes to contract are needed."""
        raise ValueError("`@` cannot name the axes to contract; use `dot(x, y, axis=...)`.")

    __rmatmul__ = __matmul__

    def axis_size(self, axis: AxisSelection) -> Any:
        """Returns the size of an axis, or a tuple of the sizes of several."""
        if isinstance(axis, str | Axis):
            return super().axis_size(axis)
        return tuple(resolved.size for resolved in _axis_names.resolve_axis(self.axes, tuple(axis)))

    def axis_indices(self, axis: AxisSelection) -> Any:
        """Returns the position of an axis, None if it is missing, or a tuple of the positions of several."""
        if isinstance(axis, str | Axis):
            return super().axis_indices(axis) if self.has_axis(axis) else None
        return tuple(self.axis_indices(selector) for selector in axis)

    def resolve_axis(self, axes: AxisSelection) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns the axes of a selection with their sizes: an `Axis`, a tuple or a dict, as the selection is."""
        return _axis_names.resolve_axis(self.axes, axes)

    def matches_axes(self, spec: Any) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns whether the axes, and the dtype if it is given, match an annotation or a description of axes."""
        return NamedArrayAxes.parse(spec).matches(self.names, self.dtype)

    def dot(self, *args: Any, **options: Any) -> Any:
        """Multiplies with other arrays and sums over `axis`; the result has the order of the operands."""
        if args and _operations.is_axis_selection(args[0]):
            return _operations.dot(args[0], self, *args[1:], **options)
        return _operations.dot(self, *args, **options)

    def clip(self, a_min: Any = None, a_max: Any = None) -> Self:
        """Limits the elements to an interval."""
        return clip(self, a_min, a_max)

    def flatten(self, new_axis_name: AxisSelector) -> Self:
        """Merges all axes into one."""
        return ravel(self, new_axis_name)

    def var(self, axis: AxisSelection | None = None, dtype: Any = None, ddof: int = 0, *, where: Any = None) -> Self:
        """Returns the variance of the elements along axes."""
        return var(self, axis, where=where, ddof=ddof, dtype=dtype)

    def tobytes(self, order: str = "C") -> bytes:
        """Returns the elements as bytes, in C or Fortran order."""
        return jax.device_get(self.array).tobytes(order)

    argsort = _operations.argsort
    broadcast_axis = _operations.broadcast_axis
    cumprod = _operations.cumprod
    cumsum = _operations.cumsum
    flatten_axes = _operations.flatten_axes
    rename = _operations.rename
    updated_slice = _operations.updated_slice
    rearrange = _operations.rearrange
    sort = _operations.sort
    split = _operations.split
    take = _operations.take
    unbind = _operations.unbind


def _make_operator(name: str) -> Any:
    """Returns an operator that gives a plain array for a scalar and a plain array, as in the carries of JAX's loops."""
    apply = getattr(_array.NamedArray, name)

    @functools.wraps(apply)
    def apply_operator(self: NamedArray, other: Any) -> Any:
        # Axonym refuses a plain array with axes, as its axes have no names.
        if not self.names and getattr(other, "ndim", 0) and not _array.is_named_array(other):
            return getattr(self.array, name)(other)
        return apply(self, other)

    return apply_operator


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")

for _operator in (*_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC), "lt", "le", "gt", "ge"):
    setattr(NamedArray, f"__{_operator}__", _make_operator(f"__{_operator}__"))


def convert_result(tree: T) -> T:
    """Returns a tree with every named array as a `NamedArray` of this package."""
    if type(tree) is NamedArray or isinstance(tree, jax.Array | str | bool | int | float | type(None)):
        return tree
    if isinstance(tree, _array.NamedArray):  # most results; `jax.tree.map` would take longer
        return _convert_leaf(tree)
    return jax.tree.map(_convert_leaf, tree, is_leaf=_array.is_named_array)


def _convert_leaf(x: Any) -> Any:
    if not isinstance(x, _array.NamedArray) or isinstance(x, NamedArray):
        return x
    # Without the checks of the constructor: names and sizes fit.
    result = object.__new__(NamedArray)
    set_array(result, x.array)
    set_names(result, x.names)
    return result


_array.register_array_class(NamedArray)

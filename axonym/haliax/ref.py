"""`haliax.ref`: mutable arrays, with views, `value` and the attributes of Haliax's."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..named import _named_ref
from ..named._axis import Axis, AxisSelector, axis_name
from ..named._index import count_from_front, dslice
from ._array import NamedArray, convert_result
from ._axis_names import resolve_axis


class NamedRef(_named_ref.NamedRef):
    """A mutable array with named axes, or a view of some of its elements; `new_ref` makes one.

    Args:
        ref: The `jax.Ref`.
        names: The name of each axis of the `jax.Ref`.
        view: The index of the view, None for all elements.

    Example:
        >>> import axonym.haliax as hax
        >>> ref = hax.new_ref(hax.zeros({"layer": 2, "pos": 3}))
        >>> ref.slice({"layer": 1})["pos", 0] = 5.0
        >>> ref.value().array
        Array([[0., 0., 0.],
               [5., 0., 0.]], dtype=float32)
    """

    __slots__ = ("view",)

    def __init__(self, ref: Any, names: Any, view: Mapping[str, Any] | None = None) -> None:
        """Stores them; `new_ref` and `slice` make them consistent."""
        super().__init__(ref, names)
        self.view = dict(view or {})

    @property
    def _ref(self) -> Any:
        """The `jax.Ref`."""
        return self.ref

    @property
    def _prefix(self) -> tuple[Any, ...]:
        """The index of the view for each axis of the `jax.Ref`, with slices as `jax.experimental.pallas` has them."""
        return tuple(_convert_to_pallas(self.view.get(name, slice(None))) for name in self.names)

    def _get_all(self) -> _named_ref.NamedRef:
        return _named_ref.NamedRef(self.ref, self.names)

    def _get_index(self) -> dict[str, Any]:
        """Returns the index of the view as an array takes it."""
        return {name: _restore_slice(index) for name, index in self.view.items()}

    def value(self) -> NamedArray:
        """Returns the elements."""
        return convert_result(_named_ref.get(self._get_all(), self._get_index() or None))  # pyright: ignore[reportReturnType]

    def slice(self, selector: Mapping[AxisSelector, Any]) -> "NamedRef":
        """Returns a view of the selected elements, to be read and written like the array itself."""
        view = dict(self.view)
        for axis, index in selector.items():
            name = axis_name(axis)
            if name not in self.names:
                raise ValueError(f"no axis {name!r} in ({', '.join(self.names)})")
            size = self.ref.shape[self.names.index(name)]
            view[name] = _compose_index(name, view[name], index) if name in view else _convert_slice(index, size)
        return NamedRef(self.ref, self.names, view)

    def unsliced(self) -> "NamedRef":
        """Returns the entire mutable array."""
        return NamedRef(self.ref, self.names)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the view in order."""
        if not self.view:
            return super().axes
        return jax.eval_shape(self.value).axes  # indices of several axes may add and move axes

    @property
    def shape(self) -> dict[str, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The sizes by name."""
        if not self.view:
            return dict(super().shape.items())
        return {axis.name: axis.size for axis in self.axes}

    @property
    def named_shape(self) -> dict[str, int]:
        """The sizes by name."""
        return self.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.axes)

    def resolve_axis(self, axis: AxisSelector) -> Axis:
        """Returns the `Axis` of a name."""
        return resolve_axis(self.axes, axis)

    def __getitem__(self, items: Any) -> NamedArray:
        """Reads elements by named axis."""
        if not self.view:
            return convert_result(_named_ref.get(self._get_all(), items))  # pyright: ignore[reportReturnType]
        value = self.value()
        return value if items is ... else value[items]

    def __setitem__(self, items: Any, value: Any) -> None:
        """Replaces elements by named axis."""
        everything = self._get_all()
        if not self.view:
            everything[items] = value
        elif items is ...:
            everything[self._get_index()] = value
        else:
            everything[self._get_index()] = self.value().at[items].set(value)


def _convert_slice(index: Any, size: int) -> Any:
    """Returns a slice as a `range`, which is hashable, and other indices as they are."""
    if isinstance(index, slice):
        return range(size)[index]
    if isinstance(index, dslice) and not isinstance(index.start, int):
        return dslice(count_from_front(index.start, size), index.length)
    if isinstance(index, dslice):
        start = index.start % size if index.start < 0 else index.start
        if start + index.length > size:
            raise IndexError(f"a `dslice` of {index.length} elements from {start} runs over the end, {size}")
        return range(start, start + index.length)
    return index


def _restore_slice(index: Any) -> Any:
    """Returns a `range` as a slice, and other indices as they are."""
    if not isinstance(index, range):
        return index
    return slice(index.start, index.stop if index.stop >= 0 else None, index.step)


def _convert_to_pallas(index: Any) -> Any:
    """Returns a slice as one of `jax.experimental.pallas`, and other indices as they are."""
    if not isinstance(index, range | dslice):
        return index
    from jax.experimental import pallas  # which takes long to import

    if isinstance(index, dslice):
        return pallas.ds(index.start, index.length)
    return pallas.Slice(index.start, len(index), index.step)


def _compose_index(name: str, outer: Any, inner: Any) -> Any:
    """Returns the index into an array that corresponds to an index into a view of it."""
    if not isinstance(outer, range | dslice):
        raise NotImplementedError(f"axis {name!r} of this view is indexed already; index it once, from `unsliced()`")
    step, length = (outer.step, len(outer)) if isinstance(outer, range) else (1, outer.length)
    inner = _convert_slice(inner, length)
    if isinstance(inner, int):
        if not -length <= inner < length:
            raise IndexError(f"index {inner} is out of range for axis {name!r} of size {length}")
        return outer.start + step * (inner % length)
    if isinstance(inner, range) and isinstance(outer, range):
        return outer[_restore_slice(inner)]
    if isinstance(inner, range | dslice):
        stride, count = (inner.step, len(inner)) if isinstance(inner, range) else (1, inner.length)
        start = outer.start + step * inner.start
        if step * stride == 1:
            return dslice(start, count)
        return start + step * stride * jnp.arange(count)  # a `dslice` has no step
    if isinstance(inner, list):
        return [_compose_index(name, outer, int(position)) for position in inner]
    return outer.start + step * jax.tree.map(lambda positions: count_from_front(positions, length), inner)


def _flatten_ref(x: NamedRef) -> tuple[Any, Any]:
    """Returns the `jax.Ref` and the traced indices as children, and the others with the names as the static part."""
    static = tuple((name, index) for name, index in x.view.items() if isinstance(index, int | range))
    traced = {name: index for name, index in x.view.items() if not isinstance(index, int | range)}
    return ((jax.tree_util.GetAttrKey("ref"), x.ref), (jax.tree_util.GetAttrKey("view"), traced)), (x.names, static)


def _restore_ref(static: Any, children: Any) -> NamedRef:
    return NamedRef(children[0], static[0], {**dict(static[1]), **children[1]})


jax.tree_util.register_pytree_with_keys(NamedRef, _flatten_ref, _restore_ref)


def new_ref(value: Any) -> NamedRef:
    """Makes a mutable array from a copy of a named array; see `axonym.new_ref`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.new_ref(hax.ones({"pos": 2})).value().array
        Array([1., 1.], dtype=float32)
    """
    ref = _named_ref.new_ref(value)
    return NamedRef(ref.ref, ref.names)


def get(ref: NamedRef, idx: Any = ...) -> NamedArray:
    """Reads elements of a mutable array: `get(ref, {"pos": 3})` is `ref["pos", 3]`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.get(hax.new_ref(hax.ones({"pos": 2})), {"pos": 0}).item()
        1.0
    """
    return ref[idx]


def swap(ref: NamedRef, idx: Any, value: Any) -> NamedArray:
    """Replaces elements of a mutable array and returns the previous ones.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.swap(hax.new_ref(hax.ones({"pos": 2})), {"pos": 0}, 3.0).item()
        1.0
    """
    previous = ref[idx]
    ref[idx] = value
    return previous


def freeze(ref: NamedRef) -> NamedArray:
    """Returns the elements of a mutable array, which must not be used afterwards.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.freeze(hax.new_ref(hax.ones({"pos": 2}))).array
        Array([1., 1.], dtype=float32)
    """
    frozen: Any = convert_result(_named_ref.freeze(NamedRef(ref.ref, ref.names)))
    return frozen[ref._get_index()] if ref.view else frozen

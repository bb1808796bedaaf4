"""`NamedRef` with views, `value` and the attributes of Haliax's."""

from collections.abc import Mapping
from typing import Any

import jax

from ..named import _named_ref
from ..named._axis import Axis, AxisSelector, axis_name
from ._array import NamedArray, convert_result
from ._axis_names import resolve_selection


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

    def _get_all(self) -> _named_ref.NamedRef:
        return _named_ref.NamedRef(self.ref, self.names)

    def value(self) -> NamedArray:
        """Returns the elements."""
        return convert_result(_named_ref.get(self._get_all(), self.view or None))  # pyright: ignore[reportReturnType]

    def slice(self, selector: Mapping[AxisSelector, Any]) -> "NamedRef":
        """Returns a view of the selected elements, to be read and written like the array itself."""
        selected = {axis_name(axis): index for axis, index in selector.items()}
        if twice := [name for name in selected if name in self.view]:
            raise ValueError(f"axis {twice[0]!r} of this view is sliced already; slice it once, from `unsliced()`")
        if missing := [name for name in selected if name not in self.names]:
            raise ValueError(f"no axis {missing[0]!r} in ({', '.join(self.names)})")
        return NamedRef(self.ref, self.names, {**self.view, **selected})

    def unsliced(self) -> "NamedRef":
        """Returns the entire mutable array."""
        return NamedRef(self.ref, self.names)

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the view in order."""
        if not self.view:
            return super().axes
        return jax.eval_shape(self.value).axes

    @property
    def shape(self) -> dict[str, int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The sizes by name."""
        return {axis.name: axis.size for axis in self.axes} if self.view else dict(super().shape.items())

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
        return resolve_selection(self.axes, axis)

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
            everything[self.view] = value
        else:
            everything[self.view] = self.value().at[items].set(value)


def _restore_ref(names: Any, children: Any) -> NamedRef:
    return NamedRef(children[0], names, children[1])


jax.tree_util.register_pytree_with_keys(
    NamedRef,
    lambda x: (((jax.tree_util.GetAttrKey("ref"), x.ref), (jax.tree_util.GetAttrKey("view"), x.view)), x.names),
    _restore_ref,
)


def new_ref(value: Any) -> NamedRef:
    """Makes a mutable array from a copy of a named array; see `axonym.new_ref`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.new_ref(hax.ones({"pos": 2})).value().array
        Array([1., 1.], dtype=float32)
    """
    made = _named_ref.new_ref(value)
    return NamedRef(made.ref, made.names)


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
    return frozen[ref.view] if ref.view else frozen

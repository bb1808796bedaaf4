"""A state dict while it is written to files: arrays that are made when they are needed, and the axes of each.

The methods of modules return state dicts as for `to_state_dict`. So what the call that writes the entire tree wants of
them is in a context variable.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..named._base import get_plain_array
from ._keys import eval_shapes
from ._merged_axes import find_merged_dims, list_array_leaves
from ._safetensors_file import SavedAxes


class StateDictWriter:
    """What the call that writes the entire tree wants.

    Attributes:
        flattens: Whether layers merge their axes, as by `flatten_modules`.
        defers: Whether arrays that have to be computed are made later.
    """

    def __init__(self, flattens: bool, defers: bool) -> None:
        self.flattens, self.defers = flattens, defers
        self._axes: dict[int, tuple[Any, SavedAxes]] = {}  # by the `id` of an array, which is kept

    def add_axes(self, array: Any, axes: SavedAxes) -> None:
        """Remembers the axes of a plain array, unless they are known already."""
        self._axes.setdefault(id(array), (array, axes))

    def find_axes(self, array: Any) -> SavedAxes | None:
        """Returns the axes of a plain array; None if a module has computed it."""
        found = self._axes.get(id(array))
        return None if found is None else found[1]

    def add_flattened(self, module: Any, flat: Any) -> None:
        """Remembers the axes of the arrays of a module whose axes have been merged."""
        merged = find_merged_dims(module)
        if merged is None:
            return
        for own, array, dims in zip(list_array_leaves(module), list_array_leaves(flat), merged, strict=True):
            axes = list_named_sizes(own)
            if axes is not None:
                self.add_axes(get_plain_array(array), tuple(tuple(axes[at] for at in dim) for dim in dims))


def list_named_sizes(x: Any) -> tuple[tuple[str, int], ...] | None:
    """Returns the names and sizes of the axes of an array; None if it has no names."""
    names = getattr(x, "names", None)
    return None if names is None else tuple(zip(names, get_plain_array(x).shape, strict=True))


_writer: ContextVar[StateDictWriter | None] = ContextVar("writer", default=None)


def get_writer() -> StateDictWriter | None:
    return _writer.get()


@contextmanager
def use_writer(*, flattens: bool, defers: bool, parent: StateDictWriter | None = None) -> Iterator[StateDictWriter]:
    """Activates a writer, which shares the axes that it knows with another one."""
    writer = StateDictWriter(flattens, defers)
    if parent is not None:
        writer._axes = parent._axes
    token = _writer.set(writer)
    try:
        yield writer
    finally:
        _writer.reset(token)


class DeferredArray:
    """An array of a state dict that is made when it is needed, together with the others of its module."""

    def __init__(self, source: "_DeferredArrays", key: str, shape: Any) -> None:
        self._source, self._key, self.shape, self.dtype = source, key, shape.shape, shape.dtype
        self.ndim, self.size = len(shape.shape), shape.size

    def make(self) -> Any:
        """Returns the array."""
        return self._source.take(self._key)

    def __jax_array__(self) -> Any:
        return self.make()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.make().__array__(dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.make(), name)


class _DeferredArrays:
    """The arrays of one module: made when the first is needed, and each kept until it has been."""

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make, self._made = make, dict[str, Any]()

    def take(self, key: str) -> Any:
        if key not in self._made:
            self._made = self._make()
        return self._made.pop(key)


def defer_writing(write: Callable[[Any], dict[str, Any]], tree: Any) -> dict[str, Any]:
    """Returns the state dict `write(tree)`, of which the arrays are made later if files are being written."""
    writer = get_writer()
    if writer is None or not writer.defers:
        return write(tree)
    axes: dict[str, SavedAxes | None] = {}

    def trace(tree: Any) -> dict[str, Any]:
        with use_writer(flattens=writer.flattens, defers=False) as inner:
            arrays = write(tree)
        axes.update({key: inner.find_axes(array) for key, array in arrays.items()})
        return arrays

    def make() -> dict[str, Any]:
        with use_writer(flattens=writer.flattens, defers=False):
            return write(tree)

    source = _DeferredArrays(make)
    found: dict[str, Any] = {}
    for key, shape in eval_shapes(trace, tree).items():
        found[key] = DeferredArray(source, key, shape)
        if (known := axes[key]) is not None:
            writer.add_axes(found[key], known)
    return found

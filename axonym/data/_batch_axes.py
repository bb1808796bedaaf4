"""The axes of the arrays of a batch: names for plain arrays, and what each array has."""

from typing import Any

import jax
from jax.tree_util import keystr
from numpy.ma import MaskedArray

from ..named._array import NamedArray
from ..named._axis import Axis, Names, axis_name
from ..named._format import format_axes, format_value
from ..named._numpy_input import MASK_PROBLEM
from ..partitioning.specs._leaves import describe_leaves, get_array_shape


class BatchAxes:
    """The axes that a user gives for the arrays of each batch: a tree of names and axes, a prefix of the batches."""

    def __init__(self, axes: Any) -> None:
        paths, self._treedef = jax.tree_util.tree_flatten_with_path(axes, is_leaf=_is_axes)
        self._parts = [(keystr(path), axes) for path, axes in paths]
        self.sizes: dict[str, int] = {}
        """The sizes of the axes that have one, in all processes together."""
        for path, part in self._parts:
            if not _is_axes(part):
                raise TypeError(f"`axes{path}` is a name, an `Axis`, or a tuple of these, not {format_value(part)}.")
            for axis in _list_axes(part):
                if isinstance(axis, Axis) and self.sizes.setdefault(axis.name, axis.size) != axis.size:
                    raise ValueError(
                        f"`axes` has axis {axis.name!r} of size {self.sizes[axis.name]} and of size {axis.size}; an "
                        "axis has one size, that in all processes together"
                    )

    def name_arrays(self, batch: Any) -> Any:
        """Returns a batch of named arrays."""
        try:
            parts = self._treedef.flatten_up_to(batch)
        except ValueError as error:
            raise ValueError(f"`axes` does not fit the batch: {str(error).splitlines()[0]}") from None
        named = [_name_part(path, axes, part) for (path, axes), part in zip(self._parts, parts, strict=True)]
        return self._treedef.unflatten(named)


def list_batch_arrays(batch: Any) -> list[tuple[str, Names, Any]]:
    """Returns path, names and array of each leaf of a batch that is an array.

    Raises:
        ValueError: If an array has no names or is a masked one, or there is no array.
    """
    found: list[tuple[str, Names, Any]] = []
    for leaf, about in zip(jax.tree.leaves(batch), describe_leaves(batch), strict=True):
        shape, path = get_array_shape(leaf), keystr(about.path)
        if shape is None:
            continue
        if isinstance(leaf, MaskedArray):
            raise ValueError(f"{path + ': ' if path else ''}an array of shape {shape} {MASK_PROBLEM}")
        names = about.names_of(shape) if shape else ()
        if names is None:
            raise ValueError(
                f"{path + ': ' if path else ''}an array of shape {shape} has no names; yield named arrays, or pass "
                "`axes` to `ShardedLoader`, as in `axes=('batch', 'pos')`"
            )
        found.append((path, names, leaf))
    if not found:
        raise ValueError(f"a batch has no arrays: {format_value(batch)}")
    return found


def format_array_axes(names: Names, array: Any) -> str:
    return f"{array.dtype} {format_axes(names, array.shape)}"


def _is_axes(x: Any) -> bool:
    return x is None or isinstance(x, str | Axis) or (type(x) is tuple and all(isinstance(y, str | Axis) for y in x))


def _list_axes(axes: Any) -> tuple[Any, ...]:
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)


def _name_part(path: str, axes: Any, part: Any) -> Any:
    """Returns a part of a batch whose arrays all have these axes; without axes, as it is."""
    if axes is None:
        return part
    names = tuple(axis_name(axis) for axis in _list_axes(axes))
    try:
        return jax.tree.map(
            lambda leaf: NamedArray(leaf, names), part, is_leaf=lambda node: isinstance(node, NamedArray)
        )
    except (TypeError, ValueError) as error:
        raise type(error)(f"{f'batch{path}: '}{error}") from None

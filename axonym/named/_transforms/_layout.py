"""How arguments are cut along an axis and results put together: what is static about a call of a transformation."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from .._array import NamedArray, is_named_array
from .._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    axis_name,
    check_selected_once,
    find_axis,
    format_value,
    intern_names,
    parse_selection,
)
from .._base import format_shape, with_array


Answer: TypeAlias = bool | int | None
Part: TypeAlias = Answer | Callable[[Any], Answer]
"""Whether a plain array takes part: with its first axis, with the one at a position, or as a function of it says."""

WHOLE: Any = object()
"""Stands for the `Part` of what is given whole to every slice, be it named or not."""


def is_array_with_axes(x: Any) -> bool:
    """Tells whether something is a plain array with at least one axis."""
    return isinstance(x, jax.Array | np.ndarray) and bool(x.shape)


def is_array(x: Any) -> bool:
    """Tells whether something is a plain array or a scalar of NumPy's."""
    return isinstance(x, _PLAIN)


_PLAIN = (jax.Array, np.ndarray, np.generic)
_ARRAYS = (NamedArray, *_PLAIN)


def axes_of(axis: AxisSelection) -> tuple[AxisSelector, ...]:
    """Returns the axes to run along, outermost first; each may be given once."""
    axes = parse_selection(axis)
    check_selected_once(tuple(map(axis_name, axes)))
    return axes


class Layout(NamedTuple):
    """What is static about arguments of which some arrays are cut along an axis and others given to every slice."""

    axis: Axis
    treedef: Any
    dims: tuple[int | None, ...]  # for each leaf where it has the axis, None if it is not cut
    others: tuple[tuple[int, type, Any], ...]  # leaves that are no arrays: where they are, of what type, themselves

    @property
    def cut_dims(self) -> tuple[int, ...]:
        """Where the axis is in each of the arrays that are cut."""
        return tuple(dim for dim in self.dims if dim is not None)

    def cut(self, leaves: Sequence[Any]) -> list[Any]:
        """Returns the plain arrays that are cut."""
        return [plain(leaf) for leaf, dim in zip(leaves, self.dims, strict=True) if dim is not None]

    def rebuilt(self, leaves: Sequence[Any], slices: Sequence[Any]) -> Any:
        """Returns the arguments with slices, given as plain arrays, in place of what is cut."""
        supply, nodes = iter(slices), list(leaves)
        for at, dim in enumerate(self.dims):
            if dim is not None:
                nodes[at] = _without(leaves[at], dim, next(supply))
        for at, _, other in self.others:
            nodes[at] = other
        return jax.tree.unflatten(self.treedef, nodes)


def plain(node: Any) -> Any:
    """Returns the plain array of a named one, and anything else as it is."""
    return node.array if isinstance(node, NamedArray) else node


def _without(node: Any, dim: int, array: Any) -> Any:
    return with_array(node, array, node.names[:dim] + node.names[dim + 1 :]) if isinstance(node, NamedArray) else array


def laid_out(tree: Any, axis: AxisSelector, parts: Part | list[Part], function: str) -> tuple[list[Any], Layout]:
    """Returns the leaves of arguments, None for those that are no arrays, and how they are cut along an axis.

    Args:
        tree: The arguments.
        axis: The axis.
        parts: Which plain arrays take part, for all leaves or for each.
        function: The name of the transformation, for errors.

    Raises:
        ValueError: If no argument has an axis given by name, or sizes differ.
    """
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_named_array)
    each = parts if isinstance(parts, list) else [parts] * len(leaves)
    name = axis_name(axis)
    dims = tuple([_dim(leaf, axis, name, part) for leaf, part in zip(leaves, each, strict=True)])
    found = [(leaf, dim, plain(leaf).shape[dim]) for leaf, dim in zip(leaves, dims, strict=True) if dim is not None]
    size = _common_size(found, axis, function)
    others = other_leaves(leaves)
    for at, _, _ in others:
        leaves[at] = None
    return leaves, Layout(Axis(name, size), treedef, dims, others)


def other_leaves(leaves: Sequence[Any]) -> tuple[tuple[int, type, Any], ...]:
    """Returns the leaves that are no arrays: where they are, of what type, and themselves."""
    return tuple([(at, type(x), x) for at, x in enumerate(leaves) if not isinstance(x, _ARRAYS)])


def _common_size(found: list[tuple[Any, int, int]], axis: AxisSelector, function: str) -> int:
    name = axis_name(axis)
    if isinstance(axis, Axis):
        size = axis.size
    elif not found:
        raise ValueError(f"`{function}` over axis {name!r}: no argument has it; give an `Axis` with its size")
    else:
        size = next((size for leaf, _, size in found if is_named_array(leaf)), found[0][2])
    for leaf, _, here in found:
        if here != size:
            what = format_shape(leaf) if is_named_array(leaf) else f"a plain array of shape {leaf.shape}"
            raise ValueError(f"`{function}` over axis {name!r} of size {size} got {what}, which has {here} there")
    return size


def _dim(node: Any, axis: AxisSelector, name: str, part: Part) -> int | None:
    if part is WHOLE:
        return None
    if isinstance(node, NamedArray):
        return find_axis(node.names, node.array.shape, axis) if name in node.names else None
    if not is_array_with_axes(node):
        return None
    answer: Any = part(node) if callable(part) else part
    if answer is None or isinstance(answer, bool | np.bool_):
        return 0 if answer else None
    return _whole_position(answer, node)


def _whole_position(answer: Any, node: Any) -> int:
    if not isinstance(answer, int | np.integer):
        raise TypeError(
            f"Which axis of a plain array takes part is said by True, False, None or an integer, not {format_value(answer)}."
        )
    at = operator.index(answer)
    if not -node.ndim <= at < node.ndim:
        raise ValueError(f"a plain array of shape {node.shape} has no axis at position {at}")
    return at % node.ndim


@jax.tree_util.register_static
class Other:
    """A result that is no array, carried through JAX as part of the structure of the results."""

    def __init__(self, value: Any) -> None:
        """Keeps it."""
        self.value = value


def packed(results: Any, axis: str) -> Any:
    """Returns what a body returned with the names that the results of all slices will have."""
    return jax.tree.map(lambda node: _with_axis(node, axis), results, is_leaf=is_named_array)


def _with_axis(node: Any, axis: str) -> Any:
    if not is_named_array(node):
        return node if is_array(node) else Other(node)
    if axis in node.names:
        raise ValueError(f"the result {format_shape(node)} has axis {axis!r} already, which it gains here")
    return with_array(node, node.array, intern_names((axis, *node.names)))


def unpacked(results: Any) -> Any:
    """Returns results with what is no array as it was."""
    return jax.tree.map(
        lambda node: node.value if isinstance(node, Other) else node,
        results,
        is_leaf=lambda node: isinstance(node, Other) or is_named_array(node),
    )

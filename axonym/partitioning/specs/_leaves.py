"""The leaves of a tree: the shape of each and, from the tree's structure, its names, path and mapping.

Descriptions depend on the structure alone, so a compiled function makes them once for all calls with one structure.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import DictKey, SequenceKey

from ...named._array import NamedArray
from ...named._axis import Names
from ...named._cache import cached_plan
from ...named._field import HasLeadingAxes, get_declared_axes
from ...named._numpy_input import is_jax_dtype
from ..mapping._mapping import AxisMapping
from ._sharded_by import ShardedBy


ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)
"""The types of arrays, and of what stands for an array."""


def get_array_shape(leaf: Any) -> tuple[int, ...] | None:
    """Returns the shape of an array of any kind, named arrays and shapes without data included; None for other leaves.

    NumPy arrays of dtypes that JAX does not support, such as text, do not count as arrays.
    """
    leaf = leaf.array if isinstance(leaf, NamedArray) else leaf
    if isinstance(leaf, np.ndarray | np.generic) and not is_jax_dtype(leaf.dtype):
        return None
    shape = getattr(leaf, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) and hasattr(leaf, "dtype") else None


class Leaf(NamedTuple):
    """A leaf of a tree, as the structure of the tree describes it.

    Args:
        names: The names of its axes, None if it has none.
        declared: Whether a field declares the names.
        path: Its key path.
        mapping: The mapping of the part of the tree that it belongs to, None for the mapping of the call.
        leading_axes: The axes along which the enclosing layers are stacked, in addition to the declared ones.
        decision: What a fallback rule decides for it, which does not follow from the structure.
    """

    names: Names | None
    declared: bool
    path: tuple[Any, ...]
    mapping: AxisMapping | None = None
    leading_axes: Names = ()
    decision: Any = None

    def names_of(self, sizes: tuple[int, ...]) -> Names | None:
        """Returns the names of an array of these sizes in this place, None if it has none or they do not fit."""
        if self.names is None or len(self.names) == len(sizes):
            return self.names
        stacked = (*self.leading_axes, *self.names)
        return stacked if self.leading_axes and len(stacked) == len(sizes) else None


def describe_leaves(
    tree: Any, path: tuple[Any, ...] = (), mapping: AxisMapping | None = None, leading_axes: Names = ()
) -> list[Leaf]:
    """Returns a description of each leaf of a tree, in order; it is the same for all trees of one structure.

    If the tree is part of another one, it has a path there, perhaps a mapping, and the leading axes of stacked layers.
    """
    declared = get_declared_axes(type(tree))
    mapping = tree.mapping if type(tree) is ShardedBy else mapping
    leading_axes = (*leading_axes, *tree._leading_axes()) if isinstance(tree, HasLeadingAxes) else leading_axes
    pairs, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: isinstance(x, NamedArray) or (x is not tree and _describes_leaves(x))
    )
    found: list[Leaf] = []
    for keys, node in pairs:
        where = (*path, *keys)
        if isinstance(node, NamedArray):
            found += [Leaf(node.names, False, where, mapping)] * len(jax.tree.leaves(node.array))
        elif node is not tree and _describes_leaves(node):
            found += describe_leaves(node, where, mapping, leading_axes)
        else:
            names = _get_declared_names(declared, keys)
            found.append(Leaf(names, names is not None, where, mapping, () if names is None else leading_axes))
    return found


def _describes_leaves(node: Any) -> bool:
    return names_or_maps_leaves(type(node)) or isinstance(node, HasLeadingAxes)


@cached_plan
def names_or_maps_leaves(cls: type) -> bool:
    """Returns whether nodes of a class declare names or a mapping for the leaves inside them."""
    return cls is ShardedBy or bool(get_declared_axes(cls))


def _get_declared_names(declared: dict[str, Names], keys: tuple[Any, ...]) -> Names | None:
    """Returns the names declared for a leaf: by the field that holds it, directly or in lists, tuples and dicts."""
    inside = all(isinstance(key, SequenceKey | DictKey) for key in keys[1:])
    return declared.get(getattr(keys[0], "name", "")) if declared and keys and inside else None

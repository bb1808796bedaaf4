"""Trees in which a named array is one leaf: `jax.tree_util` with names."""

from ._tree_util import (
    resize_axis as resize_axis,
    scan_aware_tree_map as scan_aware_tree_map,
    tree_flatten as tree_flatten,
    tree_leaves as tree_leaves,
    tree_map as tree_map,
    tree_structure as tree_structure,
    tree_unflatten as tree_unflatten,
)

"""The functions of `axonym.tree` by the names that `jax.tree_util` gives them."""

from ..tree import _tree


tree_map = _tree.map
scan_aware_tree_map = _tree.scan_aware_map
tree_flatten = _tree.flatten
tree_unflatten = _tree.unflatten
tree_leaves = _tree.leaves
tree_structure = _tree.structure

"""`haliax.tree`: trees in which a named array is one leaf, by the names of `jax.tree`."""

from .. import tree
from ..tree import (
    flatten as flatten,
    leaves as leaves,
    map as map,
    scan_aware_map as scan_aware_map,
    structure as structure,
)
from ._adapt import adapt


unflatten = adapt(tree.unflatten, "treedef=structure")

"""Trees in which a named array is one leaf: `jax.tree` with names."""

from ._tree import (
    flatten as flatten,
    leaves as leaves,
    map as map,
    scan_aware_map as scan_aware_map,
    structure as structure,
    unflatten as unflatten,
)

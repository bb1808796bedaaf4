"""`haliax.tree_util`: trees in which a named array is one leaf."""

from typing import Any

import equinox as eqx
import jax

from .. import tree_util
from ..tree_util import (
    scan_aware_tree_map as scan_aware_tree_map,
    tree_flatten as tree_flatten,
    tree_leaves as tree_leaves,
    tree_map as tree_map,
    tree_structure as tree_structure,
)
from ._adapt import adapt
from .jax_utils import maybe_rng_split as maybe_rng_split
from .util import is_named_array as is_named_array


resize_axis = adapt(tree_util.resize_axis)
tree_unflatten = adapt(tree_util.tree_unflatten, "treedef=structure")


def hashable_partition(pytree: Any, filter_spec: Any) -> tuple[Any, Any]:
    """Splits a tree by a filter into the part that passes, and the rest in a form that is hashable.

    Example:
        >>> import axonym.haliax as hax
        >>> dynamic, static = hax.tree_util.hashable_partition({"a": 1, "b": "c"}, lambda x: isinstance(x, int))
        >>> hax.tree_util.hashable_combine(dynamic, static)
        {'a': 1, 'b': 'c'}
    """
    dynamic, static = eqx.partition(pytree, filter_spec)
    leaves, treedef = jax.tree.flatten(static)
    return dynamic, (tuple(leaves), treedef)


def hashable_combine(dynamic: Any, static: Any) -> Any:
    """Combines the two parts of `hashable_partition`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.tree_util.hashable_combine(*hax.tree_util.hashable_partition([1, 2], lambda x: x > 1))
        [1, 2]
    """
    leaves, treedef = static
    return eqx.combine(dynamic, jax.tree.unflatten(treedef, leaves))

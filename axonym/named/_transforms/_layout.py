"""What `axonym.partitioning` uses to partition arguments into arrays and static leaves."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .._array import NamedArray, is_named_array


_PLAIN = (jax.Array, np.ndarray, np.generic)
_ARRAYS = (NamedArray, *_PLAIN)


def is_array(x: Any) -> bool:
    """Returns whether something is a plain array or a NumPy scalar."""
    return isinstance(x, _PLAIN)


def plain(node: Any) -> Any:
    """Returns the plain array of a named array, and anything else as it is."""
    return node.array if isinstance(node, NamedArray) else node


def other_leaves(leaves: Sequence[Any]) -> tuple[tuple[int, type, Any], ...]:
    """Returns the leaves that are not arrays: position, type and value of each."""
    return tuple([(at, type(x), x) for at, x in enumerate(leaves) if not isinstance(x, _ARRAYS)])


@jax.tree_util.register_static
class Other:
    """A result that is not an array, carried through JAX as part of the structure of the results."""

    def __init__(self, value: Any) -> None:
        """Stores it."""
        self.value = value


def unpacked(results: Any) -> Any:
    """Returns results with static leaves as they were."""
    return jax.tree.map(
        lambda node: node.value if isinstance(node, Other) else node,
        results,
        is_leaf=lambda node: isinstance(node, Other) or is_named_array(node),
    )

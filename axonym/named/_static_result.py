"""Results of traced functions with leaves that are not arrays.

JAX returns arrays only, so the tree structure of such a result carries its other leaves.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_dataclass
@dataclass(eq=False, slots=True)
class ResultWithStatic:
    """A result whose arrays are children and whose other leaves are part of the tree structure."""

    arrays: tuple[Any, ...]
    # A function, because JAX compares tree structures, and other leaves need not be comparable.
    restore: Callable[[tuple[Any, ...]], Any] = field(metadata={"static": True})


def pack_result(result: Any) -> Any:
    """Returns a result that a traced function may return: itself if all leaves are arrays, else `ResultWithStatic`."""
    leaves, treedef = jax.tree.flatten(result)
    arrays = tuple(leaf for leaf in leaves if is_array(leaf))
    if len(arrays) == len(leaves):
        return result
    # The class stands for an array, because no function returns it as a leaf.
    placeholders = [ResultWithStatic if is_array(leaf) else leaf for leaf in leaves]

    def restore(arrays: tuple[Any, ...]) -> Any:
        elements = iter(arrays)
        return treedef.unflatten(next(elements) if leaf is ResultWithStatic else leaf for leaf in placeholders)

    return ResultWithStatic(arrays, restore)


def unpack_result(result: Any) -> Any:
    """Returns the original result of the function, undoing `pack_result`."""
    return result.restore(result.arrays) if type(result) is ResultWithStatic else result


def is_array(leaf: Any) -> bool:
    """Returns whether a leaf is a plain array or a NumPy scalar."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)

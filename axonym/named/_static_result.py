"""Results of traced functions with leaves that are not arrays.

JAX returns arrays only, so the tree structure of such a result carries its other leaves.
"""

from typing import Any

import jax
import numpy as np


class _StaticLeaves:
    """The structure of a result and its leaves that are not arrays; compared by identity."""

    __slots__ = ("leaves", "treedef")

    def __init__(self, treedef: Any, leaves: list[Any]) -> None:
        self.treedef, self.leaves = treedef, leaves


@jax.tree_util.register_pytree_node_class
class ResultWithStatic:
    """A result whose arrays are children and whose other leaves are part of the tree structure."""

    __slots__ = ("arrays", "static")

    def __init__(self, arrays: tuple[Any, ...], static: _StaticLeaves) -> None:
        self.arrays, self.static = arrays, static

    def tree_flatten(self) -> tuple[tuple[Any, ...], _StaticLeaves]:
        return self.arrays, self.static

    @classmethod
    def tree_unflatten(cls, static: _StaticLeaves, arrays: tuple[Any, ...]) -> "ResultWithStatic":
        return cls(tuple(arrays), static)


def pack_result(result: Any) -> Any:
    """Returns a result that a traced function may return: itself if all leaves are arrays, else `ResultWithStatic`."""
    leaves, treedef = jax.tree.flatten(result)
    arrays = tuple(leaf for leaf in leaves if is_array(leaf))
    if len(arrays) == len(leaves):
        return result
    # The class stands for an array, because no function returns it as a leaf.
    placeholders = [ResultWithStatic if is_array(leaf) else leaf for leaf in leaves]
    return ResultWithStatic(arrays, _StaticLeaves(treedef, placeholders))


def unpack_result(result: Any) -> Any:
    """Returns the original result of the function, undoing `pack_result`."""
    if type(result) is not ResultWithStatic:
        return result
    arrays = iter(result.arrays)
    leaves = [next(arrays) if leaf is ResultWithStatic else leaf for leaf in result.static.leaves]
    return jax.tree.unflatten(result.static.treedef, leaves)


def is_array(leaf: Any) -> bool:
    """Returns whether a leaf is a plain array or a NumPy scalar."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)

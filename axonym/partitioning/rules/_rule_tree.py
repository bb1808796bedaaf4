"""The leaves of a tree as rules see them: each with its path, named arrays as one leaf."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec as P

from ...named._array import NamedArray
from ..specs._leaves import get_array_shape


class RuleLeaf(NamedTuple):
    """A leaf of a tree with its path, and the spec that an earlier rule of a composite has decided, if any."""

    path: tuple[Any, ...]
    array: Any
    spec: P | None = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Returns the shape of an array, None for other leaves."""
        return get_array_shape(self.array)


@dataclasses.dataclass(frozen=True)
class RuleTree:
    """All leaves of a tree, or some of them; `tree` is None if these are only some."""

    leaves: Sequence[RuleLeaf]
    tree: Any = None

    @classmethod
    def from_tree(cls, tree: Any) -> "RuleTree":
        """Returns all leaves of a tree, each named array as one leaf."""
        pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_named)
        return cls([RuleLeaf(*pair) for pair in pairs], tree)

    def to_tree(self) -> Any:
        """Returns the tree, or a tree of the leaves alone, with the same paths and order."""
        return _make_path_tree(self.leaves) if self.tree is None else self.tree

    def fill(self, values: Iterable[Any]) -> Any:
        """Returns the tree with other values in place of its leaves."""
        return jax.tree.structure(self.tree, is_leaf=_is_named).unflatten(values)


def flatten_up_to(tree: Any, values: Any) -> list[Any]:
    """Returns the values that a tree has in place of the leaves of another one, in order.

    A value may be in a named array in place of a named array. Another structure raises a ValueError.
    """
    found = jax.tree.structure(tree, is_leaf=_is_named).flatten_up_to(values)
    return [value.array if isinstance(value, NamedArray) else value for value in found]


def _is_named(x: Any) -> bool:
    return isinstance(x, NamedArray)


@jax.tree_util.register_pytree_with_keys_class
class PathNode:
    """A node of a tree of some leaves of another tree, with the keys that these have there."""

    __slots__ = ("children", "keys")

    def __init__(self, children: tuple[Any, ...], keys: tuple[Any, ...]) -> None:
        self.children, self.keys = children, keys

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]:
        return tuple(zip(self.keys, self.children, strict=True)), self.keys

    @classmethod
    def tree_unflatten(cls, keys: tuple[Any, ...], children: Iterable[Any]) -> "PathNode":
        return cls(tuple(children), keys)


def _make_path_tree(leaves: Sequence[RuleLeaf], depth: int = 0) -> Any:
    """Returns a tree of some leaves of another one, which all have the same keys before `depth`."""
    if len(leaves) == 1 and len(leaves[0].path) == depth:
        return leaves[0].array
    keys: list[Any] = []
    groups: list[list[RuleLeaf]] = []
    for leaf in leaves:
        key, is_last = leaf.path[depth], len(leaf.path) == depth + 1
        if not groups or is_last or keys[-1] != key:
            keys.append(key)
            groups.append([])
        groups[-1].append(leaf)
    return PathNode(tuple(_make_path_tree(group, depth + 1) for group in groups), tuple(keys))

"""What is known of each leaf of a tree before its array is looked at: names, path, and the mapping of its part.

It depends on the structure of the tree alone, so a compiled function finds it out once for all calls of one structure.
"""

import dataclasses
import functools
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jax.tree_util import DictKey, SequenceKey

from ...named._array import NamedArray
from ...named._axis import Names, format_value
from ...named._field import HasLeadingAxes, get_declared_axes
from ..mapping._axis_mapping import AxisMapping, ResourceMapping, as_mapping


T = TypeVar("T")

ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)
"""What is an array, or stands for one."""


class Leaf(NamedTuple):
    """A leaf of a tree: the names of its axes if there are any, whether a field declares them, and where it is.

    A part of a tree may go by a mapping of its own, which its leaves then have; None is the mapping of the call. The
    axes in front are those that layers are stacked along, beside the declared ones. What a fallback rule says is not
    known from the structure; `ruled` adds it.
    """

    names: Names | None
    declared: bool
    path: tuple[Any, ...]
    mapping: AxisMapping | None = None
    in_front: Names = ()
    ruled: Any = None

    def names_of(self, sizes: tuple[int, ...]) -> Names | None:
        """Returns the names of an array of these sizes here, None if it has none or is no array that they were for."""
        if self.names is None or len(self.names) == len(sizes):
            return self.names
        stacked = (*self.in_front, *self.names)
        return stacked if self.in_front and len(stacked) == len(sizes) else None


@functools.partial(jax.tree_util.register_dataclass, data_fields=["tree"], meta_fields=["mapping"])
@dataclasses.dataclass(frozen=True, init=False)
class ShardedBy(Generic[T]):
    """A part of a tree that goes by a mapping of its own, whatever mapping the rest goes by.

    It is a pytree with one child, the part; the mapping is in the tree's structure. `shard`, and `named_jit` for
    arguments and results, shard the part by it in place of the mapping given or in force. Of two that are nested, the
    inner one holds.

    Args:
        tree: The part, any tree of arrays.
        mapping: From names to mesh axes. It is complete: nothing of the mapping in force is added.

    Raises:
        TypeError: If the mapping is none.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> x = nym.ones({"batch": 8, "embed": 4})
        >>> with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        ...     one, other = nym.shard((x, nym.ShardedBy(x, {"embed": "model"})), {"batch": "data"})
        >>> one.sharding.spec, other.tree.sharding.spec
        (P('data', None), P(None, 'model'))
    """

    tree: T
    mapping: AxisMapping

    def __init__(self, tree: T, mapping: ResourceMapping) -> None:
        """Keeps both; see the class."""
        object.__setattr__(self, "tree", tree)
        object.__setattr__(self, "mapping", require_complete_mapping(mapping))


def require_complete_mapping(mapping: Any) -> AxisMapping:
    """Returns a mapping that has to be given.

    Raises:
        TypeError: If it is None, or no mapping.
    """
    found = None if mapping is None else as_mapping(mapping)
    if found is None:
        raise TypeError(
            f"A mapping from names to mesh axes is needed, as {{'mlp': 'model'}} is, not {format_value(mapping)}."
        )
    return found


def describe_leaves(
    tree: Any, path: tuple[Any, ...] = (), mapping: AxisMapping | None = None, in_front: Names = ()
) -> list[Leaf]:
    """Returns what is known of each leaf of a tree, in order; it is the same for all trees of one structure.

    Args:
        tree: The tree.
        path: Where it is.
        mapping: The mapping of the part that it is in, None if that has none of its own.
        in_front: The axes that the layers are stacked along that it is in.
    """
    declared = get_declared_axes(type(tree))
    mapping = tree.mapping if type(tree) is ShardedBy else mapping
    in_front = (*in_front, *tree._leading_axes()) if isinstance(tree, HasLeadingAxes) else in_front
    pairs, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: type(x) is NamedArray or (x is not tree and _is_special(type(x)))
    )
    found: list[Leaf] = []
    for keys, node in pairs:
        where = (*path, *keys)
        if type(node) is NamedArray:
            found += [Leaf(node.names, False, where, mapping)] * len(jax.tree.leaves(node.array))
        elif node is not tree and _is_special(type(node)):
            found += describe_leaves(node, where, mapping, in_front)
        else:
            names = _declared_names(declared, keys)
            found.append(Leaf(names, names is not None, where, mapping, () if names is None else in_front))
    return found


@functools.lru_cache(maxsize=4096)
def _is_special(cls: type) -> bool:
    """Tells whether a node says something about the leaves in it: names, a mapping, or axes in front."""
    return cls is ShardedBy or issubclass(cls, HasLeadingAxes) or bool(get_declared_axes(cls))


def _declared_names(declared: dict[str, Names], keys: tuple[Any, ...]) -> Names | None:
    """Returns the names declared for a leaf: for the field that holds it, itself or in lists, tuples and dicts."""
    inside = all(isinstance(key, SequenceKey | DictKey) for key in keys[1:])
    return declared.get(getattr(keys[0], "name", "")) if declared and keys and inside else None

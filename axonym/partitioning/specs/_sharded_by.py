"""`ShardedBy`: a part of a tree with a mapping of its own."""

import dataclasses
import functools
from typing import Any, Generic, TypeVar

import jax

from ...named._format import format_value
from ..mapping._mapping import AxisMapping, ResourceMapping, as_mapping


T = TypeVar("T")


@functools.partial(jax.tree_util.register_dataclass, data_fields=["tree"], meta_fields=["mapping"])
@dataclasses.dataclass(frozen=True, init=False)
class ShardedBy(Generic[T]):
    """A part of a tree with a mapping of its own, which replaces the mapping of the rest.

    It is a pytree with one child, the part; the mapping belongs to the tree's structure. `shard`, and `named_jit` for
    arguments and results, shard the part by it instead of the given or active mapping. Where two are nested, the inner
    one applies.

    Args:
        tree: The part, any tree of arrays.
        mapping: From names to mesh axes. It is complete: nothing of the active mapping is added.

    Raises:
        TypeError: If the mapping is not a mapping.

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
        object.__setattr__(self, "tree", tree)
        object.__setattr__(self, "mapping", require_complete_mapping(mapping))


def require_complete_mapping(mapping: Any) -> AxisMapping:
    """Returns the given mapping; raises a TypeError if it is None, or not a mapping."""
    found = None if mapping is None else as_mapping(mapping)
    if found is None:
        raise TypeError(
            f"A mapping from names to mesh axes is needed, such as {{'mlp': 'model'}}, not {format_value(mapping)}."
        )
    return found

"""`in_axis_resources` and `out_axis_resources`: one mapping or one for each argument or result, and how they shard."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
from jax.sharding import Mesh

from .._active_mesh import get_active_mesh, require_mesh
from .._leaves import LeafInfo, describe_leaves
from .._mapping import AxisMapping, ResourceMapping, as_mapping
from .._shard import drop_unmapped_names, shard_by_mapping, shard_leaves, shard_tree
from ._arguments import ArgumentKey, Signature, fill_tree


ResourceMappings: TypeAlias = ResourceMapping | Sequence[ResourceMapping | None]
"""One mapping for everything, or one for each argument or result, with None for those without a mapping."""


class Mappings:
    """One mapping for all arguments or results, or one for each.

    Attributes:
        by_position: The mapping of each argument or result; None if there is one mapping for all.
        common: The mapping for all; empty if there is one for each.
        is_sharding: Whether any mapping is not empty.
    """

    def __init__(self, mappings: Any) -> None:
        self.by_position: tuple[AxisMapping | None, ...] | None = None
        self.common = AxisMapping()
        if isinstance(mappings, list | tuple):
            self.by_position = tuple([None if mapping is None else as_mapping(mapping) for mapping in mappings])
        else:
            self.common = as_mapping(mappings) or AxisMapping()
        self.is_sharding = bool(self.common) or any(self.by_position or ())

    def find_stored(self, mapping: AxisMapping | None) -> AxisMapping | None:
        """Returns the mapping by which parameters are stored: the only one of these that is not `mapping`, or None."""
        mappings = {*(self.by_position or (self.common,))} - {None, mapping}
        return mappings.pop() if len(mappings) == 1 else None

    def check_arity(self, signature: Signature) -> None:
        entries, max_entries = len(self.by_position or ()), len(signature.positional)
        if entries > max_entries and not signature.any_position:
            raise ValueError(
                f"`in_axis_resources` has {entries} entries; the function takes {max_entries} arguments by position: "
                f"{', '.join(signature.positional)}"
            )

    def describe_arguments(self, signature: Signature, treedef: Any) -> list[LeafInfo]:
        """Describes each leaf of `(args, kwargs)`, with the mapping of its argument."""
        if self.by_position is None:
            return signature.describe_arguments(treedef)
        args, kwargs = fill_tree(treedef)
        described: list[LeafInfo] = []
        for number, (name, value) in enumerate(signature.name_arguments(args, kwargs)):
            position: int | None = number
            if number >= len(args):  # passed by keyword
                position = signature.positional.index(name) if name in signature.positional else None
            if position is not None and position >= len(self.by_position):
                raise ValueError(
                    f"`in_axis_resources` has {len(self.by_position)} entries, but argument {name!r} is number "
                    f"{position + 1}; give one for each argument by position, with None to leave an argument as it is"
                )
            mapping = None if position is None else self.by_position[position]
            part = describe_leaves(value, (ArgumentKey(name),), mapping)
            described += drop_unmapped_names(part) if mapping is None else part
        return described

    def shard_results(self, result: Any, default: AxisMapping | None, name: str) -> Any:
        """Returns the result of a function, each part sharded by its mapping, or by `default` if it has none."""
        if self.by_position is None:
            return shard_tree(result, self.common)
        is_several = isinstance(result, tuple | list)
        if not is_several or len(result) != len(self.by_position):
            result_text = f"{len(result)} results" if is_several else f"one result, a {type(result).__name__}"
            raise ValueError(
                f"`out_axis_resources` has {len(self.by_position)} entries, and `{name}` returns {result_text}; give "
                "one mapping for all, or as many as there are results"
            )
        mappings = [default if mapping is None else mapping for mapping in self.by_position]
        parts = [shard_by_mapping(part, mapping) for part, mapping in zip(result, mappings, strict=True)]
        # Through the structure of its first level, which makes a named tuple one again.
        return jax.tree.unflatten(jax.tree.structure(result, is_leaf=lambda x: x is not result), parts)


class EntrySharding:
    """Shards the arguments of one tree structure on entry; most calls find all of them in place."""

    def __init__(self, mappings: Mappings, described: list[LeafInfo], purpose: str) -> None:
        self._mappings, self._described, self._purpose = mappings, described, purpose
        self._final_places: Any = None  # mesh, shapes and shardings of a call with all arguments in place
        used_mappings = {mappings.common, *(leaf.mapping for leaf in described)}
        # A fallback rule may depend on more than shapes and shardings, so it is asked at every call.
        self._asks_rule = any(mapping is not None and mapping.fallback is not None for mapping in used_mappings)

    def place(self, leaves: list[Any]) -> list[Any]:
        """Returns the leaves of a call, moved where they are not in place."""
        mesh = require_mesh(self._purpose) if self._mappings.is_sharding else get_active_mesh()
        if not isinstance(mesh, Mesh):  # tracers are constrained, and have no sharding to look at
            return shard_leaves(leaves, self._described, self._mappings.common, mesh)
        places = mesh, [getattr(x, "shape", None) for x in leaves], [getattr(x, "sharding", None) for x in leaves]
        if self._final_places == places:
            return leaves
        placed = shard_leaves(leaves, self._described, self._mappings.common, mesh)
        if placed is leaves and not self._asks_rule:
            self._final_places = places
        return placed

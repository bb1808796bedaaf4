"""Mappings by argument and by result, as `in_axis_resources` and `out_axis_resources` give them."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
from jax.sharding import Mesh

from ..mapping._mapping import AxisMapping, ResourceMapping, as_mapping
from ..sharding._shard import shard_by_mapping, shard_leaves, shard_tree, skip_unmapped_leaves
from ..specs._active_mesh import get_active_mesh, require_mesh
from ..specs._leaves import Leaf, describe_leaves
from ._signature import ArgumentKey, Signature, fill_tree


ResourceMappings: TypeAlias = ResourceMapping | Sequence[ResourceMapping | None]
"""One mapping for everything, or one for each argument or result, with None for those without a mapping."""


class Mappings:
    """One mapping for all arguments or results, or one for each.

    Attributes:
        each: The mapping of each argument or result; None if there is one mapping for all.
        every: The mapping for all; empty if there is one for each.
        common: The only mapping among them, None if there are several.
        is_sharding: Whether any mapping is not empty.
    """

    __slots__ = ("common", "each", "every", "is_sharding")

    def __init__(self, given: Any) -> None:
        self.each: tuple[AxisMapping | None, ...] | None = None
        self.every = AxisMapping()
        if isinstance(given, list | tuple):
            self.each = tuple([None if one is None else as_mapping(one) for one in given])
        else:
            self.every = as_mapping(given) or AxisMapping()
        different = {one for one in self.each or (self.every,) if one is not None}
        self.common = different.pop() if len(different) == 1 else None
        self.is_sharding = bool(self.every) or any(self.each or ())

    def check_arity(self, signature: Signature) -> None:
        most = len(signature.positional)
        if len(self.each or ()) > most and not signature.any_position:
            raise ValueError(
                f"`in_axis_resources` has {len(self.each or ())} entries; the function takes {most} arguments by "
                f"position: {', '.join(signature.positional)}"
            )

    def describe_arguments(self, signature: Signature, treedef: Any) -> list[Leaf]:
        """Describes each leaf of `(args, kwargs)`, with the mapping of its argument; each needs an entry."""
        if self.each is None:
            return signature.describe_arguments(treedef)
        args, kwargs = fill_tree(treedef)
        leaves: list[Leaf] = []
        for at, (name, value) in enumerate(signature.name_arguments(args, kwargs)):
            positional = signature.positional
            place = at if at < len(args) else positional.index(name) if name in positional else None
            if place is not None and place >= len(self.each):
                raise ValueError(
                    f"`in_axis_resources` has {len(self.each)} entries, but argument {name!r} is number {place + 1}; "
                    "give one for each argument by position, with None to leave an argument as it is"
                )
            mapping = None if place is None else self.each[place]
            described = describe_leaves(value, (ArgumentKey(name),), mapping)
            leaves += skip_unmapped_leaves(described) if mapping is None else described
        return leaves

    def shard_results(self, result: Any, default: AxisMapping | None, name: str) -> Any:
        """Returns the result of a function, each part sharded by its mapping, or by `default` if it has none."""
        if self.each is None:
            return shard_tree(result, self.every)
        if not isinstance(result, tuple | list) or len(result) != len(self.each):
            several = isinstance(result, tuple | list)
            what = f"{len(result)} results" if several else f"one result, a {type(result).__name__}"
            raise ValueError(
                f"`out_axis_resources` has {len(self.each)} entries, and `{name}` returns {what}; give one mapping for "
                "all, or as many as there are results"
            )
        pairs = zip(result, self.each, strict=True)
        parts = [shard_by_mapping(part, default if own is None else own) for part, own in pairs]
        return jax.tree.unflatten(jax.tree.structure(result, is_leaf=lambda x: x is not result), parts)


class EntrySharding:
    """Shards the arguments of one tree structure on entry; most calls find all of them in place."""

    __slots__ = ("_described", "_in_place", "_is_memorable", "_mappings", "_purpose")

    def __init__(self, mappings: Mappings, described: list[Leaf], purpose: str) -> None:
        self._mappings, self._described, self._purpose = mappings, described, purpose
        self._in_place: Any = None
        used = {mappings.every, *(leaf.mapping for leaf in described)}
        # A fallback rule may depend on more than shapes and shardings, so it is asked at every call.
        self._is_memorable = all(one is None or one.fallback is None for one in used)

    def place(self, leaves: list[Any]) -> list[Any]:
        """Returns the leaves of a call, moved where they are not in place."""
        mesh = require_mesh(self._purpose) if self._mappings.is_sharding else get_active_mesh()
        if not isinstance(mesh, Mesh):  # tracers are constrained, and have no sharding to look at
            return shard_leaves(leaves, self._described, self._mappings.every, mesh)
        layout = mesh, [getattr(x, "shape", None) for x in leaves], [getattr(x, "sharding", None) for x in leaves]
        if self._in_place == layout:
            return leaves
        placed = shard_leaves(leaves, self._described, self._mappings.every, mesh)
        if placed is leaves and self._is_memorable:
            self._in_place = layout
        return placed

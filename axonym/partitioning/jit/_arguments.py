"""The arguments of a compiled function: their names, which of them are static, and the mappings that shard them.

A call of `named_jit` has trees that hold arrays and anything else; `jax.jit` takes arrays and hashable static
arguments. `ArgumentPartition` depends on the tree structure and the leaf types alone and assigns each leaf to one of
three groups: donated arrays, other arrays and static leaves. The arrays go to `jax.jit` as two flat tuples, which it
flattens fastest. The static leaves go there together with the tree structure, as a single `StaticArgs`. While JAX
traces, `StaticArgs.merge` rebuilds the trees.

Arguments are named as in the signature of the function, `state.weight` rather than `args[0].weight`, whether they are
passed by position or by keyword.
"""

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from itertools import compress
from typing import Any, TypeAlias

import jax
from jax.sharding import Mesh

from ..._jax_compat import TRACER
from ...named._cache import get_static_value, make_static_key, needs_static_key, shared_object
from .._active_mesh import get_active_mesh, require_mesh
from .._leaves import ARRAY_TYPES, LeafInfo, describe_leaves
from .._mapping import AxisMapping, ResourceMapping, as_mapping
from .._shard import shard_by_mapping, shard_leaves, shard_tree, skip_unmapped_leaves


_DYNAMIC_TYPES = (*ARRAY_TYPES, jax.Ref, TRACER)
ResourceMappings: TypeAlias = ResourceMapping | Sequence[ResourceMapping | None]
"""One mapping for everything, or one for each argument or result, with None for those without a mapping."""


class Signature:
    """The parameters of a function by kind; some builtins have no signature and take anything."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        try:
            kinds = {name: parameter.kind for name, parameter in inspect.signature(fn).parameters.items()}
        except (TypeError, ValueError):
            kinds = {"args": Parameter.VAR_POSITIONAL, "kwargs": Parameter.VAR_KEYWORD}
        by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        self.positional = [name for name, kind in kinds.items() if kind in by_position]
        self.named = [name for name, kind in kinds.items() if kind not in variadic]
        self.by_keyword = {name for name in self.named if kinds[name] != Parameter.POSITIONAL_ONLY}
        self.any_position = Parameter.VAR_POSITIONAL in kinds.values()
        self.any_keyword = Parameter.VAR_KEYWORD in kinds.values()
        self._variadic = next((name for name, kind in kinds.items() if kind == Parameter.VAR_POSITIONAL), "args")

    def name_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yields the name and value of each argument of a call, in the order in which JAX flattens them."""
        count = len(self.positional)
        for position, value in enumerate(args):
            yield self.positional[position] if position < count else f"{self._variadic}[{position - count}]", value
        for name in sorted(kwargs):
            yield name, kwargs[name]

    def describe_arguments(self, treedef: Any) -> list[LeafInfo]:
        """Describes each leaf of `(args, kwargs)`; its path begins with the name of the argument."""
        args, kwargs = fill_tree(treedef)
        return [
            leaf
            for name, value in self.name_arguments(args, kwargs)
            for leaf in describe_leaves(value, (ArgumentKey(name),))
        ]


def fill_tree(treedef: Any) -> Any:
    """Returns a tree of this structure whose leaves are their positions."""
    return jax.tree.unflatten(treedef, range(treedef.num_leaves))


class ArgumentKey:
    """The name of an argument as the first key of a path."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        """Returns the name, which `keystr` shows as it is."""
        return self.name


def is_array_type(kind: type) -> bool:
    """Returns whether leaves of this type are arrays to `jax.jit`; others are static."""
    return issubclass(kind, _DYNAMIC_TYPES)


class ArgumentPartition:
    """Which leaves of a tree structure are donated arrays, which are other arrays, and which are static.

    Args:
        treedef: The tree structure.
        donated: For each leaf, whether it is a donated array.
        static: For each leaf, whether it is static.
        static_types: The types of the static leaves.

    Attributes:
        undonated: For each leaf, whether it is an array that is not donated.
    """

    def __init__(
        self, treedef: Any, donated: tuple[bool, ...], static: tuple[bool, ...], static_types: tuple[type, ...]
    ) -> None:
        self.treedef, self.donated, self.static = treedef, donated, static
        self.undonated = tuple([not flag and not static for flag, static in zip(donated, static, strict=True)])
        self.is_donating = any(donated)
        self._has_numbers = any(map(needs_static_key, static_types))
        self._last: StaticArgs | None = None
        self._make_static_args = shared_object(lambda *keys: StaticArgs(self, keys))
        self._only_undonated = self._make_static_args() if all(self.undonated) else None

    def split(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], "StaticArgs"]:
        """Returns the donated arrays, the other arrays and the static argument; TypeError if a leaf is not hashable."""
        if self._only_undonated is not None:
            # The most frequent case; takes 0.5 us less, of 8 us for a call with one array.
            return (), tuple(leaves), self._only_undonated
        donated, undonated = tuple(compress(leaves, self.donated)), tuple(compress(leaves, self.undonated))
        values = tuple(compress(leaves, self.static))
        if not self._has_numbers:
            return donated, undonated, self._make_static_args(*values)
        last = self._last  # making keys takes 1 us for a float and 8 us for a config of ten fields; most stay the same
        if last is None or not all(map(operator.is_, values, last.values)):
            self._last = last = self._make_static_args(*map(make_static_key, values))
        return donated, undonated, last


class StaticArgs:
    """The static leaves of a call and the tree structure of its arguments, as one static argument of `jax.jit`.

    A partition has one for equal values, numbers by their bits, while JAX or a compiled function holds it; both compare
    it by identity. A `__eq__` in Python would let other threads run while JAX searches its cache of compiled calls,
    which may crash (seen in jaxlib 0.10.2 and 0.12.0).
    """

    def __init__(self, partition: ArgumentPartition, keys: tuple[Any, ...]) -> None:
        self.partition, self.values = partition, tuple(map(get_static_value, keys))

    def merge_leaves(
        self, donated: Iterable[Any], undonated: Iterable[Any], static: Iterable[Any] | None = None
    ) -> list[Any]:
        """Returns the leaves of the arguments, with other values for the static leaves if given."""
        arrays, static_values = (iter(donated), iter(undonated)), iter(self.values if static is None else static)
        partition = self.partition
        return [
            next(static_values) if is_static else next(arrays[is_undonated])  # the second of them if it is True
            for is_undonated, is_static in zip(partition.undonated, partition.static, strict=True)
        ]

    def merge(self, donated: Iterable[Any], undonated: Iterable[Any], static: Iterable[Any] | None = None) -> Any:
        """Returns the arguments `(args, kwargs)`; see `merge_leaves`."""
        return jax.tree.unflatten(self.partition.treedef, self.merge_leaves(donated, undonated, static))


class Mappings:
    """One mapping for all arguments or results, or one for each.

    Attributes:
        each: The mapping of each argument or result; None if there is one mapping for all.
        every: The mapping for all; empty if there is one for each.
        is_sharding: Whether any mapping is not empty.
    """

    def __init__(self, mappings: Any) -> None:
        self.each: tuple[AxisMapping | None, ...] | None = None
        self.every = AxisMapping()
        if isinstance(mappings, list | tuple):
            self.each = tuple([None if mapping is None else as_mapping(mapping) for mapping in mappings])
        else:
            self.every = as_mapping(mappings) or AxisMapping()
        self.is_sharding = bool(self.every) or any(self.each or ())

    def find_stored(self, computing: AxisMapping | None) -> AxisMapping | None:
        """Returns the mapping by which parameters are stored: the only one but that for computing, None if several."""
        mappings = {mapping for mapping in self.each or (self.every,) if mapping is not None and mapping != computing}
        return mappings.pop() if len(mappings) == 1 else None

    def check_arity(self, signature: Signature) -> None:
        entries, max_entries = len(self.each or ()), len(signature.positional)
        if entries > max_entries and not signature.any_position:
            raise ValueError(
                f"`in_axis_resources` has {entries} entries; the function takes {max_entries} arguments by position: "
                f"{', '.join(signature.positional)}"
            )

    def describe_arguments(self, signature: Signature, treedef: Any) -> list[LeafInfo]:
        """Describes each leaf of `(args, kwargs)`, with the mapping of its argument; each needs an entry."""
        if self.each is None:
            return signature.describe_arguments(treedef)
        args, kwargs = fill_tree(treedef)
        leaves: list[LeafInfo] = []
        for number, (name, value) in enumerate(signature.name_arguments(args, kwargs)):
            position: int | None = number
            if number >= len(args):  # passed by keyword
                position = signature.positional.index(name) if name in signature.positional else None
            if position is not None and position >= len(self.each):
                raise ValueError(
                    f"`in_axis_resources` has {len(self.each)} entries, but argument {name!r} is number "
                    f"{position + 1}; give one for each argument by position, with None to leave an argument as it is"
                )
            mapping = None if position is None else self.each[position]
            described = describe_leaves(value, (ArgumentKey(name),), mapping)
            leaves += skip_unmapped_leaves(described) if mapping is None else described
        return leaves

    def shard_results(self, result: Any, default: AxisMapping | None, name: str) -> Any:
        """Returns the result of a function, each part sharded by its mapping, or by `default` if it has none."""
        if self.each is None:
            return shard_tree(result, self.every)
        is_several = isinstance(result, tuple | list)
        if not is_several or len(result) != len(self.each):
            result_text = f"{len(result)} results" if is_several else f"one result, a {type(result).__name__}"
            raise ValueError(
                f"`out_axis_resources` has {len(self.each)} entries, and `{name}` returns {result_text}; give one "
                "mapping for all, or as many as there are results"
            )
        mappings = [default if mapping is None else mapping for mapping in self.each]
        parts = [shard_by_mapping(part, mapping) for part, mapping in zip(result, mappings, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(result, is_leaf=lambda x: x is not result), parts)


class EntrySharding:
    """Shards the arguments of one tree structure on entry; most calls find all of them in place."""

    def __init__(self, mappings: Mappings, described: list[LeafInfo], purpose: str) -> None:
        self._mappings, self._described, self._purpose = mappings, described, purpose
        self._in_place: Any = None
        used_mappings = {mappings.every, *(leaf.mapping for leaf in described)}
        # A fallback rule may depend on more than shapes and shardings, so it is asked at every call.
        self._is_memorable = all(mapping is None or mapping.fallback is None for mapping in used_mappings)

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

"""`ShardingRule`, the base class of the rules of this library, and `CompositeShardingRule`.

All callers use one protocol: `rule._ask(tree, mesh)` returns one `Decision` for each leaf. The rules of this library
implement `_decide_leaves`, from which their `apply` and `decide` follow; a user's rule is asked through the `apply` or
`decide` that it defines.
"""

import contextlib
import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec as P
from jax.tree_util import keystr

from .._ground.errors import make_error
from .._ground.formats import format_value
from ..named._array import NamedArray
from ..named._axis_layout import get_entry_axes
from ..partitioning._active_mesh import (
    MeshLike,
    check_mesh_axes,
    format_mesh,
    get_abstract_mesh,
    get_active_mesh,
    resolve_mesh,
)
from ..partitioning._fallback import Decision
from ..partitioning._leaves import format_prefix, get_array_shape
from ..partitioning._resolve_spec import check_rule_spec


class HasMesh:
    """Base class of frozen dataclasses with a field `mesh`: a short repr, and pickles that include the mesh."""

    mesh: Any

    def __repr__(self) -> str:
        """Shows the options that differ from the defaults."""
        fields = [field for field in dataclasses.fields(self) if field.init]  # pyright: ignore[reportArgumentType]
        options = [(field, getattr(self, field.name)) for field in fields]
        texts = [f"{field.name}={value!r}" for field, value in options if value != field.default]
        return f"{type(self).__name__}({', '.join(texts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the options; of a mesh with devices their ids, as devices belong to one process."""
        mesh = self.mesh
        if isinstance(mesh, Mesh):
            ids = tuple((device.platform, device.id) for device in mesh.devices.flat)
            mesh = mesh.devices.shape, mesh.axis_names, mesh.axis_types, ids
        return functools.partial(_unpickle, type(self), **self._get_options()), (mesh,)

    def _get_options(self) -> dict[str, Any]:
        """Returns the arguments that make the object, except the mesh."""
        fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
        return {field.name: getattr(self, field.name) for field in fields if field.name != "mesh"}

    def _resolve_mesh(self, mesh: MeshLike | None = None) -> MeshLike:
        """Returns the mesh of the rule, of the call, or else the active mesh; inside `shard_map` with its Manual axes.

        Raises a ValueError if there is none, or the rule was made for a mesh of other axes or sizes than the call's.
        """
        rule_mesh = self.mesh
        if rule_mesh is None:
            return resolve_mesh(mesh, f"`{type(self).__name__}`")
        if mesh is not None and mesh.shape != rule_mesh.shape:
            raise make_error(
                ValueError,
                f"the rule `{type(self).__name__}` was made for mesh {format_mesh(rule_mesh)}, the mesh here is "
                f"{format_mesh(mesh)}; leave out its `mesh`",
            )
        call_mesh = get_abstract_mesh() if mesh is None else mesh
        if call_mesh is not None and AxisType.Manual in call_mesh.axis_types and call_mesh.shape == rule_mesh.shape:
            return call_mesh  # which knows the Manual mesh axes, over which nothing can be sharded
        return rule_mesh

    def _set_options(self, **options: Any) -> Self:
        """Sets fields while the object is made."""
        for name, value in options.items():
            object.__setattr__(self, name, value)
        return self


def _unpickle(cls: type, mesh: Any, **options: Any) -> Any:
    """Returns the pickled object, with the devices of the same ids; raises a ValueError if there is no such device."""
    if not isinstance(mesh, tuple):  # abstract, or None
        return cls(mesh=mesh, **options)
    sizes, names, types, ids = mesh
    devices_by_id: dict[tuple[str, int], Any] = {}
    for platform in sorted({platform for platform, _ in ids}):
        with contextlib.suppress(RuntimeError):  # this machine has no such platform
            devices_by_id.update({(platform, device.id): device for device in jax.devices(platform)})
    for platform, number in ids:
        if (platform, number) not in devices_by_id:
            raise make_error(
                ValueError,
                f"this pickle has a mesh with device {number} of platform {platform!r}, which is not here; pickle "
                "a rule without a mesh, or with an abstract one",
            )
    devices = np.array([devices_by_id[device_id] for device_id in ids], object).reshape(sizes)
    return cls(mesh=Mesh(devices, names, axis_types=types), **options)


def parse_axis_names(names: Any, argument: str) -> tuple[str, ...]:
    """Returns names of mesh axes, given as one name or several; raises an error if they are not names or repeated."""
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise make_error(
            TypeError, f"`{argument}` is a name of a mesh axis or a list of them, not {format_value(names)}."
        )
    if len(set(names)) != len(names):
        raise make_error(ValueError, f"`{argument}` is {tuple(names)}, which names a mesh axis twice")
    return tuple(names)


def check_axis_names(names: Any, mesh: MeshLike | None, argument: str) -> tuple[str, ...]:
    """Returns a list of names of mesh axes as a tuple; raises an error if it is not one, or the mesh lacks a name."""
    if isinstance(names, str):
        raise make_error(TypeError, f"`{argument}` is a list of names of mesh axes, not one name; write [{names!r}].")
    wrong = [name for name in names if not isinstance(name, str)] if isinstance(names, list | tuple) else [names]
    if wrong:
        raise make_error(
            TypeError, f"`{argument}` is a list of names of mesh axes; {format_value(wrong[0])} is not a name."
        )
    names = parse_axis_names(names, argument)
    if mesh is not None:
        check_mesh_axes(mesh, names)
    return names


def check_integer(number: Any, argument: str, least: int = 0) -> int:
    """Returns a number as a Python integer; raises an error if it is not integral, or too small."""
    if isinstance(number, bool | np.bool_) or not isinstance(number, int | float | np.integer | np.floating):
        raise make_error(TypeError, f"`{argument}` is an integer of at least {least}, not {format_value(number)}.")
    if not math.isfinite(number) or number != int(number) or number < least:
        raise make_error(ValueError, f"`{argument}` is an integer of at least {least}, not {format_value(number)}")
    return int(number)


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
    tree_values = jax.tree.structure(tree, is_leaf=_is_named).flatten_up_to(values)
    return [value.array if isinstance(value, NamedArray) else value for value in tree_values]


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
        # Two leaves may have one path, as the keys of a user's pytree need not differ: they stay two.
        key, is_last = leaf.path[depth], len(leaf.path) == depth + 1
        if not groups or is_last or keys[-1] != key:
            keys.append(key)
            groups.append([])
        groups[-1].append(leaf)
    return PathNode(tuple(_make_path_tree(group, depth + 1) for group in groups), tuple(keys))


class ShardingRule(ABC):
    """Base class of rules that choose the specs of the arrays of a tree; subclasses only have to define `apply`.

    Rules are the `fallback` of a mapping, which shards plain arrays by them, and combine with `CompositeShardingRule`.
    A rule that is a fallback is part of the key of compiled functions, so equivalent rules should be equal and have
    equal hashes, as frozen dataclasses do.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> from jax.sharding import PartitionSpec as P
        >>> class Rows(nym.ShardingRule):
        ...     def apply(self, pytree):
        ...         return jax.tree.map(lambda x: P("data") if x.ndim > 1 else P(), pytree)
        >>> Rows().apply({"weight": jax.numpy.ones((8, 4)), "bias": jax.numpy.ones(4)})
        {'bias': P(), 'weight': P('data',)}
    """

    _sees_values: bool = True
    """Whether decisions may depend on more than paths, shapes, dtypes and mesh, so that they cannot be cached."""

    def __repr__(self) -> str:
        """Shows the attributes, as a dataclass does."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @abstractmethod
    def apply(self, pytree: Any) -> Any:
        """Returns the tree with a `PartitionSpec` in place of each leaf; `P()` replicates it on all devices.

        As the fallback of a mapping, a rule gets only the plain arrays of a tree, each at its path; within a compiled
        function they are traced, so decide by paths, shapes and dtypes. The mesh of the call is the active mesh. For
        None in place of a spec an array stays where it is.

        Args:
            pytree: Any tree of arrays or `jax.ShapeDtypeStruct`s.
        """

    def decide(self, pytree: Any) -> Any:
        """Returns the same as `apply`, but None for each leaf that the rule leaves to other rules.

        `CompositeShardingRule` calls this, and asks its next rule where the answer is None. By default these are the
        leaves with an empty spec. Override this in a rule that has reasons to replicate an array.
        """
        specs = self.apply(pytree)
        return jax.tree.map(
            lambda spec: None if is_empty_spec(spec) else spec, specs, is_leaf=lambda x: x is None or isinstance(x, P)
        )

    def _ask_arrays(self, arrays: Sequence[Any], paths: Sequence[Any], mesh: MeshLike | None) -> list[Decision]:
        """Returns the decision for each of some arrays of a tree, as the fallback of a mapping."""
        return self._ask(RuleTree([RuleLeaf(*pair) for pair in zip(paths, arrays, strict=True)]), mesh)

    def _ask(self, tree: RuleTree, mesh: MeshLike | None, in_composite: bool = False) -> list[Decision]:
        """Returns the decision for each leaf of a tree on the mesh of the call, which may be None.

        The rule of a user is asked through `decide` if it is part of a composite, otherwise through `apply`.
        """
        pytree, choose = tree.to_tree(), self.decide if in_composite else self.apply
        with _activate_mesh(mesh):
            specs = choose(pytree)
        try:
            return [Decision(spec, is_final=spec is not None) for spec in flatten_up_to(pytree, specs)]
        except ValueError:
            raise make_error(
                ValueError,
                f"the rule `{type(self).__name__}` returns a tree of another structure than that of the tree it is "
                "applied to; return a spec in place of each leaf, as `jax.tree.map` does",
            ) from None


def make_default_decision(rule: ShardingRule) -> Decision:
    """Returns the decision for a leaf about which a rule decides nothing: it is replicated unless others decide."""
    return Decision(P(), f"the rule `{type(rule).__name__}` has no spec for it", is_final=False)


def is_empty_spec(spec: Any) -> bool:
    """Returns whether something is a spec that shards nothing."""
    return isinstance(spec, P) and not any(entry is P.UNCONSTRAINED or get_entry_axes(entry) for entry in spec)


def _activate_mesh(mesh: MeshLike | None) -> contextlib.AbstractContextManager[Any]:
    """Returns a context manager in which a mesh is active, unless another one of another size is."""
    active = jax.sharding.get_abstract_mesh()
    if mesh is None or mesh.abstract_mesh == active or not (active.empty or active.size == mesh.size):
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


class BuiltInRule(ShardingRule):
    """Base class of the rules of this library, which define `_decide_leaves`.

    A subclass that defines `apply` or `decide` is asked through these, as a user's rule is.
    """

    _sees_values: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Makes sure that a subclass is asked through its own `apply` or `decide`, if it defines one."""
        super().__init_subclass__(**options)
        if "apply" in vars(cls) and cls.decide is BuiltInRule.decide:
            cls.decide = ShardingRule.decide
        if "apply" in vars(cls) or "decide" in vars(cls):
            cls._ask, cls._sees_values = ShardingRule._ask, True

    @abstractmethod
    def _decide_leaves(self, tree: RuleTree, mesh: MeshLike | None) -> list[Decision]:
        """Returns the decision for each leaf of a tree on the mesh of the call, or of the rule if that is None."""

    def _check_leaves(self, leaves: Sequence[RuleLeaf], decisions: Sequence[Decision]) -> None:
        """Checks that no leaf lacks a decision, in a rule that is not part of a composite."""

    def _check_patterns(self, leaves: Sequence[RuleLeaf]) -> None:
        """Checks that a tree needs all parts of the rule; a fallback gets several trees and skips this."""

    def _ask(self, tree: RuleTree, mesh: MeshLike | None, in_composite: bool = False) -> list[Decision]:
        decisions = self._decide_leaves(tree, mesh)
        if not in_composite:
            self._check_leaves(tree.leaves, decisions)
        return decisions

    def apply(self, pytree: Any) -> Any:
        """Chooses a spec for each array of a tree.

        Args:
            pytree: Any tree of arrays, `jax.ShapeDtypeStruct`s or traced arrays; named arrays count as one leaf each.

        Returns:
            The tree with a `PartitionSpec` in place of each leaf, `P()` where the rule decides nothing.

        Raises:
            ValueError: If a mesh is needed and there is none, or if a spec does not fit: it has more entries than its
                array has axes, or the mesh of the rule, or else the active mesh, lacks one of its mesh axes or has one
                by which a size is not divisible. The message names the leaf.
        """
        tree = RuleTree.from_tree(pytree)
        self._check_patterns(tree.leaves)
        decisions = self._decide_leaves(tree, None)
        self._check_leaves(tree.leaves, decisions)
        mesh = get_active_mesh()
        return tree.fill(
            _check_decision(decision, leaf, mesh) for decision, leaf in zip(decisions, tree.leaves, strict=True)
        )

    def decide(self, pytree: Any) -> Any:
        """Returns the same as `apply`, not checked, but None for leaves that the rule leaves to other rules."""
        tree = RuleTree.from_tree(pytree)
        return tree.fill(decision.spec if decision.is_final else None for decision in self._decide_leaves(tree, None))


def _check_decision(decision: Decision, leaf: RuleLeaf, mesh: MeshLike | None) -> P:
    """Returns the spec that is decided for a leaf, if it fits."""
    spec, shape = decision.spec, leaf.shape
    if shape is None:
        return P()
    try:
        return check_rule_spec(spec, shape, decision.uneven, mesh if decision.mesh is None else decision.mesh)
    except ValueError as error:
        prefix = format_prefix(keystr(leaf.path))
        raise make_error(ValueError, f"{prefix}{decision.by} gives {spec} for shape {shape}: {error}") from None


def explain_decisions(rule: ShardingRule, pytree: Any, mesh: MeshLike) -> list[Decision]:
    """Returns the decision for each leaf of a tree on a mesh, with what decides and uneven dimensions replicated."""
    tree = RuleTree.from_tree(pytree)
    decisions: list[Decision] = []
    for decision, leaf in zip(rule._ask(tree, mesh), tree.leaves, strict=True):
        spec = decision.spec
        if decision.uneven == "replicate" and leaf.shape is not None and isinstance(spec, P):
            with contextlib.suppress(ValueError):  # other problems are for the caller to report
                spec = check_rule_spec(spec, leaf.shape, "replicate", mesh)
        decisions.append(decision._replace(spec=spec, by=decision.by or f"the rule `{type(rule).__name__}`"))
    return decisions


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class CompositeShardingRule(BuiltInRule):
    """Asks several rules, and uses for each array the spec of the first one that decides about it.

    Each rule is asked with its `decide`, for the entire tree. If a rule of this library decides to replicate an array,
    as a pattern with the spec `P()` does, no later rule shards it. A rule of your own that only has `apply` decides
    about the arrays to which it gives a spec that shards something. Arrays about which no rule decides are replicated.

    A `MemoryConstrainedShardingRule` counts the arrays about which earlier rules have decided, including the rules of
    enclosing composites, and shards the others until all together keep its limit. Rules after it can only shard more.

    Args:
        *rules: The rules, the most important one first.

    Raises:
        TypeError: If one of them is not a rule.
        ValueError: If there is none.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec as P
        >>> paths = nym.PathShardingRule({"norm": P(), "^head": P(None, "model")})
        >>> shapes = nym.ShapeBasedShardingRule({(None, 8): P("data", None), (8,): P("data")})
        >>> tree = {"head": jnp.ones((4, 8)), "mlp": jnp.ones((4, 8)), "norm": jnp.ones(8)}
        >>> nym.CompositeShardingRule(paths, shapes).apply(tree)
        {'head': P(None, 'model'), 'mlp': P('data', None), 'norm': P()}
    """

    rules: tuple[ShardingRule, ...]

    def __init__(self, *rules: ShardingRule) -> None:
        if not rules:
            raise ValueError(
                "a `CompositeShardingRule` has no rule to ask; give it some: CompositeShardingRule(one, other)"
            )
        for rule in rules:
            if not isinstance(rule, ShardingRule):
                raise TypeError(
                    "A `CompositeShardingRule` asks instances of `ShardingRule`, one argument each, not "
                    f"{format_value(rule)}."
                )
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "_sees_values", self._sees_values or any(rule._sees_values for rule in rules))

    def _decide_leaves(self, tree: RuleTree, mesh: MeshLike | None) -> list[Decision]:
        leaves = tree.leaves
        decisions = [make_default_decision(self)] * len(leaves)
        for rule in self.rules:
            rule_decisions = _ask_rule(rule, RuleTree(leaves, tree.tree), mesh)
            for position, decision in enumerate(rule_decisions):
                if decision.is_final and not decisions[position].is_final:
                    decisions[position] = decision
            # A later rule that limits the memory of the whole tree counts what is decided.
            leaves = [
                leaf._replace(spec=decision.spec) if decision.is_final else leaf
                for leaf, decision in zip(leaves, decisions, strict=True)
            ]
        return decisions

    def _check_patterns(self, leaves: Sequence[RuleLeaf]) -> None:
        for rule in self.rules:
            if isinstance(rule, BuiltInRule):
                rule._check_patterns(leaves)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.rules))})"


def _ask_rule(rule: ShardingRule, tree: RuleTree, mesh: MeshLike | None) -> list[Decision]:
    """Returns what one of several rules decides for each leaf of a tree; errors name the rule."""
    if isinstance(rule, CompositeShardingRule):  # its decisions and errors name the rules in it
        return rule._ask(tree, mesh, in_composite=True)
    name = f"`{type(rule).__name__}`"
    try:
        decisions = rule._ask(tree, mesh, in_composite=True)
    except ValueError as error:
        if name in str(error):
            raise
        raise ValueError(f"the rule {name}: {error}") from error
    except Exception as error:
        error.add_note(f"The rule {name} raises this.")
        raise
    for leaf, decision in zip(tree.leaves, decisions, strict=True):
        if decision.is_final and not isinstance(decision.spec, P):
            where = f"{keystr(leaf.path)}: " if leaf.path else ""
            raise TypeError(
                f"{where}the rule {name} gives {format_value(decision.spec)}; a rule gives a `PartitionSpec` or None."
            )
    return [decision._replace(by=decision.by or f"the rule {name}") for decision in decisions]

"""What a sharding rule is, and the leaves of a tree as rules see them: named arrays whole, each leaf with its path."""

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec as P
from jax.tree_util import keystr

from ...named._ambient import get_entry_axes
from ...named._array import NamedArray
from ...named._axis import format_axes, format_value, suggest_name
from ..mapping._axis_mapping import Uneven
from ..specs._resolve_spec import MeshLike, get_active_mesh
from ..specs._spec_problems import check_rule_spec


Pairs: TypeAlias = list[tuple[tuple[Any, ...], Any]]
"""Leaves of a tree, each with its path."""


class ShardingRule(ABC):
    """What chooses the specs of the arrays of a tree; a class of your own has to have `apply` alone.

    Rules are the `fallback` of a mapping, which shards plain arrays by them, and combine with `CompositeShardingRule`.
    A rule that is a fallback is part of the key of compiled functions, so rules that say the same should be equal and
    have one hash, as frozen dataclasses do.

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

    def __repr__(self) -> str:
        """Shows the attributes, as a dataclass does."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @abstractmethod
    def apply(self, pytree: Any) -> Any:
        """Returns the tree with a `PartitionSpec` in place of each leaf; `P()` leaves it whole on each device.

        As the fallback of a mapping a rule gets the plain arrays of a tree alone, each at the path that it has there;
        within a compiled function they are traced, so look at paths, shapes and dtypes. The mesh in force is that of
        the call. For None in place of a spec an array stays where it is.

        Args:
            pytree: Any tree of arrays or `jax.ShapeDtypeStruct`s.
        """

    def decide(self, pytree: Any) -> Any:
        """Returns the same as `apply`, but None for each leaf that the rule says nothing about.

        `CompositeShardingRule` asks this, and goes on to its next rule where the answer is None. Unless a rule says
        it in another way, an empty spec says nothing. A rule with a reason to keep an array whole overrides this.
        """
        specs = self.apply(pytree)
        return jax.tree.map(lambda spec: None if is_spec(spec) and is_empty(spec) else spec, specs, is_leaf=is_spec)

    def _reasons(self, pytree: Any) -> list[str] | None:
        """Returns for each leaf what part of the rule decides, such as "the role 'column'"; None: the rule as such."""
        return None

    def _decide_beside(self, pytree: Any, decided: list[P | None]) -> Any:
        """Returns the same where others have decided before: `decided` has their spec, or None, for each leaf."""
        return self.decide(pytree)


def is_spec(x: Any) -> bool:
    """Tells whether a node of a tree of specs stands for an array: a spec, or None."""
    return x is None or isinstance(x, P)


def is_empty(spec: P | None) -> bool:
    """Tells whether a spec divides nothing."""
    return spec is None or not any(entry is P.UNCONSTRAINED or get_entry_axes(entry) for entry in spec)


def is_named(x: Any) -> bool:
    """Tells whether a node of a tree is a named array, for which there is one spec in its place."""
    return type(x) is NamedArray


def get_array_shape(leaf: Any) -> tuple[int, ...] | None:
    """Returns the sizes of an array of any kind, named ones and shapes without data included; None for other leaves.

    NumPy arrays of what JAX does not hold, as text, are no arrays here: neither for rules nor in what is said of them.
    """
    leaf = leaf.array if type(leaf) is NamedArray else leaf
    if isinstance(leaf, np.ndarray | np.generic) and not _held_by_jax(leaf.dtype):
        return None
    shape = getattr(leaf, "shape", None)
    return tuple(shape) if isinstance(shape, tuple) and hasattr(leaf, "dtype") else None


@functools.lru_cache(maxsize=256)
def _held_by_jax(dtype: Any) -> bool:
    """Tells whether JAX has arrays of a NumPy dtype: of numbers, those of `ml_dtypes` too."""
    numbers = dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)
    return numbers or (dtype.kind == "V" and not issubclass(dtype.type, np.void))


def get_usable_axes(mesh: MeshLike, names: Iterable[str] | None = None) -> tuple[tuple[str, int], ...]:
    """Returns the mesh axes that can divide something, in the order of the mesh, with their sizes.

    Args:
        mesh: The mesh; its Manual axes are left out, and those of size 1.
        names: Which of its axes may be used, all of them if None.

    Raises:
        ValueError: If the mesh lacks one of the names.
    """
    if names is not None:
        names = tuple(names)
        check_mesh_axes(mesh, names)
    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(
        (name, mesh.shape[name])
        for name, kind in axes
        if mesh.shape[name] > 1 and kind != AxisType.Manual and (names is None or name in names)
    )


def check_mesh_axes(mesh: MeshLike, names: tuple[str, ...]) -> None:
    """Checks that a mesh has these axes.

    Raises:
        ValueError: If it lacks one.
    """
    for name in names:
        if name not in mesh.axis_names:
            has = format_axes(mesh.axis_names, tuple(mesh.shape.values()))
            raise ValueError(f"no mesh axis {name!r} in {has}{suggest_name(name, mesh.axis_names)}")


def parse_axis_names(names: Any, what: str) -> tuple[str, ...]:
    """Returns names of mesh axes that a caller gives, one or several.

    Raises:
        TypeError: If they are no names.
        ValueError: If one is there twice.
    """
    given = (names,) if isinstance(names, str) else names
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise TypeError(f"`{what}` is a name of a mesh axis or a list of them, not {format_value(names)}.")
    if len(set(given)) != len(given):
        raise ValueError(f"`{what}` is {tuple(given)}, which names a mesh axis twice")
    return tuple(given)


_applied: ContextVar[MeshLike | None] = ContextVar("_applied", default=None)


@contextlib.contextmanager
def applied_with(mesh: MeshLike | None) -> Iterator[None]:
    """Says which mesh rules are applied with, whatever mesh is in force; that is put in force too if JAX allows it.

    The rules of this library ask for it with `rule_mesh`; rules of users look at what is in force.
    """
    token = _applied.set(mesh)
    try:
        with _in_force(mesh):
            yield
    finally:
        _applied.reset(token)


def _in_force(mesh: MeshLike | None) -> Any:
    """Returns a context manager that puts the axes of a mesh in force, unless a mesh of another size is."""
    if mesh is None or mesh.abstract_mesh == jax.sharding.get_abstract_mesh():
        return contextlib.nullcontext()
    here = jax.sharding.get_abstract_mesh()
    possible = here.empty or here.size == mesh.size
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh) if possible else contextlib.nullcontext()


def rule_mesh() -> MeshLike | None:
    """Returns the mesh that a rule is applied with, or else the one in force; None if there is neither."""
    mesh = _applied.get()
    return get_active_mesh() if mesh is None else mesh


def applied_mesh() -> MeshLike | None:
    """Returns the mesh that a rule is applied with by someone who goes by its specs, None if nobody says."""
    return _applied.get()


@jax.tree_util.register_pytree_with_keys_class
class PathedLeaves:
    """A node of a tree that holds some leaves of another tree, at the paths that they have there; see `pathed`."""

    __slots__ = ("children", "keys")

    def __init__(self, children: tuple[Any, ...], keys: tuple[Any, ...]) -> None:
        """Keeps both."""
        self.children, self.keys = children, keys

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]:
        """Gives each child with the key that it has in the other tree."""
        return tuple(zip(self.keys, self.children, strict=True)), self.keys

    @classmethod
    def tree_unflatten(cls, keys: tuple[Any, ...], children: Iterable[Any]) -> "PathedLeaves":
        """Puts other children in place."""
        return cls(tuple(children), keys)


def make_path_tree(pairs: Pairs, depth: int = 0) -> Any:
    """Returns some leaves of a tree as a tree of their own, in which they have the same paths and the same order.

    Rules are applied to it where only the plain arrays of a tree go by them.

    Args:
        pairs: The leaves, each with its path; the keys before `depth` are the same for all.
        depth: How many keys have been taken care of.
    """
    if len(pairs) == 1 and len(pairs[0][0]) == depth:
        return pairs[0][1]
    keys: list[Any] = []
    groups: list[Pairs] = []
    for pair in pairs:
        key, is_leaf = pair[0][depth], len(pair[0]) == depth + 1
        if not groups or is_leaf or keys[-1] != key:
            keys.append(key)
            groups.append([])
        groups[-1].append(pair)
    return PathedLeaves(tuple(make_path_tree(group, depth + 1) for group in groups), tuple(keys))


def flatten_for_rule(tree: Any) -> tuple[Pairs, Any]:
    """Returns the leaves of a tree with their paths, named arrays as one leaf each, and its structure."""
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_named)


def answers(rule: Any, pytree: Any, answer: Any) -> list[Any]:
    """Returns what a rule answers for each leaf of a tree, in order; in place of a named array one of specs will do.

    Raises:
        ValueError: If the answer has another structure than the tree.
    """
    try:
        found = jax.tree.structure(pytree, is_leaf=is_named).flatten_up_to(answer)
    except ValueError:
        raise ValueError(
            f"the rule `{type(rule).__name__}` gives a tree of another structure than that of the tree it is applied "
            "to; give a spec in place of each leaf, as `jax.tree.map` does"
        ) from None
    return [one.array if type(one) is NamedArray else one for one in found]


class Decision(NamedTuple):
    """What a rule decides for a leaf: the spec, None for nothing, or where the rule is a fallback anything it gives.

    With it goes what part of the rule decided, in words if it was a part, what happens to uneven axes, the mesh of the
    rule, None for the one in force, and the error that the rule raises in place of a spec.
    """

    spec: Any
    by: str = ""
    uneven: Uneven = "error"
    mesh: MeshLike | None = None
    error: Exception | None = None


class DecidingRule(ShardingRule):
    """A rule whose specs are written by hand, so that they have to be checked against arrays and mesh."""

    @abstractmethod
    def decisions(self, pairs: Pairs, pytree: Any) -> list[Decision]:
        """Returns the decision for each leaf of a tree, not yet checked; the leaves are given with their paths."""

    def check(self, pairs: Pairs, found: list[Decision]) -> None:
        """Checks that these decisions will do for a whole tree, of which no other rule has a say."""

    def check_needed(self, pairs: Pairs) -> None:
        """Checks that a whole tree needs all that the rule says; a fallback sees many trees and is not asked this."""

    def apply(self, pytree: Any) -> Any:
        """Returns the tree with a `PartitionSpec` in place of each leaf, `P()` where the rule says nothing.

        Raises:
            ValueError: If a spec has more entries than its array has axes, or if the mesh of the rule, or else the one
                in force, lacks one of its mesh axes or does not divide a size by them. The message names the leaf.
        """
        pairs, treedef = flatten_for_rule(pytree)
        self.check_needed(pairs)
        mesh, found = rule_mesh(), self.decisions(pairs, pytree)
        self.check(pairs, found)
        return treedef.unflatten(_checked(*one, mesh) for one in zip(found, pairs, strict=True))

    def decide(self, pytree: Any) -> Any:
        """Returns the same with None where the rule says nothing, not yet checked against arrays and mesh."""
        if type(self).apply is not DecidingRule.apply:
            return super().decide(pytree)
        pairs, treedef = flatten_for_rule(pytree)
        return treedef.unflatten(decision.spec for decision in self.decisions(pairs, pytree))


def is_changed(rule: DecidingRule) -> bool:
    """Tells whether a subclass says in another way what a rule decides, so that its decisions are not asked for."""
    return (type(rule).apply, type(rule).decide) != (DecidingRule.apply, DecidingRule.decide)


def _checked(decision: Decision, pair: tuple[tuple[Any, ...], Any], mesh: MeshLike | None) -> P:
    """Returns the spec of a decision for a leaf, if the mesh can do it."""
    spec, shape = decision.spec, get_array_shape(pair[1])
    if spec is None or shape is None:
        return P()
    try:
        return check_rule_spec(spec, shape, decision.uneven, mesh if decision.mesh is None else decision.mesh)
    except ValueError as error:
        where = f"{keystr(pair[0])}: " if pair[0] else ""
        raise ValueError(f"{where}{decision.by} gives {spec} for shape {shape}: {error}") from None


def fallback_decisions(rule: ShardingRule, pytree: Any) -> list[Decision]:
    """Returns what a rule answers for each leaf of a tree if it is the fallback of a mapping, which checks specs."""
    if not isinstance(rule, DecidingRule) or is_changed(rule):
        found = answers(rule, pytree, rule.apply(pytree))
        return [Decision(*one) for one in zip(found, reasons_of(rule, pytree, len(found)), strict=True)]
    pairs, _ = flatten_for_rule(pytree)
    found = rule.decisions(pairs, pytree)
    rule.check(pairs, found)
    nothing = Decision(P(), f"the rule `{type(rule).__name__}` says nothing of it")
    return [nothing if decision.spec is None else decision for decision in found]


def explained_decisions(rule: ShardingRule, pytree: Any, mesh: MeshLike) -> list[Decision]:
    """Returns what a rule answers for each leaf of a tree on a mesh and by what, for whoever checks the specs then.

    Raises:
        ValueError: If the rule does, or gives a tree of another structure.
    """
    with applied_with(mesh):
        found = fallback_decisions(rule, pytree)
    shapes = [get_array_shape(leaf) for _, leaf in flatten_for_rule(pytree)[0]]
    whole = [_left_whole(*one, mesh) for one in zip(found, shapes, strict=True)]
    return [one._replace(by=one.by or f"the rule `{type(rule).__name__}`") for one in whole]


def _left_whole(decision: Decision, shape: tuple[int, ...] | None, mesh: MeshLike) -> Decision:
    """Returns a decision whose spec leaves uneven axes whole, if the rule says so."""
    if decision.uneven == "error" or shape is None or not isinstance(decision.spec, P):
        return decision
    try:
        return decision._replace(spec=check_rule_spec(decision.spec, shape, decision.uneven, mesh))
    except ValueError:  # what else is wrong is for the one who checks
        return decision


def reasons_of(rule: ShardingRule, pytree: Any, leaves: int) -> list[str]:
    """Returns for each leaf of a tree what part of a rule decides, in words; nothing where it is the rule as such."""
    told = None
    if issubclass(_owner(rule, "_reasons"), _owner(rule, "apply")):  # not for a subclass that decides in another way
        told = rule._reasons(pytree)
    return [""] * leaves if told is None else [f"`{type(rule).__name__}`: {one}" if one else "" for one in told]


def _owner(rule: Any, name: str) -> type:
    """Returns the class that an attribute of a rule is from."""
    return next(cls for cls in type(rule).__mro__ if name in vars(cls))


def sees_shapes_alone(rule: Any) -> bool:
    """Tells whether a rule decides by paths, shapes, dtypes and mesh alone, as all rules of this library do.

    The class itself has to say so, not one that it inherits from: what a subclass changes is not known.
    """
    alone = vars(type(rule)).get("_sees_shapes_alone", False)
    return alone and all(map(sees_shapes_alone, getattr(rule, "rules", ())))

"""`ShardingRule`, and the base class of the rules of this library.

All callers use one protocol: `rule._ask(tree, mesh)` returns one `Decision` for each leaf. The rules of this library
implement `_decide_leaves`, from which their `apply` and `decide` follow; a user's rule is asked through the `apply` or
`decide` that it defines.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec as P
from jax.tree_util import keystr

from ...named._axis_layout import get_entry_axes
from ...named._traceback import strip_library_frames
from ..mapping._mapping import Uneven
from ..specs._active_mesh import MeshLike, get_active_mesh
from ..specs._spec_problems import check_rule_spec
from ._rule_tree import RuleLeaf, RuleTree, flatten_up_to


class Decision(NamedTuple):
    """What a rule decides for a leaf of a tree.

    Args:
        spec: The spec, not checked yet; None leaves the array where it is.
        by: The part of the rule that decides, as messages name it; empty for the rule itself.
        uneven: What happens to dimensions that are not divisible.
        mesh: The mesh that the rule was made for, None for the active mesh.
        is_final: Whether no later rule of a `CompositeShardingRule` is asked.
        error: The error to raise instead of using the spec.
    """

    spec: Any
    by: str = ""
    uneven: Uneven = "error"
    mesh: MeshLike | None = None
    is_final: bool = True
    error: Exception | None = None


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
        return jax.tree.map(lambda spec: None if is_empty_spec(spec) else spec, self.apply(pytree), is_leaf=_is_spec)

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
            raise strip_library_frames(
                ValueError(
                    f"the rule `{type(self).__name__}` returns a tree of another structure than that of the tree it is "
                    "applied to; return a spec in place of each leaf, as `jax.tree.map` does"
                )
            ) from None


def make_default_decision(rule: ShardingRule) -> Decision:
    """Returns the decision for a leaf about which a rule decides nothing: it is replicated unless others decide."""
    return Decision(P(), f"the rule `{type(rule).__name__}` has no spec for it", is_final=False)


def _is_spec(x: Any) -> bool:
    return x is None or isinstance(x, P)


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

    def _check_leaves(self, leaves: Sequence[RuleLeaf], found: Sequence[Decision]) -> None:
        """Checks that no leaf lacks a decision, in a rule that is not part of a composite."""

    def _check_patterns(self, leaves: Sequence[RuleLeaf]) -> None:
        """Checks that a tree needs all parts of the rule; a fallback gets several trees and skips this."""

    def _ask(self, tree: RuleTree, mesh: MeshLike | None, in_composite: bool = False) -> list[Decision]:
        found = self._decide_leaves(tree, mesh)
        if not in_composite:
            self._check_leaves(tree.leaves, found)
        return found

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
        found = self._decide_leaves(tree, None)
        self._check_leaves(tree.leaves, found)
        mesh = get_active_mesh()
        return tree.fill(_check_decision(one, leaf, mesh) for one, leaf in zip(found, tree.leaves, strict=True))

    def decide(self, pytree: Any) -> Any:
        """Returns the same as `apply`, not checked, but None for leaves that the rule leaves to other rules."""
        tree = RuleTree.from_tree(pytree)
        return tree.fill(one.spec if one.is_final else None for one in self._decide_leaves(tree, None))


def _check_decision(decision: Decision, leaf: RuleLeaf, mesh: MeshLike | None) -> P:
    """Returns the spec that is decided for a leaf, if it fits."""
    spec, shape = decision.spec, leaf.shape
    if shape is None:
        return P()
    try:
        return check_rule_spec(spec, shape, decision.uneven, mesh if decision.mesh is None else decision.mesh)
    except ValueError as error:
        where = f"{keystr(leaf.path)}: " if leaf.path else ""
        raise strip_library_frames(
            ValueError(f"{where}{decision.by} gives {spec} for shape {shape}: {error}")
        ) from None


def explain_decisions(rule: ShardingRule, pytree: Any, mesh: MeshLike) -> list[Decision]:
    """Returns the decision for each leaf of a tree on a mesh, with what decides and uneven dimensions replicated."""
    tree, name = RuleTree.from_tree(pytree), f"the rule `{type(rule).__name__}`"
    pairs = zip(rule._ask(tree, mesh), tree.leaves, strict=True)
    return [_replicate_uneven(one, leaf.shape, mesh)._replace(by=one.by or name) for one, leaf in pairs]


def _replicate_uneven(decision: Decision, shape: tuple[int, ...] | None, mesh: MeshLike) -> Decision:
    """Returns a decision whose spec replicates uneven dimensions, if the rule asks for it."""
    if decision.uneven == "error" or shape is None or not isinstance(decision.spec, P):
        return decision
    try:
        return decision._replace(spec=check_rule_spec(decision.spec, shape, decision.uneven, mesh))
    except ValueError:  # other problems are for the caller to report
        return decision

"""`CompositeShardingRule`: several rules, the first of which that decides about an array is followed."""

import dataclasses
from collections.abc import Sequence

from jax.sharding import PartitionSpec as P
from jax.tree_util import keystr

from ...named._format import format_value
from ..specs._active_mesh import MeshLike
from ._rule_tree import RuleLeaf, RuleTree
from ._sharding_rule import BuiltInRule, Decision, ShardingRule, make_default_decision


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
        found = [make_default_decision(self)] * len(leaves)
        for rule in self.rules:
            asked = _ask_rule(rule, RuleTree(leaves, tree.tree), mesh)
            found = [new if new.is_final and not old.is_final else old for old, new in zip(found, asked, strict=True)]
            leaves = [
                leaf._replace(spec=one.spec) if one.is_final else leaf for leaf, one in zip(leaves, found, strict=True)
            ]
        return found

    def _check_patterns(self, leaves: Sequence[RuleLeaf]) -> None:
        for rule in self.rules:
            if isinstance(rule, BuiltInRule):
                rule._check_patterns(leaves)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.rules))})"


def _ask_rule(rule: ShardingRule, tree: RuleTree, mesh: MeshLike | None) -> list[Decision]:
    """Returns what one of several rules decides for each leaf of a tree; errors name the rule."""
    if isinstance(rule, CompositeShardingRule):
        return rule._ask(tree, mesh, in_composite=True)
    name = f"`{type(rule).__name__}`"
    try:
        found = rule._ask(tree, mesh, in_composite=True)
    except ValueError as error:
        if name in str(error):
            raise
        raise ValueError(f"the rule {name}: {error}") from error
    except Exception as error:
        error.add_note(f"The rule {name} raises this.")
        raise
    for leaf, one in zip(tree.leaves, found, strict=True):
        if one.is_final and not isinstance(one.spec, P):
            where = f"{keystr(leaf.path)}: " if leaf.path else ""
            raise TypeError(
                f"{where}the rule {name} gives {format_value(one.spec)}; a rule gives a `PartitionSpec` or None."
            )
    return [one._replace(by=one.by or f"the rule {name}") for one in found]

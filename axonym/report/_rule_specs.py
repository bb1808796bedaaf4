"""Decisions of sharding rules, as reports need them: the only place here that uses the rules' own protocol."""

from typing import Any

from jax.sharding import PartitionSpec as P

from ..partitioning.rules._rule_tree import RuleTree
from ..partitioning.rules._sharding_rule import ShardingRule, explain_decisions
from ..partitioning.specs._active_mesh import MeshLike
from ..partitioning.specs._leaves import Leaf


def list_rule_specs(rule: ShardingRule, tree: Any, mesh: MeshLike) -> list[tuple[tuple[Any, ...], Any, Any, str]]:
    """Returns each leaf of a tree with its path, the spec that a rule gives, and the part of the rule that decided.

    Raises:
        Exception: The error that the rule raises in place of a spec.
    """
    found: list[tuple[tuple[Any, ...], Any, Any, str]] = []
    leaves = RuleTree.from_tree(tree).leaves
    for (path, leaf, _), decision in zip(leaves, explain_decisions(rule, tree, mesh), strict=True):
        if decision.error is not None:
            raise decision.error
        found.append((path, leaf, decision.spec, decision.by.replace("`: ", "`, ", 1)))
    return found


def get_fallback_spec(about: Leaf, rule: Any) -> tuple[P, str]:
    """Returns the spec that the fallback rule of a mapping gives for a leaf, and the part of the rule that decided."""
    by = about.decision.by.replace("`: ", "`, ", 1)
    return about.decision.spec, by or f"the rule `{type(rule).__name__}`"

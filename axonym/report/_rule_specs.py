"""Decisions of sharding rules, as reports need them: the only place here that uses the rules' own protocol."""

from typing import Any

from jax.sharding import PartitionSpec as P

from ..partitioning.rules._sharding_rule import ShardingRule, explained_decisions, flatten_for_rule
from ..partitioning.specs._leaves import Leaf
from ..partitioning.specs._resolve_spec import MeshLike


def list_rule_specs(rule: ShardingRule, tree: Any, mesh: MeshLike) -> list[tuple[tuple[Any, ...], Any, Any, str]]:
    """Returns each leaf of a tree with its path, the spec that a rule gives, and the part of the rule that decided.

    Raises:
        Exception: The error that the rule raises in place of a spec.
    """
    found: list[tuple[tuple[Any, ...], Any, Any, str]] = []
    for (path, leaf), decision in zip(flatten_for_rule(tree)[0], explained_decisions(rule, tree, mesh), strict=True):
        if decision.error is not None:
            raise decision.error
        found.append((path, leaf, decision.spec, decision.by.replace("`: ", "`, ", 1)))
    return found


def get_fallback_spec(about: Leaf, rule: Any) -> tuple[P, str]:
    """Returns the spec that the fallback rule of a mapping gives for a leaf, and the part of the rule that decided."""
    by = about.ruled.by.replace("`: ", "`, ", 1)
    return about.ruled.spec, by or f"the rule `{type(rule).__name__}`"

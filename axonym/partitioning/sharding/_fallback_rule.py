"""Fallback rules of mappings, asked once for all plain arrays of a tree."""

import warnings
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.tree_util import keystr

from ...named._cache import cached_plan
from ...named._format import format_value
from ...named._traceback import find_stacklevel
from ..mapping._mapping import AxisMapping
from ..rules._rule_tree import RuleLeaf, RuleTree
from ..rules._sharding_rule import Decision, ShardingRule
from ..specs._active_mesh import MeshLike
from ..specs._leaves import ARRAYS, Leaf, get_array_shape
from ..specs._spec_problems import check_rule_spec


def apply_fallback_rules(
    leaves: list[Any], described: list[Leaf], mapping: AxisMapping, mesh: MeshLike | None
) -> list[Leaf]:
    """Returns the descriptions of the leaves of a tree, with the decisions of fallback rules.

    A rule is asked once for all plain arrays with one mapping. Errors that it raises are stored in its decisions, and
    raised where one of the leaves is sharded.
    """
    if mapping.fallback is None and not any([about.mapping for about in described]):
        return described
    groups: dict[AxisMapping, list[int]] = {}
    for at, about in enumerate(described):
        chosen, leaf = mapping if about.mapping is None else about.mapping, leaves[at]
        if chosen.fallback is not None and isinstance(leaf, ARRAYS) and about.names_of(leaf.shape) is None:
            if get_array_shape(leaf) is not None:
                groups.setdefault(chosen, []).append(at)
    found = [*described]
    for chosen, places in groups.items():
        paths = tuple([described[at].path for at in places])
        decisions = _ask_fallback_rule(chosen.fallback, [leaves[at] for at in places], paths, mesh)
        for at, decision in zip(places, decisions, strict=True):
            found[at] = described[at]._replace(decision=decision)
    return found


def _ask_fallback_rule(
    rule: Any, arrays: list[Any], paths: tuple[Any, ...], mesh: MeshLike | None
) -> Sequence[Decision]:
    """Returns what a fallback rule decides for some plain arrays, which is cached if it does not depend on values."""
    if getattr(rule, "_sees_values", True):
        return _collect_decisions(rule, arrays, paths, mesh)
    decisions, caught = _decide_by_shapes(rule, tuple([(array.shape, array.dtype) for array in arrays]), paths, mesh)
    for warning in caught:
        warnings.warn(warning.message, warning.category, stacklevel=find_stacklevel())
    return decisions


@cached_plan
def _decide_by_shapes(
    rule: Any, shapes: tuple[tuple[Any, Any], ...], paths: tuple[Any, ...], mesh: MeshLike | None
) -> tuple[Sequence[Decision], Sequence[warnings.WarningMessage]]:
    """Returns the decisions of a rule that needs no values, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
        return _collect_decisions(rule, structs, paths, mesh), caught


def _collect_decisions(
    rule: Any, arrays: list[Any], paths: tuple[Any, ...], mesh: MeshLike | None
) -> Sequence[Decision]:
    """Returns what a rule decides for some arrays, or the errors that it raises."""
    if not isinstance(rule, ShardingRule):
        return [_apply_to_array(rule, array) for array in arrays]
    try:
        return rule._ask(RuleTree([RuleLeaf(*pair) for pair in zip(paths, arrays, strict=True)]), mesh)
    except ValueError as error:
        raised: Exception = ValueError(f"the fallback rule `{type(rule).__name__}`: {error}")
        raised.__cause__ = error
    except Exception as error:
        error.add_note(f"The fallback rule `{type(rule).__name__}` raises this.")
        raised = error
    return [Decision(None, error=raised)] * len(arrays)


def _apply_to_array(rule: Any, array: Any) -> Decision:
    """Returns what a rule for single arrays decides for one, or the error that it raises."""
    try:
        return Decision(rule.apply(array))
    except Exception as error:
        return Decision(None, error=error)


def check_decision(decision: Decision, sizes: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike | None) -> P:
    """Returns the spec that a fallback rule gives to a plain array; raises an error if it does not fit."""
    if decision.error is not None:
        raise decision.error
    spec, rule = decision.spec, type(mapping.fallback).__name__
    if not isinstance(spec, P):
        raise TypeError(f"A fallback rule gives a `PartitionSpec` or None; `{rule}` gives {format_value(spec)}.")
    try:
        return check_rule_spec(spec, sizes, decision.uneven if mapping.uneven == "error" else mapping.uneven, mesh)
    except ValueError as error:
        by = decision.by or f"the fallback rule `{rule}`"
        raise ValueError(f"{by} gives {spec} for shape {sizes}: {error}") from None


def resolve_decision(
    decision: Decision | None, sizes: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike
) -> NamedSharding | None:
    """Returns the sharding that a fallback rule gives to a plain array, None if the array stays where it is."""
    if decision is None or (decision.spec is None and decision.error is None):
        return None
    if not isinstance(decision.spec, P):  # raises an error; neither need be hashable
        check_decision(decision, sizes, mapping, mesh)
    return _make_rule_sharding(decision, sizes, mapping, mesh)


@cached_plan
def _make_rule_sharding(
    decision: Decision, sizes: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike
) -> NamedSharding:
    return NamedSharding(mesh, check_decision(decision, sizes, mapping, mesh))


def locate_error(error: ValueError, about: Leaf, mapping: AxisMapping) -> ValueError:
    """Returns an error about a leaf with its path; an error that a rule raises about a tree is not changed."""
    where = keystr(about.path)
    if about.decision is not None and error is about.decision.error and isinstance(mapping.fallback, ShardingRule):
        return error
    return ValueError(f"{where}: {error}" if where else str(error))

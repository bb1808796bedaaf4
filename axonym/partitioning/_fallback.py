"""The fallback rules of mappings, which decide where plain arrays go: what they are asked, and what they may answer.

A rule of `axonym.rules` is asked once for all plain arrays of a tree, any other object once for each array.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec as P

from .._ground.caches import cached_plan
from .._ground.errors import find_stacklevel
from .._ground.formats import format_value
from ._active_mesh import MeshLike
from ._leaves import ARRAY_TYPES, LeafInfo, get_array_shape, have_mappings
from ._mapping import AxisMapping, Uneven
from ._resolve_spec import check_rule_spec


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


def asks_for_trees(rule: Any) -> bool:
    """Returns whether a rule gets all plain arrays of a tree at once."""
    return hasattr(rule, "_ask_arrays")


def apply_fallback_rules(
    leaves: list[Any], described: list[LeafInfo], mapping: AxisMapping, mesh: MeshLike | None
) -> list[LeafInfo]:
    """Returns the descriptions of the leaves of a tree, with the decisions of fallback rules.

    A rule is asked once for all plain arrays with one mapping. Errors that it raises are stored in its decisions, and
    raised where one of the leaves is sharded.
    """
    if mapping.fallback is None and not have_mappings(described):
        return described
    groups: dict[AxisMapping, list[int]] = {}
    for position, leaf_info in enumerate(described):
        leaf, leaf_mapping = leaves[position], mapping if leaf_info.mapping is None else leaf_info.mapping
        if leaf_mapping.fallback is None or not isinstance(leaf, ARRAY_TYPES) or get_array_shape(leaf) is None:
            continue
        if leaf_info.names_of(leaf.shape) is None:
            groups.setdefault(leaf_mapping, []).append(position)
    decided = [*described]
    for leaf_mapping, positions in groups.items():
        arrays = [leaves[position] for position in positions]
        paths = tuple([described[position].path for position in positions])
        rule = leaf_mapping.fallback
        if getattr(rule, "_sees_values", True):
            decisions = _collect_decisions(rule, arrays, paths, mesh)
        else:
            shapes = tuple([(array.shape, array.dtype) for array in arrays])
            decisions, caught = _decide_by_shapes(rule, shapes, paths, mesh)
            for warning in caught:  # at each call, as if the decisions were not cached
                warnings.warn(warning.message, warning.category, stacklevel=find_stacklevel())
        for position, decision in zip(positions, decisions, strict=True):
            decided[position] = described[position]._replace(decision=decision)
    return decided


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
    if not asks_for_trees(rule):
        decisions: list[Decision] = []
        for array in arrays:
            try:
                decisions.append(Decision(rule.apply(array)))
            except Exception as error:
                decisions.append(Decision(None, error=error))
        return decisions
    try:
        return rule._ask_arrays(arrays, paths, mesh)
    except ValueError as error:
        raised: Exception = ValueError(f"the fallback rule `{type(rule).__name__}`: {error}")
        raised.__cause__ = error
    except Exception as error:
        error.add_note(f"The fallback rule `{type(rule).__name__}` raises this.")
        raised = error
    return [Decision(None, error=raised)] * len(arrays)


def check_decision(decision: Decision, sizes: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike | None) -> P:
    """Returns the spec that a fallback rule gives to a plain array; raises an error if it does not fit."""
    if decision.error is not None:
        raise decision.error
    spec, rule = decision.spec, type(mapping.fallback).__name__
    if not isinstance(spec, P):
        raise TypeError(f"A fallback rule gives a `PartitionSpec` or None; `{rule}` gives {format_value(spec)}.")
    try:
        # Rule and mapping may each ask to replicate what does not fit.
        uneven = "replicate" if "replicate" in (decision.uneven, mapping.uneven) else "error"
        return check_rule_spec(spec, sizes, uneven, mesh)
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

"""What the fallback rules of mappings say of the plain arrays of a tree, asked once for each tree and mapping."""

import functools
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec as P
from jax.tree_util import keystr

from ...named._axis import format_value
from ..mapping._axis_mapping import AxisMapping
from ..rules._sharding_rule import (
    Decision,
    ShardingRule,
    applied_with,
    fallback_decisions,
    get_array_shape,
    make_path_tree,
    sees_shapes_alone,
)
from ..specs._leaves import ARRAYS, Leaf
from ..specs._resolve_spec import MeshLike, user_stacklevel
from ..specs._spec_problems import check_rule_spec


_own_mapping = operator.itemgetter(Leaf._fields.index("mapping"))


def apply_fallback_rules(
    leaves: list[Any], described: list[Leaf], mapping: AxisMapping, mesh: MeshLike | None
) -> list[Leaf]:
    """Returns what is known of the leaves of a tree, with what fallback rules say of those that go by one.

    A rule is asked once for all leaves that go by one mapping, with the mesh in force. What it raises is kept for the
    leaves, so that it is raised where one of them is sharded.

    Args:
        leaves: The leaves.
        described: What is known of them.
        mapping: The mapping of those that have none of their own.
        mesh: The mesh, None if it is not known.
    """
    if mapping.fallback is None and not any(map(_own_mapping, described)):
        return described
    groups: dict[AxisMapping, list[int]] = {}
    for at, about in enumerate(described):
        chosen, leaf = mapping if about.mapping is None else about.mapping, leaves[at]
        plain = about.names is None or (isinstance(leaf, ARRAYS) and about.names_of(leaf.shape) is None)
        if plain and chosen.fallback is not None and isinstance(leaf, ARRAYS) and get_array_shape(leaf) is not None:
            groups.setdefault(chosen, []).append(at)
    found = [*described]
    for chosen, places in groups.items():
        known = _known(chosen, [leaves[at] for at in places], tuple([described[at] for at in places]), mesh)
        for at, about in zip(places, known, strict=True):
            found[at] = about
    return found


def _known(
    mapping: AxisMapping, leaves: list[Any], described: tuple[Leaf, ...], mesh: MeshLike | None
) -> Sequence[Leaf]:
    """Returns what is known of some leaves, with what the fallback rule of their mapping says."""
    rule = mapping.fallback
    if not sees_shapes_alone(rule):
        return _with(described, _answers(rule, leaves, described, mesh))
    looks = tuple([(leaf.shape, leaf.dtype) for leaf in leaves])
    known, warned = _known_of_shapes(mapping, looks, described, mesh)
    for warning in warned:
        warnings.warn(warning.message, warning.category, stacklevel=user_stacklevel())
    return known


@functools.lru_cache(maxsize=256)
def _known_of_shapes(
    mapping: AxisMapping, looks: tuple[tuple[Any, Any], ...], described: tuple[Leaf, ...], mesh: MeshLike | None
) -> tuple[Sequence[Leaf], Sequence[warnings.WarningMessage]]:
    """Returns the same for a rule that asks for nothing but paths, shapes and dtypes, and what the rule warns of."""
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in looks]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        answers = _answers(mapping.fallback, shapes, described, mesh)
    return _with(described, answers), tuple(warned)


def _with(described: Sequence[Leaf], answers: Sequence[Decision]) -> Sequence[Leaf]:
    return tuple(about._replace(ruled=answer) for about, answer in zip(described, answers, strict=True))


def _answers(rule: Any, leaves: list[Any], described: Sequence[Leaf], mesh: MeshLike | None) -> list[Decision]:
    """Returns what a rule answers for some leaves: specs, None, or the error that it raises."""
    with applied_with(mesh):
        if not isinstance(rule, ShardingRule):
            return [_answer(rule, leaf) for leaf in leaves]
        try:
            pairs = [(about.path, leaf) for about, leaf in zip(described, leaves, strict=True)]
            return fallback_decisions(rule, make_path_tree(pairs))
        except ValueError as error:
            refused = ValueError(f"the fallback rule `{type(rule).__name__}`: {error}")
            refused.__cause__ = error
            return [Decision(None, error=refused)] * len(leaves)
        except Exception as error:
            error.add_note(f"The fallback rule `{type(rule).__name__}` raises this.")
            return [Decision(None, error=error)] * len(leaves)


def _answer(rule: Any, leaf: Any) -> Decision:
    """Returns what a rule that knows one array at a time answers for one, or the error that it raises."""
    try:
        return Decision(rule.apply(leaf))
    except Exception as error:
        return Decision(None, error=error)


def check_answer(answer: Decision, sizes: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike | None) -> P:
    """Returns the spec that the fallback rule gives for a plain array, which the mesh must be able to do.

    Raises:
        TypeError: If the rule gives something else than a spec or None.
        ValueError: If the mesh cannot.
    """
    spec, by, uneven, _, error = answer
    if error is not None:
        raise error
    rule = type(mapping.fallback).__name__
    if not isinstance(spec, P):
        raise TypeError(f"A fallback rule gives a `PartitionSpec` or None; `{rule}` gives {format_value(spec)}.")
    try:
        return check_rule_spec(spec, sizes, uneven if mapping.uneven == "error" else mapping.uneven, mesh)
    except ValueError as error:
        raise ValueError(f"{by or f'the fallback rule `{rule}`'} gives {spec} for shape {sizes}: {error}") from None


def locate_error(error: ValueError, about: Leaf, mapping: AxisMapping) -> ValueError:
    """Returns an error about a leaf with where that is; one that a rule raises about a whole tree as it is."""
    where = keystr(about.path)
    if about.ruled is not None and error is about.ruled.error and isinstance(mapping.fallback, ShardingRule):
        return error
    return ValueError(f"{where}: {error}" if where else str(error))

"""`PathShardingRule`: specs for arrays whose key paths match a regular expression."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec as P

from ...named._format import format_value
from ...named._traceback import strip_library_frames
from ..mapping._mapping import Uneven, check_uneven
from ..specs._active_mesh import MeshLike
from ._path_patterns import find_shardable_places, find_unneeded_patterns, format_names, matches_path
from ._pattern_rule import PatternRule, check_pattern_spec
from ._rule_options import check_mesh
from ._rule_tree import RuleLeaf
from ._sharding_rule import Decision


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class PathShardingRule(PatternRule):
    """Gives arrays the spec of the first pattern that matches their key path; it decides nothing about others.

    A key path is written with slashes, such as `layers/0/attn/weight`, whether its keys are names of fields, keys of
    dictionaries or positions. A pattern is a regular expression, which may match any part of the path, as with
    `re.search`; anchor it with `^` and `$` to prevent that. The attribute `value` at the end, in which Flax NNX holds
    the array of a variable, may be left out: `kernel$` matches `layers/0/kernel/value`. Specs are used as they are
    written, for named arrays too. The spec `P()` is a decision: the array is replicated, whatever later rules of a
    `CompositeShardingRule` decide.

    Args:
        patterns: Pairs of a regular expression and a spec, or a dictionary; the first that matches decides.
        mesh: The mesh that must have the mesh axes of the specs; the active mesh when the rule is applied if None.
        strict: Whether it is an error if no pattern matches an array of more than one element, or if a pattern is not
            needed, because no array matches it or all that do match an earlier one. In a `CompositeShardingRule` other
            rules may decide about the arrays that no pattern matches. The fallback of a mapping gets several trees,
            such as parameters, batches and results; there a pattern may match nothing in one of them.
        uneven: What happens to an axis whose size is not divisible by its mesh axes: `"error"`, or `"replicate"` to
            replicate it. As the fallback of a mapping with `uneven="replicate"`, any rule replicates it.

    Raises:
        TypeError: If a pattern is not a string or compiled expression, a spec is not a `PartitionSpec`, or `mesh` is
            not a mesh.
        ValueError: If a pattern is not a regular expression, or a spec has a mesh axis twice or one that `mesh` lacks.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec as P
        >>> rule = nym.PathShardingRule([("attn/.*weight", P("data", "model")), ("weight$", P(None, "model"))])
        >>> weights = {"weight": jnp.ones((8, 8)), "bias": jnp.ones(8)}
        >>> rule.apply({"attn": weights, "mlp": weights})["attn"]
        {'bias': P(), 'weight': P('data', 'model')}
    """

    patterns: tuple[tuple[re.Pattern[str], P], ...]
    mesh: MeshLike | None
    strict: bool
    uneven: Uneven

    def __init__(
        self,
        patterns: Mapping[str | re.Pattern[str], P] | Iterable[tuple[str | re.Pattern[str], P]],
        mesh: MeshLike | None = None,
        *,
        strict: bool = False,
        uneven: Uneven = "error",
    ) -> None:
        given = tuple((_compile_pattern(pattern), spec) for pattern, spec in _parse_patterns(patterns))
        for pattern, spec in given:
            check_pattern_spec(spec, f"the pattern {pattern.pattern!r}", check_mesh(mesh))
        if not isinstance(strict, bool):
            raise strip_library_frames(TypeError(f"`strict` is True or False, not {format_value(strict)}."))
        self._set_options(patterns=given, mesh=check_mesh(mesh), strict=strict, uneven=check_uneven(uneven))

    def _find_match(self, leaf: RuleLeaf) -> tuple[str, P] | None:
        found = ((repr(pattern.pattern), spec) for pattern, spec in self.patterns if matches_path(pattern, leaf.path))
        return next(found, None)

    def _check_leaves(self, leaves: Sequence[RuleLeaf], found: Sequence[Decision]) -> None:
        """Checks that there is a decision for each array of more than one element, if the rule is strict."""
        unmatched = [leaf for leaf, decision in zip(leaves, found, strict=True) if not decision.is_final]
        if self.strict and (places := find_shardable_places(unmatched)):
            raise strip_library_frames(
                ValueError(
                    f"no pattern of the strict `{type(self).__name__}` matches {format_names(places)}; add patterns "
                    "for them, with P() for arrays to replicate"
                )
            )

    def _check_patterns(self, leaves: Sequence[RuleLeaf]) -> None:
        """Checks that each pattern is the first to match some array, if the rule is strict."""
        if self.strict and (reasons := find_unneeded_patterns([pattern for pattern, _ in self.patterns], leaves)):
            raise strip_library_frames(
                ValueError(
                    f"the strict `{type(self).__name__}` does not need all its patterns: {'; '.join(reasons)}; "
                    "correct, move or remove them"
                )
            )

    def __repr__(self) -> str:
        patterns = [
            (one if one.flags != re.compile(one.pattern).flags else one.pattern, spec) for one, spec in self.patterns
        ]
        return f"{type(self).__name__}({patterns}{self._format_options()})"


def _parse_patterns(patterns: Any) -> list[tuple[Any, Any]]:
    """Returns pairs of a pattern and a spec; raises a TypeError if they are not pairs."""
    given = patterns.items() if isinstance(patterns, Mapping) else patterns
    pairs: list[Any] = [*given] if isinstance(given, Iterable) and not isinstance(given, str) else [None]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise strip_library_frames(
            TypeError(
                "The patterns of a `PathShardingRule` are pairs of a regular expression and a spec, such as "
                f"[('attn/.*weight', P('data'))], or a dictionary, not {format_value(patterns)}."
            )
        )
    return [(one, other) for one, other in pairs]


def _compile_pattern(pattern: Any) -> re.Pattern[str]:
    """Returns a regular expression; raises a TypeError if it is something else, or a ValueError if it is not valid."""
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise strip_library_frames(
            TypeError(
                f"A pattern for paths is a regular expression, such as 'attn/.*weight', not {format_value(pattern)}."
            )
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise strip_library_frames(
            ValueError(
                f"the pattern {pattern!r} is not a regular expression: {error}; write a backslash before a special "
                "character that is meant literally"
            )
        ) from None

"""Rules with specs that are written by hand: `PathShardingRule` and `ShapeBasedShardingRule`."""

import dataclasses
import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from jax.sharding import PartitionSpec as P
from jax.tree_util import GetAttrKey, keystr

from .._ground.arguments import check_flag
from .._ground.caches import cached_plan
from .._ground.errors import make_error
from .._ground.formats import format_value
from .._ground.similar_names import MIN_SIMILARITY, measure_similarity
from ..partitioning._active_mesh import MeshLike, check_mesh
from ..partitioning._mapping import Uneven, check_uneven
from ..partitioning._resolve_spec import check_rule_spec
from ._sharding_rule import BuiltInRule, Decision, HasMesh, RuleLeaf, RuleTree, make_default_decision


_MAX_NAMES = 8
_MAX_SUGGESTIONS = 3
ShapePattern: TypeAlias = tuple[int | None, ...]


@cached_plan
def _format_places(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns a key path with slashes between its keys; for a variable also without the attribute of its value.

    Libraries such as Flax NNX wrap each array in a variable with an attribute `value`. So a pattern may end where the
    name of the variable does.
    """
    place = keystr(path, simple=True, separator="/")
    if path and path[-1] == GetAttrKey("value"):
        return place, keystr(path[:-1], simple=True, separator="/")
    return (place,)


def _matches_path(pattern: re.Pattern[str], path: tuple[Any, ...]) -> bool:
    """Returns whether a pattern matches a part of a key path."""
    return any(map(pattern.search, _format_places(path)))


def _format_names(names: Sequence[str]) -> str:
    """Returns the first few names in words, and the number of others."""
    surplus_text = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(map(repr, names[:_MAX_NAMES]))}{surplus_text}" or "none"


def _find_similar_places(pattern: str, places: Iterable[str]) -> list[str]:
    """Returns the places most similar to a pattern, comparing it to parts with as many keys."""
    # What a pattern would look like in a path: without the special characters of regular expressions.
    plain = re.sub(r"\\.|[][^$()?*+|{}]", "", pattern).strip("/.")
    keys = plain.count("/") + 1
    similarities: dict[str, float] = {}
    for place in places:
        parts = place.split("/")
        windows = ["/".join(parts[start : start + keys]) for start in range(max(1, len(parts) - keys + 1))]
        similarities[place] = max(measure_similarity(plain, window) for window in windows)
    similar = [place for place, similarity in similarities.items() if similarity >= MIN_SIMILARITY]
    return sorted(similar, key=lambda place: -similarities[place])[:_MAX_SUGGESTIONS]


def _find_unneeded_patterns(patterns: Sequence[re.Pattern[str]], leaves: Iterable[RuleLeaf]) -> list[str]:
    """Returns a reason for each pattern that is not the first to match any array."""
    paths = [leaf.path for leaf in leaves if leaf.shape is not None]
    matches_of_arrays = [
        [number for number, pattern in enumerate(patterns) if _matches_path(pattern, path)] for path in paths
    ]
    needed = {matches[0] for matches in matches_of_arrays if matches}
    reasons: list[str] = []
    for number, pattern in enumerate(patterns):
        if number in needed:
            continue
        earlier = sorted({matches[0] for matches in matches_of_arrays if number in matches})
        if earlier:
            earlier_patterns = [patterns[earlier_number].pattern for earlier_number in earlier]
            reasons.append(
                f"all arrays that pattern {pattern.pattern!r} matches are matched by earlier ones: "
                f"{_format_names(earlier_patterns)}"
            )
            continue
        places = [_format_places(path)[0] for path in paths]
        similar = _find_similar_places(pattern.pattern, places)
        hint = f"did you mean {_format_names(similar)}?" if similar else f"the arrays are {_format_names(places)}"
        reasons.append(f"pattern {pattern.pattern!r} matches no array; {hint}")
    return reasons


class PatternRule(HasMesh, BuiltInRule):
    """Base class of rules that give an array the spec of a pattern."""

    uneven: Uneven

    @abstractmethod
    def _find_match(self, leaf: RuleLeaf) -> tuple[str, P] | None:
        """Returns the pattern that decides about an array, as messages show it, and its spec."""

    def _decide_leaves(self, tree: RuleTree, mesh: MeshLike | None) -> list[Decision]:
        rule_mesh = None if self.mesh is None else self._resolve_mesh(mesh)
        decisions: list[Decision] = []
        for leaf in tree.leaves:
            match = None if leaf.shape is None else self._find_match(leaf)
            if match is None:
                decisions.append(make_default_decision(self))
            else:
                by = f"the pattern {match[0]} of a `{type(self).__name__}`"
                decisions.append(Decision(match[1], by, self.uneven, rule_mesh))
        return decisions

    def _format_options(self) -> str:
        """Returns the arguments after the patterns that differ from the defaults."""
        options = {"mesh": (self.mesh, None), "strict": (getattr(self, "strict", False), False)}
        options["uneven"] = (self.uneven, "error")
        return "".join(f", {name}={value!r}" for name, (value, default) in options.items() if value != default)


def _check_pattern_spec(spec: Any, pattern: str, mesh: MeshLike | None, rank: int | None = None) -> None:
    """Checks the spec of a pattern as far as possible without an array."""
    if not isinstance(spec, P):
        raise TypeError(
            f"The spec of {pattern} is a `PartitionSpec`, such as P('data', None), or P() to replicate the array, "
            f"not {format_value(spec)}."
        )
    try:
        check_rule_spec(spec, (None,) * (len(spec) if rank is None else rank), "error", mesh)
    except ValueError as error:
        raise ValueError(f"{pattern} has the spec {spec}: {error}") from None


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
        check_mesh(mesh)
        compiled_patterns = tuple((_compile_pattern(pattern), spec) for pattern, spec in _parse_patterns(patterns))
        for pattern, spec in compiled_patterns:
            _check_pattern_spec(spec, f"the pattern {pattern.pattern!r}", mesh)
        check_flag("`strict`", strict)
        self._set_options(patterns=compiled_patterns, mesh=mesh, strict=strict, uneven=check_uneven(uneven))

    def _find_match(self, leaf: RuleLeaf) -> tuple[str, P] | None:
        for pattern, spec in self.patterns:
            if _matches_path(pattern, leaf.path):
                return repr(pattern.pattern), spec
        return None

    def _check_leaves(self, leaves: Sequence[RuleLeaf], decisions: Sequence[Decision]) -> None:
        """Checks that there is a decision for each array of more than one element, if the rule is strict."""
        places = [
            _format_places(leaf.path)[0]
            for leaf, decision in zip(leaves, decisions, strict=True)
            if not decision.is_final and math.prod(leaf.shape or ()) > 1
        ]
        if self.strict and places:
            raise make_error(
                ValueError,
                f"no pattern of the strict `{type(self).__name__}` matches {_format_names(places)}; add patterns "
                "for them, with P() for arrays to replicate",
            )

    def _check_patterns(self, leaves: Sequence[RuleLeaf]) -> None:
        """Checks that each pattern is the first to match some array, if the rule is strict."""
        if self.strict and (reasons := _find_unneeded_patterns([pattern for pattern, _ in self.patterns], leaves)):
            raise make_error(
                ValueError,
                f"the strict `{type(self).__name__}` does not need all its patterns: {'; '.join(reasons)}; "
                "correct, move or remove them",
            )

    def __repr__(self) -> str:
        patterns: list[tuple[str | re.Pattern[str], P]] = []
        for pattern, spec in self.patterns:
            has_flags = pattern.flags != re.compile(pattern.pattern).flags
            patterns.append((pattern if has_flags else pattern.pattern, spec))
        return f"{type(self).__name__}({patterns}{self._format_options()})"


def _parse_patterns(patterns: Any) -> list[tuple[Any, Any]]:
    """Returns pairs of a pattern and a spec; raises a TypeError if they are not pairs."""
    items = patterns.items() if isinstance(patterns, Mapping) else patterns
    pairs: list[Any] = [*items] if isinstance(items, Iterable) and not isinstance(items, str) else [None]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise make_error(
            TypeError,
            "The patterns of a `PathShardingRule` are pairs of a regular expression and a spec, such as "
            f"[('attn/.*weight', P('data'))], or a dictionary, not {format_value(patterns)}.",
        )
    return [(pattern, spec) for pattern, spec in pairs]


def _compile_pattern(pattern: Any) -> re.Pattern[str]:
    """Returns a regular expression; raises a TypeError if it is something else, or a ValueError if it is not valid."""
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise make_error(
            TypeError,
            f"A pattern for paths is a regular expression, such as 'attn/.*weight', not {format_value(pattern)}.",
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise make_error(
            ValueError,
            f"the pattern {pattern!r} is not a regular expression: {error}; write a backslash before a special "
            "character that is meant literally",
        ) from None


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class ShapeBasedShardingRule(PatternRule):
    """Gives arrays the spec of the pattern that their shape matches; it decides nothing about others.

    A pattern is a tuple of sizes, with None for any size; it matches arrays with the same number of axes. If several
    match, the pattern with the fewest None decides, and of these the first: so an exact pattern may come after a
    general one. Specs are used as they are written. The spec `P()` is a decision too: the array is replicated, whatever
    later rules of a `CompositeShardingRule` decide.

    Args:
        shape_patterns: From patterns to specs.
        mesh: The mesh that must have the mesh axes of the specs; the active mesh when the rule is applied if None.
        uneven: What happens to an axis whose size is not divisible by its mesh axes: `"error"`, or `"replicate"` to
            replicate it. As the fallback of a mapping with `uneven="replicate"`, any rule replicates it.

    Raises:
        TypeError: If a pattern is not a tuple of sizes, a spec is not a `PartitionSpec` or `mesh` is not a mesh.
        ValueError: If a size is negative, or a spec has more entries than its pattern, has a mesh axis twice or has one
            that `mesh` lacks.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec as P
        >>> rule = nym.ShapeBasedShardingRule({(None, 16): P("model", None), (16, 16): P("data", "model")})
        >>> rule.apply({"table": jnp.ones((50, 16)), "square": jnp.ones((16, 16)), "bias": jnp.ones(16)})
        {'bias': P(), 'square': P('data', 'model'), 'table': P('model', None)}
    """

    mesh: MeshLike | None
    uneven: Uneven
    _given: tuple[tuple[ShapePattern, P], ...] = dataclasses.field(compare=False)
    _ordered: tuple[tuple[ShapePattern, P], ...]

    def __init__(
        self, shape_patterns: Mapping[ShapePattern, P], mesh: MeshLike | None = None, *, uneven: Uneven = "error"
    ) -> None:
        if not isinstance(shape_patterns, Mapping):
            raise TypeError(
                "`shape_patterns` goes from shapes to specs, such as {(None, 8): P('data')}, "
                f"not {format_value(shape_patterns)}."
            )
        checked = tuple((_check_shape_pattern(pattern), spec) for pattern, spec in shape_patterns.items())
        check_mesh(mesh)
        for pattern, spec in checked:
            _check_pattern_spec(spec, f"the pattern {pattern}", mesh, len(pattern))
        # Rules are equal if they differ only in the order of patterns of different rank or number of None.
        ordered = sorted(checked, key=lambda pair: (len(pair[0]), pair[0].count(None)))
        self._set_options(mesh=mesh, uneven=check_uneven(uneven), _given=checked, _ordered=tuple(ordered))

    @property
    def shape_patterns(self) -> dict[ShapePattern, P]:
        """The patterns and their specs, in the order given."""
        return dict(self._given)

    def _find_match(self, leaf: RuleLeaf) -> tuple[str, P] | None:
        shape = leaf.shape or ()
        for pattern, spec in self._ordered:
            if len(pattern) == len(shape) and all(map(lambda wanted, size: wanted in (None, size), pattern, shape)):
                return str(pattern), spec
        return None

    def _get_options(self) -> dict[str, Any]:
        return {"shape_patterns": self.shape_patterns, "uneven": self.uneven}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape_patterns}{self._format_options()})"


def _check_shape_pattern(pattern: Any) -> ShapePattern:
    sizes = [size for size in pattern if size is not None] if isinstance(pattern, tuple) else []
    are_integers = all(hasattr(size, "__index__") and not isinstance(size, bool) for size in sizes)
    if not isinstance(pattern, tuple) or not are_integers:
        raise TypeError(f"A pattern is a tuple of sizes, None for any, such as (None, 8), not {format_value(pattern)}.")
    if any(size < 0 for size in sizes):
        raise ValueError(f"the pattern {pattern} has a negative size; write None for any size")
    return tuple(None if size is None else int(size) for size in pattern)

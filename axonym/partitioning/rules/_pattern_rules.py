"""Rules written by hand: specs for shapes that match a pattern, and for key paths that match a regular expression."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from jax.sharding import PartitionSpec as P

from ...named._axis import format_value
from ..mapping._axis_mapping import Uneven
from ..specs._resolve_spec import MeshLike
from ..specs._spec_problems import check_rule_spec
from ._path_patterns import divisible, is_found, not_needed, some
from ._rule_options import OnAMesh, checked_mesh
from ._sharding_rule import DecidingRule, Decision, Pairs, get_array_shape


ShapePattern: TypeAlias = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class ShapeBasedShardingRule(OnAMesh, DecidingRule):
    """Gives arrays the spec of the pattern that their shape matches; it says nothing of others.

    A pattern is a tuple of sizes, None for any size; it matches arrays of as many axes. Of several that match, the one
    with the fewest None decides, and of these the first: so an exact pattern may come after a general one. Specs are
    given as they are written. The spec `P()` of a pattern is a decision too: the array stays whole, whatever later
    rules of a `CompositeShardingRule` say.

    Args:
        shape_patterns: From patterns to specs.
        mesh: The mesh that has to have the mesh axes of the specs; the one in force when the rule is applied if None.
        uneven: What happens to an axis whose size the mesh does not divide: `"error"`, or `"replicate"` to
            leave it whole. As the fallback of a mapping that says `"replicate"`, any rule leaves it whole.

    Attributes:
        shape_patterns: The same, as a dictionary of its own: the rule never changes.
        mesh: As given.
        uneven: As given.

    Raises:
        TypeError: If a pattern is no tuple of sizes, a spec is no `PartitionSpec` or `mesh` is no mesh.
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
    _sees_shapes_alone = True

    def __init__(
        self, shape_patterns: Mapping[ShapePattern, P], mesh: MeshLike | None = None, *, uneven: Uneven = "error"
    ) -> None:
        """Checks the patterns; see the class."""
        if not isinstance(shape_patterns, Mapping):
            raise TypeError(
                f"`shape_patterns` goes from shapes to specs, as {{(None, 8): P('data')}} does, "
                f"not {format_value(shape_patterns)}."
            )
        given = tuple((_checked_pattern(pattern), spec) for pattern, spec in shape_patterns.items())
        for pattern, spec in given:
            _check_spec(spec, f"the pattern {pattern}", checked_mesh(mesh), len(pattern))
        # Among patterns of as many axes and None, the order decides; the rest of it does not matter, nor do rules
        # differ that differ in it.
        ordered = sorted(given, key=lambda pair: (len(pair[0]), pair[0].count(None)))
        self._keep(mesh=checked_mesh(mesh), uneven=_checked_uneven(uneven), _given=given, _ordered=tuple(ordered))

    @property
    def shape_patterns(self) -> dict[ShapePattern, P]:
        """The patterns and their specs, in the order given."""
        return dict(self._given)

    def decisions(self, pairs: Pairs, pytree: Any) -> list[Decision]:
        """Returns the decision for each leaf of a tree, not yet checked; the leaves are given with their paths."""
        mesh = None if self.mesh is None else self._mesh_here()
        return [self._decision(get_array_shape(leaf), mesh) for _, leaf in pairs]

    def _decision(self, shape: tuple[int, ...] | None, mesh: MeshLike | None) -> Decision:
        for pattern, spec in self._ordered:
            if shape is not None and _matches(pattern, shape):
                by = f"the pattern {pattern} of a `{type(self).__name__}`"
                return Decision(spec, by, self.uneven, mesh)
        return Decision(None)

    def _given_options(self) -> dict[str, Any]:
        return {"shape_patterns": self.shape_patterns, "uneven": self.uneven}

    def __repr__(self) -> str:
        """Shows the patterns."""
        options = _options(mesh=(self.mesh, None), uneven=(self.uneven, "error"))
        return f"{type(self).__name__}({self.shape_patterns}{options})"


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class PathShardingRule(OnAMesh, DecidingRule):
    """Gives arrays the spec of the first pattern that is found in their key path; it says nothing of others.

    A key path is written with slashes, as `layers/0/attn/weight` is, whatever its keys are: names of fields, keys of
    dictionaries or positions. A pattern is a regular expression, which may match any part of it, as `re.search` has it;
    anchor it with `^` and `$` where it should not. The attribute `value` at the end, in which Flax NNX holds the array
    of a variable, may be left out: `kernel$` is found in `layers/0/kernel/value`. Specs are given as they are written,
    to named arrays too. The spec `P()` is a decision: the array stays whole, whatever later rules of a
    `CompositeShardingRule` say.

    Args:
        patterns: Pairs of a regular expression and a spec, or a dictionary; the first that matches decides.
        mesh: The mesh that has to have the mesh axes of the specs; the one in force when the rule is applied if None.
        strict: Whether it is an error if no pattern matches an array of more than one element, or a pattern is not
            needed, because no array matches it or all that do match an earlier one. In a `CompositeShardingRule` other
            rules may take the arrays that no pattern matches. The fallback of a mapping sees several trees, such as
            parameters, batches and results; there a pattern may match nothing in one of them.
        uneven: What happens to an axis whose size the mesh does not divide: `"error"`, or `"replicate"` to
            leave it whole. As the fallback of a mapping that says `"replicate"`, any rule leaves it whole.

    Attributes:
        patterns: The pairs, with compiled expressions.
        mesh: As given.
        strict: As given.
        uneven: As given.

    Raises:
        TypeError: If a pattern is no string or compiled expression, a spec is no `PartitionSpec` or `mesh` is no mesh.
        ValueError: If a pattern is no regular expression, or a spec has a mesh axis twice or one that `mesh` lacks.

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
    _sees_shapes_alone = True

    def __init__(
        self,
        patterns: Mapping[str | re.Pattern[str], P] | Iterable[tuple[str | re.Pattern[str], P]],
        mesh: MeshLike | None = None,
        *,
        strict: bool = False,
        uneven: Uneven = "error",
    ) -> None:
        """Checks the patterns; see the class."""
        given = tuple((_compiled(pattern), spec) for pattern, spec in _path_pairs(patterns))
        for pattern, spec in given:
            _check_spec(spec, f"the pattern {pattern.pattern!r}", checked_mesh(mesh))
        self._keep(patterns=given, mesh=checked_mesh(mesh), strict=bool(strict), uneven=_checked_uneven(uneven))

    def decisions(self, pairs: Pairs, pytree: Any) -> list[Decision]:
        """Returns the decision for each leaf of a tree, not yet checked; the leaves are given with their paths."""
        mesh = None if self.mesh is None else self._mesh_here()
        return [Decision(None) if get_array_shape(leaf) is None else self._decision(path, mesh) for path, leaf in pairs]

    def _decision(self, path: tuple[Any, ...], mesh: MeshLike | None) -> Decision:
        for pattern, spec in self.patterns:
            if is_found(pattern, path):
                by = f"the pattern {pattern.pattern!r} of a `{type(self).__name__}`"
                return Decision(spec, by, self.uneven, mesh)
        return Decision(None)

    def check(self, pairs: Pairs, found: list[Decision]) -> None:
        """Checks that there is a decision for each array of more than one element, if the rule is strict."""
        left = [pair for pair, decision in zip(pairs, found, strict=True) if decision.spec is None]
        if self.strict and (unmatched := divisible(left)):
            raise ValueError(
                f"no pattern of the strict `{type(self).__name__}` matches {some(unmatched)}; add patterns for them, "
                "with P() for those that stay whole"
            )

    def check_needed(self, pairs: Pairs) -> None:
        """Checks that each pattern is the first for an array, if the rule is strict."""
        if self.strict and (reasons := not_needed([pattern for pattern, _ in self.patterns], pairs)):
            raise ValueError(
                f"the strict `{type(self).__name__}` does not need all its patterns: {'; '.join(reasons)}; correct, "
                "move or remove them"
            )

    def __repr__(self) -> str:
        """Shows the patterns."""
        shown_patterns = [
            (one if one.flags != re.compile(one.pattern).flags else one.pattern, spec) for one, spec in self.patterns
        ]
        options = _options(mesh=(self.mesh, None), strict=(self.strict, False), uneven=(self.uneven, "error"))
        return f"{type(self).__name__}({shown_patterns}{options})"


def _matches(pattern: ShapePattern, shape: tuple[int, ...]) -> bool:
    """Tells whether a shape has the sizes that a pattern has, wherever that has one."""
    return len(pattern) == len(shape) and all(one in (None, size) for one, size in zip(pattern, shape, strict=True))


def _options(**options: tuple[Any, Any]) -> str:
    """Returns options as they are written in a call, those that are not the default."""
    return "".join(f", {name}={value!r}" for name, (value, default) in options.items() if value != default)


def _checked_uneven(uneven: Any) -> Any:
    if uneven not in ("error", "replicate"):
        raise ValueError(f"`uneven` is 'error' or 'replicate', not {uneven!r}.")
    return uneven


def _checked_pattern(pattern: Any) -> ShapePattern:
    """Returns a pattern of shapes.

    Raises:
        TypeError: If it is none.
        ValueError: If a size is negative.
    """
    sizes = pattern if isinstance(pattern, tuple) else (pattern,)
    if not isinstance(pattern, tuple) or not all(size is None or _is_size(size) for size in sizes):
        raise TypeError(f"A pattern is a tuple of sizes, None for any, as (None, 8) is, not {format_value(pattern)}.")
    if any(size is not None and size < 0 for size in sizes):
        raise ValueError(f"the pattern {pattern} has a negative size; write None for any size")
    return tuple(None if size is None else int(size) for size in sizes)


def _is_size(size: Any) -> bool:
    return hasattr(size, "__index__") and not isinstance(size, bool)


def _check_spec(spec: Any, what: str, mesh: MeshLike | None, rank: int | None = None) -> None:
    """Checks what can be checked of a spec without an array, with the mesh if it is known.

    Raises:
        TypeError: If it is none.
        ValueError: If it has more entries than axes, a mesh axis twice or one that the mesh lacks.
    """
    if not isinstance(spec, P):
        raise TypeError(
            f"The spec of {what} is a `PartitionSpec`, such as P('data', None), or P() to keep the array whole, "
            f"not {format_value(spec)}."
        )
    try:
        check_rule_spec(spec, (None,) * (len(spec) if rank is None else rank), "error", mesh)
    except ValueError as error:
        raise ValueError(f"{what} has the spec {spec}: {error}") from None


def _path_pairs(patterns: Any) -> list[tuple[Any, Any]]:
    """Returns pairs of a pattern and a spec, whatever they are given in.

    Raises:
        TypeError: If they are no pairs.
    """
    given = patterns.items() if isinstance(patterns, Mapping) else patterns
    pairs: list[Any] = [*given] if isinstance(given, Iterable) and not isinstance(given, str) else [None]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise TypeError(
            "The patterns of a `PathShardingRule` are pairs of a regular expression and a spec, as "
            f"[('attn/.*weight', P('data'))] has them, or a dictionary, not {format_value(patterns)}."
        )
    return [(one, other) for one, other in pairs]


def _compiled(pattern: Any) -> re.Pattern[str]:
    """Returns a regular expression.

    Raises:
        TypeError: If it is something else.
        ValueError: If it is none.
    """
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str):
        raise TypeError(
            f"A pattern for paths is a regular expression, as 'attn/.*weight' is, not {format_value(pattern)}."
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"the pattern {pattern!r} is no regular expression: {error}; write a backslash before a character that is "
            "meant as itself"
        ) from None

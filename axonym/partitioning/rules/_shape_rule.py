"""`ShapeBasedShardingRule`: specs for shapes that match a pattern."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

from jax.sharding import PartitionSpec as P

from ...named._format import format_value
from ..mapping._mapping import Uneven, check_uneven
from ..specs._active_mesh import MeshLike
from ._pattern_rule import PatternRule, check_pattern_spec
from ._rule_options import check_mesh
from ._rule_tree import RuleLeaf


ShapePattern: TypeAlias = tuple[int | None, ...]


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
        given = tuple((_check_shape_pattern(pattern), spec) for pattern, spec in shape_patterns.items())
        for pattern, spec in given:
            check_pattern_spec(spec, f"the pattern {pattern}", check_mesh(mesh), len(pattern))
        # Rules are equal if they differ only in the order of patterns of different rank or number of None.
        ordered = sorted(given, key=lambda pair: (len(pair[0]), pair[0].count(None)))
        self._set_options(mesh=check_mesh(mesh), uneven=check_uneven(uneven), _given=given, _ordered=tuple(ordered))

    @property
    def shape_patterns(self) -> dict[ShapePattern, P]:
        """The patterns and their specs, in the order given."""
        return dict(self._given)

    def _find_match(self, leaf: RuleLeaf) -> tuple[str, P] | None:
        shape = leaf.shape or ()
        found = ((str(pattern), spec) for pattern, spec in self._ordered if _matches_shape(pattern, shape))
        return next(found, None)

    def _get_options(self) -> dict[str, Any]:
        return {"shape_patterns": self.shape_patterns, "uneven": self.uneven}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape_patterns}{self._format_options()})"


def _matches_shape(pattern: ShapePattern, shape: tuple[int, ...]) -> bool:
    return len(pattern) == len(shape) and all(one in (None, size) for one, size in zip(pattern, shape, strict=True))


def _check_shape_pattern(pattern: Any) -> ShapePattern:
    sizes: list[Any] = [size for size in pattern if size is not None] if isinstance(pattern, tuple) else [None]
    if not all(hasattr(size, "__index__") and not isinstance(size, bool) for size in sizes):
        raise TypeError(f"A pattern is a tuple of sizes, None for any, such as (None, 8), not {format_value(pattern)}.")
    if any(size < 0 for size in sizes):
        raise ValueError(f"the pattern {pattern} has a negative size; write None for any size")
    return tuple(None if size is None else int(size) for size in pattern)

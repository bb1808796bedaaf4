"""What `ShapeBasedShardingRule` and `PathShardingRule` share: patterns with specs that are written by hand."""

from abc import abstractmethod
from typing import Any

from jax.sharding import PartitionSpec as P

from ...named._format import format_value
from ..mapping._mapping import Uneven
from ..specs._active_mesh import MeshLike
from ..specs._spec_problems import check_rule_spec
from ._rule_options import HasMesh
from ._rule_tree import RuleLeaf, RuleTree
from ._sharding_rule import BuiltInRule, Decision, make_default_decision


class PatternRule(HasMesh, BuiltInRule):
    """Base class of rules that give an array the spec of a pattern."""

    uneven: Uneven

    @abstractmethod
    def _find_match(self, leaf: RuleLeaf) -> tuple[str, P] | None:
        """Returns the pattern that decides about an array, as messages show it, and its spec."""

    def _decide_leaves(self, tree: RuleTree, mesh: MeshLike | None) -> list[Decision]:
        own = None if self.mesh is None else self._resolve_mesh(mesh)
        found: list[Decision] = []
        for leaf in tree.leaves:
            match = None if leaf.shape is None else self._find_match(leaf)
            if match is None:
                found.append(make_default_decision(self))
            else:
                by = f"the pattern {match[0]} of a `{type(self).__name__}`"
                found.append(Decision(match[1], by, self.uneven, own))
        return found

    def _format_options(self) -> str:
        """Returns the arguments after the patterns that differ from the defaults."""
        options = {"mesh": (self.mesh, None), "strict": (getattr(self, "strict", False), False)}
        options["uneven"] = (self.uneven, "error")
        return "".join(f", {name}={value!r}" for name, (value, default) in options.items() if value != default)


def check_pattern_spec(spec: Any, pattern: str, mesh: MeshLike | None, rank: int | None = None) -> None:
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

"""Several rules as one: for each array the first of them that decides."""

import dataclasses
from typing import Any

from jax.sharding import PartitionSpec as P
from jax.tree_util import keystr

from ...named._axis import format_value
from ._sharding_rule import DecidingRule, Decision, Pairs, ShardingRule, answers, is_changed, reasons_of


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class CompositeShardingRule(DecidingRule):
    """Asks several rules, and takes for each array the spec of the first one that decides about it.

    Each rule is asked with its `decide`, for the whole tree. The rules of this library know what they decide: a pattern
    with the spec `P()` keeps an array whole, and no later rule divides it. A rule of your own that has `apply` alone
    decides about the arrays for which it gives a spec that divides something. What no rule decides stays whole.

    A `MemoryConstrainedShardingRule` counts what the rules before it have decided, in other composites around it too,
    and divides the other arrays until all together keep its limit. Rules after it can only divide more.

    Args:
        *rules: The rules, the most important one first.

    Attributes:
        rules: The same as a tuple.

    Raises:
        TypeError: If one of them is no rule.
        ValueError: If there is none.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec as P
        >>> paths = nym.PathShardingRule({"norm": P(), "^head": P(None, "model")})
        >>> shapes = nym.ShapeBasedShardingRule({(None, 8): P("data", None), (8,): P("data")})
        >>> tree = {"head": jnp.ones((4, 8)), "mlp": jnp.ones((4, 8)), "norm": jnp.ones(8)}
        >>> nym.CompositeShardingRule(paths, shapes).apply(tree)
        {'head': P(None, 'model'), 'mlp': P('data', None), 'norm': P()}
    """

    rules: tuple[ShardingRule, ...]
    _sees_shapes_alone = True  # if all its rules do

    def __init__(self, *rules: ShardingRule) -> None:
        """Checks the rules; see the class."""
        if not rules:
            raise ValueError(
                "a `CompositeShardingRule` has no rule to ask; give it some: CompositeShardingRule(one, other)"
            )
        for rule in rules:
            if not isinstance(rule, ShardingRule):
                raise TypeError(
                    f"A `CompositeShardingRule` asks instances of `ShardingRule`, one argument each, not {format_value(rule)}."
                )
        object.__setattr__(self, "rules", rules)

    def decisions(self, pairs: Pairs, pytree: Any) -> list[Decision]:
        """Returns the decision for each leaf of a tree, not yet checked; the leaves are given with their paths."""
        return self.decisions_beside(pairs, pytree, [None] * len(pairs))

    def decisions_beside(self, pairs: Pairs, pytree: Any, decided: list[P | None]) -> list[Decision]:
        """Returns the same where other rules have decided before; `decided` has their spec, or None, for each leaf."""
        found = [Decision(None)] * len(pairs)
        for rule in self.rules:
            before = [spec if one.spec is None else one.spec for one, spec in zip(found, decided, strict=True)]
            said = _decisions_of(rule, pairs, pytree, before)
            found = [one if one.spec is not None else other for one, other in zip(found, said, strict=True)]
        return found

    def check_needed(self, pairs: Pairs) -> None:
        """Checks that a whole tree needs all that the rules say."""
        for rule in self.rules:
            if isinstance(rule, DecidingRule) and not is_changed(rule):
                rule.check_needed(pairs)

    def __repr__(self) -> str:
        """Shows the rules."""
        return f"{type(self).__name__}({', '.join(map(repr, self.rules))})"


def _decisions_of(rule: ShardingRule, pairs: Pairs, pytree: Any, before: list[P | None]) -> list[Decision]:
    """Returns what one rule decides for each leaf of a tree, where others have decided before.

    Raises:
        TypeError: If it gives something else than a spec or None.
        ValueError: If it gives a tree of another structure.
    """
    if isinstance(rule, DecidingRule) and not is_changed(rule):
        beside = isinstance(rule, CompositeShardingRule)
        return rule.decisions_beside(pairs, pytree, before) if beside else rule.decisions(pairs, pytree)
    name = type(rule).__name__
    found: list[Decision] = []
    said = answers(rule, pytree, _asked(rule, pytree, before))
    for (path, _), spec, by in zip(pairs, said, reasons_of(rule, pytree, len(said)), strict=True):
        if spec is not None and not isinstance(spec, P):
            where = f"{keystr(path)}: " if path else ""
            raise TypeError(
                f"{where}the rule `{name}` gives {format_value(spec)}; a rule gives a `PartitionSpec` or None."
            )
        found.append(Decision(spec, by or f"the rule `{name}`"))
    return found


def _asked(rule: ShardingRule, pytree: Any, before: list[P | None]) -> Any:
    """Returns what a rule answers for a tree; what it raises says which rule that was."""
    try:
        return rule._decide_beside(pytree, before)
    except ValueError as error:
        name = type(rule).__name__
        if f"`{name}`" in str(error):
            raise
        raise ValueError(f"the rule `{name}`: {error}") from error
    except Exception as error:
        error.add_note(f"The rule `{type(rule).__name__}` raises this.")
        raise

"""Key paths as patterns see them, and which patterns and arrays of a strict rule match nothing."""

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from jax.tree_util import GetAttrKey, keystr

from ...named._cache import cached_plan
from ._rule_tree import RuleLeaf


_MOST_NAMES = 8
_MOST_SUGGESTIONS = 3
_LEAST_SIMILARITY = 0.6


@cached_plan
def format_places(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns a key path with slashes between its keys; for a variable also without the attribute of its value.

    Libraries such as Flax NNX wrap each array in a variable with an attribute `value`. So a pattern may end where the
    name of the variable does.
    """
    place = keystr(path, simple=True, separator="/")
    if path and path[-1] == GetAttrKey("value"):
        return place, keystr(path[:-1], simple=True, separator="/")
    return (place,)


def matches_path(pattern: re.Pattern[str], path: tuple[Any, ...]) -> bool:
    """Returns whether a pattern matches a part of a key path."""
    return any(map(pattern.search, format_places(path)))


def find_shardable_places(leaves: Iterable[RuleLeaf]) -> list[str]:
    """Returns the places of the arrays with more than one element, which a spec could shard."""
    return [format_places(leaf.path)[0] for leaf in leaves if math.prod(leaf.shape or ()) > 1]


def format_names(names: Sequence[str]) -> str:
    """Returns the first few names in words, and the number of others."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(map(repr, names[:_MOST_NAMES]))}{more}" or "none"


def _find_similar_places(pattern: str, places: Iterable[str]) -> list[str]:
    """Returns the places most similar to a pattern, comparing it to parts with as many keys."""
    plain = re.sub(r"\\.|[][^$()?*+|{}]", "", pattern).strip("/.")
    keys = plain.count("/") + 1
    found: list[tuple[float, str]] = []
    for place in places:
        parts = place.split("/")
        windows = ["/".join(parts[at : at + keys]) for at in range(max(1, len(parts) - keys + 1))]
        found.append((max(difflib.SequenceMatcher(None, plain, one).ratio() for one in windows), place))
    best = sorted(found, key=lambda pair: -pair[0])[:_MOST_SUGGESTIONS]
    return [place for similarity, place in best if similarity >= _LEAST_SIMILARITY]


def find_unneeded_patterns(patterns: Sequence[re.Pattern[str]], leaves: Iterable[RuleLeaf]) -> list[str]:
    """Returns a reason for each pattern that is not the first to match any array."""
    paths = [leaf.path for leaf in leaves if leaf.shape is not None]
    found = [[at for at, pattern in enumerate(patterns) if matches_path(pattern, path)] for path in paths]
    firsts = {matches[0] for matches in found if matches}
    reasons: list[str] = []
    for at, pattern in enumerate(patterns):
        if at in firsts:
            continue
        earlier = sorted({matches[0] for matches in found if at in matches})
        if earlier:
            taken = format_names([patterns[one].pattern for one in earlier])
            reasons.append(f"all arrays that pattern {pattern.pattern!r} matches are matched by earlier ones: {taken}")
            continue
        places = [format_places(path)[0] for path in paths]
        similar = _find_similar_places(pattern.pattern, places)
        hint = f"did you mean {format_names(similar)}?" if similar else f"the arrays are {format_names(places)}"
        reasons.append(f"pattern {pattern.pattern!r} matches no array; {hint}")
    return reasons

"""Places of arrays in a tree, as patterns for paths see them, and what a strict rule says of patterns and places."""

import difflib
import functools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from jax.tree_util import GetAttrKey, keystr

from ._sharding_rule import Pairs, get_array_shape


_MOST_PATHS = 8
_NEAREST = 3
_LEAST_LIKE = 0.6


@functools.lru_cache(maxsize=65536)
def places_of(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Returns a key path with slashes between its keys; of a variable also without the attribute that is its value.

    Libraries wrap each array in a variable whose attribute `value` it is, as Flax NNX does. So a pattern may end where
    the name of the variable does.
    """
    whole = keystr(path, simple=True, separator="/")
    if path and path[-1] == GetAttrKey("value"):
        return whole, keystr(path[:-1], simple=True, separator="/")
    return (whole,)


def is_found(pattern: re.Pattern[str], path: tuple[Any, ...]) -> bool:
    """Tells whether a pattern is found in a key path."""
    return any(map(pattern.search, places_of(path)))


def arrays_of(pairs: Pairs) -> list[tuple[Any, ...]]:
    """Returns the paths of the arrays among some leaves."""
    return [path for path, leaf in pairs if get_array_shape(leaf) is not None]


def divisible(pairs: Pairs) -> list[str]:
    """Returns the places of the arrays that have more than one element, so that a spec could say something of them."""
    return [places_of(path)[0] for path, leaf in pairs if math.prod(get_array_shape(leaf) or ()) > 1]


def some(names: Sequence[str], most: int = _MOST_PATHS) -> str:
    """Returns the first of some names in words, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(repr, names[:most]))}{more}" or "none"


def nearest(pattern: str, places: Iterable[str]) -> list[str]:
    """Returns the places that are most like a pattern, by the part of them that has as many keys."""
    plain = re.sub(r"\\.|[][^$()?*+|{}]", "", pattern).strip("/.")
    keys = plain.count("/") + 1
    found: list[tuple[float, str]] = []
    for place in places:
        parts = place.split("/")
        windows = ["/".join(parts[at : at + keys]) for at in range(max(1, len(parts) - keys + 1))]
        found.append((max(difflib.SequenceMatcher(None, plain, one).ratio() for one in windows), place))
    return [place for like, place in sorted(found, key=lambda one: -one[0])[:_NEAREST] if like >= _LEAST_LIKE]


def not_needed(patterns: Sequence[re.Pattern[str]], pairs: Pairs) -> list[str]:
    """Returns for each pattern that is the first for no array why that is so, in words."""
    paths = arrays_of(pairs)
    found = [[at for at, pattern in enumerate(patterns) if is_found(pattern, path)] for path in paths]
    firsts = {ats[0] for ats in found if ats}
    reasons: list[str] = []
    for at, pattern in enumerate(patterns):
        if at in firsts:
            continue
        earlier = sorted({ats[0] for ats in found if at in ats})
        if earlier:
            taken = some([patterns[one].pattern for one in earlier])
            reasons.append(f"all that pattern {pattern.pattern!r} matches is taken by earlier ones: {taken}")
            continue
        places = [places_of(path)[0] for path in paths]
        near = nearest(pattern.pattern, places)
        hint = f"did you mean {some(near)}?" if near else f"the arrays are {some(places)}"
        reasons.append(f"pattern {pattern.pattern!r} matches no array; {hint}")
    return reasons

"""Which of some names a mistyped one is similar to, for the errors of all packages."""

import difflib
from collections.abc import Iterable


MIN_SIMILARITY = 0.6
"""From 0 to 1, as `measure_similarity` returns it; below it, names have hardly been meant."""


def measure_similarity(name: str, option: str) -> float:
    """Returns a number from 0 for names without a common letter to 1 for equal names."""
    return difflib.SequenceMatcher(None, name, option).ratio()


def find_similar_name(name: str, options: Iterable[str]) -> str | None:
    """Returns the option most similar to a name, None if there is no similar one."""
    similar = difflib.get_close_matches(name, list(options), n=1, cutoff=MIN_SIMILARITY)
    return similar[0] if similar else None

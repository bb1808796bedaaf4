"""Which of some names a mistyped one is similar to, for errors, and which name is a typo of another, for warnings."""

import difflib
import re
from collections.abc import Iterable
from typing import Any


MIN_SIMILARITY = 0.6
"""From 0 to 1, as `measure_similarity` returns it; below it, names have hardly been meant."""

_WORD = re.compile(r"[^\W\d_]+")


def measure_similarity(name: str, option: str) -> float:
    """Returns a number from 0 for names without a common letter to 1 for equal names."""
    return difflib.SequenceMatcher(None, name, option).ratio()


def find_similar_name(name: Any, options: Iterable[str]) -> str | None:
    """Returns the option most similar to a name, None if there is no similar one."""
    if not isinstance(name, str):  # as users may give it
        return None
    similar = difflib.get_close_matches(name, list(options), n=1, cutoff=MIN_SIMILARITY)
    return similar[0] if similar else None


def is_typo(name: str, candidate: str, shortest: int = 4) -> bool:
    """Returns whether two names differ only in letter case or by one slip of a typist, and hardly on purpose.

    A slip is two letters swapped, one left out or, in a long word, one changed. Names that differ in the first letter
    of a word (`patch` and `batch`), in digits, in a plural or in a short word (`pos_q` and `pos_k`) are intended. Names
    with fewer letters than `shortest` are intended too, except for three letters with two swapped (`mpl` and `mlp`).
    """
    if name.casefold() == candidate.casefold():
        return True
    short, long = sorted((name, candidate), key=len)
    if len(short) < 3 or len(long) - len(short) > 1:
        return False
    difference = next((i for i, letter in enumerate(short) if letter != long[i]), len(short))
    # Two letters swapped:
    if short[:difference] + short[difference : difference + 2][::-1] + short[difference + 2 :] == long:
        return len(short) >= shortest or short.isalpha()
    if len(short) < shortest:
        return False
    word = next((word for word in _WORD.finditer(long) if word.start() < difference < word.end()), None)
    if word is None or len(word.group()) <= shortest:
        return False
    is_last_letter = difference + 1 == word.end()
    if len(short) < len(long):  # a letter left out
        return short[difference:] == long[difference + 1 :] and not (is_last_letter and long[difference] == "s")
    # A letter changed:
    return (
        short[difference + 1 :] == long[difference + 1 :]
        and short[difference].isalpha()
        and not is_last_letter
        and len(word.group()) > 5
    )

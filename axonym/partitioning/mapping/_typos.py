"""Slips of a typist: whether two names that differ were hardly meant to."""

import functools
import re


_WORD = re.compile(r"[^\W\d_]+")


@functools.lru_cache(maxsize=16384)
def is_typo(one: str, other: str, shortest: int = 4) -> bool:
    """Tells whether two names differ in letter case alone or by one slip of a typist, and hardly on purpose.

    A slip is two letters swapped, one left out or, in a long word, one changed. Names that differ in the first letter
    of a word (`patch` and `batch`), in digits, in a plural or in a short word (`pos_q` and `pos_k`) are meant, and so
    are names with fewer letters than `shortest`.
    """
    if one.casefold() == other.casefold():
        return True
    short, long = sorted((one, other), key=len)
    if len(short) < shortest or len(long) - len(short) > 1:
        return False
    at = next((i for i, letter in enumerate(short) if letter != long[i]), len(short))
    if short[:at] + short[at : at + 2][::-1] + short[at + 2 :] == long:
        return True
    word = next((word for word in _WORD.finditer(long) if word.start() < at < word.end()), None)
    if word is None or len(word.group()) <= shortest:
        return False
    last = at + 1 == word.end()
    if len(short) < len(long):
        return short[at:] == long[at + 1 :] and not (last and long[at] == "s")
    return short[at + 1 :] == long[at + 1 :] and short[at].isalpha() and not last and len(word.group()) > 5

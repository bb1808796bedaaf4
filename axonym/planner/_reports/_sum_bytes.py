"""`sum_bytes_by`: the bytes of what a report lists, summed up by an attribute of it."""

import collections
from collections.abc import Iterable, Sequence
from typing import Any

from ..._ground.formats import suggest_name


def sum_bytes_by(items: Iterable[Any], by: str, attributes: Sequence[str]) -> dict[Any, int]:
    """Returns the bytes of items by an attribute of them, the largest sum first.

    Raises:
        ValueError: If the attribute is not one of `attributes`.
    """
    if by not in attributes:
        names = ", ".join(map(repr, attributes))
        raise ValueError(f"bytes are not counted by {by!r}{suggest_name(by, attributes)}; there are {names}")
    sums: collections.Counter[Any] = collections.Counter()
    for item in items:
        sums[getattr(item, by)] += item.bytes
    return dict(sums.most_common())

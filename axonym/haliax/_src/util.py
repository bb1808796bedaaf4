"""`haliax._src.util`: the position of an item."""

from collections.abc import Callable, Sequence
from typing import TypeVar


T = TypeVar("T")


def index_where(pred: Callable[[T], bool], xs: Sequence[T], start: int = 0) -> int:
    """Returns the position of the first item, from a start on, for which a predicate is True.

    Raises:
        ValueError: If there is none.

    Example:
        >>> from axonym.haliax._src.util import index_where
        >>> index_where(lambda x: x > 1, [1, 2, 3])
        1
    """
    for index in range(start, len(xs)):
        if pred(xs[index]):
            return index
    raise ValueError(f"no item from {start} on satisfies the predicate")

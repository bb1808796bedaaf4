"""Slices of fixed length whose start may be traced: `dslice`, which is `ds` too, and `dblock`."""

import operator
from dataclasses import dataclass
from typing import Any

from .._axis import Axis


@dataclass(frozen=True, init=False)
class dslice:
    """A slice whose start may be traced and whose length is fixed; `ds` is the same.

    Where it would reach past an end it is moved back inside, as `jax.lax.dynamic_slice` does, whether elements are
    read or replaced. A negative start counts from the end.

    Args:
        start: First element, an integer or an integer scalar array, named or not.
        length: Number of elements, an integer or an `Axis` of that size.

    Example:
        >>> import axonym as nym
        >>> nym.arange(nym.Axis("i", 8))["i", nym.dslice(2, 3)].array
        Array([2, 3, 4], dtype=int32)
    """

    start: Any
    size: int | Axis

    def __init__(self, start: Any, length: int | Axis) -> None:
        """Keeps both; the index it is used in checks them."""
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "size", length)

    @property
    def length(self) -> int:
        """The number of elements."""
        return self.size.size if isinstance(self.size, Axis) else operator.index(self.size)

    @staticmethod
    def block(i: Any, size: int | Axis) -> "dslice":
        """Returns the block of a number, see `dblock`."""
        return dblock(i, size)


def dblock(i: Any, size: int | Axis) -> dslice:
    """Returns the slice that is one of the blocks into which an axis falls: `dslice(i * size, size)`.

    Args:
        i: Number of the block, an integer or an integer scalar array, named or not; a negative one counts from the
            end of an axis that the blocks divide.
        size: Number of elements of a block, an integer or an `Axis` of that size.

    Returns:
        Slice whose start may be traced.

    Raises:
        TypeError: If the size is no integer.

    Example:
        >>> import axonym as nym
        >>> nym.arange(nym.Axis("i", 8))["i", nym.dblock(1, 3)].array
        Array([3, 4, 5], dtype=int32)
    """
    return dslice(i * dslice(0, size).length, size)


ds = dslice

"""Slices of fixed length whose start may be traced: `dslice`, its alias `ds`, and `dblock`."""

from dataclasses import dataclass
from typing import Any

from .._arguments import check_integer
from .._axis import Axis, format_value


@dataclass(frozen=True, init=False)
class dslice:
    """A slice whose start may be traced and whose length is fixed; `ds` is the same.

    A slice that runs over an end raises an error if its start is known, as other indices do. If its start is a JAX
    array, elements over the end follow the `mode` of `axonym.index` and of `x.at`: by default, the nearest element is
    read and nothing is updated. Slices with a known start, and all slices with the mode "promise_in_bounds", compile to
    `jax.lax.dynamic_slice`. A negative start counts from the end.

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
        """Stores both; they are checked when the slice is used as an index."""
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "size", length)

    @property
    def length(self) -> int:
        """The number of elements."""
        return self.size.size if isinstance(self.size, Axis) else check_integer("the length of a `dslice`", self.size)

    @staticmethod
    def block(i: Any, size: int | Axis) -> "dslice":
        """Returns block number `i`, see `dblock`."""
        return dblock(i, size)


def dblock(i: Any, size: int | Axis) -> dslice:
    """Returns one of the equal blocks of an axis: `dslice(i * size, size)`.

    Args:
        i: Number of the block, an integer or an integer scalar array, named or not; a negative number counts from the
            end of an axis whose size is a multiple of `size`.
        size: Number of elements of a block, an integer or an `Axis` of that size.

    Returns:
        Slice whose start may be traced.

    Raises:
        TypeError: If the size is not an integer.

    Example:
        >>> import axonym as nym
        >>> nym.arange(nym.Axis("i", 8))["i", nym.dblock(1, 3)].array
        Array([3, 4, 5], dtype=int32)
    """
    if i is None or isinstance(i, float | str | list | tuple):
        raise TypeError(f"The number of a block must be an integer, not {format_value(i)}.")
    return dslice(i * dslice(0, size).length, size)


ds = dslice

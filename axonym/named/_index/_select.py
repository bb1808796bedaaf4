"""Picking elements by named axis: `index`, which `x["pos", 3]` is, and `take`."""

from typing import Any

from .._axis import AxisSelector
from .._base import N
from ._at import picked
from ._index_parser import Index, Items


def index(x: N, items: Items, *, fill: Any = None, mode: Any = None) -> N:
    """Picks elements by named axis; `x[...]` is the same.

    Args:
        x: Array of any axes.
        items: Axes and indices, alternating or as a mapping. An index is an integer (the axis goes), a slice or
            `dslice` (the axis stays), a list or plain array of integers (the axis stays), or a named integer array:
            its axes come in place of the one indexed; a name it shares with `x` is aligned. A mask, which is a
            boolean array of this axis, plain or named, picks the elements for which it is True.
        fill: The value, a scalar or an array of some axes of `x`, that stands where a mask is False: the axis then
            keeps its size, as with `where(mask, x, fill)`. Only so may a mask be traced or have several axes of `x`.
            With mode "fill" a number, which stands for elements out of range as well.
        mode: What JAX does with an index out of range, see `jax.numpy.ndarray.at`: "clip", "fill" or
            "promise_in_bounds". If None, the nearest element is taken for an index whose values only a program knows,
            such as a traced one, and an error raised for others. A slice ends where the axis does, a `dslice` is moved
            back inside.

    Returns:
        Array with the axes left and the axes of the index arrays.

    Raises:
        ValueError: If an axis is not there, is indexed twice, an index of several axes has no names, or a mask of
            several axes comes without `fill`.
        TypeError: If an index is made of neither integers nor truth values, or a mask without `fill` is traced.
        IndexError: If an integer, list or NumPy array holds an index out of range and `mode` is None.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "pos": 3, "embed": 4})
        >>> x["pos", 0, "embed", 1:3].shape
        (batch: 2, embed: 2)
        >>> x["pos", nym.named([0, 2], "batch")].shape  # one position for each element of the batch
        (batch: 2, embed: 4)
        >>> mask = nym.named([True, False, True], "pos")
        >>> x["pos", mask].shape, nym.index(x, {"pos": mask}, fill=-1.0).shape
        ((batch: 2, pos: 2, embed: 4), (batch: 2, pos: 3, embed: 4))
    """
    return picked(x, items, fill, mode)


def take(x: N, axis: AxisSelector, index: Index, *, fill: Any = None, mode: Any = None) -> N:
    """Picks elements along one axis: `take(x, "vocab", tokens)` is `x["vocab", tokens]`.

    Args:
        x: Array of any axes.
        axis: The axis to pick from.
        index: An integer, a plain 1-D integer array, or a named integer array, whose axes replace `axis`; whatever
            else `index` takes does as well.
        fill: As for `index`.
        mode: As for `index`.

    Returns:
        Array in which the axes of `index` stand where `axis` stood.

    Raises:
        ValueError: If the axis is not there or has another size.
        TypeError: If the index is made of neither integers nor truth values.
        IndexError: As for `index`.

    Example:
        >>> import axonym as nym
        >>> table = nym.zeros({"vocab": 10, "embed": 4})
        >>> nym.take(table, "vocab", nym.named([[1, 2, 3]], ("batch", "pos"))).shape
        (batch: 1, pos: 3, embed: 4)
    """
    return picked(x, (axis, index), fill, mode)

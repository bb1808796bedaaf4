"""Selecting elements by named axis: `index`, the function behind `x["pos", 3]`, and `take`."""

from typing import Any

from .._axis import Axis, AxisSelector, format_value
from .._base import N, check_named, with_array
from .._traceback import blame_caller
from ._at import At, call_with_plan
from ._gather_scatter import gather_elements
from ._index_parser import Index, Items, parse_index
from ._index_plan import plan_index


def index(x: N, items: Items, *, fill: Any = None, mode: Any = None) -> N:
    """Selects elements by named axis; `x[...]` is the same.

    Args:
        x: Array of any axes.
        items: Axes and indices, alternating or as a mapping. An index is an integer (which removes the axis), a slice
            or `dslice` (which keeps it), a list or plain array of integers (which keeps it), or a named integer array,
            whose axes replace the indexed axis; a name it shares with `x` is aligned. A mask, which is a boolean array
            with this axis, plain or named, selects the elements for which it is True.
        fill: The value where a mask is False, a scalar or an array with some axes of `x`: the axis then keeps its
            size, as with `where(mask, x, fill)`. A mask that is traced or has several axes of `x` needs it. With mode
            "fill" it must be a number, which is used for indices out of range as well.
        mode: The treatment of an index out of range, see `jax.numpy.ndarray.at`: "clip", "fill" or
            "promise_in_bounds". If None, a traced index takes the nearest element, and others raise an error. The
            elements of a `dslice` count as indices, while a slice ends at the end of the axis.

    Returns:
        Array with the remaining axes and the axes of the index arrays.

    Raises:
        ValueError: If an axis is missing or indexed twice, an index with several axes has no names, or a mask with
            several axes has no `fill`.
        TypeError: If an index holds neither integers nor booleans, or a mask without `fill` is traced.
        IndexError: If an integer, list or NumPy array holds an index out of range, or a `dslice` with a known start
            runs over an end, and `mode` is None.

    Example:
        >>> import axonym as nym
        >>> x = nym.zeros({"batch": 2, "pos": 3, "embed": 4})
        >>> x["pos", 0, "embed", 1:3].shape
        (batch: 2, embed: 2)
        >>> x["pos", nym.named([0, 2], "batch")].shape  # one position for each batch element
        (batch: 2, embed: 4)
        >>> mask = nym.named([True, False, True], "pos")
        >>> x["pos", mask].shape, nym.index(x, {"pos": mask}, fill=-1.0).shape
        ((batch: 2, pos: 2, embed: 4), (batch: 2, pos: 3, embed: 4))
    """
    return _select_elements(x, items, fill, mode)


def take(x: N, axis: AxisSelector, index: Index, *, fill: Any = None, mode: Any = None) -> N:
    """Selects elements along one axis: `take(x, "vocab", tokens)` is `x["vocab", tokens]`.

    Args:
        x: Array of any axes.
        axis: The axis to select from.
        index: An integer, a plain 1-D integer array, or a named integer array, whose axes replace `axis`; or any
            other index that `axonym.index` takes.
        fill: As for `index`.
        mode: As for `index`.

    Returns:
        Array in which the axes of `index` replace `axis`.

    Raises:
        ValueError: If the axis is missing or has another size.
        TypeError: If the index holds neither integers nor booleans.
        IndexError: As for `index`.

    Example:
        >>> import axonym as nym
        >>> table = nym.zeros({"vocab": 10, "embed": 4})
        >>> nym.take(table, "vocab", nym.named([[1, 2, 3]], ("batch", "pos"))).shape
        (batch: 1, pos: 3, embed: 4)
    """
    if type(axis) is not str and not isinstance(axis, str | Axis):
        raise blame_caller(
            TypeError(f"`take` takes the axis before the index, `take(x, 'vocab', index)`, not {format_value(axis)}.")
        )
    return _select_elements(x, (axis, index), fill, mode)


def _select_elements(x: N, items: Items, fill: Any, mode: Any) -> N:
    """Returns `At(x, items).get(...)`, with less overhead for an index without masks."""
    if fill is not None:
        return At(x, items).get(fill=fill, mode=mode)
    check_named(x)
    parts, given = parse_index(x, items)
    plan, held, masks = plan_index(x.names, x.array.shape, parts)
    if masks or not parts:
        return At(x, items).get(mode=mode)
    options = () if mode is None else (("mode", mode),)
    return with_array(x, call_with_plan(gather_elements, x, plan, tuple([given[i] for i in held]), options), plan.names)

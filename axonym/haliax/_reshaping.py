"""Functions that change axes, in which Haliax accepts or returns something other than Axonym."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from ..named import _matrix, _transforms
from ..named._axis import Axis, AxisSelection, AxisSelector, axis_name as get_name, parse_axes, parse_selection
from ..named._base import NamedBase
from ..named._reduce import _cumulative
from ..named._shape import _broadcast, _concatenate, _flatten, _rearrange, _slice


def broadcast_axis(a: Any, axis: Any) -> Any:
    """Adds leading axes that an array lacks.

    Args:
        a: Array of any axes.
        axis: The axes; those that the array has already are skipped.

    Returns:
        Array with the new axes first.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.broadcast_axis(hax.ones({"embed": 3}), hax.make_axes(batch=2, embed=3)).shape
        {'batch': 2, 'embed': 3}
    """
    axes = [one for one in parse_axes(axis) if not a.has_axis(one)]
    return _broadcast.broadcast_axis(a, axes) if axes else a


def flatten_axes(array: Any, old_axes: AxisSelection, new_axis: AxisSelector) -> Any:
    """Merges axes into one, in an array or in a spec of axes.

    Args:
        array: Array of any axes, or axes.
        old_axes: The axes to merge; with none, an axis of size 1 is added first.
        new_axis: The merged axis, a name or an `Axis`.

    Returns:
        Array or tuple of axes, with the new axis at the position of the first old axis.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.flatten_axes(hax.ones({"a": 2, "b": 3, "c": 4}), ("a", "b"), "ab").shape
        {'ab': 6, 'c': 4}
        >>> hax.flatten_axes(hax.make_axes(a=2, b=3, c=4), ("a", "b"), "ab")
        (Axis(name='ab', size=6), Axis(name='c', size=4))
    """
    if isinstance(array, NamedBase):
        if not parse_selection(old_axes):
            return _broadcast.expand(array, new_axis)
        return _flatten.flatten_axes(array, old_axes, new_axis)
    axes = parse_axes(array)
    merged = [one for one in axes if one.name in {get_name(old) for old in parse_selection(old_axes)}]
    size = math.prod(one.size for one in merged)
    new = Axis(get_name(new_axis), size)
    if isinstance(new_axis, Axis) and new_axis != new:
        raise ValueError(f"the axes merged into {new_axis.name!r} have {size} elements, not {new_axis.size}")
    if not merged:
        return (new, *axes)
    return tuple(new if one is merged[0] else one for one in axes if one is merged[0] or one not in merged)


def flatten_all_axes_but(
    a: Any, axis_name: str, axis: AxisSelection, reorder_to_front: bool = False
) -> tuple[Any, Callable[[Any], Any]]:
    """Merges the given axes into one, and returns a function that splits it again.

    Despite its name, and as in Haliax, the axes given are the ones merged.

    Args:
        a: Array of any axes.
        axis_name: Name of the merged axis.
        axis: The axes to merge.
        reorder_to_front: Whether the merged axis comes first.

    Returns:
        The array, and a function that splits the merged axis of an array, in the order of `a` if it has all its axes.

    Example:
        >>> import axonym.haliax as hax
        >>> x = hax.ones({"batch": 2, "pos": 3, "embed": 4})
        >>> flat, unflatten = hax.core.flatten_all_axes_but(x, "token", ("batch", "pos"))
        >>> flat.shape, unflatten(flat).shape
        ({'token': 6, 'embed': 4}, {'batch': 2, 'pos': 3, 'embed': 4})
    """
    merged = tuple(a.resolve_axis(one) for one in parse_selection(axis))
    flat = flatten_axes(a, merged, axis_name)
    if reorder_to_front:
        flat = _rearrange.rearrange(flat, (axis_name, ...))

    def unflatten(y: Any) -> Any:
        y = _flatten.unflatten_axis(y, axis_name, merged) if merged else _broadcast.squeeze(y, axis_name)
        return _rearrange.rearrange(y, a.names) if set(y.names) == set(a.names) else y

    return flat, unflatten


def split(a: Any, axis: AxisSelector, new_axes: Any) -> list[Any]:
    """Splits an array along an axis, into a list.

    Example:
        >>> import axonym.haliax as hax
        >>> [part.shape for part in hax.split(hax.ones({"a": 3}), "a", hax.make_axes(b=1, c=2))]
        [{'b': 1}, {'c': 2}]
    """
    return list(_concatenate.split(a, axis, new_axes))


def unbind(array: Any, axis: AxisSelector) -> list[Any]:
    """Returns the slices of an array along an axis, as a list.

    Example:
        >>> import axonym.haliax as hax
        >>> len(hax.unbind(hax.ones({"a": 3, "b": 2}), "a"))
        3
    """
    return list(_concatenate.unbind(array, axis))


def tile(a: Any, reps: Mapping[AxisSelector, int]) -> Any:
    """Repeats an array along axes; one that it lacks is added first.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.tile(hax.ones({"a": 3}), {"a": 2, "b": 4}).shape
        {'b': 4, 'a': 6}
    """
    new = [Axis(get_name(axis), count) for axis, count in reps.items() if get_name(axis) not in a.names]
    known = {axis: count for axis, count in reps.items() if get_name(axis) in a.names}
    return broadcast_axis(_concatenate.tile(a, known) if known else a, new) if new else _concatenate.tile(a, known)


def tril(array: Any, axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> Any:
    """Sets elements above the `k`th diagonal of two axes to zero, and moves these axes to the end.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.tril(hax.ones({"a": 2, "b": 2, "c": 3}), "a", "b").shape
        {'c': 3, 'a': 2, 'b': 2}
    """
    return _matrix.tril(_rearrange.rearrange(array, (..., axis1, axis2)), axis1, axis2, k)


def triu(array: Any, axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> Any:
    """Sets elements below the `k`th diagonal of two axes to zero, and moves these axes to the end.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.triu(hax.ones({"a": 2, "b": 2, "c": 3}), "a", "b").shape
        {'c': 3, 'a': 2, 'b': 2}
    """
    return _matrix.triu(_rearrange.rearrange(array, (..., axis1, axis2)), axis1, axis2, k)


def cumsum(a: Any, axis: AxisSelector | None = None, *, dtype: Any = None) -> Any:
    """Returns the cumulative sum along an axis; without one, a plain array over all elements.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.cumsum(hax.ones({"a": 3}), "a").array
        Array([1., 2., 3.], dtype=float32)
    """
    return jnp.cumsum(a.array, dtype=dtype) if axis is None else _cumulative.cumsum(a, axis, dtype=dtype)


def cumprod(a: Any, axis: AxisSelector | None = None, dtype: Any = None) -> Any:
    """Returns the cumulative product along an axis; without one, a plain array over all elements.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.cumprod(hax.full({"a": 3}, 2.0), "a").array
        Array([2., 4., 8.], dtype=float32)
    """
    return jnp.cumprod(a.array, dtype=dtype) if axis is None else _cumulative.cumprod(a, axis, dtype=dtype)


def nancumprod(a: Any, axis: AxisSelector, dtype: Any = None) -> Any:
    """Returns the cumulative product along an axis, in which nan counts as 1.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.nancumprod(hax.named([2.0, float("nan")], "a"), "a").array
        Array([2., 2.], dtype=float32)
    """
    return _cumulative.nancumprod(a, axis, dtype=dtype)


def sort(a: Any, axis: AxisSelector | None) -> Any:
    """Sorts along an axis; without one, returns a plain array of all elements.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.sort(hax.named([2, 1], "a"), "a").array
        Array([1, 2], dtype=int32)
    """
    return jnp.sort(a.array, axis=None) if axis is None else _cumulative.sort(a, axis)


def argsort(a: Any, axis: AxisSelector | None, *, stable: bool = True) -> Any:
    """Returns the indices that sort along an axis; without one, a plain array for all elements.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.argsort(hax.named([2, 1], "a"), "a").array
        Array([1, 0], dtype=int32)
    """
    if axis is None:
        return jnp.argsort(a.array, axis=None, stable=stable)
    return _cumulative.argsort(a, axis, stable=stable)


def rename(array: Any, renames: Any) -> Any:
    """Gives axes other names; names that the array lacks are ignored.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.rename(hax.ones({"pos": 2}), {"pos": "key_pos", "other": "more"}).shape
        {'key_pos': 2}
    """
    return _broadcast.rename(array, {old: new for old, new in renames.items() if get_name(old) in array.names})


def updated_slice(array: Any, start: Any, update: Any) -> Any:
    """Replaces a slice; a start that is a named array replaces another slice for each element of its axes.

    Example:
        >>> import axonym.haliax as hax
        >>> x = hax.zeros({"batch": 2, "pos": 3})
        >>> hax.updated_slice(x, {"pos": hax.named([0, 2], "batch")}, hax.ones({"batch": 2, "pos": 1})).array
        Array([[1., 0., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    ragged = {name: None for at in start.values() if isinstance(at, NamedBase) for name in at.names}
    if not ragged:
        _check_update_fits(array, start, update)
        return _slice.updated_slice(array, start, update)
    if isinstance(update, NamedBase) and (new := [name for name in update.names if name not in array.names]):
        raise ValueError(
            f"the update has the axes {', '.join(new)} that are not in the original array with shape {array.shape}"
        )
    if missing := [name for name in ragged if name not in array.names]:
        raise ValueError(f"axis {missing[0]!r} of a start is not found in the array ({', '.join(array.names)})")
    update_one = _transforms.vmap(_slice.updated_slice, tuple(ragged))
    return _rearrange.rearrange(update_one(array, start, update), array.names)


def _check_update_fits(array: Any, start: Any, update: Any) -> None:
    """Raises a ValueError if an update at a start that is a number runs over the end of an axis."""
    for axis, at in start.items():
        name = get_name(axis)
        size = dict(update.shape.items()).get(name, 1) if isinstance(update, NamedBase) else 1
        if isinstance(at, int) and array.has_axis(name) and at >= 0 and at + size > array.axis_size(name):
            raise ValueError(
                f"an update of {size} elements at {at} runs over the end of axis {name!r} of size "
                f"{array.axis_size(name)}; start earlier or update fewer elements"
            )

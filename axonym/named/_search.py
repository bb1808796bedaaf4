"""Where elements are and which: the largest, those at given positions, those not zero, and counts of values."""

import operator
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ._ambient import replicate_dims, reshard_by_name, reshard_named
from ._axis import Axis, AxisSelector, Names, find_axis, intern_names, parse_one_axis
from ._base import N, NamedBase, check_named, format_shape, with_array
from ._broadcasting import check_scalar, split_operand
from ._cached_jit import cached_jit
from ._gufunc import apply_gufunc
from ._shape import broadcast_to, rearrange, rename


def top_k(x: N, axis: AxisSelector, k: int, new_axis: AxisSelector | None = None) -> tuple[N, N]:
    """Takes the `k` largest elements along an axis, largest first; see `jax.lax.top_k`.

    Args:
        x: Array of any axes.
        axis: The axis to search.
        k: How many elements to take.
        new_axis: What the axis of the elements taken is called; like `axis` if not given.

    Returns:
        The elements and their positions along `axis`, each with the axes of `x`, where `axis` has `k` elements and
        its new name.

    Raises:
        ValueError: If `x` lacks the axis, it has fewer than `k` elements, an `Axis` given has another size, or `x` has
            the new axis.

    Example:
        >>> import axonym as nym
        >>> logits = nym.named([0.1, 0.7, 0.2], "vocab")
        >>> values, tokens = nym.top_k(logits, "vocab", 2, "choice")
        >>> tokens
        NamedArray(int32, choice: 2, [1, 2])
    """
    check_named(x)
    index, k = find_axis(x.names, x.array.shape, axis), operator.index(k)
    name = x.names[index]
    if not 0 <= k <= x.array.shape[index]:
        raise ValueError(f"there are no {k} largest elements along axis {name!r} of {format_shape(x)}")
    values, indices = (with_array(x, array) for array in cached_jit(_top_k, x.names, index, k)(x.array))
    return (
        (values, indices) if new_axis is None else (rename(values, {name: new_axis}), rename(indices, {name: new_axis}))
    )


def _top_k(names: Names, index: int, k: int, array: Any) -> tuple[Any, Any]:
    """Searches along an axis that gets another size, which the mesh need not divide."""
    left = (*names[:index], "", *names[index + 1 :])
    values, indices = jax.lax.top_k(replicate_dims(array, (index,)), k, axis=index)
    return reshard_by_name(values, left), reshard_by_name(indices, left)


def take_along_axis(x: N, indices: N, axis: AxisSelector, *, mode: str | None = None) -> N:
    """Takes elements along an axis at positions of their own for each element of the others.

    What `argsort` and `top_k` return are such positions. See `jax.numpy.take_along_axis`; with positions that lack the
    axis, `take` picks one element each.

    Args:
        x: Array of any axes.
        indices: Integer array with this axis, of any size; the other axes broadcast by name.
        axis: The axis to take from.
        mode: What JAX does with positions out of range, see `jax.numpy.ndarray.at`.

    Returns:
        Array with the axes of `x`, or of `indices` if it has more; `axis` has the size found in `indices`.

    Raises:
        ValueError: If one of the arrays lacks the axis, or the others do not broadcast.
        TypeError: If the positions are no integers.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([30, 10, 20], "i")
        >>> nym.take_along_axis(x, nym.argsort(x, "i"), "i").array
        Array([10, 20, 30], dtype=int32)
    """
    check_named(x)
    check_named(indices)
    name = x.names[find_axis(x.names, x.array.shape, axis)]
    if name not in indices.names:
        raise ValueError(
            f"the positions to take along axis {name!r} must have that axis, they have {format_shape(indices)}; "
            "`take` picks one element for each of them"
        )
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(f"Elements are taken along axis {name!r} at integer positions, not at {indices.dtype}.")
    (result,) = apply_gufunc(_taken, (x, indices), ((name,), (name,)), ((name,),), mode=mode)
    return rearrange(result, max(x.names, indices.names, key=len))


def _taken(array: Any, indices: Any, *, mode: str | None) -> Any:
    return jnp.take_along_axis(array, indices, axis=-1, mode=mode)


def searchsorted(a: N, v: N | ArrayLike, *, side: str = "left", sorter: N | None = None, method: str = "scan") -> N:
    """Finds where values belong in a sorted array of one axis; see `jax.numpy.searchsorted`.

    Args:
        a: Sorted array of one axis.
        v: Values to place, of any axes; their names have nothing to do with that of `a`.
        side: Whether equal elements come after a value, "left", or before it, "right".
        sorter: Positions that sort `a`, with its axis, if it is not sorted.
        method: How to search: "scan", "scan_unrolled", "sort" or "compare_all".

    Returns:
        Integer array with the axes of `v`.

    Raises:
        ValueError: If `a` has not just one axis, or `sorter` another one.

    Example:
        >>> import axonym as nym
        >>> edges = nym.named([0.0, 1.0, 2.0], "edge")
        >>> nym.searchsorted(edges, nym.named([0.5, 1.5, 5.0], "batch"))
        NamedArray(int32, batch: 3, [1, 2, 3])
    """
    _check_vector("`a`", a)
    values = v if isinstance(v, NamedBase) else with_array(a, jnp.asarray(check_scalar(v)), ())
    arrays, options = [values, _apart(values, a.array)], {"side": side, "method": method}
    if sorter is not None:
        _check_same_axis("`sorter`", sorter, "`a`", a)
        arrays.append(_apart(values, sorter.array))
    cores = ((), *(one.names for one in arrays[1:]))
    (result,) = apply_gufunc(_searched, arrays, cores, ((),), **options)
    return result


def _searched(v: Any, a: Any, *sorter: Any, side: str, method: str) -> Any:
    order = sorter[0].reshape(-1) if sorter else None
    return jnp.searchsorted(a.reshape(-1), v, side=side, sorter=order, method=method)


def interp(x: N, xp: N, fp: N, left: Any = None, right: Any = None, period: Any = None) -> N:
    """Interpolates linearly between points; see `jax.numpy.interp`.

    Args:
        x: Where to interpolate, of any axes; their names have nothing to do with that of the points.
        xp: Where the points are: an array of one axis, increasing along it.
        fp: The values there, of the same axis.
        left: Value to the left of the points, that of the first one if not given.
        right: Value to the right of the points, that of the last one if not given.
        period: The period after which the points repeat, if they do; `left` and `right` are not used then.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `xp` has not just one axis, or `fp` another one.

    Example:
        >>> import axonym as nym
        >>> step, rate = nym.named([0.0, 10.0, 30.0], "point"), nym.named([0.0, 1.0, 0.0], "point")
        >>> nym.interp(nym.named([5.0, 20.0], "step"), step, rate)
        NamedArray(float32, step: 2, [0.5, 0.5])
    """
    check_named(x)
    _check_vector("`xp`", xp)
    _check_same_axis("`fp`", fp, "`xp`", xp)
    points = [_apart(x, xp.array), _apart(x, fp.array)]
    given = {"left": left, "right": right, "period": period}
    fixed = {key: value for key, value in given.items() if value is None or isinstance(value, str)}
    numbers = {key: _number(f"`{key}`", x, value) for key, value in given.items() if key not in fixed}
    cores = ((), *(one.names for one in points), *(() for _ in numbers))
    (result,) = apply_gufunc(
        _interpolated, (x, *points, *numbers.values()), cores, ((),), numbers=tuple(numbers), **fixed
    )
    return result


def _interpolated(x: Any, xp: Any, fp: Any, *values: Any, numbers: tuple[str, ...], **fixed: Any) -> Any:
    dtype = jnp.result_type(x, xp, fp)
    if dtype == jnp.bfloat16:  # which `jax.numpy.interp` refuses
        x, xp, fp = (one.astype(jnp.float32) for one in (x, xp, fp))
    result = jnp.interp(x, xp.reshape(-1), fp.reshape(-1), **dict(zip(numbers, values, strict=True)), **fixed)
    return result.astype(dtype) if dtype == jnp.bfloat16 else result


def isin(x: N, test_elements: Any, *, invert: bool = False) -> N:
    """Tests whether each element is among others; see `jax.numpy.isin`.

    Args:
        x: Array of any axes.
        test_elements: The elements to look among: an array, named or not, or a list; its axes do not matter.
        invert: Whether to test for absence instead.

    Returns:
        Boolean array with the axes of `x`.

    Raises:
        TypeError: If `x` is no named array.

    Example:
        >>> import axonym as nym
        >>> nym.isin(nym.arange(nym.Axis("i", 4)), [0, 3]).array
        Array([ True, False, False,  True], dtype=bool)
    """
    check_named(x)
    array = test_elements.array if isinstance(test_elements, NamedBase) else jnp.asarray(test_elements)
    elements = _apart(x, array)
    (result,) = apply_gufunc(_found, (x, elements), ((), elements.names), ((),), invert=bool(invert))
    return result


def _found(x: Any, elements: Any, *, invert: bool) -> Any:
    return jnp.isin(x, elements, invert=invert)


def nonzero(x: N, *, size: Axis | int, fill_value: int | Sequence[int] = 0) -> tuple[N, ...]:
    """Finds the elements that are not zero, a fixed number of them; see `jax.numpy.nonzero`.

    Args:
        x: Array of any axes, at least one.
        size: How many to find, as an axis for the result or a number; then the axis is called "nonzero".
        fill_value: The position given instead where there are fewer: one for all axes, or one for each.

    Returns:
        Integer array of positions for each axis of `x`: `x[dict(zip(x.names, found))]` are the elements.

    Raises:
        ValueError: If `x` has no axes.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[0, 5], [7, 0]], ("row", "column"))
        >>> rows, columns = nym.nonzero(x, size=nym.Axis("hit", 2))
        >>> rows.array, columns.array
        (Array([0, 1], dtype=int32), Array([1, 0], dtype=int32))
    """
    check_named(x)
    hits = size if isinstance(size, Axis) else Axis("nonzero", size)
    if not x.names:
        raise ValueError("an array without axes has no positions at which it is not zero; it is either zero or not")
    outs = ((hits.name,),) * len(x.names)
    fill = tuple(fill_value) if isinstance(fill_value, Sequence) else fill_value  # to be hashed
    return apply_gufunc(_nonzero, (x,), (x.names,), outs, size=hits.size, fill_value=fill)


def _nonzero(array: Any, *, size: int, fill_value: Any) -> tuple[Any, ...]:
    return jnp.nonzero(array, size=size, fill_value=fill_value)


def bincount(x: N, Counts: Axis, *, weights: N | None = None, minlength: int = 0) -> N:
    """Counts how often each integer occurs; see `jax.numpy.bincount`.

    Args:
        x: Array of integers, not negative, of any axes.
        Counts: Axis of the result; integers that it is too short for are not counted.
        weights: What each element counts, of some of the axes of `x`; one if not given.
        minlength: A size that `Counts` must have at least.

    Returns:
        Array with that axis: element `i` is how often `i` occurs, or the sum of its weights.

    Raises:
        ValueError: If `Counts` is too short for `minlength`, or `weights` has other axes.
        TypeError: If `Counts` has no size, or the elements are no integers.

    Example:
        >>> import axonym as nym
        >>> nym.bincount(nym.named([0, 2, 2], "token"), nym.Axis("vocab", 4))
        NamedArray(int32, vocab: 4, [1, 0, 2, 0])
    """
    check_named(x)
    bins = parse_one_axis(Counts)
    if bins.size < minlength:
        raise ValueError(f"axis {bins.name!r} has size {bins.size} here, {minlength} was asked for with `minlength`")
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"Integers are counted, the elements of {format_shape(x)} are {x.dtype}.")
    arrays = (x, *_weights(x, weights))
    (result,) = apply_gufunc(_counted, arrays, (x.names,) * len(arrays), ((bins.name,),), length=bins.size)
    return result


def _counted(array: Any, *weights: Any, length: int) -> Any:
    flat = [one.reshape(-1) for one in (array, *weights)]
    return jnp.bincount(*flat, length=length)


def histogram(
    x: N,
    bins: Axis,
    range: tuple[Any, Any] | None = None,
    weights: N | None = None,
    density: bool = False,
) -> tuple[N, N]:
    """Counts the elements in bins of equal width; see `jax.numpy.histogram`.

    Args:
        x: Array of any axes.
        bins: Axis of the bins, whose size is how many there are.
        range: The lower end of the first bin and the upper one of the last; the extremes of `x` if not given.
        weights: What each element counts, of some of the axes of `x`; one if not given.
        density: Whether to return a density, whose integral is one, instead of counts.

    Returns:
        The counts, with the axis `bins`, and the edges, with an axis one longer, called that name with `_edges`.

    Raises:
        ValueError: If there is no bin, or `weights` has other axes.
        TypeError: If `bins` has no size.

    Example:
        >>> import axonym as nym
        >>> counts, edges = nym.histogram(nym.named([0.0, 1.0, 4.0], "i"), nym.Axis("bin", 2))
        >>> counts.array, edges
        (Array([2., 1.], dtype=float32), NamedArray(float32, bin_edges: 3, [0., 2., 4.]))
    """
    check_named(x)
    own = parse_one_axis(bins)
    if not own.size:
        raise ValueError(f"a histogram needs a bin at least, axis {own.name!r} has none")
    weighted, limits = _weights(x, weights), () if range is None else _ends(x, range)
    cores = (*(x.names for _ in (x, *weighted)), *(() for _ in limits))
    options: dict[str, Hashable] = {"weighted": bool(weighted), "bins": own.size, "density": bool(density)}
    outs = ((own.name,), (f"{own.name}_edges",))
    counts, edges = apply_gufunc(_histogram, (x, *weighted, *limits), cores, outs, **options)
    return counts, edges


def _histogram(array: Any, *rest: Any, weighted: bool, bins: int, density: bool) -> tuple[Any, Any]:
    weights, limits = (rest[0], rest[1:]) if weighted else (None, rest)
    return jnp.histogram(array, bins, tuple(limits) if limits else None, weights, density)


def _weights(x: N, weights: N | None) -> tuple[N, ...]:
    """Returns the weights with the axes of `x`, or nothing."""
    if weights is None:
        return ()
    check_named(weights)
    return (broadcast_to(reshard_named(weights), x.axes),)


def _ends(x: N, ends: tuple[Any, Any]) -> tuple[N, ...]:
    if len(ends) != 2:
        raise ValueError(f"`range` must be two numbers, a lower end and an upper one, not {len(ends)}")
    return tuple(_number("an end of `range`", x, end) for end in ends)


def _number(what: str, x: N, value: Any) -> N:
    """Returns a number as an array without axes, of the class of `x`."""
    array, names = split_operand(value)
    if names:
        raise ValueError(f"{what} must be a number, it has {format_shape(value)}")
    return with_array(x, jnp.asarray(array), ())


def _apart(x: N, array: Any) -> N:
    """Returns an array whose names are none of `x`, because its axes have nothing to do with those."""
    bar = "_" * (1 + max(map(len, x.names), default=0))
    return with_array(x, array, intern_names(tuple(f"{bar}{at}" for at, _ in enumerate(array.shape))))


def _check_vector(what: str, x: Any) -> None:
    check_named(x)
    if len(x.names) != 1:
        raise ValueError(f"{what} must have one axis, it has {format_shape(x)}")


def _check_same_axis(what: str, x: Any, other: str, y: NamedBase) -> None:
    check_named(x)
    if x.axes != y.axes:
        raise ValueError(f"{what} must have the axis of {other}, {format_shape(y)}, it has {format_shape(x)}")

"""Searching, interpolation, sets and histograms."""

import functools
from collections.abc import Callable, Hashable, Sequence
from itertools import compress
from typing import Any, Generic, NamedTuple, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .._ground.arguments import check_integer
from .._ground.formats import format_value
from ._axis import Axis, AxisSelector, Names, find_axis, intern_names, parse_one_axis
from ._base import N, NamedBase, check_named, format_shape, with_array
from ._broadcasting import check_scalar, get_scalar, widen_integers
from ._elementwise._arithmetic import split_pair
from ._gufunc import apply_gufunc
from ._numpy_input import check_values, parse_fill_positions
from ._reduce._apply_reduction import apply_along
from ._shape._broadcast import broadcast_to, rename
from ._shape._rearrange import rearrange
from ._sharding import reshard_named
from ._wide_sums import is_narrow_float, widen_float, widen_gradient


def top_k(x: N, axis: AxisSelector, k: int, new_axis: AxisSelector | None = None) -> tuple[N, N]:
    """Returns the `k` largest elements along an axis, largest first; see `jax.lax.top_k`.

    Args:
        x: Array of any axes.
        axis: The axis to search.
        k: The number of elements to return.
        new_axis: The name of the axis of these elements; by default the name of `axis`.

    Returns:
        The elements and their positions along `axis`, each with the axes of `x`, where `axis` has size `k` and its
        new name.

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
    dim, k = find_axis(x.names, x.array.shape, axis), check_integer("top_k: `k`", k)
    name = x.names[dim]
    if not 0 <= k <= x.array.shape[dim]:
        raise ValueError(
            f"`k` of `top_k` must be from 0 to the size of axis {name!r} of {format_shape(x)}, {k} was given"
        )
    values, indices = split_pair(apply_along(_find_top_k, x, axis, resizes=True, k=k))
    if new_axis is None:
        return values, indices
    return rename(values, {name: new_axis}), rename(indices, {name: new_axis})


def _find_top_k(array: Any, axis: int, k: int) -> Any:
    # JAX's own `axis` misplaces the sharding of the result on meshes with Auto and Explicit axes.
    values, indices = jax.lax.top_k(jnp.moveaxis(array, axis, -1), k)
    return jnp.moveaxis(values, -1, axis), jnp.moveaxis(indices, -1, axis)


def take_along_axis(x: N, indices: N, axis: AxisSelector, *, mode: str | None = None) -> N:
    """Takes elements along an axis, at different positions for each element of the other axes.

    `argsort` and `top_k` return such positions. See `jax.numpy.take_along_axis`; for positions that lack the axis, use
    `take`.

    Args:
        x: Array of any axes.
        indices: Integer array with this axis, of any size; the other axes broadcast by name.
        axis: The axis to take from.
        mode: The treatment of positions out of range, see `jax.numpy.ndarray.at`.

    Returns:
        Array with the axes of `x`, or of `indices` if it has more; `axis` has the size found in `indices`.

    Raises:
        ValueError: If one of the arrays lacks the axis, or the others do not broadcast.
        TypeError: If the positions are not integers.

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
            "use `take` for positions without it"
        )
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(f"Elements are taken along axis {name!r} at integer positions, not at {indices.dtype}.")
    (result,) = apply_gufunc(_take_along_last_axis, (x, indices), ((name,), (name,)), ((name,),), mode=mode)
    # Axes are broadcast only if one of the arrays has all of them.
    return rearrange(result, max(x.names, indices.names, key=len))


def _take_along_last_axis(array: Any, indices: Any, mode: str | None) -> Any:
    return widen_gradient(functools.partial(jnp.take_along_axis, axis=-1, mode=mode), array, indices)


def searchsorted(a: N, v: N | ArrayLike, *, side: str = "left", sorter: N | None = None, method: str = "scan") -> N:
    """Finds the insertion points of values in a sorted array of one axis; see `jax.numpy.searchsorted`.

    Args:
        a: Sorted array of one axis.
        v: Values to insert, of any axes, which are independent of the axis of `a`.
        side: "left" for positions before equal elements, "right" for positions after them.
        sorter: Positions that sort `a`, with its axis, if it is not sorted.
        method: Search algorithm: "scan", "scan_unrolled", "sort" or "compare_all".

    Returns:
        Integer array with the axes of `v`.

    Raises:
        ValueError: If `a` has more or less than one axis, or `sorter` another axis.

    Example:
        >>> import axonym as nym
        >>> edges = nym.named([0.0, 1.0, 2.0], "edge")
        >>> nym.searchsorted(edges, nym.named([0.5, 1.5, 5.0], "batch"))
        NamedArray(int32, batch: 3, [1, 2, 3])
    """
    _check_vector("`a`", a)
    values = v if isinstance(v, NamedBase) else with_array(a, jnp.asarray(check_scalar(v)), ())
    sorted_array = _rename_axes_apart(values, a.array)
    arrays, cores = [values, sorted_array], [(), sorted_array.names]
    if sorter is not None:
        _check_same_axis("`sorter`", sorter, "`a`", a)
        arrays.append(_rename_axes_apart(values, sorter.array))
        cores.append(sorted_array.names)
    return apply_gufunc(_compute_searchsorted, arrays, cores, ((),), side=side, method=method)[0]


def _compute_searchsorted(v: Any, a: Any, *sorter: Any, side: str, method: str) -> Any:
    # `a` and `sorter` have the loop axes of `v` too, of size 1.
    order = widen_integers(sorter[0].reshape(-1)) if sorter else None
    return jnp.searchsorted(a.reshape(-1), v, side=side, sorter=order, method=method)


def isin(x: N, test_elements: Any, *, invert: bool = False) -> N:
    """Returns whether each element is among others; see `jax.numpy.isin`.

    Args:
        x: Array of any axes.
        test_elements: The elements to compare with: an array, named or not, or a list; its axes are ignored.
        invert: Whether to test for absence instead.

    Returns:
        Boolean array with the axes of `x`.

    Raises:
        TypeError: If `x` is not a named array.

    Example:
        >>> import axonym as nym
        >>> nym.isin(nym.arange(nym.Axis("i", 4)), [0, 3]).array
        Array([ True, False, False,  True], dtype=bool)
    """
    check_named(x)
    array = test_elements.array if isinstance(test_elements, NamedBase) else jnp.asarray(test_elements)
    elements = _rename_axes_apart(x, array)
    return apply_gufunc(jnp.isin, (x, elements), ((), elements.names), ((),), invert=bool(invert))[0]


def nonzero(x: N, *, size: Axis | int, fill_value: int | Sequence[int] = 0) -> tuple[N, ...]:
    """Finds the positions of nonzero elements, a fixed number of them; see `jax.numpy.nonzero`.

    Args:
        x: Array of any axes, at least one.
        size: The number of positions: an axis for the result, or an integer for an axis named "nonzero".
        fill_value: Padding if there are fewer: one position for all axes, or one for each.

    Returns:
        The positions along each axis of `x`, an integer array for each: `x[dict(zip(x.names, positions))]` are the
        elements.

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
        raise ValueError("`nonzero` needs an array with axes, a scalar has no positions")
    outs = ((hits.name,),) * len(x.names)
    fill = parse_fill_positions(fill_value)
    return apply_gufunc(jnp.nonzero, (x,), (x.names,), outs, size=hits.size, fill_value=fill)


def _as_scalar_array(argument: str, x: N, value: Any) -> N:
    """Returns a scalar as an array without axes, of the class of `x`."""
    return with_array(x, jnp.asarray(get_scalar(argument, value)), ())


def _rename_axes_apart(x: N, array: Any) -> N:
    """Names the axes of an array unlike those of `x`, so that they do not align with them."""
    prefix = "_" * (1 + max(map(len, x.names), default=0))  # longer than any name of `x`
    return with_array(x, array, intern_names(tuple(f"{prefix}{dim}" for dim in range(len(array.shape)))))


def _check_vector(argument: str, x: Any) -> None:
    """Raises a ValueError if an array has more or less than one axis."""
    check_named(x)
    if len(x.names) != 1:
        raise ValueError(f"{argument} must have one axis, it has {format_shape(x)}")


def _check_same_axis(argument: str, x: Any, y_argument: str, y: NamedBase) -> None:
    """Raises a ValueError if an array has other axes than `y`."""
    check_named(x)
    if x.axes != y.axes:
        raise ValueError(f"{argument} must have the axis of {y_argument}, {format_shape(y)}, it has {format_shape(x)}")


class UniqueAll(NamedTuple, Generic[N]):
    """Result of `unique_all`."""

    values: N
    indices: N
    inverse_indices: N
    counts: N


class UniqueCounts(NamedTuple, Generic[N]):
    """Result of `unique_counts`."""

    values: N
    counts: N


class UniqueInverse(NamedTuple, Generic[N]):
    """Result of `unique_inverse`."""

    values: N
    inverse_indices: N


@overload
def unique(
    x: N, Unique: Axis, *, axis: AxisSelector | None = ..., fill_value: Any = ..., equal_nan: bool = ...
) -> N: ...
@overload
def unique(
    x: NamedBase,
    Unique: Axis,
    *,
    return_index: bool = ...,
    return_inverse: bool = ...,
    return_counts: bool = ...,
    axis: AxisSelector | None = ...,
    fill_value: Any = ...,
    equal_nan: bool = ...,
) -> Any: ...
def unique(
    x: Any,
    Unique: Axis,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: AxisSelector | None = None,
    fill_value: Any = None,
    equal_nan: bool = True,
) -> Any:
    """Finds the unique values in ascending order; see `jax.numpy.unique`.

    Args:
        x: Array of any axes.
        Unique: Axis of the result, which is padded if there are fewer values, and truncated if there are more.
        return_index: Whether to return the first position of each value, along `axis` or in the flattened `x`.
        return_inverse: Whether to return the index of the value of each element.
        return_counts: Whether to return the number of occurrences of each value.
        axis: The axis along which slices are compared; None for single elements.
        fill_value: Padding of the result; the first value by default.
        equal_nan: Whether all NaN are one value.

    Returns:
        Array with the axis `Unique`, which replaces `axis` if that is given; or a tuple with the other results that are
        requested: positions and counts with the axis `Unique`, the inverse with the axes of `x`, or `axis` alone.

    Raises:
        ValueError: If `x` lacks the axis, an `Axis` has another size, or `x` has another axis named like `Unique`.
        TypeError: If `Unique` has no size.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([3, 1, 3, 2], "i")
        >>> nym.unique(x, nym.Axis("value", 3))
        NamedArray(int32, value: 3, [1, 2, 3])
        >>> values, counts = nym.unique(x, nym.Axis("value", 3), return_counts=True)
        >>> counts
        NamedArray(int32, value: 3, [1, 1, 2])
    """
    check_named(x)
    Unique = parse_one_axis(Unique)
    new_names: Names = (Unique.name,)
    if axis is None:
        dim, value_names, inverse_names = None, new_names, x.names
    else:
        dim = find_axis(x.names, x.array.shape, axis)
        value_names = (*x.names[:dim], Unique.name, *x.names[dim + 1 :])
        inverse_names = (x.names[dim],)
    flags = (bool(return_index), bool(return_inverse), bool(return_counts))
    outs = (value_names, *compress((new_names, inverse_names, new_names), flags))
    results = _apply_unique(jnp.unique, x, Unique, fill_value, outs, flags=flags, axis=dim, equal_nan=equal_nan)
    return results if any(flags) else results[0]


def unique_values(x: N, Unique: Axis, *, fill_value: Any = None) -> N:
    """Finds the unique values; see `jax.numpy.unique_values`, which treats every NaN as a different value.

    Args:
        x: Array of any axes.
        Unique: Axis of the result, as for `unique`.
        fill_value: Padding of the result; the first value by default.

    Returns:
        Array with the axis `Unique`.

    Raises:
        TypeError: If `Unique` has no size.

    Example:
        >>> import axonym as nym
        >>> nym.unique_values(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 4))
        NamedArray(int32, value: 4, [1, 2, 3, 1])
    """
    return _apply_unique_by_field(jnp.unique_values, ("values",), x, Unique, fill_value)[0]


def unique_counts(x: N, Unique: Axis, *, fill_value: Any = None) -> UniqueCounts[N]:
    """Finds the unique values and their counts; see `jax.numpy.unique_counts`.

    Arguments as for `unique_values`.

    Returns:
        A named tuple of `values` and `counts`, each with the axis `Unique`.

    Example:
        >>> import axonym as nym
        >>> nym.unique_counts(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 3)).counts
        NamedArray(int32, value: 3, [1, 1, 2])
    """
    return UniqueCounts(*_apply_unique_by_field(jnp.unique_counts, UniqueCounts._fields, x, Unique, fill_value))


def unique_inverse(x: N, Unique: Axis, *, fill_value: Any = None) -> UniqueInverse[N]:
    """Finds the unique values and the index of the value of each element; see `jax.numpy.unique_inverse`.

    Arguments as for `unique_values`.

    Returns:
        A named tuple of `values`, with the axis `Unique`, and `inverse_indices`, with the axes of `x`.

    Example:
        >>> import axonym as nym
        >>> nym.unique_inverse(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 3)).inverse_indices
        NamedArray(int32, i: 4, [2, 0, 2, 1])
    """
    return UniqueInverse(*_apply_unique_by_field(jnp.unique_inverse, UniqueInverse._fields, x, Unique, fill_value))


def unique_all(x: N, Unique: Axis, *, fill_value: Any = None) -> UniqueAll[N]:
    """Finds the unique values, their first positions, the inverse and the counts; see `jax.numpy.unique_all`.

    Arguments as for `unique_values`.

    Returns:
        A named tuple of `values`, `indices`, the first position of each in the flattened `x`, `inverse_indices`, with
        the axes of `x`, and `counts`; the others have the axis `Unique`.

    Example:
        >>> import axonym as nym
        >>> nym.unique_all(nym.named([3, 1, 3, 2], "i"), nym.Axis("value", 3)).indices
        NamedArray(int32, value: 3, [1, 3, 0])
    """
    return UniqueAll(*_apply_unique_by_field(jnp.unique_all, UniqueAll._fields, x, Unique, fill_value))


def _apply_unique_by_field(
    function: Callable[..., Any], fields: tuple[str, ...], x: N, Unique: Axis, fill_value: Any
) -> tuple[N, ...]:
    """Applies a function of `jax.numpy` that returns these fields, of which only the inverse has the axes of `x`."""
    check_named(x)
    Unique = parse_one_axis(Unique)
    outs = tuple(x.names if field == "inverse_indices" else (Unique.name,) for field in fields)
    return _apply_unique(function, x, Unique, fill_value, outs)


def _apply_unique(
    function: Callable[..., Any], x: N, Unique: Axis, fill_value: Any, outs: tuple[Names, ...], **options: Hashable
) -> tuple[N, ...]:
    """Applies a function of `jax.numpy` over all axes of an array; the fill value may be traced."""
    fill: tuple[N, ...] = ()
    if fill_value is not None:
        check_values(check_scalar(fill_value), x.dtype)
        fill = (with_array(x, jnp.asarray(fill_value), ()),)
    cores = (x.names, *(() for _ in fill))
    return apply_gufunc(_compute_unique, (x, *fill), cores, outs, function=function, size=Unique.size, **options)


def _compute_unique(
    array: Any, *fill: Any, function: Callable[..., Any], flags: tuple[bool, ...] = (), **options: Any
) -> Any:
    return function(array, *flags, fill_value=fill[0] if fill else None, **options)


def interp(x: N, xp: N, fp: N, left: Any = None, right: Any = None, period: Any = None) -> N:
    """Interpolates linearly between points; see `jax.numpy.interp`.

    Args:
        x: Coordinates to interpolate at, of any axes, which are independent of the axis of the points.
        xp: Coordinates of the points, an increasing array of one axis.
        fp: Values of the points, with the same axis.
        left: Value to the left of the points, by default the first of `fp`.
        right: Value to the right of the points, by default the last of `fp`.
        period: Period of periodic points; `left` and `right` are then ignored.

    Returns:
        Array with the axes of `x`.

    Raises:
        ValueError: If `xp` has more or less than one axis, or `fp` another axis.

    Example:
        >>> import axonym as nym
        >>> step, rate = nym.named([0.0, 10.0, 30.0], "point"), nym.named([0.0, 1.0, 0.0], "point")
        >>> nym.interp(nym.named([5.0, 20.0], "step"), step, rate)
        NamedArray(float32, step: 2, [0.5, 0.5])
    """
    check_named(x)
    _check_vector("`xp`", xp)
    _check_same_axis("`fp`", fp, "`xp`", xp)
    arrays = [x, _rename_axes_apart(x, xp.array), _rename_axes_apart(x, fp.array)]
    cores: list[Names] = [(), arrays[1].names, arrays[2].names]
    # Numbers may be traced, so they are operands; None and "extrapolate" are part of the program.
    options: dict[str, str | None] = {}
    number_keys: list[str] = []
    for key, value in (("left", left), ("right", right), ("period", period)):
        if value is None or isinstance(value, str):
            options[key] = value
        else:
            number_keys.append(key)
            arrays.append(_as_scalar_array(f"`{key}`", x, value))
            cores.append(())
    return apply_gufunc(_compute_interp, arrays, cores, ((),), number_keys=tuple(number_keys), **options)[0]


def _compute_interp(x: Any, xp: Any, fp: Any, *numbers: Any, number_keys: tuple[str, ...], **options: Any) -> Any:
    dtype = jnp.result_type(x, xp, fp)
    options.update(zip(number_keys, numbers, strict=True))
    # `jax.numpy.interp` does not take bfloat16. The points have the loop axes of `x` too, of size 1.
    result = jnp.interp(widen_float(x), widen_float(xp).reshape(-1), widen_float(fp).reshape(-1), **options)
    return result.astype(dtype) if is_narrow_float(dtype) else result


def bincount(x: N, Counts: Axis, *, weights: N | None = None, minlength: int = 0) -> N:
    """Counts the occurrences of each integer; see `jax.numpy.bincount`.

    Args:
        x: Array of non-negative integers, of any axes.
        Counts: Axis of the result; larger integers are not counted.
        weights: Weight of each element, with some of the axes of `x`; 1 by default.
        minlength: The minimum size of `Counts`.

    Returns:
        Array with that axis: element `i` is the number of elements `i`, or the sum of their weights.

    Raises:
        ValueError: If `Counts` is too short for `minlength`, or `weights` has other axes.
        TypeError: If `Counts` has no size, or the elements are not integers.

    Example:
        >>> import axonym as nym
        >>> nym.bincount(nym.named([0, 2, 2], "token"), nym.Axis("vocab", 4))
        NamedArray(int32, vocab: 4, [1, 0, 2, 0])
    """
    check_named(x)
    bins = parse_one_axis(Counts)
    if bins.size < check_integer("bincount: `minlength`", minlength):
        raise ValueError(f"axis {bins.name!r} has size {bins.size} here, {minlength} was asked for with `minlength`")
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"`bincount` takes integers, the elements of {format_shape(x)} are {x.dtype}.")
    arrays = (x, *_broadcast_weights(x, weights))
    return apply_gufunc(_compute_bincount, arrays, (x.names,) * len(arrays), ((bins.name,),), length=bins.size)[0]


def _compute_bincount(array: Any, *weights: Any, length: int) -> Any:
    array = widen_integers(array.reshape(-1))
    if not weights:
        return jnp.bincount(array, length=length)
    return jnp.bincount(array, widen_float(weights[0]).reshape(-1), length=length).astype(weights[0].dtype)


def histogram(
    x: N, bins: Axis, range: tuple[Any, Any] | None = None, weights: N | None = None, density: bool = False
) -> tuple[N, N]:
    """Counts the elements in bins of equal width; see `jax.numpy.histogram`.

    Args:
        x: Array of any axes.
        bins: Axis of the bins.
        range: Lower and upper limits of the bins; the minimum and maximum of `x` by default.
        weights: Weight of each element, with some of the axes of `x`; 1 by default.
        density: Whether to return a density with integral 1 instead of counts.

    Returns:
        The counts, with the axis `bins`, and the edges, with an axis one longer, whose name has `_edges` appended.
        Counts are integers, as in NumPy; sums of weights and densities are of the dtype of the edges.

    Raises:
        ValueError: If there are no bins, or `weights` has other axes.
        TypeError: If `bins` has no size.

    Example:
        >>> import axonym as nym
        >>> counts, edges = nym.histogram(nym.named([0.0, 1.0, 4.0], "i"), nym.Axis("bin", 2))
        >>> counts.array, edges
        (Array([2, 1], dtype=int32), NamedArray(float32, bin_edges: 3, [0., 2., 4.]))
    """
    check_named(x)
    bins = parse_one_axis(bins)
    if not bins.size:
        raise ValueError(f"a histogram needs at least one bin, axis {bins.name!r} has size 0")
    weight_arrays = _broadcast_weights(x, weights)
    limits = () if range is None else _parse_range(x, range)
    counts, edges = apply_gufunc(
        _compute_histogram,
        (x, *weight_arrays, *limits),
        (x.names, *(x.names for _ in weight_arrays), *(() for _ in limits)),
        ((bins.name,), (f"{bins.name}_edges",)),
        has_weights=weights is not None,
        bins=bins.size,
        density=bool(density),
    )
    return counts, edges


def _compute_histogram(array: Any, *operands: Any, has_weights: bool, bins: int, density: bool) -> tuple[Any, Any]:
    weights, limits = (operands[:1], operands[1:]) if has_weights else ((), operands)
    dtype = jnp.result_type(array, *weights)
    dtype = dtype if jnp.issubdtype(dtype, jnp.inexact) else jnp.result_type(float)
    array, weights = array.astype(dtype), [weight.astype(dtype) for weight in weights]
    edges = jnp.histogram_bin_edges(array, bins, limits or None)
    # Position 0 is that below all bins. The last bin has its upper edge, too.
    positions = jnp.where(array == edges[-1], bins, jnp.searchsorted(edges, array, side="right"))
    # `jax.numpy.histogram` itself adds up, and counts, in the dtype of the array.
    counts = _compute_bincount(positions, *weights, length=bins + 1)[1:]
    if density:
        widths = jnp.diff(widen_float(edges))
        counts = counts.astype(widths.dtype)
        counts = (counts / widths / counts.sum()).astype(dtype)
    return counts, edges


def _broadcast_weights(x: N, weights: N | None) -> tuple[N, ...]:
    """Returns the weights with the axes of `x`, in a tuple, empty if there are none."""
    if weights is None:
        return ()
    check_named(weights)
    return (broadcast_to(reshard_named(weights), x.axes),)


def _parse_range(x: N, ends: tuple[Any, Any]) -> tuple[N, ...]:
    if not isinstance(ends, Sequence) or len(ends) != 2:
        raise ValueError(f"`range` must be two numbers, a lower and an upper limit, not {format_value(ends)}")
    lower, upper = ends
    if isinstance(lower, int | float) and isinstance(upper, int | float) and not lower <= upper:
        raise ValueError(f"the lower limit of `range`, {lower}, is above the upper one, {upper}")
    return tuple(_as_scalar_array("a limit of `range`", x, end) for end in ends)

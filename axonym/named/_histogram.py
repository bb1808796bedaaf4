"""Counts of values: `bincount` and `histogram`."""

from collections.abc import Hashable, Sequence
from typing import Any

import jax.numpy as jnp

from ._ambient import reshard_named
from ._arguments import check_integer
from ._axis import Axis, format_value, parse_one_axis
from ._base import N, check_named, format_shape
from ._gufunc import apply_gufunc
from ._search import as_scalar_array
from ._shape._broadcast import broadcast_to


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
    flat = [one.reshape(-1) for one in (array, *weights)]
    return jnp.bincount(*flat, length=length)


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

    Raises:
        ValueError: If there are no bins, or `weights` has other axes.
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
        raise ValueError(f"a histogram needs at least one bin, axis {own.name!r} has size 0")
    weighted, limits = _broadcast_weights(x, weights), () if range is None else _parse_range(x, range)
    cores = (*(x.names for _ in (x, *weighted)), *(() for _ in limits))
    options: dict[str, Hashable] = {"weighted": bool(weighted), "bins": own.size, "density": bool(density)}
    outs = ((own.name,), (f"{own.name}_edges",))
    counts, edges = apply_gufunc(_compute_histogram, (x, *weighted, *limits), cores, outs, **options)
    return counts, edges


def _compute_histogram(array: Any, *rest: Any, weighted: bool, bins: int, density: bool) -> tuple[Any, Any]:
    weights, limits = (rest[0], rest[1:]) if weighted else (None, rest)
    return jnp.histogram(array, bins, tuple(limits) if limits else None, weights, density)


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
    return tuple(as_scalar_array("a limit of `range`", x, end) for end in ends)

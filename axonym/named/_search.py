"""Searching: `top_k`, `take_along_axis`, `searchsorted`, `isin` and `nonzero`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ._arguments import check_integer
from ._axis import Axis, AxisSelector, find_axis, intern_names
from ._base import N, NamedBase, check_named, format_shape, with_array
from ._broadcasting import check_scalar, get_scalar
from ._elementwise._split_pair import split_pair
from ._gufunc import apply_gufunc
from ._resize import apply_resizing
from ._shape._rearrange import rearrange
from ._shape._rename import rename


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
    index, k = find_axis(x.names, x.array.shape, axis), check_integer("top_k: `k`", k)
    name = x.names[index]
    if not 0 <= k <= x.array.shape[index]:
        raise ValueError(
            f"`k` of `top_k` must be from 0 to the size of axis {name!r} of {format_shape(x)}, {k} was given"
        )
    values, indices = split_pair(apply_resizing(_find_top_k, x, index, k=k))
    if new_axis is None:
        return values, indices
    return rename(values, {name: new_axis}), rename(indices, {name: new_axis})


def _find_top_k(array: Any, axis: int, k: int) -> Any:
    # JAX's own `axis` misplaces the sharding of the result on meshes with Auto and Explicit axes.
    return jax.tree.map(lambda one: jnp.moveaxis(one, -1, axis), jax.lax.top_k(jnp.moveaxis(array, axis, -1), k))


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
            "use `take` for one element each"
        )
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(f"Elements are taken along axis {name!r} at integer positions, not at {indices.dtype}.")
    (result,) = apply_gufunc(jnp.take_along_axis, (x, indices), ((name,), (name,)), ((name,),), axis=-1, mode=mode)
    return rearrange(result, max(x.names, indices.names, key=len))


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
    check_vector("`a`", a)
    values = v if isinstance(v, NamedBase) else with_array(a, jnp.asarray(check_scalar(v)), ())
    arrays, options = [values, rename_axes_apart(values, a.array)], {"side": side, "method": method}
    if sorter is not None:
        check_same_axis("`sorter`", sorter, "`a`", a)
        arrays.append(rename_axes_apart(values, sorter.array))
    cores = ((), *(one.names for one in arrays[1:]))
    return apply_gufunc(_compute_searchsorted, arrays, cores, ((),), **options)[0]


def _compute_searchsorted(v: Any, a: Any, *sorter: Any, side: str, method: str) -> Any:
    order = sorter[0].reshape(-1) if sorter else None
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
    elements = rename_axes_apart(x, array)
    return apply_gufunc(jnp.isin, (x, elements), ((), elements.names), ((),), invert=bool(invert))[0]


def nonzero(x: N, *, size: Axis | int, fill_value: int | Sequence[int] = 0) -> tuple[N, ...]:
    """Finds the positions of nonzero elements, a fixed number of them; see `jax.numpy.nonzero`.

    Args:
        x: Array of any axes, at least one.
        size: The number of positions, an axis for the result or an integer; then the axis is named "nonzero".
        fill_value: Padding if there are fewer: one position for all axes, or one for each.

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
        raise ValueError("`nonzero` needs an array with axes, a scalar has no positions")
    outs = ((hits.name,),) * len(x.names)
    fill = tuple(fill_value) if isinstance(fill_value, Sequence) else fill_value  # to be hashed
    return apply_gufunc(jnp.nonzero, (x,), (x.names,), outs, size=hits.size, fill_value=fill)


def as_scalar_array(what: str, x: N, value: Any) -> N:
    """Returns a scalar as an array without axes, of the class of `x`."""
    return with_array(x, jnp.asarray(get_scalar(what, value)), ())


def rename_axes_apart(x: N, array: Any) -> N:
    """Names the axes of an array unlike those of `x`, because they are independent of them."""
    bar = "_" * (1 + max(map(len, x.names), default=0))
    return with_array(x, array, intern_names(tuple(f"{bar}{at}" for at, _ in enumerate(array.shape))))


def check_vector(what: str, x: Any) -> None:
    """Raises a ValueError if an array has more or less than one axis."""
    check_named(x)
    if len(x.names) != 1:
        raise ValueError(f"{what} must have one axis, it has {format_shape(x)}")


def check_same_axis(what: str, x: Any, other: str, y: NamedBase) -> None:
    """Raises a ValueError if an array has other axes than `y`."""
    check_named(x)
    if x.axes != y.axes:
        raise ValueError(f"{what} must have the axis of {other}, {format_shape(y)}, it has {format_shape(x)}")

"""Draws that have axes of their own, vectors and matrices, and draws from the elements of an array."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from ..named._array import NamedArray
from ..named._axis import (
    Axis,
    AxisSelector,
    AxisSpec,
    axis_name,
    check_selected_once,
    find_axis,
    format_axes,
    get_names_and_sizes,
    parse_axes,
    parse_one_axis,
)
from ..named._base import N, NamedBase, check_named, format_shape, with_array
from ._drawing import drawn


def ball(key: jax.Array, shape: AxisSpec, D: Axis, p: Any = 2.0, dtype: Any = float) -> NamedArray:
    """Draws points evenly from the unit ball of the `p`-norm; see `jax.random.ball`.

    Args:
        key: A random key.
        shape: The axes along which points are independent.
        D: The axis of the coordinates of a point.
        p: Which norm, a scalar.
        dtype: Element type, a float.

    Returns:
        Array of the axes of `shape`, and `D` behind them, sharded as the mapping in force says.

    Raises:
        ValueError: If a name occurs twice, or `p` has axes.
        TypeError: If an axis has no size.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> x = nym.random.ball(jax.random.key(0), nym.Axis("i", 100), nym.Axis("xyz", 3))
        >>> x.names, (nym.square(x).sum("xyz") <= 1).all().item()
        (('i', 'xyz'), True)
    """
    one = parse_one_axis(D)
    if isinstance(p, NamedBase) and p.names:
        raise ValueError(f"the `p` of a ball is a scalar, it has axes {format_shape(p)}")
    return drawn(_ball, key, shape, (p,), event=(one,), d=one.size, dtype=dtype)


def _ball(key: Any, p: Any, *, shape: Any, d: int, dtype: Any) -> Any:
    return jax.random.ball(key, d, p, shape, dtype)


def dirichlet(key: jax.Array, shape: AxisSpec, alpha: NamedArray, axis: AxisSelector, dtype: Any = float) -> NamedArray:
    """Draws probabilities from the Dirichlet distribution; see `jax.random.dirichlet`.

    Args:
        key: A random key.
        shape: The axes along which draws are independent, without the axis of the classes.
        alpha: The concentrations, with the axis of the classes and any of `shape`.
        axis: The axis of the classes.
        dtype: Element type, a float.

    Returns:
        Array of the axes of `shape`, and the axis of the classes behind them, along which it sums to 1.

    Raises:
        ValueError: If `alpha` lacks the axis or has one that `shape` has not or has in another size, or `shape` has the
            axis of the classes too.
        TypeError: If `alpha` is not a named array.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> alpha = nym.ones({"class": 3})
        >>> nym.round(nym.random.dirichlet(jax.random.key(0), {"batch": 2}, alpha, "class").sum("class"), 3).array
        Array([1., 1.], dtype=float32)
    """
    check_named(alpha)
    return drawn(
        jax.random.dirichlet, key, shape, (alpha,), cores=((axis,),), event=(alpha.resolve_axis(axis),), dtype=dtype
    )


def multinomial(
    key: jax.Array, shape: AxisSpec, n: Any, p: NamedArray, axis: AxisSelector, dtype: Any = float
) -> NamedArray:
    """Draws how often each class comes up in `n` trials; see `jax.random.multinomial`.

    Args:
        key: A random key.
        shape: The axes along which draws are independent, without the axis of the classes.
        n: The number of trials, a scalar or a named array of any of `shape`.
        p: The probabilities, with the axis of the classes and any of `shape`.
        axis: The axis of the classes.
        dtype: Element type, a float.

    Returns:
        Array of the axes of `shape`, and the axis of the classes behind them, along which it sums to `n`.

    Raises:
        ValueError: If `p` lacks the axis, a parameter has one that `shape` has not or has in another size, or `shape`
            has the axis of the classes too.
        TypeError: If `p` is not a named array.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> p = nym.full({"class": 4}, 0.25)
        >>> nym.random.multinomial(jax.random.key(0), {"batch": 2}, 10, p, "class").sum("class").array
        Array([10., 10.], dtype=float32)
    """
    check_named(p)
    cores = ((), (axis,))
    return drawn(_multinomial, key, shape, (n, p), cores=cores, event=(p.resolve_axis(axis),), dtype=dtype)


def _multinomial(key: Any, n: Any, p: Any, *, shape: Any, dtype: Any) -> Any:
    return jax.random.multinomial(key, n, jnp.broadcast_to(p, (*shape, p.shape[-1])), dtype=dtype)


def multivariate_normal(
    key: jax.Array,
    shape: AxisSpec,
    mean: NamedArray,
    cov: NamedArray,
    axis: AxisSelector,
    other: AxisSelector,
    dtype: Any = None,
    method: str = "cholesky",
) -> NamedArray:
    """Draws vectors from a normal distribution of any mean and covariance; see `jax.random.multivariate_normal`.

    Args:
        key: A random key.
        shape: The axes along which vectors are independent, without that of the vectors themselves.
        mean: The mean, with the axis of the vectors and any of `shape`.
        cov: The covariance, with the axis of the vectors, the `other` axis of the same size, and any of `shape`.
        axis: The axis of the vectors.
        other: The second axis of the covariance, which the result has not.
        dtype: Element type, that of the mean if None.
        method: How the covariance is taken apart: "cholesky", "eigh" or "svd".

    Returns:
        Array of the axes of `shape`, and the axis of the vectors behind them.

    Raises:
        ValueError: If a parameter lacks an axis, or has one that `shape` has not or has in another size, `shape` has
            the axis of the vectors too, or the two axes of the covariance differ in size.
        TypeError: If a parameter is not a named array.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> mean, cov = nym.ones({"xy": 2}), nym.zeros({"xy": 2, "xy2": 2})
        >>> nym.random.multivariate_normal(jax.random.key(0), {"i": 1}, mean, cov, "xy", "xy2", method="svd").array
        Array([[1., 1.]], dtype=float32)
    """
    check_named(mean)
    check_named(cov)
    check_selected_once((axis_name(axis), axis_name(other)))
    one, second = mean.resolve_axis(axis), cov.resolve_axis(other)
    if {cov.resolve_axis(axis).size, second.size} != {one.size}:
        raise ValueError(
            f"the covariance needs axes {one.name!r} and {second.name!r} of size {one.size}, it has {format_shape(cov)}"
        )
    cores = ((one,), (one, second))
    return drawn(_normals, key, shape, (mean, cov), cores=cores, event=(one,), dtype=dtype, method=method)


def _normals(key: Any, mean: Any, cov: Any, *, shape: Any, dtype: Any, method: str) -> Any:
    return jax.random.multivariate_normal(key, mean, cov, shape, dtype, method)


def orthogonal(key: jax.Array, axis: Axis, other: Axis, shape: AxisSpec = (), dtype: Any = float) -> NamedArray:
    """Draws orthogonal matrices, evenly; see `jax.random.orthogonal`.

    Args:
        key: A random key.
        axis: The axis of the rows.
        other: The axis of the columns. If it is the longer one the rows are orthonormal, if not the columns.
        shape: The axes along which matrices are independent.
        dtype: Element type, a float, or a complex number for unitary matrices.

    Returns:
        Array of the axes of `shape`, and `axis` and `other` behind them.

    Raises:
        ValueError: If a name occurs twice.
        TypeError: If an axis has no size.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> q = nym.random.orthogonal(jax.random.key(0), nym.Axis("row", 3), nym.Axis("column", 2))
        >>> nym.round(nym.square(q).sum("row"), 3).array
        Array([1., 1.], dtype=float32)
    """
    rows, columns = parse_one_axis(axis), parse_one_axis(other)
    return drawn(_orthogonal, key, shape, event=(rows, columns), n=rows.size, m=columns.size, dtype=dtype)


def _orthogonal(key: Any, *, shape: Any, n: int, m: int, dtype: Any) -> Any:
    return jax.random.orthogonal(key, n, shape, dtype, m)


def choice(
    key: jax.Array,
    shape: AxisSpec,
    a: N,
    axis: AxisSelector,
    replace: bool = True,
    p: NamedArray | None = None,
) -> N:
    """Draws from what lies along an axis; see `jax.random.choice`.

    Args:
        key: A random key.
        shape: The axes of the draws, which take the place of the axis.
        a: Array drawn from.
        axis: The axis along which it is drawn.
        replace: Whether the same element may be drawn again.
        p: The probabilities, a named array with that axis only; all the same if None.

    Returns:
        Array with the axes of `a`, but those of `shape` in place of the axis, sharded as the mapping in force says.

    Raises:
        ValueError: If `a` lacks the axis or has another of `shape` too, there are too few elements to draw, or `p` has
            not just that axis.
        TypeError: If `a` or `p` is not a named array.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> a = nym.named([[1, 2], [3, 4]], ("i", "j"))
        >>> nym.random.choice(jax.random.key(0), {"draw": 3}, a, "j", p=nym.named([0.0, 1.0], "j")).array
        Array([[2, 2, 2],
               [4, 4, 4]], dtype=int32)
    """
    check_named(a)
    at, axes = find_axis(a.names, a.array.shape, axis), parse_axes(shape)
    _check_population(a, at, axes, replace)
    if p is not None:
        check_named(p)
        if (p.names, p.array.shape) != ((a.names[at],), (a.array.shape[at],)):
            raise ValueError(f"`p` must have axis {str(a.axes[at])!r} only, it has {format_shape(p)}")
    given = (a,) if p is None else (a, p)
    options = {"draws": tuple(one.size for one in axes), "axis": at, "replace": replace}
    event = (*a.axes[:at], *axes, *a.axes[at + 1 :])
    result = drawn(_chosen, key, (), given, cores=tuple(x.names for x in given), event=event, **options)
    return with_array(a, result.array, result.names)


def _check_population(a: NamedBase, at: int, axes: tuple[Axis, ...], replace: bool) -> None:
    draws, size = math.prod(one.size for one in axes), a.array.shape[at]
    if draws > size and (not replace or not size):
        raise ValueError(
            f"{draws} draws, {format_axes(*get_names_and_sizes(axes))}, need as many elements "
            f"along axis {a.names[at]!r} of {format_shape(a)}" + ("" if not size else ", or `replace=True`")
        )


def _chosen(key: Any, a: Any, p: Any = None, *, shape: Any, draws: tuple[int, ...], axis: int, replace: bool) -> Any:
    return jax.random.choice(key, a, draws, replace, p, axis)


def permutation(key: jax.Array, x: N, axis: AxisSelector, independent: bool = False) -> N:
    """Shuffles what lies along an axis; see `jax.random.permutation`.

    Args:
        key: A random key.
        x: Array.
        axis: The axis along which it is shuffled.
        independent: Whether each vector along the axis is shuffled by itself, and not all in the same way.

    Returns:
        Array with the same axes, sharded as the mapping in force says.

    Raises:
        ValueError: If the axis is not there.
        TypeError: If `x` is not a named array.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> x = nym.random.permutation(jax.random.key(0), nym.arange(nym.Axis("i", 4)), "i")
        >>> nym.sort(x, "i").array
        Array([0, 1, 2, 3], dtype=int32)
    """
    check_named(x)
    at = find_axis(x.names, x.array.shape, axis)
    result = drawn(_shuffled, key, (), (x,), cores=(x.names,), event=x.axes, axis=at, independent=independent)
    return with_array(x, result.array)


def _shuffled(key: Any, x: Any, *, shape: Any, axis: int, independent: bool) -> Any:
    return jax.random.permutation(key, x, axis, independent)

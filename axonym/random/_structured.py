"""Distributions of vectors and matrices."""

from typing import Any

import jax
import jax.numpy as jnp

from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelector, AxisSpec, axis_name, check_selected_once, parse_one_axis
from ..named._base import check_named, format_shape
from ..named._broadcasting import get_scalar
from ._draw_sample import check_parameter, draw_sample


def ball(key: jax.Array, shape: AxisSpec, D: Axis, p: Any = 2.0, dtype: Any = float) -> NamedArray:
    """Draws points uniformly from the unit ball of the `p`-norm; see `jax.random.ball`.

    Args:
        key: A random key.
        shape: The axes along which points are independent.
        D: The axis of the coordinates of a point.
        p: The order of the norm, a scalar.
        dtype: Float dtype of the result.

    Returns:
        Array of the axes of `shape`, then `D`, sharded by the active mapping.

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
    coordinates = parse_one_axis(D)
    check_parameter("ball: `p`", p, above=0)
    parameters = {"p": get_scalar("`p`", p)}
    return draw_sample(jax.random.ball, key, shape, parameters, event=(coordinates,), d=coordinates.size, dtype=dtype)


def dirichlet(key: jax.Array, shape: AxisSpec, alpha: NamedArray, axis: AxisSelector, dtype: Any = float) -> NamedArray:
    """Draws probabilities from the Dirichlet distribution; see `jax.random.dirichlet`.

    Args:
        key: A random key.
        shape: The axes along which draws are independent, without the axis of the classes.
        alpha: The concentrations, with the axis of the classes and any of `shape`.
        axis: The axis of the classes.
        dtype: Float dtype of the result.

    Returns:
        Array of the axes of `shape`, then the axis of the classes, along which it sums to 1.

    Raises:
        ValueError: If `alpha` lacks the axis of the classes or `shape` has it, or another axis of `alpha` is not in
            `shape` with the same size.
        TypeError: If `alpha` is not a named array.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> alpha = nym.ones({"class": 3})
        >>> nym.round(nym.random.dirichlet(jax.random.key(0), {"batch": 2}, alpha, "class").sum("class"), 3).array
        Array([1., 1.], dtype=float32)
    """
    check_named(alpha)
    event = (alpha.resolve_axis(axis),)
    return draw_sample(
        jax.random.dirichlet, key, shape, {"alpha": alpha}, cores={"alpha": (axis,)}, event=event, dtype=dtype
    )


def multinomial(
    key: jax.Array, shape: AxisSpec, n: Any, p: NamedArray, axis: AxisSelector, dtype: Any = float
) -> NamedArray:
    """Draws the count of each class in `n` trials; see `jax.random.multinomial`.

    Args:
        key: A random key.
        shape: The axes along which draws are independent, without the axis of the classes.
        n: The number of trials, a scalar or a named array of any of `shape`.
        p: The probabilities, with the axis of the classes and any of `shape`.
        axis: The axis of the classes.
        dtype: Float dtype of the result.

    Returns:
        Array of the axes of `shape`, then the axis of the classes, along which it sums to `n`.

    Raises:
        ValueError: If `p` lacks the axis of the classes or `shape` has it, or another axis of a parameter is not in
            `shape` with the same size.
        TypeError: If `p` is not a named array.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> p = nym.full({"class": 4}, 0.25)
        >>> nym.random.multinomial(jax.random.key(0), {"batch": 2}, 10, p, "class").sum("class").array
        Array([10., 10.], dtype=float32)
    """
    check_named(p)
    check_parameter("multinomial: `n`", n, least=0)
    event = (p.resolve_axis(axis),)
    return draw_sample(_draw_multinomial, key, shape, {"n": n, "p": p}, cores={"p": (axis,)}, event=event, dtype=dtype)


def _draw_multinomial(key: Any, n: Any, p: Any, *, shape: Any, dtype: Any) -> Any:
    # `jax.random.multinomial` takes the shape of its draws from `p` and has no argument for it.
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
    """Draws vectors from the normal distribution with a mean and a covariance; see `jax.random.multivariate_normal`.

    Args:
        key: A random key.
        shape: The axes along which vectors are independent, without the axis of the vectors themselves.
        mean: The mean, with the axis of the vectors and any of `shape`.
        cov: The covariance, with the axis of the vectors, the `other` axis of the same size, and any of `shape`.
        axis: The axis of the vectors.
        other: The second axis of the covariance, which the result lacks.
        dtype: Float dtype of the result; that of the mean and the covariance if None.
        method: The decomposition of the covariance: "cholesky", "eigh" or "svd".

    Returns:
        Array of the axes of `shape`, then the axis of the vectors.

    Raises:
        ValueError: If a parameter lacks an axis, `shape` has the axis of the vectors, the two axes of the covariance
            differ in size, or another axis of a parameter is not in `shape` with the same size.
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
    row, col = mean.resolve_axis(axis), cov.resolve_axis(other)
    if cov.resolve_axis(axis).size != row.size or col.size != row.size:
        raise ValueError(
            f"the covariance needs axes {row.name!r} and {col.name!r} of size {row.size}, it has {format_shape(cov)}"
        )
    if dtype is None:
        dtype = jnp.result_type(mean.array, cov.array, float)
    return draw_sample(
        jax.random.multivariate_normal,
        key,
        shape,
        {"mean": mean, "cov": cov},
        cores={"mean": (row,), "cov": (row, col)},
        event=(row,),
        dtype=dtype,
        method=method,
    )


def orthogonal(key: jax.Array, axis: Axis, other: Axis, shape: AxisSpec = (), dtype: Any = float) -> NamedArray:
    """Draws orthogonal matrices uniformly; see `jax.random.orthogonal`.

    Args:
        key: A random key.
        axis: The axis of the rows.
        other: The axis of the columns. If it is longer than `axis` the rows are orthonormal, otherwise the columns.
        shape: The axes along which matrices are independent.
        dtype: Element type, a float, or a complex number for unitary matrices.

    Returns:
        Array of the axes of `shape`, then `axis` and `other`.

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
    return draw_sample(
        jax.random.orthogonal, key, shape, event=(rows, columns), n=rows.size, m=columns.size, dtype=dtype
    )

"""Covariances and quantiles."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..._ground.errors import make_error
from ..._ground.formats import format_value
from .._axis import (
    AxesOrPositions,
    Axis,
    AxisSelection,
    AxisSelector,
    axis_name,
    find_axes,
    intern_names,
    parse_selection,
)
from .._base import A, N, NamedBase, check_named, format_shape, with_array
from .._broadcasting import check_scalar
from .._gufunc import apply_gufunc
from .._wide_sums import compute_wide, widen_float
from ._apply_reduction import find_positions


def cov(
    x: N,
    variables: AxisSelector,
    observations: AxisSelection,
    *,
    other: AxisSelector,
    ddof: int = 1,
    fweights: N | None = None,
    aweights: N | None = None,
) -> N:
    """Computes the covariance matrix of variables; see `jax.numpy.cov`.

    Names are unique, so the second axis of the matrix needs a name of its own: `other`. All further axes of `x` are
    batch axes.

    Args:
        x: Array of any axes.
        variables: The axis of the variables.
        observations: The axes of the observations, which are reduced.
        other: The name of the second axis of the matrix, which has the size of `variables`.
        ddof: Delta degrees of freedom: the divisor is the number of observations minus `ddof`.
        fweights: Frequency weights, integers with the axes of `observations`.
        aweights: Observation weights, numbers with the axes of `observations`.

    Returns:
        Array with the other axes of `x`, then `variables` and `other`.

    Raises:
        ValueError: If `x` lacks an axis, an `Axis` given has another size, or `other` is the name of a remaining axis.
        TypeError: If `x` or the weights are not named.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], ("variable", "time"))
        >>> nym.cov(x, "variable", "time", other="with")
        NamedArray(float32, variable: 2, with: 2, [[ 1., -1.], [-1.,  1.]])
    """
    return _apply_over_observations(
        _compute_cov,
        x,
        variables,
        observations,
        other,
        weights=[weights for weights in (fweights, aweights) if weights is not None],
        ddof=ddof,
        has_frequencies=fweights is not None,
    )


def corrcoef(x: N, variables: AxisSelector, observations: AxisSelection, *, other: AxisSelector) -> N:
    """Computes the correlation matrix of variables; see `jax.numpy.corrcoef`.

    Arguments as for `cov`.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], ("variable", "time"))
        >>> nym.corrcoef(x, "variable", "time", other="with").array.round(3)
        Array([[ 1., -1.],
               [-1.,  1.]], dtype=float32)
    """
    return _apply_over_observations(_compute_corrcoef, x, variables, observations, other)


def _apply_over_observations(
    fn: Callable[..., Any],
    x: N,
    variables: AxisSelector,
    observations: AxisSelection,
    other: AxisSelector,
    weights: Sequence[N] = (),
    **options: Any,
) -> N:
    check_named(x)
    reduced, name = parse_selection(observations), axis_name(variables)
    cores = [(variables, *reduced), *(reduced for _ in weights)]
    if isinstance(other, Axis):
        x.resolve_axis(Axis(name, other.size))  # raises an error if the sizes differ
    results = [(name, axis_name(other))]
    return apply_gufunc(fn, [x, *weights], cores, results, count=len(reduced), **options)[0]


def _compute_cov(array: Any, *weights: Any, count: int, ddof: int, has_frequencies: bool) -> Any:
    array = _merge_observations(array, count)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        array = array.astype(float)
    size: Any = array.shape[-1]
    if not weights:
        array = array - jnp.mean(array, axis=-1, keepdims=True)
        return _multiply_conjugate(array, array) / jnp.maximum(size - ddof, 0)
    weight_rows = [jnp.expand_dims(_merge_observations(weight, count), -2) for weight in weights]
    factor = functools.reduce(operator.mul, weight_rows)
    size = jnp.sum(factor, axis=-1, keepdims=True)
    array = array - jnp.sum(array * factor, axis=-1, keepdims=True) / size
    # The last weights are the observation weights if there are any; frequencies count as repeated observations.
    if has_frequencies and len(weight_rows) == 1:
        correction: Any = ddof
    else:
        correction = ddof * jnp.sum(factor * weight_rows[-1], axis=-1, keepdims=True) / size
    return _multiply_conjugate(array * factor, array) / (size - correction)


@compute_wide
def _compute_corrcoef(array: Any, *, count: int) -> Any:
    matrix = _compute_cov(array, count=count, ddof=1, has_frequencies=False)
    spread = jnp.sqrt(jnp.real(jnp.diagonal(matrix, axis1=-2, axis2=-1)))
    matrix = matrix / jnp.expand_dims(spread, -1) / jnp.expand_dims(spread, -2)
    # Rounding may take a correlation beyond 1; real and imaginary parts are limited alone, as in JAX.
    if jnp.issubdtype(matrix.dtype, jnp.complexfloating):
        return jnp.clip(jnp.real(matrix), -1, 1) + 1j * jnp.clip(jnp.imag(matrix), -1, 1)
    return jnp.clip(matrix, -1, 1)


def _merge_observations(array: Any, count: int) -> Any:
    """Returns the array with the axes of the observations merged into the last."""
    return array.reshape(*array.shape[: array.ndim - count], -1)


def _multiply_conjugate(x: Any, y: Any) -> Any:
    return jnp.matmul(x, jnp.conj(jnp.swapaxes(y, -1, -2)))


# Positions and sums of two elements may not fit 16 bits.
_median, _nanmedian = compute_wide(jnp.median), compute_wide(jnp.nanmedian)
_quantile, _nanquantile = compute_wide(jnp.quantile), compute_wide(jnp.nanquantile)
_percentile, _nanpercentile = compute_wide(jnp.percentile), compute_wide(jnp.nanpercentile)


def quantile(x: A, q: NamedBase | ArrayLike, axis: AxesOrPositions | None = None, *, method: str = "linear") -> A:
    """Computes quantiles of the elements along axes; see `jax.numpy.quantile`.

    Args:
        x: Array of any axes.
        q: The quantiles, from 0 to 1: a scalar, or a named array whose axes come first in the result.
        axis: One axis, several, or None for all.
        method: Interpolation between two elements: "linear", "lower", "higher", "midpoint" or "nearest".

    Returns:
        Array with the axes of `q`, followed by the axes of `x` that were not reduced.

    Raises:
        ValueError: If `x` lacks an axis, an `Axis` given has another size or no elements, `q` is a number out of range,
            or it shares a remaining axis of `x`.
        TypeError: If `q` is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> nym.quantile(nym.arange(nym.Axis("i", 5)), 0.25, "i").item()
        1.0
    """
    return _apply_quantile(_quantile, x, q, axis, method)


def percentile(x: A, q: NamedBase | ArrayLike, axis: AxesOrPositions | None = None, *, method: str = "linear") -> A:
    """Computes percentiles of the elements along axes; see `jax.numpy.percentile`.

    Arguments as for `quantile`, with `q` from 0 to 100.

    Example:
        >>> import axonym as nym
        >>> nym.percentile(nym.arange(nym.Axis("i", 5)), 25, "i").item()
        1.0
    """
    return _apply_quantile(_percentile, x, q, axis, method)


def nanquantile(x: A, q: NamedBase | ArrayLike, axis: AxesOrPositions | None = None, *, method: str = "linear") -> A:
    """Computes quantiles along axes, ignoring NaN; see `jax.numpy.nanquantile`.

    Arguments as for `quantile`.

    Example:
        >>> import axonym as nym
        >>> nym.nanquantile(nym.named([1.0, float("nan"), 4.0], "i"), 0.5, "i").item()
        2.5
    """
    return _apply_quantile(_nanquantile, x, q, axis, method)


def nanpercentile(x: A, q: NamedBase | ArrayLike, axis: AxesOrPositions | None = None, *, method: str = "linear") -> A:
    """Computes percentiles along axes, ignoring NaN; see `jax.numpy.nanpercentile`.

    Arguments as for `percentile`.

    Example:
        >>> import axonym as nym
        >>> nym.nanpercentile(nym.named([1.0, float("nan"), 4.0], "i"), 50, "i").item()
        2.5
    """
    return _apply_quantile(_nanpercentile, x, q, axis, method)


def median(x: A, axis: AxesOrPositions | None = None) -> A:
    """Computes the median along axes; see `jax.numpy.median`.

    Example:
        >>> import axonym as nym
        >>> nym.median(nym.named([3.0, 9.0, 4.0], "i"), "i").item()
        4.0
    """
    return _apply_median(_median, x, axis)


def nanmedian(x: A, axis: AxesOrPositions | None = None) -> A:
    """Computes the median along axes, ignoring NaN; see `jax.numpy.nanmedian`.

    Example:
        >>> import axonym as nym
        >>> nym.nanmedian(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        2.5
    """
    return _apply_median(_nanmedian, x, axis)


def _apply_median(function: Callable[..., Any], x: Any, axis: AxesOrPositions | None) -> Any:
    if not isinstance(x, NamedBase):
        return function(x, axis=find_positions(x, axis))
    axes = _select_axes(x, axis)
    if 0 in x.array.shape:
        _check_elements(function, x, axes)
    return apply_gufunc(function, (x,), (axes,), ((),), axis=tuple(range(-len(axes), 0)))[0]


def _select_axes(x: NamedBase, axis: Any) -> tuple[AxisSelector, ...]:
    return x.names if axis is None else parse_selection(axis)


def _check_elements(function: Callable[..., Any], x: NamedBase, axes: tuple[AxisSelector, ...]) -> None:
    """Raises a ValueError if an array has no elements along the axes that are reduced."""
    for dim in find_axes(x.names, x.array.shape, axes):
        if x.array.shape[dim] == 0:
            raise make_error(
                ValueError,
                f"`{function.__name__}` needs elements along axis {x.names[dim]!r}, and {format_shape(x)} has none",
            )


def _apply_quantile(function: Callable[..., Any], x: Any, q: Any, axis: AxesOrPositions | None, method: str) -> Any:
    highest = 100 if "percentile" in function.__name__ else 1
    is_number = isinstance(q, int | float | np.number) or (isinstance(q, np.ndarray) and q.ndim == 0)
    if is_number and not 0 <= q <= highest:  # NaN is in no range
        raise make_error(ValueError, f"`{function.__name__}` takes numbers from 0 to {highest}, not {format_value(q)}")
    if not isinstance(x, NamedBase):
        dims = find_positions(x, axis)
        if isinstance(q, NamedBase):
            raise TypeError(f"A plain array of shape {np.shape(x)} takes plain quantiles, not named ones.")
        return _rank_elements(x, jnp.asarray(q), function=function, axis=dims, method=method)
    axes = _select_axes(x, axis)
    if 0 in x.array.shape:
        _check_elements(function, x, axes)
    ranks = with_array(x, q.array, q.names) if isinstance(q, NamedBase) else with_array(x, check_scalar(q), ())
    (result,) = apply_gufunc(
        _compute_quantile,
        (x, ranks),
        (axes, ranks.names),
        (ranks.names,),
        function=function,
        method=method,
        axis=tuple(range(-len(axes), 0)),
        q_ndim=len(ranks.names),
    )
    # A gufunc has the axes of its core last, and the axes of `q` come first.
    start = len(result.names) - len(ranks.names)
    if not start or not ranks.names:
        return result
    array = jnp.moveaxis(result.array, range(start, len(result.names)), range(len(ranks.names)))
    return with_array(x, array, intern_names(ranks.names + result.names[:start]))


def _compute_quantile(array: Any, q: Any, *, q_ndim: int, **options: Any) -> Any:
    """Computes quantiles for a scalar or a flat array of them, and puts the axes of `q` at the end."""
    # JAX puts the axis of the quantiles first, where a gufunc has its batch axes.
    shape = q.shape[q.ndim - q_ndim :]
    result = _rank_elements(array, q.reshape(-1 if q_ndim else ()), **options)
    return jnp.moveaxis(result, 0, -1).reshape(*result.shape[1:], *shape) if q_ndim else result


def _rank_elements(array: Any, q: Any, function: Callable[..., Any], **options: Any) -> Any:
    """Computes quantiles as JAX does, which are NaN where `q` is."""
    q = widen_float(q) if jnp.issubdtype(q.dtype, jnp.inexact) else q.astype(float)
    result = function(array, q, **options)
    is_nan = jnp.isnan(jnp.expand_dims(q, tuple(range(q.ndim, result.ndim))))
    return jnp.where(is_nan, jnp.asarray(jnp.nan, result.dtype), result)

"""Weighted averages, and how variables vary together."""

from collections.abc import Callable
from math import prod
from typing import Any

import jax.numpy as jnp

from .._axis import Axis, AxisSelection, AxisSelector, axis_name, find_axes, parse_selection
from .._base import N, check_named, format_shape
from .._broadcasting import apply_binary
from .._cached_jit import apply_reduction
from .._gufunc import apply_gufunc


def average(x: N, axis: AxisSelection | None = None, weights: N | None = None) -> N:
    """Averages the elements along axes, each with its weight; see `jax.numpy.average`.

    Args:
        x: Array of any axes.
        axis: One axis, several, or None for all.
        weights: Array with some of the axes of `x`; None weighs all elements alike.

    Returns:
        Array with the axes of `x` that were not reduced: `sum(x * weights) / sum(weights)`.

    Raises:
        TypeError: If the weights are not named.
        ValueError: If `x` lacks an axis, an `Axis` given has another size, or the weights have an axis that `x` lacks.

    Example:
        >>> import axonym as nym
        >>> i = nym.arange(nym.Axis("i", 3))
        >>> nym.average(i, "i", weights=i).item()
        1.666...
    """
    if weights is None:
        return apply_reduction(jnp.mean, x, axis, None)
    check_named(x)
    check_named(weights)
    if not set(weights.names) <= set(x.names):
        raise ValueError(f"`weights` must have axes of {format_shape(x)} only, they have {format_shape(weights)}")
    chosen = {x.names[i]: x.array.shape[i] for i in find_axes(x.names, x.array.shape, axis)}
    weighed = apply_reduction(jnp.sum, apply_binary(_weighed, x, weights), tuple(chosen), None)
    # Along axes that the weights lack they are all alike.
    alike = prod(size for name, size in chosen.items() if name not in weights.names)
    total = apply_reduction(_total, weights, tuple(name for name in chosen if name in weights.names), None, times=alike)
    return apply_binary(jnp.divide, weighed, total)


def _weighed(array: Any, weights: Any) -> Any:
    if not jnp.issubdtype(jnp.result_type(array, weights), jnp.inexact):
        weights = jnp.astype(weights, float)
    return array * weights


def _total(weights: Any, axis: tuple[int, ...], times: int) -> Any:
    return jnp.sum(weights, axis=axis) * times


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
    """Computes the covariance of each variable with each other; see `jax.numpy.cov`.

    Names are unique, so the second axis of the matrix needs one of its own: `other`. All further axes of `x` are kept,
    with a matrix for each of their elements.

    Args:
        x: Array of any axes.
        variables: The axis along which the variables lie.
        observations: The axes along which each of them was observed; they are reduced.
        other: The name of the second axis of the matrix, which has the size of `variables`.
        ddof: What is taken from the number of observations in the divisor.
        fweights: How often each observation was made: integers with the axes of `observations`.
        aweights: How much each observation weighs: numbers with the axes of `observations`.

    Returns:
        Array with the other axes of `x`, then `variables` and `other`.

    Raises:
        ValueError: If `x` lacks an axis, an `Axis` given has another size, or `other` is the name of an axis left.
        TypeError: If `x` or the weights are not named.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], ("variable", "time"))
        >>> nym.cov(x, "variable", "time", other="with")
        NamedArray(float32, variable: 2, with: 2, [[ 1., -1.], [-1.,  1.]])
    """
    options = {"ddof": ddof, "frequencies": fweights is not None}
    return _matrix(_cov, x, (variables, observations, other), (fweights, aweights), **options)


def corrcoef(x: N, variables: AxisSelector, observations: AxisSelection, *, other: AxisSelector) -> N:
    """Computes the correlation of each variable with each other; see `jax.numpy.corrcoef`.

    Arguments as for `cov`.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]], ("variable", "time"))
        >>> nym.corrcoef(x, "variable", "time", other="with").array.round(3)
        Array([[ 1., -1.],
               [-1.,  1.]], dtype=float32)
    """
    return _matrix(_corrcoef, x, (variables, observations, other), ())


def _matrix(
    fn: Callable[..., Any], x: N, axes: tuple[Any, Any, Any], weights: tuple[N | None, ...], **options: Any
) -> N:
    check_named(x)
    variables, observations, other = axes[0], parse_selection(axes[1]), axes[2]
    given = [one for one in weights if one is not None]
    name = axis_name(variables)
    cores = [(variables, *observations), *(observations for _ in given)]
    if isinstance(other, Axis):
        x.resolve_axis(Axis(name, other.size))
    options["count"] = len(observations)
    return apply_gufunc(fn, [x, *given], cores, [(name, axis_name(other))], **options)[0]


def _cov(array: Any, *weights: Any, count: int, ddof: int, frequencies: bool) -> Any:
    array = _observed(array, count)
    array = array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(float)
    size: Any = array.shape[-1]
    if not weights:
        array = array - jnp.mean(array, axis=-1, keepdims=True)
        return _products(array, array) / jnp.maximum(size - ddof, 0)
    both = [jnp.expand_dims(_observed(one, count), -2) for one in weights]
    factor = both[0] * both[-1] if len(both) == 2 else both[0]
    size = jnp.sum(factor, axis=-1, keepdims=True)
    array = array - jnp.sum(array * factor, axis=-1, keepdims=True) / size
    only_frequencies = frequencies and len(both) == 1
    lost = ddof if only_frequencies else ddof * jnp.sum(factor * both[-1], axis=-1, keepdims=True) / size
    return _products(array * factor, array) / (size - lost)


def _corrcoef(array: Any, *, count: int) -> Any:
    matrix = _cov(array, count=count, ddof=1, frequencies=False)
    spread = jnp.sqrt(jnp.real(jnp.diagonal(matrix, axis1=-2, axis2=-1)))
    matrix = matrix / jnp.expand_dims(spread, -1) / jnp.expand_dims(spread, -2)
    if jnp.issubdtype(matrix.dtype, jnp.complexfloating):
        return jnp.clip(jnp.real(matrix), -1, 1) + 1j * jnp.clip(jnp.imag(matrix), -1, 1)
    return jnp.clip(matrix, -1, 1)


def _observed(array: Any, count: int) -> Any:
    """Returns the array with the axes of the observations as one, the last."""
    return array.reshape(*array.shape[: array.ndim - count], -1)


def _products(x: Any, y: Any) -> Any:
    return jnp.matmul(x, jnp.conj(jnp.swapaxes(y, -1, -2)))

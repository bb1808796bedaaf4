"""Covariance and correlation."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from .._axis import Axis, AxisSelection, AxisSelector, axis_name, parse_selection
from .._base import N, check_named
from .._gufunc import apply_gufunc


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
    options = {"ddof": ddof, "frequencies": fweights is not None}
    return _apply_over_observations(_compute_cov, x, (variables, observations, other), (fweights, aweights), **options)


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
    return _apply_over_observations(_compute_corrcoef, x, (variables, observations, other), ())


def _apply_over_observations(
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


def _compute_cov(array: Any, *weights: Any, count: int, ddof: int, frequencies: bool) -> Any:
    array = _merge_observations(array, count)
    array = array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(float)
    size: Any = array.shape[-1]
    if not weights:
        array = array - jnp.mean(array, axis=-1, keepdims=True)
        return _multiply_conjugate(array, array) / jnp.maximum(size - ddof, 0)
    both = [jnp.expand_dims(_merge_observations(one, count), -2) for one in weights]
    factor = both[0] * both[-1] if len(both) == 2 else both[0]
    size = jnp.sum(factor, axis=-1, keepdims=True)
    array = array - jnp.sum(array * factor, axis=-1, keepdims=True) / size
    only_frequencies = frequencies and len(both) == 1
    lost = ddof if only_frequencies else ddof * jnp.sum(factor * both[-1], axis=-1, keepdims=True) / size
    return _multiply_conjugate(array * factor, array) / (size - lost)


def _compute_corrcoef(array: Any, *, count: int) -> Any:
    matrix = _compute_cov(array, count=count, ddof=1, frequencies=False)
    spread = jnp.sqrt(jnp.real(jnp.diagonal(matrix, axis1=-2, axis2=-1)))
    matrix = matrix / jnp.expand_dims(spread, -1) / jnp.expand_dims(spread, -2)
    if jnp.issubdtype(matrix.dtype, jnp.complexfloating):
        return jnp.clip(jnp.real(matrix), -1, 1) + 1j * jnp.clip(jnp.imag(matrix), -1, 1)
    return jnp.clip(matrix, -1, 1)


def _merge_observations(array: Any, count: int) -> Any:
    """Returns the array with the axes of the observations merged into the last."""
    return array.reshape(*array.shape[: array.ndim - count], -1)


def _multiply_conjugate(x: Any, y: Any) -> Any:
    return jnp.matmul(x, jnp.conj(jnp.swapaxes(y, -1, -2)))

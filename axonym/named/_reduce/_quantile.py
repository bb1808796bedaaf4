"""Quantiles, percentiles and medians."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .._axis import AxesOrPositions, AxisSelector, intern_names, parse_selection
from .._base import A, NamedBase, with_array
from .._broadcasting import check_scalar
from .._gufunc import apply_gufunc
from ._apply_reduction import find_positions


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
        ValueError: If `x` lacks an axis, an `Axis` given has another size, or `q` shares a remaining axis of `x`.
        TypeError: If `q` is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> nym.quantile(nym.arange(nym.Axis("i", 5)), 0.25, "i").item()
        1.0
    """
    return _apply_quantile(jnp.quantile, x, q, axis, method)


def percentile(x: A, q: NamedBase | ArrayLike, axis: AxesOrPositions | None = None, *, method: str = "linear") -> A:
    """Computes percentiles of the elements along axes; see `jax.numpy.percentile`.

    Arguments as for `quantile`, with `q` from 0 to 100.

    Example:
        >>> import axonym as nym
        >>> nym.percentile(nym.arange(nym.Axis("i", 5)), 25, "i").item()
        1.0
    """
    return _apply_quantile(jnp.percentile, x, q, axis, method)


def nanquantile(x: A, q: NamedBase | ArrayLike, axis: AxesOrPositions | None = None, *, method: str = "linear") -> A:
    """Computes quantiles along axes, ignoring NaN; see `jax.numpy.nanquantile`.

    Arguments as for `quantile`.

    Example:
        >>> import axonym as nym
        >>> nym.nanquantile(nym.named([1.0, float("nan"), 4.0], "i"), 0.5, "i").item()
        2.5
    """
    return _apply_quantile(jnp.nanquantile, x, q, axis, method)


def nanpercentile(x: A, q: NamedBase | ArrayLike, axis: AxesOrPositions | None = None, *, method: str = "linear") -> A:
    """Computes percentiles along axes, ignoring NaN; see `jax.numpy.nanpercentile`.

    Arguments as for `percentile`.

    Example:
        >>> import axonym as nym
        >>> nym.nanpercentile(nym.named([1.0, float("nan"), 4.0], "i"), 50, "i").item()
        2.5
    """
    return _apply_quantile(jnp.nanpercentile, x, q, axis, method)


def median(x: A, axis: AxesOrPositions | None = None) -> A:
    """Computes the median along axes; see `jax.numpy.median`.

    Example:
        >>> import axonym as nym
        >>> nym.median(nym.named([3.0, 9.0, 4.0], "i"), "i").item()
        4.0
    """
    return _apply_median(jnp.median, x, axis)


def nanmedian(x: A, axis: AxesOrPositions | None = None) -> A:
    """Computes the median along axes, ignoring NaN; see `jax.numpy.nanmedian`.

    Example:
        >>> import axonym as nym
        >>> nym.nanmedian(nym.named([1.0, float("nan"), 4.0], "i"), "i").item()
        2.5
    """
    return _apply_median(jnp.nanmedian, x, axis)


def _apply_median(function: Callable[..., Any], x: Any, axis: AxesOrPositions | None) -> Any:
    if not isinstance(x, NamedBase):
        return function(x, axis=find_positions(x, axis))
    chosen = _select_axes(x, axis)
    return apply_gufunc(function, (x,), (chosen,), ((),), axis=tuple(range(-len(chosen), 0)))[0]


def _select_axes(x: NamedBase, axis: Any) -> tuple[AxisSelector, ...]:
    return x.names if axis is None else parse_selection(axis)


def _apply_quantile(function: Callable[..., Any], x: Any, q: Any, axis: AxesOrPositions | None, method: str) -> Any:
    if not isinstance(x, NamedBase):
        dims = find_positions(x, axis)
        if isinstance(q, NamedBase):
            raise TypeError(f"A plain array of shape {np.shape(x)} takes plain quantiles, not named ones.")
        return function(x, q, axis=dims, method=method)
    chosen = _select_axes(x, axis)
    ranks = with_array(x, q.array, q.names) if isinstance(q, NamedBase) else with_array(x, check_scalar(q), ())
    dims = tuple(range(-len(chosen), 0))
    options = {"function": function, "method": method, "axis": dims, "ranks": len(ranks.names)}
    (result,) = apply_gufunc(_compute_quantile, (x, ranks), (chosen, ranks.names), (ranks.names,), **options)
    start = len(result.names) - len(ranks.names)
    if not start or not ranks.names:
        return result
    array = jnp.moveaxis(result.array, range(start, len(result.names)), range(len(ranks.names)))
    return with_array(x, array, intern_names(ranks.names + result.names[:start]))


def _compute_quantile(array: Any, q: Any, *, function: Callable[..., Any], ranks: int, **options: Any) -> Any:
    """Computes quantiles for a scalar or a flat array of them, and puts the axes of `q` at the end."""
    shape = q.shape[q.ndim - ranks :]
    result = function(array, q.reshape(-1 if ranks else ()), **options)
    return jnp.moveaxis(result, 0, -1).reshape(*result.shape[1:], *shape) if ranks else result

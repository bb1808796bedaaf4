"""Reductions by position with a mask, for which `jax.numpy` needs an initial value or gives gradients of NaN."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._wide_sums import compute_wide


def masked_var(array: Any, axis: tuple[int, ...], where: Any, ddof: int = 0, dtype: Any = None) -> Any:
    """Returns the variance of the elements where the mask is True.

    `jax.numpy.var` subtracts the mean from masked-out elements as well, so an infinite one makes all gradients NaN.
    """
    has_elements, variance = _compute_masked_var(array, axis, where, ddof, dtype)
    return jnp.where(has_elements, variance, jnp.nan)


@compute_wide  # the variance may be too large for float16 where its square root is not
def masked_std(array: Any, axis: tuple[int, ...], where: Any, ddof: int = 0, dtype: Any = None) -> Any:
    """Returns the standard deviation of the elements where the mask is True; see `masked_var`."""
    has_elements, variance = _compute_masked_var(array, axis, where, ddof, dtype)
    # The gradient of the square root of 0 is infinite, and the outer `where` would make it NaN.
    return jnp.where(has_elements, jnp.sqrt(jnp.where(has_elements, variance, 1)), jnp.nan)


def _compute_masked_var(array: Any, axis: tuple[int, ...], where: Any, ddof: int, dtype: Any) -> tuple[Any, Any]:
    """Returns which slices have unmasked elements, and the variance of each, 0 without any."""
    mask = where if jnp.ndim(where) else jnp.reshape(where, (1,) * array.ndim)
    has_elements = jnp.any(mask, axis=axis, keepdims=True)
    # A slice without unmasked elements counts in full, as zeros, so that there is no division by zero.
    counted = mask | ~has_elements
    variance = jnp.var(
        jnp.where(mask, array, jnp.zeros((), array.dtype)), axis=axis, where=counted, ddof=ddof, dtype=dtype
    )
    return jnp.squeeze(has_elements, axis), variance


def masked_nanvar(array: Any, axis: tuple[int, ...], where: Any = True, ddof: int = 0, dtype: Any = None) -> Any:
    return masked_var(array, axis, ~jnp.isnan(array) & where, ddof, dtype)


def masked_nanstd(array: Any, axis: tuple[int, ...], where: Any = True, ddof: int = 0, dtype: Any = None) -> Any:
    return masked_std(array, axis, ~jnp.isnan(array) & where, ddof, dtype)


def compute_count_nonzero(array: Any, axis: tuple[int, ...], where: Any = None) -> Any:
    return jnp.sum(jnp.asarray(array, bool), axis=axis, where=where, dtype=int)


def compute_ptp(array: Any, axis: tuple[int, ...], where: Any = None) -> Any:
    # Extrema with a mask need an initial value, which is the result where the mask is False everywhere.
    low, high = (None, None) if where is None else (get_lowest(array.dtype), get_highest(array.dtype))
    return jnp.max(array, axis=axis, where=where, initial=low) - jnp.min(array, axis=axis, where=where, initial=high)


def get_lowest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return -jnp.inf
    return False if jnp.issubdtype(dtype, jnp.bool_) else np.asarray(jnp.iinfo(dtype).min, dtype)


def get_highest(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf
    return True if jnp.issubdtype(dtype, jnp.bool_) else np.asarray(jnp.iinfo(dtype).max, dtype)


def _reduce_masked(
    fn: Callable[..., Any],
    get_default: Callable[[Any], Any],
    array: Any,
    axis: tuple[int, ...],
    where: Any,
    initial: Any = None,
) -> Any:
    """Reduces elements where a mask is True, to a default by element type if there are none."""
    return fn(array, axis=axis, where=where, initial=get_default(array.dtype) if initial is None else initial)


masked_max = functools.partial(_reduce_masked, jnp.max, get_lowest)
masked_min = functools.partial(_reduce_masked, jnp.min, get_highest)
masked_nanmax = functools.partial(_reduce_masked, jnp.nanmax, get_lowest)
masked_nanmin = functools.partial(_reduce_masked, jnp.nanmin, get_highest)

"""Positional reductions with masks that JAX lacks: variances whose gradients ignore masked elements, and ranges.

And products, whose gradients JAX cannot shard over Explicit mesh axes.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._ambient import leave_to_compiler


def masked_var(array: Any, axis: tuple[int, ...], where: Any, ddof: int = 0, dtype: Any = None) -> Any:
    """Returns the variance of the elements where the mask is True.

    `jax.numpy.var` subtracts the mean from masked-out elements as well, so an infinite one makes all gradients NaN.
    """
    some, result = _compute_masked_var(array, axis, where, ddof, dtype)
    return jnp.where(some, result, jnp.nan)


def masked_std(array: Any, axis: tuple[int, ...], where: Any, ddof: int = 0, dtype: Any = None) -> Any:
    """Returns the standard deviation of the elements where the mask is True; see `masked_var`."""
    some, result = _compute_masked_var(array, axis, where, ddof, dtype)
    return jnp.where(some, jnp.sqrt(jnp.where(some, result, 1)), jnp.nan)


def _compute_masked_var(array: Any, axis: tuple[int, ...], where: Any, ddof: int, dtype: Any) -> tuple[Any, Any]:
    """Returns which slices have unmasked elements, and the variances, 0 for the others."""
    mask = where if jnp.ndim(where) else jnp.reshape(where, (1,) * array.ndim)
    some = jnp.any(mask, axis=axis, keepdims=True)
    result = jnp.var(jnp.where(mask, array, 0), axis=axis, where=mask | ~some, ddof=ddof, dtype=dtype)
    return jnp.squeeze(some, axis), result


def masked_nanvar(array: Any, axis: tuple[int, ...], where: Any = True, ddof: int = 0, dtype: Any = None) -> Any:
    return masked_var(array, axis, ~jnp.isnan(array) & where, ddof, dtype)


def masked_nanstd(array: Any, axis: tuple[int, ...], where: Any = True, ddof: int = 0, dtype: Any = None) -> Any:
    return masked_std(array, axis, ~jnp.isnan(array) & where, ddof, dtype)


def compute_count_nonzero(array: Any, axis: tuple[int, ...], where: Any = None) -> Any:
    return jnp.sum(array != 0, axis=axis, where=where, dtype=int)


def compute_prod(array: Any, axis: tuple[int, ...], where: Any = None, dtype: Any = None) -> Any:
    return _reduce_by_compiler(jnp.prod, array, axis, where, dtype)


def compute_nanprod(array: Any, axis: tuple[int, ...], where: Any = None, dtype: Any = None) -> Any:
    return _reduce_by_compiler(jnp.nanprod, array, axis, where, dtype)


def _reduce_by_compiler(fn: Callable[..., Any], array: Any, axis: tuple[int, ...], where: Any, dtype: Any) -> Any:
    if where is None:
        return leave_to_compiler(functools.partial(fn, axis=axis, dtype=dtype), axis, array)
    return leave_to_compiler(lambda array, where: fn(array, axis=axis, dtype=dtype, where=where), axis, array, where)


def compute_ptp(array: Any, axis: tuple[int, ...], where: Any = None) -> Any:
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

"""Checks of NumPy arrays before JAX takes them: masks, dtypes that JAX lacks, and integers that do not fit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.ma import MaskedArray

from ._cache import cached_plan


MASK_PROBLEM = (
    "is a masked array of NumPy, and other arrays have no mask; fill it with `x.filled(value)`, and pass the mask, "
    "`numpy.ma.getmaskarray(x)`, as an array of its own"
)


def find_array_problem(array: np.ndarray | np.generic, dtype: Any = None) -> str | None:
    """Returns why an array of NumPy cannot become one of JAX, or None.

    Args:
        array: The array.
        dtype: The dtype that the array gets. If None, the one that JAX gives it, with 32 bits in place of 64 unless
            `jax_enable_x64` is set.
    """
    if isinstance(array, MaskedArray):
        return MASK_PROBLEM
    if not (is_jax_dtype(array.dtype) and array.dtype.isnative):
        return f"has dtype {array.dtype}, which JAX lacks; convert it with `astype` first"
    return find_range_problem(array, jax.dtypes.canonicalize_dtype(array.dtype) if dtype is None else dtype)


def find_range_problem(array: np.ndarray | np.generic, dtype: Any) -> str | None:
    """Returns why the elements of an array do not fit a dtype of integers, or None; floats may be rounded."""
    is_unchanged = dtype == array.dtype or not array.size
    if is_unchanged or array.dtype.kind in "bc" or not jnp.issubdtype(dtype, jnp.integer):
        return None
    limits, minimum, maximum = jnp.iinfo(dtype), array.min().item(), array.max().item()
    if limits.min <= minimum and maximum <= limits.max:
        return None
    has_fewer_bits = jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype
    option = f", or set `jax_enable_x64`, without which JAX has no {array.dtype}" if has_fewer_bits else ""
    return (
        f"has {array.dtype} elements from {minimum} to {maximum}, which do not fit {dtype}; convert them first{option}"
    )


@cached_plan
def is_jax_dtype(dtype: np.dtype[Any]) -> bool:
    """Returns whether JAX has arrays of a NumPy dtype: of numbers, including those of `ml_dtypes`."""
    if dtype.kind == "V":  # of `ml_dtypes`, unless it is a record
        return not issubclass(dtype.type, np.void)
    return (dtype.kind in "biuf" and dtype.itemsize <= 8) or (dtype.kind == "c" and dtype.itemsize <= 16)

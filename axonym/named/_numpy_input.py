"""Checks of NumPy arrays before JAX takes them, and of values that are put into arrays of another dtype."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.ma import MaskedArray

from .._ground.caches import cached_plan
from .._ground.errors import make_error
from .._ground.formats import format_value


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
    if array.dtype.kind in "mM":
        example = "days = (times - times[0]) / np.timedelta64(1, 'D')"
        return f"has dtype {array.dtype}, and JAX has no times; convert them to numbers first, such as `{example}`"
    if not (is_jax_dtype(array.dtype) and array.dtype.isnative):
        return f"has dtype {array.dtype}, which JAX lacks; convert it with `astype` first"
    return find_range_problem(array, jax.dtypes.canonicalize_dtype(array.dtype) if dtype is None else dtype)


def find_range_problem(array: np.ndarray | np.generic, dtype: Any) -> str | None:
    """Returns why the numbers of an array do not fit a dtype, or None; floats may be rounded, but not to infinity."""
    if dtype == array.dtype or not array.size or array.dtype.kind == "b" or not is_jax_dtype(array.dtype):
        return None
    limits = get_integer_limits(dtype)
    if limits is not None and array.dtype.kind != "c":
        minimum, maximum = array.min().item(), array.max().item()
        fits = limits.min <= minimum and maximum <= limits.max
    elif jnp.issubdtype(dtype, jnp.inexact) and _get_largest(dtype) < _get_largest(array.dtype):
        minimum, maximum = _find_finite_extremes(np.asarray(array))
        with np.errstate(over="ignore"):
            fits = np.isfinite(np.array([minimum, maximum]).astype(dtype)).all()
    else:
        return None
    if fits:
        return None
    has_fewer_bits = jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype
    option = f", or set `jax_enable_x64`, without which JAX has no {array.dtype}" if has_fewer_bits else ""
    return (
        f"has {array.dtype} elements from {minimum} to {maximum}, which do not fit {dtype}; convert them first{option}"
    )


@cached_plan
def get_integer_limits(dtype: Any) -> jnp.iinfo | None:
    """Returns the limits of a dtype of integers, None for any other dtype."""
    return jnp.iinfo(dtype) if jnp.issubdtype(dtype, jnp.integer) else None


@cached_plan
def _get_largest(dtype: Any) -> Any:
    """Returns the largest finite number of a dtype."""
    limits = get_integer_limits(dtype)
    return float(jnp.finfo(dtype).max) if limits is None else limits.max


def _find_finite_extremes(array: np.ndarray) -> tuple[float, float]:
    """Returns the smallest and the largest finite number in an array, zeros if it has none."""
    if array.dtype.kind == "c":
        array = np.stack([np.real(array), np.imag(array)])
    elif array.dtype.kind == "V":  # of `ml_dtypes`, whose reductions are slow
        array = array.astype(np.float32)
    minimum, maximum = np.fmin.reduce(array, axis=None), np.fmax.reduce(array, axis=None)  # they skip NaN
    if not np.isfinite([minimum, maximum]).all():
        array = array[np.isfinite(array)]  # which takes five times as long
        minimum, maximum = array.min(initial=0), array.max(initial=0)
    return minimum.item(), maximum.item()


def check_values(value: Any, dtype: Any) -> None:
    """Checks that elements of a dtype can take a scalar or a plain array, of which no fractions may be lost.

    Raises:
        TypeError: If the value is a float and the elements are integers, or it is complex and they are not.
        ValueError: If the value is a known integer beyond the limits of the dtype.
    """
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, int | np.integer):
        limits = get_integer_limits(dtype)
        if limits is not None and not limits.min <= value <= limits.max:
            raise make_error(
                ValueError,
                f"elements of {dtype} are from {limits.min} to {limits.max} and cannot take {value}; convert the array "
                "with `astype`",
            )
        return
    value_dtype = jnp.result_type(value)
    if _loses_parts(value_dtype, dtype):
        raise make_error(
            TypeError, f"Elements of {dtype} cannot take values of {value_dtype}; convert either with `astype`."
        )


def parse_fill_positions(fill_value: Any) -> Any:
    """Returns the position that fills up positions, or a tuple of one for each axis, after checking each."""
    has_several = isinstance(fill_value, Sequence)
    positions = tuple(fill_value) if has_several else (fill_value,)
    for position in positions:
        if not isinstance(position, int | float | complex | np.number | np.ndarray | jax.Array) or np.ndim(position):
            raise make_error(
                TypeError,
                f"`fill_value` is a position, or a tuple of one for each axis, not {format_value(fill_value)}.",
            )
        check_values(position, jnp.result_type(int))
    return positions if has_several else fill_value


@cached_plan
def _loses_parts(value_dtype: Any, dtype: Any) -> bool:
    """Returns whether values of one dtype lose their fractions or imaginary parts as elements of another."""
    kinds = (jnp.inexact, jnp.complexfloating)
    return any(jnp.issubdtype(value_dtype, kind) and not jnp.issubdtype(dtype, kind) for kind in kinds)


@cached_plan
def is_jax_dtype(dtype: np.dtype[Any]) -> bool:
    """Returns whether JAX has arrays of a NumPy dtype: of numbers, including those of `ml_dtypes`."""
    if dtype.kind == "V":  # of `ml_dtypes`, unless it is a record
        return not issubclass(dtype.type, np.void)
    return (dtype.kind in "biuf" and dtype.itemsize <= 8) or (dtype.kind == "c" and dtype.itemsize <= 16)

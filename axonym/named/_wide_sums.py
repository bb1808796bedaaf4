"""Sums of 16-bit floats that are kept in float32.

A sum in bfloat16 stops growing at 256 times its terms, and one in float16 at 2,048 times. XLA keeps what it reduces and
multiplies in float32, but neither what it scatters nor what a loop carries.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def is_narrow_float(dtype: Any) -> bool:
    """Returns whether a dtype is of floats of fewer bits than float32."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def widen_float_dtype(dtype: Any) -> Any:
    """Returns float32 for floats of fewer bits, and any other dtype as it is."""
    return jnp.dtype(jnp.float32) if is_narrow_float(dtype) else dtype


def widen_float(array: Any) -> Any:
    """Returns an array in float32 if it is of floats of fewer bits."""
    return array.astype(jnp.float32) if is_narrow_float(array.dtype) else array


def compute_wide(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function of an array compute in float32 if the array is of floats of fewer bits, and round the result."""

    @functools.wraps(fn)
    def call(array: Any, *args: Any, **kwargs: Any) -> Any:
        array = jnp.asarray(array)
        result = fn(widen_float(array), *args, **kwargs)
        keeps_dtype = is_narrow_float(array.dtype) and kwargs.get("dtype") is None
        return result.astype(array.dtype) if keeps_dtype else result

    return call


def widen_gradient(fn: Callable[..., Any], array: Any, *arrays: Any) -> Any:
    """Returns what a function that moves the elements of an array returns; gradients of the array add up in float32."""
    if not is_narrow_float(array.dtype):
        return fn(array, *arrays)
    return differentiate_as(fn(jax.lax.stop_gradient(array), *arrays), fn(widen_float(array), *arrays))


@jax.custom_jvp
def differentiate_as(value: Any, wide_value: Any) -> Any:
    """Returns a value with the derivatives of the same value in another dtype.

    What is computed of `wide_value` alone is not part of a program that takes no gradient of it.
    """
    return value


@differentiate_as.defjvp
def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return primals[0], tangents[1].astype(primals[0].dtype)

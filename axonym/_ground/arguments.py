"""Checks of arguments that are numbers, choices, functions or dtypes; each error has the name, the value and what fits.

They are for arguments that are known when a function is traced, such as the options of layers.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import make_error
from .formats import format_value
from .jax_compat import is_traced


def as_python_integer(value: Any) -> int | None:
    """Returns an integer as a Python number, None for any other value; a boolean is no integer here."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_number(
    argument: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> float:
    """Returns a finite real number as a Python number, after checking its range.

    Args:
        argument: How errors name the argument, such as "LayerNorm: `eps`".
        value: A Python or NumPy number, or a JAX scalar that is not traced.
        least: The lower limit, itself allowed.
        above: The lower limit, itself not allowed.
        most: The upper limit, itself allowed.
        below: The upper limit, itself not allowed.

    Raises:
        TypeError: If the value is not a real number, or is traced.
        ValueError: If it is out of range, infinite or NaN.
    """
    if is_traced(value):
        raise TypeError(f"{argument} must be a number that is known when the function is traced, not a traced array.")
    is_scalar = isinstance(value, np.generic | np.ndarray | jax.Array) and not value.ndim
    number = value.item() if is_scalar and jnp.issubdtype(value.dtype, np.number) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"{argument} must be a number, not {format_value(value)}.")
    if not (least <= number <= most and above < number < below):
        limits = (("at least", least), ("above", above), ("at most", most), ("below", below))
        range_text = " and ".join(f"{word} {limit}" for word, limit in limits if math.isfinite(limit))
        raise ValueError(f"{argument} must be {range_text or 'finite'}, not {number}")
    return number


def check_integer(argument: str, value: Any, least: int | None = None) -> int:
    """Returns an integer as a Python number, after checking that it is at least `least`.

    Raises:
        TypeError: If the value is not an integer, or is traced.
        ValueError: If it is too small.
    """
    integer = value
    if type(value) is not int:
        if is_traced(value):
            raise TypeError(
                f"{argument} must be an integer that is known when the function is traced, not a traced array."
            )
        integer = as_python_integer(value)
        if integer is None:
            raise TypeError(f"{argument} must be an integer, not {format_value(value)}.")
    if least is not None and integer < least:
        raise ValueError(f"{argument} must be at least {least}, not {integer}")
    return integer


def check_choice(argument: str, value: Any, choices: Sequence[str]) -> None:
    """Raises a ValueError if a value is not one of the choices."""
    if not isinstance(value, str) or value not in choices:
        *first_choices, last_choice = map(repr, choices)
        raise ValueError(f"{argument} must be {', '.join(first_choices)} or {last_choice}, not {format_value(value)}")


def check_flag(argument: str, value: Any) -> None:
    """Raises a TypeError if a value is not a boolean; a number or a word is easily passed in place of one."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{argument} must be True or False, not {format_value(value)}.")


def check_function(argument: str, fn: Any, example: str) -> None:
    """Raises a TypeError if a value is not a function; configurations often give the name of one."""
    if not callable(fn):
        raise TypeError(f"{argument} must be a function such as `{example}`, not {format_value(fn)}.")


def check_dtype(dtype: Any, argument: str = "`dtype`") -> None:
    """Raises a TypeError if a value is not an element type; None stands for a default."""
    if dtype is None:
        return
    try:
        jnp.dtype(dtype)
    except (TypeError, ValueError):
        raise TypeError(
            f"{argument} must be an element type such as `jnp.float32` or 'bfloat16', not {format_value(dtype)}."
        ) from None


def check_callable(function: str, fn: Any) -> None:
    """Raises a TypeError if the first argument of a transformation is not a function."""
    if not callable(fn):
        raise make_error(TypeError, f"`{function}` takes a function first, not {format_value(fn)}.")

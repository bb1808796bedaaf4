"""Arrays in the memory of the host, which other libraries hold: what they can and cannot become."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..named._array import NamedArray
from ..named._axis import AxisSelector
from ..named._base import check_named, format_shape, is_traced


def read_host_array(x: NamedArray) -> np.ndarray:
    """Returns the elements of a named array in NumPy.

    Raises:
        TypeError: If it is not a named array, or is a shape.
        ValueError: If this process does not have all elements.
    """
    check_named(x)
    if isinstance(x.array, jax.ShapeDtypeStruct):
        raise TypeError(f"{format_shape(x)} is a shape without data.")
    whole = not isinstance(x.array, jax.Array) or is_traced(x.array) or x.array.is_fully_addressable
    if not (whole or x.array.is_fully_replicated):
        raise ValueError(
            f"process {jax.process_index()} has only a part of {format_shape(x)}, which is sharded over several "
            "processes; `axonym.global_to_host_local` returns that part"
        )
    return np.asarray(x.array)


def make_named_array(values: Any, axes: AxisSelector | Sequence[AxisSelector], what: str) -> NamedArray:
    """Returns a named array of the elements of an array of another library.

    Raises:
        TypeError: If the elements are not numbers.
        ValueError: If integers do not fit the element type that JAX has for them.
    """
    if isinstance(values, jax.Array):
        return NamedArray(values, axes)
    values = np.asarray(values)
    kept = jax.dtypes.canonicalize_dtype(values.dtype) if values.dtype.kind in "biufcV" else None
    if kept is None or (values.dtype.kind == "V" and issubclass(values.dtype.type, np.void)):
        raise TypeError(
            f"{what} has elements of type {values.dtype}, and JAX has only numbers; convert them first, such as times "
            "by `.astype('int64')` and categories to their codes"
        )
    if kept != values.dtype and kept.kind in "iu" and values.size:
        info = jnp.iinfo(kept)
        if values.min() < info.min or values.max() > info.max:
            raise ValueError(
                f"{what} has {values.dtype} elements that do not fit {kept}, which JAX makes of them; convert them "
                "first, or `jax.config.update('jax_enable_x64', True)`"
            )
    return NamedArray(jnp.asarray(values), axes)


def check_coordinates(x: NamedArray, coords: Mapping[str, Any] | None) -> dict[str, Sequence[Any]]:
    """Returns the coordinates of each axis that has some; raises a ValueError if the lengths do not fit."""
    for name, values in (coords or {}).items():
        if name not in x.names:
            raise ValueError(f"`coords` has axis {name!r}, which {format_shape(x)} does not have")
        if len(values) != x.axis_size(name):
            raise ValueError(f"`coords` has {len(values)} values for axis {name!r}, whose size is {x.axis_size(name)}")
    return dict(coords or {})


def import_library(name: str) -> Any:
    """Imports an optional library; raises an ImportError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(f"this needs {name}; install `axonym[interop]`, or {name}") from error

"""Named arrays to and from the labelled arrays of xarray and pandas, which are imported when they are needed."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from .._ground.jax_compat import is_traced
from ..named._array import NamedArray
from ..named._axis import AxisSelector
from ..named._base import check_named, format_shape
from ..named._creation import named


def read_host_array(x: NamedArray) -> np.ndarray:
    """Returns the elements of a named array in NumPy.

    Raises:
        TypeError: If it is not a named array, or is a shape.
        ValueError: If this process does not have all elements.
    """
    check_named(x)
    if isinstance(x.array, jax.ShapeDtypeStruct):
        raise TypeError(f"{format_shape(x)} is a shape without data.")
    is_on_one_process = not isinstance(x.array, jax.Array) or is_traced(x.array) or x.array.is_fully_addressable
    if not (is_on_one_process or x.array.is_fully_replicated):
        raise ValueError(
            f"process {jax.process_index()} has only a part of {format_shape(x)}, which is sharded over several "
            "processes; `axonym.global_to_host_local` returns that part"
        )
    return np.asarray(x.array)


def check_coordinates(x: NamedArray, coords: Mapping[str, Any] | None) -> dict[str, Sequence[Any]]:
    """Returns the coordinates of each axis that has some; raises a ValueError if the lengths do not fit."""
    coords = dict(coords or {})
    for name, values in coords.items():
        if name not in x.names:
            raise ValueError(f"`coords` has axis {name!r}, which {format_shape(x)} does not have")
        if len(values) != x.axis_size(name):
            raise ValueError(f"`coords` has {len(values)} values for axis {name!r}, whose size is {x.axis_size(name)}")
    return coords


def import_library(name: str) -> Any:
    """Imports an optional library; raises an ImportError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(f"this needs {name}; install `axonym[interop]`, or {name}") from error


def to_pandas(x: NamedArray, coords: Mapping[str, Any] | None = None) -> Any:
    """Makes a `Series` of a named array with one axis, and a `DataFrame` of one with two.

    The first axis is the index and the second one the columns; both have the names of the axes.

    Args:
        x: Array, sharded or not; its elements are copied to the host. Elements of types that pandas lacks, such as
            bfloat16, become float32.
        coords: The labels of an axis by its name; 0, 1, ... for an axis without.

    Returns:
        The `Series` or `DataFrame`.

    Raises:
        ImportError: If pandas is not installed.
        TypeError: If `x` is not a named array, or is a shape without data.
        ValueError: If `x` has no axes or more than two, labels are given for an axis that it does not have, or in
            another number than its size; or if this process has only a part of the array.

    Example:
        >>> import axonym as nym
        >>> table = nym.interop.to_pandas(nym.ones({"step": 2, "head": 3}), {"head": ["a", "b", "c"]})
        >>> table["b"].tolist(), table.index.name, table.columns.name
        ([1.0, 1.0], 'step', 'head')
    """
    values = read_host_array(x)
    pandas = import_library("pandas")
    if len(x.names) not in (1, 2):
        remedy = "index or flatten axes first, or use `to_xarray(x).to_series()`" if x.names else "use `x.item()`"
        raise ValueError(f"`to_pandas` takes an array with one axis or two, not {format_shape(x)}; {remedy}")
    labels = check_coordinates(x, coords)
    # Types of other packages, such as bfloat16 of `ml_dtypes`, are not built in.
    values = values if values.dtype.isbuiltin == 1 else values.astype(np.float32)
    indices = [pandas.Index(labels.get(axis.name, range(axis.size)), name=axis.name) for axis in x.axes]
    return (pandas.Series if len(indices) == 1 else pandas.DataFrame)(values, *indices)


def from_pandas(x: Any, axes: AxisSelector | Sequence[AxisSelector] | None = None) -> NamedArray:
    """Makes a named array of a `Series`, with one axis, or of a `DataFrame`, with two.

    Labels are left behind. As everywhere in JAX, 64-bit elements become 32-bit ones unless `jax_enable_x64` is set.

    Args:
        x: The `Series` or `DataFrame`, whose columns all have numbers.
        axes: The name or `Axis` of the index and, for a `DataFrame`, that of the columns; the names that pandas has if
            None.

    Returns:
        Array with those names, on the default device; `axonym.shard` distributes it.

    Raises:
        TypeError: If `x` is neither, or its elements are not numbers.
        ValueError: If the index or the columns have no name and `axes` is None, or have several levels; if the number
            of names is wrong, or the index has the name of the columns; if an `Axis` has another size; or if numbers do
            not fit 32 bits.

    Example:
        >>> import axonym as nym
        >>> import pandas as pd
        >>> nym.interop.from_pandas(pd.DataFrame({"a": [1, 2], "b": [3, 4]}), ("step", "head"))
        NamedArray(int32, step: 2, head: 2,
          [[1, 3],
           [2, 4]])
    """
    if not hasattr(x, "index") or not hasattr(x, "to_numpy"):
        raise TypeError(f"`from_pandas` takes a `Series` or a `DataFrame`, not a `{type(x).__name__}`.")
    kind = type(x).__name__
    indices = (x.index, x.columns) if x.ndim == 2 else (x.index,)
    for kind_of_index, index in zip(("index", "columns"), indices, strict=False):
        if index.nlevels > 1:
            raise ValueError(
                f"the {kind_of_index} of the `{kind}` has {index.nlevels} levels, and an axis has one; use "
                "`from_xarray(x.to_xarray())`"
            )
    if axes is None:
        names = tuple(index.name for index in indices)
        if not all(isinstance(name, str) for name in names):
            example = "('step', 'head')" if x.ndim == 2 else "'step'"
            raise ValueError(
                f"the index or the columns of the `{kind}` have no name; pass `axes`, as in `axes={example}`"
            )
        axes = names
    return named(x, axes)


def to_xarray(
    x: NamedArray, coords: Mapping[str, Any] | None = None, name: str | None = None, attrs: Any = None
) -> Any:  # fmt: skip
    """Makes an `xarray.DataArray` of a named array; axes become dimensions of the same names.

    Args:
        x: Array, sharded or not; its elements are copied to the host.
        coords: The coordinates, as `xarray.DataArray` takes them: labels or times by the name of their axis, others
            with the names of theirs or none; not all axes need some. Or `da.coords` of another array, of which those
            along dimensions that `x` lacks are left out, as in reductions of xarray.
        name: The name of the result.
        attrs: Its attributes, a mapping.

    Returns:
        The `DataArray`, with a NumPy array in it.

    Raises:
        ImportError: If xarray is not installed.
        TypeError: If `x` is not a named array, or is a shape without data.
        ValueError: If coordinates of a mapping have an axis that `x` lacks, or any have another size; or if this
            process has only a part of the array.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"time": 2, "lat": 3})
        >>> nym.interop.to_xarray(x, {"lat": [10, 20, 30]}).sel(lat=20).dims
        ('time',)
    """
    values = read_host_array(x)
    xarray = import_library("xarray")
    coordinates: Any = coords
    if isinstance(coordinates, xarray.Coordinates):
        dataset = coordinates.to_dataset()
        coordinates = dataset.drop_dims(set(dataset.dims) - set(x.names)).coords
    try:
        return xarray.DataArray(values, coordinates, x.names, name, attrs)
    except ValueError as error:
        raise ValueError(f"`coords` does not fit {format_shape(x)}: {error}") from None


def from_xarray(x: Any) -> NamedArray:
    """Makes a named array of an `xarray.DataArray`; dimensions become axes of the same names.

    Coordinates, attributes and the name are left behind. As everywhere in JAX, 64-bit elements become 32-bit ones
    unless `jax_enable_x64` is set. For a `Dataset`, call it for each variable:
    `{name: from_xarray(x) for name, x in dataset.items()}`.

    Args:
        x: The `DataArray`.

    Returns:
        Array with the names of the dimensions, on the default device; `axonym.shard` distributes it.

    Raises:
        TypeError: If `x` is not a `DataArray`, a dimension is not named by a string, or the elements are not numbers.
        ValueError: If numbers do not fit 32 bits.

    Example:
        >>> import axonym as nym
        >>> import xarray as xr
        >>> nym.interop.from_xarray(xr.DataArray([[1, 2, 3]], dims=("time", "lat")))
        NamedArray(int32, time: 1, lat: 3, [[1, 2, 3]])
    """
    if not hasattr(x, "dims") or not hasattr(x, "values") or callable(x.values):
        remedy = "; call it for each variable" if hasattr(x, "data_vars") else ""
        raise TypeError(f"`from_xarray` takes a `DataArray`, not a `{type(x).__name__}`{remedy}.")
    for dim in x.dims:
        if not isinstance(dim, str):
            raise TypeError(
                f"`from_xarray` needs dimensions with names, not {dim!r}; use `x.rename({{{dim!r}: 'time'}})`."
            )
    return named(x.data if isinstance(x.data, jax.Array) else x, tuple(x.dims))

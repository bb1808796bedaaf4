"""`to_xarray` and `from_xarray`."""

from collections.abc import Mapping
from typing import Any

import jax

from ..named._array import NamedArray
from ._host_array import check_coordinates, import_library, make_named_array, read_host_array


def to_xarray(
    x: NamedArray, coords: Mapping[str, Any] | None = None, name: str | None = None, attrs: Any = None
) -> Any:  # fmt: skip
    """Makes an `xarray.DataArray` of a named array; axes become dimensions of the same names.

    Args:
        x: Array, sharded or not; its elements are copied to the host.
        coords: The coordinates of axes, such as labels or times, by name; not all axes need some.
        name: The name of the result.
        attrs: Its attributes, a mapping.

    Returns:
        The `DataArray`, with a NumPy array in it.

    Raises:
        ImportError: If xarray is not installed.
        TypeError: If `x` is not a named array, or is a shape without data.
        ValueError: If coordinates are given for an axis that `x` does not have, or in another number than its size; or
            if this process has only a part of the array.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"time": 2, "lat": 3})
        >>> nym.interop.to_xarray(x, {"lat": [10, 20, 30]}).sel(lat=20).dims
        ('time',)
    """
    values = read_host_array(x)
    xarray = import_library("xarray")
    return xarray.DataArray(values, check_coordinates(x, coords), x.names, name, attrs)


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
        ValueError: If integers do not fit 32 bits.

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
    return make_named_array(x.data if isinstance(x.data, jax.Array) else x.values, tuple(x.dims), "the `DataArray`")

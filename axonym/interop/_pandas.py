"""`to_pandas` and `from_pandas`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..named._array import NamedArray
from ..named._axis import AxisSelector
from ..named._base import format_shape
from ._host_array import check_coordinates, import_library, make_named_array, read_host_array


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
    values = values if values.dtype.isbuiltin == 1 else values.astype(np.float32)
    indices = [
        pandas.Index(labels[axis.name], name=axis.name)
        if axis.name in labels
        else pandas.RangeIndex(axis.size, name=axis.name)
        for axis in x.axes
    ]
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
            of names is wrong, or an `Axis` has another size; or if integers do not fit 32 bits.

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
    kind, indices = type(x).__name__, (x.index, x.columns) if x.ndim == 2 else (x.index,)
    for what, index in zip(("index", "columns"), indices, strict=False):
        if index.nlevels > 1:
            raise ValueError(
                f"the {what} of the `{kind}` has {index.nlevels} levels, and an axis has one; use "
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
    return make_named_array(x.to_numpy(), axes, f"the `{kind}`")

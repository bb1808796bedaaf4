"""`ArrayProtocols`: the protocols by which other libraries use a named array."""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .._ground.errors import make_error
from . import _repr
from ._base import NamedBase, format_shape
from ._foreign_names import make_foreign_function_error


# NumPy computes `scalar * x` by `numpy.multiply(scalar, x)`, so a direct call of that ufunc is accepted as well.
_REFLECTED_OPERATORS = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "divmod": "__rdivmod__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "left_shift": "__rlshift__",
    "right_shift": "__rrshift__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "equal": "__eq__",
    "not_equal": "__ne__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
}


class ArrayProtocols(NamedBase):
    """Base class with the methods by which other programs show and read a named array."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Formats element type, axes, spec and values, with NumPy's format of values and its `set_printoptions`."""
        return _repr.format_array(self)

    def _repr_html_(self) -> str:
        """Formats the same as a table and the values, for notebooks."""
        return _repr.format_array_html(self)

    def __pdoc__(self, *, short_arrays: bool = True, **options: Any) -> Any:
        """Formats the array without values for Equinox, as in `f32[mlp: 16, embed: 8]`, unless asked for them."""
        return _repr.format_array_short(self) if short_arrays else None

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        """Renders the array in treescope."""
        # Imported here, because treescope is optional.
        return importlib.import_module("axonym.named._treescope").render_array(self, path)

    def __treescope_ndarray_adapter__(self) -> Any:
        """Returns the adapter with which treescope draws named arrays."""
        return importlib.import_module("axonym.named._treescope").NamedArrayAdapter()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns the elements as a NumPy array."""
        return np.array(self.array, dtype=dtype, copy=copy)

    def to_numpy(self) -> np.ndarray:
        """Returns the elements as a NumPy array, as `np.asarray(x)` does; Matplotlib and pandas ask for it."""
        return np.asarray(self.array)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Computes operators by name if the first operand is an array of NumPy; refuses NumPy's ufuncs."""
        reflected = _REFLECTED_OPERATORS.get(ufunc.__name__)
        if reflected and method == "__call__" and isinstance(inputs[0], np.ndarray | np.generic):
            return getattr(self, reflected)(inputs[0])
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise make_foreign_function_error("NumPy", [name], format_shape(self))

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        """Applies a function of NumPy, such as `np.mean`, to the elements as a NumPy array."""
        args, kwargs = jax.tree.map(
            lambda leaf: np.asarray(leaf) if isinstance(leaf, NamedBase) else leaf,
            (args, kwargs),
            is_leaf=lambda node: isinstance(node, NamedBase),
        )
        return func(*args, **kwargs)

    def __dlpack__(self, **options: Any) -> Any:
        """Shares the memory of the array, as in `np.from_dlpack(x)`; the names are left behind."""
        devices = getattr(getattr(self.array, "sharding", None), "device_set", ())
        if len(devices) > 1:
            raise make_error(
                BufferError,
                f"{format_shape(self)} is on {len(devices)} devices, and DLPack shares the memory of one; use "
                "`np.asarray(x)`, or the parts of devices: `[shard.data for shard in x.array.addressable_shards]`",
            )
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """Returns the device whose memory `__dlpack__` shares."""
        return self.array.__dlpack_device__()  # pyright: ignore[reportAttributeAccessIssue]

"""Protocols by which other libraries use a named array, and errors that show the named counterpart of a function."""

import importlib
import sys
from collections.abc import Callable, Sequence
from inspect import isfunction
from typing import Any

import jax
import numpy as np

from . import _repr
from ._base import NamedBase, format_shape
from ._traceback import make_error


_ORDER = "axes are ordered by name, and `rearrange(x, ('embed', ...))` puts 'embed' first"
_RESHAPE = "`flatten_axes` merges axes, `unflatten_axis` splits one, and `rearrange` does both by an expression"
_EXPAND = "operands align by name without it; `expand(x, 'new')` adds an axis of size 1"
_DOT = "`dot(x, y, axis='embed')` multiplies and sums over named axes, and `einsum` takes an expression"
_DTYPE = "`x.astype(dtype)` converts the elements"
_DEVICE = "`axonym.shard` and `jax.device_put` move arrays, and `x.sharding` shows where they are"
_GRAD = "`axonym.grad(fn)` is the gradient of a function, and `jax.lax.stop_gradient(x)` stops it"
_NAMES = "`x.names` has the names of the axes, `x.axes` the names and sizes, and `x.shape['embed']` one size"
_INDEX = "`x['embed', 0]` indexes by name"
_ARRAY = "`x.array` is the plain array"
_UPDATE = "arrays never change, and `x.at['embed', 0].set(value)` returns one with other elements"
_NEW = "`axonym.named(array, ('batch', 'embed'))` names the axes of an array or of nested lists"

_HINTS = {
    **dict.fromkeys(("T", "mT", "moveaxis", "permute", "permute_dims", "swapaxes", "t", "transpose"), _ORDER),
    **dict.fromkeys(("reshape", "resize", "unflatten", "view"), _RESHAPE),
    **dict.fromkeys(("expand_dims", "newaxis", "unsqueeze"), _EXPAND),
    **dict.fromkeys(("bmm", "matmul", "mm", "tensordot", "vdot"), _DOT),
    **dict.fromkeys(("double", "float", "half", "int", "long", "type"), _DTYPE),
    **dict.fromkeys(("cpu", "cuda", "device", "devices", "to", "to_device"), _DEVICE),
    **dict.fromkeys(("backward", "detach", "grad", "requires_grad", "stop_gradient"), _GRAD),
    **dict.fromkeys(("axis", "dim", "dims", "name", "sizes"), _NAMES),
    **dict.fromkeys(("gather", "get", "index_select", "isel", "sel", "select"), _INDEX),
    **dict.fromkeys(("data", "numpy", "value", "values"), _ARRAY),
    **dict.fromkeys(("fill", "put", "scatter", "set"), _UPDATE),
    **dict.fromkeys(("array", "asarray", "tensor"), _NEW),
    "concat": "`concatenate('batch', [x, y])` joins arrays along a named axis",
    "itemsize": "`x.dtype.itemsize` is the number of bytes of an element",
    "spec": "`x.sharding.spec` has the mesh axes of each axis",
}


def suggest_named_way(name: str) -> str:
    """Returns the end of an error message about a missing attribute: what to write instead, or an empty string."""
    if name in _HINTS:
        return f"; {_HINTS[name]}"
    function = _find_named_function(name)
    return f"; `{function}` is a function" if function else ""


def make_foreign_function_error(library: str, functions: Sequence[str], shape: str) -> TypeError:
    """Returns the error for a named array among the arguments of a function of JAX or NumPy.

    Args:
        library: The library of the function.
        functions: The function, and those that it calls. The error is about the first one that has a counterpart.
        shape: The axes of the array.
    """
    name = next((name for name in functions if _find_named_function(name) or name in _HINTS), functions[-1])
    function = _find_named_function(name)
    if function:
        remedy = f"use `{function}`"
    else:
        remedy = _HINTS.get(name, "`axonym.lift` applies functions of plain arrays by name")
    return make_error(
        TypeError,
        f"`{name}` of {library} would lose the names of {shape}; {remedy}, or pass the plain array `x.array`.",
    )


def _find_named_function(name: str) -> str | None:
    library = sys.modules[__name__.partition(".")[0]]  # not an import, because the library is built on this package
    for module in (library, library.nn, library.linalg):
        if isfunction(vars(module).get(name)):
            return f"{module.__name__}.{name}"
    return None


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

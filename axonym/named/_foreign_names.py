"""Hints for names of other libraries, such as `transpose` and `detach`: errors that show the named counterpart."""

import sys
from collections.abc import Sequence
from inspect import isfunction

from .._ground.errors import make_error


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
_LABELS = "`axonym.interop.to_xarray(x, coords)` returns a `DataArray` with labels, which has it"
_GROUPS = "`axonym.zeros((Axis('month', 12), *others)).at['month', months].add(x)` adds up the elements of each group"
_FFT = "`axonym.fft.fft(x, ('y', 'x'))` transforms several axes, and so do `ifft`, `rfft` and `irfft`"
_NANS = "`axonym.isnan(x)` is true for missing elements, and `axonym.where(axonym.isnan(x), 0.0, x)` fills them"
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
    **dict.fromkeys(("drop_isel", "gather", "get", "head", "iloc", "index_select", "isel", "select", "tail"), _INDEX),
    **dict.fromkeys(("data", "numpy", "value", "values"), _ARRAY),
    **dict.fromkeys(("fill", "put", "scatter", "set"), _UPDATE),
    **dict.fromkeys(("array", "asarray", "tensor"), _NEW),
    **dict.fromkeys(("groupby", "groupby_bins"), _GROUPS),
    **dict.fromkeys(("dropna", "fillna", "isna", "isnull", "notna", "notnull"), _NANS),
    **dict.fromkeys(("fft2", "fftn", "ifft2", "ifftn", "irfft2", "irfftn", "rfft2", "rfftn"), _FFT),
    **dict.fromkeys(("assign_coords", "attrs", "coords", "drop_sel", "dt", "loc", "reindex", "resample"), _LABELS),
    **dict.fromkeys(("bfill", "differentiate", "ffill", "idxmax", "idxmin", "integrate", "interp_like"), _LABELS),
    **dict.fromkeys(("plot", "sel", "sortby", "to_dataframe", "to_dataset", "to_netcdf", "to_series"), _LABELS),
    "coarsen": "`axonym.nn.mean_pool(Axis('time', 7), x, stride=7)` averages windows one after another",
    "concat": "`concatenate('batch', [x, y])` joins arrays along a named axis",
    "equals": "`axonym.array_equal(x, y)` compares arrays",
    "itemsize": "`x.dtype.itemsize` is the number of bytes of an element",
    "rolling": "`axonym.nn.mean_pool(Axis('time', 7), x, stride=1)` averages a window that moves along an axis",
    "shift": "`axonym.pad(x['time', :-1], {'time': (1, 0)})` shifts in a zero, and `axonym.roll` wraps around",
    "spec": "`x.sharding.spec` has the mesh axes of each axis",
    "unstack": "`axonym.unbind(x, axis)` returns the slices along an axis, and `unflatten_axis` splits one in two",
    "weighted": "`axonym.average(x, 'lat', weights=w)` is the weighted mean",
}


def suggest_named_way(name: str) -> str:
    """Returns the end of an error message about a missing attribute: what to write instead, or an empty string."""
    if name in _HINTS:
        return f"; {_HINTS[name]}"
    function = find_named_function(name)
    return f"; `{function}` is a function" if function else ""


def make_foreign_function_error(library: str, functions: Sequence[str], shape: str) -> TypeError:
    """Returns the error for a named array among the arguments of a function of JAX or NumPy.

    Args:
        library: The library of the function.
        functions: The function, and those that it calls. The error is about the first one that has a counterpart.
        shape: The axes of the array.
    """
    name = next((name for name in functions if find_named_function(name) or name in _HINTS), functions[-1])
    function = find_named_function(name)
    if function:
        remedy = f"use `{function}`"
    else:
        remedy = _HINTS.get(name, "`axonym.lift` applies functions of plain arrays by name")
    return make_error(
        TypeError,
        f"`{name}` of {library} would lose the names of {shape}; {remedy}, or pass the plain array `x.array`.",
    )


def find_named_function(name: str) -> str | None:
    """Returns a function of Axonym with its module, such as `axonym.fft.rfft`; None if there is none of this name."""
    library = sys.modules[__name__.partition(".")[0]]  # not an import, because the library is built on this package
    for module in (library, library.nn, library.linalg, library.fft, library.poly, library.random):
        if isfunction(vars(module).get(name)):
            return f"{module.__name__}.{name}"
    return None

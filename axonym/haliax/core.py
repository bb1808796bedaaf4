"""`haliax.core`: named arrays and their operations."""

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

from ..axis import (
    AxisSelection as AxisSelection,
    AxisSelector as AxisSelector,
    AxisSpec as AxisSpec,
    PartialShapeDict as PartialShapeDict,
    ShapeDict as ShapeDict,
)
from ..named._axis import Axis as Axis, axis_name as get_name, parse_selection
from . import _operations
from ._adapt import adapt, adapt_all, adapt_reduction
from ._array import NamedArray as NamedArray, NamedArrayAxes as NamedArrayAxes
from .axis import (
    axis_name as axis_name,
    axis_spec_to_shape_dict as axis_spec_to_shape_dict,
    axis_spec_to_tuple as axis_spec_to_tuple,
    dslice as dslice,
    eliminate_axes as eliminate_axes,
    selects_axis as selects_axis,
)
from .field import field as field
from .types import NamedOrNumeric as NamedOrNumeric


# The package at the root, which a relative import cannot name.
_axonym: Any = importlib.import_module(__name__.partition(".")[0])

# From the spelling of parameters, Haliax's before the "=" and Axonym's after it, to the functions that have it.
_SPELLINGS = {
    "": """
        arange bincount broadcast_arrays broadcast_arrays_and_return_axes concatenate
        fold full logspace geomspace make_axes map ones searchsorted stack zeros
        """,
    "a=x": """
        abs absolute angle arccos arccosh arcsin arcsinh arctan arctanh around bitwise_count bitwise_invert bitwise_not
        broadcast_to cbrt ceil conj conjugate copy cos cosh deg2rad degrees exp exp2 expm1 fabs fix floor frexp
        full_like i0 imag invert iscomplex isfinite isinf isnan isneginf isposinf isreal log log10 log1p log2
        logical_not nancumsum ndim negative ones_like packbits positive rad2deg radians real reciprocal
        repeat rint round rsqrt sign signbit sin sinc sinh sqrt square tan tanh trunc unpackbits zeros_like
        """,
    "a=x b=y": """
        add arctan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor divide divmod equal
        float_power floor_divide fmax fmin fmod greater greater_equal hypot isclose left_shift less less_equal logaddexp
        logaddexp2 logical_and logical_or logical_xor maximum minimum mod multiply nextafter not_equal power remainder
        right_shift subtract true_divide
        """,
    "array=x": """
        argmax argmin nanargmax nanargmin nonzero pad pad_left ravel roll slice trace unflatten_axis unique
        """,
    "array=x a_min=min a_max=max": "clip",
    "array=x new_axis_name=new_axis": "flatten",
    "arr=x": "top_k",
    "a=array axis=axes": "named",
    "idx=i": "dblock",
    "x=tree": "auto_sharded shard",
    "f=fn": "scan",
}
_REDUCTIONS = """
    all amax amin any max mean min nanmax nanmean nanmin nanprod nanstd nansum nanvar prod product ptp std sum var
    """
# In Haliax, comparisons of entire arrays are plain scalars.
_COMPARISONS = "allclose array_equal array_equiv"
# Functions of `_operations`: those of Axonym have other arguments, results or orders of axes.
_OPERATIONS = """
    argsort broadcast_axis cumprod cumsum dot einsum flatten_all_axes_but flatten_axes index linspace nancumprod
    rearrange rename sort split take tile tril triu unbind unique_all unique_counts unique_inverse unique_values
    updated_slice where
    """


def _unwrap_scalar(result: Any) -> Any:
    return result.array if _axonym.is_named_array(result) else result


FUNCTIONS = {
    **adapt_all(_axonym, _SPELLINGS),
    **{name: adapt_reduction(getattr(_axonym, name)) for name in _REDUCTIONS.split()},
    **{name: adapt(getattr(_axonym, name), convert=_unwrap_scalar) for name in _COMPARISONS.split()},
    **adapt_all(_operations, {"": _OPERATIONS}),
}
globals().update(FUNCTIONS)


SliceSpec: TypeAlias = tuple[Any, ...] | Mapping[AxisSelector, Any]
NamedArrayAxesSpec: TypeAlias = NamedArrayAxes | str | Sequence[str | EllipsisType] | set[str | EllipsisType]
NamedArrayMeta = type(NamedArray)


def check_shape(jnp_shape: Sequence[int], hax_axes: Any) -> tuple[Axis, ...]:
    """Returns the axes of an array of a shape.

    Raises:
        ValueError: If the number of axes or a size does not fit.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.core.check_shape((2,), ("i",))
        (Axis(name='i', size=2),)
    """
    axes = parse_selection(hax_axes)
    if len(axes) != len(jnp_shape):
        raise ValueError(f"an array of shape {tuple(jnp_shape)} does not have {len(axes)} axes")
    for axis, size in zip(axes, jnp_shape, strict=True):
        if isinstance(axis, Axis) and axis.size != size:
            raise ValueError(f"axis {axis.name!r} has size {size} here, {axis.size} was asked for")
    return tuple(Axis(get_name(axis), size) for axis, size in zip(axes, jnp_shape, strict=True))


def are_shape_checks_enabled() -> bool:
    """Returns True: shapes are always checked.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.are_shape_checks_enabled()
        True
    """
    return True


@contextlib.contextmanager
def enable_shape_checks(enabled: bool) -> Iterator[bool]:
    """Yields True, the previous state; shapes are checked inside too, whatever `enabled` is.

    Unflattening a tree never checks shapes, so transformations of JAX need no such context.

    Example:
        >>> import axonym.haliax as hax
        >>> with hax.enable_shape_checks(False) as previous:
        ...     previous, hax.are_shape_checks_enabled()
        (True, True)
    """
    yield True


# Type checkers do not see the functions that `globals().update` adds, and take any name with this.
def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""`haliax.core`: named arrays and their operations."""

import contextlib
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
from . import _functions, _operations
from ._array import NamedArray as NamedArray, NamedArrayAxes as NamedArrayAxes
from ._functions import adapt_all, dslice as dslice
from .axis import (
    axis_name as axis_name,
    axis_spec_to_shape_dict as axis_spec_to_shape_dict,
    axis_spec_to_tuple as axis_spec_to_tuple,
    eliminate_axes as eliminate_axes,
    selects_axis as selects_axis,
)
from .field import field as field
from .types import NamedOrNumeric as NamedOrNumeric


_OPERATIONS = """
    argsort broadcast_axis cumprod cumsum dot einsum flatten_all_axes_but flatten_axes index nancumprod rearrange rename
    sort split take tile tril triu unbind updated_slice
    """

_DIFFERENT = "linspace unique_all unique_counts unique_inverse unique_values where"

FUNCTIONS = {
    **_functions.list_functions(),
    **adapt_all(_operations, {"": _OPERATIONS}),
    **adapt_all(_functions, {"": _DIFFERENT}),
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


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

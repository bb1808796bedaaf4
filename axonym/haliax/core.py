"""`haliax.core`: named arrays and their operations."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from ..named._axis import Axis as Axis, axis_name as get_name, parse_selection
from . import _axis_order, _functions, _indexing, _reshaping
from ._adapt import adapt_all, make_getattr
from ._array import NamedArray as NamedArray
from ._array_axes import NamedArrayAxes as NamedArrayAxes
from ._functions import dslice as dslice, field as field
from .types import NamedOrNumeric as NamedOrNumeric


_RESHAPING = """
    argsort broadcast_axis cumprod cumsum flatten_all_axes_but flatten_axes rename sort split tile tril
    triu unbind updated_slice
    """

_DIFFERENT = """
    linspace polyfit polyval unique_all unique_counts unique_inverse unique_values vander where
    """

FUNCTIONS = {
    **_functions.list_functions(),
    **adapt_all(_reshaping, {"": _RESHAPING}),
    **adapt_all(_axis_order, {"": "dot einsum rearrange"}),
    **adapt_all(_functions, {"": _DIFFERENT}),
    **adapt_all(_indexing, {"": "index take"}),
}
globals().update(FUNCTIONS)


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
    found = tuple(Axis(get_name(axis), size) for axis, size in zip(axes, jnp_shape, strict=True))
    for given, axis in zip(axes, found, strict=True):
        if isinstance(given, Axis) and given != axis:
            raise ValueError(f"axis {axis.name!r} has size {axis.size} here, {given.size} was asked for")
    return found


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


__getattr__ = make_getattr("haliax.core")

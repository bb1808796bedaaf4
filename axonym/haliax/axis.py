"""`haliax.axis`: axes without arrays."""

from typing import Any

from .. import axis
from ..axis import (
    AxisSelection as AxisSelection,
    AxisSelector as AxisSelector,
    AxisSpec as AxisSpec,
    PartialAxisSpec as PartialAxisSpec,
    PartialShapeDict as PartialShapeDict,
    ShapeDict as ShapeDict,
    make_axes as make_axes,
    selects_axis as selects_axis,
    to_jax_shape as to_jax_shape,
)
from ..named._axis import Axis as Axis, axis_name as get_name, parse_selection
from ..named._index import dslice as NamedDslice
from ._adapt import adapt
from ._axis_names import rearrange_for_partial_order as rearrange_for_partial_order, resolve_axis as resolve_axis
from .util import ensure_tuple as ensure_tuple


class dslice(NamedDslice):
    """A slice whose start may be traced and whose length is fixed; see `axonym.dslice`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.ds(1, hax.Axis("block", 2)).to_slice()
        slice(1, 3, None)
    """

    def __init__(self, start: Any, length: int | Axis) -> None:
        """Stores the start and the number of elements."""
        super().__init__(start, length.size if isinstance(length, Axis) else length)

    def to_slice(self) -> slice:
        """Returns a Python slice of the same elements."""
        return slice(self.start, self.start + self.length)

    @staticmethod
    def block(idx: Any, size: int) -> "dslice":  # pyright: ignore[reportIncompatibleMethodOverride]
        """Returns block number `idx`.

        Example:
            >>> import axonym.haliax as hax
            >>> hax.dblock(1, 2).start
            2
        """
        return dslice(NamedDslice.block(idx, size).start, size)


def is_axis_compatible(ax1: AxisSelector, ax2: AxisSelector) -> bool:
    """Returns whether two axes have the same name, whatever their sizes.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.axis.is_axis_compatible(hax.Axis("batch", 2), hax.Axis("batch", 3))
        True
    """
    return get_name(ax1) == get_name(ax2)


def axis_spec_to_shape_dict(axis_spec: AxisSelection) -> dict[str, int | None]:
    """Returns the sizes of axes by name, None for those given by name alone.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.axis.axis_spec_to_shape_dict((hax.Axis("batch", 2), "embed"))
        {'batch': 2, 'embed': None}
    """
    return {get_name(axis): axis.size if isinstance(axis, Axis) else None for axis in parse_selection(axis_spec)}


ds = dslice
dblock = dslice.block
axis_name = adapt(axis.axis_name, "ax=axis")
axis_size = adapt(axis.axis_size, "ax=spec")
axis_spec_to_tuple = adapt(axis.axis_spec_to_tuple, "axis_spec=spec")
concat_axes = concat_axis_specs = adapt(axis.concat_axes, "a1=first a2=second")
eliminate_axes = adapt(axis.eliminate_axes, "axis_spec=spec to_remove=remove")
intersect_axes = adapt(axis.intersect_axes, "ax1=first ax2=second")
replace_axis = adapt(axis.replace_axis, "axis_spec=spec")
replace_missing_with_ellipsis = adapt(axis.replace_missing_with_ellipsis, "ax1=partial ax2=axes")
union_axes = adapt(axis.union_axes, "a1=first a2=second")
unsize_axes = adapt(axis.unsize_axes, "axis_spec=spec")
without_axes = adapt(axis.without_axes, "axis_spec=spec to_remove=remove")

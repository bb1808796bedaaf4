"""Axes without arrays: the forms in which functions accept them, and their algebra."""

from ..named._axis import (
    Axis as Axis,
    AxisSelection as AxisSelection,
    AxisSelector as AxisSelector,
    AxisSpec as AxisSpec,
    PartialAxisSpec as PartialAxisSpec,
    make_axes as make_axes,
)
from ..named._index import dblock as dblock, ds as ds, dslice as dslice
from ._specs import (
    PartialShapeDict as PartialShapeDict,
    ShapeDict as ShapeDict,
    axis_name as axis_name,
    axis_size as axis_size,
    axis_spec_to_shape_dict as axis_spec_to_shape_dict,
    axis_spec_to_tuple as axis_spec_to_tuple,
    concat_axes as concat_axes,
    concat_axis_specs as concat_axis_specs,
    eliminate_axes as eliminate_axes,
    intersect_axes as intersect_axes,
    is_axis_compatible as is_axis_compatible,
    rearrange_for_partial_order as rearrange_for_partial_order,
    replace_axis as replace_axis,
    replace_missing_with_ellipsis as replace_missing_with_ellipsis,
    resolve_axis as resolve_axis,
    selects_axis as selects_axis,
    to_jax_shape as to_jax_shape,
    union_axes as union_axes,
    unsize_axes as unsize_axes,
    without_axes as without_axes,
)

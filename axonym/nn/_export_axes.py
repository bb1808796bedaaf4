"""Merges several axes of a parameter into one for export to libraries without names, and splits them again."""

import math

from ..named._array import NamedArray
from ..named._axis import Axis


def merge_axes(axes: tuple[Axis, ...], name: str) -> tuple[Axis, ...]:
    """Returns one axis of a name for several axes or none; a single axis stays."""
    if len(axes) == 1:
        return axes
    return (Axis(name, math.prod(axis.size for axis in axes)),)


def replace_axes(x: NamedArray, old: tuple[Axis, ...], new: tuple[Axis, ...]) -> NamedArray:
    """Returns an array with its axes merged into one, or one of them split into others."""
    if old == new:
        return x
    return x.flatten_axes(old, new[0]) if len(new) == 1 else x.unflatten_axis(old[0], new)

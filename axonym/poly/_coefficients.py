"""Finding the axis of the coefficients, and running functions of one polynomial over all others."""

from typing import Any

from ..named._axis import AxisSelector, find_axis
from ..named._base import NamedBase, check_named, format_shape


def coefficient_axis(x: Any, axis: AxisSelector | None, what: str = "coefficients") -> str:
    """Returns the name of the axis given, or of the only one there is.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If the axis is not there, or none is given and there is not just one.
    """
    check_named(x)
    if axis is not None:
        return x.names[find_axis(x.names, x.array.shape, axis)]
    if len(x.names) != 1:
        raise ValueError(f"which axis of {format_shape(x)} is that of the {what}? Give it as `axis`")
    return x.names[0]


def common_axis(p: NamedBase, q: NamedBase, axis: AxisSelector | None) -> str:
    """Returns the name of the axis along which the coefficients of both lie; they may differ in number.

    Raises:
        TypeError: If one is not a named array.
        ValueError: If the axis is not there, none is given and there is not just one, or they are two.
    """
    names = coefficient_axis(p, axis), coefficient_axis(q, axis)
    if names[0] != names[1]:
        raise ValueError(
            f"the coefficients lie along axis {names[0]!r} of {format_shape(p)} and axis {names[1]!r} of {format_shape(q)}; "
            "`rename` one of them"
        )
    return names[0]

"""New names for axes."""

from collections.abc import Mapping
from typing import Any

from .._axis import (
    Axis,
    AxisSelector,
    axis_name,
    check_unique_names,
    find_axis,
    format_axes,
    format_value,
    intern_names,
)
from .._base import N, check_named, with_array
from .._traceback import blame_caller


def rename(x: N, renames: Mapping[Any, AxisSelector]) -> N:
    """Renames axes; no data moves.

    Args:
        x: Array of any axes.
        renames: New axis for old axis, each a name or an `Axis` of the size found.

    Returns:
        Array with the same axes in the same order under the new names.

    Raises:
        ValueError: If an axis is missing, has another size, or a name would occur twice.

    Example:
        >>> import axonym as nym
        >>> nym.rename(nym.zeros({"pos": 4, "embed": 2}), {"pos": "key_pos"}).shape
        (key_pos: 4, embed: 2)
    """
    check_named(x)
    if not hasattr(renames, "items"):
        raise blame_caller(
            TypeError(
                "`rename` takes a mapping from old to new names, such as {'pos': 'key_pos'}, not "
                f"{format_value(renames)}."
            )
        )
    names = list(x.names)
    for old, new in renames.items():
        index = find_axis(x.names, x.array.shape, old)
        if isinstance(new, Axis) and new.size != x.array.shape[index]:
            raise blame_caller(
                ValueError(
                    f"axis {x.names[index]!r} has size {x.array.shape[index]}, it cannot become "
                    f"{format_axes([new.name], [new.size])}"
                )
            )
        names[index] = axis_name(new)
    check_unique_names(tuple(names))
    return with_array(x, x.array, intern_names(tuple(names)))

"""The axes of matrices, found by name and checked."""

from ..named._axis import Axis, AxisSelector, axis_name, find_axes, find_axis
from ..named._base import NamedBase, check_named, format_shape


def find_matrix_axes(
    x: NamedBase, row: AxisSelector, col: AxisSelector, square_for: str | None = None
) -> tuple[str, str]:
    """Returns the names of the axes of matrices, which must be square if the name of a function is given."""
    check_named(x)
    sizes = x.array.shape
    i, j = find_axes(x.names, sizes, (row, col))
    if square_for is not None and sizes[i] != sizes[j]:
        raise ValueError(
            f"`{square_for}` needs square matrices; axes {x.names[i]!r} and {x.names[j]!r} of {format_shape(x)} have "
            f"sizes {sizes[i]} and {sizes[j]}"
        )
    return x.names[i], x.names[j]


def parse_new_axis(x: NamedBase, new_axis: AxisSelector, size: int) -> str:
    """Returns the name of a new axis of the given size."""
    name = axis_name(new_axis)
    if name in x.names:
        raise ValueError(
            f"{format_shape(x)} has an axis {name!r} already; give the new axis another name with `new_axis`"
        )
    find_axis((name,), (size,), Axis(name, size) if isinstance(new_axis, str) else new_axis)
    return name


def get_short_side(x: NamedBase, row: str, col: str) -> int:
    return min(x.axis_size(row), x.axis_size(col))


def find_rhs_axes(a: NamedBase, b: NamedBase, row: str, col: str) -> tuple[str, ...]:
    """Returns the axes that only `b` has, along which there are several right-hand sides for each matrix of `a`."""
    check_named(b)
    find_axis(b.names, b.array.shape, Axis(row, a.axis_size(row)))
    if col in b.names:
        raise ValueError(
            f"the right-hand side {format_shape(b)} has axis {col!r}, which the solution will have; `rename` it"
        )
    return tuple(name for name in b.names if name not in a.names)

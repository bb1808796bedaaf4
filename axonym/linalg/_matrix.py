"""What the functions of matrices share: the names of a matrix's two axes, and what is checked before JAX sees it."""

from ..named._axis import Axis, AxisSelector, axis_name, find_axes, find_axis
from ..named._base import NamedBase, check_named, format_shape


def matrix_axes(x: NamedBase, row: AxisSelector, col: AxisSelector) -> tuple[str, str]:
    """Returns the names of the axes of a matrix.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If it lacks one of the axes, or both are one.
    """
    check_named(x)
    i, j = find_axes(x.names, x.array.shape, (row, col))
    return x.names[i], x.names[j]


def square_axes(function: str, x: NamedBase, row: AxisSelector, col: AxisSelector) -> tuple[str, str]:
    """Returns the names of the axes of a square matrix.

    Raises:
        TypeError: If `x` is not a named array.
        ValueError: If it lacks one of the axes, both are one, or they differ in size.
    """
    check_named(x)
    sizes = x.array.shape
    i, j = find_axes(x.names, sizes, (row, col))
    if sizes[i] != sizes[j]:
        raise ValueError(
            f"`{function}` is of square matrices; axes {x.names[i]!r} and {x.names[j]!r} of {format_shape(x)} have sizes "
            f"{sizes[i]} and {sizes[j]}"
        )
    return x.names[i], x.names[j]


def new_name(x: NamedBase, new_axis: AxisSelector, size: int) -> str:
    """Returns the name of a new axis of a size.

    Raises:
        ValueError: If `x` has an axis of that name, or an `Axis` has another size.
    """
    name = axis_name(new_axis)
    if name in x.names:
        raise ValueError(
            f"{format_shape(x)} has an axis {name!r} already; give the new axis another name with `new_axis`"
        )
    find_axis((name,), (size,), Axis(name, size) if isinstance(new_axis, str) else new_axis)
    return name


def short_side(x: NamedBase, row: str, col: str) -> int:
    """Returns the smaller one of the sizes of a matrix."""
    return min(x.axis_size(row), x.axis_size(col))


def other_axes(a: NamedBase, b: NamedBase, row: str, col: str) -> tuple[str, ...]:
    """Returns the axes of right-hand sides `b` that run over several of them for one matrix of `a`.

    Raises:
        TypeError: If `b` is not a named array.
        ValueError: If `b` lacks the rows, has the columns, or a shared axis in another size.
    """
    check_named(b)
    find_axis(b.names, b.array.shape, Axis(row, a.axis_size(row)))
    if col in b.names:
        raise ValueError(
            f"the right-hand side {format_shape(b)} has the axis {col!r} that the solution will have; `rename` it"
        )
    return tuple(name for name in b.names if name not in a.names)

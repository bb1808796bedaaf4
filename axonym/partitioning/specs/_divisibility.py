"""Whether mesh axes divide sizes evenly, and the error message where they do not."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ._active_mesh import MeshLike


def round_up(size: int, parts: int) -> int:
    """Returns the next size that is divisible by a number of parts."""
    return -(-size // parts) * parts


def format_mesh_axes(axes: Iterable[Any], mesh: MeshLike) -> str:
    """Returns mesh axes with their sizes, as in `'data' of size 4 x 'model' of size 2`."""
    return " x ".join(f"{axis!r} of size {mesh.shape[axis]}" for axis in axes)


def describe_uneven(where: str, size: int | None, axes: Sequence[Any], mesh: MeshLike) -> str | None:
    """Returns the message for a size that is not divisible by its mesh axes; None if it is divisible or unknown."""
    parts = math.prod(mesh.shape[axis] for axis in axes)
    if size is None or size % parts == 0:
        return None
    return (
        f"{where} has size {size}, which is not divisible by mesh axis {format_mesh_axes(axes, mesh)}; "
        f"the next size that fits is {round_up(size, parts)}"
    )

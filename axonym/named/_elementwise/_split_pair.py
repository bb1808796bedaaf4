"""What functions that return two arrays share."""

from typing import Any

from .._base import NamedBase, with_array


def split_pair(result: Any) -> tuple[Any, Any]:
    """Makes two named arrays of one that holds a pair; what is not named is a pair already."""
    if not isinstance(result, NamedBase):
        return tuple(result)
    first, second = result.array
    return with_array(result, first), with_array(result, second)

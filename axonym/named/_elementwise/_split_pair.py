"""Results of functions that return two arrays."""

from typing import Any

from .._base import NamedBase, with_array


def split_pair(result: Any) -> tuple[Any, Any]:
    """Splits a named array that holds a pair into two named arrays; a plain pair stays as it is."""
    if not isinstance(result, NamedBase):
        return tuple(result)
    first, second = result.array
    return with_array(result, first), with_array(result, second)

"""What functions of more than two operands share."""

from collections.abc import Callable
from typing import Any

from .._align import broadcast
from .._base import NamedBase


def chosen(fn: Callable[..., Any], *operands: Any) -> Any:
    """Applies an elementwise function of any number of operands, by name if one of them is named."""
    named = any(isinstance(operand, NamedBase) for operand in operands)
    return broadcast(fn, *operands) if named else fn(*operands)

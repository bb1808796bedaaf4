"""How reports write numbers, paths and lists."""

from typing import Any

from .._ground.errors import make_error
from .._ground.formats import format_bytes, format_value


def check_count(name: str, value: Any, meaning: str) -> None:
    """Raises an error for an option that is not an integer of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise make_error(TypeError, f"`{name}` is {meaning}, an integer; it was {format_value(value)}.")
    if value < 0:
        raise make_error(ValueError, f"`{name}` is {meaning}; it was {value}.")


def format_costs(item: Any) -> tuple[str, str, str]:
    """Returns the three numbers of bytes of an array or a tree: total, on each device, in copies."""
    return format_bytes(item.bytes), format_bytes(item.bytes_per_device), format_bytes(item.replicated_bytes)


def format_path(path: str) -> str:
    """Returns the path of an array in a table."""
    return path or "(the array itself)"

"""How reports write numbers, paths and lists."""

from collections.abc import Sequence
from typing import Any

from .._ground.errors import make_error
from .._ground.formats import format_value


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def check_count(name: str, value: Any, meaning: str) -> None:
    """Raises an error for an option that is not an integer of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise make_error(TypeError, f"`{name}` is {meaning}, an integer; it was {format_value(value)}.")
    if value < 0:
        raise make_error(ValueError, f"`{name}` is {meaning}; it was {value}.")


def format_bytes(number: int) -> str:
    """Returns a number of bytes in the unit that fits: `1.5 MiB`."""
    value, unit = float(number), 0
    while round(value, 1) >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def format_costs(item: Any) -> tuple[str, str, str]:
    """Returns the three numbers of bytes of an array or a tree: total, on each device, in copies."""
    return format_bytes(item.bytes), format_bytes(item.bytes_per_device), format_bytes(item.replicated_bytes)


def format_count(number: int, noun: str) -> str:
    """Returns a number with its noun: `1 array`, `2 arrays`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_path(path: str) -> str:
    """Returns the path of an array in a table."""
    return path or "(the array itself)"


def shorten_list(texts: Sequence[str], limit: int = 20, source: str = "") -> list[str]:
    """Returns the first texts; if there are more, a last one with their number and where to find all."""
    hidden_count = len(texts) - limit
    last = f"and {hidden_count} more" + (f"; {source} has all" if source else "")
    return [*texts] if hidden_count <= 0 else [*texts[:limit], last]

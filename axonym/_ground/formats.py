"""How axes, values, bytes and lists are written in errors and reports."""

import sys
from collections.abc import Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import equinox as eqx
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from .similar_names import find_similar_name


_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_value(x: Any) -> str:
    """Formats an unexpected value for an error message; arrays and lists are described by their size."""
    if isinstance(x, tuple):
        return f"({', '.join(map(format_value, x))})"
    if isinstance(x, list):
        return f"a list of length {len(x)}"
    if isinstance(x, Mesh | AbstractMesh):
        return f"the mesh {format_axes(tuple(map(str, x.shape)), tuple(x.shape.values()))}"
    if isinstance(x, type | FunctionType | MethodType):  # the default repr has an address
        return f"`{x.__name__}`"
    if isinstance(x, np.number):
        return repr(x)
    shape = getattr(x, "shape", None)
    if shape is not None:
        return f"an array of shape {tuple(shape.values() if isinstance(shape, Mapping) else shape)}"
    if x is ...:
        return repr(x)
    try:
        return eqx.tree_pformat(x, width=sys.maxsize)  # describes the arrays in a tree by their shapes, in one line
    except RecursionError:
        return f"a {type(x).__name__} in which too many others are nested"


def format_axes(names: Sequence[str], sizes: Sequence[int] | None = None) -> str:
    """Formats names, and sizes if given, as in error messages: `(batch: 8, seq: 128)`."""
    if sizes is None or len(sizes) != len(names):
        return f"({', '.join(names)})"
    return f"({', '.join(f'{name}: {size}' for name, size in zip(names, sizes, strict=True))})"


def suggest_name(name: Any, candidates: Sequence[str]) -> str:
    """Returns the end of an error message that suggests the closest candidate, or an empty string."""
    similar = find_similar_name(name, candidates)
    return "" if similar is None else f"; did you mean {similar!r}?"


def format_bytes(number: int) -> str:
    """Returns a number of bytes in the unit that fits: `1.5 MiB`."""
    value, unit = float(number), 0
    while round(value, 1) >= 1024 and unit + 1 < len(_BYTE_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f}".removesuffix(".0") + f" {_BYTE_UNITS[unit]}"


def format_count(number: int, noun: str) -> str:
    """Returns a number with its noun: `1 array`, `2 arrays`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shorten_list(texts: Sequence[str], limit: int = 20, source: str = "") -> list[str]:
    """Returns the first texts; if there are more, a last one with their number and where to find all."""
    hidden_count = len(texts) - limit
    last = f"and {hidden_count} more" + (f"; {source} has all" if source else "")
    return [*texts] if hidden_count <= 0 else [*texts[:limit], last]

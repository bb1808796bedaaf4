"""Parses and checks the sizes, names and axis types of a mesh, given as values or as a string.

Nothing here touches a device. Wrong types raise a `TypeError`, wrong values a `ValueError`.
"""

import difflib
import operator
import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import equinox as eqx
import numpy as np
from jax.sharding import AxisType


DEFAULT_NAMES = ("dp", "fsdp", "ep", "tp", "sp")  # of `create_mesh`
_AXIS_TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit, "manual": AxisType.Manual}


def format_mesh_shape(names: Sequence[str], sizes: Sequence[int]) -> str:
    """Writes names with their sizes, as in `(data: 2, model: 4)`."""
    return f"({', '.join(f'{name}: {size}' for name, size in zip(names, sizes, strict=True))})"


def suggest_mesh_name(name: str, options: Sequence[str]) -> str:
    """Returns the end of an error about an unknown name: the closest option, or else all of them."""
    close = difflib.get_close_matches(name, options, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"the choices are {', '.join(repr(option) for option in options)}"


def split_axes(axis_dims: Any, axis_names: Any) -> tuple[Any, Any]:
    """Returns the sizes and the names of axes, which may be given together as a mapping."""
    if not isinstance(axis_dims, Mapping):
        return axis_dims, axis_names
    if tuple(axis_names) not in ((), DEFAULT_NAMES, tuple(axis_dims)):
        raise TypeError(
            f"`axis_dims` is the mapping {dict(axis_dims)}, which names the mesh axes; leave out `axis_names`, here "
            f"{axis_names!r}"
        )
    return tuple(axis_dims.values()), tuple(axis_dims)


def as_sizes(sizes: Any, argument: str) -> tuple[int, ...]:
    if isinstance(sizes, str):
        raise TypeError(
            f"`{argument}` is a sequence of integers, not the string '{sizes}'; `parse_mesh_from_string` reads strings"
        )
    if not isinstance(sizes, (Sequence, np.ndarray)):
        raise TypeError(f"`{argument}` is a sequence of integers such as (2, 4), not {eqx.tree_pformat(sizes)}")
    for size in sizes:
        # `True` is an integer to Python, but nobody means a size by it.
        if isinstance(size, (bool, np.bool_)) or not hasattr(size, "__index__"):
            raise TypeError(f"`{argument}` holds {eqx.tree_pformat(size)}, which is not an integer")
    return tuple(map(operator.index, sizes))


def as_names(names: Any, argument: str) -> tuple[str, ...]:
    # A string is a sequence of strings too, and would name one axis per letter.
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(
            f'`{argument}` is a sequence of strings such as ("data", "model"), not {eqx.tree_pformat(names)}'
        )
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"`{argument}` holds {name!r}, which is not a string")
    return tuple(names)


def resolve_axis_types(axis_types: Any, names: Sequence[str]) -> tuple[AxisType, ...]:
    """Returns one axis type per name; None is Auto for all of them."""
    if axis_types is None:
        return (AxisType.Auto,) * len(names)
    if isinstance(axis_types, (str, AxisType)):
        return (_as_axis_type(axis_types),) * len(names)
    if not isinstance(axis_types, Sequence):
        raise TypeError(
            "`axis_types` is an `AxisType`, one of 'auto', 'explicit' and 'manual', or a sequence "
            f"of those, not {eqx.tree_pformat(axis_types)}"
        )
    if len(axis_types) != len(names):
        raise ValueError(
            f"`axis_types` and the mesh axes ({', '.join(names)}) have {len(axis_types)} and "
            f"{len(names)} entries; give one type per axis, or a single one for all of them"
        )
    return tuple(map(_as_axis_type, axis_types))


def _as_axis_type(entry: Any) -> AxisType:
    if isinstance(entry, AxisType):
        return entry
    if not isinstance(entry, str):
        raise TypeError(f"`axis_types` holds {eqx.tree_pformat(entry)}, which is neither an `AxisType` nor a string")
    name = entry.strip().lower()
    if name not in _AXIS_TYPES:
        raise ValueError(f"no axis type '{entry}'; {suggest_mesh_name(name, tuple(_AXIS_TYPES))}")
    return _AXIS_TYPES[name]


def fill_wildcard(sizes: Sequence[int], total: int) -> tuple[int, ...]:
    """Replaces -1 by the size that makes the product `total`."""
    rest = total // prod(size for size in sizes if size != -1)
    return tuple(rest if size == -1 else size for size in sizes)


def can_fill(sizes: Sequence[int], total: int) -> bool:
    """Returns whether `sizes`, with at most one -1 among them, can multiply to `total`."""
    known = [size for size in sizes if size != -1]
    return min(known, default=1) > 0 and len(sizes) - len(known) <= 1 and prod(fill_wildcard(sizes, total)) == total


def parse_sizes(text: Any, names: Sequence[str]) -> tuple[int, ...]:
    """Parses '2,4' or 'dp:2, tp:4' into one size per name."""
    if not isinstance(text, str):
        raise TypeError(f"`axis_dims` is a string such as '2,4' or 'dp:2, tp:4', not {eqx.tree_pformat(text)}")
    if not text.strip():
        raise ValueError(
            f"the mesh string '{text}' is empty; write sizes as in '2,4', or names with sizes as in 'dp:2, tp:4'"
        )
    entries = [entry.strip() for entry in text.split(",")]
    if "" in entries:
        raise ValueError(
            f"entry {entries.index('') + 1} of the mesh string '{text}' is empty; write commas only between two entries"
        )
    if ":" in text or "=" in text:
        return _parse_named_sizes(entries, text, names)
    sizes = tuple(_parse_mesh_size(entry, entry, text) for entry in entries)
    if len(sizes) != len(names):
        raise ValueError(
            f"the mesh string '{text}' and the names {tuple(names)} have {len(sizes)} and {len(names)} entries; give "
            "one size per name, or name those that are not 1, as in 'dp:2'"
        )
    return sizes


def _parse_named_sizes(entries: list[str], text: str, names: Sequence[str]) -> tuple[int, ...]:
    sizes: dict[str, int] = {}
    for entry in entries:
        # From the right, so that a name may contain a colon.
        name, colon, size = (part.strip() for part in entry.rpartition(":"))
        if not colon and "=" in entry:
            name, _, size = (part.strip() for part in entry.partition("="))
            raise ValueError(f"'{entry}' in '{text}' is not `name:size`; write '{name}:{size}'")
        if not colon:
            raise ValueError(f"'{entry}' in '{text}' is not `name:size`; give every entry a name, or none")
        if name not in names:
            raise ValueError(f"no mesh axis '{name}' for '{text}'; {suggest_mesh_name(name, names)}")
        if name in sizes:
            raise ValueError(f"mesh axis '{name}' is in '{text}' twice; give it one size")
        sizes[name] = _parse_mesh_size(size, entry, text)
    return tuple(sizes.get(name, 1) for name in names)


def _parse_mesh_size(size: str, entry: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?\s*[0-9]+", size):
        raise ValueError(
            f"'{entry}' in the mesh string '{text}' has no integer for a size; give a positive one, or -1 to infer it"
        )
    return int("".join(size.split()))

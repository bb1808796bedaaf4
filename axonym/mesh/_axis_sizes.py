"""Parses and checks the sizes, names and axis types of a mesh, and fits them to a number of devices.

Nothing here touches a device. Wrong types raise a `TypeError`, wrong values a `ValueError`, with the nearest mesh that
fits in the form that `parse_mesh_from_string` reads.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import count
from math import isqrt, prod
from typing import Any

import equinox as eqx
import numpy as np
from jax.sharding import AxisType

from .._ground.similar_names import find_similar_name


DEFAULT_NAMES = ("dp", "fsdp", "ep", "tp", "sp")  # the default `axis_names` of `create_mesh`
_AXIS_TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit, "manual": AxisType.Manual}


def format_mesh_shape(names: Sequence[str], sizes: Sequence[int]) -> str:
    """Writes names with their sizes, as in `(data: 2, model: 4)`."""
    return f"({', '.join(f'{name}: {size}' for name, size in zip(names, sizes, strict=True))})"


def suggest_mesh_name(name: str, options: Sequence[str]) -> str:
    """Returns the end of an error about an unknown name: the closest option, or else all of them."""
    similar = find_similar_name(name, options)
    if similar is not None:
        return f"did you mean '{similar}'?"
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
    inferred = total // prod(size for size in sizes if size != -1)
    return tuple(inferred if size == -1 else size for size in sizes)


def can_fill(sizes: Sequence[int], total: int) -> bool:
    """Returns whether `sizes`, with at most one -1 among them, can multiply to `total`."""
    if sizes.count(-1) > 1 or any(size < 1 for size in sizes if size != -1):
        return False
    return prod(fill_wildcard(sizes, total)) == total


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


def resolve_axes(
    axis_dims: Any, axis_names: Any, devices: int, subset_hint: str = "pass {} of them as `devices`"
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Checks the axes of a mesh over a number of devices and infers a size of -1.

    `subset_hint` is the part of an error that says how to make the mesh of fewer devices; `{}` stands for their number.
    """
    sizes, names = as_sizes(axis_dims, "axis_dims"), as_names(axis_names, "axis_names")
    if sizes and names == DEFAULT_NAMES and len(sizes) != len(names):
        new_names = '"data",' if len(sizes) == 1 else ", ".join(('"data"', '"model"', "...")[: len(sizes)])
        raise ValueError(
            f"`axis_dims` {sizes} and the default `axis_names` {DEFAULT_NAMES} have {len(sizes)} and "
            f"{len(DEFAULT_NAMES)} entries; give names too, as in `create_mesh({sizes}, ({new_names}))`"
        )
    problem = _find_axes_problem(sizes, names, devices)
    alternative = ""
    if not problem and not can_fill(sizes, devices):
        problem = _find_sizes_problem(sizes, names, devices)
        if min(sizes) > 0 and prod(sizes) < devices:
            alternative = f", or {subset_hint.format(prod(sizes))}"
    if problem:
        # The suggestion is a whole mesh: names and sizes are added where they are missing.
        new_names = _make_names_distinct(names or ("data",))
        padded = (*sizes, *(-1 for _ in new_names))[: len(new_names)]
        nearest = format_mesh_shape(new_names, find_nearest_sizes(padded, devices))
        raise ValueError(f"{problem}; the nearest fit is {nearest}{alternative}")
    return names, fill_wildcard(sizes, devices)


def _find_axes_problem(sizes: Sequence[int], names: Sequence[str], devices: int) -> str | None:
    """Returns a problem of the axes other than the product of their sizes, or None."""
    devices_text = f"over {_format_device_count(devices)}"
    if len(sizes) != len(names):
        return (
            f"`axis_dims` {tuple(sizes)} and `axis_names` {tuple(names)} for a mesh {devices_text} have "
            f"{len(sizes)} and {len(names)} entries"
        )
    if not names:
        return f"a mesh {devices_text} needs at least one axis"
    mesh = f"mesh {format_mesh_shape(names, sizes)} {devices_text}"
    if not all(name.strip() for name in names):
        return f"{mesh} has an axis with an empty name"
    for i, name in enumerate(names):
        if name in names[:i]:
            return f"{mesh} has more than one axis called '{name}'"
    return None


def _find_sizes_problem(sizes: Sequence[int], names: Sequence[str], devices: int) -> str:
    """Returns why the sizes do not multiply to the number of devices."""
    mesh = f"mesh {format_mesh_shape(names, sizes)}"
    for name, size in zip(names, sizes, strict=True):
        if size < 1 and size != -1:
            return (
                f"mesh axis '{name}' has size {size} in {mesh} over {_format_device_count(devices)}; sizes are "
                "positive, or -1 to infer one"
            )
    if sizes.count(-1) > 1:
        return f"{mesh} over {_format_device_count(devices)} has more than one `-1`"
    needed = _format_device_count(prod(size for size in sizes if size != -1))
    multiple = "a multiple of " if -1 in sizes else ""
    return f"{mesh} needs {multiple}{needed}, but there {'is' if devices == 1 else 'are'} {devices}"


def _format_device_count(number: int) -> str:
    return f"{number} device{'' if number == 1 else 's'}"


def _make_names_distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Adds a number to names that are empty or repeated."""
    result: list[str] = []
    for name in names:
        if not name.strip() or name in result:
            numbered = (f"{name.strip() or 'axis'}_{number}" for number in count(2))
            name = next(candidate for candidate in numbered if candidate not in (*names, *result))
        result.append(name)
    return tuple(result)


def find_nearest_sizes(sizes: Sequence[int], devices: int) -> tuple[int, ...]:
    """Returns the positive sizes with product `devices` that differ least from `sizes`.

    Fewest sizes change; among those, by the smallest ratio; among those, the earliest ones, since later axes
    communicate more and were chosen with more care. Changing a size that is not positive costs nothing. The search
    keeps the best prefix for each product, so it is quadratic in the number of divisors, not exponential in the axes.
    """
    small = [size for size in range(1, isqrt(devices) + 1) if devices % size == 0]
    divisors = {*small, *(devices // size for size in small)}
    # For each product: how many sizes changed, by which ratio, at which positions (as a bit mask), and the new sizes.
    best: dict[int, tuple[Any, ...]] = {1: (0, Fraction(1), 0, ())}
    for position, size in enumerate(sizes):
        next_best: dict[int, tuple[Any, ...]] = {}
        for product, (changes, ratio, mask, nearest) in best.items():
            for new_size in divisors:
                new_product = product * new_size
                if devices % new_product == 0:
                    step = Fraction(max(size, new_size), min(size, new_size)) if size > 0 else Fraction(1)
                    is_changed = step > 1
                    new_mask = mask + (is_changed << position)
                    entry = (changes + is_changed, ratio * step, new_mask, (*nearest, new_size))
                    next_best[new_product] = min(entry, next_best.get(new_product, entry))
        best = next_best
    return best[devices][-1]

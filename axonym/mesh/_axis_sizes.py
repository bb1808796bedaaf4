"""What a mesh is asked to be: names, sizes and axis types, read, checked and resolved.

Nothing here touches a device; the number of devices is just a number. Wrong types are a
`TypeError`, wrong values a `ValueError`. Where sizes do not fit, the error ends with the nearest
fit: sizes that do, written so that `parse_mesh_from_string` reads them back.
"""

import difflib
import operator
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import count as count_from
from math import isqrt, prod
from typing import Any

import numpy as np
from jax.sharding import AxisType


type_names = {"auto": AxisType.Auto, "explicit": AxisType.Explicit, "manual": AxisType.Manual}


def describe(names: Sequence[str], sizes: Sequence[int]) -> str:
    """Writes names with their sizes, as in `(data: 2, model: 4)`."""
    return f"({', '.join(f'{name}: {size}' for name, size in zip(names, sizes, strict=True))})"


def did_you_mean(name: str, options: Sequence[str]) -> str:
    """Ends an error about an unknown name: with the near miss, or else with all names."""
    close = difflib.get_close_matches(name, options, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"the choices are {', '.join(repr(option) for option in options)}"


def as_sizes(sizes: Any, argument: str) -> tuple[int, ...]:
    """Returns `sizes` as a tuple of Python integers, whatever integers they were."""
    if isinstance(sizes, str):
        raise TypeError(
            f"`{argument}` is a sequence of integers, not the string '{sizes}'; `parse_mesh_from_string` reads strings"
        )
    if not isinstance(sizes, (Sequence, np.ndarray)):
        raise TypeError(f"`{argument}` is a sequence of integers such as (2, 4), not {sizes!r}")
    return tuple(_as_size(size, argument) for size in sizes)


def _as_size(size: Any, argument: str) -> int:
    # `True` is an integer to Python, but nobody means a size by it.
    if isinstance(size, (bool, np.bool_)) or not hasattr(size, "__index__"):
        raise TypeError(f"`{argument}` holds {size!r}, which is not an integer")
    return operator.index(size)


def as_names(names: Any, argument: str) -> tuple[str, ...]:
    """Returns `names` as a tuple of strings."""
    # A string is a sequence of strings too, and would quietly name one axis per letter.
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f'`{argument}` is a sequence of strings such as ("data", "model"), not {names!r}')
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"`{argument}` holds {name!r}, which is not a string")
    return tuple(names)


def resolve_axis_types(axis_types: Any, names: Sequence[str]) -> tuple[AxisType, ...]:
    """Returns one axis type per name; None is Auto for all of them."""
    if axis_types is None:
        return (AxisType.Auto,) * len(names)
    if isinstance(axis_types, (str, AxisType)):
        return (_axis_type(axis_types),) * len(names)
    if not isinstance(axis_types, Sequence):
        raise TypeError(
            "`axis_types` is an `AxisType`, one of 'auto', 'explicit' and 'manual', or a sequence "
            f"of those, not {axis_types!r}"
        )
    if len(axis_types) != len(names):
        raise ValueError(
            f"`axis_types` and the mesh axes ({', '.join(names)}) have {len(axis_types)} and "
            f"{len(names)} entries; give one type per axis, or a single one for all of them"
        )
    return tuple(_axis_type(entry) for entry in axis_types)


def _axis_type(entry: Any) -> AxisType:
    if isinstance(entry, AxisType):
        return entry
    if not isinstance(entry, str):
        raise TypeError(f"`axis_types` holds {entry!r}, which is no `AxisType` and no string")
    name = entry.strip().lower()
    if name not in type_names:
        raise ValueError(f"no axis type '{entry}'; {did_you_mean(name, tuple(type_names))}")
    return type_names[name]


def resolve_axes(
    axis_dims: Any, axis_names: Any, devices: int, part: str = "pass {} of them as `devices`"
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Checks the axes of a mesh over so many devices, and fills in a size of -1; `part` is how to ask for fewer."""
    sizes, names = as_sizes(axis_dims, "axis_dims"), as_names(axis_names, "axis_names")
    problem = _axes_problem(sizes, names, devices)
    if problem:
        raise ValueError(f"{problem}; the nearest fit is {_fit(sizes, names, devices)}")
    problem = _sizes_problem(sizes, names, devices)
    if problem:
        fit = _fit(sizes, names, devices) + _or_a_part(sizes, devices, part)
        raise ValueError(f"{problem}; the nearest fit is {fit}")
    return names, fill(sizes, devices)


def fill(sizes: Sequence[int], total: int) -> tuple[int, ...]:
    """Puts what is left of `total` in the place of -1."""
    left = total // prod(size for size in sizes if size != -1)
    return tuple(left if size == -1 else size for size in sizes)


def fills(sizes: Sequence[int], total: int) -> bool:
    """Whether `sizes`, with at most one -1 among them, can multiply to `total` exactly."""
    known = [size for size in sizes if size != -1]
    return min(known, default=1) > 0 and len(sizes) - len(known) <= 1 and prod(fill(sizes, total)) == total


def _axes_problem(sizes: Sequence[int], names: Sequence[str], devices: int) -> str | None:
    over = f"over {_counted(devices)}"
    if len(sizes) != len(names):
        return (
            f"`axis_dims` {tuple(sizes)} and `axis_names` {tuple(names)} for a mesh {over} have "
            f"{len(sizes)} and {len(names)} entries"
        )
    if not names:
        return f"a mesh {over} needs at least one axis"
    mesh = f"mesh {describe(names, sizes)} {over}"
    if not all(name.strip() for name in names):
        return f"{mesh} has an axis with an empty name"
    repeated = [name for i, name in enumerate(names) if name in names[:i]]
    return f"{mesh} has more than one axis called '{repeated[0]}'" if repeated else None


def _sizes_problem(sizes: Sequence[int], names: Sequence[str], devices: int) -> str | None:
    if fills(sizes, devices):
        return None
    mesh = f"mesh {describe(names, sizes)}"
    for name, size in zip(names, sizes, strict=True):
        if size < 1 and size != -1:
            return (
                f"mesh axis '{name}' has size {size} in {mesh} over {_counted(devices)}, where "
                "sizes are positive, or `-1` for what is left"
            )
    if sizes.count(-1) > 1:
        return f"{mesh} over {_counted(devices)} has more than one `-1`"
    needed = prod(size for size in sizes if size != -1)
    wanted = f"a multiple of {_counted(needed)}" if -1 in sizes else _counted(needed)
    return f"{mesh} needs {wanted}, {devices} {'is' if devices == 1 else 'are'} there"


def _fit(sizes: Sequence[int], names: Sequence[str], devices: int) -> str:
    """Describes the nearest mesh that there can be, with new names and sizes where they lack."""
    names = _distinct(names or ("data",))
    padded = (*sizes, *(-1 for _ in names))[: len(names)]
    return describe(names, nearest_fit(padded, devices))


def _or_a_part(sizes: Sequence[int], devices: int, part: str) -> str:
    """Offers a part of the devices where that is all the mesh needs."""
    if min(sizes) < 1 or prod(sizes) > devices:
        return ""
    return f", or {part.format(prod(sizes))}"


def _counted(devices: int) -> str:
    return f"{devices} device{'' if devices == 1 else 's'}"


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names with numbers after those that are empty or repeated."""
    result: list[str] = []
    for name in names:
        numbered = (f"{name.strip() or 'axis'}_{number}" for number in count_from(2))
        if not name.strip() or name in result:
            name = next(new for new in numbered if new not in (*names, *result))
        result.append(name)
    return tuple(result)


def nearest_fit(sizes: Sequence[int], devices: int) -> tuple[int, ...]:
    """Returns the positive sizes with product `devices` that differ least from `sizes`.

    Fewest sizes change; among those, by the smallest ratio; among those, the earliest ones, since
    later axes are the busier ones and were chosen with more care. A size that is not positive
    costs nothing to change. The search keeps the best beginning for every product reached so far,
    so it takes time quadratic in the number of divisors, not exponential in the number of axes.
    """
    small = [size for size in range(1, isqrt(devices) + 1) if devices % size == 0]
    divisors = [*small, *(devices // size for size in reversed(small) if size * size != devices)]
    best: dict[int, tuple[Any, ...]] = {1: (0, Fraction(1), 0, ())}
    for position, size in enumerate(sizes):
        longer: dict[int, tuple[Any, ...]] = {}
        for reached, (changes, ratio, places, chosen) in best.items():
            for new in divisors:
                step = _cost(size, new)
                entry = (
                    changes + (step > 1),
                    ratio * step,
                    places + (step > 1) * 2**position,
                    (*chosen, new),
                )
                longer[reached * new] = min(entry, longer.get(reached * new, entry))
        best = {reached: entry for reached, entry in longer.items() if devices % reached == 0}
    return best[devices][-1]


def _cost(size: int, new: int) -> Fraction:
    return Fraction(max(size, new), min(size, new)) if size > 0 else Fraction(1)


def read_sizes(text: Any, names: Sequence[str]) -> tuple[int, ...]:
    """Reads '2,4' or 'dp:2, tp:4' into one size per name."""
    if not isinstance(text, str):
        raise TypeError(f"`axis_dims` is a string such as '2,4' or 'dp:2, tp:4', not {text!r}")
    if not text.strip():
        raise ValueError(
            f"the mesh string '{text}' is empty; write sizes as in '2,4', or names with sizes as in 'dp:2, tp:4'"
        )
    pieces = [piece.strip() for piece in text.split(",")]
    if "" in pieces:
        raise ValueError(
            f"entry {pieces.index('') + 1} of the mesh string '{text}' is empty; a comma stands "
            "between two entries only"
        )
    if ":" in text or "=" in text:
        return _read_named(pieces, text, names)
    return _read_positional(pieces, text, names)


def _read_positional(pieces: list[str], text: str, names: Sequence[str]) -> tuple[int, ...]:
    sizes = tuple(_read_size(piece, piece, text) for piece in pieces)
    if len(sizes) != len(names):
        raise ValueError(
            f"the mesh string '{text}' and the names {tuple(names)} have {len(sizes)} and "
            f"{len(names)} entries; give one size per name, or name those that are not 1, as in "
            "'dp:2'"
        )
    return sizes


def _read_named(pieces: list[str], text: str, names: Sequence[str]) -> tuple[int, ...]:
    sizes: dict[str, int] = {}
    for piece, name, size in _split(pieces, text):
        if name not in names:
            raise ValueError(f"no mesh axis '{name}' for '{text}'; {did_you_mean(name, names)}")
        if name in sizes:
            raise ValueError(f"mesh axis '{name}' is in '{text}' twice; give it one size")
        sizes[name] = _read_size(size, piece, text)
    return tuple(sizes.get(name, 1) for name in names)


def _split(pieces: list[str], text: str) -> Iterator[tuple[str, str, str]]:
    for piece in pieces:
        # From the right, so that a name may hold a colon of its own.
        name, colon, size = (part.strip() for part in piece.rpartition(":"))
        if not colon and "=" in piece:
            name, _, size = (part.strip() for part in piece.partition("="))
            raise ValueError(f"'{piece}' in '{text}' is not `name:size`; write '{name}:{size}'")
        if not colon:
            raise ValueError(f"'{piece}' in '{text}' is not `name:size`; give every entry a name, or none")
        yield piece, name, size


def _read_size(size: str, piece: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?\s*[0-9]+", size):
        raise ValueError(
            f"'{piece}' in the mesh string '{text}' has no integer for a size; give a positive "
            "one, or -1 for what is left"
        )
    return int("".join(size.split()))

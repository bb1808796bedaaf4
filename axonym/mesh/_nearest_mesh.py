"""Fits the axes of a mesh to a number of devices, or raises with the nearest mesh that fits.

That mesh is written so that `parse_mesh_from_string` reads it back.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import count
from math import isqrt, prod
from typing import Any

from ._axis_sizes import DEFAULT_NAMES, as_names, as_sizes, can_fill, fill_wildcard, format_mesh_shape


def resolve_axes(
    axis_dims: Any, axis_names: Any, devices: int, subset: str = "pass {} of them as `devices`"
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Checks the axes of a mesh over so many devices and infers a size of -1; `subset` suggests using fewer devices."""
    sizes, names = as_sizes(axis_dims, "axis_dims"), as_names(axis_names, "axis_names")
    if sizes and names == DEFAULT_NAMES and len(sizes) != len(names):
        raise _make_default_names_error(sizes)
    problem = _find_axes_problem(sizes, names, devices)
    alternative = ""
    if not problem and not can_fill(sizes, devices):
        problem = _find_sizes_problem(sizes, names, devices)
        if min(sizes) > 0 and prod(sizes) < devices:
            alternative = f", or {subset.format(prod(sizes))}"
    if problem:
        raise ValueError(f"{problem}; the nearest fit is {_format_nearest_mesh(sizes, names, devices)}{alternative}")
    return names, fill_wildcard(sizes, devices)


def _make_default_names_error(sizes: Sequence[int]) -> ValueError:
    names = ", ".join(('"data"', '"model"', "...")[: len(sizes)]) + ("," if len(sizes) == 1 else "")
    return ValueError(
        f"`axis_dims` {tuple(sizes)} and the default `axis_names` {DEFAULT_NAMES} have {len(sizes)} and "
        f"{len(DEFAULT_NAMES)} entries; give names too, as in `create_mesh({tuple(sizes)}, ({names}))`"
    )


def _find_axes_problem(sizes: Sequence[int], names: Sequence[str], devices: int) -> str | None:
    """Returns a problem of the axes other than the product of their sizes, or None."""
    over = f"over {_format_device_count(devices)}"
    if len(sizes) != len(names):
        return (
            f"`axis_dims` {tuple(sizes)} and `axis_names` {tuple(names)} for a mesh {over} have "
            f"{len(sizes)} and {len(names)} entries"
        )
    if not names:
        return f"a mesh {over} needs at least one axis"
    mesh = f"mesh {format_mesh_shape(names, sizes)} {over}"
    if not all(name.strip() for name in names):
        return f"{mesh} has an axis with an empty name"
    repeated = [name for i, name in enumerate(names) if name in names[:i]]
    return f"{mesh} has more than one axis called '{repeated[0]}'" if repeated else None


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


def _format_nearest_mesh(sizes: Sequence[int], names: Sequence[str], devices: int) -> str:
    """Writes the nearest mesh that fits, with names and sizes added where they are missing."""
    names = _make_names_distinct(names or ("data",))
    padded = (*sizes, *(-1 for _ in names))[: len(names)]
    return format_mesh_shape(names, find_nearest_sizes(padded, devices))


def _make_names_distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Adds a number to names that are empty or repeated."""
    result: list[str] = []
    for name in names:
        numbered = (f"{name.strip() or 'axis'}_{number}" for number in count(2))
        if not name.strip() or name in result:
            name = next(new for new in numbered if new not in (*names, *result))
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
        longer: dict[int, tuple[Any, ...]] = {}
        for product, (changes, ratio, mask, chosen) in best.items():
            for new in divisors:
                if devices % (product * new) == 0:
                    step = Fraction(max(size, new), min(size, new)) if size > 0 else Fraction(1)
                    entry = (changes + (step > 1), ratio * step, mask + (step > 1) * 2**position, (*chosen, new))
                    longer[product * new] = min(entry, longer.get(product * new, entry))
        best = longer
    return best[devices][-1]

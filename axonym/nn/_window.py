"""Windows that slide along named axes, for convolutions and pooling: their sizes, strides and padding by axis."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax

from ..named._arguments import check_integer
from ..named._axis import AxisSelector, Names, axis_name
from ..named._format import format_axes, format_value


ByAxis: TypeAlias = int | Sequence[int] | Mapping[AxisSelector, int]
"""A number for all axes, one for each axis in order, or one for each axis by name."""

Pairs: TypeAlias = tuple[tuple[int, int], ...]
"""For each axis how much is added before and after it."""

Padding: TypeAlias = str | int | Sequence[int | tuple[int, int]] | Mapping[AxisSelector, int | tuple[int, int]]
"""`"VALID"`, `"SAME"` or `"SAME_LOWER"`; or a number or a pair of numbers, before and after, by axis."""

_PADDINGS = ("VALID", "SAME", "SAME_LOWER")


def parse_by_axis(layer: str, option: str, value: Any, names: Names, least: int = 1) -> tuple[int, ...]:
    """Returns an integer of at least `least` for each axis."""
    values = _split_by_axis(layer, option, value, names)
    pairs = zip(names, values, strict=True)
    return tuple([check_integer(f"{layer}: `{option}` along axis {name!r}", one, least) for name, one in pairs])


def parse_padding(layer: str, padding: Any, names: Names) -> str | Pairs:
    """Returns the name of a padding, or pairs of numbers for all axes."""
    if isinstance(padding, str):
        if padding.upper() not in _PADDINGS:
            raise ValueError(f"{layer}: `padding` is one of {', '.join(_PADDINGS)} or numbers, not {padding!r}")
        return padding.upper()
    values = _split_by_axis(layer, "padding", padding, names)
    return tuple([_parse_pair(layer, name, value) for name, value in zip(names, values, strict=True)])


def _parse_pair(layer: str, name: str, value: Any) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"{layer}: `padding` along an axis is a number or two of them, not {format_value(value)}")
    before, after = (check_integer(f"{layer}: `padding` along axis {name!r}", number, 0) for number in pair)
    return before, after


def _split_by_axis(layer: str, option: str, value: Any, names: Names) -> tuple[Any, ...]:
    """Returns the value for each axis."""
    if isinstance(value, Mapping):
        given = {axis_name(axis): one for axis, one in value.items()}
        if set(given) != set(names):
            raise ValueError(f"{layer}: `{option}` is given for {format_axes([*given])}, not for {format_axes(names)}")
        return tuple(given[name] for name in names)
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != len(names):
            raise ValueError(
                f"{layer}: `{option}` has {len(value)} entries for the {len(names)} axes {format_axes(names)}"
            )
        return tuple(value)
    return (value,) * len(names)


def find_padding(
    layer: str, padding: str | Pairs, names: Names, sizes: tuple[int, ...], windows: tuple[int, ...], strides: Any
) -> Pairs:
    """Returns the padding of axes of these sizes, after checking that a window fits into each of them."""
    pairs = jax.lax.padtype_to_pads(sizes, windows, strides, padding) if isinstance(padding, str) else padding
    pairs = tuple([(int(before), int(after)) for before, after in pairs])
    for name, size, window, (before, after) in zip(names, sizes, windows, pairs, strict=True):
        if before + size + after < window:
            raise ValueError(
                f"{layer}: axis {name!r} of size {size}, padded to {before + size + after}, is shorter than the window "
                f"of {window}; increase `padding`"
            )
    return pairs

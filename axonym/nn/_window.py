"""Windows that slide along named axes, for convolutions and pooling: options by axis, and the halos of sharded axes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from .._ground.arguments import check_integer
from .._ground.formats import format_axes, format_value
from ..named._axis import AxisSelector, Names, axis_name
from ..named._axis_layout import AxisLayout


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
    return tuple([check_integer(f"{layer}: `{option}` along axis {name!r}", number, least) for name, number in pairs])


def parse_padding(layer: str, padding: Any, names: Names) -> str | Pairs:
    """Returns the name of a padding, or pairs of numbers for all axes."""
    if isinstance(padding, str):
        if padding.upper() not in _PADDINGS:
            raise ValueError(f"{layer}: `padding` is one of {', '.join(_PADDINGS)} or numbers, not {padding!r}")
        return padding.upper()
    pairs: list[tuple[int, int]] = []
    for name, value in zip(names, _split_by_axis(layer, "padding", padding, names), strict=True):
        pair = value if isinstance(value, tuple | list) else (value, value)
        if len(pair) != 2:
            raise ValueError(f"{layer}: `padding` along an axis is a number or two of them, not {format_value(value)}")
        before, after = (check_integer(f"{layer}: `padding` along axis {name!r}", number, 0) for number in pair)
        pairs.append((before, after))
    return tuple(pairs)


def _split_by_axis(layer: str, option: str, value: Any, names: Names) -> tuple[Any, ...]:
    """Returns the value for each axis."""
    if isinstance(value, Mapping):
        by_name = {axis_name(axis): entry for axis, entry in value.items()}
        if set(by_name) != set(names):
            raise ValueError(
                f"{layer}: `{option}` is given for {format_axes([*by_name])}, not for {format_axes(names)}"
            )
        return tuple(by_name[name] for name in names)
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


class Halo(NamedTuple):
    """What a device needs from its neighbours for its part of a result, along one axis."""

    before: int
    """How many elements of the device before."""
    after: int
    """How many elements of the device after."""
    padding: tuple[int, int]
    """How much is then added at both ends, or cut off where it is negative."""


def plan_halo(
    count: int, size: int, result_size: int, window: int, stride: int, start: int, spread: int = 1
) -> Halo | None:
    """Returns the halo of an axis in `count` shards, None if devices need different parts or those of far neighbours.

    Args:
        count: The number of shards.
        size: The number of elements.
        result_size: The number of windows.
        window: How many elements a window spans.
        stride: How far it moves each time.
        start: How many elements are added before the first one.
        spread: The distance between elements where zeros are put between them; the three before count these zeros.
    """
    # The last condition: the windows of a shard begin where its elements do, on each device.
    if count == 1 or size % count or result_size % count or result_size * stride != size * spread:
        return None
    shard = size // count
    # Where the last window ends, from the first element of the shard on.
    end = (result_size // count - 1) * stride - start + window
    # `-(-n // spread)` rounds up.
    before, after = max(0, -(-start // spread)), max(0, -(-end // spread) - shard)
    if max(before, after) > shard:
        return None
    return Halo(before, after, (start - before * spread, end - (shard + after - 1) * spread - 1))


def add_halo(x: Any, dim: int, halo: Halo, layout: AxisLayout, axis: str, fill: Any) -> Any:
    """Returns the shard of a device with the elements of its neighbours; beyond the ends there is a fill value."""
    mesh_axes, count = layout.list_mesh_axes((axis,)), layout.count_shards((axis,))
    device_index, size = jax.lax.axis_index(mesh_axes), x.shape[dim]
    parts = [x]
    if halo.before:
        last = jax.lax.slice_in_dim(x, size - halo.before, size, axis=dim)
        halo_before = jax.lax.ppermute(last, mesh_axes, [(device, device + 1) for device in range(count - 1)])
        parts.insert(0, jnp.where(device_index == 0, fill, halo_before))
    if halo.after:
        first = jax.lax.slice_in_dim(x, 0, halo.after, axis=dim)
        halo_after = jax.lax.ppermute(first, mesh_axes, [(device + 1, device) for device in range(count - 1)])
        parts.append(jnp.where(device_index == count - 1, fill, halo_after))
    return jnp.concatenate(parts, axis=dim)

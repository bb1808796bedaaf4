"""What arrays cost in bytes: whole, on each device, and in copies; everything that counts memory counts here."""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from ._resolve_spec import MeshLike


class Load(NamedTuple):
    """What an array costs: on each device that holds it, and on which those are, if that is known and matters."""

    bytes: int
    per_device: int
    devices: int
    held_by: frozenset[Any] | None = None

    @property
    def replicated(self) -> int:
        """Returns what is held beyond one copy."""
        return max(self.per_device * self.devices - self.bytes, 0)


@functools.lru_cache(maxsize=256)
def count_element_bits(dtype: Any) -> int:
    """Returns the bits of an element; a random key counts by its data."""
    if jnp.issubdtype(dtype, jax.dtypes.extended) or dtype.kind in "USOMm" or dtype == jax.dtypes.float0:
        return dtype.itemsize * 8
    return jax.dtypes.itemsize_bits(dtype)


def count_array_bytes(dtype: Any, shape: Sequence[int]) -> int:
    """Returns the bytes of an array, elements of less than a byte by their bits."""
    return -(-math.prod(shape) * count_element_bits(dtype) // 8)


def count_devices(mesh: MeshLike) -> int:
    """Returns the number of devices of a mesh that do not differ in Manual mesh axes alone."""
    types = zip(mesh.axis_types, mesh.shape.values(), strict=True)
    return math.prod(size for kind, size in types if kind != AxisType.Manual)


def sum_device_bytes(loads: Iterable[Load]) -> tuple[int, dict[Any, int]]:
    """Returns what every device holds of some arrays, and what the known devices hold beside that."""
    everywhere = 0
    groups: dict[frozenset[Any], int] = {}
    for load in loads:
        if load.held_by is None:
            everywhere += load.per_device
        else:
            groups[load.held_by] = groups.get(load.held_by, 0) + load.per_device
    held: dict[Any, int] = {}
    for devices, share in groups.items():
        for device in devices:
            held[device] = held.get(device, 0) + share
    return everywhere, held


def get_fullest_device_bytes(everywhere: int, held: dict[Any, int]) -> int:
    """Returns what the fullest device holds, from what `bytes_on_each` returns."""
    return everywhere + max(held.values(), default=0)

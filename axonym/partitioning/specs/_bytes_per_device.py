"""The bytes of arrays: in all, on each device, and in copies."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from ._active_mesh import MeshLike


class Load(NamedTuple):
    """The bytes of an array, in all and on each device that holds it, and which devices hold it if that is known."""

    bytes: int
    per_device: int
    devices: int
    held_by: frozenset[Any] | None = None

    @property
    def replicated(self) -> int:
        """Returns the bytes held beyond one copy."""
        return max(self.per_device * self.devices - self.bytes, 0)


def count_array_bytes(dtype: Any, shape: Sequence[int]) -> int:
    """Returns the bytes of an array, with elements smaller than a byte counted by bits, and random keys by data."""
    has_bits = not (jnp.issubdtype(dtype, jax.dtypes.extended) or dtype.kind in "USOMm" or dtype == jax.dtypes.float0)
    bits = jax.dtypes.itemsize_bits(dtype) if has_bits else dtype.itemsize * 8
    return -(-math.prod(shape) * bits // 8)


def count_devices(mesh: MeshLike) -> int:
    """Returns the number of devices of a mesh, not counting its Manual axes."""
    types = zip(mesh.axis_types, mesh.shape.values(), strict=True)
    return math.prod(size for kind, size in types if kind != AxisType.Manual)


def sum_device_bytes(loads: Iterable[Load]) -> tuple[int, dict[Any, int]]:
    """Returns the bytes that every device holds, and the additional bytes of each known device."""
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
    """Returns the bytes on the fullest device, from the results of `sum_device_bytes`."""
    return everywhere + max(held.values(), default=0)

"""A mesh without devices: for planning on a laptop what a machine elsewhere will do.

It is JAX's own `AbstractMesh`, checked as `create_mesh` checks a mesh of devices.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from jax.sharding import AbstractMesh

from ._axis_sizes import as_names, as_sizes, describe, read_sizes, resolve_axes, resolve_axis_types
from ._create import AxisTypes


def create_abstract_mesh(
    axis_dims: Sequence[int] | str,
    axis_names: Sequence[str],
    *,
    axis_types: AxisTypes = None,
    device_count: int | None = None,
) -> AbstractMesh:
    """Makes a mesh without devices, to plan for a machine that is not there.

    Whatever asks for sizes and names alone takes it: [`shard`][axonym.shard] of `jax.ShapeDtypeStruct`s,
    [`sharding_for_axis`][axonym.sharding_for_axis], and, within
    `jax.sharding.use_abstract_mesh(mesh)`, `eval_shape` of a function made by
    [`named_jit`][axonym.named_jit]. Nothing is allocated, and sizes that do not fit are the errors
    that the machine itself would give.

    Args:
        axis_dims: The size of each mesh axis, or a string that says so, as
            [`parse_mesh_from_string`][axonym.parse_mesh_from_string] takes it.
        axis_names: The name of each mesh axis, all of them different.
        axis_types: As in [`create_mesh`][axonym.create_mesh]: None is Auto, whatever the version of
            JAX makes of an `AbstractMesh` without types.
        device_count: How many devices the machine has; None is as many as the sizes need. One size
            may be -1 where the number is given.

    Returns:
        The mesh.

    Raises:
        TypeError: A size is not an integer, or a name is not a string.
        ValueError: Sizes, names, axis types and the number of devices do not fit each other. The
            message shows sizes that do.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_abstract_mesh((-1, 8), ("data", "model"), device_count=1024)
        >>> dict(mesh.shape)
        {'data': 128, 'model': 8}
        >>> weight = nym.sharding_for_axis(("embed", "mlp"), {"embed": "data", "mlp": "model"}, mesh)
        >>> weight.shard_shape((4096, 16384))
        (32, 2048)
        >>> nym.create_abstract_mesh((100, 8), ("data", "model"), device_count=1024)
        Traceback (most recent call last):
            ...
        ValueError: mesh (data: 100, model: 8) needs 800 devices, 1024 are there; the nearest fit is \
(data: 128, model: 8), or say `device_count=800`
    """
    sizes = read_sizes(axis_dims, as_names(axis_names, "axis_names")) if isinstance(axis_dims, str) else axis_dims
    sizes = as_sizes(sizes, "axis_dims")
    devices = _device_count(device_count, sizes, as_names(axis_names, "axis_names"))
    names, sizes = resolve_axes(sizes, axis_names, devices, "say `device_count={}`")
    return AbstractMesh(sizes, names, resolve_axis_types(axis_types, names))


def _device_count(count: Any, sizes: tuple[int, ...], names: tuple[str, ...]) -> int:
    """Returns how many devices are planned for: those stated, or else those that the sizes need."""
    if count is not None:
        (count,) = as_sizes((count,), "device_count")
        if count < 1:
            raise ValueError(f"`device_count` is {count}; a mesh is planned for at least one device")
        return count
    if -1 in sizes and len(sizes) == len(names):
        raise ValueError(
            f"mesh {describe(names, sizes)} takes what is left of a number of devices, and none is given; "
            "say how many there are with `device_count`"
        )
    # A size below 1 is an error that comes next, and counts for nothing here.
    return prod(size for size in sizes if size > 0)

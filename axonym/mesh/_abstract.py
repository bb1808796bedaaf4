"""`create_abstract_mesh`: a mesh without devices, to plan on a laptop for a machine elsewhere."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from jax.sharding import AbstractMesh

from ._axis_sizes import as_names, as_sizes, format_mesh_shape, parse_sizes, resolve_axis_types, split_axes
from ._create import AxisTypes
from ._nearest_mesh import resolve_axes


def create_abstract_mesh(
    axis_dims: Sequence[int] | Mapping[str, int] | str,
    axis_names: Sequence[str] = (),
    *,
    axis_types: AxisTypes = None,
    device_count: int | None = None,
) -> AbstractMesh:
    """Makes a mesh without devices, to plan for a machine that you do not have.

    Use it where sizes and names are enough: for [`shard`][axonym.shard] of `jax.ShapeDtypeStruct`s, for
    [`sharding_for_axis`][axonym.sharding_for_axis], and, within `jax.sharding.use_abstract_mesh(mesh)`, for
    `eval_shape` of a function made by [`named_jit`][axonym.named_jit]. Nothing is allocated, and sizes that do not fit
    raise the same errors as on the real machine.

    Args:
        axis_dims: The size of each mesh axis, a mapping from names to sizes, or a string as in
            [`parse_mesh_from_string`][axonym.parse_mesh_from_string].
        axis_names: The name of each mesh axis, all of them different; leave them out if `axis_dims` is a mapping.
        axis_types: As in [`create_mesh`][axonym.create_mesh]; None is Auto in every version of JAX.
        device_count: The number of devices of the machine; None for as many as the sizes need. If it is given, one
            size may be -1.

    Returns:
        The mesh.

    Raises:
        TypeError: A size is not an integer, or a name is not a string.
        ValueError: Sizes, names, axis types and the number of devices do not fit each other. The message suggests
            sizes that do.

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
        ValueError: mesh (data: 100, model: 8) needs 800 devices, but there are 1024; the nearest fit is \
(data: 128, model: 8), or pass `device_count=800`
    """
    axis_dims, axis_names = split_axes(axis_dims, axis_names)
    names = as_names(axis_names, "axis_names")
    sizes = parse_sizes(axis_dims, names) if isinstance(axis_dims, str) else as_sizes(axis_dims, "axis_dims")
    devices = _count_planned_devices(device_count, sizes, names)
    names, sizes = resolve_axes(sizes, names, devices, "pass `device_count={}`")
    return AbstractMesh(sizes, names, resolve_axis_types(axis_types, names))


def _count_planned_devices(count: Any, sizes: tuple[int, ...], names: tuple[str, ...]) -> int:
    """Returns the number of devices that is given, or else the number that the sizes need."""
    if count is not None:
        (count,) = as_sizes((count,), "device_count")
        if count < 1:
            raise ValueError(f"`device_count` is {count}; a mesh needs at least one device")
        return count
    if -1 in sizes and len(sizes) == len(names):
        raise ValueError(
            f"mesh {format_mesh_shape(names, sizes)} has a size to infer from the number of devices; pass "
            "`device_count`"
        )
    # `resolve_axes` raises for sizes below 1.
    return prod(size for size in sizes if size > 0)

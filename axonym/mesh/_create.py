"""`create_mesh` makes a mesh from sizes and names, `parse_mesh_from_string` from the string of a flag.

Nothing is cached: each call makes a new mesh from the devices present at that time.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from jax.sharding import AxisType, Mesh

from ._axis_sizes import as_names, parse_sizes, resolve_axis_types, split_axes
from ._nearest_mesh import resolve_axes
from ._topology import Device, arrange_devices, make_jax_mesh, select_devices, spans_slices


AxisTypes: TypeAlias = AxisType | str | Sequence[AxisType | str] | None


def create_mesh(
    axis_dims: Sequence[int] | Mapping[str, int] = (1, -1, 1, 1, 1),
    axis_names: Sequence[str] = ("dp", "fsdp", "ep", "tp", "sp"),
    dcn_mesh_dims: Sequence[int] | Mapping[str, int] | None = None,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = True,
    backend: str | None = None,
    use_jax: bool = False,
    axis_types: AxisTypes = None,
    *,
    devices: Sequence[Device] | None = None,
) -> Mesh:
    """Makes a mesh with exactly these axes over all devices, or over those given.

    Order the axes by how much they communicate, the busiest last: neighbors on the last axis are neighbors in the
    network. If the devices are in several slices (on GPUs, machines), the earliest axes cross the slow network between
    them as far as they can, and the others stay within a slice. Devices of CPU processes are ordered by process and id.

    Args:
        axis_dims: The size of each mesh axis, or a mapping from names to sizes, such as `{"data": 2, "model": 4}`. One
            size may be -1, to infer it from the number of devices.
        axis_names: The name of each mesh axis, all of them different; leave them out if `axis_dims` is a mapping.
        dcn_mesh_dims: For each mesh axis, the factor of its size that crosses slices, or processes if there is only one
            slice; or a mapping of the factors that are not 1, such as `{"data": 2}`. They multiply to the number of
            slices; one may be -1. None chooses them. The sizes of the mesh are `axis_dims` either way.
        should_sort_granules_by_key: Whether slices or processes are ordered by index, instead of by their first
            occurrence among the devices.
        allow_split_physical_axes: Whether an axis of the physical network may be split among several mesh axes.
        backend: The backend whose devices are used: "cpu", "gpu" or "tpu". None is JAX's default backend.
        use_jax: Whether `jax.make_mesh` builds the mesh. It chooses `allow_split_physical_axes` itself, and is not used
            with several slices or `dcn_mesh_dims`, which it does not support. Axes, sizes and axis types are the same
            either way.
        axis_types: An `AxisType` or its name ("auto", "explicit", "manual") for all axes, or a sequence with one for
            each. None is Auto.
        devices: The devices to use, instead of all devices of a backend. On CPU they keep their order; on GPU and TPU
            JAX orders them by their place in the network.

    Returns:
        The mesh. Use it with `jax.set_mesh(mesh)`, or pass it to a `NamedSharding`.

    Raises:
        TypeError: A size is not an integer, a name is not a string, or an argument is not a sequence.
        ValueError: Sizes, names, axis types or DCN factors do not fit each other or the devices. The message suggests
            sizes that do.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh((2, 4), ("data", "model"))
        >>> dict(mesh.shape)
        {'data': 2, 'model': 4}
        >>> dict(nym.create_mesh({"data": 2, "model": -1}).shape)
        {'data': 2, 'model': 4}
        >>> nym.create_mesh((3, 4), ("x", "y"))
        Traceback (most recent call last):
            ...
        ValueError: mesh (x: 3, y: 4) needs 12 devices, but there are 8; the nearest fit is (x: 2, y: 4)
    """
    selected = select_devices(devices, backend)
    names, sizes = resolve_axes(*split_axes(axis_dims, axis_names), len(selected))
    types = resolve_axis_types(axis_types, names)
    if use_jax and dcn_mesh_dims is None and not spans_slices(selected):
        return make_jax_mesh(names, sizes, types, selected)
    arranged = arrange_devices(
        names,
        sizes,
        selected,
        dcn_mesh_dims,
        should_sort_granules_by_key=should_sort_granules_by_key,
        allow_split_physical_axes=allow_split_physical_axes,
    )
    return Mesh(arranged, names, axis_types=types)


def parse_mesh_from_string(
    axis_dims: str,
    names: Sequence[str],
    *,
    axis_types: AxisTypes = None,
    devices: Sequence[Device] | None = None,
    backend: str | None = None,
    dcn_mesh_dims: str | Sequence[int] | Mapping[str, int] | None = None,
) -> Mesh:
    """Makes the mesh that a string specifies, as in a flag or a configuration file.

    Args:
        axis_dims: Names with sizes in any order, "dp:2, tp:4", where omitted names get size 1; or sizes alone, "2, 4",
            one for each name in order. One size may be -1, to infer it from the number of devices. Spaces are ignored.
        names: The names of the mesh axes. The mesh has all of them, in this order.
        axis_types: As in [`create_mesh`][axonym.create_mesh].
        devices: As in [`create_mesh`][axonym.create_mesh].
        backend: As in [`create_mesh`][axonym.create_mesh].
        dcn_mesh_dims: As in [`create_mesh`][axonym.create_mesh], or a string in the form of `axis_dims`, "dp:2".

    Returns:
        The mesh, as from [`create_mesh`][axonym.create_mesh].

    Raises:
        TypeError: `axis_dims` is not a string, or `names` is not a sequence of strings.
        ValueError: The string cannot be parsed, or its mesh does not fit the devices.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.parse_mesh_from_string("model:4, data:2", ["data", "model", "expert"])
        >>> dict(mesh.shape)
        {'data': 2, 'model': 4, 'expert': 1}
        >>> dict(nym.parse_mesh_from_string("2, -1", ["data", "model"]).shape)
        {'data': 2, 'model': 4}
    """
    axis_names = as_names(names, "names")
    sizes = parse_sizes(axis_dims, axis_names)
    dcn = parse_sizes(dcn_mesh_dims, axis_names) if isinstance(dcn_mesh_dims, str) else dcn_mesh_dims
    return create_mesh(sizes, axis_names, dcn, backend=backend, axis_types=axis_types, devices=devices)

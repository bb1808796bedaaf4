"""Functions that make meshes, with or without devices, and `set_mesh`, which activates one.

Nothing is cached: each call makes a new mesh from the devices present at that time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import prod
from typing import Any, TypeAlias

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from .._ground.jax_compat import is_tracing
from ._axis_sizes import (
    as_names,
    as_sizes,
    format_mesh_shape,
    parse_sizes,
    resolve_axes,
    resolve_axis_types,
    split_axes,
)
from ._device_layout import Device, arrange_devices, make_jax_mesh, select_devices, spans_slices


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
    """Returns the number of devices: `count`, or the product of the sizes if it is None."""
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


def create_cpu_mesh(
    axis_dims: Sequence[int] | Mapping[str, int] = (1, -1, 1, 1, 1),
    axis_names: Sequence[str] = ("dp", "fsdp", "ep", "tp", "sp"),
    *,
    axis_types: AxisTypes = None,
) -> Mesh:
    """Makes a mesh over all CPU devices, whatever JAX's default backend is.

    A process has one CPU device unless you set `jax.config.update("jax_num_cpu_devices", 8)` at its start. In a cluster
    of CPU processes the mesh uses the devices of all of them.

    Args:
        axis_dims: The size of each mesh axis, or a mapping, as in [`create_mesh`][axonym.create_mesh].
        axis_names: The name of each mesh axis.
        axis_types: As in [`create_mesh`][axonym.create_mesh].

    Returns:
        The mesh.

    Raises:
        TypeError: A size is not an integer, or a name is not a string.
        ValueError: The sizes do not multiply to the number of CPU devices.

    Example:
        >>> import axonym as nym
        >>> dict(nym.create_cpu_mesh((4, -1), ("data", "model")).shape)
        {'data': 4, 'model': 2}
    """
    return create_mesh(axis_dims, axis_names, backend="cpu", axis_types=axis_types)


@contextmanager
def force_cpu() -> Iterator[Device]:
    """Makes the first CPU device of this process JAX's default device within a `with` block.

    New arrays are created there and computations run there. An active mesh would put arrays on its own devices, so it
    is deactivated; activate one inside the block if you need it. Arrays that are committed to a device (by
    `jax.device_put`, or because they are sharded) stay there, and so do results computed from them. Inside `jax.jit`
    the block has no effect: a compiled function runs where its arguments are. A thread started within the block does
    not inherit the default. The previous default and mesh are restored at the end, also after an exception.

    Yields:
        The CPU device.

    Example:
        >>> import axonym as nym
        >>> import jax.numpy as jnp
        >>> with nym.force_cpu() as device:
        ...     x = jnp.ones((4, 4))
        >>> x.device == device
        True
    """
    device = jax.local_devices(backend="cpu")[0]
    with ExitStack() as stack:
        stack.enter_context(jax.default_device(device))
        if not is_tracing():  # `jax.set_mesh` raises inside `jax.jit`
            stack.enter_context(jax.set_mesh(None))
        yield device


@contextmanager
def cpu_context(
    axis_dims: Sequence[int] | Mapping[str, int] = (1, -1, 1, 1, 1),
    axis_names: Sequence[str] = ("dp", "fsdp", "ep", "tp", "sp"),
    *,
    axis_types: AxisTypes = None,
) -> Iterator[Mesh]:
    """Makes the CPU the default device and activates a CPU mesh within a `with` block.

    It is [`force_cpu`][axonym.force_cpu] followed by `jax.set_mesh` of [`create_cpu_mesh`][axonym.create_cpu_mesh], so
    a bare `PartitionSpec` works wherever JAX takes a sharding. As in [`force_cpu`][axonym.force_cpu], committed arrays
    stay where they are, and other threads do not inherit anything. The previous default device and mesh are restored at
    the end, also after an exception. It cannot be entered inside `jax.jit`.

    Args:
        axis_dims: The size of each mesh axis, or a mapping, as in [`create_mesh`][axonym.create_mesh].
        axis_names: The name of each mesh axis.
        axis_types: As in [`create_mesh`][axonym.create_mesh].

    Yields:
        The mesh.

    Raises:
        TypeError: A size is not an integer, or a name is not a string.
        ValueError: The sizes do not multiply to the number of CPU devices.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec
        >>> with nym.cpu_context() as mesh:
        ...     x = jax.device_put(jnp.ones((8, 4)), PartitionSpec("fsdp"))
        >>> dict(mesh.shape)
        {'dp': 1, 'fsdp': 8, 'ep': 1, 'tp': 1, 'sp': 1}
        >>> x.sharding.mesh == mesh
        True
    """
    mesh = create_cpu_mesh(axis_dims, axis_names, axis_types=axis_types)
    with force_cpu(), jax.set_mesh(mesh):
        yield mesh


def set_mesh(mesh: Mesh | AbstractMesh | None) -> AbstractContextManager[Any]:
    """Activates a mesh, for a `with` block or, as a plain call, for the rest of the program.

    For a mesh with devices it is `jax.set_mesh`, and you can mix the two. The active mesh belongs to this thread; a new
    thread starts without one. After a `with` block the previous mesh is active again, also after an exception. It
    cannot be called inside `jax.jit`.

    Args:
        mesh: The mesh. An `AbstractMesh` is activated for planning, with `jax.sharding.use_abstract_mesh`: shapes can
            be sharded on it, arrays cannot. None deactivates the current mesh.

    Returns:
        A context manager. The mesh is active as soon as the call returns.

    Raises:
        TypeError: It is not a mesh. The message shows how to make one.
        ValueError: The mesh has Manual axes, which `shard_map` makes, or the call is inside `jax.jit`.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> with nym.set_mesh(mesh):
        ...     print(nym.shard(nym.zeros({"batch": 8}), {"batch": "data"}).sharding.spec)
        P('data',)
        >>> nym.set_mesh("data:4, model:2")
        Traceback (most recent call last):
            ...
        TypeError: `set_mesh` takes a mesh, not a string; make one of it with `parse_mesh_from_string`
    """
    if mesh is None:
        return jax.set_mesh(None)
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(f"`set_mesh` takes a mesh, not {_describe_non_mesh(mesh)}")
    manual_axes = [name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Manual]
    if manual_axes:
        raise ValueError(
            f"mesh axis {manual_axes[0]!r} is Manual, and the axes of an active mesh are Auto or Explicit; make the "
            "mesh with other `axis_types`, and let `shard_map` make axes Manual"
        )
    if isinstance(mesh, Mesh):
        return jax.set_mesh(mesh)
    # `use_abstract_mesh` leaves a mesh with devices active and takes effect only in a `with` block, so both are entered
    # here: the mesh is active when this returns, as with `jax.set_mesh`.
    with ExitStack() as stack:
        stack.enter_context(jax.set_mesh(None))
        stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
        return stack.pop_all()


def _describe_non_mesh(value: Any) -> str:
    """Returns what was passed instead of a mesh, and how to make a mesh of it."""
    kind = type(value).__name__
    if isinstance(value, str):
        return "a string; make one of it with `parse_mesh_from_string`"
    if isinstance(value, Mapping):
        return f"a `{kind}`; make one of it with `create_mesh`"
    if isinstance(value, Sequence) or hasattr(value, "device_kind") or hasattr(value, "__array__"):
        return f"a `{kind}`; make one of devices with `create_mesh(sizes, names, devices=...)`"
    if callable(value):
        return f"the {kind} `{getattr(value, '__name__', kind)}`; call it if it makes one"
    return f"a `{kind}`; make one with `create_mesh`"

"""The CPU of a machine with accelerators, for tests and debugging: a CPU mesh, the default device, and both.

The context managers change JAX's defaults in one thread; they move no data.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import jax
from jax.sharding import Mesh

from .._jax_compat import is_tracing
from ._create import AxisTypes, create_mesh
from ._topology import Device


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
    with ExitStack() as previous:
        previous.enter_context(jax.default_device(device))
        if not is_tracing():
            previous.enter_context(jax.set_mesh(None))
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

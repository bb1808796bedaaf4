"""Working on the CPU of a machine that has accelerators too: a mesh, a default device, and both.

For tests, for debugging, and for trying a sharding on virtual devices before it meets real ones.
The context managers change what JAX does by default, in one thread; they move no data.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import jax
from jax.sharding import Mesh

from .._jax_compat import is_tracing
from ._create import AxisTypes, create_mesh
from ._topology import Device


def create_cpu_mesh(
    axis_dims: Sequence[int] = (1, -1, 1, 1, 1),
    axis_names: Sequence[str] = ("dp", "fsdp", "ep", "tp", "sp"),
    *,
    axis_types: AxisTypes = None,
) -> Mesh:
    """Makes a mesh over all CPU devices, whatever JAX's default backend is.

    A process has one CPU device, unless `jax.config.update("jax_num_cpu_devices", 8)` at its start
    says otherwise. In a cluster of CPU processes the mesh is over the devices of all of them.

    Args:
        axis_dims: The size of each mesh axis, as in [`create_mesh`][axonym.create_mesh].
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
    """Makes this process' first CPU device JAX's default, within a `with` block.

    New arrays are made there, and so is what is computed from them. A mesh in force would put them
    on its own devices, so there is none within the block; set one inside if you need it. It is a
    default and no more: an array that is committed to a device (by `jax.device_put`, or because it
    is sharded) stays there, and so does what is computed from it. Within a function that `jax.jit`
    traces the block changes nothing: the compiled function's devices are those of its arguments.
    Another thread started within the block does not inherit the default. The former default and
    mesh come back at the end of the block, exception or not.

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
    with ExitStack() as former:
        former.enter_context(jax.default_device(device))
        if not is_tracing():
            former.enter_context(jax.set_mesh(None))
        yield device


@contextmanager
def cpu_context(
    axis_dims: Sequence[int] = (1, -1, 1, 1, 1),
    axis_names: Sequence[str] = ("dp", "fsdp", "ep", "tp", "sp"),
    *,
    axis_types: AxisTypes = None,
) -> Iterator[Mesh]:
    """Makes the CPU JAX's default device and a CPU mesh JAX's mesh, within a `with` block.

    It is [`force_cpu`][axonym.force_cpu] with `jax.set_mesh` of
    [`create_cpu_mesh`][axonym.create_cpu_mesh], so that a bare `PartitionSpec` works wherever JAX
    takes a sharding. What [`force_cpu`][axonym.force_cpu] says of committed arrays and of other
    threads holds here too: they stay where they are, and they do not inherit the mesh. The former
    default device and mesh come back at the end of the block, exception or not. Like
    `jax.set_mesh`, it cannot be entered within `jax.jit`.

    Args:
        axis_dims: The size of each mesh axis, as in [`create_mesh`][axonym.create_mesh].
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

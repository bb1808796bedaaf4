"""`set_mesh`: `jax.set_mesh` for meshes with and without devices, with errors that show how to make a mesh."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh


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
    manual = [name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Manual]
    if manual:
        raise ValueError(
            f"mesh axis {manual[0]!r} is Manual, and the axes of an active mesh are Auto or Explicit; make the "
            "mesh with other `axis_types`, and let `shard_map` make axes Manual"
        )
    return jax.set_mesh(mesh) if isinstance(mesh, Mesh) else _set_abstract_mesh(mesh)


def _set_abstract_mesh(mesh: AbstractMesh) -> AbstractContextManager[Any]:
    """Activates a mesh without devices at once, as `jax.set_mesh` does, in place of one with devices."""
    with ExitStack() as previous:
        previous.enter_context(jax.set_mesh(None))
        previous.enter_context(jax.sharding.use_abstract_mesh(mesh))
        return previous.pop_all()


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

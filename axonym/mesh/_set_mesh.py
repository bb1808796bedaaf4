"""Putting a mesh in force: `jax.set_mesh` for meshes with devices and without, and errors that say what makes one."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh


def set_mesh(mesh: Mesh | AbstractMesh | None) -> AbstractContextManager[Any]:
    """Puts a mesh in force, for a `with` block or, as a plain call, for the rest of the program.

    For a mesh of devices it is `jax.set_mesh`, and the two can be mixed. It holds for this thread:
    another thread has no mesh until it sets one. After a `with` block the former mesh is in force
    again, exception or not. It cannot be called within `jax.jit`.

    Args:
        mesh: The mesh. An `AbstractMesh` is put in force for planning, by
            `jax.sharding.use_abstract_mesh`: shapes can be sharded on it, arrays cannot. None takes
            the mesh in force away.

    Returns:
        What a `with` statement takes. The mesh is in force as soon as the call returns.

    Raises:
        TypeError: It is not a mesh. The message says what makes one.
        ValueError: The mesh has Manual axes, which `shard_map` makes, or the call is within `jax.jit`.

    Example:
        >>> import axonym as nym
        >>> mesh = nym.create_mesh((4, 2), ("data", "model"))
        >>> with nym.set_mesh(mesh):
        ...     print(nym.shard(nym.zeros({"batch": 8}), {"batch": "data"}).sharding.spec)
        P('data',)
        >>> nym.set_mesh("data:4, model:2")
        Traceback (most recent call last):
            ...
        TypeError: `set_mesh` takes a mesh, not a string; `parse_mesh_from_string` makes one of it
    """
    if mesh is None:
        return jax.set_mesh(None)
    if not isinstance(mesh, (Mesh, AbstractMesh)):
        raise TypeError(f"`set_mesh` takes a mesh, not {_remedy(mesh)}")
    manual = [name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Manual]
    if manual:
        raise ValueError(
            f"a mesh in force has Auto and Explicit axes, and mesh axis {manual[0]!r} is Manual; make the mesh with "
            "other `axis_types`, and let `shard_map` make axes Manual within"
        )
    return jax.set_mesh(mesh) if isinstance(mesh, Mesh) else _planned(mesh)


def _planned(mesh: AbstractMesh) -> AbstractContextManager[Any]:
    """Puts a mesh without devices in force at once, as `jax.set_mesh` does, in the place of one with devices."""
    with ExitStack() as former:
        former.enter_context(jax.set_mesh(None))
        former.enter_context(jax.sharding.use_abstract_mesh(mesh))
        return former.pop_all()


def _remedy(thing: Any) -> str:
    """Says what was given in the place of a mesh, and what makes a mesh of it."""
    kind = type(thing).__name__
    if isinstance(thing, str):
        return "a string; `parse_mesh_from_string` makes one of it"
    if isinstance(thing, Mapping):
        return f"a `{kind}`; `create_mesh(sizes, names)` makes one of its values and keys"
    if isinstance(thing, Sequence) or hasattr(thing, "device_kind") or hasattr(thing, "__array__"):
        return f"a `{kind}`; `create_mesh(sizes, names, devices=...)` makes one of devices"
    if callable(thing):
        return f"the {kind} `{getattr(thing, '__name__', kind)}`; call it if it makes one"
    return f"a `{kind}`; `create_mesh` makes one"

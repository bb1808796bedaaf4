"""Errors about the devices and shardings of arguments, with the path of the argument and the remedy."""

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.tree_util import keystr

from ..._ground.jax_compat import is_device_mismatch_error, is_sharding_type_error, is_traced, is_tracing
from .._active_mesh import format_mesh_types, get_active_mesh
from .._leaves import LeafInfo


_MAX_ARRAYS = 3  # shown


def find_device_error(
    error: Exception, name: str, leaf_infos: Sequence[LeafInfo], leaves: Sequence[Any], is_moving: bool
) -> ValueError | None:
    """Returns the error for an argument that is on other devices than the mesh, or than the first argument.

    It is None if JAX's error is about something else. `is_moving`: whether `in_axis_resources` moves named arguments.
    """
    if not is_device_mismatch_error(error) or is_tracing():
        return None
    mesh = get_active_mesh()
    committed = [(leaf_info, leaf) for leaf_info, leaf in zip(leaf_infos, leaves, strict=True) if _is_committed(leaf)]
    for leaf_info, leaf in committed:
        if isinstance(mesh, Mesh):
            expected = mesh
            expectation = f"the active mesh is {_format_mesh_devices(mesh)}"
        else:
            first_info, first_leaf = committed[0]
            expected = first_leaf.sharding
            expectation = f"{keystr(first_info.path)} is on {_format_place(expected)}, and there is no active mesh"
        if not _is_compatible(leaf.sharding, expected):
            return ValueError(
                f"`{name}`: {keystr(leaf_info.path)}, {leaf.dtype}{list(leaf.shape)}, is on "
                f"{_format_place(leaf.sharding)}; {expectation}; {_get_remedy(leaf_info, leaf, mesh, is_moving)}"
            )
    return None


def find_deleted_error(
    error: Exception, name: str, leaf_infos: Sequence[LeafInfo], leaves: Sequence[Any]
) -> ValueError | None:
    """Returns the error for an argument that is deleted, None if JAX's error is about something else."""
    if "deleted" not in str(error):
        return None
    for leaf_info, leaf in zip(leaf_infos, leaves, strict=True):
        if isinstance(leaf, jax.Array) and not is_traced(leaf) and leaf.is_deleted():
            return ValueError(
                f"`{name}` takes {keystr(leaf_info.path)}, which is deleted, because an earlier call donated it, or an "
                "array in the same memory, which `shard` and `jax.device_put` leave in place where they can; pass what "
                "that call returned, or a copy that was made before it with `jax.numpy.copy`"
            )
    return None


def find_sharding_error(
    name: str, leaf_infos: Sequence[LeafInfo], leaves: Sequence[Any], shardings: Sequence[Any]
) -> ValueError | None:
    """Returns the error for an array with another sharding than a function was compiled for, or None."""
    for leaf_info, leaf, sharding in zip(leaf_infos, leaves, shardings, strict=True):
        if sharding is None or not isinstance(leaf, jax.Array):  # unused, or static
            continue
        if _is_committed(leaf) and not sharding.is_equivalent_to(leaf.sharding, leaf.ndim):
            move = "`jax.device_put`" if leaf_info.names is None else "`shard`"
            before, after = map(_format_spec_on_mesh, (sharding, leaf.sharding))
            return ValueError(
                f"`{name}` was compiled for {keystr(leaf_info.path)}, {leaf.dtype}{list(leaf.shape)}, with sharding "
                f"{before}, and called with {after}; move it with {move}, or `lower` and `compile` the function for "
                "this sharding as well"
            )
    return None


def find_ambiguity_error(
    error: Exception, name: str, leaf_infos: Sequence[LeafInfo], leaves: Sequence[Any]
) -> ValueError | None:
    """Returns the error for arrays from which JAX cannot tell how a result on an Explicit mesh is sharded.

    It is None if JAX's error is about something else. If all sharded arguments have names, it is not Axonym that
    computes with them, but a function of another library.
    """
    # A note is of `microbatch`, which knows more.
    if not is_sharding_type_error(error) or getattr(error, "__notes__", None):
        return None
    plain_texts: list[str] = []
    named_texts: list[str] = []
    for leaf_info, leaf in zip(leaf_infos, leaves, strict=True):
        if isinstance(leaf, jax.Array) and any(_get_explicit_spec(leaf).partitions):
            text = f"{keystr(leaf_info.path)}, {leaf.dtype}{list(leaf.shape)}, is {_get_explicit_spec(leaf)}"
            (plain_texts if leaf_info.names is None else named_texts).append(text)
    texts = plain_texts or named_texts
    if not texts:
        return None
    arrays_text = "plain arrays" if plain_texts else "the plain arrays in named ones"
    surplus_text = f" and {len(texts) - _MAX_ARRAYS} more" if len(texts) > _MAX_ARRAYS else ""
    reason = str(error).strip().partition(". ")[0].rstrip(".")
    return ValueError(
        f"`{name}` computes with {arrays_text} on a mesh of Explicit axes, where JAX needs the sharding of each "
        f"result: {'; '.join(texts[:_MAX_ARRAYS])}{surplus_text}; let the compiler choose it, with "
        "`jax.sharding.auto_axes(fn, out_sharding=...)` around the function that computes with them, or make the mesh "
        f"with `axis_types='auto'`. JAX's error: {reason}."
    )


def _get_explicit_spec(leaf: jax.Array) -> Any:
    return jax.typeof(leaf).sharding.spec


def _format_spec_on_mesh(sharding: Any) -> str:
    mesh = _get_mesh(sharding)
    return _format_place(sharding) if mesh is None else f"{sharding.spec} on {format_mesh_types(mesh)}"


def _is_committed(leaf: Any) -> bool:
    """Returns whether an array has to stay on its devices, or a shape states devices."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.sharding is not None and not isinstance(_get_mesh(leaf.sharding), AbstractMesh)
    return isinstance(leaf, jax.Array) and leaf.committed


def _get_remedy(leaf_info: LeafInfo, leaf: Any, mesh: Any, is_moving: bool) -> str:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return f"give the `ShapeDtypeStruct` {'the same devices' if mesh is None else 'a sharding on the active mesh'}"
    if mesh is None:
        return "move one of them with `jax.device_put`, or set a mesh with `jax.set_mesh` and `shard` them"
    if leaf_info.names is not None:
        return "move it with `shard`, or let `in_axis_resources` move it at each call"
    reason = "it has no names, so `in_axis_resources` does not move it; " if is_moving else ""
    return f"{reason}move it with `jax.device_put`, to `NamedSharding(mesh, P())` to replicate it"


def _is_compatible(sharding: Any, expected: Any) -> bool:
    """Returns whether JAX accepts an array with this sharding on a mesh, or next to an array with another sharding."""
    mesh, expected_mesh = _get_mesh(sharding), _get_mesh(expected)
    if mesh is not None and expected_mesh is not None and mesh != expected_mesh:
        if AxisType.Explicit in (*mesh.axis_types, *expected_mesh.axis_types):
            return False
    return _get_devices(sharding) == _get_devices(expected)


def _get_mesh(place: Any) -> Mesh | None:
    return place if isinstance(place, Mesh) else getattr(place, "mesh", None)


def _get_devices(place: Any) -> tuple[Any, ...]:
    mesh = _get_mesh(place)
    return tuple(place.device_set) if mesh is None else tuple(mesh.devices.flat)


def _format_place(sharding: Any) -> str:
    mesh = _get_mesh(sharding)
    if mesh is not None:
        return f"the mesh {_format_mesh_devices(mesh)}"
    devices = sorted(f"{device.platform}:{device.id}" for device in sharding.device_set)
    return f"device {devices[0]}" if len(devices) == 1 else f"devices {', '.join(devices)}"


def _format_mesh_devices(mesh: Mesh) -> str:
    ids = [device.id for device in mesh.devices.flat]
    devices = str(ids) if len(ids) <= 8 else f"[{ids[0]}, {ids[1]}, ..., {ids[-1]}]"
    return f"{format_mesh_types(mesh)} and devices {devices}"

"""`haliax.partitioning`: mappings, shardings and compiled functions."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from .. import partitioning
from .._ground.arguments import check_callable
from ..mesh import set_mesh as set_mesh
from ..named._array import is_named_array
from ..named._axis import Axis
from ..named._axis_layout import get_entry_axes
from ..partitioning import (
    PhysicalAxisSpec as PhysicalAxisSpec,
    ResourceMapping as ResourceMapping,
    named_jit as named_jit,
    physical_axis_name as physical_axis_name,
    physical_axis_size as physical_axis_size,
    pspec_for_axis as pspec_for_axis,
    round_axis_for_partitioning as round_axis_for_partitioning,
    sharding_for_axis as sharding_for_axis,
)
from ..partitioning._active_mesh import get_active_mesh
from ..training import fsdp as fsdp
from ._adapt import adapt
from .jax_utils import is_in_jit as is_in_jit
from .util import StringHolderEnum


auto_sharded = adapt(partitioning.auto_sharded, "x=tree")
shard = shard_with_axis_mapping = adapt(partitioning.shard, "x=tree")
mesh_context = set_mesh
MeshLike = Mesh | AbstractMesh


def axis_mapping(mapping: Any, *, merge: bool = False, **kwargs: Any) -> Any:
    """Activates a mapping; with `merge`, entries of the outer mapping win over those of this one.

    Example:
        >>> import axonym.haliax as hax
        >>> with (
        ...     hax.axis_mapping({"batch": "data"}),
        ...     hax.axis_mapping({"batch": "model", "embed": "model"}, merge=True),
        ... ):
        ...     hax.current_thread_local_mapping()
        {'batch': 'data', 'embed': 'model'}
    """
    outer = partitioning.current_mapping() if merge else None
    return partitioning.axis_mapping({**mapping, **(outer or {}), **kwargs})


def current_thread_local_mapping() -> dict[str, Any] | None:
    """Returns the active mapping as a dict, or None."""
    mapping = partitioning.current_mapping()
    return None if mapping is None else dict(mapping)


def shard_map(
    f: Callable[..., Any] | None = None,
    *,
    in_specs: Any = None,
    out_specs: Any = None,
    mesh: Any = None,
    axis_mapping: Any = None,
    check_rep: bool = False,
    **shmap_kwargs: Any,
) -> Any:
    """Runs a function on each device, on its own shard of every named array; see `axonym.shard_map`.

    A spec may also be an axis or a named array, which stand for the spec of these axes by the mapping.

    Raises:
        ValueError: When called, if such a spec has other axes than the named array that it is for.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> double = hax.shard_map(lambda x: 2 * x, mesh=mesh, axis_mapping={"batch": "data"})
        >>> double(hax.ones({"batch": 4})).array
        Array([2., 2., 2., 2.], dtype=float32)
    """
    shmap_kwargs.setdefault("check_vma", check_rep)
    if f is None:
        return functools.partial(
            shard_map, in_specs=in_specs, out_specs=out_specs, mesh=mesh, axis_mapping=axis_mapping, **shmap_kwargs
        )

    options = {"mapping": axis_mapping, "mesh": mesh, **shmap_kwargs}
    if not any(_list_axes(spec) for spec in jax.tree.leaves((in_specs, out_specs), is_leaf=is_named_array)):
        return partitioning.shard_map(f, in_specs=in_specs, out_specs=out_specs, **options)
    check_callable("shard_map", f)

    @functools.wraps(f)
    def call_on_shards(*args: Any, **kwargs: Any) -> Any:
        def call_checked(*shards: Any, **shard_kwargs: Any) -> Any:
            result = f(*shards, **shard_kwargs)
            _check_axes(result, out_specs, "result")
            return result

        specs = in_specs if in_specs is None or isinstance(in_specs, tuple | list) else (in_specs,) * len(args)
        for arg, spec in zip(args, specs or (), strict=False):
            _check_axes(arg, spec, "argument")
        in_tree, out_tree = (_resolve_axes(tree, axis_mapping) for tree in (specs, out_specs))
        return partitioning.shard_map(call_checked, in_specs=in_tree, out_specs=out_tree, **options)(*args, **kwargs)

    return call_on_shards


def _list_axes(spec: Any) -> tuple[Axis, ...]:
    """Returns the axes that a spec is given as, none for other specs."""
    if is_named_array(spec):
        return spec.axes
    return (spec,) if isinstance(spec, Axis) else ()


def _resolve_axes(specs: Any, mapping: Any) -> Any:
    """Returns a tree of specs with the spec by the mapping in place of axes and named arrays."""
    return jax.tree.map(
        lambda spec: pspec_for_axis(_list_axes(spec), mapping) if _list_axes(spec) else spec,
        specs,
        is_leaf=lambda spec: is_named_array(spec) or isinstance(spec, Axis | PartitionSpec),
    )


def _check_axes(value: Any, spec: Any, what: str) -> None:
    """Raises a ValueError if a spec of axes has others than a named array: specs go by position."""
    names = [axis.name for axis in _list_axes(spec)]
    if names and is_named_array(value) and [*value.names] != names:
        raise ValueError(
            f"`shard_map` has the axes {', '.join(names)} as the spec of a named {what} with the axes "
            f"{', '.join(value.names)}; leave the spec out, since names say it, or give a `PartitionSpec`"
        )


class ResourceAxis(metaclass=StringHolderEnum):
    """The usual names of mesh axes.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.partitioning.ResourceAxis.DATA
        'data'
    """

    MODEL = "model"
    DATA = "data"
    REPLICA = "replica"
    REPLICA_DCN = "replica_dcn"
    CONTEXT = "context"


def pspec_for(tree: Any, resource_mapping: Any = None, preserve_existing_shardings: bool = True) -> Any:
    """Returns the spec of each array of a tree, with a bare spec in place of a named array; see `axonym.pspec_for`.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.partitioning.pspec_for(hax.ones({"batch": 4}), {"batch": "data"})
        P('data',)
    """
    return _unwrap_arrays(partitioning.pspec_for(tree, resource_mapping, preserve_existing_shardings))


def infer_resource_partitions(
    tree: Any, resource_mapping: Any = None, mesh: Any = None, *, preserve_existing_shardings: bool = True
) -> Any:
    """Returns the sharding of each array of a tree; see `axonym.infer_resource_partitions`.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> hax.partitioning.infer_resource_partitions(hax.ones({"batch": 4}), {"batch": "data"}, mesh).spec
        P('data',)
    """
    shardings = partitioning.infer_resource_partitions(tree, resource_mapping, preserve_existing_shardings, mesh)
    return _unwrap_arrays(shardings)


def _unwrap_arrays(tree: Any) -> Any:
    """Returns a tree with each named array replaced by what it holds, which here is a spec or a sharding."""
    return jax.tree.map(lambda x: x.array if is_named_array(x) else x, tree, is_leaf=is_named_array)


_get_mesh = get_active_mesh  # the name that programs import from Haliax


def all_mesh_axes_explicit(mesh: Any, pspec: PartitionSpec | None) -> bool:
    """Returns whether every mesh axis in a spec is Explicit.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.partitioning.all_mesh_axes_explicit(None, None)
        False
    """
    if mesh is None or pspec is None:
        return False
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return all(types.get(axis) == AxisType.Explicit for entry in pspec for axis in get_entry_axes(entry))


def get_pspec_for_manual_mesh(axis: Any, mapping: Any = None, *, mesh: Any = None) -> PartitionSpec | None:
    """Returns the spec of axes if all mesh axes in it are Explicit, None otherwise."""
    spec = pspec_for_axis(axis, mapping)
    mesh = get_active_mesh() if mesh is None else mesh
    return spec if all_mesh_axes_explicit(mesh, spec) else None

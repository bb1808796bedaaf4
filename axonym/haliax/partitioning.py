"""`haliax.partitioning`: mappings, shardings and compiled functions."""

from typing import Any

from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from .. import partitioning
from ..mesh import set_mesh as set_mesh
from ..named._ambient import get_entry_axes
from ..partitioning import (
    PhysicalAxisSpec as PhysicalAxisSpec,
    ResourceMapping as ResourceMapping,
    fsdp as fsdp,
    named_jit as named_jit,
    physical_axis_name as physical_axis_name,
    physical_axis_size as physical_axis_size,
    pspec_for_axis as pspec_for_axis,
    round_axis_for_partitioning as round_axis_for_partitioning,
    sharding_for_axis as sharding_for_axis,
)
from ..partitioning.specs._active_mesh import get_active_mesh
from ._adapt import adapt
from ._functions import (
    axis_mapping as axis_mapping,
    current_thread_local_mapping as current_thread_local_mapping,
    shard_map as shard_map,
    shard_with_axis_mapping as shard_with_axis_mapping,
)
from .jax_utils import is_in_jit as is_in_jit
from .util import StringHolderEnum


auto_sharded = adapt(partitioning.auto_sharded, "x=tree")
shard = adapt(partitioning.shard, "x=tree")
pspec_for = adapt(partitioning.pspec_for, "resource_mapping=mapping")
infer_resource_partitions = adapt(partitioning.infer_resource_partitions, "resource_mapping=mapping")
mesh_context = set_mesh
MeshLike = Mesh | AbstractMesh


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


def _get_mesh() -> Any:
    return get_active_mesh()


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
    """Returns the spec of axes if all mesh axes in it are Explicit, None otherwise.

    Example:
        >>> import axonym.haliax as hax
        >>> hax.partitioning.get_pspec_for_manual_mesh(("batch",), {"batch": "data"}) is None
        True
    """
    spec = pspec_for_axis(axis, mapping)
    return spec if all_mesh_axes_explicit(get_active_mesh() if mesh is None else mesh, spec) else None

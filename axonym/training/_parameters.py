"""How layers take parameters under two mappings and a policy, and which stages layers have: answers for the mapping.

`axonym.partitioning` asks them of what is registered here, since it knows where arrays are and not how they are used.
"""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from .._ground.errors import make_error
from .._ground.formats import format_axes
from .._ground.jax_compat import is_traced
from ..named._axis import Names
from ..named._axis_layout import count_parts, format_mesh_axes, get_axes_of_type, round_up
from ..named._named_call import format_scope
from ..named._reduced_types import get_reduced_axes
from ..named._stages import STAGE, StagePlan
from ..partitioning._active_mapping import ActiveMapping, TrainingAnswers, register_training
from ..partitioning._active_mesh import MeshLike, get_abstract_mesh
from ..partitioning._mapping import AxisMapping
from ..partitioning._resolve_spec import resolve_sharding
from ..partitioning._shard import shard_array
from ._gather import find_batch_axes, find_typed_axes, gather_reduced
from ._policy import Policy, check_policy, warn_of_typos
from ._rounded_gather import gather_rounded


_NO_POLICY = Policy()


def gather_parameter(active: ActiveMapping, array: Any, names: Names, may_be_reduced: bool) -> Any:
    """Returns a parameter as a layer takes it: in the type for computing, gathered from the shards that are stored."""
    policy: Policy = _NO_POLICY if active.policy is None else active.policy
    gather_dtype = policy.find_gather_dtype(names)
    if policy.precision is None:
        return _gather(active, array, names, may_be_reduced, gather_dtype)
    dtype, sum_dtype = policy.precision.find_gather_dtypes(names, array.dtype)
    gather = functools.partial(_gather, active, names=names, may_be_reduced=may_be_reduced)
    # Other parameters have gradients that are complete where they are computed.
    if dtype == sum_dtype or not may_be_reduced or active.stored is None:
        return gather(array.astype(dtype), gather_dtype=gather_dtype)

    @jax.custom_jvp
    def gather_in_dtype(array: Any) -> Any:
        return gather(array.astype(dtype), gather_dtype=gather_dtype)

    @gather_in_dtype.defjvp
    def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        _check_reductions(active, names, sum_dtype)
        # Backward, a gradient is converted to `sum_dtype` before the transpose of the gather adds it up.
        tangent = gather(tangents[0].astype(sum_dtype), gather_dtype=None).astype(dtype)
        return gather_in_dtype(*primals), tangent

    return gather_in_dtype(array)


def _check_reductions(active: ActiveMapping, names: Names, dtype: Any) -> None:
    """Raises an error if the compiler adds up gradients where they are computed, in the type that they have."""
    mesh = get_abstract_mesh()
    if mesh is None or active.stored is None or find_typed_axes(active.mapping, active.stored, mesh):
        return
    manual_axes = get_axes_of_type(mesh, AxisType.Manual)
    for axis in find_batch_axes(active.mapping, active.stored, mesh).difference(manual_axes):
        if mesh.shape[axis] > 1:
            raise make_error(
                ValueError,
                f"`reductions` of a `Precision` asks for sums in {dtype} of the gradient of {format_axes(names)}, "
                f"and on the mesh {format_axes(mesh.axis_names, tuple(mesh.shape.values()))} the compiler adds up "
                "gradients where they are computed; make all mesh axes Explicit with `axis_types='explicit'`, or "
                "leave `reductions` out.",
            )


def _gather(active: ActiveMapping, array: Any, names: Names, may_be_reduced: bool, gather_dtype: Any) -> Any:
    """Returns a parameter gathered in few bits if `gather_dtype` is not None; layers get it in its own type."""
    if active.stored is None or active.stored == active.mapping:
        # `microbatch` types parameters before layers take them, so that these keep the type.
        reduced_axes = get_reduced_axes(array) if may_be_reduced and is_traced(array) else None
        if not reduced_axes:
            return active.constrain(array, names)
        with jax.named_scope(format_scope("gather", names)):
            sharding = resolve_sharding(names, array.shape, active.mapping, jax.typeof(array).sharding.mesh)
            return gather_reduced(array, sharding, reduced_axes)
    mesh = get_abstract_mesh()
    if mesh is None:
        return active.constrain(array, names)
    with jax.named_scope(format_scope("gather", names)):
        if AxisType.Auto in mesh.axis_types:
            # The type of a parameter states how it is stored over Explicit mesh axes. Over Auto ones the compiler
            # learns it here: each layer then gathers only its own slice, and the gradient, which meets both
            # constraints in reverse, is reduced to shards.
            with contextlib.suppress(ValueError):  # a slice need not be divisible where its parameter is
                array = shard_array(array, names, active.stored)
        if not jnp.issubdtype(array.dtype, jnp.inexact):
            return shard_array(array, names, active.mapping)
        batch_axes = frozenset[str]()
        if may_be_reduced:
            # With those over which `microbatch` has typed it.
            batch_axes = find_typed_axes(active.mapping, active.stored, mesh) | get_reduced_axes(array)
        gather = functools.partial(
            _gather_exactly, mapping=active.mapping, names=names, mesh=mesh, batch_axes=batch_axes
        )
        if gather_dtype is None:
            return gather(array)
        stored = jax.typeof(array).sharding
        if AxisType.Auto in mesh.axis_types:
            # As above, a slice need not be divisible; then it is not constrained.
            stored = resolve_sharding(names, array.shape, active.stored.merged({}, uneven="replicate"), mesh)
        computing = resolve_sharding(names, array.shape, active.mapping, mesh)
        return gather_rounded(array, stored, computing, gather_dtype, batch_axes, gather)


def _gather_exactly(array: Any, mapping: AxisMapping, names: Names, mesh: MeshLike, batch_axes: frozenset[str]) -> Any:
    if batch_axes:
        return gather_reduced(array, resolve_sharding(names, array.shape, mapping, mesh), batch_axes)
    return shard_array(array, names, mapping)


def find_stages(active: ActiveMapping, name: str, size: int) -> StagePlan | None:
    """Returns the stages into which a layer axis is divided, None if it is not."""
    mesh, policy = get_abstract_mesh(), active.policy
    if mesh is None or policy is None or policy.microbatches is None or not active.mapping.mesh_axes(name):
        return None
    axis, microbatches = policy.microbatches
    is_manual = {axis: kind == AxisType.Manual for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)}
    mesh_axes = tuple(axis for axis in active.mapping.mesh_axes(name) if not is_manual.get(axis, True))
    stages = count_parts(mesh_axes, mesh)
    if stages == 1:
        return None
    if any(is_manual.values()):
        raise make_error(
            ValueError,
            f"layers along {name!r} cannot be stages of a pipeline within `shard_map`, as `reduce_once=True` of "
            f"`microbatch` uses it; map {name!r} to None, or leave the `shard_map` out",
        )
    if size % stages:
        divisors = [count for count in range(2, size + 1) if size % count == 0]
        raise make_error(
            ValueError,
            f"axis {name!r} of size {size} cannot be divided into {stages} stages over mesh axis "
            f"{format_mesh_axes(mesh_axes, mesh)}; use {', '.join(map(str, divisors))} stages or "
            f"{round_up(size, stages)} layers",
        )
    replicates_uneven = active.mapping.uneven == "replicate"
    stage_mapping = _assign_mesh_axes(active.mapping.merged({name: None}), STAGE, mesh_axes)
    collecting = ActiveMapping(_assign_mesh_axes(active.mapping, name, mesh_axes))
    if active.stored is None:
        computing = ActiveMapping(stage_mapping, policy=policy)
        return StagePlan(stages, axis, microbatches, replicates_uneven, computing, computing, computing, collecting)
    stored = _assign_mesh_axes(active.stored, STAGE, mesh_axes)
    storing, computing = ActiveMapping(stored), ActiveMapping(stage_mapping)
    gathering = ActiveMapping(stage_mapping, stored, policy)
    return StagePlan(stages, axis, microbatches, replicates_uneven, storing, gathering, computing, collecting)


def _assign_mesh_axes(mapping: AxisMapping, name: str, mesh_axes: tuple[str, ...]) -> AxisMapping:
    """Returns a mapping in which an axis is sharded over these mesh axes, and no other axis over any of them."""
    entries: dict[str, Any] = {}
    for other_name in mapping:
        entries[other_name] = [axis for axis in mapping.mesh_axes(other_name) if axis not in mesh_axes]
    return mapping.merged({**entries, name: mesh_axes})


register_training(TrainingAnswers(gather_parameter, find_stages, check_policy, warn_of_typos))

"""From axis names to mesh axes: mappings, specs, and compiled functions that use them."""

from importlib import import_module

from ._active_mapping import axis_mapping as axis_mapping
from ._leaves import ShardedBy as ShardedBy
from ._mapping import (
    AxisMapping as AxisMapping,
    PhysicalAxisSpec as PhysicalAxisSpec,
    ResourceMapping as ResourceMapping,
    current_mapping as current_mapping,
    current_thread_local_mapping as current_thread_local_mapping,
)
from ._resolve_spec import (
    physical_axis_name as physical_axis_name,
    physical_axis_size as physical_axis_size,
    pspec_for_axis as pspec_for_axis,
    round_axis_for_partitioning as round_axis_for_partitioning,
    sharding_for_axis as sharding_for_axis,
)
from ._shard import (
    auto_sharded as auto_sharded,
    infer_resource_partitions as infer_resource_partitions,
    pspec_for as pspec_for,
    shard as shard,
    shard_with_axis_mapping as shard_with_axis_mapping,
)
from ._shard_map import shard_map as shard_map
from .jit._axis_resources import ResourceMappings as ResourceMappings
from .jit._named_jit import (
    NamedCompiled as NamedCompiled,
    NamedJit as NamedJit,
    NamedLowered as NamedLowered,
    NamedTraced as NamedTraced,
    named_jit as named_jit,
)


def __getattr__(name: str) -> object:
    """Returns `fsdp` of `axonym.training`, which Haliax has here."""
    if name == "fsdp":
        return import_module("..training", __name__).fsdp
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)

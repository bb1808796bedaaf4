"""From axis names to mesh axes: mappings, specs, sharding rules, and compiled functions that use them."""

from ._axis_mapping import axis_mapping as axis_mapping
from ._mesh_partition_helper import MeshPartitionHelper as MeshPartitionHelper
from ._microbatch import microbatch as microbatch
from ._shard_map import shard_map as shard_map
from ._sharded_optimizer import Optimizer as Optimizer, sharded_optimizer as sharded_optimizer
from .jit._argument_mappings import ResourceMappings as ResourceMappings
from .jit._fsdp import fsdp as fsdp
from .jit._named_jit import NamedJit as NamedJit, named_jit as named_jit
from .jit._stages import NamedCompiled as NamedCompiled, NamedLowered as NamedLowered, NamedTraced as NamedTraced
from .mapping._mapping import (
    AxisMapping as AxisMapping,
    PhysicalAxisSpec as PhysicalAxisSpec,
    ResourceMapping as ResourceMapping,
    current_mapping as current_mapping,
    current_thread_local_mapping as current_thread_local_mapping,
)
from .rules._auto_sharding_rule import AutoShardingRule as AutoShardingRule
from .rules._composite_rule import CompositeShardingRule as CompositeShardingRule
from .rules._memory_rule import MemoryConstrainedShardingRule as MemoryConstrainedShardingRule
from .rules._path_rule import PathShardingRule as PathShardingRule
from .rules._role_rule import RoleShardingRule as RoleShardingRule
from .rules._shape_rule import ShapeBasedShardingRule as ShapeBasedShardingRule
from .rules._sharding_rule import ShardingRule as ShardingRule
from .sharding._partition_specs import infer_resource_partitions as infer_resource_partitions, pspec_for as pspec_for
from .sharding._shard import (
    auto_sharded as auto_sharded,
    shard as shard,
    shard_with_axis_mapping as shard_with_axis_mapping,
)
from .specs._physical_axes import (
    physical_axis_name as physical_axis_name,
    physical_axis_size as physical_axis_size,
    pspec_for_axis as pspec_for_axis,
    round_axis_for_partitioning as round_axis_for_partitioning,
    sharding_for_axis as sharding_for_axis,
)
from .specs._sharded_by import ShardedBy as ShardedBy

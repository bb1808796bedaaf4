"""Rules that choose specs for plain arrays: by path, shape, size, memory and the roles of layers, and all at once."""

from ._mesh_partition_helper import MeshPartitionHelper as MeshPartitionHelper
from ._pattern_rules import PathShardingRule as PathShardingRule, ShapeBasedShardingRule as ShapeBasedShardingRule
from ._role_rule import RoleShardingRule as RoleShardingRule
from ._sharding_rule import CompositeShardingRule as CompositeShardingRule, ShardingRule as ShardingRule
from ._size_rules import (
    AutoShardingRule as AutoShardingRule,
    MemoryConstrainedShardingRule as MemoryConstrainedShardingRule,
)

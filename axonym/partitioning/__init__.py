"""From axis names to mesh axes: mappings, sharding by name, and compiled functions that follow them."""

from ._context import axis_mapping as axis_mapping
from ._entry import (
    ResourceMappings as ResourceMappings,
)
from ._explain import (
    explain as explain,
)
from ._explanation import (
    AxisExplanation as AxisExplanation,
    Explanation as Explanation,
    LeafExplanation as LeafExplanation,
)
from ._hosts import (
    global_to_host_local as global_to_host_local,
    host_local_to_global as host_local_to_global,
)
from ._infer import (
    infer_resource_partitions as infer_resource_partitions,
    pspec_for as pspec_for,
)
from ._jit import (
    NamedJit as NamedJit,
    fsdp as fsdp,
    named_jit as named_jit,
)
from ._leaves import (
    ShardedBy as ShardedBy,
)
from ._mapping import (
    AxisMapping as AxisMapping,
    PhysicalAxisSpec as PhysicalAxisSpec,
    ResourceMapping as ResourceMapping,
    current_mapping as current_mapping,
    current_thread_local_mapping as current_thread_local_mapping,
)
from ._report._analyzer import (
    ShardingAnalyzer as ShardingAnalyzer,
)
from ._report._assert import (
    assert_sharding_lock as assert_sharding_lock,
)
from ._report._compare import (
    LeafChange as LeafChange,
    ReportComparison as ReportComparison,
)
from ._report._leaf import (
    LeafReport as LeafReport,
    Padding as Padding,
)
from ._report._monitor import (
    Metrics as Metrics,
    create_monitored_function as create_monitored_function,
)
from ._report._report import (
    GroupReport as GroupReport,
    ShardingReport as ShardingReport,
)
from ._report._terminal import (
    visualize_shardings as visualize_shardings,
)
from ._rule import (
    ShardingRule as ShardingRule,
)
from ._rules._auto import (
    AutoShardingRule as AutoShardingRule,
)
from ._rules._composite import (
    CompositeShardingRule as CompositeShardingRule,
)
from ._rules._helper import (
    MeshPartitionHelper as MeshPartitionHelper,
)
from ._rules._memory import (
    MemoryConstrainedShardingRule as MemoryConstrainedShardingRule,
)
from ._rules._patterns import (
    PathShardingRule as PathShardingRule,
    ShapeBasedShardingRule as ShapeBasedShardingRule,
)
from ._rules._roles import (
    RoleShardingRule as RoleShardingRule,
)
from ._shard import (
    auto_sharded as auto_sharded,
    shard as shard,
    shard_with_axis_mapping as shard_with_axis_mapping,
)
from ._shard_map import (
    shard_map as shard_map,
)
from ._spec import (
    physical_axis_name as physical_axis_name,
    physical_axis_size as physical_axis_size,
    pspec_for_axis as pspec_for_axis,
    round_axis_for_partitioning as round_axis_for_partitioning,
    sharding_for_axis as sharding_for_axis,
)
from ._stages import (
    NamedCompiled as NamedCompiled,
    NamedLowered as NamedLowered,
    NamedTraced as NamedTraced,
)
from ._train_state import (
    Optimizer as Optimizer,
    sharded_optimizer as sharded_optimizer,
)

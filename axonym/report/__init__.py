"""What people look at: explanations, reports, comparisons, locks and drawings of how a tree is sharded."""

from ._explain import explain as explain
from ._explanation import (
    AxisExplanation as AxisExplanation,
    Explanation as Explanation,
    LeafExplanation as LeafExplanation,
    LeafReport as LeafReport,
)
from ._monitor import Metrics as Metrics, create_monitored_function as create_monitored_function
from ._sharding_analyzer import ShardingAnalyzer as ShardingAnalyzer
from ._sharding_lock import assert_sharding_lock as assert_sharding_lock
from ._sharding_report import (
    GroupReport as GroupReport,
    LeafChange as LeafChange,
    ReportComparison as ReportComparison,
    ShardingReport as ShardingReport,
)
from ._time_by_layer import LayerTime as LayerTime, TimeByLayer as TimeByLayer, time_by_layer as time_by_layer
from ._visualize_shardings import visualize_shardings as visualize_shardings

"""Functions over named axes: `vmap` for all slices at once, `scan`, `fold` and `map` for one after another.

Named arrays are sliced if they have the axis, plain arrays along their first axis if they have any. The function gets
slices without the axis; it comes first in the results.
"""

from ._checkpoint import (
    Remat as Remat,
    ScanCheckpointPolicy as ScanCheckpointPolicy,
    checkpoint_loop as checkpoint_loop,
    parse_remat as parse_remat,
    tree_checkpoint_name as tree_checkpoint_name,
)
from ._random_keys import (
    check_legacy_keys as check_legacy_keys,
    fold_in_each as fold_in_each,
    fold_in_number as fold_in_number,
    is_random_key as is_random_key,
    spread_keys as spread_keys,
)
from ._scan import check_scan_result as check_scan_result, fold as fold, map as map, scan as scan
from ._slices import is_array_with_axes as is_array_with_axes, slice_args as slice_args
from ._vmap import vmap as vmap

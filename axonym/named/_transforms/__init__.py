"""Functions over named axes: `vmap` for all slices at once, `scan`, `fold` and `map` for one after another.

A named array takes part if it has the axis, a plain array if it has axes at all, which is then its first one. Inside,
the axis is gone; outside, it comes first in what is returned.
"""

from ._checkpoint_policy import (
    Remat as Remat,
    ScanCheckpointPolicy as ScanCheckpointPolicy,
    tree_checkpoint_name as tree_checkpoint_name,
)
from ._layout import (
    is_array_with_axes as is_array_with_axes,
)
from ._scan import (
    fold as fold,
    map as map,
    scan as scan,
)
from ._vmap import (
    vmap as vmap,
)

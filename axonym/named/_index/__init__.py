"""Picking elements by named axis: what `x["pos", 3]`, `take` and `x.at["pos", 3].set(v)` share.

An index is normalised once into what is static about it (which axes, which kind) and the arrays it holds, and one
compiled gather or scatter per static part serves every call. Sizes never choose an axis: an unnamed integer array
indexes the axis it was given for, and nothing else.
"""

from ._at import (
    At as At,
    Updates as Updates,
    check_axes as check_axes,
)
from ._bodies import (
    converted as converted,
)
from ._entries import (
    IndexPlan as IndexPlan,
    planned_index as planned_index,
)
from ._parts import (
    Index as Index,
    Items as Items,
    check_range as check_range,
    parts_of as parts_of,
)
from ._select import (
    index as index,
    take as take,
)
from ._windows import (
    dblock as dblock,
    ds as ds,
    dslice as dslice,
)

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
    convert_values as convert_values,
)
from ._index_parser import (
    Index as Index,
    Items as Items,
    check_index_range as check_index_range,
    parse_index as parse_index,
)
from ._index_plan import (
    IndexPlan as IndexPlan,
    plan_index as plan_index,
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

"""Indexing by named axis: `x["pos", 3]`, `take` and `x.at["pos", 3].set(v)`.

An index is parsed once into its static part (which axes, which kinds) and the arrays it holds; one compiled gather or
scatter per static part serves every call. Sizes never choose an axis: an unnamed integer array indexes only the axis it
was given for.
"""

from ._at import At as At, Updates as Updates, check_axes as check_axes, index as index, take as take
from ._gather_scatter import count_from_front as count_from_front
from ._index_parser import (
    Index as Index,
    IndexPlan as IndexPlan,
    Items as Items,
    check_index_range as check_index_range,
    dblock as dblock,
    ds as ds,
    dslice as dslice,
    parse_index as parse_index,
    plan_index as plan_index,
)

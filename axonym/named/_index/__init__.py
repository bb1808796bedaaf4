"""Indexing by named axis: `x["pos", 3]`, `take` and `x.at["pos", 3].set(v)`.

An index is parsed once into its static part (which axes, which kinds) and the arrays it holds; one compiled gather or
scatter per static part serves every call. Sizes never choose an axis: an unnamed integer array indexes only the axis it
was given for.
"""

from ._at import At as At, Updates as Updates, check_axes as check_axes
from ._dslice import dblock as dblock, ds as ds, dslice as dslice
from ._gather_scatter import convert_values as convert_values
from ._index_parser import (
    Index as Index,
    Items as Items,
    check_index_range as check_index_range,
    parse_index as parse_index,
)
from ._index_plan import IndexPlan as IndexPlan, plan_index as plan_index
from ._take import index as index, take as take

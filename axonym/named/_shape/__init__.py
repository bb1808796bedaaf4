"""Operations that change which axes there are, or their order, and that join and cut arrays."""

from ._broadcast import (
    broadcast_axis as broadcast_axis,
    broadcast_to as broadcast_to,
)
from ._cut import (
    split as split,
    unbind as unbind,
)
from ._join import (
    concatenate as concatenate,
    stack as stack,
)
from ._merge import (
    flatten_axes as flatten_axes,
    unflatten_axis as unflatten_axis,
)
from ._order import (
    rearrange as rearrange,
    rename as rename,
)

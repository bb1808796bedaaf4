"""Operations that change the axes or their order, and that join and split arrays."""

from ._broadcast import (
    broadcast_arrays as broadcast_arrays,
    broadcast_arrays_and_return_axes as broadcast_arrays_and_return_axes,
    broadcast_axis as broadcast_axis,
    broadcast_to as broadcast_to,
)
from ._concatenate import concatenate as concatenate, stack as stack
from ._flatten import (
    flatten as flatten,
    flatten_all_axes_but as flatten_all_axes_but,
    flatten_axes as flatten_axes,
    ravel as ravel,
    unflatten_axis as unflatten_axis,
)
from ._pad import pad as pad, pad_left as pad_left
from ._rearrange import rearrange as rearrange
from ._rename import rename as rename
from ._repeat import repeat as repeat, tile as tile
from ._roll import flip as flip, roll as roll
from ._slice import slice as slice, updated_slice as updated_slice
from ._split import split as split, unbind as unbind
from ._squeeze import expand as expand, squeeze as squeeze

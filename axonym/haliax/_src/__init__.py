"""The private modules of Haliax from which programs import."""

from . import (
    dot as dot,
    einsum as einsum,
    fp8 as fp8,
    parsing as parsing,
    rearrange as rearrange,
    scan as scan,
    state_dict as state_dict,
    util as util,
)

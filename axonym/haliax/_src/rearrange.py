"""`haliax._src.rearrange`: expressions that order, split and merge axes."""

from ..core import FUNCTIONS


rearrange = einops_rearrange = FUNCTIONS["rearrange"]

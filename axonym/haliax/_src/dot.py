"""`haliax._src.dot`: products of arrays, summed over named axes."""

from ..core import FUNCTIONS


dot = FUNCTIONS["dot"]

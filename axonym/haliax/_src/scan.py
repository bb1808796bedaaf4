"""`haliax._src.scan`: loops over named axes, and which of their values are kept for the backward pass."""

from .._checkpoint import ScanCheckpointPolicy as ScanCheckpointPolicy, ScanCheckpointSpec as ScanCheckpointSpec
from ..core import FUNCTIONS


fold, map, scan = FUNCTIONS["fold"], FUNCTIONS["map"], FUNCTIONS["scan"]

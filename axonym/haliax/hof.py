"""`haliax.hof`: functions of functions."""

from ._checkpoint import ScanCheckpointPolicy as ScanCheckpointPolicy
from ._functions import vmap as vmap
from .core import fold as fold, map as map, scan as scan

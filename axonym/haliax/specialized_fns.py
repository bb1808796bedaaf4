"""`haliax.specialized_fns`: operations with kernels of their own."""

from .core import FUNCTIONS


top_k = FUNCTIONS["top_k"]

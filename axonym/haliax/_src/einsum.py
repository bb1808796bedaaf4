"""`haliax._src.einsum`: products of arrays by an equation."""

from ..core import FUNCTIONS


einsum = FUNCTIONS["einsum"]

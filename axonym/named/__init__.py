"""Arrays with named axes, and every operation on them. Nothing here knows meshes."""

# `axonym.named` is this function for users and this package for imports, so the reference finds it here.
from ._creation import named as named

"""Arrays with named axes, and every operation on them. Nothing here knows meshes."""

"""From names to `PartitionSpec`s: the active mesh, the one judge of a spec, and bytes per device."""

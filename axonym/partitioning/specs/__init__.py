"""From names to `PartitionSpec`s: the active mesh, the single judge of a spec, leaves, and bytes per device."""

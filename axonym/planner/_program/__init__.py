"""Programs: what XLA writes of a compiled program, and what JAX traces of a step, read by named axes."""

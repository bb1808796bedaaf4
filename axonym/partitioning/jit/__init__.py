"""`named_jit`, `fsdp`, and what they are made of."""

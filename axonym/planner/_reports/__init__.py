"""Reports on a compiled program, what it sends and what it holds, and the assertions on them."""

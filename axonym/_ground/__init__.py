"""What knows nothing of axes: checks of arguments, formats, errors, caches, files, and reliance on JAX."""

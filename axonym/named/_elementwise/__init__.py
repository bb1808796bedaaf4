"""Elementwise functions, each a thin wrapper of the `jax.numpy` function of its name.

Functions of one operand keep its axes; plain arrays and scalars pass through to `jax.numpy`. Functions of several
operands broadcast by name: one operand must have the names of all the others, and the result has its axes.
"""

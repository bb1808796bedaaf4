"""Sharding rules: what chooses specs for the arrays of a tree that have no names."""

"""Sharding rules, which choose specs for plain arrays: one file for each kind."""

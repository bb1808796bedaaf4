"""Placing the leaves of trees: `shard`, fallback rules, and the specs of entire trees."""

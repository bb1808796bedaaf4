"""Scaled dot-product attention: its inputs, masks and implementations, and the cache of keys and values."""

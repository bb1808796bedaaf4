"""The bounded cache of plans and compiled operations, one entry per signature."""

import functools


CACHE_SIZE = 8192

cached_plan = functools.lru_cache(maxsize=CACHE_SIZE)
"""Decorator that caches the results of a planning function for hashable arguments."""

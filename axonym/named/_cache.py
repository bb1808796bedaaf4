"""The bounded cache of plans and compiled operations, one entry per signature."""

import functools


CACHE_SIZE = 8192
"""The number of entries that each cache keeps."""

cached_plan = functools.lru_cache(maxsize=CACHE_SIZE)
"""Decorator that caches what a planning function returns for hashable arguments."""

"""The bounded cache of plans and compiled operations, one entry per signature, and objects that are shared."""

import functools
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any


CACHE_SIZE = 8192

cached_plan = functools.lru_cache(maxsize=CACHE_SIZE)
"""Decorator that caches the results of a planning function for hashable arguments."""


def shared_object(make: Callable[..., Any]) -> Any:
    """Decorator of a function that makes an object: equal arguments get the same one for as long as it is in use.

    It is for objects that are compared by identity. `cached_plan` alone would make another one when it has evicted the
    first, and in each of the threads that miss at once.
    """
    made: weakref.WeakValueDictionary[tuple[Hashable, ...], Any] = weakref.WeakValueDictionary()
    lock = threading.RLock()  # comparing arguments may run any code

    @cached_plan
    def find_object(*args: Hashable) -> Any:
        with lock:
            known = made.get(args)
            if known is None:
                made[args] = known = make(*args)
            return known

    return find_object

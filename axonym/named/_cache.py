"""Caches of plans and compiled operations, keyed by static values."""

import functools
import struct
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np


class StaticKey(tuple[Any, ...]):
    """The key of a static value, which it holds; a tuple, because JAX and caches hash and compare it at each call."""

    value: Any


def needs_static_key(kind: type) -> bool:
    """Returns whether `==` of values of this one type may take numbers for equal: `0.0` and `-0.0`, or fields."""
    return issubclass(kind, float | complex) or _has_compared_fields(kind)


def make_static_key(value: Any) -> Hashable:
    """Returns a key that compares numbers by type and bits, where `0.0 == -0.0` and a NaN is not equal to itself.

    So are numbers in fields of dataclasses, and in tuples there; any other value is its own key.
    """
    kind = type(value)
    if not needs_static_key(kind):
        return value
    # A dataclass also has fields that are not numbers, which its own `==` compares.
    key = StaticKey((value, _get_bits(value)) if _has_compared_fields(kind) else (kind, _get_bits(value)))
    key.value = value
    return key


def get_static_value(key: Any) -> Any:
    """Returns the value of a key of `make_static_key`."""
    return key.value if type(key) is StaticKey else key


def _has_compared_fields(kind: type) -> bool:
    return hasattr(kind, "__dataclass_fields__") and kind.__eq__ is not object.__eq__


def _get_bits(value: Any) -> Hashable:
    """Returns the bits of a number, those of the numbers in a tuple or a dataclass, and the type of anything else."""
    kind = type(value)
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if isinstance(value, float | complex):
        return kind, struct.pack("dd", value.real, value.imag)
    if isinstance(value, tuple):
        return kind, *map(_get_bits, value)
    if _has_compared_fields(kind):
        return kind, *(_get_bits(getattr(value, name, None)) for name in kind.__dataclass_fields__)
    return kind


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

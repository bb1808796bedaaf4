"""Caches of plans and compiled operations, keyed by static values."""

import functools
import struct
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax
import numpy as np


class StaticKey(tuple[Any, ...]):
    """The key of a static value, and the value itself.

    It is a tuple because JAX and caches hash and compare it at each call, and Python does both for tuples in C.
    """

    value: Any


def needs_static_key(kind: type) -> bool:
    """Returns whether `==` takes different values of this type for equal, as `0.0` and `-0.0`, alone or in fields."""
    return issubclass(kind, float | complex) or _has_compared_fields(kind)


def make_static_key(value: Any) -> Hashable:
    """Returns a key that compares numbers by type and bits, so that `0.0` differs from `-0.0` and a NaN equals itself.

    Numbers in fields of dataclasses, and in tuples in such fields, are compared in the same way. Any other value is its
    own key.
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


CACHE_SIZE = 8192  # plans are small; one evicted too early is compiled again

cached_plan = functools.lru_cache(maxsize=CACHE_SIZE)
"""Decorator that caches the results of a planning function for hashable arguments."""


def jit_inline(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that is compiled once per signature outside of traces, and inlined within them."""
    return jax.jit(fn, inline=jax.Inline.JAX_EARLY)


@cached_plan
def cached_jit(fn: Callable[..., Any], *static: Hashable) -> Callable[..., Any]:
    """Returns `fn` with its first arguments fixed, compiled once per signature of the arrays that follow them.

    The active mapping and mesh are part of JAX's own cache key, so `fn` may read them while it is traced. `fn` is a
    function of this package: for a function of the user, a cache would ignore later changes of values that it reads.
    """
    return jit_inline(functools.partial(fn, *static))


def shared_object(make: Callable[..., Any]) -> Any:
    """Decorator of a function that makes an object: equal arguments get the same one for as long as it is in use.

    It is for objects that are compared by identity. `cached_plan` alone would make another one when it has evicted the
    first, and in each of the threads that miss at once.
    """
    objects: weakref.WeakValueDictionary[tuple[Hashable, ...], Any] = weakref.WeakValueDictionary()
    lock = threading.RLock()  # reentrant, because `make` and the `==` of arguments may be code that calls this again

    @cached_plan
    def find_object(*args: Hashable) -> Any:
        with lock:
            result = objects.get(args)
            if result is None:
                result = objects[args] = make(*args)
            return result

    return find_object

"""Compiled operations, cached by their static arguments: the function, names and options.

Eager calls cost dispatch. With this cache a call whose names were met before plans nothing; inside a trace the
compiled function is inlined and leaves nothing behind.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any

from ._broadcasting import jit_inline
from ._cache import cached_plan


@cached_plan
def cached_jit(fn: Callable[..., Any], *static: Hashable) -> Callable[..., Any]:
    """Returns `fn` with its first arguments fixed, compiled once per signature of the arrays that follow them.

    The active mapping and mesh are part of JAX's own cache key, so `fn` may read them while it is traced. `fn` is a
    function of this package: for a function of the user, a cache would ignore later changes of values that it reads.
    """
    return jit_inline(functools.partial(fn, *static))

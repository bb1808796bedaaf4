"""What is compiled for a function of the user's, kept as long as that function lives.

JAX compiles a loop outside of jit anew for each new body. Here it is found again by the function that the user gave,
which is referred to weakly, so that what was compiled for it goes with it.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from .._broadcasting import jit_inline as inlined


_compilers: weakref.WeakKeyDictionary[Any, Callable[..., "_Compiled"]] = weakref.WeakKeyDictionary()


def compiled(run: Callable[..., Any], fn: Callable[..., Any], *static: Any, traced: bool = False) -> Callable[..., Any]:
    """Returns `run` with its first arguments, `fn` and what is static, fixed: compiled once for each of them.

    It is not compiled if the function, or something static, cannot be hashed or referred to weakly. Nor is it where
    arguments are `traced` and the function is met for the first time: most functions there are made for that one
    trace, which takes them in as they are. One that is met again is traced once more, for all traces to come.
    """
    try:
        compiler = _compilers.get(fn)
        if compiler is None:
            compiler = functools.lru_cache(maxsize=256)(functools.partial(_Compiled, weakref.ref(fn)))
            _compilers[fn] = compiler
        found = compiler(run, *static)
    except TypeError:
        return functools.partial(run, fn, *static)
    if traced and not found.met:
        found.met = True
        return functools.partial(run, fn, *static)
    return found.call


class _Compiled:
    """What is compiled for a function, and whether it was met before."""

    __slots__ = ("call", "met")

    def __init__(self, fn: Callable[[], Any], run: Callable[..., Any], *static: Any) -> None:
        def compiled(*args: Any) -> Any:
            return run(fn(), *static, *args)

        self.call, self.met = inlined(compiled), False

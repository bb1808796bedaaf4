"""What is compiled for a function of the user's, kept as long as that function lives.

JAX compiles a loop outside of jit anew for each new body. Here it is found again by the function that the user gave,
which is referred to weakly, so that what was compiled for it goes with it.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax


_compilers: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()


def compiled(run: Callable[..., Any], fn: Callable[..., Any], *static: Any) -> Callable[..., Any]:
    """Returns `run` with its first arguments, `fn` and what is static, fixed: compiled once for each of them.

    It is not compiled if the function, or something static, cannot be hashed or referred to weakly.
    """
    try:
        compiler = _compilers.get(fn)
        if compiler is None:
            compiler = functools.lru_cache(maxsize=256)(functools.partial(_compile, weakref.ref(fn)))
            _compilers[fn] = compiler
        return compiler(run, *static)
    except TypeError:
        return functools.partial(run, fn, *static)


def _compile(fn: Callable[[], Any], run: Callable[..., Any], *static: Any) -> Callable[..., Any]:
    def compiled(*args: Any) -> Any:
        return run(fn(), *static, *args)

    return jax.jit(compiled, inline=True)

"""What makes compiling programs that run once faster; imported before JAX starts a backend."""

import functools
import os
import platform
import threading
from typing import Any

import jax


try:
    from jax._src.interpreters import mlir
except ImportError:  # a JAX that has it elsewhere makes a context for each program
    mlir = None


# Machine code is not optimised. On processors with AVX2, that rounds the same numbers differently in two places of one
# program, where one of them multiplies and adds at once; then a minimum is not equal to what it was computed from, and
# its gradient in JAX is wrong, as in seed 10195 of the fuzzer. Without AVX2 there is no such instruction.
if platform.machine().lower() in ("x86_64", "amd64"):
    FASTER_COMPILING = "--xla_backend_optimization_level=0 --xla_cpu_max_isa=AVX"
else:
    FASTER_COMPILING = "--xla_backend_optimization_level=1"
FASTER_COMPILING += " --xla_llvm_disable_expensive_passes=true"


_CONTEXT_CACHES: list[Any] = []


def compile_faster() -> None:
    """Adds the flags for this process and those that it starts, and shares MLIR's context within a thread."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FASTER_COMPILING}".strip()
    if hasattr(mlir, "make_ir_context"):
        make_context = functools.cache(lambda thread, make=mlir.make_ir_context: make())
        mlir.make_ir_context = lambda: make_context(threading.get_ident())
        _CONTEXT_CACHES.append(make_context)


def forget_compiled() -> None:
    """Lets go of all compiled programs, and of the names, types and constants of their text."""
    jax.clear_caches()
    for cache in _CONTEXT_CACHES:
        cache.cache_clear()

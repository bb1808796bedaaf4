"""Flags of XLA with which programs that run once are compiled faster; imported before JAX starts a backend."""

import os

import jax


# With level 0, jax 0.10.2 computes wrong gradients in rare programs, such as seed 10195 of the fuzzer.
FASTER_COMPILING = "--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true"
if jax.__version_info__ < (0, 11):  # later ones have only the emitters that compile slowly, and end at an unknown flag
    FASTER_COMPILING += " --xla_cpu_use_fusion_emitters=false"


def compile_faster() -> None:
    """Adds the flags for this process and those that it starts."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FASTER_COMPILING}".strip()

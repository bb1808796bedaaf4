"""Runs many random programs: `make fuzz ARGS="--programs 5000"`, or one again with `--kind auto --seed 7`.

Seeds draw other programs once there is another operation. So a program that fails is also printed as a dict: a fault
that is mended has it in `REGRESSIONS` of `test_fuzz.py`, which `restore` runs again.

With `--attention` it runs as many cases of attention with sharded positions instead.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax

from ..compiling import compile_faster
from .attention import find_attention_problems, make_case
from .programs import TYPES, find_problems, make_program, make_setting, print_source


os.environ.setdefault("JAX_PLATFORMS", "cpu")
compile_faster()


def run_seed(options: argparse.Namespace, seed: int) -> Iterator[tuple[str, list[Any], list[str]]]:
    """Yields for each run of a seed the arguments that repeat it, what it is, and its problems."""
    if options.attention:
        case = make_case(seed)
        yield f"--attention --seed {seed}", [case], find_attention_problems(case)
        return
    program = make_program(seed)
    for kind in [options.kind] if options.kind else TYPES:
        setting = make_setting(seed, kind, program)
        yield f"--kind {kind} --seed {seed}", [print_source(program, setting)], find_problems(program, setting)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=300, help="how many on each kind of mesh")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", choices=sorted(TYPES), help="one kind of mesh only")
    parser.add_argument("--seed", type=int, help="this program only")
    parser.add_argument("--attention", action="store_true", help="cases of attention instead of programs")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    seeds = range(options.first, options.first + options.programs) if options.seed is None else [options.seed]
    failed, start = [], time.monotonic()
    for count, seed in enumerate(seeds, 1):
        for arguments, parts, problems in run_seed(options, seed):
            if problems or options.seed is not None:
                print("", *parts, *problems, sep="\n")
            if problems:
                failed.append(arguments)
                print(f'again: make fuzz ARGS="{failed[-1]}"', flush=True)
        if count % 20 == 0:
            jax.clear_caches()  # compiled programs take gigabytes
        if count % 100 == 0:
            print(f"{count} programs in {time.monotonic() - start:.0f} s, {len(failed)} failed", flush=True)
    print("all passed" if not failed else f"{len(failed)} failed: {'; '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

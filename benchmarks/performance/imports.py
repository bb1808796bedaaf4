"""How long imports take in fresh processes: JAX and Equinox, and then a library on top of them.

Measured in seconds of CPU time, with cached files, so that neither the disk nor other processes count. Each process
times both parts, since two processes on a shared machine differ by more than a library adds.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from .contenders import haliax
from .measure import Effort, Row, row


DEVICES = 1
ROUNDS = 11
BASE = "JAX and Equinox"
PEERS = {} if haliax is None else {"Haliax": "haliax"}

TIMED = """
import gc, time
gc.{collector}()
start = time.process_time()
import jax, equinox
middle = time.process_time()
{library}
print(middle - start, time.process_time() - start)
"""


def rows(effort: Effort) -> Iterator[Row]:
    def measured(what: str, bar: float | None, collector: str) -> Row:
        code = {
            who: TIMED.format(collector=collector, library=f"import {library}")
            for who, library in {"Axonym": "axonym", **PEERS}.items()
        }
        rounds = 1 if effort.smoke else ROUNDS
        return row(what, "s", "`import jax, equinox`", bar, _seconds(code, rounds, environment), reference=BASE)

    with tempfile.TemporaryDirectory() as folder:
        # Bytecode is compiled once, and where nothing else is touched; the system has then cached the files.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        yield measured("`import jax, equinox, axonym`", 1.12, "disable")
        if effort.smoke:
            return
        yield measured("`import jax, equinox, axonym`, with the garbage collector on", None, "enable")


def _seconds(code: dict[str, str], rounds: int, environment: dict[str, str]) -> dict[str, list[float]]:
    """Returns what the reference and each library take in each round, the libraries scaled to the round's reference."""
    for one in code.values():
        _run(one, environment)
    taken: dict[str, list[float]] = {who: [] for who in (BASE, *code)}
    order, shuffle = list(code), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        seconds = {who: _run(code[who], environment) for who in order}
        reference = statistics.median(base for base, _ in seconds.values())
        taken[BASE].append(reference)
        for who, (base, total) in seconds.items():
            taken[who].append(reference * total / base)
    return taken


def _run(code: str, environment: dict[str, str]) -> tuple[float, float]:
    base, total = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).split()
    return float(base), float(total)

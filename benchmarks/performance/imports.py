"""How long imports take in fresh processes: JAX and Equinox alone, and a library on top of them.

Measured in seconds of CPU time, with cached files, so that neither the disk nor other processes count.
"""

import os
import random
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
import jax, equinox{library}
print(time.process_time() - start)
"""


def rows(effort: Effort) -> Iterator[Row]:
    def measured(what: str, bar: float | None, collector: str) -> Row:
        code = {
            who: TIMED.format(collector=collector, library=library and f", {library}")
            for who, library in {BASE: "", "Axonym": "axonym", **PEERS}.items()
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
    for one in code.values():
        _run(one, environment)
    taken: dict[str, list[float]] = {who: [] for who in code}
    order, shuffle = list(code), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for who in order:
            taken[who].append(_run(code[who], environment))
    return taken


def _run(code: str, environment: dict[str, str]) -> float:
    return float(subprocess.check_output([sys.executable, "-c", code], env=environment, text=True))

"""What tracing costs: a decoder of twelve layers, its forward pass, its gradient, and the lowering of both.

Every trace is of a function that JAX has not seen. What JAX and the libraries keep from one trace to the next is warm,
as it is in a program that traces more than one function; the last rows are of the first trace in a process.

python -m benchmarks.performance.tracing CONTENDER unrolled|scanned
"""

import dataclasses
import functools
import gc
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import jax

from .decoder import Form, Sizes, check_agreement, form, forms
from .measure import Effort, Row, row, timed


DEVICES = 1
AGAINST = "the decoder by hand"
COLD_ROUNDS = 7
LOWER_BARS = {"unrolled": 1.1, "scanned": 1.0}


def rows(effort: Effort) -> Iterator[Row]:
    sizes = Sizes(layers=2) if effort.smoke else Sizes()
    some = effort if effort.smoke else dataclasses.replace(effort, rounds=21)
    few = effort if effort.smoke else dataclasses.replace(effort, rounds=11)
    for how in ("unrolled", "scanned"):
        found = forms(sizes, scanned=how == "scanned")
        check_agreement(found)
        for what, bar, run, rounds in (
            ("forward trace", 0.8, _forward, some),
            ("trace of value and gradient", None, _gradient, few),
            ("lowering of value and gradient", LOWER_BARS[how], _lowered, few),
        ):
            calls = {who: functools.partial(run, one) for who, one in found.items()}
            yield timed(f"{what}, {how}", AGAINST, bar, calls, rounds, unit="ms")
    for how in () if effort.smoke else ("unrolled", "scanned"):
        yield _cold_row(how, [*found])


def _cold_row(how: str, order: list[str]) -> Row:
    taken: dict[str, list[float]] = {who: [] for who in order}
    shuffle = random.Random(0).shuffle
    for _ in range(COLD_ROUNDS):
        shuffle(order)
        for who in order:
            command = [sys.executable, "-m", "benchmarks.performance.tracing", who, how]
            taken[who].append(float(subprocess.check_output(command, text=True)))
    return row(f"the first forward trace in a process, {how}", "ms", AGAINST, None, taken)


def main(who: str, how: str) -> None:
    """Prints how many milliseconds of the processor the first trace of this process takes."""
    own = form(who, Sizes(), scanned=how == "scanned")
    gc.disable()
    start = time.process_time()
    _forward(own)
    print((time.process_time() - start) * 1e3)


def _forward(form: Form) -> None:
    jax.make_jaxpr(form.fresh())(form.parameters, *form.tokens)


def _gradient(form: Form) -> None:
    jax.make_jaxpr(jax.value_and_grad(form.fresh()))(form.parameters, *form.tokens)


def _lowered(form: Form) -> None:
    jax.jit(jax.value_and_grad(form.fresh())).lower(form.parameters, *form.tokens)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Saves in two processes of which one fails, and checks what both raise, when, and what they leave behind.

python -m tests.checkpoint.fail [--draws 40] [--seed 0] [--timeout 5]

Each draw is a save in which one process raises, cannot write, is late, saves another step or another tree, or is
killed. Every process that lives must raise within the timeout, with the number of the process and the cause. After a
failure that nobody dies of, both save another step, which must succeed. All checkpoints that a process took for
complete must be there in the end, and all that are there must be, bit for bit, what was saved. Exits with 1 if not.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np

import axonym as nym

from ..processes import Done, launched


SLACK = 10.0  # seconds beyond the timeout, for a machine that is busy
FAR = 1000  # from the step of one process to that of the other
# Kinds of failure. One process raises this, and the other one too, with the number of the first.
RAISED = {
    "data": "RuntimeError: there is no state",
    "leaf": "TypeError: ['host'] is a NumPy array of dtype object",
    "deleted": "ValueError: ['weight'] was donated to a compiled function",
    "full disk": "too large",
}
DIFFERENT = ("step", "leaves", "number", "dtype", "names", "no data")
LATE = ("late", "slow disk")
DEATHS = ("death before", "death meanwhile")
KINDS = (*RAISED, *DIFFERENT, *LATE, *DEATHS)


class Failure(NamedTuple):
    """A kind of failure, the process that fails, and for a death meanwhile the seconds after the save began."""

    kind: str
    process: int
    seconds: float = 0.0

    @property
    def is_death(self) -> bool:
        return self.kind in DEATHS


class Data:
    """An iterator over data, whose state may be missing."""

    def __init__(self, has_state: bool) -> None:
        self.has_state = has_state

    def get_state(self) -> Any:
        if not self.has_state:
            raise RuntimeError("there is no state")
        return 0

    def set_state(self, state: Any) -> None:
        raise NotImplementedError


def make_arrays(step: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(step)
    return {"weight": draw.normal(size=(8, 1 << 14)).astype("f"), "host": draw.normal(size=100).astype("f")}


def make_arguments(step: int) -> dict[str, Any]:
    """Returns the arguments of the save of a step, with an array of which both processes have a part."""
    arrays = make_arrays(step)
    weight = nym.shard(nym.named(arrays["weight"], ("embed", "mlp")), {"embed": "data"})
    return {"state": {"weight": weight, "host": arrays["host"], "number": step}, "step": step, "data": Data(True)}


@contextlib.contextmanager
def limit_file_size() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def fail(failure: Failure, arguments: dict[str, Any], timeout: float) -> contextlib.AbstractContextManager[Any]:
    """Changes the arguments of a save, or returns what it is to fail in."""
    state = arguments["state"]
    match failure.kind:
        case "data":
            arguments["data"] = Data(False)
        case "no data":
            arguments["data"] = None
        case "step":
            arguments["step"] += FAR
        case "leaf":
            state["host"] = np.array([object()])
        case "deleted":
            state["weight"].array.delete()
        case "leaves":
            state["other"] = np.arange(3.0)
        case "number":
            state["number"] = -1
        case "dtype":
            state["host"] = state["host"].astype("d")
        case "names":
            state["weight"] = state["weight"].rename({"mlp": "hidden"})
        case "late":
            time.sleep(timeout + 1)
        case "death before":
            die()
        case "death meanwhile":
            threading.Timer(failure.seconds, die).start()
        case "full disk":
            return limit_file_size()
        case "slow disk":

            def write_slowly(*_: Any) -> None:
                time.sleep(timeout + 1)

            return mock.patch("axonym.checkpoint._steps.write_checksums_of_process", write_slowly)
    return contextlib.nullcontext()


def die() -> None:
    report("died", time.time())
    os.kill(os.getpid(), signal.SIGKILL)


def report(*words: object) -> None:
    print(*words, flush=True)


def save(checkpointer: nym.checkpoint.Checkpointer, arguments: dict[str, Any]) -> None:
    checkpointer.save(**arguments)
    checkpointer.wait()
    report("complete", arguments["step"])


def run_child(folder: Path, failures: Sequence[Failure], step: int, timeout: float) -> None:
    """Runs one process, which reports what it takes for complete, and each error with the time that it took."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    with jax.set_mesh(mesh), nym.checkpoint.Checkpointer(folder, timeout=timeout) as checkpointer:
        for failure in failures:
            arguments = make_arguments(step)
            nym.barrier_sync(120, f"before step {step}")
            start = time.monotonic()
            try:
                is_failing = jax.process_index() == failure.process
                with fail(failure, arguments, timeout) if is_failing else contextlib.nullcontext():
                    save(checkpointer, arguments)
                while failure.is_death:
                    step += 1
                    start = time.monotonic()
                    save(checkpointer, make_arguments(step))
            except Exception as error:
                report("raised", json.dumps([time.monotonic() - start, f"{type(error).__name__}: {error}"]))
            if failure.is_death:
                os._exit(0)  # JAX would wait for the dead process
            nym.barrier_sync(120, f"after step {step}")
            save(checkpointer, make_arguments(step + 1))
            step += 2


def list_causes(failure: Failure, process: int, step: int) -> list[str]:
    """Returns what the error of a process has to say."""
    if failure.kind in RAISED:
        prefix = [] if process == failure.process else [f"in process {failure.process}: "]
        return [*prefix, RAISED[failure.kind]]
    if failure.kind == "step":
        steps = [step + FAR * (number == failure.process) for number in range(2)]
        return [f"process 0 saves step {steps[0]} in ", f"and process 1 saves step {steps[1]} in "]
    if failure.kind in DIFFERENT:
        return [f"'the state of step {step}' differs between processes: process 0 has ", "; process 1 has "]
    if process == failure.process:
        return [f"is over: process {1 - process} gave up after ", f"before this process, {process}, arrived"]
    return [f"for process {failure.process} of 2, which did not arrive: slow, stuck or dead"]


def check_outputs(outputs: Sequence[Done], failures: Sequence[Failure], step: int, timeout: float) -> float:
    """Checks what the processes of one start have raised, and how a death has ended them; returns the longest wait."""
    waits = [0.0]
    for process, done in enumerate(outputs):
        errors = [json.loads(text) for text in read_lines(done.output, "raised")]
        *survived, last = failures
        if last.is_death and process == last.process:
            assert done.code == -signal.SIGKILL, f"process {process} was not killed:\n{done.output}"
        elif not last.is_death or last.process > 0:  # with process 0 dead, JAX may end this one before it can raise
            survived.append(last)
        assert len(errors) >= len(survived), f"process {process} did not raise {len(survived)} times:\n{done.output}"
        for number, failure in enumerate(survived):
            seconds, text = errors[number]
            for cause in list_causes(failure, process, step + 2 * number):
                assert cause in text, f"process {process} does not say {cause!r} for {failure}: {text}"
            assert seconds < timeout + SLACK, f"process {process} took {seconds:.0f} s for {failure}: {text}"
            is_late = failure.kind in LATE and process == failure.process  # and has waited by itself
            waits.append(0.0 if is_late else seconds)
    for done in outputs:
        for death in read_lines(done.output, "died"):
            seconds = time.time() - float(death)
            assert seconds < timeout + SLACK, f"the other process took {seconds:.0f} s to end: {outputs}"
    return max(waits)


def read_lines(output: str, word: str) -> list[str]:
    return [line.removeprefix(f"{word} ") for line in output.splitlines() if line.startswith(f"{word} ")]


def check_folder(folder: Path, complete: Sequence[int]) -> None:
    """Checks that what was reported as complete is there, and that what is there is whole."""
    steps = nym.checkpoint.list_steps(folder)
    assert {*complete} <= {*steps}, f"of {complete}, which were complete, only {steps} are there"
    for step in steps:
        state, arrays = nym.checkpoint.restore(folder, step=step), make_arrays(step)
        assert state["number"] == step and np.array_equal(state["weight"].array, arrays["weight"]), f"step {step}"
        assert np.array_equal(state["host"], arrays["host"]), f"step {step} has other bits"


def draw_failures(count: int, seed: int) -> list[Failure]:
    draw = random.Random(seed)
    return [Failure(draw.choice(KINDS), draw.randrange(2), draw.uniform(0, 0.5)) for _ in range(count)]


def run_failures(failures: Sequence[Failure], timeout: float) -> Iterator[str]:
    """Lets two processes fail, which start again after a death; yields a line for each start, and a summary."""
    remaining, complete, longest_wait, step = [*failures], list[int](), 0.0, 0
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer, "checkpoints")
        while remaining:
            count = next((i for i, failure in enumerate(remaining, 1) if failure.is_death), len(remaining))
            started, remaining = remaining[:count], remaining[count:]
            program = f"""
            from pathlib import Path, PosixPath
            from tests.checkpoint.fail import Failure, run_child

            start(shutdown_timeout_seconds=30)
            run_child({folder!r}, {started!r}, {step}, {timeout})
            """
            outputs = launched(program, devices=1, timeout=120 + count * 2 * timeout)
            longest_wait = max(longest_wait, check_outputs(outputs, started, step, timeout))
            completed = [int(text) for done in outputs for text in read_lines(done.output, "complete")]
            complete += completed
            check_folder(folder, complete)
            names = [f"{failure.kind} in {failure.process}" for failure in started]
            yield f"{', '.join(names)}: {len({*completed})} steps complete"
            step = max(nym.checkpoint.list_steps(folder), default=0) + 1
    deaths = sum(failure.is_death for failure in failures)
    yield (
        f"{len(failures)} failures, {deaths} of them deaths: all that lived raised, with the number and the cause, "
        f"after {longest_wait:.1f} s at most with a timeout of {timeout:g} s; {len({*complete})} steps were complete, "
        "and none was lost"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoint.fail")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=5, help="of the Checkpointer, in seconds")
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    try:
        for line in run_failures(draw_failures(options.draws, options.seed), options.timeout):
            print(line, flush=True)
    except AssertionError as error:
        print(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

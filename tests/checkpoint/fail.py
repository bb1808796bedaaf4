"""Saves in two processes of which one fails, and checks what both raise, when, and what they leave behind.

One process raises, cannot write, is late, or saves another step or another tree. Both must raise within the timeout,
with the number of the process and the cause, and then save another step. All checkpoints that a process took for
complete must be there in the end, and all that are there must be, bit for bit, what was saved.
"""

import contextlib
import json
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np

import axonym as nym


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
KINDS = (*RAISED, *DIFFERENT, *LATE)
OFTEN = "data", "full disk", "step", "names", "no data", "late"  # the others resemble these


class Failure(NamedTuple):
    """A kind of failure, and the process that fails."""

    kind: str
    process: int


class Data:
    """An iterator over data, whose state may be missing."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def get_state(self) -> Any:
        if self.state is None:
            raise RuntimeError("there is no state")
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


def make_arrays(step: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(step)
    return {"weight": draw.normal(size=(8, 1 << 14)).astype("f"), "host": draw.normal(size=100).astype("f")}


def make_arguments(step: int) -> dict[str, Any]:
    """Returns the arguments of the save of a step, with an array of which both processes have a part."""
    arrays = make_arrays(step)
    weight = nym.shard(nym.named(arrays["weight"], ("embed", "mlp")), {"embed": "data"})
    return {"state": {"weight": weight, "host": arrays["host"], "number": step}, "step": step, "data": Data("same")}


@contextlib.contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Lets no file of this process be larger."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def fail(failure: Failure, arguments: dict[str, Any], timeout: float) -> contextlib.AbstractContextManager[Any]:
    """Changes the arguments of a save, or returns what it is to fail in."""
    state = arguments["state"]
    match failure.kind:
        case "data":
            arguments["data"] = Data()
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
        case "full disk":
            return limit_file_size(1 << 12)
        case "slow disk":

            def write_slowly(*_: Any) -> None:
                time.sleep(timeout + 1)

            return mock.patch("axonym.checkpoint._steps.write_checksums_of_process", write_slowly)
    return contextlib.nullcontext()


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
            except Exception as error:
                report("raised", json.dumps([time.monotonic() - start, f"{type(error).__name__}: {error}"]))
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


def check_outputs(outputs: Sequence[str], failures: Sequence[Failure], step: int, timeout: float) -> None:
    """Checks what the processes have raised."""
    for process, output in enumerate(outputs):
        errors = [json.loads(text) for text in read_lines(output, "raised")]
        assert len(errors) == len(failures), f"process {process} did not raise {len(failures)} times:\n{output}"
        for number, (failure, (seconds, text)) in enumerate(zip(failures, errors, strict=True)):
            for cause in list_causes(failure, process, step + 2 * number):
                assert cause in text, f"process {process} does not say {cause!r} for {failure}: {text}"
            assert seconds < timeout + SLACK, f"process {process} took {seconds:.0f} s for {failure}: {text}"


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

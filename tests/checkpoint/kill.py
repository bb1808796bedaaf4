"""Kills a program that trains and saves, at random moments, and checks what it has left behind.

python -m tests.checkpoint.kill [--kills 50] [--processes 2] [--seed 0]
python -m tests.checkpoint.kill --flips 500 --exchanges 100 --contend 600

First the training runs once without interruption and writes a checksum of its state at each step that is saved. Then it
is started again and again, goes on from the newest checkpoint, and is killed with SIGKILL, in all its processes. It
deletes slowly, so that many kills find it at that. After each kill the newest checkpoint must be at least the newest
that the program reported as complete, and all checkpoints must be, bit for bit, what the uninterrupted training gave.

The other options flip bits of files, exchange files between checkpoints, and let two savers and a reader contend for
some seconds, without kills unless `--kills` is there too. Exits with 1 if something was lost or missed.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils

import axonym as nym

from .contend import run_contention
from .tamper import run_exchanges, run_flips


EVERY, KEPT = 3, 2
Batch, Embed, Mlp = nym.make_axes(batch=16, embed=256, mlp=512)
COMPUTE = {"batch": "data", "mlp": "model"}
PARAMETERS = {**COMPUTE, "embed": "data"}
LONGEST = 1.2  # seconds from the first step to the kill
PAUSE = 0.003  # seconds before a file is deleted
OPTIMIZER = optax.adamw(1e-2)


def init_state(key: Any) -> dict[str, Any]:
    up = nym.random.normal(key, (Embed, Mlp)) * 0.02
    return {"params": up, "optimizer": OPTIMIZER.init(up), "key": key, "step": 0}


def compute_loss(params: nym.NamedArray, x: nym.NamedArray) -> Any:
    hidden = nym.nn.relu(nym.dot(x, params, axis=Embed))
    return ((nym.dot(hidden, params, axis=Mlp) - x) ** 2).mean().scalar()


@nym.fsdp(PARAMETERS, COMPUTE, donate_args=(True, True, True))
def train_step(params: Any, moments: Any, key: Any) -> Any:
    key, now = jax.random.split(key)
    gradients = jax.grad(compute_loss)(params, nym.random.normal(now, (Batch, Embed)))
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments, key


def compute_checksum(state: Any) -> int:
    """Returns a checksum of all bits of a state."""
    checksum = 0
    for leaf in jax.tree.leaves(state):
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        whole = multihost_utils.process_allgather(leaf, tiled=True) if isinstance(leaf, jax.Array) else leaf
        checksum = zlib.crc32(np.ascontiguousarray(whole).tobytes(), checksum)
    return checksum


def train(folder: Path, steps: int, reference: Path | None) -> None:
    """Trains and saves, from the newest checkpoint on; without saving if there is a file for checksums."""
    state = {**nym.named_jit(init_state, PARAMETERS)(jax.random.key(0)), "step": 0}
    if reference is not None:
        checksums = {}
        while state["step"] < steps:
            state = advance(state)
            if state["step"] % EVERY == 0:
                checksums[state["step"]] = compute_checksum(state)
        if jax.process_index() == 0:
            reference.write_text(json.dumps(checksums))
        return
    with nym.checkpoint.Checkpointer(folder, max_to_keep=KEPT) as checkpointer:
        if checkpointer.steps:
            state = checkpointer.restore(state, mapping=PARAMETERS)
        saved, state = state["step"], advance(state)
        print("started", flush=True)
        while state["step"] < steps:
            state = advance(state)
            if state["step"] % EVERY == 0:
                checkpointer.save(state, state["step"])  # returns when the one before is complete
                print("complete", saved, flush=True)
                saved = state["step"]


def advance(state: dict[str, Any]) -> dict[str, Any]:
    params, moments, key = train_step(state["params"], state["optimizer"], state["key"])
    return {"params": params, "optimizer": moments, "key": key, "step": state["step"] + 1}


def delete_slowly() -> None:
    """Makes the deletion of files in this process take so long that a kill may fall into it."""
    unlink = os.unlink

    def wait_and_unlink(*args: Any, **options: Any) -> None:
        time.sleep(PAUSE)
        unlink(*args, **options)

    os.unlink = wait_and_unlink


def run_child(arguments: argparse.Namespace) -> None:
    """Runs one process of the training."""
    delete_slowly()
    jax.config.update("jax_num_cpu_devices", 8 // arguments.processes)
    if arguments.processes > 1:
        nym.initialize(
            f"127.0.0.1:{arguments.port}", arguments.processes, arguments.process, initialization_timeout=120
        )
    with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        train(arguments.folder, arguments.steps, arguments.reference)


class Program:
    """The training in all its processes, with what the first of them has printed."""

    def __init__(self, folder: Path, processes: int, steps: int, reference: Path | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = ["--folder", str(folder), "--processes", str(processes), "--port", str(port), "--steps", str(steps)]
        options += [] if reference is None else ["--reference", str(reference)]
        self.log = folder.with_suffix(".log")
        with self.log.open("w") as log:
            self.running = [
                subprocess.Popen(
                    [sys.executable, "-m", "tests.checkpoint.kill", "--process", str(process), *options],
                    stdout=log if process == 0 else subprocess.DEVNULL,
                    stderr=subprocess.STDOUT,
                    cwd=Path(__file__).parents[2],
                )
                for process in range(processes)
            ]

    def read_lines(self) -> list[list[str]]:
        lines = self.log.read_text(errors="replace").splitlines()
        return [line.split() for line in lines if line.startswith(("started", "complete "))]

    def wait_for_start(self, seconds: float = 240) -> None:
        end = time.monotonic() + seconds
        while not self.read_lines():
            if time.monotonic() > end or any(child.poll() not in (None, 0) for child in self.running):
                raise AssertionError(f"the training does not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        for child in self.running:
            child.kill()
        for child in self.running:
            child.wait()

    def find_complete(self) -> int:
        """Returns the newest step that was reported as complete, 0 if none was."""
        return max((int(line[1]) for line in self.read_lines() if line[0] == "complete" and len(line) == 2), default=0)


def check_folder(folder: Path, reference: dict[int, int], complete: int, like: Any) -> None:
    """Checks all checkpoints of a folder."""
    steps = nym.checkpoint.list_steps(folder)
    assert (steps or [0])[-1] >= complete, f"step {complete} was complete and is lost; there are {steps}"
    for step in steps:
        state = nym.checkpoint.restore(folder, like, step=step)
        assert state["step"] == step and compute_checksum(state) == reference[step], f"step {step} has other bits"


def run_kills(kills: int, processes: int, seed: int, steps: int) -> Iterator[str]:
    """Kills the training and checks its checkpoints; yields a line for each kill, and a summary."""
    draw = random.Random(seed)
    like = init_state(jax.random.key(1))
    writing = deleting = restored = 0
    with tempfile.TemporaryDirectory() as outer:
        folder, file = Path(outer, "checkpoints"), Path(outer, "reference.json")
        program = Program(folder, processes, steps, file)
        codes = [child.wait(600) for child in program.running]
        assert codes == [0] * processes, program.log.read_text()[-3000:]
        reference = {int(step): checksum for step, checksum in json.loads(file.read_text()).items()}
        complete = 0
        for kill in range(1, kills + 1):
            program = Program(folder, processes, steps)
            try:
                if draw.random() < 0.9:
                    program.wait_for_start()
                    time.sleep(draw.uniform(0, LONGEST))
                else:  # while it starts, or restores
                    time.sleep(draw.uniform(0, 8))
            finally:
                program.kill()
            complete = max(complete, program.find_complete())
            hidden = [path.name for path in folder.glob(".axonym-saving-*/*")]
            is_deleting = any(name.startswith("deleted-") for name in hidden)
            is_writing = any(not name.startswith("deleted-") for name in hidden)
            check_folder(folder, reference, complete, like)
            result = nym.checkpoint.list_steps(folder)
            writing, deleting, restored = writing + is_writing, deleting + is_deleting, restored + bool(result)
            yield f"kill {kill}: {result}, {'while at ' + ', '.join(hidden) if hidden else 'between saves'}"
            if result and result[-1] > steps - EVERY:  # the training has ended: from the beginning again
                shutil.rmtree(folder)
                complete = 0
    yield (
        f"{kills} kills in {processes} {'process' if processes == 1 else 'processes'}, {writing} of them while a "
        f"checkpoint was being written and {deleting} while one was being deleted: all that were listed were restored "
        f"bit for bit {restored} times, none was there yet {kills - restored} times, none was lost"
    )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoint.kill")
    parser.add_argument("--kills", type=int, help="50 without one of the next three")
    parser.add_argument("--flips", type=int, default=0)
    parser.add_argument("--exchanges", type=int, default=0)
    parser.add_argument("--contend", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=600, help="of the training, which begins again after them")
    for name, kind in (("process", int), ("port", int), ("folder", Path), ("reference", Path)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse_arguments(arguments)
    jax.config.update("jax_platforms", "cpu")
    if given.process is not None:
        run_child(given)
        return 0
    checks = [run_flips(given.flips, given.seed)] if given.flips else []
    checks += [run_exchanges(given.exchanges, given.seed)] if given.exchanges else []
    checks += [run_contention(given.contend, given.seed)] if given.contend else []
    if given.kills or not checks:
        checks.append(run_kills(given.kills or 50, given.processes, given.seed, given.steps))
    try:
        for line in itertools.chain(*checks):
            print(line, flush=True)
    except AssertionError as error:
        print(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

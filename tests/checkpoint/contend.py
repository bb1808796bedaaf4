"""Two programs that save to one folder, and are killed at times, and one that restores from it.

Each saver opens the folder again and again, is refused while the other has it open, and otherwise saves some steps.
What it reports as complete must be there, bit for bit, until newer steps replace it, and what the reader finds must be
whole.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym


KEPT = 3
ROLES = ("saver", "saver", "reader")
REFUSED = "open to save since"


def make_state(seed: int) -> dict[str, Any]:
    noise = np.random.default_rng(seed).integers(0, 2**32, (8, 1 << 13), np.uint32)
    return {"noise": [jnp.asarray(row) for row in noise], "checksum": zlib.crc32(noise.tobytes())}


def check_state(state: Any) -> int:
    """Returns the checksum of a state, after comparing its arrays with it."""
    restored = zlib.crc32(np.stack(state["noise"]).tobytes())
    assert restored == state["checksum"], "the arrays are of another state"
    return restored


def report(*words: object) -> None:
    print(*words, flush=True)


def run_saver(folder: Path, seed: int) -> None:
    """Saves until it is killed, by itself now and then."""
    draw = random.Random(seed)
    while True:
        try:
            with nym.checkpoint.Checkpointer(folder, max_to_keep=KEPT) as checkpointer:
                for _ in range(draw.randint(1, 6)):
                    step, state = max(checkpointer.steps, default=0) + 1, make_state(draw.getrandbits(32))
                    checkpointer.save(state, step)
                    if draw.random() < 0.01:
                        time.sleep(draw.uniform(0, 0.05))
                        os.kill(os.getpid(), signal.SIGKILL)
                    checkpointer.wait()
                    report("complete", step, state["checksum"])
        except OSError as error:
            assert REFUSED in str(error), error
            report("refused")
        time.sleep(draw.uniform(0, 0.1))


def run_reader(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    while True:
        try:
            with nym.checkpoint.Checkpointer(folder, read_only=True) as checkpointer:
                check_state(checkpointer.restore())
            report("restored")
        except FileNotFoundError:
            assert not nym.checkpoint.list_steps(folder)
        time.sleep(draw.uniform(0, 0.02))


def start(role: str, folder: Path, seed: int, log: Path) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-m", "tests.checkpoint.contend", role, str(folder), str(seed)]
    with log.open("a") as output:
        root = Path(__file__).parents[2]
        return subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT, cwd=root)


def run_contention(seconds: float, seed: int) -> Iterator[str]:
    """Lets the programs contend for some seconds; yields a summary."""
    with tempfile.TemporaryDirectory() as outer:
        folder, logs = Path(outer, "checkpoints"), [Path(outer, f"{number}.log") for number in range(len(ROLES))]
        running = [start(role, folder, seed + number, logs[number]) for number, role in enumerate(ROLES)]
        killed, end = 0, time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                time.sleep(0.1)
                for number, program in enumerate(running):
                    if (code := program.poll()) is not None:
                        assert code == -signal.SIGKILL, logs[number].read_text()[-3000:]
                        killed += 1
                        running[number] = start(ROLES[number], folder, seed + 100 * killed, logs[number])
        finally:
            for program in running:
                program.kill()
                program.wait()
        lines = [line.split() for log in logs for line in log.read_text().splitlines()]
        counts = Counter(line[0] for line in lines if line)
        complete = {int(line[1]): int(line[2]) for line in lines if line[0] == "complete" and len(line) == 3}
        assert len(complete) == counts["complete"], "a step was reported twice"
        steps = nym.checkpoint.list_steps(folder)
        for step in sorted(complete)[-KEPT:]:
            assert step in steps or step < steps[0], f"step {step} was complete and is lost; there are {steps}"
        for step in steps:
            checksum = check_state(nym.checkpoint.restore(folder, step=step))
            assert checksum == complete.get(step, checksum), f"step {step} has other bits"
    yield (
        f"two savers and a reader for {seconds:g} s: {counts['complete']} steps were saved, {counts['refused']} times "
        f"a saver was refused and {killed} times killed, {counts['restored']} times the reader restored a whole state, "
        "and nothing that was reported as complete is lost"
    )


def main(role: str, folder: str, seed: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    {"saver": run_saver, "reader": run_reader}[role](Path(folder), int(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])

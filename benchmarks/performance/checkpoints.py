"""What checkpoints with axes and checksums cost beside those of Orbax: seconds, bytes, memory, and what training waits.

python -m benchmarks.performance.checkpoints CONTENDER save|restore MEGABYTES FOLDER
"""

import functools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym

from .measure import Effort, Row, row


DEVICES = 8
LEAVES = 12
STATE, SMALL_STATE = 504, 12  # megabytes
ROUNDS = 9
STEPS, WAIT = 250, 0.01  # of a loop, and the seconds in which each of them waits for its devices
AXES = ("embed", "mlp")
SHARDED = P("data", "model")
BASE = "Orbax"
AGAINST = "`StandardCheckpointer`"


def rows(effort: Effort) -> Iterator[Row]:
    megabytes, rounds = (SMALL_STATE, 1) if effort.smoke else (STATE, ROUNDS)
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer)
        saving, restoring, size = _time_rounds(megabytes, rounds, folder)
        what = f"a state of {megabytes} MB"
        yield row(f"`save` of {what}", "s", AGAINST, 1.05, saving, BASE)
        yield row(f"`restore` of {what}", "s", AGAINST, 1.05, restoring, BASE)
        yield row(f"bytes on the disk of {what}", "bytes", AGAINST, 1.05, size, BASE)
        for action in ("save", "restore"):
            grown = _list_growths(action, megabytes, 1 if effort.smoke else 5, folder)
            yield row(f"peak memory of `{action}` of {what}", "MB", AGAINST, 1.1, grown, BASE)
        yield from _compare_loops(megabytes, rounds, folder)


def _make_states(megabytes: int) -> dict[str, dict[str, Any]]:
    """Returns the same arrays without and with names, by contender, sharded over eight devices."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    draw, columns = np.random.default_rng(0), megabytes * 10**6 // (4 * LEAVES * 4096) // 2 * 2
    arrays = {
        f"w{i}": jax.device_put(draw.standard_normal((4096, columns), np.float32), NamedSharding(mesh, SHARDED))
        for i in range(LEAVES)
    }
    return {BASE: arrays, "Axonym": {name: nym.named(array, AXES) for name, array in arrays.items()}}


def _make_shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def _save_raw(folder: Path, arrays: Any) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "raw" / "1", arrays)


def _restore_raw(folder: Path, shapes: Any) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return jax.block_until_ready(checkpointer.restore(folder / "raw" / "1", shapes))


def _save_named(folder: Path, state: Any) -> None:
    nym.checkpoint.save(folder / "named", state, 1)


def _restore_named(folder: Path, shapes: Any) -> Any:
    return jax.block_until_ready(nym.checkpoint.restore(folder / "named", shapes))


FOLDERS = {BASE: "raw", "Axonym": "named"}
SAVE = {BASE: _save_raw, "Axonym": _save_named}
RESTORE = {BASE: _restore_raw, "Axonym": _restore_named}


def _time_rounds(megabytes: int, rounds: int, folder: Path) -> tuple[dict[str, list[float]], ...]:
    """Returns the seconds of saving and of restoring, and the bytes that are written, in each round."""
    states = _make_states(megabytes)
    saving, restoring, size = ({who: [] for who in states} for _ in range(3))
    order, shuffle = [*states], random.Random(0).shuffle
    for at in range(-1, rounds):  # the first round, in which modules are imported, does not count
        shuffle(order)
        for who in order:
            shutil.rmtree(folder / FOLDERS[who], ignore_errors=True)
            taken = _time_call(functools.partial(SAVE[who], folder, states[who]))
            written = sum(path.stat().st_size for path in (folder / FOLDERS[who]).rglob("*") if path.is_file())
            if at >= 0:
                saving[who].append(taken)
                size[who].append(written)
        for who in order:
            taken = _time_call(functools.partial(RESTORE[who], folder, _make_shapes(states[who])))
            if at >= 0:
                restoring[who].append(taken)
    found = {who: RESTORE[who](folder, _make_shapes(states[who])) for who in states}
    for name, array in states[BASE].items():
        assert np.array_equal(found[BASE][name], array) and np.array_equal(found["Axonym"][name].array, array)
    return saving, restoring, size


def _time_call(call: Callable[[], Any]) -> float:
    os.sync()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _list_growths(action: str, megabytes: int, times: int, folder: Path) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {who: [] for who in FOLDERS}
    for _ in range(times):
        for who in taken:
            if action == "save":
                shutil.rmtree(folder / FOLDERS[who], ignore_errors=True)
            arguments = [who, action, str(megabytes), str(folder)]
            command = [sys.executable, "-m", "benchmarks.performance.checkpoints", *arguments]
            taken[who].append(float(subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout))
    return taken


def _compare_loops(megabytes: int, rounds: int, folder: Path) -> Iterator[Row]:
    """Measures how long a training loop is held up by an asynchronous save, against a blocking one."""
    state = _make_states(megabytes)["Axonym"]
    steps = 10 if rounds == 1 else STEPS
    update = jax.jit(lambda x: x * 0.5 + 1.0)

    def run_loop() -> float:
        start, x = time.perf_counter(), update(np.ones(8, np.float32))
        for _ in range(steps):
            x = update(x)
            time.sleep(WAIT)
        return time.perf_counter() - start

    blocking, call, loop = [], [], []
    with nym.checkpoint.Checkpointer(folder / "loop", max_to_keep=1) as checkpointer:
        for at in range(rounds):
            start = time.perf_counter()
            checkpointer.save(state, 2 * at)
            checkpointer.wait()
            blocking.append(time.perf_counter() - start)
            alone, start = run_loop(), time.perf_counter()
            checkpointer.save(state, 2 * at + 1)
            call.append(time.perf_counter() - start)
            loop.append(max(0.0, call[-1] + run_loop() - alone))
            checkpointer.wait()
    against = "the same save, blocking"
    what = f"of a state of {megabytes} MB"
    yield row(f"an asynchronous `save` {what}, until it returns", "s", against, 0.05, _pair(blocking, call), BASE)
    what = f"{what} adds to a loop of {steps} steps that wait {WAIT * 1000:g} ms each for their devices"
    yield row(f"what an asynchronous `save` {what}", "s", against, 0.05, _pair(blocking, loop), BASE)


def _pair(reference: list[float], own: list[float]) -> dict[str, list[float]]:
    return {BASE: reference, "Axonym": own}


def main(who: str, action: str, megabytes: str, folder: str) -> None:
    """Prints by how many megabytes the peak of this process grows while it saves or restores."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    small = _make_states(SMALL_STATE)[who]
    with tempfile.TemporaryDirectory() as first:  # what the libraries themselves need is there
        SAVE[who](Path(first), small)
        RESTORE[who](Path(first), _make_shapes(small))
    state = _make_states(int(megabytes))[who]
    shapes = _make_shapes(state)
    if action == "restore":
        del state
    _forget_peak()
    before = _read_status("VmRSS")
    if action == "save":
        SAVE[who](Path(folder), state)
    else:
        found = RESTORE[who](Path(folder), shapes)
        assert len(jax.tree.leaves(found)) == LEAVES
    print((_read_status("VmHWM") - before) / 2**20)


def _forget_peak() -> None:
    """Makes the peak of this process begin at what it holds now, where Linux can."""
    Path("/proc/self/clear_refs").write_text("5")


def _read_status(name: str) -> int:
    """Returns a number of bytes of this process, as Linux counts it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])

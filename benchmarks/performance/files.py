"""What saving and loading a sharded model costs: seconds, bytes on disk and memory, each contender in fresh processes.

python -m benchmarks.performance.files CONTENDER FOLDER MEGABYTES
"""

import importlib.util
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym

from .measure import Effort, Row, row
from .memory import measure_peak


DEVICES = 8
LEAVES = 12
ROWS = 2048
MAPPING = {"mlp": "model", "embed": "data"}
MODEL, SMALL_MODEL = 504, 6  # megabytes
ROUNDS, CALLS = 5, 3
AGAINST = "`safetensors.numpy` and one `jax.device_put`"


def rows(effort: Effort) -> Iterator[Row]:
    """Measures in turns; each contender reads what it has written itself."""
    if importlib.util.find_spec("safetensors") is None:
        return
    megabytes = SMALL_MODEL if effort.smoke else MODEL
    taken: dict[str, dict[str, list[float]]] = {}
    order = ["JAX", "Axonym"]
    for _ in range(1 if effort.smoke else ROUNDS):
        random.Random(len(taken)).shuffle(order)
        for who in order:
            with tempfile.TemporaryDirectory() as folder:
                for what, figure in _run(who, Path(folder), megabytes).items():
                    taken.setdefault(what, {}).setdefault(who, []).append(figure)
        order.reverse()
    for verb in ("save", "load"):
        name = f"{verb} a sharded model of {megabytes} MB"
        yield row(name, "s", AGAINST, 1.05, taken[f"{verb} seconds"])
        yield row(f"{name}, peak memory beyond it", "MB", AGAINST, 1.1, taken[f"{verb} memory"])
    yield row(f"a saved model of {megabytes} MB on disk", "MB", AGAINST, 1.05, taken["disk"])


def _run(who: str, folder: Path, megabytes: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for verb in ("save", "load"):
        command = [sys.executable, "-m", "benchmarks.performance.files", who, verb, str(folder), str(megabytes)]
        seconds, memory = json.loads(subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout)
        found |= {f"{verb} seconds": seconds, f"{verb} memory": memory}
    found["disk"] = sum(path.stat().st_blocks * 512 for path in folder.iterdir()) / 2**20
    return found


def main(who: str, verb: str, folder: str, megabytes: str) -> None:
    """Prints how long a call takes, and by how many megabytes the peak of this process grows in the first one."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    axes = nym.make_axes(mlp=ROWS, embed=int(megabytes) * 2**20 // (4 * LEAVES * ROWS) // 8 * 8)
    shardings = {f"layers.{at}.weight": NamedSharding(mesh, P(*MAPPING.values())) for at in range(LEAVES)}
    call = {"JAX": call_by_hand, "Axonym": call_axonym}[who]
    with jax.set_mesh(mesh), nym.axis_mapping(MAPPING):
        with tempfile.TemporaryDirectory() as small:  # what is imported and compiled once
            make_small = make_model(
                {name: NamedSharding(mesh, P()) for name in shardings}, nym.make_axes(mlp=8, embed=8)
            )
            call("save", Path(small), make_small(1.0))()
            call("load", Path(small), make_small(1.0))()
        make = make_model(shardings, axes)
        times: list[float] = []
        for at in range(1 + CALLS):
            arrays = jax.block_until_ready(make(float(at)))  # anew, because JAX keeps what it has copied to the host
            do = call(verb, Path(folder), arrays)
            if verb == "load":
                del arrays
            before, start = measure_peak(), time.perf_counter()
            found = do()
            times.append(time.perf_counter() - start)
            if at == 0:
                growth = measure_peak() - before
            del found, do
    print(json.dumps([float(np.median(times[1:])), growth / 2**20]))


def make_model(shardings: dict[str, Any], axes: tuple[nym.Axis, ...]) -> Callable[[float], dict[str, jax.Array]]:
    """Returns a compiled function that makes all arrays."""
    sizes = tuple(axis.size for axis in axes)
    return jax.jit(lambda value: {name: jnp.full(sizes, value) for name in shardings}, out_shardings=shardings)


def call_by_hand(verb: str, folder: Path, arrays: dict[str, jax.Array]) -> Callable[[], Any]:
    from safetensors.numpy import load_file, save_file

    path, shardings = folder / "model.safetensors", {name: array.sharding for name, array in arrays.items()}
    if verb == "save":
        return lambda: save_file({name: np.asarray(array) for name, array in arrays.items()}, path)
    return lambda: jax.block_until_ready(jax.device_put(load_file(path), shardings))


def call_axonym(verb: str, folder: Path, arrays: dict[str, jax.Array]) -> Callable[[], Any]:
    named = {name: nym.NamedArray(array, tuple(MAPPING)) for name, array in arrays.items()}
    if verb == "save":
        return lambda: nym.state_dict.save_safetensors(named, folder)
    like = jax.eval_shape(lambda: named)
    return lambda: jax.block_until_ready(nym.state_dict.load_safetensors(like, folder))


if __name__ == "__main__":
    main(*sys.argv[1:])

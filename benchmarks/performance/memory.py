"""What making a sharded model costs in memory: how far the peak of a fresh process grows, on eight virtual devices.

python -m benchmarks.performance.memory CONTENDER MEGABYTES
"""

import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym

from .contenders import haliax
from .measure import Effort, Row, row


DEVICES = 8
LEAVES = 12
ROWS = 1024
MAPPING = {"embed": "data", "mlp": "model"}
MODEL, SMALL_MODEL = 378, 4  # megabytes


def rows(effort: Effort) -> Iterator[Row]:
    """Measures what a process grows by, with what it compiles; the arrays are as large as a small model's."""
    megabytes = SMALL_MODEL if effort.smoke else MODEL
    for eagerly, bar, times in ((False, 1.02, 9), (True, None, 3)):
        ways = {"JAX": "jax", "Axonym": "axonym"}
        if haliax is not None:
            ways["Haliax"] = "haliax"
        taken: dict[str, list[float]] = {who: [] for who in ways}
        order, shuffle = list(ways), random.Random(0).shuffle
        for _ in range(1 if effort.smoke else times):
            shuffle(order)
            for who in order:
                taken[who].append(_growth(f"{ways[who]}-eager" if eagerly else ways[who], megabytes))
        how = "made eagerly, then sharded" if eagerly else "made sharded"
        against = "a list of arrays and one `jax.device_put`" if eagerly else "`jax.jit` with `out_shardings`"
        yield row(f"peak memory of a model of {megabytes} MB {how}", "MB", against, bar, taken)


def _growth(contender: str, megabytes: int) -> float:
    command = [sys.executable, "-m", "benchmarks.performance.memory", contender, str(megabytes)]
    return float(subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout)


def _sizes(megabytes: int) -> tuple[int, int]:
    columns = megabytes * 2**20 // (4 * LEAVES * ROWS)
    return ROWS, max(2, columns // 2 * 2)


def by_hand(key: jax.Array, sizes: tuple[int, int]) -> list[jax.Array]:
    return [jax.random.uniform(one, sizes) for one in jax.random.split(key, LEAVES)]


def named(key: jax.Array, sizes: tuple[int, int]) -> list[nym.NamedArray]:
    axes = nym.make_axes(embed=sizes[0], mlp=sizes[1])
    return [nym.random.uniform(one, axes) for one in jax.random.split(key, LEAVES)]


def of_haliax(key: jax.Array, sizes: tuple[int, int]) -> list[Any]:
    axes = tuple(map(haliax.Axis, MAPPING, sizes))
    return [haliax.random.uniform(one, axes) for one in jax.random.split(key, LEAVES)]


def _maker(contender: str, sizes: tuple[int, int], mesh: jax.sharding.Mesh) -> Callable[[jax.Array], Any]:
    shardings = [NamedSharding(mesh, P(*MAPPING.values()))] * LEAVES
    ways: dict[str, Callable[[jax.Array], Any]] = {
        "jax": jax.jit(lambda key: by_hand(key, sizes), out_shardings=shardings),
        "jax-eager": lambda key: jax.device_put(by_hand(key, sizes), shardings),
        "axonym": nym.named_jit(lambda key: named(key, sizes), out_axis_resources=MAPPING),
        "axonym-eager": lambda key: nym.shard(named(key, sizes), MAPPING),
    }
    if haliax is not None:
        ways["haliax"] = haliax.named_jit(lambda key: of_haliax(key, sizes), out_axis_resources=MAPPING)
        ways["haliax-eager"] = lambda key: haliax.shard(of_haliax(key, sizes), MAPPING)
    return ways[contender]


def main(contender: str, megabytes: str) -> None:
    """Prints by how many megabytes the peak of this process grows while it makes the model."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        key = jax.random.key(0)
        jax.block_until_ready(jnp.ones(8) + 1)  # what JAX itself needs is there
        make = _maker(contender, _sizes(int(megabytes)), mesh)
        before = measure_peak()
        leaves = jax.block_until_ready(jax.tree.leaves(make(key)))
        after = measure_peak()
    assert all(len(leaf.sharding.device_set) == DEVICES for leaf in leaves)
    print((after - before) / 2**20)


def measure_peak() -> int:
    """Returns the most memory that the process has held so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main(*sys.argv[1:])

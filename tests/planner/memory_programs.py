"""Programs for eight TPUs that fit into their memory by less than 5 %, or do not fit by less than 5 %.

`AXONYM_LIBTPU=FOLDER python -m tests.planner.memory_programs --record` compiles each of them whole, without
`compile_for`, and writes to `recorded/described/limits.json.gz` whether libtpu says that it fits, and the memory that
it dumps.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from .described_programs import MESH, RECORDED, TOPOLOGY, loss, run_apart, step, write_recorded


def roll(x: jax.Array) -> jax.Array:
    return jnp.roll(x, 1, axis=1)


def gather(weight: jax.Array, x: jax.Array) -> jax.Array:
    return x @ weight


def keep_all(weights: Any, x: jax.Array) -> Any:
    return jax.grad(loss)(weights, x, jax.checkpoint_policies.everything_saveable)


def decay(x: jax.Array) -> jax.Array:
    return x * 0.5


# For each function the numbers of rows with which it fits, and with which it does not.
ROWS = {
    "step": (2640, 2700),
    "keep all": (680, 700),
    "roll": (3900, 4080),
    "gather": (14000, 14400),
    "donated": (31800, 32600),
    "copied": (15800, 16300),
}


def make_program(name: str, rows: int, mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns a jitted function and the shapes of its arguments, sharded over a mesh."""

    def shape(sizes: tuple[int, ...], *spec: Any, dtype: Any = jnp.bfloat16) -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    layers = shape((8, 1024, 4096), None, "data", "model"), shape((8, 4096, 1024), None, "model", "data")
    moments = tuple(jax.ShapeDtypeStruct(one.shape, jnp.float32, sharding=one.sharding) for one in layers)
    tokens = shape((2 * rows, 256, 1024), "data")
    table = shape((8 * rows, 2**17), "data", "model", dtype=jnp.float32)
    return {
        "step": (jax.jit(step, donate_argnums=(0, 1)), (layers, moments, tokens)),
        "keep all": (jax.jit(keep_all), (layers, tokens)),
        "roll": (jax.jit(roll), (shape((8 * rows, 2**17), "data", dtype=jnp.float32),)),
        "gather": (jax.jit(gather), (shape((8 * rows, 2**16), ("data", "model")), shape((256, 8 * rows), "data"))),
        "donated": (jax.jit(decay, donate_argnums=0), (table,)),
        "copied": (jax.jit(decay), (table,)),
    }[name]


def compile_whole(folder: Path) -> dict[str, list[bool]]:
    """Returns for each program whether libtpu compiles it, in this process; the environment is as libtpu needs it."""
    from jax.experimental import mesh_utils, topologies

    described = topologies.get_topology_desc(TOPOLOGY, "tpu").devices
    devices = mesh_utils.create_device_mesh(tuple(MESH.values()), described, allow_split_physical_axes=True)
    mesh = jax.sharding.Mesh(devices, tuple(MESH))
    return {name: [_is_compiled(name, one, mesh, folder / f"{name} {one}") for one in ROWS[name]] for name in ROWS}


def _is_compiled(name: str, rows: int, mesh: Any, folder: Path) -> bool:
    fn, args = make_program(name, rows, mesh)
    options: Any = {"xla_dump_to": str(folder), "xla_dump_hlo_pass_re": "NONE_AT_ALL"}
    try:
        fn.lower(*args).compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        assert "RESOURCE_EXHAUSTED" in str(error)
        return False
    return True


def record() -> None:
    with tempfile.TemporaryDirectory() as name:
        verdicts = run_apart("tests.planner.memory_programs", name)
        found = {}
        for program, fits in verdicts.items():
            for rows, one in zip(ROWS[program], fits, strict=True):
                path = next((Path(name) / f"{program} {rows}").glob("*after_optimizations-buffer-assignment.txt"))
                lines = [line for line in path.read_text().splitlines() if line.startswith("allocation ")]
                found[f"{program} {rows}"] = {"fits": one, "allocations": "\n".join(lines) + "\n"}
    write_recorded(RECORDED / "limits.json.gz", found)


if __name__ == "__main__":
    if "--record" in sys.argv:
        record()
    else:
        print(json.dumps(compile_whole(Path(sys.argv[1]))))

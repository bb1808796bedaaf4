"""Small programs for eight TPUs that are not there, and what JAX itself says of them when it compiles them whole.

`AXONYM_LIBTPU=FOLDER python -m tests.planner.described_programs --record` writes the files in `recorded/described/`:
what libtpu dumps of the memory of each program, the figures of `memory_analysis()` next to it, whether programs fit
that are around the memory of a TPU, and the devices of some machines.
"""

import gzip
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec


_MODULE = "tests.planner.described_programs"
RECORDED = Path(__file__).parent / "recorded" / "described"
TOPOLOGY, MESH = "v5e:2x4", {"data": 2, "model": 4}
MACHINES = {
    "v5e:4x4": {},
    "v5p:2x2x4": {},
    "tpu7x:2x2x1": {},
    "v4:2x2x2": {"chip_config_name": "megacore"},
    "2 slices of v6e:2x4": {"num_slices": 2},
    "v5e:1x1": {"chips_per_host_bounds": [1, 1, 1]},
    "2 slices of v6e:1x1": {"num_slices": 2, "chips_per_host_bounds": [1, 1, 1]},
}
FIGURES = ("argument", "output", "alias", "host_argument", "host_output", "host_temp")


def loss(weights: Any, x: Any, policy: Any = None) -> jax.Array:
    def layer(x: Any, weight: Any) -> tuple[Any, None]:
        x = checkpoint_name(x, "stream")
        return x + jax.nn.silu(x @ weight[0]) @ weight[1], None

    x, _ = jax.lax.scan(jax.checkpoint(layer, policy=policy), x, weights)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def step(weights: Any, moments: Any, x: Any) -> Any:
    gradients = jax.grad(loss)(weights, x)
    moments = jax.tree.map(lambda m, g: m * 0.9 + g.astype(jnp.float32), moments, gradients)
    return jax.tree.map(lambda w, m: (w - 1e-3 * m).astype(w.dtype), weights, moments), moments


def offload(weights: Any, x: Any) -> Any:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["stream"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    return jax.grad(loss)(weights, x, policy)


def fetch(kept: Any, x: Any) -> Any:
    return jax.device_put(jax.device_put(kept, jax.memory.Space.Device) * 2 + x, jax.memory.Space.Host)


def roll(x: jax.Array) -> jax.Array:
    return jnp.roll(x, 1, axis=1)


def decay(x: jax.Array) -> jax.Array:
    return x * 0.5


def keep_all(weights: Any, x: jax.Array) -> Any:
    return jax.grad(loss)(weights, x, jax.checkpoint_policies.everything_saveable)


# For each function the numbers of rows with which it fits by less than 5 %, and with which it does not.
LIMITS = {
    "limit of step": (2640, 2700),
    "limit of keep all": (680, 700),
    "limit of roll": (3900, 4080),
    "limit of gather": (14000, 14400),
    "limit of donated": (31800, 32600),
    "limit of copied": (15800, 16300),
}


def make_program(name: str, mesh: Any, rows: int = 0) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns a jitted function, and shapes of its arguments that are sharded over a mesh."""

    def shape(sizes: tuple[int, ...], *spec: Any, dtype: Any = jnp.bfloat16, kind: str = "device") -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec), memory_kind=kind))

    def layers(count: int, embed: int, mlp: int) -> tuple[Any, Any]:
        return shape((count, embed, mlp), None, "data", "model"), shape((count, mlp, embed), None, "model", "data")

    def moments(weights: Any) -> Any:
        return tuple(jax.ShapeDtypeStruct(weight.shape, jnp.float32, sharding=weight.sharding) for weight in weights)

    weights, x = layers(3, 256, 512), shape((16, 64, 256), "data")
    large, tokens = layers(8, 1024, 4096), shape((2 * rows, 256, 1024), "data")
    table = shape((8 * rows, 2**17), "data", "model", dtype=jnp.float32)
    products = shape((8 * rows, 2**16), ("data", "model")), shape((256, 8 * rows), "data")
    programs: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "step": (jax.jit(step, donate_argnums=(0, 1)), (weights, moments(weights), x)),
        "offload": (jax.jit(offload), (weights, x)),
        "fetch": (jax.jit(fetch), (shape((256, 256), "data", kind="pinned_host"), shape((256, 256), "data"))),
        "too large": (jax.jit(roll), (shape((2**24, 2**10), "data"),)),
        "limit of step": (jax.jit(step, donate_argnums=(0, 1)), (large, moments(large), tokens)),
        "limit of keep all": (jax.jit(keep_all), (large, tokens)),
        "limit of roll": (jax.jit(roll), (shape((8 * rows, 2**17), "data", dtype=jnp.float32),)),
        "limit of gather": (jax.jit(lambda weight, x: x @ weight), products),
        "limit of donated": (jax.jit(decay, donate_argnums=0), (table,)),
        "limit of copied": (jax.jit(decay), (table,)),
    }
    return programs[name]


def compile_whole(names: list[str], dumps: Path | None = None) -> dict[str, Any]:
    """Returns what JAX says of programs, compiled in this process; the environment is as libtpu needs it.

    Of the limits, whose names end in a number of rows, it returns whether they fit.
    """
    from jax.experimental import mesh_utils, topologies

    found: dict[str, Any] = {}
    described = topologies.get_topology_desc(TOPOLOGY, "tpu").devices
    devices = mesh_utils.create_device_mesh(tuple(MESH.values()), described, allow_split_physical_axes=True)
    for name in names:
        program, _, rows = name.partition(":")
        fn, args = make_program(program, jax.sharding.Mesh(devices, tuple(MESH)), int(rows or 0))
        options = {} if dumps is None else {"xla_dump_to": str(dumps / name), "xla_dump_hlo_pass_re": "NONE_AT_ALL"}
        try:
            compiled = fn.lower(*args).compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            assert rows and "RESOURCE_EXHAUSTED" in str(error)
            found[name] = {"fits": False}
            continue
        if rows:
            found[name] = {"fits": True}
            continue
        stats = compiled.memory_analysis()
        found[name] = {figure: getattr(stats, f"{figure}_size_in_bytes") for figure in FIGURES}
        found[name]["peak"] = getattr(stats, "total_allocation_bytes", None)  # since JAX 0.12
    return found


def list_machines() -> dict[str, list[Any]]:
    """Returns the devices of some machines as libtpu describes them."""
    from jax.experimental import topologies

    found = {}
    for name, options in MACHINES.items():
        devices = topologies.get_topology_desc(name.split()[-1], "tpu", **options).devices
        found[name] = [
            [one.id, one.process_index, one.device_kind, one.coords, one.core_on_chip, getattr(one, "slice_index", 0)]
            for one in devices
        ]
        found[name].append(devices[0].num_cores)
    return found


def run_apart(module: str, *arguments: str) -> Any:
    """Returns what a module prints in a process with the environment that libtpu needs."""
    make_environment = importlib.import_module("axonym.planner._compiler._compiler_process").make_environment
    with tempfile.TemporaryDirectory() as logs:
        environment = make_environment("tpu", logs)
        environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(Path(__file__).parents[2])])
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def write_recorded(name: str, content: Any) -> None:
    (RECORDED / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def read_recorded(name: str) -> Any:
    return json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))


def record() -> None:
    memory, text = "after_optimizations-buffer-assignment", "after_optimizations_after_buffer_assignment"
    limits = [f"{name}:{count}" for name, rows in LIMITS.items() for count in rows]

    def read_dump(program: str, kind: str) -> str:
        return next((Path(folder) / program).glob(f"*.{kind}.txt")).read_text()

    with tempfile.TemporaryDirectory() as folder:
        figures = run_apart(_MODULE, "--compile", json.dumps(["step", "offload", "fetch", *limits]), folder)
        for limit in limits:
            lines = read_dump(limit, memory).splitlines(keepends=True)
            figures[limit]["allocations"] = "".join(line for line in lines if line.startswith("allocation "))
        for program in figures.keys() - limits:
            dumps = {kind: read_dump(program, kind) for kind in (memory, text)}
            dumps = {kind: re.sub(r'"/[^"]*/([^"/]+)"', r'"\1"', dump) for kind, dump in dumps.items()}  # no folders
            write_recorded(program, {"memory": figures[program], "dumps": dumps})
    write_recorded("limits", {limit: figures[limit] for limit in limits})
    write_recorded("machines", run_apart(_MODULE, "--machines"))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--record"]:
            record()
        case ["--machines"]:
            print(json.dumps(list_machines()))
        case ["--compile", names, *folders]:
            print(json.dumps(compile_whole(json.loads(names), *map(Path, folders))))

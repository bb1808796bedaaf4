"""Small programs for eight TPUs that are not there, and what JAX itself says of them when it compiles them whole.

`AXONYM_LIBTPU=FOLDER python -m tests.planner.described_programs --record` writes the files in `recorded/described/`:
what libtpu dumps of the memory of each program, the figures of `memory_analysis()` next to it, and the devices of some
machines.
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


def make_programs(mesh: Any) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Returns jitted functions, and shapes of their arguments that are sharded over a mesh."""

    def shape(sizes: tuple[int, ...], *spec: Any, dtype: Any = jnp.bfloat16, kind: str = "device") -> Any:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec), memory_kind=kind))

    weights = shape((3, 256, 512), None, "data", "model"), shape((3, 512, 256), None, "model", "data")
    moments = tuple(jax.ShapeDtypeStruct(one.shape, jnp.float32, sharding=one.sharding) for one in weights)
    x = shape((16, 64, 256), "data")
    square = shape((256, 256), "data")
    return {
        "step": (jax.jit(step, donate_argnums=(0, 1)), (weights, moments, x)),
        "offload": (jax.jit(offload), (weights, x)),
        "fetch": (jax.jit(fetch), (shape((256, 256), "data", kind="pinned_host"), square)),
        "too large": (jax.jit(lambda x: jnp.roll(x, 1, axis=1)), (shape((2**24, 2**10), "data"),)),
    }


def compile_whole(names: list[str], dumps: Path | None = None) -> dict[str, Any]:
    """Returns what JAX says of the programs, compiled in this process; the environment is as libtpu needs it."""
    from jax.experimental import mesh_utils, topologies

    found: dict[str, Any] = {}
    described = topologies.get_topology_desc(TOPOLOGY, "tpu").devices
    devices = mesh_utils.create_device_mesh(tuple(MESH.values()), described, allow_split_physical_axes=True)
    for name in names:
        fn, args = make_programs(jax.sharding.Mesh(devices, tuple(MESH)))[name]
        options = {} if dumps is None else {"xla_dump_to": str(dumps / name), "xla_dump_hlo_pass_re": "NONE_AT_ALL"}
        compiled = fn.lower(*args).compile(compiler_options=options)
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


def write_recorded(path: Path, content: Any) -> None:
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def read_recorded(name: str) -> Any:
    return json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))


def record() -> None:
    with tempfile.TemporaryDirectory() as name:
        names = ["step", "offload", "fetch"]
        figures = run_apart(_MODULE, *names, "--dumps", name)
        for one in names:
            files = {path.name.split(".")[-2]: path.read_text() for path in (Path(name) / one).glob("*.txt")}
            files = {kind: re.sub(r'"/[^"]*/([^"/]+)"', r'"\1"', text) for kind, text in files.items()}  # no folders
            kept = ("after_optimizations-buffer-assignment", "after_optimizations_after_buffer_assignment")
            write_recorded(
                RECORDED / f"{one}.json.gz", {"memory": figures[one], "dumps": {kind: files[kind] for kind in kept}}
            )
    write_recorded(RECORDED / "machines.json.gz", run_apart(_MODULE, "--machines"))


if __name__ == "__main__":
    if "--record" in sys.argv:
        record()
    elif "--machines" in sys.argv:
        print(json.dumps(list_machines()))
    else:
        names, _, folder = " ".join(sys.argv[1:]).partition(" --dumps ")
        print(json.dumps(compile_whole(names.split(), Path(folder) if folder else None)))

"""The process that compiles a lowered program for described devices: `python _compiler_child.py FOLDER`.

It reads `job.json` and the program from the folder and writes `result.json` and the optimized program there. It imports
JAX alone, so that it starts fast, and ends when its standard input does: with the process that started it, whose folder
it then removes. Relies on what JAX does not promise: that the client of described devices has `compile(module,
executable_devices, compile_options)`, and `xla_client.DeviceList`. Seen in jax 0.12.0.1. Should these
change, nothing compiles for described devices, and the error of the child is shown.
"""

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.extend.backend import get_compile_options
from jaxlib import xla_client


FOLDER_PREFIX = "axonym-compile-"  # as in `run_compiler`
_MOST_REMOVALS = 10  # of a folder into which the compiler may be writing
_MEMORY = ("argument", "output", "alias", "temp", "host_argument", "host_output", "host_temp")  # as in `ProgramMemory`


def find_devices(job: dict[str, Any]) -> list[Any]:
    """Returns the compiler's devices in the order of the mesh."""
    if job["platform"] == "cpu":
        devices = jax.devices("cpu")
    else:
        devices = topologies.get_topology_desc(job["topology"], job["platform"], **job["topology_options"]).devices
    by_id = {device.id: device for device in devices}
    return [by_id[number] for number in job["order"]]


def read_module(path: Path) -> Any:
    """Returns the lowered program; its context is that of another one, which knows the dialects that JAX uses."""
    trivial: Any = jax.jit(lambda x: x).lower(0.0).compiler_ir()
    return type(trivial).parse(path.read_bytes(), trivial.context)


def make_options(job: dict[str, Any], devices: list[Any]) -> Any:
    """Returns the options that `jax.jit` compiles with."""
    order = np.array([[device.id for device in devices]])
    options = get_compile_options(1, len(devices), order, env_options_overrides=job["compiler_options"])
    build = options.executable_build_options
    build.allow_spmd_sharding_propagation_to_parameters = job["free_arguments"]
    build.allow_spmd_sharding_propagation_to_output = job["free_results"]
    return options


def compile_job(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Compiles the program of a job, and returns the figures that XLA has of it."""
    devices = find_devices(job)
    module, options = read_module(folder / "program.mlirbc"), make_options(job, devices)
    client, listed = devices[0].client, xla_client.DeviceList(tuple(devices))
    compile_module = client.compile_and_load if job["platform"] == "cpu" else client.compile
    executable = compile_module(module, executable_devices=listed, compile_options=options)
    (folder / "optimized.txt").write_text(executable.hlo_modules()[0].to_string())
    stats = executable.get_compiled_memory_stats()
    memory = {f"{name}_bytes": getattr(stats, f"{name}_size_in_bytes") for name in _MEMORY}
    return {"memory": {**memory, "peak_bytes": stats.peak_memory_in_bytes}}


def wait_for_end(folder: Path) -> None:
    """Ends this process when its standard input does; a search that is killed would leave it for minutes.

    Nobody else removes the folder then, if it is a temporary one.
    """
    os.read(0, 1)
    for _ in range(_MOST_REMOVALS):
        if folder.name.startswith(FOLDER_PREFIX) and folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def compile_request() -> None:
    folder = Path(sys.argv[1])
    threading.Thread(target=wait_for_end, args=(folder,), daemon=True).start()
    job = json.loads((folder / "job.json").read_text())
    if job["platform"] == "cpu":
        jax.config.update("jax_num_cpu_devices", len(job["order"]))
    try:
        result = compile_job(folder, job)
    except jax.errors.JaxRuntimeError as error:
        result = {"error": str(error)}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    compile_request()

"""What XLA makes of a train step of Llama with names and of the same step by hand, for devices that are not there.

`python -m benchmarks.compiled_steps [--only NAME ...] [--page FILE]` compiles the step of `examples/models/llama.py`
and that of `by_hand/llama.py` from the description of devices alone, each in a process of its own, and compares what
they send between devices, the memory of a device, and XLA's own estimate of cycles on TPUs. The CPU time of tracing and
lowering is measured in turns in one process. `make tpu` and `make gpu-plugins` install the compilers, into the folders
that AXONYM_LIBTPU and AXONYM_GPU_PLUGINS name. A compilation takes up to three minutes of CPU time; nothing is run.
With `--page`, the table replaces the one in a page of the documentation.
"""

import argparse
import collections
import contextlib
import dataclasses
import datetime
import functools
import gc
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from axonym.planner._compiler._compiler_process import PLUGINS, find_plugin_folder, make_environment
from tests.hlo import KINDS, Program


ROOT = Path(__file__).parents[1]
H100 = Path(__file__).with_name("h100.txtpb")  # what XLA knows of this GPU
CONTENDERS = ("by hand", "Axonym")
TIMED = 15  # how often each step is traced and lowered
SMALL = {"vocab": 128256, "layers": 32, "embed": 4096, "heads": 8, "group": 4, "head_dim": 128, "mlp": 14336}
LARGE = {"vocab": 128256, "layers": 80, "embed": 8192, "heads": 8, "group": 8, "head_dim": 128, "mlp": 28672}
FSDP = {"batch": "data"}
TENSOR = {**FSDP, "heads": "model", "mlp": "model", "vocab": "model"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A step to compile.

    Attributes:
        title: What it is, as in the table.
        topology: The pod, as libtpu names it, or "h100" and the numbers of hosts and of GPUs in each.
        sizes: The size of each axis of the model.
        mesh: The sizes of the mesh axes `data` and `model`.
        compute: From axes to mesh axes, for computing; between steps, `embed` is sharded over `data` as well.
        pos: The length of a sequence, of which each part of the mesh along `data` has one.
        wrap: Along which axes of the pod its ends are connected, for the pods that are not so by themselves.
    """

    title: str
    topology: str
    sizes: Mapping[str, int]
    mesh: tuple[int, int]
    compute: Mapping[str, str]
    pos: int
    wrap: tuple[int, ...] | None = None

    @property
    def is_gpu(self) -> bool:
        return self.topology.startswith("h100")


CASES = {
    "8b-fsdp": Case("8B, FSDP 256", "v5e:16x16", SMALL, (256, 1), FSDP, 2048),
    "8b-tensor": Case("8B, FSDP 64 x TP 4", "v5e:16x16", SMALL, (64, 4), TENSOR, 2048),
    "70b-fsdp": Case("70B, FSDP 256", "v5p:4x8x8", LARGE, (256, 1), FSDP, 4096, (1, 1, 1)),
    "70b-tensor": Case("70B, FSDP 64 x TP 4", "v5p:4x8x8", LARGE, (64, 4), TENSOR, 4096, (1, 1, 1)),
    "8b-h100-fsdp": Case("8B, FSDP 64", "h100:8x8", SMALL, (64, 1), FSDP, 4096),
    "8b-h100-tensor": Case("8B, FSDP 8 x TP 8", "h100:8x8", SMALL, (8, 8), TENSOR, 4096),
    "70b-h100-fsdp": Case("70B, FSDP 64", "h100:8x8", LARGE, (64, 1), FSDP, 4096),
    "70b-h100-tensor": Case("70B, FSDP 8 x TP 8", "h100:8x8", LARGE, (8, 8), TENSOR, 4096),
}
FIGURES = ("collective bytes", "argument bytes", "temporary bytes", "device bytes", "cycles", "trace and lower")


def make_mesh(case: Case) -> Any:
    from jax.experimental import mesh_utils, topologies
    from jax.sharding import Mesh

    options: dict[str, Any]
    if case.is_gpu:
        name, platform, count = "h100", "cuda", case.topology.partition(":")[2]
        options = {"target_config": H100.read_text(), "topology": f"1x{count}"}
    else:
        name, platform = case.topology, "tpu"
        options = {} if case.wrap is None else {"wrap": list(case.wrap)}
    devices = topologies.get_topology_desc(name, platform, **options).devices
    return Mesh(mesh_utils.create_device_mesh(case.mesh, devices, allow_split_physical_axes=True), ("data", "model"))


def make_step(who: str, case: Case, mesh: Any, optimizer: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step of a contender and the shapes of its arguments; the mesh must be set for that of the example."""
    import jax.numpy as jnp

    from .performance.models import MODELS, make_named_step

    model, sizes = MODELS["Llama"], {**case.sizes, "batch": case.mesh[0], "pos": case.pos}
    stored = {**case.compute, "embed": "data"}
    if who == "Axonym":
        llama: Any = importlib.import_module("examples.models.llama")
        llama.attend = functools.partial(llama.attend, implementation="plain")  # XLA has no estimate of kernels
        return make_named_step(model, sizes, stored, case.compute, optimizer)
    by_hand = model.by_hand(sizes, stored, case.compute, jnp.bfloat16, mesh)
    return by_hand.make_train_step(optimizer), by_hand.make_shapes(optimizer)


def make_lowering(who: str, case: Case) -> Callable[[], Any]:
    """Returns a function that traces and lowers the step of a contender."""
    import jax
    import optax

    mesh, optimizer = make_mesh(case), optax.adamw(3e-4, b2=0.95, weight_decay=0.1)
    # The step by hand has shardings of its own.
    activate = functools.partial(jax.set_mesh, mesh) if who == "Axonym" else contextlib.nullcontext
    with activate():
        step, shapes = make_step(who, case, mesh, optimizer)

    def lower() -> Any:
        with activate():
            return step.lower(*shapes)

    return lower


def compile_step(who: str, case: Case) -> dict[str, float]:
    """Returns the figures of a compiled step."""
    compiled = make_lowering(who, case)().compile()
    memory: Any = compiled.memory_analysis()
    return {
        **read_program(compiled.as_text() or ""),
        "argument bytes": memory.argument_size_in_bytes,
        "temporary bytes": memory.temp_size_in_bytes,
        "device bytes": memory.argument_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes,
    }


def time_lowering(case: Case) -> dict[str, float]:
    """Returns the CPU time in which each contender traces and lowers, in the turn whose ratio is the median.

    Other work on the machine slows down both contenders of a turn, and so changes their ratio less than either time.
    """
    lowering = [make_lowering(who, case) for who in CONTENDERS]
    turns = [tuple(map(time_call, lowering)) for _ in range(TIMED + 1)]
    by_ratio = sorted(turns[1:], key=lambda turn: turn[1] / turn[0])  # the first time, modules are imported
    return dict(zip(CONTENDERS, by_ratio[TIMED // 2], strict=True))


def time_call(lower: Callable[[], Any]) -> float:
    """Returns the CPU time of a call with empty caches."""
    import jax

    jax.clear_caches()
    gc.collect()
    gc.disable()
    started = time.process_time()
    lower()
    taken = time.process_time() - started
    gc.enable()
    return taken


def read_program(text: str) -> dict[str, float]:
    """Returns the bytes that each kind of collective gives to a device, and the cycles that XLA estimates for TPUs."""
    program = Program(text)
    found = {kind: size for kind, (_, size) in count_collectives(program).items()}
    cycles = 0
    for one in program.instructions:
        if estimated := re.search(r'"estimated_cycles":"(\d+)"', one.attributes):
            cycles += int(estimated[1]) * program.count_runs(one.computation)
    return {**found, "collective bytes": sum(found.values()), **({"cycles": cycles} if cycles else {})}


def count_collectives(program: Program) -> dict[str, tuple[int, int]]:
    """Returns how often each kind of collective runs, and the bytes that a device gets from it."""
    counts: collections.Counter[str] = collections.Counter()
    sizes: collections.Counter[str] = collections.Counter()
    for one in program.collectives():
        counts[one.kind] += one.times
        sizes[one.kind] += one.times * sum(array.bytes for array in one.results)
    return {kind: (counts[kind], sizes[kind]) for kind in KINDS if counts[kind]}


def compile_apart(module: str, *what: str, is_gpu: bool = False) -> Any:
    """Returns what a module writes when it is told to compile this, in a process of its own, which libtpu needs."""
    platform = "gpu" if is_gpu else "tpu"
    plugin = PLUGINS[platform]
    if not find_plugin_folder(plugin):
        raise SystemExit(f"{plugin.variable} is the folder of a compiler, which `make {plugin.make_target}` fills")
    environment = make_environment(platform)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment["PYTHONPATH"]])
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "figures.json"
        arguments = [sys.executable, "-m", module, "--compile", *what, str(into)]
        subprocess.run(arguments, env=environment, check=True)
        return json.loads(into.read_text())


def format_rows(title: str, by_hand: Mapping[str, float], axonym: Mapping[str, float]) -> list[str]:
    """Returns the rows of the table for one step; kinds of collectives that neither has are left out."""
    rows = []
    for unit in (*KINDS, *FIGURES):
        if unit in by_hand or unit in axonym:
            reference, own = by_hand.get(unit, 0), axonym.get(unit, 0)
            ratio = f"{own / reference:.3f}" if reference else "-"
            rows.append(
                f"| {title} | {unit} | {format_figure(unit, reference)} | {format_figure(unit, own)} | {ratio} |"
            )
            title = ""
    return rows


def format_figure(unit: str, value: float) -> str:
    if unit == "trace and lower":
        return f"{value:.3f} s"
    return f"{value / 1e6:.1f} M" if unit == "cycles" else f"{value / 2**30:.3f} GiB"


def format_table(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Returns the table in Markdown: for each step, the figures of both contenders."""
    lines = ["| step | | by hand | Axonym | ratio |", "|---|---|---:|---:|---:|"]
    for name, found in results.items():
        case = CASES[name]
        lines += format_rows(f"{case.title}, {case.topology}", *(found[who] for who in CONTENDERS))
    return "\n".join([f"Measured {format_versions()}.", "", *lines])


def format_versions() -> str:
    """Returns today's date and with what is compiled."""
    versions = [f"{package} {version(package)}" for package in ("jax", "jaxlib", "optax")]
    versions += filter(None, map(find_compiler, ("libtpu", "jax_cuda12_pjrt")))
    return f"{datetime.date.today()} with {', '.join(versions)}"


def find_compiler(package: str) -> str:
    """Returns the name and version of a compiler in its folder; empty if it is not there."""
    folders = filter(None, map(find_plugin_folder, PLUGINS.values()))
    found = [path.name for folder in folders for path in Path(folder).glob(f"{package}-*.dist-info")]
    return found[0].removesuffix(".dist-info").replace("-", " ").replace("_", "-") if found else ""


def replace_table(page: str, table: str, name: str = "table") -> str:
    """Returns a page with another table between the two comments with its name."""
    start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    return page[: page.index(start) + len(start)] + f"\n{table}\n" + page[page.index(end) :]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="which steps; default: all")
    parser.add_argument("--page", type=Path, help="a page whose table is replaced")
    parser.add_argument("--compile", nargs=3, metavar=("WHO", "NAME", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.compile:
        who, name, into = given.compile
        case = CASES[name]
        Path(into).write_text(json.dumps(compile_step(who, case) if who in CONTENDERS else time_lowering(case)))
        return
    found: dict[str, dict[str, Any]] = {}
    for name in given.only:
        run = functools.partial(compile_apart, "benchmarks.compiled_steps", is_gpu=CASES[name].is_gpu)
        times = run("both", name)
        found[name] = {who: {**run(who, name), "trace and lower": times[who]} for who in CONTENDERS}
    table = format_table(found)
    print(table)
    if given.page:
        given.page.write_text(replace_table(given.page.read_text(), table))


if __name__ == "__main__":
    main()

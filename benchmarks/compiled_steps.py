"""What XLA makes of a train step of Llama with names and of the same step by hand, for devices that are not there.

`python -m benchmarks.compiled_steps [--only NAME ...] [--page FILE]` compiles the step of `examples/models/llama.py`
on Auto and on Explicit meshes, and that of `by_hand/llama.py`, from the description of devices alone, each in a process
of its own. It compares what they send between devices, the memory of a device, and XLA's own estimate of cycles on
TPUs. The CPU time of tracing and lowering is measured in turns in one process. `make tpu` and `make gpu-plugins`
install the compilers, into the folders that AXONYM_LIBTPU and AXONYM_GPU_PLUGINS name. A compilation takes up to three
minutes of CPU time; nothing is run. With `--page`, the table replaces the one in a page of the documentation.
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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from axonym.planner._compiler._compiler_process import PLUGINS, find_plugin_folder, make_environment
from axonym.planner._program._collectives import COLLECTIVE_KINDS, ArgumentAxes, SliceGroups, list_collectives
from axonym.planner._program._hlo_program import HloProgram
from axonym.planner._program._xla_text import ESTIMATED_CYCLES


ROOT = Path(__file__).parents[1]
H100 = Path(__file__).with_name("h100.txtpb")  # what XLA knows of this GPU
AXIS_TYPES = {"by hand": "auto", "Axonym, Auto": "auto", "Axonym, Explicit": "explicit"}  # by contender
CONTENDERS = tuple(AXIS_TYPES)
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
FIGURES = ("sent bytes", "argument bytes", "temporary bytes", "device bytes", "cycles", "trace and lower")


def make_mesh(case: Case, axis_type: str) -> Any:
    from jax.experimental import mesh_utils, topologies
    from jax.sharding import AxisType, Mesh

    options: dict[str, Any]
    if case.is_gpu:
        name, platform, count = "h100", "cuda", case.topology.partition(":")[2]
        options = {"target_config": H100.read_text(), "topology": f"1x{count}"}
    else:
        name, platform = case.topology, "tpu"
        options = {} if case.wrap is None else {"wrap": list(case.wrap)}
    devices = topologies.get_topology_desc(name, platform, **options).devices
    devices = mesh_utils.create_device_mesh(case.mesh, devices, allow_split_physical_axes=True)
    return Mesh(devices, ("data", "model"), axis_types=(AxisType[axis_type.title()],) * 2)


def make_step(who: str, case: Case, mesh: Any, optimizer: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step of a contender and the shapes of its arguments; the mesh must be set for that of the example."""
    import jax.numpy as jnp

    from .performance.models import MODELS, make_named_step

    model, sizes = MODELS["Llama"], {**case.sizes, "batch": case.mesh[0], "pos": case.pos}
    stored = {**case.compute, "embed": "data"}
    if who != "by hand":
        llama: Any = importlib.import_module("examples.models.llama")
        llama.attend = functools.partial(llama.attend, implementation="plain")  # XLA has no estimate of kernels
        return make_named_step(model, sizes, stored, case.compute, optimizer)
    by_hand = model.by_hand(sizes, stored, case.compute, jnp.bfloat16, mesh)
    return by_hand.make_train_step(optimizer), by_hand.make_shapes(optimizer)


def make_lowering(who: str, case: Case) -> Callable[[], Any]:
    """Returns a function that traces and lowers the step of a contender."""
    import jax
    import optax

    mesh, optimizer = make_mesh(case, AXIS_TYPES[who]), optax.adamw(3e-4, b2=0.95, weight_decay=0.1)
    # The step by hand has shardings of its own.
    activate = functools.partial(jax.set_mesh, mesh) if who != "by hand" else contextlib.nullcontext
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
        **read_program(compiled.as_text() or "", case.mesh[0] * case.mesh[1]),
        "argument bytes": memory.argument_size_in_bytes,
        "temporary bytes": memory.temp_size_in_bytes,
        "device bytes": memory.argument_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes,
    }


def time_lowering(case: Case) -> dict[str, float]:
    """Returns the CPU time in which each contender traces and lowers: by hand the median, of others that times a ratio.

    The ratio is the median of those in one turn: other work on the machine slows down all contenders of a turn, and so
    changes their ratios less than their times.
    """
    lowering = [make_lowering(who, case) for who in CONTENDERS]
    turns = np.array([[time_call(lower) for lower in lowering] for _ in range(TIMED + 1)])
    turns = turns[1:]  # the first time, modules are imported
    ratios = np.median(turns / turns[:, :1], axis=0)
    return dict(zip(CONTENDERS, (ratios * np.median(turns[:, 0])).tolist(), strict=True))


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


def read_program(text: str, devices: int) -> dict[str, float]:
    """Returns the bytes that a device sends in each kind of collective, and the cycles that XLA estimates for TPUs."""
    program = HloProgram(text)
    sent_bytes = {kind: size for kind, (_, size) in count_collectives(program, devices).items()}
    cycles = 0
    for instruction in program.instructions:
        if estimated := ESTIMATED_CYCLES.search(instruction.attributes):
            cycles += int(estimated[1]) * program.count_runs(instruction.computation)
    return {**sent_bytes, "sent bytes": sum(sent_bytes.values()), **({"cycles": cycles} if cycles else {})}


def count_collectives(program: HloProgram, devices: int) -> dict[str, tuple[int, int]]:
    """Returns how often each kind of collective runs, and the bytes that a device sends in it over rings of devices."""
    counts: collections.Counter[str] = collections.Counter()
    sizes: collections.Counter[str] = collections.Counter()
    for collective in list_collectives(program, {}, devices, ArgumentAxes(), SliceGroups()):
        counts[collective.kind] += collective.runs
        sizes[collective.kind] += collective.runs * collective.sent_bytes
    return {kind: (counts[kind], sizes[kind]) for kind in COLLECTIVE_KINDS if counts[kind]}


def compile_apart(module: str, *what: str, is_gpu: bool = False) -> Any:
    """Returns what a module writes when it is told to compile this, in a process of its own, which libtpu needs."""
    platform = "gpu" if is_gpu else "tpu"
    plugin = PLUGINS[platform]
    if not find_plugin_folder(plugin):
        raise SystemExit(f"{plugin.variable} is the folder of a compiler, which `make {plugin.make_target}` fills")
    with tempfile.TemporaryDirectory() as folder:
        environment = make_environment(platform, folder)
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment["PYTHONPATH"]])
        into = Path(folder) / "figures.json"
        arguments = [sys.executable, "-m", module, "--compile", *what, str(into)]
        subprocess.run(arguments, env=environment, check=True)
        return json.loads(into.read_text())


def format_rows(title: str, figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns the rows of the table for one step; kinds of collectives that no contender has are left out."""
    by_hand, *named = figures.values()
    rows = []
    for unit in (*COLLECTIVE_KINDS, *FIGURES):
        if any(unit in contender for contender in figures.values()):
            reference = by_hand.get(unit, 0)
            cells = [title, unit, format_figure(unit, reference)]
            for contender in named:
                value = contender.get(unit, 0)
                cells += [format_figure(unit, value), f"{value / reference:.3f}" if reference else "-"]
            rows.append(f"| {' | '.join(cells)} |")
            title = ""
    return rows


def format_figure(unit: str, value: float) -> str:
    if unit == "trace and lower":
        return f"{value:.3f} s"
    return f"{value / 1e6:.1f} M" if unit == "cycles" else f"{value / 2**30:.3f} GiB"


def format_table(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Returns the table in Markdown: for each step, the figures of all contenders."""
    by_hand, *named = CONTENDERS
    lines = [
        f"| step | | {by_hand} | {' | '.join(f'{who} | ratio' for who in named)} |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, figures in results.items():
        case = CASES[name]
        lines += format_rows(f"{case.title}, {case.topology}", figures)
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

"""A small training step of Llama, compiled whole for devices that are not there, for estimates of its time.

`python -m tests.planner.step_programs PLATFORM` writes it to `recorded/steps/`; `tpu` and `slices` need libtpu, `gpu`
needs XLA for GPUs.
"""

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import axonym as nym
from axonym.planner import CompiledProgram, ProgramMemory, described_devices


RECORDED = Path(__file__).parent / "recorded" / "steps"
SIZES = {"vocab": 512, "layers": 3, "embed": 256, "heads": 4, "group": 1, "head_dim": 128, "mlp": 512}
BATCH = {"batch": 8, "pos": 256}
MACHINES: dict[str, tuple[str, dict[str, int]]] = {
    "tpu": ("v5e:2x4", {"data": 4, "model": 2}),
    "gpu": ("h100:1x8", {"data": 4, "model": 2}),
    "slices": ("2 x v5e:2x2", {"replica": 2, "data": 4}),
}


def make_mesh(name: str) -> Any:
    devices, mesh = MACHINES[name]
    return nym.create_mesh(mesh, devices=described_devices(devices))


def make_program(text: str, mesh: Any, *, is_stopped: bool = False, options: Any = None) -> CompiledProgram:
    """Returns a program that consists of a text and a mesh alone."""
    empty = ProgramMemory(0, 0, 0, 0, 0)
    known: dict[str, Any] = {"is_cached": False, "versions": {}, "compiler_options": options or {}}
    return CompiledProgram(text, empty, mesh, ((), {}), False, is_stopped, 0.0, **known)


def read_recorded(name: str) -> CompiledProgram:
    content = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))
    return make_program(**content, mesh=make_mesh(name))


def record(name: str) -> None:
    from benchmarks.published_runs import ALL_OFFLOADED, TENSOR, Run
    from benchmarks.published_steps import compile_run

    machine, mesh = MACHINES[name]
    compute: dict[str, Any] = {"batch": ("replica", "data")} if name == "slices" else TENSOR
    policy = ALL_OFFLOADED if name == "tpu" else True
    run = Run(name, machine, {**SIZES, **BATCH}, mesh, 1.0, compute, policy)
    program = compile_run(run, stop_early=name == "slices")
    text = re.sub(r'"body":"[^"]*"', '"body":""', program.text)  # the machine code of kernels
    text = re.sub(r'"/[^"]*/([^"/]+)"', r'"\1"', text)  # no folders
    content = {"text": text, "is_stopped": program.is_stopped}
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


if __name__ == "__main__":
    record(sys.argv[1])

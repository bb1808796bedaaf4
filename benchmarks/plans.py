"""What `axonym.planner.plan` finds, against mappings that MaxText publishes and against all candidates there are.

`AXONYM_LIBTPU=FOLDER AXONYM_GPU_PLUGINS=FOLDER python -m benchmarks.plans published|runs|exhaustive [--only NAME ...]`
plans the steps of `examples/plan_llama.py`. `make tpu` and `make gpu-plugins` fill the folders. `published` plans large
models for pods and compares what the best candidate sends with what the published mapping sends. `runs` plans the runs
of `published_steps.py`, with their batches, policies and flags, and compares the times. `exhaustive` compiles
every candidate of small models that can be the best, and looks up the rank of the plan's first choice: those whose
computing alone, at the peak of the chip, takes a quarter longer than the whole step of the best cannot. With `--page`,
the table replaces the one in a page of the documentation; `exhaustive --out FOLDER` writes a table of all candidates
for each model, as the ones in `benchmarks/results/candidates`. Each case runs in a process of its own.
"""

import argparse
import dataclasses
import datetime
import functools
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import jax

import axonym as nym
from axonym._ground.formats import format_bytes
from axonym.planner import Evaluation, described_devices, plan
from axonym.planner._search import _best_candidates, _plan_search

from .compiled_steps import replace_table
from .published_runs import RUNS
from .published_steps import describe_step


EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))  # as when an example is run

import plan_llama  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Published:
    """A model on a machine, and a mapping that MaxText publishes for it.

    Attributes:
        model: The name in `examples/plan_llama.py`.
        devices: The machine.
        mesh: The sizes of the mesh axes.
        compute: From axes to mesh axes, for computing; between steps, `embed` is sharded over `data` as well.
        source: The file of MaxText that has it.
    """

    model: str
    devices: str
    mesh: Mapping[str, int]
    compute: Mapping[str, Any]
    source: str


LENGTH = 4096  # tokens of a sequence, of which each device has one
FSDP: Mapping[str, Any] = {"batch": "data"}
COPIES: Mapping[str, Any] = {"batch": ("replica", "data")}
TENSOR: Mapping[str, Any] = {"batch": "data", **dict.fromkeys(("heads", "mlp", "pos", "vocab"), "model")}
PUBLISHED = {
    "70b-v5p": Published("llama3-70b", "v5p:4x8x8", {"data": 256}, FSDP, "configs/v5p/llama2_70b.sh"),
    "70b-h100": Published(
        "llama3-70b", "h100:32x8", {"replica": 2, "data": 128}, COPIES, "configs/a3/llama_2_70b/bf16/128vm.sh"
    ),
    "405b-v5p": Published("llama3-405b", "v5p:16x16x16", {"data": 4096}, FSDP, "configs/a3/llama_3.1_405b/128vm.sh"),
    "405b-v5p-tensor": Published(
        "llama3-405b", "v5p:16x16x16", {"data": 512, "model": 8}, TENSOR, "configs/v5p/512b.sh"
    ),
}
SMALL = {
    "llama": {"vocab": 32000, "layers": 4, "embed": 2048, "heads": 8, "group": 2, "head_dim": 128, "mlp": 8192},
    "wide": {"vocab": 8192, "layers": 4, "embed": 4096, "heads": 16, "group": 2, "head_dim": 128, "mlp": 32768},
    "mixtral": {"vocab": 32000, "layers": 4, "embed": 1024, "heads": 8, "group": 1, "head_dim": 128}
    | {"mlp": 2048, "experts": 8},
}
POLICIES = {"layers": True}
_BOUND = 1.25  # times of computing, of the screened time of the best candidate, up to which all are compiled


def describe_example(sizes: Mapping[str, int], devices: str, length: int) -> tuple[Any, ...]:
    """Returns the shapes of the arguments of the example's step, with a sequence for each device."""
    return plan_llama.describe_arguments(dict(sizes), len(described_devices(devices)), length)


def plan_mapping(step: Any, arguments: Any, mesh: Any, compute: Mapping[str, Any], **how: Any) -> Evaluation:
    """Returns the evaluation of one mapping, with `embed` over `data` between steps."""
    leaves = jax.tree.leaves(arguments, is_leaf=nym.is_named_array)
    names = {name for leaf in leaves if nym.is_named_array(leaf) for name in leaf.names}
    mappings = {"compute": compute, "parameters": {**compute, "embed": "data"}}
    fixed = {key: {name: one.get(name) for name in names} for key, one in mappings.items()}
    return plan(step, *arguments, fixed={"mesh": mesh, **fixed}, **how).best


def count_sent(evaluation: Evaluation) -> int:
    return sum(evaluation.sent.values())


def compare_published(name: str) -> str:
    """Returns the row of a plan beside the published mapping."""
    case, before, started = PUBLISHED[name], _read_usage(), time.monotonic()
    arguments = describe_example(plan_llama.MODELS[case.model], case.devices, LENGTH)
    how = {"devices": case.devices, "policies": POLICIES}
    found = plan(plan_llama.train_step, *arguments, cache=False, **how)
    wall, cpu, memory = time.monotonic() - started, _read_usage() - before, _read_peak()
    own = plan_mapping(plan_llama.train_step, arguments, case.mesh, case.compute, **how)
    cells = [
        f"{case.model}, {case.devices}",
        str(found.best.candidate),
        f"{own.candidate}, `{case.source}`",
        f"{count_sent(found.best) / count_sent(own):.3f}",
        f"{found.best.time.total:.2f} / {own.time.total:.2f}",
        f"{format_bytes(found.best.bytes)} / {format_bytes(own.bytes)}",
        f"{cpu:.0f} ({wall:.0f})",
        f"{memory / 2**30:.1f}",
    ]
    print(found, file=sys.stderr)
    return f"| {' | '.join(cells)} |"


def compare_run(name: str) -> str:
    """Returns the row of the plan of a published run beside the run's own mapping."""
    run = RUNS[name]
    step, arguments = describe_step(run)
    how = {"devices": run.devices, "compiler_options": run.compiler_options}
    found = plan(step, *arguments, **how)
    print(found, file=sys.stderr)
    own = plan_mapping(step, arguments, run.mesh, run.compute, **how)
    cells = [
        run.label,
        f"{own.time.total:.2f}",
        format_bytes(own.bytes),
        "yes" if own.fits else "no",
        str(found.best.candidate),
        f"{found.best.time.total:.2f}",
        format_bytes(found.best.bytes),
        f"{own.time.total / found.best.time.total:.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def rank_first_choice(name: str, *, out: Path | None) -> str:
    """Returns the row of a plan beside all candidates that can be the best, each of which is compiled."""
    arguments = describe_example(SMALL[name], "v5e:4x4", 2048)
    make_plan = functools.partial(
        plan, plan_llama.train_step, *arguments, devices="v5e:4x4", policies=POLICIES, progress=True
    )
    found = make_plan()
    screen, counts = _plan_search._screen_candidates, []

    def screen_all(*args: Any) -> Any:
        prospects = screen(*args)
        counts.append(len(prospects))
        best = min(one.estimate.time.total for one in prospects if one.estimate.fits and one.is_likely_to_fit)
        return [one for one in prospects if one.estimate.time.compute <= _BOUND * best]

    with (
        mock.patch.object(_plan_search, "_screen_candidates", screen_all),
        mock.patch.object(_best_candidates, "_MOST_COMPILED", sys.maxsize),
        mock.patch.object(_best_candidates._Search, "_can_be_best", lambda *args: True),
    ):
        everything = make_plan()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.txt").write_text(f"{everything.table(limit=None)}\n")
    compiled = [one for one in everything.evaluations if one.stage != "screened" and one.fits]
    first = next(one for one in compiled if str(one.candidate) == str(found.best.candidate))
    cells = [
        name,
        f"{counts[0]:,}",
        f"{sum(one.stage != 'screened' for one in everything.evaluations):,}",
        f"{len(compiled):,}",
        str(first.candidate),
        f"{first.time.total / min(one.time.total for one in compiled):.3f}",
        str(1 + sum(one.time.total < first.time.total for one in compiled)),
    ]
    return f"| {' | '.join(cells)} |"


def _read_usage() -> float:
    """Returns the CPU seconds of this process and of its children so far."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _read_peak() -> int:
    """Returns the largest number of bytes that this process and a child of it have held."""
    return 1024 * sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


HEADS = {
    "published": ("step", "plan's first choice", "published", "sent, of published", "seconds, plan / published",
                  "bytes a device, plan / published", "CPU s (wall s)", "GiB"),
    "runs": ("run", "predicted s", "bytes a device", "fits", "plan's first choice", "predicted s", "bytes a device",
             "run / plan"),
    "exhaustive": ("model", "candidates", "compiled", "fit", "plan's first choice", "time, of the best", "rank"),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=HEADS)
    parser.add_argument("--only", nargs="+", help="which cases; default: all")
    parser.add_argument("--page", type=Path, help="a page whose table is replaced")
    parser.add_argument("--out", type=Path, help="a folder for the tables of all candidates of `exhaustive`")
    given = parser.parse_args(arguments)
    exhaustive = functools.partial(rank_first_choice, out=given.out)
    make_row, cases = {
        "published": (compare_published, PUBLISHED),
        "runs": (compare_run, RUNS),
        "exhaustive": (exhaustive, SMALL),
    }[given.what]
    rows = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as pool:  # the largest memory is that of a process
        for row in pool.map(make_row, given.only or cases):
            rows.append(row)
            print(row, flush=True)
    heads = HEADS[given.what]
    table = "\n".join(
        [f"Planned {datetime.date.today()}.", "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *rows]
    )
    if given.page:
        given.page.write_text(replace_table(given.page.read_text(), table, given.what))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()

"""What `axonym.planner.plan` finds, against mappings that MaxText publishes and against all candidates there are.

`AXONYM_LIBTPU=FOLDER AXONYM_GPU_PLUGINS=FOLDER python -m benchmarks.plans published|exhaustive [--only NAME ...]`
plans the steps of `examples/plan_llama.py`. `make tpu` and `make gpu-plugins` fill the folders. `published` plans large
models for pods and compares what the best candidate sends with what the published mapping sends. `exhaustive` compiles
every candidate of small models and looks up the rank of the plan's first choice. With `--page`, the table replaces the
one in a page of the documentation; `exhaustive --out FOLDER` keeps all evaluations.
"""

import argparse
import dataclasses
import datetime
import math
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from axonym.planner import Evaluation, Plan, _plan_search, described_devices, plan
from axonym.report._table import format_bytes

from .compiled_steps import replace_table


EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))  # as when an example is run

import plan_llama  # noqa: E402


TENSOR = {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model"}


@dataclasses.dataclass(frozen=True)
class Published:
    """A model on a machine, and the mapping that MaxText publishes for it.

    Attributes:
        model: The name in `examples/plan_llama.py`.
        devices: The machine.
        length: The tokens of a sequence, of which each device has one.
        fixed: The published mapping.
        source: The file of MaxText that has it.
    """

    model: str
    devices: str
    length: int
    fixed: Mapping[str, Any]
    source: str


FSDP: Mapping[str, Any] = {"mesh": {"data": 256}, "compute": {"batch": "data"}, "parameters": {"embed": "data"}}
PUBLISHED = {
    "70b-v5p": Published("llama3-70b", "v5p:4x8x8", 4096, FSDP, "configs/v5p/llama2_70b.sh"),
    "70b-h100": Published("llama3-70b", "h100:32x8", 4096, FSDP, "configs/v5p/llama2_70b.sh"),
    "405b-v5p": Published(
        *("llama3-405b", "v5p:16x16x16", 4096),
        {"mesh": {"data": 512, "model": 8}, "compute": TENSOR, "parameters": {"embed": "data"}},
        "configs/v5p/512b.sh",
    ),
}
SMALL = {
    "llama": {"vocab": 32000, "layers": 4, "embed": 2048, "heads": 8, "group": 2, "head_dim": 128, "mlp": 8192},
    "wide": {"vocab": 8192, "layers": 4, "embed": 4096, "heads": 16, "group": 2, "head_dim": 128, "mlp": 32768},
    "mixtral": {"vocab": 32000, "layers": 4, "embed": 1024, "heads": 8, "group": 1, "head_dim": 128}
    | {"mlp": 2048, "experts": 8},
}
POLICIES = {"layers": True}


def make_plan(sizes: Mapping[str, int], devices: str, length: int, **options: Any) -> Plan:
    machine = described_devices(devices)
    shapes = plan_llama.describe_arguments(dict(sizes), len(machine), length)
    return plan(plan_llama.train_step, *shapes, devices=machine, policies=POLICIES, **options)


def count_sent(evaluation: Evaluation) -> int:
    return sum(evaluation.sent.values())


def compare_published(name: str) -> str:
    """Returns the row of a plan beside the published mapping."""
    case, before, started = PUBLISHED[name], _read_usage(), time.monotonic()
    sizes = plan_llama.MODELS[case.model]
    found = make_plan(sizes, case.devices, case.length, cache=False)
    wall, cpu, memory = time.monotonic() - started, _read_usage() - before, _read_peak()
    published = make_plan(sizes, case.devices, case.length, fixed=case.fixed)
    [own] = [one for one in published.evaluations if one.candidate.parameters.get("embed") and not one.problem][:1]
    cells = [
        f"{case.model}, {case.devices}",
        str(found.best.candidate),
        f"{count_sent(found.best) / count_sent(own):.3f}",
        f"{found.best.time.total:.2f} / {own.time.total:.2f}",
        f"{format_bytes(found.best.bytes)} / {format_bytes(own.bytes)}",
        f"{cpu:.0f} ({wall:.0f})",
        f"{memory / 2**30:.1f}",
    ]
    print(found, file=sys.stderr)
    return f"| {' | '.join(cells)} |"


def rank_first_choice(name: str, out: Path | None) -> str:
    """Returns the row of a plan beside all candidates, each of which is compiled."""
    found = make_plan(SMALL[name], "v5e:4x4", 2048)
    with_all = {"_MOST_COMPILED": sys.maxsize, "_HOPELESS": math.inf, "_MOST_TIMED": 20}
    before = {constant: getattr(_plan_search, constant) for constant in with_all}
    try:
        for constant, value in with_all.items():
            setattr(_plan_search, constant, value)
        everything = make_plan(SMALL[name], "v5e:4x4", 2048)
    finally:
        for constant, value in before.items():
            setattr(_plan_search, constant, value)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        everything.to_json(out / f"{name}.json")
    compiled = [one for one in everything.evaluations if one.stage != "screened" and one.fits]
    first = next(one for one in compiled if str(one.candidate) == str(found.best.candidate))
    cells = [
        name,
        str(len(everything.evaluations)),
        str(len(compiled)),
        str(first.candidate),
        f"{first.time.total / everything.best.time.total:.3f}",
        str(compiled.index(first) + 1),
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
    "published": ("step", "plan's first choice", "sent, of published", "seconds, plan / published",
                  "bytes a device, plan / published", "CPU s (wall s)", "GiB"),
    "exhaustive": ("model", "candidates", "fit", "plan's first choice", "time, of the best", "rank"),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=HEADS)
    parser.add_argument("--only", nargs="+", help="which cases; default: all")
    parser.add_argument("--page", type=Path, help="a page whose table is replaced")
    parser.add_argument("--out", type=Path, help="a folder for the evaluations of `exhaustive`")
    given = parser.parse_args(arguments)
    cases = {"published": PUBLISHED, "exhaustive": SMALL}[given.what]
    rows = []
    for name in given.only or cases:
        rows.append(compare_published(name) if given.what == "published" else rank_first_choice(name, given.out))
        print(rows[-1], flush=True)
    heads = HEADS[given.what]
    table = "\n".join(
        [f"Planned {datetime.date.today()}.", "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *rows]
    )
    if given.page:
        given.page.write_text(replace_table(given.page.read_text(), table, given.what))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()

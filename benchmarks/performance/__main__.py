"""What names cost, measured beside JAX by hand, Equinox and Haliax.

python -m benchmarks.performance [--smoke] [--only GROUP ...] [--device cpu|gpu] [--results FOLDER] [--page FILE]

Writes a file into benchmarks/results/, and docs/benchmarks.md from all files there. With `--only`, or with `--smoke`,
which measures next to nothing and finds out whether everything runs, it writes only where it is told to; `--only` keeps
the other groups of a file. Exits with 1 if a group failed.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from . import page, results
from .contenders import missing, versions
from .measure import FULL, SMOKE, Row


ROOT = Path(__file__).parents[2]
GROUPS = (
    "dispatch",
    "dispatch_mesh",
    "elementwise",
    "rearranging",
    "tracing",
    "programs",
    "sharding",
    "transforms",
    "memory",
    "checkpoints",
    "files",
    "imports",
)
# What is measured with `--device gpu`; a smoke run on the CPU finds out whether it runs.
ACCELERATOR = ("accelerator",)
UNOPTIMISED = ("--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true")


def main(arguments: Sequence[str] | None = None) -> int:
    given = _given(arguments)
    if given.group:
        return _measure(given.group, given.device, given.smoke, Path(given.into))
    for sentence in missing():
        print(sentence, flush=True)
    found, groups = {}, given.only or _groups(given.device, given.smoke)
    for group in groups:
        print(f"{group} ...", flush=True)
        measured = run(group, given.device, given.smoke)
        if measured is not None:
            found[group] = measured
    if found and not given.smoke:
        _show_missed(found)
    _write(given, found)
    failed = [group for group in groups if group not in found]
    print(f"failed: {', '.join(failed)}" if failed else f"all {len(groups)} groups ran")
    return 1 if failed else 0


def _given(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance")
    parser.add_argument("--smoke", action="store_true", help="only find out whether everything runs")
    parser.add_argument("--only", nargs="+", choices=GROUPS + ACCELERATOR, metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--results", type=Path, help="the folder of the results, benchmarks/results unless said")
    parser.add_argument("--page", type=Path, help="the page with all results, docs/benchmarks.md unless said")
    parser.add_argument("--group", choices=GROUPS + ACCELERATOR, help=argparse.SUPPRESS)
    parser.add_argument("--into", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    possible = _groups(given.device, given.smoke)
    if others := [group for group in given.only or () if group not in possible]:
        parser.error(f"on a {given.device} there is no group {', '.join(others)}, only {', '.join(possible)}")
    return given


def _groups(device: str, smoke: bool) -> tuple[str, ...]:
    if device == "gpu":
        return ACCELERATOR
    return GROUPS + ACCELERATOR if smoke else GROUPS


def run(group: str, device: str, smoke: bool) -> results.Group | None:
    """Measures a group in a process of its own, which has the devices that it needs; returns None if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "rows.json")
        options = ["--group", group, "--device", device, "--into", str(into), *(["--smoke"] if smoke else [])]
        command = [sys.executable, "-m", "benchmarks.performance", *options]
        start = time.perf_counter()
        ended = subprocess.run(command, cwd=ROOT, env=_environment(device, smoke))
        taken = time.perf_counter() - start
        if ended.returncode:
            print(f"{group}: FAILED with exit status {ended.returncode} after {taken:.0f} s", flush=True)
            return None
        measured = json.loads(into.read_text())
    rows = [Row.from_json(row) for row in measured["rows"]]
    print(f"{group}: {len(rows)} rows in {taken:.0f} s", flush=True)
    for row in () if smoke else rows:
        print(f"  {shown(row)}", flush=True)
    return results.Group(rows, measured["devices"], results.today(), results.commit(ROOT))


def _environment(device: str, smoke: bool) -> dict[str, str]:
    found = {**os.environ}
    if smoke:  # compiling takes most of the time
        found["XLA_FLAGS"] = f"{found.get('XLA_FLAGS', '')} {' '.join(UNOPTIMISED)}".strip()
    if device == "cpu":  # On other devices JAX chooses by itself, and the group says if it finds none.
        found["JAX_PLATFORMS"] = "cpu"
    return found


def _measure(group: str, device: str, smoke: bool, into: Path) -> int:
    import jax

    module = importlib.import_module(f"benchmarks.performance.{group}")
    if device == "cpu":
        jax.config.update("jax_num_cpu_devices", module.DEVICES)
    elif jax.default_backend() != device:
        print(f"JAX finds no {device}, only {jax.default_backend()}", file=sys.stderr)
        return 1
    rows = [row.as_json() for row in module.rows(SMOKE if smoke else FULL)]
    into.write_text(json.dumps({"rows": rows, "devices": [one.device_kind for one in jax.devices()]}))
    return 0


def shown(row: Row) -> str:
    verdict = "" if row.bar is None else f" (bar {row.bar:g}{', MISSED' if row.missed else ''})"
    others = "".join(f", {who} {ratio.median:.3g}" for who, ratio in row.ratios.items() if who != "Axonym")
    return f"{row.what}: {row.ratios['Axonym'].median:.3g} x{verdict}{others}; reference {row.taken:.4g} {row.unit}"


def _show_missed(found: dict[str, results.Group]) -> None:
    rows = [row for group in found.values() for row in group.rows if row.bar is not None]
    missed = [row for row in rows if row.missed]
    print(f"\n{len(missed)} of {len(rows)} rows with a bar miss it")
    for row in missed:
        print(f"  {shown(row)}")


def _write(given: argparse.Namespace, found: dict[str, results.Group]) -> None:
    writes_all = not (given.smoke or given.only or given.results)
    folder = given.results or ROOT / "benchmarks" / "results"
    target = given.page or (ROOT / "docs" / "benchmarks.md" if writes_all else None)
    if found and (given.results or writes_all):
        new = results.Results(
            device=given.device,
            python=platform.python_version(),
            smoke=given.smoke,
            machine=results.machine(),
            versions=versions(),
            missing=missing(),
            groups=found,
        )
        print(f"wrote {new.write(folder, GROUPS + ACCELERATOR, keep=bool(given.only))}")
    if found and target:
        target.write_text(page.page(results.read_all(folder)))
        print(f"wrote {target}")
    if not found or not (writes_all or given.results or given.page):
        print("wrote nothing" if not found else "wrote nothing; `--results FOLDER` and `--page FILE` say where to")


if __name__ == "__main__":
    sys.exit(main())

"""What a run of the benchmarks leaves behind: the machine, the versions, and the rows of each group, as a JSON file."""

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .measure import Row


@dataclass(frozen=True)
class Group:
    """What was measured in a process.

    Attributes:
        rows: The lines of the results.
        devices: The devices of the process.
        seconds: How many seconds it took.
        date: When that was.
        commit: The commit of the checkout, with a "+" behind it if files were changed; empty if it has none.
    """

    rows: list[Row]
    devices: list[str]
    seconds: float
    date: str
    commit: str

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Group":
        return cls(**{**found, "rows": [Row.from_json(row) for row in found["rows"]]})


@dataclass(frozen=True)
class Results:
    """What was measured on one kind of device with one Python and one JAX; `smoke` says that nothing was."""

    device: str
    python: str
    smoke: bool
    machine: dict[str, Any]
    versions: dict[str, str]
    missing: list[str]
    groups: dict[str, Group]

    @property
    def filename(self) -> str:
        python = ".".join(self.python.split(".")[:2])
        return f"{self.device}-py{python}-jax{self.versions['jax']}.json"

    def write(self, folder: Path, order: tuple[str, ...], keep: bool) -> Path:
        """Writes the results and returns where; with `keep`, the other groups of the file there, too.

        Those are kept if they were measured on the same machine with the same versions. The order is that of groups.
        """
        path = folder / self.filename
        before = read(path) if keep and path.exists() else self
        groups = (
            {**before.groups, **self.groups} if replace(before, groups={}) == replace(self, groups={}) else self.groups
        )
        ordered = {name: asdict(groups[name]) for name in order if name in groups}
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**asdict(self), "groups": ordered}, indent=1) + "\n")
        return path


def read(path: Path) -> Results:
    found = json.loads(path.read_text())
    return Results(**{**found, "groups": {name: Group.from_json(group) for name, group in found["groups"].items()}})


def read_all(folder: Path) -> list[Results]:
    """Returns all results in a folder: CPUs first, and the newest Python and JAX last."""
    found = [read(path) for path in folder.glob("*.json")]
    return sorted(found, key=lambda one: (one.device != "cpu", one.device, _numbers(one.python), one.filename))


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def commit(root: Path) -> str:
    """Returns the commit of a checkout, with a "+" behind it if files were changed; nothing if it has none."""
    try:
        found = _git(root, "rev-parse", "--short", "HEAD")
        return f"{found}+" if _git(root, "status", "--porcelain", "--", "axonym", "benchmarks/*/*.py") else found
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(root: Path, *command: str) -> str:
    return subprocess.check_output(["git", *command], cwd=root, text=True, stderr=subprocess.DEVNULL).strip()


def machine() -> dict[str, Any]:
    """Returns what figures depend on and others may know: processor, cores, memory and system."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(_memory() / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _memory() -> int:
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

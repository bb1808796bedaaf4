"""The results of a run of the benchmarks as a JSON file: the machine, the versions, and the rows of each group."""

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
    """The results of a group, which is measured in a process of its own.

    Attributes:
        rows: The lines of the results.
        devices: The devices of the process.
        date: When it was measured.
        commit: The commit of the checkout, followed by "+" if files were changed; empty if it has none.
    """

    rows: list[Row]
    devices: list[str]
    date: str
    commit: str

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Group":
        return cls(**{**found, "rows": [Row.from_json(row) for row in found["rows"]]})


@dataclass(frozen=True)
class Results:
    """The results on one kind of device with one Python and one JAX; with `smoke` nothing was really measured."""

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
        """Writes the results into a folder and returns the path.

        With `keep`, the other groups of an existing file stay if their machine and versions are the same. Groups are
        written in the order given.
        """
        path = folder / self.filename
        before = read(path) if keep and path.exists() else self
        groups = (
            {**before.groups, **self.groups} if replace(before, groups={}) == replace(self, groups={}) else self.groups
        )
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(_as_json(replace(self, groups={name: groups[name] for name in order if name in groups})))
        return path


def _as_json(found: Results) -> str:
    """Returns results as JSON with a row of a table in each line."""
    head = {key: value for key, value in asdict(found).items() if key != "groups"}
    groups = [f"{json.dumps(name)}: {_group_as_json(group)}" for name, group in found.groups.items()]
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    return "{\n" + ",\n".join([*lines, '"groups": {\n' + ",\n".join(groups) + "\n}"]) + "\n}\n"


def _group_as_json(group: Group) -> str:
    head = json.dumps({"date": group.date, "commit": group.commit, "devices": group.devices})
    return head[:-1] + ', "rows": [\n' + ",\n".join(json.dumps(row.as_json()) for row in group.rows) + "\n]}"


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
    """Returns the commit of a checkout, followed by "+" if files were changed; nothing if it has none."""
    try:
        found = _git(root, "rev-parse", "--short", "HEAD")
        return f"{found}+" if _git(root, "status", "--porcelain", "--", "axonym", "benchmarks/*/*.py") else found
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(root: Path, *command: str) -> str:
    return subprocess.check_output(["git", *command], cwd=root, text=True, stderr=subprocess.DEVNULL).strip()


def machine() -> dict[str, Any]:
    """Returns what the figures depend on: processor, cores, memory and system."""
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

"""Compiled programs on disk, each in a file named by all that it depends on."""

import gzip
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from ..report._write_file import replace_file
from ._buffer_assignment import ProgramMemory
from ._compiler_process import CompileJob, CompileResult


_FORMAT = 2  # changes with what is stored


def find_cache_folder() -> Path | None:
    """Returns the folder for compiled programs in the user's folder of caches; None for a user without a home."""
    if found := os.environ.get("XDG_CACHE_HOME"):
        return Path(found) / "axonym" / "compiled"
    try:
        home = Path.home()
    except RuntimeError:  # as in containers with other users
        return None
    caches = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return caches / "axonym" / "compiled"


def choose_cache_folder(cache: bool | str | os.PathLike[str]) -> Path | None:
    """Returns the folder for compiled programs that is meant, None for none."""
    if isinstance(cache, bool):
        return find_cache_folder() if cache else None
    if not isinstance(cache, str | os.PathLike):
        raise TypeError(f"`cache` is a folder, True for one of the user's or False for none; it was {cache!r}")
    return Path(cache)


def make_cache_key(job: CompileJob, versions: Mapping[str, str]) -> str:
    """Returns the hash of a program, the machine, the versions of the compiler and its options."""
    settings = {name: value for name, value in asdict(job).items() if name != "program"}
    text = json.dumps([_FORMAT, settings, dict(versions)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_cached(folder: Path, job: CompileJob, versions: Mapping[str, str]) -> CompileResult | None:
    """Returns a program that was compiled before; one compiled whole also if it may be stopped early."""
    jobs = [replace(job, stop_early=False), *([job] if job.stop_early else [])]
    return next(filter(None, (_read_entry(folder / _name_entry(one, versions)) for one in jobs)), None)


def write_cached(folder: Path, job: CompileJob, result: CompileResult) -> None:
    """Writes a compiled program, completely or not at all; raises an OSError if it cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = replace(job, stop_early=job.stop_early and result.is_stopped)
    content = gzip.compress(json.dumps(asdict(result)).encode(), compresslevel=3)
    replace_file(folder / _name_entry(whole, result.versions), content)


def _name_entry(job: CompileJob, versions: Mapping[str, str]) -> str:
    return f"{make_cache_key(job, versions)}.json.gz"


def _read_entry(path: Path) -> CompileResult | None:
    """Returns what a file has; None if it is not there or cannot be read."""
    try:
        found = json.loads(gzip.decompress(path.read_bytes()))
        figures = found.pop("memory")
        memory = ProgramMemory(**{**figures, "argument_sizes": tuple(figures["argument_sizes"])})
        log, notes = tuple(found.pop("log")), tuple(found.pop("notes"))
        return CompileResult(memory=memory, log=log, notes=notes, **found)
    except (OSError, ValueError, EOFError, KeyError, TypeError, zlib.error):
        return None

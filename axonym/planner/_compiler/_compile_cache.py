"""Compiled programs on disk, each in a file named by all that it depends on."""

import functools
import gzip
import hashlib
import json
import os
import sys
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from ..._ground.atomic_file import check_folder_path
from ...report._write_file import replace_file
from .._machine._hardware_file import make_checked
from .._program._xla_text import ENTRY, LOCATION, LOCATION_REFERENCE
from ._compiler_process import CompileJob, CompileResult, describe_topology


_FORMAT = 4  # changes with what is stored


def find_cache_folder() -> Path | None:
    """Returns the folder for compiled programs in the user's folder of caches; None for a user without a home."""
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "axonym" / "compiled"
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
    return check_folder_path(cache, "`cache`")


def make_cache_key(job: CompileJob, versions: Mapping[str, str]) -> str:
    """Returns the hash of a program, the machine, the versions of the compiler and its options."""
    settings = {name: value for name, value in asdict(job).items() if name != "bytecode"}
    # A registered device may have the same name in another process, and other figures.
    settings["described"] = describe_topology(job.topology)
    text = json.dumps([_FORMAT, settings, dict(versions)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_cached(folder: Path, job: CompileJob, versions: Mapping[str, str]) -> CompileResult | None:
    """Returns a program that was compiled before; None if it was not. One compiled whole serves both kinds of jobs."""
    result = _read_file(folder / _name_file(replace(job, stop_early=False), versions))
    if result is None and job.stop_early:
        result = _read_file(folder / _name_file(job, versions))
    return result


def write_cached(folder: Path, job: CompileJob, versions: Mapping[str, str], result: CompileResult) -> None:
    """Writes a compiled program, completely or not at all; raises an OSError if it cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    # A job that was to stop early but was compiled whole serves jobs of both kinds.
    stopped_job = replace(job, stop_early=job.stop_early and result.is_stopped)
    # Level 3 takes a seventh of the time of the default; files are a third larger.
    content = gzip.compress(json.dumps(asdict(result)).encode(), compresslevel=3)
    replace_file(folder / _name_file(stopped_job, versions), content)


def _name_file(job: CompileJob, versions: Mapping[str, str]) -> str:
    return f"{make_cache_key(job, versions)}.json.gz"


def _read_file(path: Path) -> CompileResult | None:
    """Returns the program in a file; None if it is not there, cannot be read, or is none."""
    try:
        fields = json.loads(gzip.decompress(path.read_bytes()))
        result = make_checked(CompileResult, repr(str(path)), fields)
    except (OSError, ValueError, EOFError, TypeError, RecursionError, zlib.error):
        return None
    return result if ENTRY.search(result.text) else None


def fingerprint_module(text: str, file: str) -> str:
    """Returns the hash of a program in MLIR's text with locations, without who compiles it.

    MLIR writes an operation with its location: its name, the innermost frames and what these were called from. The
    frames that call the function differ between two places that compile the same program.

    Args:
        text: The program.
        file: The file that calls the function. Frames of it, and those that it is called from, do not count.
    """
    locations, caller = dict(LOCATION.findall(text)), f'"{file}":'

    @functools.cache
    def hash_location(name: str) -> str:
        content = locations.get(name, "")  # such as `"dot"(#loc3)` or `callsite(#loc4 at #loc5)`
        names = LOCATION_REFERENCE.findall(content)
        is_call = content.startswith("callsite(")
        if content.startswith(caller) or (names and locations.get(names[0], "").startswith(caller)):
            return ""  # the place itself, or the function that it is in
        parts = [hash_location(part) for part in names]
        if is_call and not parts[0]:
            return ""
        return _hash_text(LOCATION_REFERENCE.sub("", content) + " ".join(parts))

    program = LOCATION.sub("", text)
    return _hash_text(LOCATION_REFERENCE.sub(lambda reference: hash_location(reference[0]), program))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

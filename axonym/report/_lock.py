"""The sharding lock: a small text file that says where each array of a tree goes, made to be read in a diff.

It has the mesh, and of each array its shape, the names of its axes and its spec, one array to a line. Specs are written
in one way: an entry for each axis, without the mesh axes of size 1, which divide nothing. An array that is not on the
mesh has a word about where it is, and one that is still to be summed over mesh axes, or was, has their names.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jax.sharding import PartitionSpec as P

from ..named._ambient import get_entry_axes
from ..named._axis import format_axes
from ._leaf import LeafReport
from ._table import some_problems
from ._write import write_whole


Lock: TypeAlias = dict[str, Any]
"""What a lock file holds: `format`, `mesh` (name to size) and `arrays` (path to `shape`, `axes`, `spec` and more)."""

FORMAT = 1
_FREE = "UNCONSTRAINED"
_SUMS = ("unreduced", "reduced")
_MOST_PROBLEMS = 10


def lock_of(leaves: Iterable[LeafReport], mesh: Mapping[str, int], problems: Sequence[str]) -> Lock:
    """Returns what a lock says of these arrays on a mesh with these sizes.

    Raises:
        ValueError: If something is wrong with the specs, so that nobody knows where arrays go.
    """
    if problems:
        shown = some_problems(problems, "`problems` of the report", _MOST_PROBLEMS)
        raise ValueError("\n  ".join(["nothing can be locked, because the specs have problems:", *shown]))
    sizes = {name: size for name, size in mesh.items() if size > 1}
    return {"format": FORMAT, "mesh": sizes, "arrays": {leaf.path: _array_of(leaf, sizes) for leaf in leaves}}


def _array_of(leaf: LeafReport, mesh: Mapping[str, int]) -> dict[str, Any]:
    spec = P() if leaf.spec is None else leaf.spec
    names = [axis.name for axis in leaf.axes]
    named = {"axes": names} if names and None not in names else {}
    place = {} if leaf.place is None else {"on": leaf.place}
    sums = {kind: sorted(map(str, getattr(spec, kind))) for kind in _SUMS if getattr(spec, kind)}
    entries = [_entry_of(entry, mesh if leaf.place is None else None) for entry in spec.partitions]
    return {"shape": list(leaf.shape), **named, "spec": entries, **sums, **place}


def _entry_of(entry: Any, mesh: Mapping[str, int] | None) -> Any:
    """Returns an entry of a spec as a lock has it, with the axes of this mesh or any: None, a name, or a list."""
    named = [_FREE] if entry is P.UNCONSTRAINED else get_entry_axes(entry)
    axes = [axis for axis in named if mesh is None or axis == _FREE or axis in mesh]
    return None if not axes else axes[0] if len(axes) == 1 else axes


def lock_text(lock: Lock) -> str:
    """Returns a lock as JSON, sorted by the paths of the arrays, one to a line."""
    arrays = [f"    {_line(path)}: {_line(array)}" for path, array in sorted(lock["arrays"].items())]
    listing = "{\n" + ",\n".join(arrays) + "\n  }" if arrays else "{}"
    return f'{{\n  "format": {lock["format"]},\n  "mesh": {_line(lock["mesh"])},\n  "arrays": {listing}\n}}\n'


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def save_lock(lock: Lock, path: str | os.PathLike[str]) -> None:
    """Writes a lock file; whoever reads it meanwhile sees the old one or the new one, whole.

    Raises:
        OSError: If it cannot be written.
    """
    write_whole(path, lock_text(lock), "lock", "sharding.lock")


def read_lock(path: str | os.PathLike[str], remedy: str) -> Lock:
    """Reads a lock file.

    Args:
        path: Where it is.
        remedy: How to make one, for errors.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is damaged, or of another format.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no sharding lock {os.fspath(path)!r}; {remedy}") from None
    except UnicodeDecodeError:
        text = ""
    try:
        lock = json.loads(text)
    except json.JSONDecodeError:
        lock = None
    if isinstance(lock, dict) and isinstance(lock.get("format"), int) and lock["format"] != FORMAT:
        raise ValueError(
            f"the sharding lock {os.fspath(path)!r} has format {lock['format']}, this version of Axonym reads "
            f"format {FORMAT}; {remedy}"
        )
    if not isinstance(lock, dict) or not _is_lock(lock):
        raise ValueError(f"{os.fspath(path)!r} is no sharding lock, or is damaged; {remedy}")
    return lock


def _is_lock(lock: dict[str, Any]) -> bool:
    """Tells whether what a file holds has the form of a lock."""
    if set(lock) != {"format", "mesh", "arrays"}:
        return False
    mesh, arrays = lock["mesh"], lock["arrays"]
    sizes = isinstance(mesh, dict) and all(isinstance(size, int) for size in mesh.values())
    return sizes and isinstance(arrays, dict) and all(_is_array(array) for array in arrays.values())


def _is_array(array: Any) -> bool:
    if not isinstance(array, dict) or not {"shape", "spec"} <= set(array) <= {"shape", "spec", "axes", "on", *_SUMS}:
        return False
    lists = [array[key] for key in ("shape", "spec", "axes") if key in array]
    sums = [array[key] for key in _SUMS if key in array]
    if not all(isinstance(value, list) for value in (*lists, *sums)) or not isinstance(array.get("on", ""), str):
        return False
    if len({len(value) for value in lists}) > 1 or not all(isinstance(size, int) for size in array["shape"]):
        return False
    entries = [name for entry in array["spec"] for name in (entry if isinstance(entry, list) else [entry])]
    names = [name for value in (array.get("axes", ()), *sums) for name in value]
    return all(isinstance(name, str) for name in names) and all(
        name is None or isinstance(name, str) for name in entries
    )


def differences(locked: Lock, found: Lock) -> list[str]:
    """Returns in what the arrays found differ from a lock, one line each, and none if nothing moves."""
    lines = []
    before = {name: size for name, size in locked["mesh"].items() if size > 1}
    if list(before.items()) != list(found["mesh"].items()):
        lines.append(f"the mesh: {_mesh_shown(before)} -> {_mesh_shown(found['mesh'])}")
    old, new = locked["arrays"], found["arrays"]
    for path in sorted({**old, **new}):
        one, other = old.get(path), new.get(path)
        if one is None:
            lines.append(f"added    {_array_shown(path, other)}: {_spec_shown(other)}")
        elif other is None:
            lines.append(f"removed  {_array_shown(path, one)}: {_spec_shown(one)}")
        else:
            lines += _difference(path, one, other)
    return lines


def _difference(path: str, one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Returns the line for an array that is there before and after, if it has changed."""
    before, after = _spec_shown(one), _spec_shown(other)
    specs = before if before == after else f"{before} -> {after}"
    if one["shape"] != other["shape"]:
        return [f"resized  {_array_shown(path, one)} -> {_axes_shown(other)}: {specs}"]
    if "axes" in one and "axes" in other and one["axes"] != other["axes"]:
        return [f"renamed  {_array_shown(path, one)} -> {_axes_shown(other)}: {specs}"]
    if before != after:
        return [f"moved    {_array_shown(path, other if 'axes' in other else one)}: {specs}"]
    return []


def _mesh_shown(mesh: Mapping[str, int]) -> str:
    return format_axes(tuple(mesh), tuple(mesh.values())) if mesh else "one device"


def _array_shown(path: str, array: dict[str, Any]) -> str:
    return f"{path} {_axes_shown(array)}".lstrip()


def _axes_shown(array: dict[str, Any]) -> str:
    """Returns the names of the axes with their sizes, or the shape if they have none."""
    shape = tuple(array["shape"])
    return format_axes(tuple(array["axes"]), shape) if "axes" in array else str(shape)


def _spec_shown(array: dict[str, Any]) -> str:
    entries = [tuple(entry) if isinstance(entry, list) else entry for entry in array["spec"]]
    sums = [f"{kind}={{{', '.join(map(repr, array[kind]))}}}" for kind in _SUMS if array.get(kind)]
    shown = ", ".join([*(_FREE if entry == _FREE else repr(entry) for entry in entries), *sums])
    place = array.get("on")
    divided = any(entry is not None for entry in entries) or sums
    if place is None:
        return f"P({shown})"
    return f"P({shown}) on {place}" if divided or place.startswith("mesh") else f"on {place}"

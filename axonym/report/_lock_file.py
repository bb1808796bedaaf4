"""The sharding lock: a small text file with the sharding of each array of a tree, made to be read in a diff.

It has the mesh, and a line for each array with its shape, the names of its axes and its spec. Specs are normalized: an
entry for each axis, without mesh axes of size 1. The place of an array that is not on the mesh is recorded too, and so
are the mesh axes over which an array is unreduced or reduced.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jax.sharding import PartitionSpec as P

from .._ground.errors import make_error
from .._ground.formats import format_axes, shorten_list
from ..mesh._describe import escape_unprintable
from ..named._axis_layout import get_entry_axes
from ._explanation import LeafReport
from ._write_file import check_path, write_file


Lock: TypeAlias = dict[str, Any]
"""The content of a lock file: `format`, `mesh` (name to size) and `arrays` (path to `shape`, `axes`, `spec` etc.)."""

FORMAT = 1
_FREE = "UNCONSTRAINED"
_REDUCTIONS = ("unreduced", "reduced")
_MOST_PROBLEMS = 10


def make_lock(leaves: Iterable[LeafReport], mesh: Mapping[str, int], problems: Sequence[str]) -> Lock:
    """Returns the lock of arrays on a mesh with these sizes; raises a ValueError if the specs have problems."""
    if problems:
        lines = shorten_list(problems, _MOST_PROBLEMS, "`problems` of the report")
        raise make_error(ValueError, "\n  ".join(["nothing can be locked, because the specs have problems:", *lines]))
    sizes, arrays, counts = _drop_small_axes(mesh), dict[str, Any](), Counter[str]()
    for leaf in leaves:
        counts[leaf.path] += 1  # paths repeat if two keys have one repr
        path = leaf.path if counts[leaf.path] == 1 else f"{leaf.path} ({counts[leaf.path]})"
        arrays[path] = _make_locked_array(leaf, sizes)
    return {"format": FORMAT, "mesh": sizes, "arrays": arrays}


def _drop_small_axes(mesh: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in mesh.items() if size > 1}


def _make_locked_array(leaf: LeafReport, mesh: Mapping[str, int]) -> dict[str, Any]:
    spec = P() if leaf.spec is None else leaf.spec
    names = [axis.name for axis in leaf.axes]
    entries: list[Any] = []
    for entry in spec.partitions:
        axes = [_FREE] if entry is P.UNCONSTRAINED else get_entry_axes(entry)
        # Axes of size 1 are in no lock; those of another mesh are kept, since their sizes are not known here.
        axes = [axis for axis in axes if leaf.place is not None or axis == _FREE or axis in mesh]
        if len(axes) > 1:
            entries.append(axes)
        else:
            entries.append(axes[0] if axes else None)
    return {
        "shape": [*leaf.shape],
        **({"axes": names} if names and None not in names else {}),
        "spec": entries,
        **{kind: sorted(map(str, getattr(spec, kind))) for kind in _REDUCTIONS if getattr(spec, kind)},
        **({} if leaf.place is None else {"on": leaf.place}),
    }


def save_lock(lock: Lock, path: str | os.PathLike[str]) -> None:
    """Writes a lock file, sorted by the paths of the arrays."""
    arrays = [
        f"    {_format_json_line(key)}: {_format_json_line(array)}" for key, array in sorted(lock["arrays"].items())
    ]
    listing = "{\n" + ",\n".join(arrays) + "\n  }" if arrays else "{}"
    mesh = _format_json_line(lock["mesh"])
    text = f'{{\n  "format": {lock["format"]},\n  "mesh": {mesh},\n  "arrays": {listing}\n}}\n'
    write_file(path, text, "lock", "sharding.lock")


def _format_json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def compare_with_lock(path: str | os.PathLike[str], lock: Lock, remedy: str) -> list[str]:
    """Returns one line for each difference between a lock file and the arrays found.

    Raises a FileNotFoundError or, if the file is damaged or of another format, a ValueError, with the remedy.
    """
    check_path(path, "sharding lock")
    name = repr(os.fspath(path))
    try:
        locked = json.loads(Path(path).read_text(encoding="utf-8"))
        version = locked["format"]
        lines = _list_differences(locked, lock) if version == FORMAT else []
    except FileNotFoundError:
        raise make_error(FileNotFoundError, f"there is no sharding lock {name}; {remedy}") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:  # not UTF-8 etc.
        cause = f"{type(error).__name__}: {error}"
        raise make_error(ValueError, f"{name} is not a sharding lock, or is damaged ({cause}); {remedy}") from None
    if version != FORMAT:
        reads = f"this version of Axonym reads format {FORMAT}"
        raise make_error(ValueError, f"the sharding lock {name} has format {version!r}, {reads}; {remedy}")
    return [escape_unprintable(line) for line in lines]


def _list_differences(locked: Lock, lock: Lock) -> list[str]:
    lines = []
    locked_mesh, mesh = _drop_small_axes(locked["mesh"]), lock["mesh"]
    if [*locked_mesh.items()] != [*mesh.items()]:  # the order of mesh axes counts
        lines.append(f"the mesh: {_format_locked_mesh(locked_mesh)} -> {_format_locked_mesh(mesh)}")
    locked_arrays, arrays = locked["arrays"], lock["arrays"]
    for path in sorted({**locked_arrays, **arrays}):
        if path in locked_arrays and path in arrays:
            lines += _compare_locked_arrays(path, locked_arrays[path], arrays[path])
        else:
            word, array = ("added", arrays[path]) if path in arrays else ("removed", locked_arrays[path])
            lines.append(f"{word:<8} {_format_locked_array(path, array)}: {_format_locked_spec(array)}")
    return lines


def _compare_locked_arrays(path: str, locked: dict[str, Any], array: dict[str, Any]) -> list[str]:
    """Returns the line for an array that is there before and after, if it has changed."""
    locked_spec, spec = _format_locked_spec(locked), _format_locked_spec(array)
    specs = spec if locked_spec == spec else f"{locked_spec} -> {spec}"
    if locked["shape"] != array["shape"]:
        return [f"resized  {_format_locked_array(path, locked)} -> {_format_locked_array('', array)}: {specs}"]
    if "axes" in locked and "axes" in array and locked["axes"] != array["axes"]:
        return [f"renamed  {_format_locked_array(path, locked)} -> {_format_locked_array('', array)}: {specs}"]
    if locked_spec == spec:
        return []
    return [f"moved    {_format_locked_array(path, {**locked, **array})}: {specs}"]


def _format_locked_mesh(mesh: Mapping[str, int]) -> str:
    return format_axes(tuple(mesh), tuple(mesh.values())) if mesh else "one device"


def _format_locked_array(path: str, array: dict[str, Any]) -> str:
    """Returns an array with its axes, or with its shape if they have no names."""
    shape = tuple(array["shape"])
    axes = format_axes(tuple(array["axes"]), shape) if "axes" in array else str(shape)
    return f"{path} {axes}".lstrip()


def _format_locked_spec(array: dict[str, Any]) -> str:
    entries = [tuple(entry) if isinstance(entry, list) else entry for entry in array["spec"]]
    if len(entries) != len(array["shape"]):
        raise ValueError(f"an array of {len(array['shape'])} axes has a spec of length {len(entries)}")
    sums = [f"{kind}={{{', '.join(map(repr, array[kind]))}}}" for kind in _REDUCTIONS if array.get(kind)]
    spec = f"P({', '.join([*(_FREE if entry == _FREE else repr(entry) for entry in entries), *sums])})"
    place = array.get("on")
    if place is None:
        return spec
    is_sharded = any(entry is not None for entry in entries) or sums
    return f"{spec} on {place}" if is_sharded or place.startswith("mesh") else f"on {place}"

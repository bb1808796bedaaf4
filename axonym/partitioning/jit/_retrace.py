"""Why a compiled function was traced the last time: what changed since the nearest of its earlier traces.

What a trace depends on is kept when it happens, shapes and not arrays, so that calls cost nothing more. It is compared
only when somebody asks.
"""

import dataclasses
import itertools
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, AxisType
from jax.tree_util import keystr

from ...named._ambient import get_entry_axes
from ...named._array import NamedArray
from ...named._axis import format_axes
from ..mapping._axis_mapping import AxisMapping, current_mapping
from ..specs._active_mesh import get_abstract_mesh
from ..specs._leaves import ARRAYS
from ._parameters import Parameters
from ._static_args import StaticArgs


_MOST_TRACES = 32
_MOST_CHANGES = 5
_LONGEST = 40
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_ARRAY_VALUES = re.compile(r"\barray\(", re.IGNORECASE)
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_rank_promotion",
    "jax_numpy_dtype_promotion",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_debug_nans",
    "jax_default_device",
)


class _Trace(NamedTuple):
    """What a trace depended on: what is static, the types of the arrays, the mapping and mesh in force, settings."""

    token: StaticArgs
    donated: tuple[Any, ...]
    kept: tuple[Any, ...]
    mapping: AxisMapping | None
    mesh: AbstractMesh | None
    settings: tuple[Any, ...]


class Traces:
    """The traces of one function: how many there were, and what the last of them depended on.

    Args:
        name: What the function is called.
        parameters: Its parameters.
    """

    def __init__(self, name: str, parameters: Parameters) -> None:
        """Starts without any; see the class."""
        self._name, self._parameters = name, parameters
        self._kept: deque[_Trace] = deque(maxlen=_MOST_TRACES)
        self._cleared = False
        self.count = 0

    def record(self, donated: tuple[Any, ...], kept: tuple[Any, ...], token: StaticArgs) -> None:
        """Keeps what a trace depends on; called inside the traced function."""
        types = tuple(map(jax.typeof, donated)), tuple(map(jax.typeof, kept))
        settings = tuple(getattr(jax.config, name, None) for name in _SETTINGS)
        self._kept.append(_Trace(token, *types, current_mapping(), get_abstract_mesh(), settings))
        self.count += 1

    def forget(self) -> None:
        """Forgets what they depended on, because what was compiled is forgotten."""
        self._kept.clear()
        self._cleared = True

    def explanation(self) -> str:
        """Returns one line on the last trace; see `NamedJit.explain_retrace`."""
        kept = list(self._kept)
        if not self.count:
            return f"`{self._name}` has not been traced yet"
        times = "once" if self.count == 1 else f"{self.count} times"
        start = f"`{self._name}` has been traced {times}"
        if len(kept) < 2:
            cause = "`clear_cache` made it forget its traces" if self._cleared else "that was its first trace"
            return f"{start}; {cause}"
        last, earlier = kept[-1], reversed(kept[:-1])
        pairs = ((_changes(one, last, self._parameters), _distance(one, last)) for one in earlier)
        changes, _ = min(pairs, key=lambda pair: (len(pair[0]), pair[1]))
        if not changes:
            return f"{start}; nothing that Axonym sees changed: a setting of JAX did, or JAX's caches were cleared"
        rest = f", and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
        return f"{start}; changed since the nearest earlier trace: {'; '.join(changes[:_MOST_CHANGES])}{rest}"


def _changes(before: _Trace, after: _Trace, parameters: Parameters) -> list[str]:
    """Returns what changed between two traces, each in a few words."""
    changes = [*_mapping_changes(before.mapping, after.mapping), *_mesh_changes(before.mesh, after.mesh)]
    for name, one, other in zip(_SETTINGS, before.settings, after.settings, strict=True):
        if one != other:
            changes.append(f"JAX's setting `{name}`: {one} -> {other}")
    old, new = (_arguments(trace, parameters) for trace in (before, after))
    for name in [name for name in old if name in new and old[name][0] != new[name][0]]:
        changes.append(f"{name}: passed by {old[name][0]} -> by {new[name][0]}")
    return changes + list(
        _between({name: x for name, (_, x) in old.items()}, {name: x for name, (_, x) in new.items()})
    )


def _distance(before: _Trace, after: _Trace) -> int:
    """Returns in how many sizes and dtypes the arrays of two traces differ, to choose among as many changes."""
    pairs = zip((*before.donated, *before.kept), (*after.donated, *after.kept), strict=False)
    return sum(
        (one.dtype != other.dtype) + sum(a != b for a, b in itertools.zip_longest(one.shape, other.shape))
        for one, other in pairs
    )


def _mapping_changes(before: AxisMapping | None, after: AxisMapping | None) -> Iterator[str]:
    if before == after:
        return
    if before is None or after is None:
        yield f"mapping in force: {_shown_mapping(before)} -> {_shown_mapping(after)}"
        return
    for name in sorted({*before, *after}):
        if before.mesh_axes(name) != after.mesh_axes(name):
            yield f"mapping in force: {name!r}: {before.get(name)!r} -> {after.get(name)!r}"
    if before.uneven != after.uneven:
        yield f"mapping in force: uneven: {before.uneven!r} -> {after.uneven!r}"
    if before.fallback != after.fallback:
        yield f"mapping in force: fallback: {_arrow(before.fallback, after.fallback)}"


def _shown_mapping(mapping: AxisMapping | None) -> str:
    return "none" if mapping is None else str(dict(mapping))


def _mesh_changes(before: AbstractMesh | None, after: AbstractMesh | None) -> Iterator[str]:
    if before != after:
        one, other = _shown_mesh(before), _shown_mesh(after)
        yield f"mesh: {one} -> {other}" if one != other else f"mesh: {one}, of other devices"


def _shown_mesh(mesh: AbstractMesh | None) -> str:
    if mesh is None:
        return "none"
    types = dict.fromkeys(one.name for one in mesh.axis_types)
    kinds = types if len(types) < 2 else [one.name for one in mesh.axis_types]
    return f"{format_axes(mesh.axis_names, tuple(mesh.shape.values()))} {', '.join(kinds)}".rstrip()


class _Array:
    """An array argument of a trace: its type, and whether it is donated. No pytree, so it stands for a leaf."""

    __slots__ = ("donated", "type")

    def __init__(self, kind: Any, donated: bool) -> None:
        self.type, self.donated = kind, donated


class _Static:
    """A static argument of a trace, wrapped so that it stands for a leaf."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _arguments(trace: _Trace, parameters: Parameters) -> dict[str, tuple[str, Any]]:
    """Returns how each argument was passed, and a tree of what is known of it."""
    donated, kept = (
        [_Array(one, flag) for one in types] for types, flag in ((trace.donated, True), (trace.kept, False))
    )
    args, kwargs = trace.token.joined(donated, kept, [_Static(value) for value in trace.token.values])
    found = parameters.arguments(args, kwargs)
    return {name: ("position" if at < len(args) else "keyword", value) for at, (name, value) in enumerate(found)}


def _between(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Runs over the changes between the children of two nodes, given by their paths."""
    for path, one in before.items():
        if path in after:
            yield from _node_changes(path, one, after[path])
        else:
            yield f"{path}: {_shown(one)} -> nothing"
    for path in after:
        if path not in before:
            yield f"{path}: nothing -> {_shown(after[path])}"


def _node_changes(path: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, _Array) and isinstance(after, _Array):
        yield from _array_changes(path, before, after)
    elif isinstance(before, _Static) and isinstance(after, _Static):
        if type(before.value) is not type(after.value) or before.value != after.value:
            yield f"{path}: {_arrow(before.value, after.value)}"
    elif type(before) is not type(after):
        yield f"{path}: {_shown(before)} -> {_shown(after)}"
    elif type(before) is NamedArray:
        if before.names != after.names:
            yield f"{path}: axes {format_axes(before.names)} -> {format_axes(after.names)}"
        yield from _node_changes(path, before.array, after.array)
    else:
        old, new = _children(path, before), _children(path, after)
        yield from _between(old, new)
        if old.keys() == new.keys() and _top(before) != _top(after):
            yield from _static_changes(path, before, after)


def _children(path: str, node: Any) -> dict[str, Any]:
    pairs, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return {path + keystr(keys): child for keys, child in pairs}


def _top(node: Any) -> Any:
    return jax.tree.structure(node, is_leaf=lambda x: x is not node)


def _static_changes(path: str, before: Any, after: Any) -> Iterator[str]:
    """Runs over the changes of what is static about two nodes that have the same type and the same children."""
    fields = dataclasses.fields(before) if dataclasses.is_dataclass(before) else ()
    inside = {key.lstrip(".") for key in _children("", before)}
    changed = False
    for name in (field.name for field in fields if field.name not in inside):
        one, other = getattr(before, name, None), getattr(after, name, None)
        if type(one) is not type(other) or one != other:
            changed = True
            yield f"{path}.{name}: {_arrow(one, other)}"
    if not changed:
        yield f"{path}: what is static about the {type(before).__name__}"


def _array_changes(path: str, before: _Array, after: _Array) -> Iterator[str]:
    if before.type != after.type:
        one, other = _shown(before), _shown(after)
        if one == other:
            one, other = (f"{one} {_place(array.type)}" for array in (before, after))
        yield f"{path}: {one} -> {other}" if one != other else f"{path}: {before.type} -> another {after.type}"
    if before.donated != after.donated:
        yield f"{path}: {'donated' if after.donated else 'no longer donated'}"


def _shown(node: Any) -> str:
    """Shows a node in a few words: the type of an array, the value of what is static, else what kind of node it is."""
    if isinstance(node, _Array):
        return _shown_type(node.type)
    if isinstance(node, _Static):
        return _shown_value(node.value)
    if node is None:
        return "None"
    if type(node) is NamedArray and isinstance(node.array, _Array):
        return f"{_shown_type(node.array.type)} with axes {format_axes(node.names)}"
    return f"{'an' if type(node).__name__[0] in 'AEIOUaeiou' else 'a'} {type(node).__name__}"


def _shown_type(kind: Any) -> str:
    """Shows the type of an array as `float32[8, 4]`, with the Explicit mesh axes of each axis: `float32[8@data, 4]`."""
    sharding = getattr(kind, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    stated = mesh is not None and AxisType.Explicit in mesh.axis_types
    entries: Sequence[Any] = getattr(sharding, "spec", ()) if stated else ()
    sizes = [
        f"{size}@{'+'.join(get_entry_axes(entry))}" if get_entry_axes(entry) else str(size)
        for size, entry in itertools.zip_longest(kind.shape, entries)
    ]
    return f"{'weak ' if getattr(kind, 'weak_type', False) else ''}{kind.dtype}[{', '.join(sizes)}]"


def _place(kind: Any) -> str:
    """Says on which mesh an array is, which is part of its type on Auto meshes too."""
    mesh = getattr(getattr(kind, "sharding", None), "mesh", None)
    return "on no mesh" if mesh is None or mesh.empty else f"on the mesh {_shown_mesh(mesh)}"


def _arrow(before: Any, after: Any) -> str:
    """Shows two values that differ, even if they look alike, as two functions that were made by one line do."""
    one, other = _shown_value(before), _shown_value(after)
    return f"{one} -> {other}" if one != other else f"{one} -> another {other}"


def _shown_value(value: Any) -> str:
    """Shows a static value, shortened and without addresses, and never the values of an array."""
    if isinstance(value, ARRAYS):
        return f"{value.dtype}{list(value.shape)}"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    text = name.rsplit("<locals>.", 1)[-1] if isinstance(name, str) else _ADDRESS.sub("", " ".join(repr(value).split()))
    if _ARRAY_VALUES.search(text):  # a `functools.partial` of an array shows its values
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

"""Why a compiled function was traced the last time: what changed since the nearest of its earlier traces.

What a trace depends on, types and not arrays, is recorded while tracing, so calls cost nothing for it. Traces are
compared when `explain_retrace` is called.
"""

import dataclasses
import itertools
import re
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.sharding import AbstractMesh, AxisType
from jax.tree_util import keystr

from ...named._ambient import get_entry_axes
from ...named._array import NamedArray
from ...named._axis import Names, format_axes
from ..mapping._axis_mapping import AxisMapping, current_mapping
from ..specs._leaves import ARRAYS
from ..specs._resolve_spec import get_abstract_mesh
from ._parameters import Parameters
from ._static_args import StaticArgs


_MOST_TRACES = 32
_MOST_CHANGES = 5
_MOST_CHARACTERS = 40
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
_Path: TypeAlias = tuple[str, ...]


class _Trace(NamedTuple):
    """What a trace depended on."""

    static: StaticArgs
    donated: tuple[Any, ...]  # the types of the donated arrays
    kept: tuple[Any, ...]
    mapping: AxisMapping | None
    mesh: AbstractMesh | None
    settings: tuple[Any, ...]


class Traces:
    """The traces of one function: how many there were, and what the last of them depended on.

    Args:
        name: The name of the function.
        parameters: Its parameters.
    """

    def __init__(self, name: str, parameters: Parameters) -> None:
        """Starts without any; see the class."""
        self._name, self._parameters = name, parameters
        self._recent: deque[_Trace] = deque(maxlen=_MOST_TRACES)
        self._is_cleared = False
        self.count = 0

    def record(self, donated: tuple[Any, ...], kept: tuple[Any, ...], static: StaticArgs) -> None:
        """Records what a trace depends on; called inside the traced function."""
        types = tuple(map(jax.typeof, donated)), tuple(map(jax.typeof, kept))
        settings = tuple(getattr(jax.config, name, None) for name in _SETTINGS)
        self._recent.append(_Trace(static, *types, current_mapping(), get_abstract_mesh(), settings))
        self.count += 1

    def clear(self) -> None:
        """Forgets the traces, but not how many there were."""
        self._recent.clear()
        self._is_cleared = True

    def explain_last(self) -> str:
        """Returns one line on the last trace; see `NamedJit.explain_retrace`."""
        if not self.count:
            return f"`{self._name}` has not been traced yet"
        times = "once" if self.count == 1 else f"{self.count} times"
        start = f"`{self._name}` has been traced {times}"
        *earlier, last = list(self._recent) or [None]
        if last is None or not earlier:
            cause = "`clear_cache` made it forget its traces" if self._is_cleared else "that was its first trace"
            return f"{start}; {cause}"
        pairs = [(_find_changes(one, last, self._parameters), _count_differences(one, last)) for one in earlier[::-1]]
        changes, _ = min(pairs, key=lambda pair: (len(pair[0]), pair[1]))
        if not changes:
            return f"{start}; nothing that Axonym sees changed: a setting of JAX did, or JAX's caches were cleared"
        rest = f", and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
        return f"{start}; changed since the nearest earlier trace: {'; '.join(changes[:_MOST_CHANGES])}{rest}"


def _find_changes(before: _Trace, after: _Trace, parameters: Parameters) -> list[str]:
    """Returns what changed between two traces, each in a few words."""
    changes = [*_compare_mappings(before.mapping, after.mapping), *_compare_meshes(before.mesh, after.mesh)]
    for name, one, other in zip(_SETTINGS, before.settings, after.settings, strict=True):
        if one != other:
            changes.append(f"JAX's setting `{name}`: {one} -> {other}")
    return [*changes, *_compare_nodes(_describe_nodes(before, parameters), _describe_nodes(after, parameters))]


def _count_differences(before: _Trace, after: _Trace) -> int:
    """Returns in how many sizes and dtypes the arrays of two traces differ, to break ties."""
    pairs = zip((*before.donated, *before.kept), (*after.donated, *after.kept), strict=False)
    return sum(
        (one.dtype != other.dtype) + sum(a != b for a, b in itertools.zip_longest(one.shape, other.shape))
        for one, other in pairs
    )


def _compare_mappings(before: AxisMapping | None, after: AxisMapping | None) -> Iterator[str]:
    if before == after:
        return
    if before is None or after is None:
        one, other = ("none" if mapping is None else str(dict(mapping)) for mapping in (before, after))
        yield f"active mapping: {one} -> {other}"
        return
    for name in sorted({*before, *after}):
        if before.mesh_axes(name) != after.mesh_axes(name):
            yield f"active mapping: {name!r}: {before.get(name)!r} -> {after.get(name)!r}"
    for option in ("uneven", "fallback"):
        one, other = getattr(before, option), getattr(after, option)
        if one != other:
            yield f"active mapping: {option}: {_format_change(_format_static(one), _format_static(other))}"


def _compare_meshes(before: AbstractMesh | None, after: AbstractMesh | None) -> Iterator[str]:
    if before != after:
        one, other = _format_typed_mesh(before), _format_typed_mesh(after)
        yield f"mesh: {one} -> {other}" if one != other else f"mesh: {one}, of other devices"


def _format_typed_mesh(mesh: AbstractMesh | None) -> str:
    if mesh is None:
        return "none"
    types = dict.fromkeys(one.name for one in mesh.axis_types)
    kinds = types if len(types) < 2 else [one.name for one in mesh.axis_types]
    return f"{format_axes(mesh.axis_names, tuple(mesh.shape.values()))} {', '.join(kinds)}".rstrip()


@dataclasses.dataclass(frozen=True)
class _Array:
    """An array in the arguments of a trace."""

    type: Any
    is_donated: bool
    names: Names | None = None


class _Static:
    """A static value in the arguments of a trace, or None."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static) or type(self.value) is not type(other.value):
            return False
        return bool(self.value == other.value)

    __hash__ = None


@dataclasses.dataclass(frozen=True)
class _Container:
    """A node in the arguments of a trace that has children, and its structure without these."""

    type: type
    structure: Any


_Node: TypeAlias = _Array | _Static | _Container | str


def _describe_nodes(trace: _Trace, parameters: Parameters) -> dict[_Path, _Node]:
    """Returns how each argument was passed and what is known of each node in it, parents before children."""
    donated, kept = (
        [_Array(one, flag) for one in types] for types, flag in ((trace.donated, True), (trace.kept, False))
    )
    args, kwargs = trace.static.merge(donated, kept, map(_Static, trace.static.values))
    nodes: dict[_Path, _Node] = {}
    for at, (name, value) in enumerate(parameters.name_arguments(args, kwargs)):
        nodes[name, ": passed"] = "by position" if at < len(args) else "by keyword"
        nodes.update(_walk_nodes((name,), value))
    return nodes


def _walk_nodes(path: _Path, node: Any) -> Iterator[tuple[_Path, _Node]]:
    if isinstance(node, _Array | _Static):
        yield path, node
    elif node is None:
        yield path, _Static(None)
    elif type(node) is NamedArray and isinstance(node.array, _Array):
        yield path, dataclasses.replace(node.array, names=node.names)
    else:
        pairs, structure = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
        yield path, _Container(type(node), structure)
        children = {keystr(keys): child for keys, child in pairs}
        for key, child in children.items():
            yield from _walk_nodes((*path, key), child)
        for field in dataclasses.fields(node) if dataclasses.is_dataclass(node) else ():
            if f".{field.name}" not in children:
                yield (*path, f".{field.name}"), _Static(getattr(node, field.name, None))


def _compare_nodes(before: dict[_Path, _Node], after: dict[_Path, _Node]) -> Iterator[str]:
    """Yields the changes between the nodes of two traces, except those inside a node that was itself replaced."""
    changed: set[_Path] = set()
    restructured: dict[_Path, _Container] = {}
    for path in {**before, **after}:
        one, other = before.get(path), after.get(path)
        if one == other or any(path[:depth] in changed for depth in range(1, len(path))):
            continue
        if isinstance(one, _Container) and isinstance(other, _Container) and one.type is other.type:
            restructured[path] = one
            continue
        changes = list(_compare_pair("".join(path), one, other))
        changed.update([path] if changes else [])
        yield from changes
    for path, node in restructured.items():
        if not any(one[: len(path)] == path for one in changed):
            yield f"{''.join(path)}: what is static about the {node.type.__name__}"


def _compare_pair(path: str, before: _Node | None, after: _Node | None) -> Iterator[str]:
    if isinstance(before, str) or isinstance(after, str):
        if before is not None and after is not None:
            yield f"{path} {before} -> {after}"
    elif isinstance(before, _Array) and isinstance(after, _Array) and (before.names is None) == (after.names is None):
        yield from _compare_arrays(path, before, after)
    else:
        yield f"{path}: {_format_change(_format_node(before), _format_node(after))}"


def _compare_arrays(path: str, before: _Array, after: _Array) -> Iterator[str]:
    if before.names is not None and after.names is not None and before.names != after.names:
        yield f"{path}: axes {format_axes(before.names)} -> {format_axes(after.names)}"
    if before.type != after.type:
        one, other = _format_type(before.type), _format_type(after.type)
        if one == other:  # the mesh is part of the type on Auto meshes too
            one, other = (f"{one} {_format_mesh_of(array.type)}" for array in (before, after))
        yield f"{path}: {_format_change(one, other)}"
    if before.is_donated != after.is_donated:
        yield f"{path}: {'donated' if after.is_donated else 'no longer donated'}"


def _format_change(before: str, after: str) -> str:
    """Returns two texts with an arrow, also where they look alike, as two functions made by one line do."""
    return f"{before} -> {after}" if before != after else f"{before} -> another {after}"


def _format_node(node: _Array | _Static | _Container | None) -> str:
    """Returns the type of an array, the value of a static leaf, or else the type of a container."""
    if node is None:
        return "nothing"
    if isinstance(node, _Array):
        return _format_type(node.type) + (f" with axes {format_axes(node.names)}" if node.names is not None else "")
    if isinstance(node, _Static):
        return _format_static(node.value)
    name = node.type.__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _format_type(kind: Any) -> str:
    """Returns the type of an array as `float32[8, 4]`, with its Explicit mesh axes as `float32[8@data, 4]`."""
    sharding = getattr(kind, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    is_typed = mesh is not None and AxisType.Explicit in mesh.axis_types
    entries = getattr(sharding, "spec", ()) if is_typed else ()
    sizes = [
        f"{size}@{'+'.join(get_entry_axes(entry))}" if get_entry_axes(entry) else str(size)
        for size, entry in itertools.zip_longest(kind.shape, entries)
    ]
    return f"{'weak ' if getattr(kind, 'weak_type', False) else ''}{kind.dtype}[{', '.join(sizes)}]"


def _format_mesh_of(kind: Any) -> str:
    mesh = getattr(getattr(kind, "sharding", None), "mesh", None)
    return "on no mesh" if mesh is None or mesh.empty else f"on the mesh {_format_typed_mesh(mesh)}"


def _format_static(value: Any) -> str:
    """Returns a static value as text, shortened and without addresses, and never the values of an array."""
    if isinstance(value, ARRAYS):
        return f"{value.dtype}{list(value.shape)}"
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    text = name.rsplit("<locals>.", 1)[-1] if isinstance(name, str) else _ADDRESS.sub("", " ".join(repr(value).split()))
    if _ARRAY_VALUES.search(text):  # a `functools.partial` of an array shows its values
        return f"a {type(value).__name__}"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."

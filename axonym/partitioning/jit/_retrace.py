"""Why a compiled function was traced the last time: what changed since the nearest of its earlier traces.

What a trace depends on, types and not arrays, is recorded while tracing, so calls cost nothing for it. Traces are
compared when `explain_retrace` is called, and for warnings of many of them at the end of each trace.
"""

import dataclasses
import os
import re
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.sharding import AbstractMesh
from jax.tree_util import keystr

from ..._ground.caches import get_static_value, make_static_key
from ..._ground.errors import find_stacklevel
from ..._ground.formats import format_axes
from ...named._array import NamedArray
from ...named._axis import Names
from .._active_mesh import format_mesh_types, get_abstract_mesh
from .._leaves import ARRAY_TYPES
from .._mapping import AxisMapping, current_mapping, current_policy
from ._arguments import Signature, StaticArgs


_MAX_TRACES = 32  # recorded
_WARNING_TRACES = 10  # more than the shapes of training, evaluation and a short last batch cause
_WARNING_VALUES = 4  # of a number: two may be intended, such as those of a flag or of the first step
_MAX_CHANGES = 5  # shown
_MAX_CHARACTERS = 40  # of a static value that is shown
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
    """What a trace depended on."""

    static: StaticArgs
    donated: tuple[Any, ...]  # the types of the donated arrays
    kept: tuple[Any, ...]  # those of the others
    mapping: AxisMapping | None
    policy: Any
    mesh: AbstractMesh | None
    settings: tuple[Any, ...]


class Traces:
    """The traces of one function: how many there were, and what the last of them depended on."""

    def __init__(self, name: str, signature: Signature, warns: bool) -> None:
        self._name, self._signature = name, signature
        self._warns_of_numbers = self._warns_of_count = warns
        self._recent: deque[_Trace] = deque(maxlen=_MAX_TRACES)
        self._is_cleared = False
        self.count = 0

    def record(self, donated: tuple[Any, ...], kept: tuple[Any, ...], static: StaticArgs) -> None:
        """Records what a trace depends on; called inside the traced function."""
        types = tuple(map(jax.typeof, donated)), tuple(map(jax.typeof, kept))
        settings = tuple(getattr(jax.config, name, None) for name in _SETTINGS)
        trace = _Trace(static, *types, current_mapping(), current_policy(), get_abstract_mesh(), settings)
        self._recent.append(trace)
        self.count += 1
        if (self._warns_of_numbers or self._warns_of_count) and os.environ.get("AXONYM_RETRACE_WARNING") != "off":
            self._warn_of_retraces(trace)

    def clear(self) -> None:
        """Forgets the traces, but not how many there were."""
        self._recent.clear()
        self._is_cleared = True

    def _warn_of_retraces(self, last: _Trace) -> None:
        """Warns once of traces that differ by static numbers only, and once if there are many traces."""
        recent = list(self._recent)  # other threads may trace meanwhile
        alike = list(dict.fromkeys(trace.static for trace in recent if _differs_by_numbers(trace, last)))
        if self._warns_of_numbers and len(alike) >= _WARNING_VALUES - 1:
            self._warns_of_numbers = False
            text = self._describe_numbers([*alike, last.static])
        # After the warning of numbers, traces that differ by numbers alone cause no second warning.
        elif self._warns_of_count and len(recent) >= _WARNING_TRACES and (self._warns_of_numbers or not alike):
            self._warns_of_count = False
            text = f"{self.explain_last()}; each trace is compiled anew"
        else:
            return
        option = f"if that is intended, `named_jit({self._name}, retrace_warning=False)` turns this warning off"
        warnings.warn(f"{text}; {option}", RuntimeWarning, stacklevel=find_stacklevel())

    def _describe_numbers(self, calls: Sequence[StaticArgs]) -> str:
        """Returns which numbers differ between calls, each with its values."""
        partition = calls[-1].partition
        described = compress(self._signature.describe_arguments(partition.treedef), partition.static)
        texts = zip(*(map(_format_static, call.values) for call in calls), strict=True)
        paths = [keystr(leaf_info.path) for leaf_info in described]
        values = {path: list(dict.fromkeys(leaf_texts)) for path, leaf_texts in zip(paths, texts, strict=True)}
        varying = [path for path in values if len(values[path]) > 1][:_MAX_CHANGES]
        numbers = ", and of ".join(f"`{path}`: {', '.join(values[path])}" for path in varying)
        arrays = " and ".join(f"`jnp.asarray({path})`" for path in varying)
        return (
            f"`{self._name}` has been traced anew for each value of {numbers}; a Python number is static, so pass "
            f"{arrays} to trace it once"
        )

    def explain_last(self) -> str:
        """Returns one line on the last trace; see `NamedJit.explain_retrace`."""
        if not self.count:
            return f"`{self._name}` has not been traced yet"
        start = f"`{self._name}` has been traced {'once' if self.count == 1 else f'{self.count} times'}"
        recent = list(self._recent)
        if len(recent) < 2:
            cause = "`clear_cache` made it forget its traces" if self._is_cleared else "that was its first trace"
            return f"{start}; {cause}"
        last, *earlier = [_describe_trace(trace, self._signature) for trace in reversed(recent)]
        changes = min((list(_compare_nodes(earlier_nodes, last)) for earlier_nodes in earlier), key=len)
        if not changes:
            return f"{start}; nothing that Axonym sees changed: a setting of JAX did, or JAX's caches were cleared"
        surplus_text = f", and {len(changes) - _MAX_CHANGES} more" if len(changes) > _MAX_CHANGES else ""
        return f"{start}; changed since the nearest earlier trace: {'; '.join(changes[:_MAX_CHANGES])}{surplus_text}"


@dataclasses.dataclass(frozen=True)
class _Array:
    """An array among the arguments."""

    type: Any
    is_donated: bool
    names: Names | None = None

    def __str__(self) -> str:
        text = _format_array_type(self.type)
        return text if self.names is None else f"{text} with axes {format_axes(self.names)}"


def _differs_by_numbers(trace: _Trace, last: _Trace) -> bool:
    """Returns whether two traces differ, and by nothing but numbers among their static leaves."""
    if trace.static is last.static or trace.static.partition is not last.static.partition:
        return False
    if trace._replace(static=last.static) != last:
        return False
    pairs = zip(trace.static.values, last.static.values, strict=True)
    return all(type(a) in (int, float, complex) or make_static_key(a) == make_static_key(b) for a, b in pairs)


@dataclasses.dataclass(frozen=True)
class _Static:
    """A static value or its key, and its type, because `1 == True`."""

    type: type
    value: Any

    def __str__(self) -> str:
        return _format_static(get_static_value(self.value))


@dataclasses.dataclass(frozen=True)
class _Container:
    """A node that has children: its type, and its structure without these."""

    type: type
    structure: Any

    def __str__(self) -> str:
        return f"{'an' if self.type.__name__[0] in 'AEIOUaeiou' else 'a'} {self.type.__name__}"


_Path: TypeAlias = tuple[str, ...]
_Nodes: TypeAlias = dict[_Path, _Array | _Static | _Container]
"""Each node that a trace depends on, parents before their children."""


def _make_static(value: Any) -> _Static:
    return _Static(type(value), value)


def _describe_trace(trace: _Trace, signature: Signature) -> _Nodes:
    """Returns the mapping, the mesh, the settings of JAX and the arguments, as nodes."""
    mapping = trace.mapping
    nodes: _Nodes = {("active mapping",): _make_static(None)}
    if mapping is not None:
        nodes[("active mapping",)] = _Container(AxisMapping, None)
        nodes |= {("active mapping", f": {name!r}"): _make_static(mapping.get(name)) for name in sorted(mapping)}
        nodes["active mapping", ": uneven"] = _make_static(mapping.uneven)
        nodes["active mapping", ": fallback"] = _make_static(mapping.fallback)
    nodes[("policy",)] = _make_static(trace.policy)
    nodes[("mesh",)] = _make_static(trace.mesh)
    for name, value in zip(_SETTINGS, trace.settings, strict=True):
        nodes[(f"JAX's setting `{name}`",)] = _make_static(value)
    donated = [_Array(array_type, True) for array_type in trace.donated]
    kept = [_Array(array_type, False) for array_type in trace.kept]
    static = [_make_static(make_static_key(value)) for value in trace.static.values]
    args, kwargs = trace.static.merge(donated, kept, static)
    for number, (name, value) in enumerate(signature.name_arguments(args, kwargs)):
        nodes.update(_walk_nodes((name,), value))
        nodes[name, " passed by"] = _make_static("position" if number < len(args) else "keyword")
    return nodes


def _walk_nodes(path: _Path, node: Any) -> Iterator[tuple[_Path, _Array | _Static | _Container]]:
    if isinstance(node, _Array | _Static):
        yield path, node
    elif node is None:
        yield path, _make_static(None)
    elif isinstance(node, NamedArray) and isinstance(node.array, _Array):
        yield path, dataclasses.replace(node.array, names=node.names)
    else:
        pairs, structure = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
        yield path, _Container(type(node), structure)
        children = {keystr(keys): child for keys, child in pairs}
        for key, child in children.items():
            yield from _walk_nodes((*path, key), child)
        for field in dataclasses.fields(node) if dataclasses.is_dataclass(node) else ():
            if f".{field.name}" not in children:
                yield (*path, f".{field.name}"), _make_static(getattr(node, field.name, None))


def _compare_nodes(before: _Nodes, after: _Nodes) -> Iterator[str]:
    """Yields the changes between two traces, except those inside a node that was itself replaced."""
    changed: set[_Path] = set()
    restructured: dict[_Path, _Container] = {}
    for path in {**before, **after}:
        old, new = before.get(path), after.get(path)
        if old == new or any(path[:depth] in changed for depth in range(1, len(path))):
            continue
        if isinstance(old, _Container) and isinstance(new, _Container) and old.type is new.type:
            restructured[path] = old
            continue
        changed.add(path)
        if isinstance(old, _Array) and isinstance(new, _Array) and (old.names is None) == (new.names is None):
            yield from _compare_arrays("".join(path), old, new)
        else:
            yield f"{''.join(path)}: {_format_trace_change(old or 'nothing', new or 'nothing')}"
    for path, node in restructured.items():
        if not any(changed_path[: len(path)] == path for changed_path in changed):
            yield f"{''.join(path)}: static fields of the {node.type.__name__}"


def _compare_arrays(path: str, before: _Array, after: _Array) -> Iterator[str]:
    if before.names is not None and after.names is not None and before.names != after.names:
        yield f"{path}: axes {format_axes(before.names)} -> {format_axes(after.names)}"
    if before.type != after.type:
        before_text, after_text = _format_array_type(before.type), _format_array_type(after.type)
        if before_text == after_text:  # the mesh is part of the type on Auto meshes too
            before_text = f"{before_text} on {_format_static(before.type.sharding.mesh)}"
            after_text = f"{after_text} on {_format_static(after.type.sharding.mesh)}"
        yield f"{path}: {_format_trace_change(before_text, after_text)}"
    if before.is_donated != after.is_donated:
        yield f"{path}: {'donated' if after.is_donated else 'no longer donated'}"


def _format_array_type(array_type: Any) -> str:
    """Returns a type as JAX writes it, with words in place of the `~` of weak types."""
    text = str(array_type)
    return f"{text[1:]} (weakly typed)" if text.startswith("~") else text


def _format_trace_change(before: Any, after: Any) -> str:
    """Returns `before -> after`, or `before -> another after` if both texts are the same, as of two lambdas."""
    return f"{before} -> {after}" if str(before) != str(after) else f"{before} -> another {after}"


def _format_static(value: Any) -> str:
    """Returns a static value as text, shortened and without addresses, and never the values of an array."""
    if isinstance(value, ARRAY_TYPES):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, AbstractMesh):
        return format_mesh_types(value)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    text = name.rsplit("<locals>.", 1)[-1] if isinstance(name, str) else _ADDRESS.sub("", " ".join(repr(value).split()))
    if _ARRAY_VALUES.search(text):  # a `functools.partial` of an array shows its values
        return f"a {type(value).__name__}"
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 3]}..."

"""The canonical text of a value, the same in every process, by which processes compare values.

Python's own `hash` differs between processes, and a `repr` depends on the order of entries and shows addresses.
"""

import enum
import functools
import hashlib
import types
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), PartitionSpec, np.dtype)
_CONTEXT = 60  # characters shown before the first difference
_LENGTH = 240  # characters shown of a text
_PIECE = 1 << 16  # characters of a long text that are compared at once

Writer: TypeAlias = Callable[[Any], str]


def write_canonical_text(value: Any, parents: tuple[int, ...] = ()) -> str:
    """Returns the canonical text: equal values have equal texts, whatever the order of their entries.

    Arrays are written as dtype, shape and a digest of their elements, functions and classes as names, other objects as
    what `pickle` would save of them. An object without content that can be compared raises a TypeError.

    Args:
        value: Plain values, containers, arrays, meshes, shardings, and objects that can be pickled.
        parents: The ids of the objects that contain this one.
    """
    if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
        return repr(value)
    if id(value) in parents:
        return "<itself>"
    write = functools.partial(write_canonical_text, parents=(*parents, id(value)))
    for kinds, write_kind in _WRITERS:
        if isinstance(value, kinds):
            return write_kind(value, write)
    if hasattr(value, "__qualname__") and hasattr(value, "__module__"):
        owner = getattr(value, "__self__", None)  # of a method
        of = "" if owner is None or isinstance(owner, (type, types.ModuleType)) else f" of {write(owner)}"
        return f"{value.__module__}.{value.__qualname__}{of}"
    return _write_object(value, write)


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def hash_pieces(text: str) -> list[str]:
    """Returns a short digest of each piece of a text, with which processes find the piece that differs."""
    return [hash_text(text[start : start + _PIECE])[:16] for start in range(0, len(text), _PIECE)]


def find_different_piece(digests: Sequence[Sequence[str]]) -> int:
    """Returns the first piece that is not the same in all texts."""
    return next((i for i, piece in enumerate(zip_longest(*digests)) if len(set(piece)) > 1), 0)


def cut_piece(text: str, piece: int) -> str:
    """Returns a piece of a text with enough on both sides for an excerpt."""
    return text[max(0, piece * _PIECE - _CONTEXT) : (piece + 1) * _PIECE + _LENGTH]


def cut_excerpts(texts: Sequence[str], piece: int = 0) -> list[str]:
    """Returns an excerpt of each text around the first difference; the texts may be results of `cut_piece`."""
    longest = max(map(len, texts))
    same = next((i for i, chars in enumerate(zip_longest(*texts)) if len(set(chars)) > 1), longest)
    start = max(0, same - _CONTEXT)
    end = start + _LENGTH
    return [("..." if start or piece else "") + text[start:end] + ("..." if len(text) > end else "") for text in texts]


def _write_mapping(value: Mapping[Any, Any], write: Writer) -> str:
    entries = sorted(f"{write(key)}: {write(value[key])}" for key in value)
    # The options of an `AxisMapping`.
    options = [f"{name}={write(getattr(value, name))}" for name in ("fallback", "uneven") if hasattr(value, name)]
    return f"{_format_class(value)}{{{', '.join(entries + options)}}}"


def _write_sequence(value: Sequence[Any], write: Writer) -> str:
    opening, closing = "[]" if isinstance(value, list) else "()"
    return f"{_format_class(value)}{opening}{', '.join(map(write, value))}{closing}"


def _format_class(value: Any) -> str:
    """Returns the name of an object's class as a prefix, "" for a built-in one."""
    return "" if type(value).__module__ == "builtins" else type(value).__qualname__


def _write_array(value: Any, write: Writer) -> str:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        with jax.set_mesh(None):  # no other process takes part
            data = jax.random.key_data(value)
        return f"key({jax.random.key_impl(value)}, {write(data)})"
    shape = _format_dtype_and_shape(value)
    if isinstance(value, jax.Array) and not value.is_fully_addressable and not value.is_fully_replicated:
        return f"array({shape}, {write(value.sharding)})"  # no process has all of it
    if isinstance(value, np.ma.MaskedArray):
        return f"masked({write(value.data)}, {write(np.ma.getmaskarray(value))})"
    data = np.asarray(value)
    if data.dtype.hasobject:
        return f"array({shape}, {write(data.tolist())})"
    return f"array({shape}, {hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()[:16]})"


def _format_dtype_and_shape(value: Any) -> str:
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def _write_mesh(value: Mesh | AbstractMesh, write: Writer) -> str:
    axes = ", ".join(
        f"{name}: {size} {kind.name}" for (name, size), kind in zip(value.shape.items(), value.axis_types, strict=True)
    )
    devices = ", ".join(map(write, value.devices.flat)) if isinstance(value, Mesh) else "abstract"
    return f"mesh({axes}; {devices})"


def _write_object(value: Any, write: Writer) -> str:
    """Writes any other object: its class, and what `pickle` would save of it."""
    try:
        saved = value.__reduce_ex__(2)
    except Exception:
        saved = None
    if saved is None:
        raise TypeError(
            f"an object of type `{type(value).__qualname__}` has no content that another process could compare"
        )
    if isinstance(saved, str):
        return saved
    return f"{type(value).__qualname__}({write([list(part) if hasattr(part, '__next__') else part for part in saved])})"


_WRITERS: tuple[tuple[Any, Callable[[Any, Writer], str]], ...] = (
    (enum.Enum, lambda value, write: str(value)),
    (Mapping, _write_mapping),
    ((list, tuple), _write_sequence),
    ((set, frozenset), lambda value, write: f"{_format_class(value)}{{{', '.join(sorted(map(write, value)))}}}"),
    ((jax.Array, np.ndarray, np.generic), _write_array),
    (jax.ShapeDtypeStruct, lambda value, write: f"shape({_format_dtype_and_shape(value)}, {write(value.sharding)})"),
    ((Mesh, AbstractMesh), _write_mesh),
    (jax.Device, lambda value, write: f"{value.platform}:{value.id}"),
    (NamedSharding, lambda value, write: f"sharding({value.spec!r}, {value.memory_kind}, {write(value.mesh)})"),
    (jax.tree_util.PyTreeDef, lambda value, write: str(value)),
    (functools.partial, lambda value, write: f"partial({write([value.func, value.args, value.keywords])})"),
)

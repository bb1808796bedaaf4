"""A text that says what a value is, the same in every process: what processes compare to find out whether they agree.

Python's own `hash` differs from process to process, and a `repr` depends on the order of entries and shows addresses.
"""

import enum
import functools
import hashlib
import types
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), PartitionSpec, np.dtype)
_CONTEXT = 60  # characters shown before the first difference
_LENGTH = 240  # characters shown of a text
_PIECE = 1 << 16  # characters of a long text that are compared at once


def canonical(value: Any, inside: tuple[int, ...] = ()) -> str:
    """Returns the text: equal values give equal texts, whatever the order of their entries.

    Arrays are there by size, type and a digest of their elements; functions and classes by name; other objects by what
    `pickle` would save of them.

    Args:
        value: Anything made of plain values, containers, arrays, meshes, shardings and objects that can be pickled.
        inside: The objects this one is a part of.

    Raises:
        TypeError: If an object has no content that another process could compare.
    """
    if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
        return repr(value)
    if id(value) in inside:
        return "<itself>"
    part = functools.partial(canonical, inside=(*inside, id(value)))
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            return write(value, part)
    if hasattr(value, "__qualname__") and hasattr(value, "__module__"):
        owner = getattr(value, "__self__", None)  # of a method
        of = "" if owner is None or isinstance(owner, (type, types.ModuleType)) else f" of {part(owner)}"
        return f"{value.__module__}.{value.__qualname__}{of}"
    return _object(value, part)


def digest(text: str) -> str:
    """Returns a short text that differs for other texts."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def piece_digests(text: str) -> list[str]:
    """Returns a short digest of each piece of a text, by which processes find the piece in which theirs differ."""
    return [digest(text[start : start + _PIECE])[:16] for start in range(0, len(text), _PIECE)]


def piece_that_differs(digests: Sequence[Sequence[str]]) -> int:
    """Returns which piece is the first that is not the same in all texts."""
    pieces = enumerate(zip_longest(*digests))
    return next((at for at, its in pieces if len(set(its)) > 1), 0)


def around_piece(text: str, piece: int) -> str:
    """Returns a piece of a text with enough on both sides for an excerpt."""
    return text[max(0, piece * _PIECE - _CONTEXT) : (piece + 1) * _PIECE + _LENGTH]


def excerpts(texts: Sequence[str], piece: int = 0) -> list[str]:
    """Shortens texts, or what is around a piece of each, to the place where the first of them differs from another."""
    firsts = [_first_difference(texts[0], other) for other in texts[1:]]
    start = max(0, min(firsts, default=0) - _CONTEXT)
    end = start + _LENGTH
    return [("..." if start or piece else "") + text[start:end] + ("..." if len(text) > end else "") for text in texts]


def _first_difference(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, its) in pairs if mine != its), min(len(one), len(other)))


def _kind(value: Any) -> str:
    """Returns the name of an object's class as a prefix, nothing for Python's own."""
    return "" if type(value).__module__ == "builtins" else type(value).__qualname__


def _mapping(value: Mapping[Any, Any], part: Callable[[Any], str]) -> str:
    entries = sorted(f"{part(key)}: {part(value[key])}" for key in value)
    # What a mapping from names to mesh axes says besides its entries.
    options = [f"{name}={part(getattr(value, name))}" for name in ("fallback", "uneven") if hasattr(value, name)]
    return f"{_kind(value)}{{{', '.join(entries + options)}}}"


def _sequence(value: Sequence[Any], part: Callable[[Any], str]) -> str:
    opening, closing = "[]" if isinstance(value, list) else "()"
    return f"{_kind(value)}{opening}{', '.join(map(part, value))}{closing}"


def _set(value: frozenset[Any], part: Callable[[Any], str]) -> str:
    return f"{_kind(value)}{{{', '.join(sorted(map(part, value)))}}}"


def _array(value: Any, part: Callable[[Any], str]) -> str:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        with jax.set_mesh(None):  # no other process takes part
            data = jax.random.key_data(value)
        return f"key({jax.random.key_impl(value)}, {_array(data, part)})"
    about = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, jax.Array) and not value.is_fully_addressable and not value.is_fully_replicated:
        return f"array({about}, {part(value.sharding)})"  # no process has all of it
    if isinstance(value, np.ma.MaskedArray):
        return f"masked({_array(value.data, part)}, {_array(np.ma.getmaskarray(value), part)})"
    data = np.asarray(value)
    if data.dtype.hasobject:
        return f"array({about}, {part(data.tolist())})"
    return f"array({about}, {hashlib.sha256(np.ascontiguousarray(data).tobytes()).hexdigest()[:16]})"


def _shape(value: jax.ShapeDtypeStruct, part: Callable[[Any], str]) -> str:
    return f"shape({value.dtype}[{','.join(map(str, value.shape))}], {part(value.sharding)})"


def _mesh(value: Mesh | AbstractMesh, part: Callable[[Any], str]) -> str:
    axes = ", ".join(
        f"{name}: {size} {kind.name}" for (name, size), kind in zip(value.shape.items(), value.axis_types, strict=True)
    )
    devices = ", ".join(map(_device, value.devices.flat)) if isinstance(value, Mesh) else "abstract"
    return f"mesh({axes}; {devices})"


def _device(value: Any, part: Any = None) -> str:
    return f"{value.platform}:{value.id}"


def _sharding(value: NamedSharding, part: Callable[[Any], str]) -> str:
    return f"sharding({value.spec!r}, {value.memory_kind}, {part(value.mesh)})"


def _object(value: Any, part: Callable[[Any], str]) -> str:
    """Returns the text of any other object: its class, and what is saved of it."""
    try:
        saved = value.__reduce_ex__(2)
    except Exception:
        saved = None
    if saved is None:
        raise TypeError(
            f"an object of type `{type(value).__qualname__}` has no content that another process could compare"
        )
    return str(saved) if isinstance(saved, str) else f"{type(value).__qualname__}({part(list(map(_listed, saved)))})"


def _listed(saved: Any) -> Any:
    return list(saved) if hasattr(saved, "__next__") else saved


_WRITERS: tuple[tuple[Any, Callable[[Any, Callable[[Any], str]], str]], ...] = (
    (enum.Enum, lambda value, part: str(value)),
    (Mapping, _mapping),
    ((list, tuple), _sequence),
    ((set, frozenset), _set),
    ((jax.Array, np.ndarray, np.generic), _array),
    (jax.ShapeDtypeStruct, _shape),
    ((Mesh, AbstractMesh), _mesh),
    (jax.Device, _device),
    (NamedSharding, _sharding),
    (jax.tree_util.PyTreeDef, lambda value, part: str(value)),
    (functools.partial, lambda value, part: f"partial({part([value.func, value.args, value.keywords])})"),
)

"""A text that says what a value is, the same in every process: what processes compare to find out whether they agree.

Python's own `hash` differs from process to process, and a `repr` depends on the order of entries and shows addresses.
"""

import enum
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec


_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), PartitionSpec, np.dtype)
_CONTEXT = 60  # characters shown before the first difference


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
        return f"{value.__module__}.{value.__qualname__}"
    return _object(value, part)


def digest(text: str) -> str:
    """Returns a short text that differs for other texts."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def excerpts(texts: Sequence[str], length: int = 240) -> list[str]:
    """Shortens texts to the place where the first of them differs from another."""
    firsts = [_first_difference(texts[0], other) for other in texts[1:]]
    start = max(0, min(firsts, default=0) - _CONTEXT)
    return [
        ("..." if start else "") + text[start : start + length] + ("..." if len(text) > start + length else "")
        for text in texts
    ]


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
    data = np.asarray(value)
    if data.dtype == object:
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

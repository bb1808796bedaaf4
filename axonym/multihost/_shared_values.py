"""Values in all processes: `broadcast_from_host_zero` sends one, `assert_same_on_all_hosts` compares them."""

import enum
import functools
import hashlib
import io
import json
import pickle
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ._rendezvous import Rendezvous, as_seconds, check_rendezvous_name, format_processes, get_coordination_store


T = TypeVar("T")

Writer: TypeAlias = Callable[[Any], str]

# Values whose `repr` is the same in all processes.
_REPR_TYPES = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), PartitionSpec, np.dtype)
_EXCERPT_LEAD = 60  # characters shown before the first difference
_EXCERPT_LENGTH = 240  # characters shown of each text
_MAX_TEXT = 1 << 20  # characters of a text that are sent to show a difference
_MAX_SHOWN_VALUES = 4  # different values that an error shows


def broadcast_from_host_zero(tree: T, *, timeout: float = 200) -> T:
    """Returns the tree of process 0 in all processes.

    The other processes may pass anything, such as None. Once all processes have arrived, the tree is sent by
    `jax.experimental.multihost_utils.broadcast_one_to_all`, which needs as many devices in each of them.

    Args:
        tree: On process 0, any tree of arrays, named arrays, random keys and Python objects that can be pickled, such
            as a name or a dict of settings.
        timeout: How long to wait for the other processes, in seconds.

    Returns:
        An exact copy of the tree of process 0: NumPy arrays stay NumPy arrays, and JAX arrays are created with
            `jnp.asarray`, across all processes if a mesh is active. With one process, the tree itself.

    Raises:
        ValueError: If an array of process 0 is sharded over several processes.
        TypeError: If something in the tree of process 0 cannot be pickled.
        TimeoutError: If a process does not arrive in time. The message names it.

    Example:
        >>> import axonym as nym
        >>> nym.broadcast_from_host_zero({"run": "green-fox", "seed": 17})
        {'run': 'green-fox', 'seed': 17}
    """
    seconds = as_seconds(timeout)
    store = get_coordination_store()
    if store is None:
        return tree
    rendezvous = Rendezvous(store, "broadcast", "tree", seconds, "`broadcast_from_host_zero`")
    payload, error, header = b"", None, ""
    if store.process == 0:
        payload, error = _write_tree(tree)
        # Tell the others about an error: they would wait in vain if this process raised alone.
        header = json.dumps([len(payload), type(error).__name__, str(error)])
    rendezvous.wait_for_all(header, error)
    size, kind, message = json.loads(rendezvous.read_value(0))
    rendezvous.leave()
    if kind in _ERROR_CLASSES:
        raise _ERROR_CLASSES[kind](message) from (None if error is None else error.__cause__)
    data = np.frombuffer(payload, np.uint8) if payload else np.zeros(size, np.uint8)
    with jax.set_mesh(None):
        data = multihost_utils.broadcast_one_to_all(data)
    return pickle.loads(np.asarray(data).tobytes())  # in process 0 too, so that all processes have equal copies


class _ShardedArrayError(ValueError):
    """Raised for an array of which process 0 does not have all elements."""


# What all processes raise, by the name of the class that process 0 sends.
_ERROR_CLASSES: dict[str, type[Exception]] = {"TypeError": TypeError, "_ShardedArrayError": ValueError}


def _write_tree(tree: Any) -> tuple[bytes, Exception | None]:
    """Returns a tree as bytes, and an error if it cannot be written."""
    file = io.BytesIO()
    try:
        _TreePickler(file, pickle.HIGHEST_PROTOCOL).dump(tree)
    except _ShardedArrayError as error:
        return b"", error
    except Exception as error:  # raised by the objects' own methods
        failure = TypeError(f"the tree of process 0 cannot be sent to the others: {_format_cause(error)}")
        failure.__cause__ = error
        return b"", failure
    return file.getvalue(), None


def _format_cause(error: Exception) -> str:
    """Writes an error, with its type unless that is obvious."""
    is_obvious = isinstance(error, (TypeError, AttributeError, pickle.PicklingError)) and str(error)
    return str(error) if is_obvious else f"{type(error).__name__}: {error}"


class _TreePickler(pickle.Pickler):
    """Pickles the JAX arrays of a tree, at any depth, without their devices."""

    def reducer_override(self, obj: Any) -> Any:
        """Returns how to restore a JAX array; see `pickle`."""
        if not isinstance(obj, jax.Array):
            return NotImplemented
        if not obj.is_fully_addressable and not obj.is_fully_replicated:
            raise _ShardedArrayError(
                f"an array of shape {obj.shape} is sharded over several processes, so process 0 cannot send it, and "
                "need not: all processes have it"
            )
        if jnp.issubdtype(obj.dtype, jax.dtypes.prng_key):
            with jax.set_mesh(None):  # an active mesh would need the other processes
                return _restore_array, (np.asarray(jax.random.key_data(obj)), str(jax.random.key_impl(obj)))
        return _restore_array, (np.asarray(obj), None)


def _restore_array(data: np.ndarray, impl: str | None) -> jax.Array:
    """Makes a JAX array, of random keys if there is an `impl`."""
    array = jnp.asarray(data)
    return array if impl is None else jax.random.wrap_key_data(array, impl=impl)


def write_canonical_text(value: Any, parents: tuple[int, ...] = ()) -> str:
    """Returns the canonical text: equal values have equal texts, whatever the order of their entries.

    Arrays are written as dtype, shape and a digest of their elements, functions and classes as names, other objects as
    what `pickle` would save of them. An object without content that can be compared raises a TypeError.

    Args:
        value: Plain values, containers, arrays, meshes, shardings, and objects that can be pickled.
        parents: The ids of the objects that contain this one.
    """
    if isinstance(value, _REPR_TYPES) and not isinstance(value, enum.Enum):
        return repr(value)
    if id(value) in parents:
        return "<itself>"
    write = functools.partial(write_canonical_text, parents=(*parents, id(value)))
    for kinds, write_kind in _WRITERS:
        if isinstance(value, kinds):
            return write_kind(value, write)
    if hasattr(value, "__qualname__") and hasattr(value, "__module__"):
        owner = getattr(value, "__self__", None)  # of a method
        owner_text = "" if owner is None or isinstance(owner, (type, types.ModuleType)) else f" of {write(owner)}"
        return f"{value.__module__}.{value.__qualname__}{owner_text}"
    return _write_object(value, write)


def _cut_excerpts(texts: Sequence[str]) -> list[str]:
    """Returns an excerpt of each text around the first difference."""
    differences = (i for i, letters in enumerate(zip_longest(*texts)) if len(set(letters)) > 1)
    start = max(0, next(differences, 0) - _EXCERPT_LEAD)
    end = start + _EXCERPT_LENGTH
    return [("..." if start else "") + text[start:end] + ("..." if len(text) > end else "") for text in texts]


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
        with jax.set_mesh(None):  # an active mesh would need the other processes
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
    if isinstance(saved, str):  # the name of a global
        return saved
    # Of a subclass of list or dict, `pickle` saves the items as an iterator.
    return f"{type(value).__qualname__}({write([list(part) if hasattr(part, '__next__') else part for part in saved])})"


# The first kind that fits counts, so an `IntEnum` is no number and a `NamedTuple` is a tuple.
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


def assert_same_on_all_hosts(value: Any, name: str | None = None, *, timeout: float = 200) -> None:
    """Raises in every process unless all of them call this with equal values.

    Values are compared by content, not by Python's `hash`: mappings regardless of the order of entries, arrays by their
    elements, functions by name, other objects by what `pickle` would save.

    Args:
        value: A mapping, a mesh, a seed, settings, a tree of arrays or of specs, and the like.
        name: The name in the error. Calls with the same name are compared with each other; calls without a name in
            order.
        timeout: How long to wait for the other processes, in seconds.

    Raises:
        ValueError: If the values differ. The message shows which processes have which value.
        TypeError: If the value of a process has no content that can be compared.
        TimeoutError: If a process does not arrive in time. The message names it.

    Example:
        >>> import axonym as nym
        >>> nym.assert_same_on_all_hosts({"batch": "data"}, "mapping")
    """
    seconds = as_seconds(timeout)
    check_rendezvous_name(name)
    store = get_coordination_store()
    label = "`assert_same_on_all_hosts`" + ("" if name is None else f" of {name!r}")
    if store is None:
        _, error = _fingerprint_value(value)
        if error is not None:
            raise error
        return
    suffix, key = ("", name) if name else ("-unnamed", "all")
    # Made before the value's own methods run: if they raise, this call is counted as in the other processes.
    digest_rendezvous = Rendezvous(store, f"same{suffix}", key, seconds, label)
    text, error = _fingerprint_value(value)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    message = json.dumps([digest, None if error is None else str(error)])
    digests, problems = zip(*map(json.loads, digest_rendezvous.exchange_values(message, error)), strict=True)
    for process, problem in enumerate(problems):
        if problem is not None:
            cause = None if error is None else error.__cause__
            raise TypeError(f"{label} on process {process}: {problem}") from cause
    processes_by_digest: dict[str, list[int]] = {}
    for process, digest in enumerate(digests):
        processes_by_digest.setdefault(digest, []).append(process)
    # The value that most processes have comes first in the error.
    groups = sorted(processes_by_digest.values(), key=lambda processes: (-len(processes), processes[0]))
    if len(groups) == 1:
        return
    # All processes know by now that they differ, so all meet again to show it.
    shown_processes = [processes[0] for processes in groups[:_MAX_SHOWN_VALUES]]
    text_rendezvous = Rendezvous(store, f"texts{suffix}", key, seconds, label)
    text_rendezvous.extend_deadline(digest_rendezvous.deadline)
    shown_text = text[:_MAX_TEXT] if store.process in shown_processes else ""
    texts = text_rendezvous.exchange_values(json.dumps(shown_text))
    excerpts = _cut_excerpts([json.loads(texts[process]) for process in shown_processes])
    parts = [
        f"{format_processes(processes)} {'has' if len(processes) == 1 else 'have'} {excerpt}"
        for processes, excerpt in zip(groups, excerpts, strict=False)
    ]
    if len(groups) > len(parts):
        parts.append(f"and {len(groups) - len(parts)} more")
    subject = "a value" if name is None else repr(name)
    raise ValueError(f"{subject} differs between processes: {'; '.join(parts)}")


def _fingerprint_value(value: Any) -> tuple[str, TypeError | None]:
    """Returns the text by which a value is compared, or an error and a text that is equal to no other."""
    try:
        return write_canonical_text(value), None
    except TypeError as error:
        return f"{uuid.uuid4()}", error
    except Exception as error:  # raised by the value's own methods
        failure = TypeError(f"a value of type `{type(value).__qualname__}` cannot be compared: {_format_cause(error)}")
        failure.__cause__ = error
        return f"{uuid.uuid4()}", failure

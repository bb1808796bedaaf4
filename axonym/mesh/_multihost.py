"""Several processes that work as one: barriers, values from the first process, and checks that all have the same.

All of it goes through the coordination service (`_coordination.py`) and so has a timeout: a process that does not come
is an error with its number in it, and never a hang. With one process there is nothing to wait for.
"""

import base64
import json
import math
import pickle
import uuid
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from ._coordination import Coordination, coordination, listed_processes
from ._fingerprint import canonical, digest, excerpts


T = TypeVar("T")

_SMALL = 1 << 20  # bytes; what is larger goes from device to device
_SHOWN = 1 << 16  # characters of a value that the others see if they differ
_GROUPS = 4  # how many different values an error shows


def barrier_sync(timeout: float = 200, name: str | None = None) -> None:
    """Waits until every process has come here.

    With one process it returns at once. Barriers of one name meet, as often as it is used: the second call of a process
    meets the second call of the others. Barriers without a name meet in the order of calls.

    Args:
        timeout: How long to wait, in seconds, at least a millisecond.
        name: The name of this barrier.

    Raises:
        TypeError: If the timeout is not a number or the name not a string.
        ValueError: If the timeout is not finite or shorter than a millisecond, or the name is empty.
        TimeoutError: If a process does not come in time. The message names it, and every process that waits gets it;
            one that comes later is told at once that the others have given up.

    Example:
        >>> import axonym as nym
        >>> nym.barrier_sync(timeout=60, name="checkpoint written")
    """
    seconds = checked_seconds(timeout)
    checked_name(name)
    service = coordination()
    if service is None:
        return
    if name is not None:
        return service.meet("barrier", name, seconds, f"barrier {name!r}").leave()
    call = service.calls("unnamed barriers") + 1
    hint = "; unnamed barriers meet in the order of calls, so give them names if processes may differ in that"
    service.meet("unnamed", "barrier", seconds, f"an unnamed barrier (call {call} of this process)", hint).leave()


def broadcast_from_host_zero(tree: T, *, timeout: float = 200) -> T:
    """Gives all processes what process 0 has.

    What the other processes hand in does not matter, None will do. Up to a megabyte goes through the coordination
    service; more goes from device to device.

    Args:
        tree: On process 0, any tree of arrays, named arrays, random keys and Python objects that `pickle` knows, such
            as a name or a dict of settings.
        timeout: How long to wait for the other processes, in seconds.

    Returns:
        A copy of the tree of process 0, bit by bit: NumPy arrays where that has NumPy arrays, and JAX arrays as
            `jnp.asarray` makes them here, of all processes if a mesh is set. With one process, the tree itself.

    Raises:
        ValueError: If an array of process 0 is divided over several processes.
        TypeError: If something in the tree of process 0 cannot be pickled.
        TimeoutError: If a process does not come in time. The message names it.

    Example:
        >>> import axonym as nym
        >>> nym.broadcast_from_host_zero({"run": "green-fox", "seed": 17})
        {'run': 'green-fox', 'seed': 17}
    """
    seconds = checked_seconds(timeout)
    service = coordination()
    if service is None:
        return tree
    payload, problem = _packed(tree) if service.process == 0 else (b"", None)
    small = len(payload) <= _SMALL
    # Whoever fails says so to all: a process that raised alone would leave the others waiting.
    note = {"problem": problem, "size": len(payload), "data": base64.b64encode(payload).decode() if small else None}
    value = json.dumps(note) if service.process == 0 else ""
    meeting = service.meet("broadcast", "tree", seconds, "`broadcast_from_host_zero`", value=value)
    try:
        told = json.loads(meeting.value_of(0))
    finally:
        meeting.leave()
    if told["problem"] is not None:
        kind, message = told["problem"]
        raise (ValueError if kind == "ValueError" else TypeError)(message)
    if told["data"] is not None:
        return _unpacked(base64.b64decode(told["data"]))
    mine = np.frombuffer(payload, np.uint8) if payload else np.zeros(told["size"], np.uint8)
    return _unpacked(np.asarray(multihost_utils.broadcast_one_to_all(mine)).tobytes())


def assert_same_on_all_hosts(value: Any, name: str | None = None, *, timeout: float = 200) -> None:
    """Raises in every process unless all of them call this with equal values.

    Compared is what the values say, not Python's `hash`: equal mappings are equal whatever the order of their entries,
    arrays by their elements, functions by name, other objects by what `pickle` would save of them.

    Args:
        value: A mapping, a mesh, a seed, settings, a tree of arrays or of specs, and the like.
        name: What the error calls it. Calls of one name are compared with each other; calls without a name in order.
        timeout: How long to wait for the other processes, in seconds.

    Raises:
        ValueError: If the values differ. The message says which processes have what.
        TypeError: If the value of a process has no content that can be compared.
        TimeoutError: If a process does not come in time. The message names it.

    Example:
        >>> import axonym as nym
        >>> nym.assert_same_on_all_hosts({"batch": "data"}, "mapping")
    """
    seconds = checked_seconds(timeout)
    checked_name(name)
    text, problem = _compared(value)
    service = coordination()
    if problem is not None and service is None:
        raise TypeError(problem)
    if service is None:
        return
    what = "`assert_same_on_all_hosts`" + ("" if name is None else f" of {name!r}")
    digests = _gathered(service, "same", name, seconds, what, digest(text))
    if len(set(digests)) == 1 and problem is None:
        return
    texts = _gathered(service, "texts", name, seconds, what, json.dumps([text[:_SHOWN], problem]))
    told = [json.loads(other) for other in texts]
    failed = next(((process, why) for process, (_, why) in enumerate(told) if why is not None), None)
    if failed is not None:
        raise TypeError(f"{what} on process {failed[0]}: {failed[1]}")
    raise ValueError(_difference("a value" if name is None else repr(name), digests, [text for text, _ in told]))


def _compared(value: Any) -> tuple[str, str | None]:
    """Returns the text by which a value is compared, and why there is none; such a text equals no other."""
    try:
        return canonical(value), None
    except TypeError as error:
        return f"{uuid.uuid4()}", str(error)


def _gathered(service: Coordination, kind: str, name: str | None, seconds: float, what: str, value: str) -> list[str]:
    """Returns what each process came with to a meeting."""
    meeting = service.meet(kind if name else f"{kind}-unnamed", name or "all", seconds, what, value=value)
    try:
        return meeting.values()
    finally:
        meeting.leave()


def _difference(what: str, digests: list[str], texts: list[str]) -> str:
    """Says which processes have what, those first that are the most."""
    groups = {one: [process for process, its in enumerate(digests) if its == one] for one in dict.fromkeys(digests)}
    ordered = sorted(groups.values(), key=lambda processes: (-len(processes), processes[0]))[:_GROUPS]
    shown = excerpts([texts[processes[0]] for processes in ordered])
    parts = [
        f"{listed_processes(processes)} {'has' if len(processes) == 1 else 'have'} {text}"
        for processes, text in zip(ordered, shown, strict=True)
    ]
    more = len(groups) - len(ordered)
    return f"{what} differs between processes: {'; '.join(parts)}" + (f"; and {more} more" if more else "")


def checked_seconds(timeout: Any, argument: str = "timeout") -> float:
    """Returns a time in seconds, or raises an error that says what is wrong with it."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.integer, np.floating)):
        raise TypeError(f"`{argument}` is a number of seconds, not {timeout!r}")
    if not math.isfinite(timeout) or timeout < 0.001:
        raise ValueError(f"`{argument}` is a number of seconds, finite and at least 0.001, not {timeout!r}")
    return float(timeout)


def checked_name(name: Any) -> None:
    """Raises unless a name is None or a text."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"`name` is a string or None, not {name!r}")
    if name == "":
        raise ValueError("`name` is empty; give a name, or None for none")


class _Sent(NamedTuple):
    """A JAX array on its way: its elements, and how random keys are made if it holds keys."""

    data: np.ndarray
    impl: str | None


def _packed(tree: Any) -> tuple[bytes, tuple[str, str] | None]:
    """Returns a tree as bytes; or else none, and the kind of error and its message."""
    try:
        return pickle.dumps(jax.tree.map(_sent, tree)), None
    except ValueError as error:
        return b"", ("ValueError", str(error))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        return b"", ("TypeError", f"the tree of process 0 cannot be sent to the others: {error}")


def _sent(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    if not leaf.is_fully_addressable and not leaf.is_fully_replicated:
        raise ValueError(
            f"an array of shape {leaf.shape} is divided over several processes, so process 0 cannot send it, and need "
            "not: all processes have it"
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        with jax.set_mesh(None):  # no other process takes part
            return _Sent(np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
    return _Sent(np.asarray(leaf), None)


def _unpacked(payload: bytes) -> Any:
    return jax.tree.map(_received, pickle.loads(payload), is_leaf=lambda x: isinstance(x, _Sent))


def _received(leaf: Any) -> Any:
    if not isinstance(leaf, _Sent):
        return leaf
    array = jnp.asarray(leaf.data)
    return array if leaf.impl is None else jax.random.wrap_key_data(array, impl=leaf.impl)

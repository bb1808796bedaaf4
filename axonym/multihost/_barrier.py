"""Several processes that work as one: barriers, values from the first process, and checks that all have the same.

All of it goes through the coordination service (`_coordination.py`) and so has a timeout: a process that does not come
is an error with its number in it, and never a hang. With one process there is nothing to wait for.
"""

import io
import json
import pickle
import uuid
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ._fingerprint import around_piece, canonical, digest, excerpts, piece_digests, piece_that_differs
from ._rendezvous import Meeting, coordination, listed_processes


T = TypeVar("T")

_LONGEST = 365 * 24 * 3600  # seconds; more is a mistake, and more than some clocks can count
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
        ValueError: If the timeout is shorter than a millisecond or longer than a year, or the name is empty.
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

    What the other processes hand in does not matter, None will do. All of it goes through the coordination service of
    process 0, which suits settings, seeds and small models: for 100 megabytes it takes some seconds.

    Args:
        tree: On process 0, any tree of arrays, named arrays, random keys and Python objects that `pickle` knows, such
            as a name or a dict of settings.
        timeout: How long to wait for the other processes, and for what process 0 sends, in seconds.

    Returns:
        A copy of the tree of process 0, bit by bit: NumPy arrays where that has NumPy arrays, and JAX arrays as
            `jnp.asarray` makes them here, of all processes if a mesh is set. With one process, the tree itself.

    Raises:
        ValueError: If an array of process 0 is divided over several processes.
        TypeError: If something in the tree of process 0 cannot be pickled.
        TimeoutError: If a process does not come in time, and the message names it, or the tree is too large for that.

    Example:
        >>> import axonym as nym
        >>> nym.broadcast_from_host_zero({"run": "green-fox", "seed": 17})
        {'run': 'green-fox', 'seed': 17}
    """
    seconds = checked_seconds(timeout)
    service = coordination()
    if service is None:
        return tree
    meeting = service.meeting("broadcast", "tree", seconds, "`broadcast_from_host_zero`")
    payload, error, note = b"", None, ""
    if service.process == 0:
        payload, error = _sent(tree, meeting)
        # Whoever fails says so to all: a process that raised alone would leave the others waiting.
        problem = None if error is None else [type(error).__name__, str(error)]
        note = json.dumps({"problem": problem, "size": len(payload)})
    _come(meeting, note, error)
    try:
        told = json.loads(meeting.value_of(0))
        if told["problem"] is not None:
            kind, message = told["problem"]
            raise _KINDS[kind](message) from (None if error is None else error.__cause__)
        payload = payload or meeting.receive(told["size"])
    finally:
        meeting.leave()
    return pickle.loads(payload)


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
    service = coordination()
    what = "`assert_same_on_all_hosts`" + ("" if name is None else f" of {name!r}")
    suffix, key = ("", name) if name else ("-unnamed", "all")
    if service is None:
        _, error = _compared(value)
        if error is not None:
            raise error
        return
    meeting = service.meeting(f"same{suffix}", key, seconds, what)
    text, error = _compared(value)
    mine = [digest(text), piece_digests(text), None if error is None else str(error)]
    told = [json.loads(other) for other in _gathered(meeting, json.dumps(mine), error)]
    failed = next(((process, why) for process, (_, _, why) in enumerate(told) if why is not None), None)
    if failed is not None:
        raise TypeError(f"{what} on process {failed[0]}: {failed[1]}") from (None if error is None else error.__cause__)
    groups = _groups([one for one, _, _ in told])
    if len(groups) == 1:
        return
    # All processes know by now that they differ, and in which piece of their texts: a second meeting shows it.
    shown = [processes[0] for processes in groups[:_GROUPS]]
    piece = piece_that_differs([told[process][1] for process in shown])
    part = around_piece(text, piece) if service.process in shown else ""
    second = service.meeting(f"texts{suffix}", key, seconds, what).until(meeting.deadline)
    texts = [json.loads(other) for other in _gathered(second, json.dumps(part))]
    raise ValueError(_difference(name, groups, excerpts([texts[process] for process in shown], piece)))


def _compared(value: Any) -> tuple[str, TypeError | None]:
    """Returns the text by which a value is compared, or why there is none, whatever the value's own methods raise."""
    try:
        return canonical(value), None
    except TypeError as error:
        return f"{uuid.uuid4()}", error
    except Exception as error:
        failed = TypeError(f"a value of type `{type(value).__qualname__}` cannot be compared: {_shortly(error)}")
        failed.__cause__ = error
        return f"{uuid.uuid4()}", failed


def _come(meeting: Meeting, value: str, error: Exception | None = None) -> None:
    """Comes to a meeting; to a process that has failed itself, that matters more than who else does not come."""
    try:
        meeting.attend(value)
    except TimeoutError as late:
        if error is None:
            raise
        error.add_note(str(late))
        raise error from error.__cause__


def _gathered(meeting: Meeting, value: str, error: Exception | None = None) -> list[str]:
    """Returns what each process came with to a meeting."""
    _come(meeting, value, error)
    try:
        return meeting.values()
    finally:
        meeting.leave()


def _groups(digests: list[str]) -> list[list[int]]:
    """Returns the processes that have the same, those first that are the most."""
    groups = {one: [process for process, its in enumerate(digests) if its == one] for one in dict.fromkeys(digests)}
    return sorted(groups.values(), key=lambda processes: (-len(processes), processes[0]))


def _difference(name: str | None, groups: list[list[int]], texts: list[str]) -> str:
    """Says which processes have what."""
    what = "a value" if name is None else repr(name)
    parts = [
        f"{listed_processes(processes)} {'has' if len(processes) == 1 else 'have'} {text}"
        for processes, text in zip(groups, texts, strict=False)
    ]
    more = len(groups) - len(parts)
    return f"{what} differs between processes: {'; '.join(parts)}" + (f"; and {more} more" if more else "")


def checked_seconds(timeout: Any, argument: str = "timeout") -> float:
    """Returns a time in seconds, or raises an error that says what is wrong with it."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.integer, np.floating)):
        raise TypeError(f"`{argument}` is a number of seconds, not {timeout!r}")
    if not 0.001 <= timeout <= _LONGEST:
        raise ValueError(f"`{argument}` is a number of seconds from 0.001 to {_LONGEST}, a year, not {timeout!r}")
    return float(timeout)


def checked_name(name: Any) -> None:
    """Raises unless a name is None or a text."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"`name` is a string or None, not {name!r}")
    if name == "":
        raise ValueError("`name` is empty; give a name, or None for none")


class _Divided(ValueError):
    """An array that process 0 does not have all of."""


_KINDS = {"TypeError": TypeError, "TimeoutError": TimeoutError, "_Divided": ValueError}


def _sent(tree: Any, meeting: Meeting) -> tuple[bytes, Exception | None]:
    """Sends a tree to a meeting; returns it as bytes, and why it was not sent."""
    file = io.BytesIO()
    try:
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(tree)
        meeting.send(file.getvalue())
    except (_Divided, TimeoutError) as error:
        return b"", error
    except Exception as error:  # of the objects' own methods
        failed = TypeError(f"the tree of process 0 cannot be sent to the others: {_shortly(error)}")
        failed.__cause__ = error
        return b"", failed
    return file.getvalue(), None


def _shortly(error: Exception) -> str:
    """Writes an error, with its kind unless that goes without saying."""
    plain = isinstance(error, (TypeError, AttributeError, pickle.PicklingError)) and str(error)
    return str(error) if plain else f"{type(error).__name__}: {error}"


class _Pickler(pickle.Pickler):
    """Saves the JAX arrays of a tree, at any depth, without the devices they are on."""

    def reducer_override(self, obj: Any) -> Any:
        """Says how an object is made again; see `pickle`."""
        if not isinstance(obj, jax.Array):
            return NotImplemented
        if not obj.is_fully_addressable and not obj.is_fully_replicated:
            raise _Divided(
                f"an array of shape {obj.shape} is divided over several processes, so process 0 cannot send it, and "
                "need not: all processes have it"
            )
        if jnp.issubdtype(obj.dtype, jax.dtypes.prng_key):
            with jax.set_mesh(None):  # no other process takes part
                return _received, (np.asarray(jax.random.key_data(obj)), str(jax.random.key_impl(obj)))
        return _received, (np.asarray(obj), None)


def _received(data: np.ndarray, impl: str | None) -> jax.Array:
    """Makes an array again, a random key if it was made in the way `impl`."""
    array = jnp.asarray(data)
    return array if impl is None else jax.random.wrap_key_data(array, impl=impl)

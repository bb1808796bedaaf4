"""`assert_same_on_all_hosts`: whether all processes have equal values."""

import json
import uuid
from typing import Any

from ._barrier import as_seconds, check_rendezvous_name
from ._broadcast import format_cause
from ._coordination_store import get_coordination_store
from ._fingerprint import (
    cut_excerpts,
    cut_piece,
    find_different_piece,
    hash_pieces,
    hash_text,
    write_canonical_text,
)
from ._rendezvous import Rendezvous, format_processes


_MOST_GROUPS = 4  # how many different values an error shows


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
    suffix, key = ("", name) if name else ("-unnamed", "all")
    first = store and Rendezvous(store, f"same{suffix}", key, seconds, label)
    text, error = _fingerprint_value(value)
    if store is None or first is None:
        if error is not None:
            raise error
        return
    message = json.dumps([hash_text(text), hash_pieces(text), None if error is None else str(error)])
    received = [json.loads(other) for other in first.exchange_values(message, error)]
    for process, (_, _, problem) in enumerate(received):
        if problem is not None:
            raise TypeError(f"{label} on process {process}: {problem}") from (
                None if error is None else error.__cause__
            )
    groups = _group_processes([digest for digest, _, _ in received])
    if len(groups) == 1:
        return
    # All processes know by now that they differ, and in which piece of their texts: a second rendezvous shows it.
    shown = [processes[0] for processes in groups[:_MOST_GROUPS]]
    piece = find_different_piece([received[process][1] for process in shown])
    second = Rendezvous(store, f"texts{suffix}", key, seconds, label)
    second.extend_deadline(first.deadline)
    texts = second.exchange_values(json.dumps(cut_piece(text, piece) if store.process in shown else ""))
    excerpts = cut_excerpts([json.loads(texts[process]) for process in shown], piece)
    raise ValueError(_format_difference(name, groups, excerpts))


def _fingerprint_value(value: Any) -> tuple[str, TypeError | None]:
    """Returns the text by which a value is compared, or an error, whatever the value's own methods raise."""
    try:
        return write_canonical_text(value), None
    except TypeError as error:
        return f"{uuid.uuid4()}", error
    except Exception as error:
        failure = TypeError(f"a value of type `{type(value).__qualname__}` cannot be compared: {format_cause(error)}")
        failure.__cause__ = error
        return f"{uuid.uuid4()}", failure


def _group_processes(digests: list[str]) -> list[list[int]]:
    """Returns the processes with each digest, largest groups first."""
    groups: dict[str, list[int]] = {}
    for process, digest in enumerate(digests):
        groups.setdefault(digest, []).append(process)
    return sorted(groups.values(), key=lambda processes: (-len(processes), processes[0]))


def _format_difference(name: str | None, groups: list[list[int]], excerpts: list[str]) -> str:
    parts = [
        f"{format_processes(processes)} {'has' if len(processes) == 1 else 'have'} {excerpt}"
        for processes, excerpt in zip(groups, excerpts, strict=False)
    ]
    subject = "a value" if name is None else repr(name)
    more = f"; and {len(groups) - len(parts)} more" if len(groups) > len(parts) else ""
    return f"{subject} differs between processes: {'; '.join(parts)}{more}"

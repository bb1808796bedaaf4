"""`barrier_sync`, and the checks of timeouts and names.

Everything here that waits for other processes has a timeout: a process that does not arrive is an error with its index,
not a hang. With one process there is nothing to wait for.
"""

from typing import Any

import numpy as np

from ..named._format import format_value
from ._coordination_store import get_coordination_store
from ._rendezvous import Rendezvous


_LONGEST = 365 * 24 * 3600  # seconds; more is a mistake, and more than some clocks can count


def barrier_sync(timeout: float = 200, name: str | None = None) -> None:
    """Waits until every process has arrived here.

    With one process it returns at once. Barriers match by name: the second call of a process with a name matches the
    second call of the others with that name. Barriers without a name match in the order of calls.

    Args:
        timeout: How long to wait, in seconds, at least a millisecond.
        name: The name of this barrier.

    Raises:
        TypeError: If the timeout is not a number or the name not a string.
        ValueError: If the timeout is shorter than a millisecond or longer than a year, or the name is empty.
        TimeoutError: If a process does not arrive in time. The message names it. Every process that waits raises it; a
            process that arrives later raises it immediately.

    Example:
        >>> import axonym as nym
        >>> nym.barrier_sync(timeout=60, name="checkpoint written")
    """
    seconds = as_seconds(timeout)
    check_rendezvous_name(name)
    store = get_coordination_store()
    if store is None:
        return
    if name is None:
        label = f"an unnamed barrier (call {store.count_call('unnamed barriers') + 1} of this process)"
        hint = "; unnamed barriers match in the order of calls, so name them if processes may make different calls"
        rendezvous = Rendezvous(store, "unnamed", "barrier", seconds, label, hint)
    else:
        rendezvous = Rendezvous(store, "barrier", name, seconds, f"barrier {name!r}")
    rendezvous.wait_for_all()
    rendezvous.leave()


def as_seconds(timeout: Any, argument: str = "timeout") -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, np.integer, np.floating)):
        raise TypeError(f"`{argument}` is a number of seconds, not {format_value(timeout)}")
    if not 0.001 <= timeout <= _LONGEST:
        raise ValueError(f"`{argument}` is a number of seconds from 0.001 to {_LONGEST}, a year, not {timeout!r}")
    return float(timeout)


def check_rendezvous_name(name: Any) -> None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"`name` is a string or None, not {name!r}")
    if name == "":
        raise ValueError("`name` is empty; pass a name, or None")

"""Agreement of all processes that none has failed, since what comes next needs all of them."""

import json
from collections.abc import Callable
from typing import TypeVar

from ..multihost._coordination_store import get_coordination_store
from ..multihost._rendezvous import Rendezvous
from ._checksums import DamagedCheckpointError


T = TypeVar("T")
_SECONDS = 3600.0  # that processes wait for one another


def agree_on_result(
    what: str,
    call: Callable[[], T],
    *,
    name: str = "read",
    kind: type[Exception] = ValueError,
    seconds: float = _SECONDS,
) -> T:
    """Returns the result of a call; if it raises in any process, all of them raise an error.

    It is a DamagedCheckpointError in all of them if it is in one, since the others may see only what the damage causes.

    Args:
        what: The subject of a timeout error.
        call: What may fail.
        name: What the agreement is about; threads that work at the same time need different names.
        kind: The error of processes that have not failed themselves.
        seconds: How long to wait for the others.
    """
    result, error = None, None
    try:
        result = call()
    except Exception as raised:
        error = raised
    store = get_coordination_store()
    if store is not None:
        rendezvous = Rendezvous(store, "checkpoint", name, seconds, what)
        message = None if error is None else [isinstance(error, DamagedCheckpointError), str(error)]
        received = rendezvous.exchange_values(json.dumps(message), error)
        failed = {process: json.loads(one) for process, one in enumerate(received) if json.loads(one) is not None}
        damaged = {process: text for process, (is_damaged, text) in failed.items() if is_damaged}
        if damaged and not isinstance(error, DamagedCheckpointError):
            process, text = min(damaged.items())
            error = DamagedCheckpointError(f"in process {process}: {text}")
        elif failed and error is None:
            process, (_, text) = min(failed.items())
            error = kind(f"in process {process}: {text}")
    if error is not None:
        raise error
    return result  # pyright: ignore[reportReturnType]

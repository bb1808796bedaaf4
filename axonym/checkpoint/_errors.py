"""Errors of checkpoints: damaged files, and stages of a save or a restore that fail in one of several processes.

Each stage is followed by one that waits for all processes. If one process raised an error alone, the others would wait
for it in vain, so all of them raise an error.
"""

import contextlib
import errno
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from .._ground.jax_compat import is_tracing
from ..multihost._rendezvous import Rendezvous, get_coordination_store


T = TypeVar("T")
_DAMAGE_ERRNOS = {errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
TIMEOUT_SECONDS = 3600.0  # how long processes wait for one another, as some read much more than others


class DamagedCheckpointError(ValueError):
    """A file of a checkpoint is missing or is not what was written. The message names the file.

    Example:
        >>> import axonym as nym
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> nym.checkpoint.save(folder, {"weight": nym.ones({"embed": 3})}, step=10)
        >>> (folder / "10" / "default" / "axonym.json").unlink()
        >>> try:
        ...     nym.checkpoint.restore(folder)
        ... except nym.checkpoint.DamagedCheckpointError as error:
        ...     print(str(error).replace(str(folder), "..."))
        the checkpoint of step 10 is damaged: .../10/default/axonym.json is missing
    """


@contextlib.contextmanager
def report_damage(path: Path, problem: str) -> Iterator[None]:
    """Raises a DamagedCheckpointError that states the problem if a file cannot be read or parsed.

    Errors that may pass, such as too many open files, are raised as they are.
    """
    try:
        yield
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{path} is missing") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno not in _DAMAGE_ERRNOS:
            raise
        raise DamagedCheckpointError(f"{path} {problem}: {type(error).__name__}: {error}") from None


def agree_on_result(
    subject: str,
    call: Callable[[], T],
    *,
    name: str = "read",
    kind: Callable[[str], Exception] = ValueError,
    seconds: float = TIMEOUT_SECONDS,
    purpose: str = "",
) -> T:
    """Returns the result of a call; if it raises in any process, all of them raise an error.

    If one process finds damage, all raise a DamagedCheckpointError, since the others may see only its consequences.

    Args:
        subject: The subject of a timeout error.
        call: The function that may fail.
        name: The name of the agreement; threads that work at the same time need different names.
        kind: Makes the error of processes where the call succeeded, from its cause.
        seconds: How long to wait for the others.
        purpose: What a process does here, such as "saves step 3"; it is an error if another one does something else.
    """
    store = get_coordination_store()
    rendezvous = None if store is None else Rendezvous(store, "checkpoint", name, seconds, subject)
    result, error = None, None
    try:
        result = call()
    except Exception as raised:
        error = raised
    if rendezvous is not None:
        is_damage = isinstance(error, DamagedCheckpointError)
        text = str(error) if is_damage else f"{type(error).__name__}: {error}"
        message = json.dumps([purpose, is_damage, None if error is None else text])
        answers = [json.loads(answer) for answer in rendezvous.exchange_values(message, error)]
        purposes = [answer[0] for answer in answers]
        for process, other_purpose in enumerate(purposes):
            if other_purpose != purposes[0]:
                raise ValueError(
                    f"process 0 {purposes[0]}, and process {process} {other_purpose}; call this in all processes "
                    "together, for the same step and folder"
                ) from error
        failures = {process: text for process, (_, _, text) in enumerate(answers) if text is not None}
        damages = {process: failures[process] for process, (_, damaged, _) in enumerate(answers) if damaged}
        if damages and not is_damage:
            process, text = min(damages.items())
            error = DamagedCheckpointError(f"in process {process}: {text}")
        elif failures and error is None:
            process, text = min(failures.items())
            error = kind(f"in process {process}: {text}")
    if error is not None:
        raise error
    return result  # pyright: ignore[reportReturnType]


def check_is_not_traced() -> None:
    if is_tracing():
        raise ValueError("checkpoints are saved and restored outside of `jit`; call this where nothing is traced")


def import_orbax_handler() -> Any:
    """Returns the module that uses Orbax, which is an extra and takes as long to import as JAX."""
    try:
        return importlib.import_module("._orbax_handler", __package__)
    except ModuleNotFoundError as error:
        raise ImportError("checkpoints need Orbax; install `axonym[io]`, or orbax-checkpoint") from error

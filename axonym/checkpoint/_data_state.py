"""The state of the iterator over the data, which each process saves in a file of its own."""

import base64
import json
from pathlib import Path
from typing import Any, Protocol

from .._ground.formats import format_value
from ._errors import report_damage


class Resumable(Protocol):
    """An iterator over data that can be resumed, such as those of grain.

    Example:
        >>> import axonym as nym
        >>> import tempfile
        >>> class Batches:
        ...     at = 0
        ...
        ...     def get_state(self):
        ...         return {"at": self.at}
        ...
        ...     def set_state(self, state):
        ...         self.at = state["at"]
        >>> folder, batches, resumed = tempfile.mkdtemp(), Batches(), Batches()
        >>> batches.at = 7
        >>> nym.checkpoint.save(folder, {"step": 10}, step=10, data=batches)
        >>> nym.checkpoint.restore(folder, data=resumed), resumed.at
        ({'step': 10}, 7)
    """

    def get_state(self) -> Any:
        """Returns the state: bytes, or anything that can be written as JSON."""
        ...

    def set_state(self, state: Any) -> None:
        """Goes on from a state."""
        ...


def check_resumable(data: Any, method: str) -> None:
    """Raises a TypeError if an iterator has no method to get or to set its state."""
    if not callable(getattr(data, method, None)):
        raise TypeError(
            f"`data` is a {type(data).__name__} without `{method}`; pass an `axonym.data.ShardedLoader` or, for a "
            "dataset of grain, the iterator that `iter` returns"
        )


def encode_data_state(data: Resumable) -> str:
    """Returns the state of an iterator as JSON."""
    check_resumable(data, "get_state")
    state = data.get_state()
    if isinstance(state, bytes):
        return json.dumps({"bytes": base64.b64encode(state).decode()})
    try:
        return json.dumps({"json": state})
    except (TypeError, ValueError) as error:
        text = format_value(state)[:100]
        raise TypeError(f"the state of `data` is {text}; it must be bytes or writable as JSON: {error}") from None


def make_data_file_name(process: int) -> str:
    """Returns the name of the file with the state of a process."""
    return f"data-{process}.json"


def read_data_state(folder: Path, process: int, process_count: int, saved_count: int) -> Any:
    """Returns the state for a process; if the number of processes has changed, the state that all of them saved.

    Raises:
        DamagedCheckpointError: If a file is missing, or is not what was written.
        ValueError: If the number of processes has changed and their states differed.
    """
    if saved_count == process_count:
        return _read_file(folder / make_data_file_name(process))
    states = [_read_file(folder / make_data_file_name(saving_process)) for saving_process in range(saved_count)]
    # Processes that loaded the same batches saved the same state, which is right for any number of processes.
    if any(state != states[0] for state in states):
        raise ValueError(
            f"each of {saved_count} processes saved its own state of the data, and there are {process_count} now; "
            f"restore without `data` and start it at the step yourself, or run {saved_count} processes"
        )
    return states[0]


def _read_file(path: Path) -> Any:
    with report_damage(path, "is no state of the data"):
        content = json.loads(path.read_text())
        return base64.b64decode(content["bytes"]) if "bytes" in content else content["json"]

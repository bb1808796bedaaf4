"""`SourceIterator`: the batches of a source, their number, and its state."""

import base64
from typing import Any

from .._ground.formats import format_value


class SourceIterator:
    """Iterates over a source, and counts.

    The state is a dict that can be written as JSON: the number of batches and, if the source has `get_state` and
    `set_state`, its own state, in which bytes are written in base 64.
    """

    def __init__(self, source: Any) -> None:
        self._source, self._iterator, self.count = source, _iterate(source), 0
        self._has_state = hasattr(self._iterator, "get_state") and hasattr(self._iterator, "set_state")

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self.count += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        if not self._has_state:
            return {"batches": self.count}
        source_state = self._iterator.get_state()
        if isinstance(source_state, bytes):  # as of grain's `DataLoader`
            return {"batches": self.count, "source_bytes": base64.b64encode(source_state).decode()}
        return {"batches": self.count, "source": source_state}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues after the batch at which the state was read: see `ShardedLoader.set_state`."""
        count = state.get("batches") if isinstance(state, dict) else None
        # A state may come from a file that something else has written.
        if type(count) is not int or count < 0 or not isinstance(state.get("source_bytes", ""), str):
            raise make_state_error(state)
        if not {"source", "source_bytes"} & state.keys():
            self._skip_to(count)
            return
        if not self._has_state:
            raise ValueError(
                f"the state is that of a source with `get_state` and `set_state`, and {_describe_source(self._source)} "
                "has none; pass a source like the one that was saved"
            )
        try:
            source_state = base64.b64decode(state["source_bytes"]) if "source_bytes" in state else state["source"]
        except ValueError:
            raise make_state_error(state) from None
        self._iterator.set_state(source_state)
        self.count = count

    def close(self) -> None:
        """Closes the iterator, unless it was made elsewhere."""
        if self._iterator is not self._source and hasattr(self._iterator, "close"):
            self._iterator.close()

    def _skip_to(self, count: int) -> None:
        """Reads and drops batches until this many have been read, from the beginning where that is possible."""
        fresh = iter(self._source)
        if fresh is not self._iterator:
            self._iterator, self.count = fresh, 0
        elif self.count > count:
            raise ValueError(
                f"{_describe_source(self._source)} is an iterator that has yielded {self.count} batches and cannot go "
                f"back to batch {count}; pass something that can be iterated over again, or make a new loader"
            )
        while self.count < count:
            try:
                next(self)
            except StopIteration:
                raise ValueError(
                    f"the state is after batch {count}, and {_describe_source(self._source)} ends after {self.count}"
                ) from None


def make_state_error(state: Any) -> ValueError:
    return ValueError(
        f"a state of `ShardedLoader` is what its `get_state` returned, a dict with 'batches', not {format_value(state)}"
    )


def _iterate(source: Any) -> Any:
    try:
        return iter(source)
    except TypeError:
        raise TypeError(
            f"the source of a `ShardedLoader` yields batches when iterated over, as a generator or grain's "
            f"`DataLoader` does; {format_value(source)} cannot be iterated over"
        ) from None


def _describe_source(source: Any) -> str:
    return f"the source of type `{type(source).__name__}`"

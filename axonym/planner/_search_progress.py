"""`SearchProgress`: the progress of a search, its budget and its notes."""

import shutil
import sys
import time


class SearchProgress:
    """Writes a line for each candidate, which the next replaces on a terminal; knows when the time is over."""

    def __init__(self, is_shown: bool, started: float, budget: float | None) -> None:
        self._is_shown, self._started, self._budget = is_shown, started, budget
        self._is_terminal = is_shown and sys.stderr.isatty()
        self.notes: list[str] = []

    def has_used(self, part: float = 1.0) -> bool:
        """Returns whether a part of the budget is used up."""
        return self._budget is not None and time.monotonic() - self._started >= part * self._budget

    def note(self, text: str) -> None:
        """Keeps a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def show(self, text: str) -> None:
        """Writes a line, with the seconds so far."""
        line = f"{time.monotonic() - self._started:.0f} s: {text}"
        if self._is_terminal:
            line = line[: shutil.get_terminal_size().columns - 1]  # a longer one takes two lines, and one of them stays
            print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)
        elif self._is_shown:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Removes the line from a terminal."""
        if self._is_terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)

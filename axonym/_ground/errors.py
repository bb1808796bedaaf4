"""Finds the user's code on the stack, for warnings and for the tracebacks of mistakes.

The functions of this library between a mistake and the code that raises its error are part of the traceback. Wrapping
each public function to remove them would slow down every call, so the functions here change the error alone.
"""

import sys
from traceback import walk_stack
from types import FrameType, TracebackType
from typing import Any, TypeVar

import jax

from .jax_compat import drop_filtering_note


E = TypeVar("E", bound=Exception)

_LIBRARIES = (__name__.partition(".")[0] + ".", "jax.", "equinox.", "contextlib")


def find_stacklevel() -> int:
    """Returns the `stacklevel` of a warning for the code that called this library, directly or through JAX."""
    frame, levels = sys._getframe(), 0
    while frame is not None and _is_library_frame(frame):
        frame, levels = frame.f_back, levels + 1
    return levels


def make_error(kind: type[E], message: str, **options: Any) -> E:
    """Makes an error to raise, whose traceback ends in the frame of the code that called this library.

    The frames of libraries on the stack are marked, so that IPython and pytest leave them out. With
    `JAX_TRACEBACK_FILTERING=off` the error has a traceback like any other.

    Args:
        kind: The class of the error.
        message: What is wrong, with the names and sizes of axes, and the next step.
        **options: Further arguments of the class.
    """
    error = kind(message, **options)
    if _is_filtering_off():
        return error
    return error.with_traceback(_mark_library_frames(sys._getframe(1)))


def find_caller() -> TracebackType | None:
    """Returns a traceback of the frame of the code that called this library."""
    for frame, line in walk_stack(sys._getframe(1)):
        if not _is_library_frame(frame):
            return TracebackType(None, frame, frame.f_lasti, line)
    return None


def hide_library_frames(error: Exception) -> None:
    """Removes the frames of libraries from the traceback of an error that was caught and is raised again by `raise`.

    Frames of the user's functions that the library called stay, and the traceback ends in the innermost of them. If
    there are none, it ends in the code that called the library. JAX's note on the frames that it has removed is removed
    too. With `JAX_TRACEBACK_FILTERING=off` the error is not changed.
    """
    if _is_filtering_off():
        return
    handler = sys._getframe(1)
    # Reading the local variables of the handler would keep them, the error among them, alive with its traceback.
    caller = _mark_library_frames(handler.f_back)
    callers = {frame for frame, _ in walk_stack(handler)}
    entry = error.__traceback__
    entries: list[TracebackType] = []
    while entry is not None:
        # Callers join the traceback as the error reaches them; `make_error` has added them before.
        if not _is_library_frame(entry.tb_frame) and entry.tb_frame not in callers:
            if entries and entries[-1].tb_frame is entry.tb_frame:
                entries.pop()
            entries.append(entry)
        entry = entry.tb_next
    is_called_by_user = handler.f_back is None or not _is_library_frame(handler.f_back)
    visible = None if entries or is_called_by_user else caller
    for entry in reversed(entries):
        visible = TracebackType(visible, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = visible
    drop_filtering_note(error)


def _is_filtering_off() -> bool:
    return jax.config.jax_traceback_filtering == "off"


def _mark_library_frames(frame: FrameType | None) -> TracebackType | None:
    """Marks library frames from a frame outwards as hidden; returns a traceback of the user's innermost frame."""
    caller = None
    while frame is not None:
        if _is_library_frame(frame):
            frame.f_locals["__tracebackhide__"] = True
        elif caller is None:
            caller = TracebackType(None, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return caller


def _is_library_frame(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith(_LIBRARIES)

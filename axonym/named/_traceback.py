"""Finds the user's code on the stack, for warnings and for the tracebacks of mistakes.

A function that raises is part of the traceback, and so are all between it and the user's code. Wrapping each public
function to remove them would cost every call. This works on the error alone.
"""

import sys
from types import FrameType, TracebackType
from typing import TypeVar

import jax


E = TypeVar("E", bound=Exception)

_LIBRARIES = (__name__.partition(".")[0] + ".", "jax.", "equinox.", "contextlib")


def find_stacklevel() -> int:
    """Returns the `stacklevel` of a warning for the code that called this library, directly or through JAX."""
    frame, levels = sys._getframe(), 0
    while frame is not None and _is_library_frame(frame):
        frame, levels = frame.f_back, levels + 1
    return levels


def blame_caller(error: E) -> E:
    """Returns an error to raise, whose traceback ends in the frame of the code that called this library.

    The frames of libraries on the stack are marked, so that IPython and pytest leave them out. With
    `JAX_TRACEBACK_FILTERING=off` the error is returned as it is.
    """
    if jax.config.jax_traceback_filtering == "off":  # pyright: ignore[reportAttributeAccessIssue]
        return error
    frame, caller = sys._getframe(1), None
    while frame is not None:
        if _is_library_frame(frame):
            frame.f_locals["__tracebackhide__"] = True
        elif caller is None:
            caller = TracebackType(None, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return error.with_traceback(caller)


def _is_library_frame(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith(_LIBRARIES)

"""Lets the tracebacks of mistakes end in the code that made them.

A function that raises is part of the traceback, and so are all between it and the user's code. Wrapping each public
function to remove them would cost every call. This works on the error alone.
"""

import contextlib
import os
import sys
from types import TracebackType
from typing import TypeVar

import equinox as eqx
import jax


E = TypeVar("E", bound=Exception)

_PACKAGES = (__file__.rpartition("named")[0], *(os.path.dirname(str(one.__file__)) + os.sep for one in (jax, eqx)))
_LIBRARY_FILES = (*_PACKAGES, contextlib.__file__)


def blame_caller(error: E) -> E:
    """Returns an error to raise, whose traceback ends in the frame of the code that called this library.

    The frames of libraries on the stack are marked, so that IPython and pytest leave them out. With
    `JAX_TRACEBACK_FILTERING=off` the error is returned as it is.
    """
    if jax.config.jax_traceback_filtering == "off":  # pyright: ignore[reportAttributeAccessIssue]
        return error
    frame, caller = sys._getframe(1), None
    while frame is not None:
        if frame.f_code.co_filename.startswith(_LIBRARY_FILES):
            frame.f_locals["__tracebackhide__"] = True
        elif caller is None:
            caller = TracebackType(None, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return error.with_traceback(caller)

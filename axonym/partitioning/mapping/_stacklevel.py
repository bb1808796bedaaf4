"""The `stacklevel` of warnings: where in the stack the user's code is."""

import inspect


_LIBRARIES = (__name__.partition(".")[0] + ".", "jax.", "equinox.", "contextlib")


def user_stacklevel() -> int:
    """Returns the stack level of the code that called this library, directly or through JAX."""
    frame, levels = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_LIBRARIES):
        frame, levels = frame.f_back, levels + 1
    return levels

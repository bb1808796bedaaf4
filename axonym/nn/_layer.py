"""The base class of layers: an error that points to `init` where a layer is made by its class."""

from typing import TYPE_CHECKING, Any

import equinox as eqx

from ..named._axis import Axis
from ..named._traceback import strip_library_frames


class Layer(eqx.Module):
    """A module whose fields are its parameters, made from axes by the static method `init`."""

    if not TYPE_CHECKING:  # type checkers report wrong arguments by themselves

        def __new__(cls, *args: Any, **kwargs: Any) -> "Layer":
            """Raises a TypeError for the arguments of `init`."""
            first = args[0] if args else None
            first = first[0] if isinstance(first, tuple) and first else first
            is_own = cls.__module__.startswith(f"{__package__}.")  # a subclass may have any `__init__`
            if is_own and (isinstance(first, Axis | int | str | type) or "key" in kwargs):
                raise strip_library_frames(
                    TypeError(f"Axes and keys are arguments of `{cls.__name__}.init(...)`, which makes a new layer.")
                )
            return super().__new__(cls)

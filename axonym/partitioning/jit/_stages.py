"""What a compiled function looks like before it runs: traced, lowered and compiled, for the function's own arguments.

Each is JAX's own stage of the same name, beside what is static about the arguments that it was made for.
"""

from collections.abc import Callable
from typing import Any

import jax

from ...named._static_result import unpack_result
from ._static_args import WHOLE, StaticArgs


class _Stage:
    """A stage of JAX, how arguments are passed to it, what was static about them, and whether they went in whole."""

    def __init__(self, stage: Any, passed: Callable[[Any, Any], Any], token: StaticArgs, whole: bool) -> None:
        """Keeps the four."""
        self._stage, self._passed, self._token, self._whole = stage, passed, token, whole

    def __getattr__(self, name: str) -> Any:
        """Looks up everything else in JAX's stage."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._stage, name)

    @property
    def out_info(self) -> Any:
        """The result, with the shape, dtype and, where JAX knows it, sharding of each array."""
        return unpack_result(self._stage.out_info)


class NamedTraced(_Stage):
    """A traced function: everything that `jax.stages.Traced` offers, lowered for the same arguments.

    Example:
        >>> import axonym as nym
        >>> traced = nym.named_jit(lambda x: x * 2).trace(nym.ones({"batch": 8}))
        >>> traced.out_info.axes
        (Axis(name='batch', size=8),)
        >>> traced.lower().compile()(nym.ones({"batch": 8})).array.sum()
        Array(16., dtype=float32)
    """

    def lower(self, **options: Any) -> "NamedLowered":
        """Lowers it; options as for `jax.stages.Traced.lower`."""
        return NamedLowered(self._stage.lower(**options), self._passed, self._token, self._whole)


class NamedLowered(_Stage):
    """A lowered function: everything that `jax.stages.Lowered` offers, compiled to a function of the same arguments."""

    def compile(self, *args: Any, **options: Any) -> "NamedCompiled":
        """Compiles it; options as for `jax.stages.Lowered.compile`."""
        return NamedCompiled(self._stage.compile(*args, **options), self._passed, self._token, self._whole)


class NamedCompiled(_Stage):
    """A compiled function: everything that `jax.stages.Compiled` offers, called with the function's own arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it with arguments of the structure, shapes and static values that it was compiled for.

        Raises:
            TypeError: If the structure, a shape or a static value is another one.
        """
        (donated, kept, static), token = self._passed(args, kwargs)
        if token != self._token:
            raise TypeError(
                "The arguments have another structure, or other values that are no arrays, than those that this was "
                "compiled for; `lower` and `compile` it for them as well."
            )
        if self._whole:  # as they went in, also where a scalar could now be a Python number, or no longer
            kept = args, kwargs
        elif static is WHOLE:
            kept = tuple(jax.tree.leaves(kept))
        return unpack_result(self._stage(donated, kept))

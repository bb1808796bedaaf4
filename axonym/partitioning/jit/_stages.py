"""A compiled function before it runs: traced, lowered and compiled, with the arguments of the function itself."""

from collections.abc import Callable
from typing import Any

import jax

from ...named._static_result import unpack_result
from ...named._traceback import find_caller, hide_library_frames
from ._static_args import StaticArgs


class _Stage:
    """A stage of JAX, the arguments it was made for, and two functions of the function to compile.

    They split its arguments, and find the error for arguments with other shardings than it was compiled for. Of the
    arguments it has the static ones, and the shardings of the donated and of the kept arrays.
    """

    def __init__(
        self,
        stage: Any,
        static: StaticArgs,
        split: Callable[[Any, Any], Any],
        find_error: Callable[..., Any],
        shardings: tuple[Any, Any],
    ) -> None:
        self._stage, self._static, self._split, self._find_error = stage, static, split, find_error
        self._shardings = shardings

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._stage, name)

    @property
    def out_info(self) -> Any:
        """The result, with the shape, dtype and, where JAX knows it, sharding of each array."""
        return unpack_result(self._stage.out_info)

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments and keyword arguments with a `jax.ShapeDtypeStruct` in place of each array.

        They have the shardings that the arguments had, and those of a compiled function the ones that it needs.
        """
        return self._static.merge(*jax.tree.map(set_shape_sharding, self._stage.args_info[0][:2], self._shardings))


def list_shardings(split: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns the shardings of the donated and of the kept arrays of a call, None for those without."""
    donated, kept = (tuple(getattr(leaf, "sharding", None) for leaf in part) for part in split[:2])
    return donated, kept


class NamedTraced(_Stage):
    """A traced function: everything that `jax.stages.Traced` offers.

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
        return NamedLowered(self._stage.lower(**options), self._static, self._split, self._find_error, self._shardings)


class NamedLowered(_Stage):
    """A lowered function: everything that `jax.stages.Lowered` offers."""

    def compile(self, *args: Any, **options: Any) -> "NamedCompiled":
        """Compiles it; options as for `jax.stages.Lowered.compile`."""
        compiled = self._stage.compile(*args, **options)
        return NamedCompiled(compiled, self._static, self._split, self._find_error, compiled.input_shardings[0])


class NamedCompiled(_Stage):
    """A compiled function: everything that `jax.stages.Compiled` offers, called with the function's own arguments."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Calls it with arguments of the structure, shapes and static values that it was compiled for.

        Raises:
            TypeError: If the structure, a shape or a static value differs.
            ValueError: If the sharding of an array differs.
        """
        donated, kept, static = self._split(args, kwargs)
        if static is not self._static:  # equal ones are the same object
            raise TypeError(
                "The function was compiled for arguments of another structure or other static values; `lower` and "
                "`compile` it for these as well."
            )
        try:
            return unpack_result(self._stage(donated, kept))
        except ValueError as error:
            found = self._find_error(self._stage.input_shardings[0], donated, kept, static)
            if found is not None:
                raise found.with_traceback(find_caller()) from None
            hide_library_frames(error)
            raise


def set_shape_sharding(info: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of an array with a sharding."""
    return jax.ShapeDtypeStruct(info.shape, info.dtype, sharding=sharding)

"""Declaring the axes of a plain array that a module holds, so that it is sharded by name like a named one."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx

from ._axis import AxisSelector, Names, axis_name, check_unique_names
from ._cache import cached_plan


_KEY = "axonym.axis_names"


def field(
    *,
    axis_names: AxisSelector | tuple[AxisSelector, ...] | None = None,
    converter: Callable[[Any], Any] | None = None,
    static: bool = False,
    **options: Any,
) -> Any:
    """Declares a field of an Equinox module or dataclass, with names for the axes of the plain array it will hold.

    Args:
        axis_names: One name for each axis of the array, in order; None declares nothing.
        converter: Applied to the value given, as for `equinox.field`.
        static: Whether the field is part of the tree's structure, as for `equinox.field`.
        **options: Anything else that `dataclasses.field` takes.

    Returns:
        The field, to stand on the right of an annotation. `axonym.shard` and `axonym.named_jit` shard the array by
        these names.

    Raises:
        ValueError: If a name occurs twice, or a static field is given names.

    Example:
        >>> import axonym as nym
        >>> import equinox as eqx
        >>> import jax
        >>> class Scale(eqx.Module):
        ...     weight: jax.Array = nym.field(axis_names=("embed",))
        >>> Scale(jax.numpy.ones(4)).weight.shape
        (4,)
    """
    if axis_names is not None:
        chosen = (axis_names,) if not isinstance(axis_names, tuple) else axis_names
        names = tuple(axis_name(axis) for axis in chosen)
        check_unique_names(names)
        if static:
            raise ValueError(f"a static field holds no array, so the axes {names} cannot be declared for it")
        options["metadata"] = {**options.get("metadata", {}), _KEY: names}
    if converter is not None:
        options["converter"] = converter
    return eqx.field(static=static, **options)


@cached_plan
def get_declared_axes(cls: type) -> dict[str, Names]:
    """Returns the names declared for the fields of a class, empty if none are."""
    if not dataclasses.is_dataclass(cls):
        return {}
    return {one.name: one.metadata[_KEY] for one in dataclasses.fields(cls) if _KEY in one.metadata}


class HasLeadingAxes(abc.ABC):
    """What a module derives from whose plain arrays have axes in front of those that their fields declare."""

    __slots__ = ()

    @abc.abstractmethod
    def _leading_axes(self) -> Names:
        """Returns the names of these axes."""

"""Declares the axes of plain arrays in the fields of a module, so that they are sharded by name."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx

from .._ground.caches import cached_plan
from ._axis import AxisSelector, Names, axis_name, check_unique_names


_KEY = "axonym.axis_names"


def field(
    *,
    axis_names: AxisSelector | tuple[AxisSelector, ...] | None = None,
    converter: Callable[[Any], Any] | None = None,
    static: bool = False,
    **options: Any,
) -> Any:
    """Declares a field of an Equinox module or dataclass, with names for the axes of the plain array it holds.

    Args:
        axis_names: One name for each axis of the array, in order; None declares no names.
        converter: Applied to the value given, as for `equinox.field`.
        static: Whether the field is part of the tree structure, as for `equinox.field`.
        **options: Further options of `dataclasses.field`.

    Returns:
        The field, to be assigned to an annotated attribute. `axonym.shard` and `axonym.named_jit` shard the array by
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
        selectors = axis_names if isinstance(axis_names, tuple) else (axis_names,)
        names = tuple(axis_name(axis) for axis in selectors)
        check_unique_names(names)
        if static:
            raise ValueError(f"a static field holds no array, so axes {names} cannot be declared for it")
        options["metadata"] = {**options.get("metadata", {}), _KEY: names}
    if converter is not None:
        options["converter"] = converter
    return eqx.field(static=static, **options)


@cached_plan
def get_declared_axes(cls: type) -> dict[str, Names]:
    """Returns the names declared for the fields of a class, an empty dict if there are none."""
    if not dataclasses.is_dataclass(cls):
        return {}
    return {member.name: member.metadata[_KEY] for member in dataclasses.fields(cls) if _KEY in member.metadata}


class HasLeadingAxes(abc.ABC):
    """Base class for modules whose arrays have leading axes beyond those declared by their fields."""

    __slots__ = ()

    @abc.abstractmethod
    def _leading_axes(self) -> Names:
        """Returns the names of the leading axes."""

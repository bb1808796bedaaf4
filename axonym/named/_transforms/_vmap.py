"""`vmap`: a function of slices, applied to all slices of named axes at once."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import jax

from .._ambient import get_mesh_axes
from .._array import is_named_array
from .._axis import AxisSelection, AxisSelector
from ._layout import WHOLE, Part, axes_of, is_array_with_axes, laid_out, packed, unpacked


P = ParamSpec("P")
R = TypeVar("R")


def vmap(
    fn: Callable[P, R],
    axis: AxisSelection,
    *,
    default: Part = is_array_with_axes,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Callable[P, R]:
    """Vectorises a function over a named axis, or several; see `jax.vmap`.

    What is said of an argument by `args` or `kwargs` is True (its plain arrays take part along their first axis), an
    integer (along the axis at that position), a function from a plain array to one of these, or False or None, which
    give the whole argument, named arrays too, to every slice. A tree of these says it for parts of the argument.

    Args:
        fn: Function of any trees of arrays; inside, named arrays lack the axis.
        axis: The axis, or several of them, outermost first. An `Axis` gives the size where no argument has it.
        default: Which plain arrays take part in arguments of which nothing is said: by default all that have axes.
        args: What is said of the positional arguments, in order; of those behind it, nothing.
        kwargs: What is said of keyword arguments.

    Returns:
        Function of the same arguments. Arrays that it returns have the axis in front, anything else is as it was. On a
        mesh over which the mapping in force shards the axis, constraints inside apply to each slice and the axis stays
        sharded.

    Raises:
        ValueError: When called, if no argument has an axis given by name, sizes differ, or what is said of an argument
            does not fit it.

    Example:
        >>> import axonym as nym
        >>> x = nym.ones({"batch": 2, "embed": 3})
        >>> nym.vmap(lambda row: row.sum("embed"), "batch")(x)
        NamedArray(float32, batch: 2, [3., 3.])
        >>> def products(row, rows):
        ...     return nym.dot(row, rows, axis="embed").rename({"batch": "other"})
        >>> nym.vmap(products, "batch", args=(True, False))(x, x).shape
        (batch: 2, other: 2)
    """
    parts = _Parts(default, tuple(args), dict(kwargs or {}))
    mapped: Any = fn
    for one in reversed(axes_of(axis)):
        mapped = functools.partial(_mapped, mapped, one, parts)
    return mapped


class _Parts:
    """Which plain arrays of which arguments take part."""

    def __init__(self, default: Part, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keeps what is said of the arguments."""
        self.default, self.args, self.kwargs = default, args, kwargs

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Part | list[Part]:
        """Returns what is said of each leaf of the arguments, or of all of them."""
        if not self.args and not self.kwargs:
            return self.default
        if len(self.args) > len(args):
            raise ValueError(f"`vmap` with `args` for {len(self.args)} positional arguments was given {len(args)}")
        said = {**dict(enumerate(self.args)), **self.kwargs}
        given = {**dict(enumerate(args)), **dict(sorted(kwargs.items()))}  # sorted, as JAX flattens them
        return [
            part for key, one in given.items() for part in self._spread(key, (said[key],) if key in said else (), one)
        ]

    def _spread(self, where: int | str, said: tuple[Any, ...], argument: Any) -> list[Part]:
        """Returns what is said of each leaf of one argument, by a tree that may end before it does."""
        parts: list[Part] = []

        def repeat(part: Part, subtree: Any) -> None:
            part = WHOLE if said and (part is None or part is False) else part
            parts.extend([part] * len(jax.tree.leaves(subtree, is_leaf=is_named_array)))

        try:
            jax.tree.map(repeat, said[0] if said else self.default, argument, is_leaf=lambda x: x is None)
        except ValueError:
            raise ValueError(f"what `vmap` is told of argument {where!r} is a tree that does not fit it") from None
        return parts


def _mapped(fn: Callable[..., Any], axis: AxisSelector, parts: _Parts, /, *args: Any, **kwargs: Any) -> Any:
    leaves, layout = laid_out((args, kwargs), axis, parts.of(args, kwargs), "vmap")
    name, size = layout.axis.name, layout.axis.size

    def body(*slices: Any) -> Any:
        args, kwargs = layout.rebuilt(leaves, slices)
        return packed(fn(*args, **kwargs), name)

    results = jax.vmap(
        body,
        in_axes=layout.cut_dims,
        axis_size=size,
        spmd_axis_name=get_mesh_axes(name, size) or None,
    )(*layout.cut(leaves))
    return unpacked(results)

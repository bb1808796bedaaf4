"""`choice` and `permutation`: draws from the elements of an array."""

import math
from typing import Any

import jax

from .._ground.formats import format_axes
from ..named._array import NamedArray
from ..named._axis import AxisSelector, AxisSpec, find_axis, get_names_and_sizes, parse_axes
from ..named._base import N, check_named, format_shape, with_array
from ._draw_sample import draw_sample


def choice(
    key: jax.Array,
    shape: AxisSpec,
    a: N,
    axis: AxisSelector,
    replace: bool = True,
    p: NamedArray | None = None,
) -> N:
    """Draws from the elements along an axis; see `jax.random.choice`.

    Args:
        key: A random key.
        shape: The axes of the draws, which replace `axis`.
        a: Array to draw from.
        axis: The axis to draw along.
        replace: Whether the same element may be drawn again.
        p: The probabilities, a named array with that axis only; uniform if None.

    Returns:
        Array with the axes of `a`, but those of `shape` in place of the axis, sharded by the active mapping.

    Raises:
        ValueError: If `a` lacks the axis, another axis of `a` is in `shape`, there are too few elements to draw, or `p`
            has other axes.
        TypeError: If `a` or `p` is not a named array.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> a = nym.named([[1, 2], [3, 4]], ("i", "j"))
        >>> nym.random.choice(jax.random.key(0), {"draw": 3}, a, "j", p=nym.named([0.0, 1.0], "j")).array
        Array([[2, 2, 2],
               [4, 4, 4]], dtype=int32)
    """
    check_named(a)
    dim = find_axis(a.names, a.array.shape, axis)
    population = a.array.shape[dim]
    draw_names, draw_sizes = get_names_and_sizes(parse_axes(shape))
    draws = math.prod(draw_sizes)
    if draws > population and (not replace or not population):
        raise ValueError(
            f"{draws} draws, {format_axes(draw_names, draw_sizes)}, need at least as many elements "
            f"along axis {a.names[dim]!r} of {format_shape(a)}" + (", or `replace=True`" if population else "")
        )
    parameters: dict[str, Any] = {"a": a}
    if p is not None:
        check_named(p)
        if (p.names, p.array.shape) != ((a.names[dim],), (population,)):
            raise ValueError(f"`p` must have shape ({a.axes[dim]}), not {format_shape(p)}")
        parameters["p"] = p
    result = draw_sample(
        _draw_choice,
        key,
        (),
        parameters,
        cores={name: x.names for name, x in parameters.items()},
        event=(*a.axes[:dim], *parse_axes(shape), *a.axes[dim + 1 :]),
        population="a",
        draws=draw_sizes,
        axis=dim,
        replace=replace,
    )
    return with_array(a, result.array, result.names)


def _draw_choice(
    key: Any, a: Any, p: Any = None, *, shape: Any, draws: tuple[int, ...], axis: int, replace: bool
) -> Any:
    return jax.random.choice(key, a, draws, replace, p, axis)


def permutation(key: jax.Array, x: N, axis: AxisSelector, independent: bool = False) -> N:
    """Shuffles the elements along an axis; see `jax.random.permutation`.

    Args:
        key: A random key.
        x: Array.
        axis: The axis to shuffle along.
        independent: Whether to shuffle each vector along the axis independently.

    Returns:
        Array with the same axes, sharded by the active mapping.

    Raises:
        ValueError: If the axis is missing.
        TypeError: If `x` is not a named array.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> x = nym.random.permutation(jax.random.key(0), nym.arange(nym.Axis("i", 4)), "i")
        >>> nym.sort(x, "i").array
        Array([0, 1, 2, 3], dtype=int32)
    """
    check_named(x)
    result = draw_sample(
        _draw_permutation,
        key,
        (),
        {"x": x},
        cores={"x": x.names},
        event=x.axes,
        population="x",
        axis=find_axis(x.names, x.array.shape, axis),
        independent=independent,
    )
    return with_array(x, result.array)


def _draw_permutation(key: Any, x: Any, *, shape: Any, axis: int, independent: bool) -> Any:
    return jax.random.permutation(key, x, axis, independent)

"""What all draws share: parameters lined up by name, and one compiled function that draws, shards and returns."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..named._ambient import constrain_sharding, get_out_sharding, place_array
from ..named._array import NamedArray
from ..named._axis import (
    Axis,
    AxisSelector,
    AxisSpec,
    Names,
    check_unique_names,
    find_axes,
    format_axes,
    format_value,
    get_names_and_sizes,
    intern_names,
    parse_axes,
)
from ..named._base import NamedBase, format_shape
from ..named._broadcasting import check_matching_sizes, split_operand
from ..named._cached_jit import cached_jit


Core: TypeAlias = tuple[AxisSelector, ...]


class Layout(NamedTuple):
    """How a parameter lies in the array drawn: the order of its axes, and where it lacks one."""

    order: tuple[int, ...]
    missing: tuple[int, ...]


def drawn(
    sample: Callable[..., Any],
    key: jax.Array,
    shape: AxisSpec,
    parameters: Sequence[Any] = (),
    *,
    cores: Sequence[Core] = (),
    event: Sequence[Axis] = (),
    **options: Hashable,
) -> NamedArray:
    """Draws an array within one compiled function, so that no device ever holds more than its part.

    Args:
        sample: Function of a key and of plain parameters, all with the rank of `shape` unless they are scalars, that
            takes the sizes as `shape` and the options. It is one of a module, not made for the call.
        key: One random key.
        shape: The axes along which draws are independent.
        parameters: Scalars, or named arrays of some of the axes.
        cores: For each parameter the axes that it has besides; `sample` finds them behind the others.
        event: The axes of one draw, which `sample` returns behind the others.
        **options: What else `sample` takes.

    Returns:
        Array of the axes of `shape` and of `event`, sharded as the mapping in force says.

    Raises:
        TypeError: If an axis has no size, or a parameter is a plain array with axes.
        ValueError: If a name occurs twice, a parameter has an axis that the array has not or has in another size, or
            several keys are given.
    """
    axes = parse_axes(shape)
    names, sizes = get_names_and_sizes(axes)
    known = cores or ((),) * len(parameters)
    laid = [_laid_out(value, core, names, sizes) for value, core in zip(parameters, known, strict=True)]
    out = intern_names((*names, *(axis.name for axis in event)))
    check_unique_names(out)
    static = (out, sizes, tuple(axis.size for axis in event), tuple(layout for _, layout in laid), *options.items())
    return place_array(cached_jit(_made, sample, *static)(plain_key(key), *(array for array, _ in laid)))


def _laid_out(value: Any, core: Core, names: Names, sizes: tuple[int, ...]) -> tuple[Any, Layout | None]:
    array, own = split_operand(value)
    if not own:
        return array, None
    at = find_axes(own, array.shape, core)
    rest = tuple(i for i in range(len(own)) if i not in at)
    if extra := [own[i] for i in rest if own[i] not in names]:
        raise ValueError(
            f"a parameter has axes {format_axes(extra)} that the array drawn, {format_axes(names, sizes)}, has not"
        )
    check_matching_sizes((tuple(own[i] for i in rest), tuple(array.shape[i] for i in rest)), (names, sizes))
    order = (*sorted(rest, key=lambda i: names.index(own[i])), *at)
    return array, Layout(order, tuple(i for i, name in enumerate(names) if name not in {own[j] for j in rest}))


def _made(
    sample: Callable[..., Any],
    names: Names,
    sizes: tuple[int, ...],
    event: tuple[int, ...],
    layouts: tuple[Layout | None, ...],
    *rest: Any,
) -> NamedArray:
    split = len(rest) - len(layouts) - 1
    options, key, values = dict(rest[:split]), rest[split], rest[split + 1 :]
    given = [value if at is None else _in_place(value, at) for value, at in zip(values, layouts, strict=True)]

    def run(key: Any, *given: Any) -> Any:
        return sample(key, *given, shape=sizes, **options)

    sharding = get_out_sharding(names, (*sizes, *event)) or _undivided_if_explicit(given)
    runner = run if sharding is None else jax.sharding.auto_axes(run, out_sharding=sharding)
    return constrain_sharding(NamedArray(runner(key, *given), names))


def _in_place(array: Any, layout: Layout) -> Any:
    return jnp.expand_dims(jnp.transpose(array, layout.order), layout.missing)


def _undivided_if_explicit(arrays: Sequence[Any]) -> NamedSharding | None:
    """Returns the sharding of what is drawn from arrays that an Explicit mesh divides, if no mapping says one."""
    shardings = [jax.typeof(array).sharding for array in arrays]
    return next((NamedSharding(one.mesh, PartitionSpec()) for one in shardings if any(one.spec)), None)


def plain_key(key: Any) -> Any:
    """Returns a key without names.

    Raises:
        TypeError: If it is no random key.
        ValueError: If there are several.
    """
    if not isinstance(key, NamedBase):
        if not isinstance(key, jax.Array | np.ndarray):
            raise TypeError(f"A random key comes first, such as `jax.random.key(0)`, not {format_value(key)}.")
        return key
    if key.names:
        raise ValueError(f"one key is needed, {format_shape(key)} are given; use `axonym.vmap` over their axes")
    return key.array

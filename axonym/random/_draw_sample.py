"""The one compiled function that draws and shards an array, with parameters broadcast by name."""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from .._ground.arguments import check_dtype, check_number
from .._ground.caches import cached_jit
from .._ground.errors import make_error
from .._ground.formats import format_axes
from ..named._array import NamedArray
from ..named._axis import (
    Axis,
    AxisSelector,
    AxisSpec,
    Names,
    check_matching_sizes,
    check_unique_names,
    find_axes,
    get_names_and_sizes,
    intern_names,
    parse_axes,
)
from ..named._broadcasting import split_operand
from ..named._operation import run_operation
from ..named._sharding import constrain_sharding, place_array
from ..named._wide_sums import widen_float, widen_float_dtype
from ._keys import as_plain_key


Core: TypeAlias = tuple[AxisSelector, ...]


class ParameterLayout(NamedTuple):
    """How a parameter becomes an array that broadcasts with the result: transposed, then with unit axes inserted."""

    order: tuple[int, ...]
    unit_dims: tuple[int, ...]


def draw_sample(
    sample: Callable[..., Any],
    key: jax.Array,
    shape: AxisSpec,
    parameters: Mapping[str, Any] = {},
    *,
    cores: Mapping[str, Core] = {},
    event: Sequence[Axis] = (),
    population: str | None = None,
    **options: Hashable,
) -> NamedArray:
    """Draws an array within one compiled function, so that no device ever holds more than its shard.

    Floats of fewer than 32 bits are drawn in float32 and rounded: uniform numbers of 16 bits are multiples of 1/128 or
    1/1024, with which nothing rare is ever drawn.

    Args:
        sample: Module-level function of a key, plain parameters by name, the sizes as `shape`, and the options. Each
            parameter is a scalar or has the rank of `shape`, plus its core axes.
        key: One random key.
        shape: The axes along which draws are independent.
        parameters: Scalars, or named arrays of some of the axes.
        cores: Additional axes of parameters, which `sample` finds after the others.
        event: The axes of one draw, which `sample` returns after the others.
        population: The parameter whose elements are drawn, and which keeps its dtype.
        **options: Other arguments of `sample`.

    Returns:
        Array of the axes of `shape` and of `event`, sharded by the active mapping.

    Raises:
        TypeError: If an axis has no size, or a parameter is a plain array with axes.
        ValueError: If a name occurs twice, a parameter has an axis that the array lacks or one of another size, or
            several keys are given.
    """
    plain_key = as_plain_key(key)
    names, sizes = get_names_and_sizes(parse_axes(shape))
    planned = [_plan_parameter(value, cores.get(name, ()), names, sizes) for name, value in parameters.items()]
    layouts = tuple((name, layout) for name, (_, layout) in zip(parameters, planned, strict=True))
    out_names = intern_names((*names, *(axis.name for axis in event)))
    check_unique_names(out_names)
    static = (out_names, sizes, tuple(axis.size for axis in event), layouts, population, tuple(options.items()))
    try:
        return place_array(cached_jit(_draw_array, sample, *static)(plain_key, *(array for array, _ in planned)))
    except TypeError:
        check_dtype(options.get("dtype"))  # says more about a wrong dtype than JAX does
        raise


def check_parameter(label: str, value: Any, **limits: float) -> None:
    """Raises an error for a parameter that is a Python number out of range; elements of arrays are not looked at."""
    if isinstance(value, int | float):
        check_number(label, value, **limits)


def check_bounds(function: str, *, is_strict: bool = False, **bounds: Any) -> None:
    """Raises a ValueError if bounds that are Python numbers are not in order; elements of arrays are not looked at."""
    numbers = [(name, bound) for name, bound in bounds.items() if isinstance(bound, int | float)]
    for (lower_name, lower), (upper_name, upper) in itertools.pairwise(numbers):
        if not (lower < upper if is_strict else lower <= upper):
            raise ValueError(
                f"{function}: `{lower_name}` must be {'below' if is_strict else 'at most'} `{upper_name}`, they are "
                f"{lower} and {upper}"
            )


def _plan_parameter(value: Any, core: Core, names: Names, sizes: tuple[int, ...]) -> tuple[Any, ParameterLayout | None]:
    array, parameter_names = split_operand(value)
    if not parameter_names:
        return array, None
    core_dims = find_axes(parameter_names, array.shape, core)
    batch_dims = tuple(dim for dim in range(len(parameter_names)) if dim not in core_dims)
    batch_names = tuple(parameter_names[dim] for dim in batch_dims)
    extra_names = [name for name in batch_names if name not in names]
    if extra_names:
        raise make_error(
            ValueError,
            f"a parameter has axes {format_axes(extra_names)}, which the array to draw, "
            f"{format_axes(names, sizes)}, lacks",
        )
    check_matching_sizes((batch_names, tuple(array.shape[dim] for dim in batch_dims)), (names, sizes))
    # The axes along which draws are independent come first, in the order of the result, then the core axes.
    order = (*sorted(batch_dims, key=lambda dim: names.index(parameter_names[dim])), *core_dims)
    unit_dims = tuple(dim for dim, name in enumerate(names) if name not in batch_names)
    return array, ParameterLayout(order, unit_dims)


def _draw_array(
    sample: Callable[..., Any],
    names: Names,
    sizes: tuple[int, ...],
    event: tuple[int, ...],
    layouts: tuple[tuple[str, ParameterLayout | None], ...],
    population: str | None,
    static_options: tuple[tuple[str, Hashable], ...],
    key: Any,
    *values: Any,
) -> NamedArray:
    parameters = {
        name: value if layout is None else jnp.expand_dims(jnp.transpose(value, layout.order), layout.unit_dims)
        for (name, layout), value in zip(layouts, values, strict=True)
    }
    options = dict(static_options)
    dtype = options.get("dtype")
    if dtype is not None:
        options["dtype"] = widen_float_dtype(dtype)

    def draw(key: Any, *values: Any) -> Any:
        arguments = {
            name: value if name == population else widen_float(value)
            for name, value in zip(parameters, values, strict=True)
        }
        array = sample(key, shape=sizes, **arguments, **options)
        return array if dtype is None else array.astype(dtype)

    parameter_names: list[Names] = []
    for value, (_, layout) in zip(parameters.values(), layouts, strict=True):
        core_rank = 0 if layout is None else value.ndim - len(names)
        parameter_names.append(() if layout is None else (*names, *[""] * core_rank))
    array = run_operation(
        draw, [(), *parameter_names], names, key, *parameters.values(), by_compiler=True, sizes=(*sizes, *event)
    )
    return constrain_sharding(NamedArray(array, names))

"""How reductions run: axes found by name, masks applied, the result sharded by name."""

import functools
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.typing import ArrayLike
from numpy.lib.array_utils import normalize_axis_tuple

from ..._ground.caches import cached_jit, cached_plan, jit_inline
from ..._ground.formats import format_value
from .._axis import Names, check_matching_sizes, find_axes, find_axis, make_hashable_selection
from .._base import NamedBase, check_named, format_shape, with_array
from .._broadcasting import align_axes, get_array
from .._operation import name_dims, run_operation
from .._sharding import mapping_context


Mask: TypeAlias = NamedBase | ArrayLike
"""What `where` takes: a named array for a named array, and a plain one for a plain array."""


def apply_reduction(
    fn: Callable[..., Any],
    x: Any,
    axis: Any,
    where: Any,
    initial: Any = None,
    by_compiler: bool = False,
    **options: Hashable,
) -> Any:
    """Applies a positional reduction over axes; for a named array, `where` is aligned with it by name.

    For `by_compiler` see `run_operation`.
    """
    if not isinstance(x, NamedBase):
        return _apply_to_plain(fn, x, axis, by_compiler, where=where, initial=initial, **options)
    masks, mask_names = _parse_mask(x, where)
    selected = make_hashable_selection(axis, x.names)
    call, names = _plan_reduction(fn, x.names, x.array.shape, selected, mask_names, by_compiler, *options.items())
    # It may be an array, so it is no option of the plan; many functions lack the argument.
    kwargs = {} if initial is None else {"initial": initial}
    return with_array(x, call(x.array, *masks, **kwargs), names)


def apply_keeping_axes(fn: Callable[..., Any], x: Any, axis: Any, where: Any) -> Any:
    """Applies a positional function over axes that keeps them; for a named array, `where` is aligned by name."""
    if not isinstance(x, NamedBase):
        return _apply_to_plain(fn, x, axis, by_compiler=False, where=where)
    masks, mask_names = _parse_mask(x, where)
    selected = make_hashable_selection(axis, x.names)
    call, _ = _plan_reduction(fn, x.names, x.array.shape, selected, mask_names, False)
    return with_array(x, call(x.array, *masks))


@cached_plan
def _plan_reduction(
    fn: Callable[..., Any],
    names: Names,
    sizes: tuple[int, ...],
    axis: Any,
    mask_names: tuple[Names, ...],
    by_compiler: bool,
    *options: tuple[str, Hashable],
) -> tuple[Callable[..., Any], Names]:
    """Returns the compiled reduction of an array with these names and sizes, and the remaining names.

    It takes the array, the mask if there are `mask_names`, and perhaps `initial`.
    """
    dims = find_axes(names, sizes, axis)
    remaining_names = tuple(name for dim, name in enumerate(names) if dim not in dims)

    def reduce_dims(array: Any, *masks: Any, **initial: Any) -> Any:
        def reduce_where(array: Any, *masks: Any) -> Any:
            kwargs = dict(options) | initial
            if mask_names:
                kwargs["where"] = align_axes(masks[0], mask_names[0], names)
            return fn(array, axis=dims, **kwargs)

        if not by_compiler:
            return reduce_where(array, *masks)
        return run_operation(reduce_where, [names, *mask_names], remaining_names, array, *masks, by_compiler=True)

    return jit_inline(reduce_dims), remaining_names


def _apply_to_plain(fn: Callable[..., Any], x: Any, axis: Any, by_compiler: bool, **options: Any) -> Any:
    """Applies a positional function to a plain array or a number, over axes that are given by position."""
    dims = find_positions(x, axis)
    if any(isinstance(value, NamedBase) for value in options.values()):
        raise TypeError(f"A plain array of shape {np.shape(x)} takes a plain `where`, not a named one.")
    # Not every function has all of these arguments.
    call = functools.partial(fn, axis=dims, **{key: value for key, value in options.items() if value is not None})
    return _call_plain(call, x, dims, by_compiler)


def _call_plain(call: Callable[..., Any], x: Any, removed_dims: tuple[int, ...], by_compiler: bool) -> Any:
    """Calls a function of a plain array or a number; for `by_compiler` see `run_operation`."""
    if not by_compiler or not isinstance(x, jax.Array):  # arrays of NumPy and numbers are on no mesh
        return call(x)
    names = name_dims(x)
    remaining_names = tuple(name for dim, name in enumerate(names) if dim not in removed_dims)
    with mapping_context(None):  # a mapping must not be asked for these names
        return run_operation(call, [names], remaining_names, x, by_compiler=True)


def find_positions(x: Any, axis: Any) -> tuple[int, ...]:
    """Returns the positions of the selected axes of a plain array; of all axes if the selection is None."""
    if not isinstance(x, _PLAIN):
        check_named(x)
    if axis is None:
        return tuple(range(np.ndim(x)))
    for position in axis if isinstance(axis, tuple | list) else (axis,):
        if isinstance(position, bool) or not hasattr(position, "__index__"):
            raise TypeError(
                f"A plain array of shape {np.shape(x)} has no names, so {format_value(position)} is none of its axes; "
                "give positions, or name its axes with `axonym.named(array, axes)`."
            )
    return normalize_axis_tuple(axis, np.ndim(x))


_PLAIN = (jax.Array, np.ndarray, np.generic, int, float, complex)


def find_position(x: Any, axis: Any) -> int:
    """Returns the position of the one selected axis of a plain array."""
    (dim,) = find_positions(x, (axis,))
    return dim


def _parse_mask(x: NamedBase, where: Any) -> tuple[tuple[Any, ...], tuple[Names, ...]]:
    """Returns the array and the names of a mask, each in a tuple that is empty without a mask."""
    if where is None:
        return (), ()
    if not isinstance(where, NamedBase):
        raise TypeError(f"`where` must be a named array with axes of {format_shape(x)}, not {format_value(where)}.")
    if not set(where.names) <= set(x.names):
        raise ValueError(f"`where` must have axes of {format_shape(x)} only, it has {format_shape(where)}")
    check_matching_sizes((x.names, x.array.shape), (where.names, where.array.shape))
    return (where.array,), (where.names,)


def apply_reduction_along(fn: Callable[..., Any], x: Any, axis: Any) -> Any:
    """Applies a positional function that removes one axis, or all of them for None."""
    if not isinstance(x, NamedBase):
        return fn(x, axis=None if axis is None else find_position(x, axis))
    if axis is None:
        return with_array(x, cached_jit(_reduce_flattened, fn, x.names)(get_array(x)), ())
    dim = find_axis(x.names, x.array.shape, axis)
    return with_array(x, cached_jit(_reduce_dim, fn, dim)(x.array), x.names[:dim] + x.names[dim + 1 :])


def _reduce_dim(fn: Callable[..., Any], dim: int, array: Any) -> Any:
    return fn(array, axis=dim)


def _reduce_flattened(fn: Callable[..., Any], names: Names, array: Any) -> Any:
    return run_operation(fn, [names], (), array, whole=names)


def apply_along(
    fn: Callable[..., Any],
    x: Any,
    axis: Any,
    *,
    resizes: bool = False,
    by_compiler: bool = False,
    misses_auto_shards: bool = False,
    **options: Hashable,
) -> Any:
    """Applies a positional function that runs along one axis and keeps it.

    Args:
        fn: Function of an array, `axis` and `options`, which returns an array or a tree of arrays.
        x: Named or plain array.
        axis: The axis.
        resizes: Whether the axis has another size in the results, which are then not sharded along it.
        by_compiler: See `run_operation`.
        misses_auto_shards: See `run_operation`.
        **options: Further arguments of `fn`.
    """
    if not isinstance(x, NamedBase):
        return _call_plain(functools.partial(fn, axis=find_position(x, axis), **options), x, (), by_compiler)
    dim = find_axis(x.names, x.array.shape, axis)
    results = (*x.names[:dim], "", *x.names[dim + 1 :]) if resizes else x.names
    call = _plan_along(fn, x.names, dim, results, by_compiler, misses_auto_shards, *options.items())
    return with_array(x, call(x.array))


@cached_plan
def _plan_along(
    fn: Callable[..., Any],
    names: Names,
    dim: int,
    results: Names,
    by_compiler: bool,
    misses_auto_shards: bool,
    *options: tuple[str, Hashable],
) -> Callable[..., Any]:
    def run_along(array: Any) -> Any:
        return run_operation(
            functools.partial(fn, axis=dim, **dict(options)),
            [names],
            results,
            array,
            whole=(names[dim],),
            by_compiler=by_compiler,
            misses_auto_shards=misses_auto_shards,
        )

    return jit_inline(run_along)

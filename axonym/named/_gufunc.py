"""Generalised ufuncs, as in NumPy: positional functions over core axes, broadcast over loop axes.

Core axes are given by name and moved to the end, in the order given. All other axes are loop axes: they broadcast by
name and come first, and the function has to accept them.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from .._ground.caches import cached_plan, jit_inline
from .._ground.formats import format_axes
from ._axis import (
    AxisSelection,
    AxisSelector,
    Names,
    Operand,
    axis_name,
    check_unique_names,
    find_axes,
    intern_names,
    parse_selection,
)
from ._base import N, check_named, with_array
from ._broadcasting import align_axes, broadcast_names
from ._operation import run_operation
from ._sharding import reshard_by_name


def apply_gufunc(
    fn: Callable[..., Any],
    arrays: Sequence[N],
    cores: Sequence[AxisSelection],
    outs: Sequence[tuple[str, ...]],
    **options: Hashable,
) -> tuple[N, ...]:
    """Applies a positional function over core axes of named arrays, compiled once per signature.

    Args:
        fn: Function of plain arrays that have their loop axes first, of size 1 where an array lacks one, and their
            core axes last. It returns an array for each entry of `outs`, in a tuple if there are several.
        arrays: Arrays of any axes, at least one; arrays without axes may hold a number.
        cores: For each array its core axes, in the order in which `fn` expects them.
        outs: For each result the names of the axes after the loop axes.
        **options: Further arguments of `fn`.

    Returns:
        Tuple of arrays, one for each entry of `outs`.

    Raises:
        TypeError: If one of the arrays is not named.
        ValueError: If a core axis is missing, the loop axes do not broadcast, or a result has a name twice.
    """
    operands: list[Operand] = []
    for x in arrays:
        check_named(x)
        operands.append((x.names, getattr(x.array, "shape", ())))  # numbers, which have no shape, are accepted too
    # As `make_hashable_selection`, without a call for tuples of names, which most operations pass.
    selections = tuple([core if type(core) is tuple else parse_selection(core) for core in cores])
    for selection in selections:
        for selector in selection:
            if type(selector) is not str:
                axis_name(selector)
    call, result_names = _plan_gufunc(fn, tuple(operands), selections, tuple(outs), tuple(options.items()))
    results = call(*[x.array for x in arrays])
    return tuple([with_array(arrays[0], array, names) for array, names in zip(results, result_names, strict=True)])


@cached_plan
def _plan_gufunc(
    fn: Callable[..., Any],
    operands: tuple[Operand, ...],
    cores: tuple[tuple[AxisSelector, ...], ...],
    outs: tuple[Names, ...],
    options: tuple[tuple[str, Hashable], ...],
) -> tuple[Callable[..., Any], tuple[Names, ...]]:
    """Returns the compiled function of plain arrays, and the names of its results."""
    loops: list[Operand] = []
    orders: list[tuple[Names, Names]] = []  # of each operand: its names, and the names that its core axes have
    for (names, sizes), core in zip(operands, cores, strict=True):
        dims = find_axes(names, sizes, core)
        loop_dims = [dim for dim in range(len(names)) if dim not in dims]
        loops.append((tuple(names[dim] for dim in loop_dims), tuple(sizes[dim] for dim in loop_dims)))
        orders.append((names, tuple(names[dim] for dim in dims)))
    loop = broadcast_names(*loops)
    for (names, sizes), (_, core_names) in zip(operands, orders, strict=True):
        if shared_names := set(core_names) & set(loop):
            raise ValueError(
                f"axis {min(shared_names)!r} of {format_axes(names, sizes)} is a core axis here and a loop axis of "
                "another array; `rename` it"
            )
    results = tuple(intern_names((*loop, *out)) for out in outs)
    for names in results:
        check_unique_names(names)
    # An operand without names may be a number.
    aligned = [(*loop, *("" for _ in core_names)) if names else () for names, core_names in orders]

    def call_fn(*arrays: Any) -> tuple[Any, ...]:
        returned = fn(*arrays, **dict(options))
        return tuple(returned) if isinstance(returned, tuple | list) else (returned,)

    def call_gufunc(*inputs: Any) -> tuple[Any, ...]:
        arrays = [align_axes(x, names, (*loop, *core)) for x, (names, core) in zip(inputs, orders, strict=True)]
        # Most of these functions have no sharding rule for an Explicit mesh; the compiler has one for all of them.
        # Results are first whole along core axes, since XLA computes some functions wrongly along a sharded axis.
        returned = run_operation(call_fn, aligned, [loop] * len(results), *arrays, by_compiler=True)
        return tuple(reshard_by_name(array, names) for array, names in zip(returned, results, strict=True))

    return jit_inline(call_gufunc), results

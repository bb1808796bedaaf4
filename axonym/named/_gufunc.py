"""Functions over core axes, in the sense of NumPy's generalised ufuncs: positional functions of an array's last axes.

The core axes are given by name and brought to the end, in the order given. All others are loop axes: they broadcast by
name, stand in front, and the function is expected to run over them.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ._ambient import get_entry_axes, reshard_by_name
from ._axis import (
    AxisSelection,
    AxisSelector,
    Names,
    axis_name,
    check_unique_names,
    find_axes,
    format_axes,
    intern_names,
    parse_selection,
)
from ._base import N, check_named, with_array
from ._broadcasting import align_axes, broadcast_names
from ._cache import cached_plan
from ._cached_jit import cached_jit


Operand: TypeAlias = tuple[Names, tuple[int, ...]]


def apply_gufunc(
    fn: Callable[..., Any],
    arrays: Sequence[N],
    cores: Sequence[AxisSelection],
    outs: Sequence[tuple[str, ...]],
    **options: Hashable,
) -> tuple[N, ...]:
    """Applies a positional function over core axes of named arrays, compiled once per signature.

    Args:
        fn: Function of plain arrays that have their loop axes in front, of size 1 where an array lacks one, and their
            core axes behind. It returns an array for each entry of `outs`, in a tuple if there are several.
        arrays: Arrays of any axes, at least one; those without may hold a number.
        cores: For each array its core axes, in the order in which `fn` finds them.
        outs: For each result the names of the axes behind the loop axes.
        **options: What else `fn` takes.

    Returns:
        Tuple of arrays, one for each entry of `outs`.

    Raises:
        TypeError: If one of the arrays is not named.
        ValueError: If a core axis is not there, the loop axes do not broadcast, or a result has a name twice.
    """
    operands: list[Operand] = []
    for x in arrays:
        check_named(x)
        operands.append((x.names, getattr(x.array, "shape", ())))  # numbers, which have none, do as well
    chosen = tuple([core if type(core) is tuple else parse_selection(core) for core in cores])
    for core in chosen:
        for one in core:
            if type(one) is not str:
                axis_name(one)  # what is no axis may not be hashable
    compiled, results = _compiled(fn, tuple(operands), chosen, tuple(outs), tuple(options.items()))
    found = compiled(*[x.array for x in arrays])
    return tuple([with_array(arrays[0], array, names) for array, names in zip(found, results, strict=True)])


@cached_plan
def _compiled(
    fn: Callable[..., Any],
    operands: tuple[Operand, ...],
    cores: tuple[tuple[AxisSelector, ...], ...],
    outs: tuple[Names, ...],
    options: tuple[tuple[str, Hashable], ...],
) -> tuple[Callable[..., Any], tuple[Names, ...]]:
    """Returns the compiled function of plain arrays, and the names of its results."""
    taken, loop, results = _laid_out(operands, cores, outs)
    return cached_jit(_run, fn, tuple(names for names, _ in operands), taken, loop, results, *options), results


def _laid_out(
    operands: tuple[Operand, ...], cores: tuple[tuple[AxisSelector, ...], ...], outs: tuple[Names, ...]
) -> tuple[tuple[Names, ...], Names, tuple[Names, ...]]:
    """Returns the core names of each operand, the loop names, and all names of each result."""
    dims = [find_axes(names, sizes, core) for (names, sizes), core in zip(operands, cores, strict=True)]
    loop = broadcast_names(*(_left(operand, at) for operand, at in zip(operands, dims, strict=True)))
    taken = tuple(tuple(names[i] for i in at) for (names, _), at in zip(operands, dims, strict=True))
    for (names, sizes), core in zip(operands, taken, strict=True):
        if both := set(core) & set(loop):
            raise ValueError(
                f"axis {min(both)!r} of {format_axes(names, sizes)} takes part, and another array has it beside; `rename` it"
            )
    results = tuple(intern_names((*loop, *out)) for out in outs)
    for names in results:
        check_unique_names(names)
    return taken, loop, results


def _left(operand: Operand, dims: tuple[int, ...]) -> Operand:
    names, sizes = operand
    left = [i for i in range(len(names)) if i not in dims]
    return tuple(names[i] for i in left), tuple(sizes[i] for i in left)


def _run(
    fn: Callable[..., Any],
    operands: tuple[Names, ...],
    cores: tuple[Names, ...],
    loop: Names,
    results: tuple[Names, ...],
    *rest: Any,
) -> tuple[Any, ...]:
    options, given = dict(rest[: -len(operands)]), rest[-len(operands) :]
    arrays = [align_axes(x, own, (*loop, *core)) for x, own, core in zip(given, operands, cores, strict=True)]

    def run(*arrays: Any) -> tuple[Any, ...]:
        returned = fn(*arrays, **options)
        return tuple(returned) if isinstance(returned, tuple | list) else (returned,)

    runner: Any = run
    mesh = jax.typeof(arrays[0]).sharding.mesh
    if AxisType.Explicit in mesh.axis_types:
        # Most functions of core axes have no rule for the shardings of an Explicit mesh; the compiler has one for all.
        spec = get_loop_spec(zip(operands, given, strict=True), loop)
        specs = (PartitionSpec(*spec, *(None for _ in names[len(loop) :])) for names in results)
        runner = jax.sharding.auto_axes(run, out_sharding=tuple(NamedSharding(mesh, one) for one in specs))
    return tuple(reshard_by_name(array, names) for array, names in zip(runner(*arrays), results, strict=True))


def get_loop_spec(operands: Iterable[tuple[Names, Any]], loop: Names) -> tuple[Any, ...]:
    """Returns the spec of loop axes that are sharded as those of the operands are, each given by names and array."""
    found: dict[str, Any] = {}
    taken: set[str] = set()
    for names, array in operands:
        for name, entry in zip(names, jax.typeof(array).sharding.spec, strict=False):
            axes = set(get_entry_axes(entry))
            if axes and name in loop and name not in found and not axes & taken:
                found[name] = entry
                taken |= axes
    return tuple(found.get(name) for name in loop)

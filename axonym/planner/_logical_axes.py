"""Which named axes a collective gathers, adds up or moves, as far as scopes and the arguments of a program tell."""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jax.sharding import NamedSharding

from ..named._axis_layout import get_entry_axes
from ._argument_groups import ArgumentArray
from ._hlo_program import HloArray
from ._origin import Origin


_RESULT_AXES = re.compile(r"-> ([^()]*)\)")


@dataclass(frozen=True)
class ArgumentAxes:
    """The named axes of the arguments of a program.

    Attributes:
        sharded: The names of the axes that are sharded over each mesh axis.
        sizes: The largest size of each axis.
        data: The names that no parameter has.
    """

    sharded: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    data: frozenset[str] = frozenset()


def list_argument_axes(arrays: Iterable[ArgumentArray]) -> ArgumentAxes:
    """Returns the named axes of arguments."""
    sharded: dict[str, dict[str, None]] = {}
    sizes: dict[str, int] = {}
    held: set[str] = set()
    for one in arrays:
        names = one.names or ()
        held |= {*names} if one.group != "inputs" else set()
        sizes |= {name: max(size, sizes.get(name, 0)) for name, size in zip(names, one.shape, strict=False)}
        spec = one.sharding.spec if isinstance(one.sharding, NamedSharding) else ()
        for name, entry in zip(names, spec, strict=False):
            for mesh_axis in get_entry_axes(entry):
                sharded.setdefault(mesh_axis, {})[name] = None
    return ArgumentAxes(
        {mesh_axis: tuple(names) for mesh_axis, names in sharded.items()}, sizes, frozenset(sizes.keys() - held)
    )


def infer_logical_axes(
    kind: str,
    origin: Origin,
    mesh_axes: Sequence[str],
    result: HloArray,
    gathered: Collection[int],
    axes: ArgumentAxes,
) -> tuple[str, ...]:
    """Returns the named axes that a collective gathers, adds up or moves.

    Candidates are the names that are sharded over its mesh axes. An all-gather makes axes of certain sizes whole
    (`gathered`): of each size an axis of the operation if there is one, or else all with this size. The
    gradient of a weight is added up over an axis of the data that the operation does not have, and the gradient of what
    is multiplied with the weight over an axis of the operation's result.
    """
    names = tuple(dict.fromkeys(name for axis in mesh_axes for name in axes.sharded.get(axis, ())))
    sized = [[name for name in names if axes.sizes[name] == size] for size in gathered]
    whole = {name for same in sized for name in _choose_inside(same, origin.axes)}
    if whole:
        return tuple(name for name in names if name in whole)
    inside = tuple(name for name in names if name in origin.axes)
    outside = tuple(name for name in names if name not in origin.axes)
    if kind not in ("all-reduce", "reduce-scatter") or origin.run_in != "backward" or not origin.axes:
        return inside or names
    results = {name for part in _RESULT_AXES.findall(origin.operation) for name in part.split(", ")}
    summed = tuple(name for name in inside if name in results)
    data = tuple(name for name in outside if name in axes.data)
    if summed and not (data and _is_weight(result, [axes.sizes.get(name, 0) for name in origin.axes])):
        return summed
    return data or outside or inside


def _choose_inside(names: Sequence[str], axes: Sequence[str]) -> Sequence[str]:
    """Returns the names that are among the axes of an operation, or else all of them."""
    return [name for name in names if name in axes] or names


def _is_weight(result: HloArray, sizes: Sequence[int]) -> bool:
    """Returns whether a result has the shape of a part of an array with axes of these sizes."""
    shape = [size for size in result.shape if size > 1]
    return any(
        all(size % own == 0 for size, own in zip(chosen, shape, strict=True))
        for chosen in itertools.permutations(sizes, len(shape))
    )

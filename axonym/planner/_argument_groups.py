"""What the arguments of a program are: parameters, optimizer state or inputs; and the bytes that each of them takes."""

import collections
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path

from ..named._array import NamedArray, is_named_array
from ._hlo_program import HOST_SPACE, HloInstruction, HloProgram


ArgumentGroup: TypeAlias = Literal["parameters", "optimizer state", "inputs"]

_ROOT = re.compile(r"^[^.\[]*")
_SPACE = re.compile(r"S\((\d+)\)")


class ArgumentArray(NamedTuple):
    """An array among the arguments: its path below the argument, its names and shape, its dtype, and its group."""

    path: str
    names: tuple[str, ...] | None
    shape: tuple[int, ...]
    dtype: Any
    sharding: Any
    group: ArgumentGroup = "inputs"

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape on one device."""
        return self.shape if self.sharding is None else self.sharding.shard_shape(self.shape)


def group_arguments(arguments: Sequence[Any]) -> list[ArgumentArray]:
    """Returns the arrays of arguments, each with its group.

    - Optimizer state is in a named tuple of Optax, or in an argument after the parameters whose arrays all end in path,
      names and shape as parameters do: moments in plain dictionaries, averages of parameters.
    - Parameters are the rest of the first argument that has floating-point arrays beside optimizer state, and that of
      each other argument whose arrays end so as some of the optimizer state.
    - All else are inputs.
    """
    split = [_split_states(tree) for tree in arguments]
    states = [array for state, _ in split for array in state]
    parameters: list[ArgumentArray] = []
    found: list[ArgumentArray] = []
    for state, rest in split:
        group: ArgumentGroup = "inputs"
        if parameters and _mirror(rest, parameters):
            group = "optimizer state"
        elif any(jnp.issubdtype(one.dtype, jnp.floating) for one in rest) and (
            not parameters or _mirror(states, rest, some=True)
        ):
            group = "parameters"
            parameters += rest
        found += [one._replace(group="optimizer state") for one in state]
        found += [one._replace(group=group) for one in rest]
    return found


def _split_states(tree: Any) -> tuple[list[ArgumentArray], list[ArgumentArray]]:
    """Returns the arrays in states of Optax, and the others."""
    state: list[ArgumentArray] = []
    rest: list[ArgumentArray] = []
    parts, _ = tree_flatten_with_path(tree, is_leaf=lambda x: is_named_array(x) or _is_optax_state(x))
    for path, part in parts:
        leaves, _ = tree_flatten_with_path(part, is_leaf=is_named_array)
        for below, leaf in leaves:
            array = leaf.array if isinstance(leaf, NamedArray) else leaf
            if isinstance(array, jax.ShapeDtypeStruct):
                names = leaf.names if isinstance(leaf, NamedArray) else None
                where = keystr((*path, *below)).removesuffix(".array")
                one = ArgumentArray(where, names, array.shape, array.dtype, array.sharding)
                (state if _is_optax_state(part) else rest).append(one)
    return state, rest


def _is_optax_state(x: Any) -> bool:
    return isinstance(x, tuple) and hasattr(x, "_fields") and type(x).__module__.partition(".")[0] == "optax"


def _mirror(arrays: Sequence[ArgumentArray], parameters: Sequence[ArgumentArray], some: bool = False) -> bool:
    """Returns whether all arrays with axes, or some, end in path, names and shape as parameters do."""
    ends = collections.defaultdict(list)
    for one in parameters:
        ends[one.names, one.shape].append(one.path)
    checks = [
        any(one.path.endswith(end) for end in ends.get((one.names, one.shape), ())) for one in arrays if one.shape
    ]
    return any(checks) if some else bool(checks) and all(checks)


def count_argument_groups(
    program: HloProgram, arrays: Sequence[ArgumentArray], sizes: Sequence[int]
) -> dict[ArgumentGroup, int]:
    """Returns the bytes on a device of each group of arguments that the program takes; those on the host do not count.

    Args:
        program: The program. JAX leaves out the arguments that it does not use.
        arrays: The arrays of the arguments.
        sizes: The bytes of each parameter of the program by number, with what its layout adds; empty if not known.
    """
    found: dict[ArgumentGroup, int] = {"parameters": 0, "optimizer state": 0, "inputs": 0}
    by_path: dict[tuple[str, tuple[int, ...]], list[ArgumentArray]] = {}
    for one in arrays:
        by_path.setdefault((one.path, one.shard_shape), []).append(one)
    left, unnamed = [*arrays], list[tuple[int, tuple[int, ...]]]()
    for number, parameter in _list_entry_parameters(program):
        array = _find_array(parameter, by_path)
        if array is not None and array in left:
            left.remove(array)
        if not is_on_host(parameter):
            size = sizes[number] if number < len(sizes) else sum(part.bytes for part in parameter.results)
            if array is None:
                unnamed.append((size, parameter.results[0].shape))
            else:
                found[array.group] += size
    for size, shape in unnamed:  # XLA for TPUs names a parameter that goes straight into a loop after the loop
        array = next((one for one in left if one.shard_shape == shape), None)
        if array is not None:
            left.remove(array)
        found["inputs" if array is None else array.group] += size
    return found


def _list_entry_parameters(program: HloProgram) -> Iterator[tuple[int, HloInstruction]]:
    for one in program.by_computation.get(program.entry, ()):
        if one.opcode == "parameter":
            yield int(one.rest.partition(")")[0]), one


def _find_array(
    parameter: HloInstruction, by_path: Mapping[tuple[str, tuple[int, ...]], list[ArgumentArray]]
) -> ArgumentArray | None:
    """Returns the argument that a parameter of a program is, which has the argument's path for a name, if any."""
    if "(" in parameter.op_name:  # the name of an operation
        return None
    path = _ROOT.sub("", parameter.op_name.replace("\\'", "'").removesuffix(".array"), count=1)
    shape = parameter.results[0].shape
    key = (path, shape)
    if key not in by_path:  # of a function of `*args`, or a random key, which has one more axis in the program
        ends = [one for one in by_path if path.endswith(one[0])]
        key = max(ends, key=lambda one: (one[1] == shape, len(one[0])), default=key)
    same = by_path.get(key, [])
    if not same:
        return None
    return same.pop(0) if len(same) > 1 else same[0]


def find_memory_space(one: HloInstruction) -> int:
    """Returns the number of the memory space in the layout of a result: 0 for the memory of the device."""
    found = _SPACE.search(one.shape)
    return int(found[1]) if found else 0


def is_on_host(one: HloInstruction) -> bool:
    """Returns whether a result is in the memory of the host."""
    return find_memory_space(one) == HOST_SPACE

"""What the arguments of a program are: parameters, optimizer state, caches or inputs; and the bytes of each of them."""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path

from ...named._array import NamedArray, is_named_array
from ...nn import KVCache
from ...partitioning._leaves import count_array_bytes
from . import _xla_text as xla
from ._hlo_program import HloInstruction, HloProgram


ArgumentGroup: TypeAlias = Literal["parameters", "optimizer state", "cache", "inputs"]


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

    @property
    def bytes(self) -> int:
        """The bytes on one device."""
        return count_array_bytes(self.dtype, self.shard_shape)


def group_arguments(arguments: Sequence[Any]) -> list[ArgumentArray]:
    """Returns the arrays of arguments, each with its group.

    - Optimizer state is in a named tuple of Optax, or in an argument after the parameters whose arrays all end in path,
      names and shape as parameters do: moments in plain dictionaries, averages of parameters.
    - Parameters are the other arrays of the first argument that has floating-point arrays beside optimizer state, and
      those of each further argument whose arrays end so as some of the optimizer state.
    - Caches are in a `KVCache`.
    - All else are inputs.
    """
    split = [_split_states(tree) for tree in arguments]
    arrays: list[ArgumentArray] = []
    for (state, plain), group in zip(split, _group_plain_arrays(split), strict=True):
        arrays += state
        arrays += [array._replace(group=group) for array in plain]
    return arrays


def map_optimizer_state(fn: Callable[[Any], Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Returns arguments with a function applied to the leaves of the optimizer state."""

    def map_states(node: Any) -> Any:
        return jax.tree.map(fn, node) if _find_state_group(node) == "optimizer state" else node

    groups = _group_plain_arrays([_split_states(tree) for tree in arguments])
    return tuple(
        jax.tree.map(fn, tree)
        if group == "optimizer state"
        else jax.tree.map(map_states, tree, is_leaf=lambda x: _find_state_group(x) is not None)
        for tree, group in zip(arguments, groups, strict=True)
    )


def _group_plain_arrays(
    split: Sequence[tuple[list[ArgumentArray], list[ArgumentArray]]],
) -> Iterator[ArgumentGroup]:
    """Yields the group of those arrays of each argument that are in no state of Optax and in no cache."""
    states = [array for state, _ in split for array in state if array.group == "optimizer state"]
    parameters: list[ArgumentArray] = []
    for _, plain in split:
        group: ArgumentGroup = "inputs"
        has_floats = any(jnp.issubdtype(array.dtype, jnp.floating) for array in plain)
        if parameters and all(matches := _match_parameters(plain, parameters)) and matches:
            group = "optimizer state"
        elif has_floats and (not parameters or any(_match_parameters(states, plain))):
            group = "parameters"
            parameters += plain
        yield group


def _split_states(tree: Any) -> tuple[list[ArgumentArray], list[ArgumentArray]]:
    """Returns the arrays in states of Optax and in caches, with their group, and the others."""
    state: list[ArgumentArray] = []
    plain: list[ArgumentArray] = []
    nodes, _ = tree_flatten_with_path(tree, is_leaf=lambda x: is_named_array(x) or _find_state_group(x) is not None)
    for path, node in nodes:
        group = _find_state_group(node)
        leaves, _ = tree_flatten_with_path(node, is_leaf=is_named_array)
        for inner_path, leaf in leaves:
            array = leaf.array if isinstance(leaf, NamedArray) else leaf
            if isinstance(array, jax.ShapeDtypeStruct):
                argument = ArgumentArray(
                    path=keystr((*path, *inner_path)).removesuffix(".array"),
                    names=leaf.names if isinstance(leaf, NamedArray) else None,
                    shape=array.shape,
                    dtype=array.dtype,
                    sharding=array.sharding,
                    group=group or "inputs",
                )
                (plain if group is None else state).append(argument)
    return state, plain


def _find_state_group(x: Any) -> ArgumentGroup | None:
    """Returns the group of a node that is a state of Optax or a cache."""
    if isinstance(x, KVCache):
        return "cache"
    is_optax_state = isinstance(x, tuple) and hasattr(x, "_fields") and type(x).__module__.partition(".")[0] == "optax"
    return "optimizer state" if is_optax_state else None


def _match_parameters(arrays: Sequence[ArgumentArray], parameters: Sequence[ArgumentArray]) -> list[bool]:
    """Returns for each array with axes whether it ends in path, names and shape as a parameter does."""
    paths = collections.defaultdict(list)
    for parameter in parameters:
        paths[parameter.names, parameter.shape].append(parameter.path)
    return [
        any(array.path.endswith(path) for path in paths.get((array.names, array.shape), ()))
        for array in arrays
        if array.shape
    ]


def count_argument_groups(
    hlo: HloProgram, arrays: Sequence[ArgumentArray], sizes: Sequence[int]
) -> dict[ArgumentGroup, int]:
    """Returns the bytes on a device of each group of arguments that the program takes; those on the host do not count.

    Of caches there are only those that it has.

    Args:
        hlo: The program. JAX leaves out the arguments that it does not use.
        arrays: The arrays of the arguments.
        sizes: The bytes of each parameter of the program by number, with what its layout adds; empty if not known.
    """
    groups: dict[ArgumentGroup, int] = {"parameters": 0, "optimizer state": 0, "inputs": 0}
    by_path: dict[tuple[str, tuple[int, ...]], list[ArgumentArray]] = {}
    for array in arrays:
        by_path.setdefault((array.path, array.shard_shape), []).append(array)
    unused, unnamed = [*arrays], list[tuple[int, tuple[int, ...]]]()
    for parameter in hlo.by_computation.get(hlo.entry, ()):
        if parameter.opcode != "parameter":
            continue
        array = _find_array(parameter, by_path)
        if array is not None and array in unused:
            unused.remove(array)
        if not parameter.is_on_host:
            number = parameter.parameter_number
            size = sizes[number] if number < len(sizes) else sum(result.bytes for result in parameter.results)
            if array is None:
                unnamed.append((size, parameter.results[0].shape))
            else:
                groups[array.group] = groups.get(array.group, 0) + size
    for size, shape in unnamed:  # XLA for TPUs names a parameter that goes straight into a loop after the loop
        array = next((array for array in unused if array.shard_shape == shape), None)
        if array is not None:
            unused.remove(array)
        group = "inputs" if array is None else array.group
        groups[group] = groups.get(group, 0) + size
    return groups


def _find_array(
    parameter: HloInstruction, by_path: Mapping[tuple[str, tuple[int, ...]], list[ArgumentArray]]
) -> ArgumentArray | None:
    """Returns the argument that a parameter of a program is, which has the argument's path for a name, if any."""
    if "(" in parameter.op_name:  # the name of an operation
        return None
    path = xla.ARGUMENT_NAME.sub("", parameter.op_name.replace("\\'", "'").removesuffix(".array"), count=1)
    shape = parameter.results[0].shape
    key = (path, shape)
    if key not in by_path:  # of a function of `*args`, or a random key, which has one more axis in the program
        candidates = [candidate for candidate in by_path if path.endswith(candidate[0])]
        key = max(candidates, key=lambda candidate: (candidate[1] == shape, len(candidate[0])), default=key)
    same = by_path.get(key, [])
    if not same:
        return None
    return same.pop(0) if len(same) > 1 else same[0]

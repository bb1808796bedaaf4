"""What a loop over an axis passes to its body: slices of arrays, and a key for each step."""

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..._ground.errors import make_error
from ..._ground.formats import format_value, suggest_name
from .._array import NamedArray, is_named_array
from .._axis import (
    Axis,
    AxisSelection,
    AxisSelector,
    axis_name,
    check_selected_once,
    find_axis,
    intern_names,
    parse_selection,
)
from .._base import format_shape, get_plain_array, with_array
from .._operation import name_dims, run_operation
from .._static_result import is_array, pack_result


SliceDim: TypeAlias = bool | int | None
SliceSpec: TypeAlias = SliceDim | Callable[[Any], SliceDim]
"""Whether a plain array is sliced: True means along its first axis, an integer along the axis at that position.

A function is called with the array and returns one of these.
"""

UNSLICED: Any = object()
"""The `SliceSpec` of an argument that every slice receives as it is, even if it is a named array with the axis."""


def is_array_with_axes(x: Any) -> bool:
    """Returns whether something is a plain array with at least one axis."""
    return isinstance(x, jax.Array | np.ndarray) and bool(x.shape)


def parse_mapped_axes(axis: AxisSelection) -> tuple[AxisSelector, ...]:
    """Returns the axes to map over, outermost first; raises a ValueError if one is given twice."""
    axes = parse_selection(axis)
    check_selected_once(tuple(map(axis_name, axes)))
    return axes


class SlicedArgs(NamedTuple):
    """Arguments with some arrays to slice along an axis; everything else is passed on unchanged."""

    axis: Axis
    treedef: Any
    leaves: list[Any]
    dims: list[int | None]  # for each leaf the position of the axis, None if the leaf is not sliced

    def get_sliced(self) -> tuple[list[Any], list[int]]:
        """Returns the plain arrays to slice, and the position of the axis in each."""
        sliced = [(leaf, dim) for leaf, dim in zip(self.leaves, self.dims, strict=True) if dim is not None]
        return [get_plain_array(leaf) for leaf, _ in sliced], [dim for _, dim in sliced]

    def split_slices(self) -> list[list[Any]]:
        """Returns the plain arrays of each slice, as `insert_slices` takes them."""

        def take_slices(dim: int, array: Any) -> list[Any]:
            return [jax.lax.index_in_dim(array, index, dim, keepdims=False) for index in range(self.axis.size)]

        slices = []
        for array, dim in zip(*self.get_sliced(), strict=True):
            names = name_dims(array)
            slices.append(run_operation(functools.partial(take_slices, dim), [names], None, array, whole=(names[dim],)))
        if not slices:
            return [[] for _ in range(self.axis.size)]
        return [list(step) for step in zip(*slices, strict=True)]

    def insert_slices(self, slices: Sequence[Any]) -> Any:
        """Returns the arguments with slices, given as plain arrays, in place of the arrays that are sliced.

        A single random key is a plain array, because functions of `jax.random` take no other.
        """
        remaining = iter(slices)
        pairs = zip(self.leaves, self.dims, strict=True)
        leaves: list[Any] = []
        for leaf, dim in pairs:
            if dim is None:
                leaves.append(leaf)
                continue
            array = next(remaining)
            if isinstance(leaf, NamedArray) and (array.ndim or not jnp.issubdtype(array.dtype, jax.dtypes.prng_key)):
                array = with_array(leaf, array, leaf.names[:dim] + leaf.names[dim + 1 :])
            leaves.append(array)
        return jax.tree.unflatten(self.treedef, leaves)


def slice_args(
    args: Any,
    axis: AxisSelector,
    specs: SliceSpec | list[SliceSpec],
    function: str,
    called: Callable[..., Any] | None = None,
) -> SlicedArgs:
    """Returns how a pair of arguments by position and by name is sliced, by one spec for all leaves or one for each.

    Errors name `function`, and the arguments as `called` does, the function that gets the slices; `scan` and `fold`
    call it with the carry first.
    """
    leaves, treedef = jax.tree.flatten(args, is_leaf=is_named_array)
    leaf_specs = specs if isinstance(specs, list) else [specs] * len(leaves)
    name = axis_name(axis)
    dims = [_find_sliced_dim(leaf, axis, name, spec) for leaf, spec in zip(leaves, leaf_specs, strict=True)]
    size = _find_common_size(leaves, dims, axis, name, function)
    for position, (leaf, dim) in enumerate(zip(leaves, dims, strict=True)):
        if dim is not None and get_plain_array(leaf).shape[dim] != size:
            argument = name_argument(treedef, position, called, function in ("scan", "fold"))
            label = format_shape(leaf) if is_named_array(leaf) else f"a plain array of shape {leaf.shape}"
            leaf_size = get_plain_array(leaf).shape[dim]
            origin = f"it is {argument}"
            if not is_named_array(leaf) and dim == 0:
                origin = f"{argument} has leading dimension {leaf_size}"
            raise make_error(
                ValueError,
                f"`{function}` over axis {name!r} of size {size} got {label}, which has size {leaf_size} there; "
                f"{origin}",
            )
    return SlicedArgs(Axis(name, size), treedef, leaves, dims)


def _find_common_size(leaves: list[Any], dims: list[int | None], axis: AxisSelector, name: str, function: str) -> int:
    if isinstance(axis, Axis):
        return axis.size
    sliced = [(leaf, dim) for leaf, dim in zip(leaves, dims, strict=True) if dim is not None]
    if not sliced:
        names = [leaf_name for leaf in leaves if is_named_array(leaf) for leaf_name in leaf.names]
        hint = suggest_name(name, names) or "; give an `Axis` with its size"
        raise make_error(ValueError, f"`{function}` over axis {name!r}: no argument has it{hint}")
    # A plain array may be sliced by mistake, so that errors are about the array that differs from a named one.
    leaf, dim = next(((leaf, dim) for leaf, dim in sliced if is_named_array(leaf)), sliced[0])
    return get_plain_array(leaf).shape[dim]


def name_argument(treedef: Any, position: int, called: Callable[..., Any] | None, has_carry: bool) -> str:
    """Returns the argument that has a leaf, and the path of the leaf in it, as in `model.blocks[0]`."""
    paths = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(treedef, range(treedef.num_leaves)))
    _, key, *leaf_path = paths[position][0]  # the first key tells arguments by position from those by name
    if isinstance(key, jax.tree_util.SequenceKey):
        name = _name_parameter(called, key.idx + has_carry) or f"args[{key.idx}]"
    else:
        name = jax.tree_util.keystr((key,), simple=True)
    return name + jax.tree_util.keystr(tuple(leaf_path))


def _name_parameter(called: Callable[..., Any] | None, position: int) -> str | None:
    """Returns the name of a parameter by position, None if it is not known."""
    try:
        parameters = inspect.signature(called).parameters.values() if called is not None else ()
    except (TypeError, ValueError):  # a function without a signature
        return None
    positional_kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [parameter.name for parameter in parameters if parameter.kind in positional_kinds]
    return names[position] if position < len(names) else None


def _find_sliced_dim(leaf: Any, axis: AxisSelector, name: str, spec: SliceSpec) -> int | None:
    if spec is UNSLICED:
        return None
    if isinstance(leaf, NamedArray):
        return find_axis(leaf.names, leaf.array.shape, axis) if name in leaf.names else None
    if not is_array_with_axes(leaf):
        return None
    dim: Any = spec(leaf) if callable(spec) else spec
    if dim is None or isinstance(dim, bool | np.bool_):
        return 0 if dim else None
    if not isinstance(dim, int | np.integer):
        raise make_error(
            TypeError,
            "Whether a plain array is sliced must be True, False, None or the position of an axis, "
            f"not {format_value(dim)}.",
        )
    if not -leaf.ndim <= dim < leaf.ndim:
        raise make_error(ValueError, f"a plain array of shape {leaf.shape} has no axis at position {dim}")
    return operator.index(dim) % leaf.ndim


def pack_stacked(result: Any, axis: str) -> Any:
    """Returns the result for one slice, with the names of the stacked results."""

    def prepend_axis(leaf: Any) -> Any:
        # An optimizer's state may have named arrays without an array: a `MaskedNode` of optax is in its place.
        if not isinstance(leaf, NamedArray) or not is_array(leaf.array):
            return leaf
        if axis in leaf.names:
            raise make_error(
                ValueError,
                f"the result {format_shape(leaf)} already has axis {axis!r}, along which results are stacked",
            )
        return with_array(leaf, leaf.array, intern_names((axis, *leaf.names)))

    return pack_result(jax.tree.map(prepend_axis, result, is_leaf=is_named_array))

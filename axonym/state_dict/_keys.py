"""What the functions of state dicts share: checks, children of nodes, random keys and merged dimensions."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.ma import MaskedArray

from .._ground.atomic_file import check_folder_path
from .._ground.formats import format_value
from .._ground.jax_compat import is_traced
from ..named._array import is_named_array
from ..named._numpy_input import MASK_PROBLEM
from ..named._sharding import mapping_context


T = TypeVar("T")

FieldNames: TypeAlias = Mapping[str, str | None]
"""What fields are called in a state dict; None leaves out the name of a field. Other fields keep their names."""

NO_NAMES: FieldNames = MappingProxyType({})
MergedDims: TypeAlias = tuple[tuple[int, ...], ...]
"""Which dimensions of an array each dimension of another one consists of."""


def add_prefix(prefix: str | None, name: str | None) -> str:
    """Joins two parts of a key by a dot; either may be None or empty.

    Args:
        prefix: The first part.
        name: The second part.

    Returns:
        The key, empty if both parts are.

    Raises:
        TypeError: If a part is not a string.

    Example:
        >>> import axonym as nym
        >>> nym.state_dict.add_prefix("blocks.0", "weight"), nym.state_dict.add_prefix(None, "weight")
        ('blocks.0.weight', 'weight')
    """
    for part in (prefix, name):
        check_key_part(part)
    return ".".join(part for part in (prefix, name) if part)


def check_key_part(part: Any) -> None:
    if part is not None and not isinstance(part, str):
        raise TypeError(f"a prefix or name in a state dict is a string or None, not {format_value(part)}")


def check_field_names(names: Any) -> None:
    if not isinstance(names, Mapping):
        raise TypeError(f"`names` goes from fields to their names in the state dict, not {format_value(names)}")


def check_state_dict(state_dict: Any, hint: str = "") -> None:
    """Raises a TypeError unless something is a mapping with strings as keys."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"a state dict is a dict of arrays by key, not {format_value(state_dict)}{hint}")
    for key in state_dict:
        if not isinstance(key, str):
            raise TypeError(f"the keys of a state dict are strings, not {format_value(key)}")


def parse_folder(function: str, folder: Any) -> Path:
    """Returns the path of a folder; raises a TypeError for anything else, a ValueError for an empty path."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"`{function}` takes a tree first and then the path of a folder, not {format_value(folder)}")
    return check_folder_path(folder, "`folder`")


def make_depth_error() -> ValueError:
    """Returns the error for a tree that is nested more deeply than Python's limit of recursion."""
    return ValueError(
        f"the tree is nested too deeply for {sys.getrecursionlimit()} calls of Python; nest it less, or allow "
        "more with `sys.setrecursionlimit`"
    )


def is_array_leaf(x: Any) -> bool:
    """Returns whether something is an array, with names or without, or the shape of one."""
    return is_named_array(x) or isinstance(x, jax.Array | np.ndarray | jax.ShapeDtypeStruct)


def list_children(tree: Any) -> list[tuple[str, Any]]:
    """Returns the name and the value of each child of a node; a leaf has none."""
    pairs = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: x is not tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), child) for path, child in pairs if path]


def replace_children(tree: Any, children: list[Any]) -> Any:
    """Returns a node with other children."""
    return jax.tree.unflatten(jax.tree.structure(tree, is_leaf=lambda x: x is not tree), children)


def check_can_be_saved(location: str, array: Any) -> None:
    """Raises a ValueError if an array cannot be saved.

    These are shapes, and arrays that have a mask, are traced, were donated, or are on devices of a single other
    process. That process would take the array for one that all processes have, and leave it to process 0 to write.
    """
    if isinstance(array, jax.ShapeDtypeStruct):
        raise ValueError(f"{location} is a shape without data; save arrays")
    if isinstance(array, MaskedArray):
        raise ValueError(f"{location} {MASK_PROBLEM}")
    if is_traced(array):
        raise ValueError(f"{location} is traced; arrays are saved outside of `jit`")
    if isinstance(array, jax.Array) and array.is_deleted():
        raise ValueError(f"{location} was donated to a compiled function; save what that function returned")
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        owners = {device.process_index for device in array.sharding.device_set}
        if len(owners) == 1:
            raise ValueError(
                f"{location} is on devices of process {owners.pop()} alone; shard it over those of all processes"
            )


def find_method(tree: Any, name: str) -> Callable[..., Any] | None:
    """Returns a method that a module may have to customise something, or None."""
    return None if isinstance(tree, type) else getattr(tree, name, None)


def make_unnamed_array_error() -> ValueError:
    return ValueError("an array that is not in a field has no key of its own in a state dict; give a `prefix`")


def eval_shapes(fn: Callable[[Any], T], tree: Any) -> T:
    """Evaluates the shapes of a function's result; shardings of arrays in the tree are ignored."""

    def drop_sharding(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, jax.Array | np.ndarray) else x

    return eqx.filter_eval_shape(fn, jax.tree.map(drop_sharding, tree))


def has_key_dtype(x: Any) -> bool:
    """Returns whether an array consists of random keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def describe_random_keys(x: Any) -> tuple[str, jax.ShapeDtypeStruct]:
    """Returns the name of the generator of random keys, and the shape of their data."""
    names: list[str] = []

    def get_data(keys: Any) -> Any:
        names.append(str(jax.random.key_impl(keys)))
        return jax.random.key_data(keys)

    data = jax.eval_shape(get_data, jax.ShapeDtypeStruct(x.shape, x.dtype))
    return names[0], data


def find_merged_dims(module: Any) -> list[MergedDims] | None:
    """Returns the dimensions that the `flatten_for_export` of a module merges, for each of its arrays.

    Returns None if that method does anything but reshape arrays.
    """
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array_leaf(x) else x, module)
    arrays, static = eqx.partition(shapes, is_array_leaf)

    def flatten(arrays: Any) -> Any:
        return jax.tree.leaves(eqx.filter(eqx.combine(arrays, static).flatten_for_export(), is_array_leaf))

    with mapping_context(None):  # without a mapping, which would add constraints
        jaxpr: Any = jax.make_jaxpr(flatten)(arrays)
    # Each result has to be the argument at the same position, reshaped any number of times.
    sources = {variable: position for position, variable in enumerate(jaxpr.invars)}
    for equation in jaxpr.eqns:
        if equation.primitive.name != "reshape":
            return None
        sources[equation.outvars[0]] = sources[equation.invars[0]]
    if [sources.get(variable) for variable in jaxpr.outvars] != [*range(len(jaxpr.invars))]:
        return None
    pairs = zip(jaxpr.invars, jaxpr.outvars, strict=True)
    dims = [merge_dims(variable.aval.shape, merged.aval.shape) for variable, merged in pairs]
    return None if None in dims else dims  # pyright: ignore[reportReturnType]


def merge_dims(sizes: tuple[int, ...], merged: tuple[int, ...]) -> MergedDims | None:
    """Returns which neighbouring dimensions multiply to each merged size; None if they do not.

    Example:
        >>> merge_dims((2, 3, 8, 32), (48, 32))
        ((0, 1, 2), (3,))
    """
    groups: list[list[int]] = []
    dim = 0
    for total in merged:
        groups.append([])
        product = 1
        # Even a merged size of 1 takes a dimension, if there is one of size 1.
        while dim < len(sizes) and (product != total or (not groups[-1] and sizes[dim] == total)):
            product *= sizes[dim]
            groups[-1].append(dim)
            dim += 1
        if product != total:
            return None
    if dim < len(sizes):  # dimensions of size 1 at the end belong to the last merged one
        if not groups or any(size != 1 for size in sizes[dim:]):
            return None
        groups[-1] += range(dim, len(sizes))
    return tuple(map(tuple, groups))


def list_array_leaves(module: Any) -> list[Any]:
    """Returns the named and other arrays of a module."""
    return [leaf for leaf in jax.tree.leaves(module, is_leaf=is_named_array) if is_array_leaf(leaf)]

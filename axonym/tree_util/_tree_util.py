"""The functions of `axonym.tree` by their names in `jax.tree_util`, and the resizing of an axis in a tree."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import random
from .._ground.formats import format_axes, suggest_name
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelector, axis_name
from ..named._base import NamedBase
from ..named._creation import zeros
from ..named._reduce._reductions import mean, std
from ..named._shape._concatenate import concatenate
from ..named._sharding import constrain_sharding
from ..random._keys import as_plain_key
from ..tree import _tree


tree_map = _tree.map
scan_aware_tree_map = _tree.scan_aware_map
tree_flatten = _tree.flatten
tree_unflatten = _tree.unflatten
tree_leaves = _tree.leaves
tree_structure = _tree.structure


def resize_axis(tree: Any, old_axis: AxisSelector, new_size: int, key: jax.Array | None = None) -> Any:
    """Resizes an axis in every named array of a tree that has it: truncates the end, or appends to it.

    New elements are zero without a key. With a key, floats are drawn from normal distributions with the mean and the
    standard deviation of the old elements along the axis, for each position along the other axes, so that new rows of a
    table are like the old ones; they are zero if the axis was empty. An `Axis` stored in a static field, such as
    `Vocab` of `axonym.nn.Embedding`, is resized too.

    Args:
        tree: The tree, such as a module.
        old_axis: The axis, its name or an `Axis` of its current size.
        new_size: The new size.
        key: A random key, from which each array gets its own.

    Returns:
        The tree with the axis resized, its arrays sharded by the active mapping.

    Raises:
        TypeError: If the new size is not an integer, or the key is not one.
        ValueError: If no array has the axis, `old_axis` has another size than in an array, or the new size is negative.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> table = nym.named([[1.0, 2.0], [1.0, 2.0]], ("vocab", "embed"))
        >>> nym.tree_util.resize_axis({"table": table}, "vocab", 3)["table"].array[2]
        Array([0., 0.], dtype=float32)
        >>> layer = nym.nn.Embedding.init(nym.Axis("vocab", 10), nym.Axis("embed", 4), key=jax.random.key(0))
        >>> layer = nym.tree_util.resize_axis(layer, "vocab", 12, jax.random.key(1))
        >>> layer.Vocab, layer.weight.shape
        (Axis(name='vocab', size=12), (vocab: 12, embed: 4))
    """
    new = Axis(axis_name(old_axis), new_size)
    plain_key = None if key is None else as_plain_key(key)
    leaves, structure = _tree.flatten(tree)
    named = [x for x in leaves if isinstance(x, NamedBase)]
    if not any(new.name in x.names for x in named):
        names = list(dict.fromkeys(name for x in named for name in x.names))
        raise ValueError(
            f"no array of the tree has an axis {new.name!r}; the axes are {format_axes(names)}"
            f"{suggest_name(new.name, names)}"
        )
    for i, x in enumerate(leaves):
        if isinstance(x, NamedArray) and new.name in x.names:
            leaf_key = None if plain_key is None else jax.random.fold_in(plain_key, i)
            leaves[i] = _resize_array(x, x.resolve_axis(old_axis), new, leaf_key)
    return _replace_axis(_tree.unflatten(structure, leaves), old_axis, new)


def _resize_array(x: NamedArray, old: Axis, new: Axis, key: jax.Array | None) -> NamedArray:
    if new.size <= old.size:
        return x if new == old else constrain_sharding(x[new.name, : new.size])
    axes = tuple(new.resize(new.size - old.size) if axis.name == new.name else axis for axis in x.axes)
    if key is None or not old.size or not jnp.issubdtype(x.dtype, jnp.floating):
        new_elements = zeros(axes, x.dtype)
    else:
        new_elements = random.normal(key, axes, x.dtype) * std(x, new.name) + mean(x, new.name)
    return constrain_sharding(concatenate(new, [x, new_elements]))


def _replace_axis(tree: Any, old: AxisSelector, new: Axis) -> Any:
    """Returns a tree with the new axis in place of the old one in static fields and leaves."""

    def replace_leaf(x: Any) -> Any:
        if not isinstance(x, eqx.Module):
            return _replace_static_axis(x, old, new)
        static = {field.name for field in dataclasses.fields(x) if field.metadata.get("static", False)}
        resized = object.__new__(type(x))  # as Equinox rebuilds modules: without calling `__init__`
        for name, value in vars(x).items():
            replace = _replace_static_axis if name in static else _replace_axis
            object.__setattr__(resized, name, replace(value, old, new))
        return resized

    # A named array is a leaf, because its axes have been resized already.
    return jax.tree.map(replace_leaf, tree, is_leaf=lambda x: isinstance(x, eqx.Module | NamedBase))


def _replace_static_axis(x: Any, old: AxisSelector, new: Axis) -> Any:
    """Returns a value that is not an array, with the axis replaced if it is that axis or contains it."""
    if isinstance(x, Axis):
        return new if old in (x, x.name) else x
    if type(x) in (tuple, list):
        return type(x)(_replace_static_axis(item, old, new) for item in x)
    return x

"""The functions of `jax.tree` for trees in which a named array is one leaf, and `scan_aware_map` for stacked layers."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax

from .._ground.arguments import check_callable
from .._ground.formats import format_value
from ..named._base import NamedBase


IsLeaf: TypeAlias = Callable[[Any], bool] | None
Structure: TypeAlias = Any  # `jax.tree_util.PyTreeDef`, which type checkers treat as a variable


@runtime_checkable
class _StackedLayers(Protocol):
    """A module of stacked layers, such as `axonym.nn.Stacked`."""

    def map_layers(self, fn: Callable[..., Any], *rest: Any) -> Any:
        """Returns the module with `fn` applied to each of its layers and the corresponding layers of the rest."""


def _make_is_leaf(is_leaf: IsLeaf) -> Callable[[Any], bool]:
    """Returns a predicate that is true for named arrays and for the leaves of the caller."""
    if is_leaf is not None and not callable(is_leaf):
        raise TypeError(f"`is_leaf` is a function or None, not {format_value(is_leaf)}")
    return lambda x: isinstance(x, NamedBase) or (is_leaf is not None and is_leaf(x))


def map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Applies a function to each leaf of a tree, where a named array is one leaf; see `jax.tree.map`.

    Args:
        fn: Function of a leaf of `tree` and of the corresponding part of each of the others.
        tree: The tree, such as a module or a dict.
        *rest: More trees; each has the structure of `tree`, or further structure in place of its leaves.
        is_leaf: Function that returns whether a node of the tree is a leaf.

    Returns:
        A tree of the structure of `tree` with the results of `fn`.

    Raises:
        TypeError: If `fn` or `is_leaf` is not a function.
        ValueError: If the trees differ in structure.

    Example:
        >>> import axonym as nym
        >>> nym.tree.map(lambda x: x.sum("i"), {"a": nym.ones({"i": 2, "j": 3})})
        {'a': NamedArray(float32, j: 3, [2., 2., 2.])}
    """
    check_callable("axonym.tree.map", fn)
    return jax.tree.map(fn, tree, *rest, is_leaf=_make_is_leaf(is_leaf))


def scan_aware_map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Applies a function to each leaf of a tree, and in stacked layers to each leaf of each layer.

    Like `axonym.tree.map`, but `fn` is vectorised over the layer axis of an `axonym.nn.Stacked`, so that the result is
    the same as for separate layers. Arguments as for `axonym.tree.map`.

    Raises:
        TypeError: If `fn` or `is_leaf` is not a function, or another tree has something else in place of stacked
            layers.
        ValueError: If the trees differ in structure.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> Layers, Embed = nym.make_axes(layers=3, embed=4)
        >>> stack = nym.nn.Stacked.init(Layers, nym.nn.RmsNorm)(Embed)
        >>> nym.tree.scan_aware_map(lambda x: x / x.sum(), stack).stacked.weight["layers", 0].array
        Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    check_callable("axonym.tree.scan_aware_map", fn)
    map_layer = functools.partial(scan_aware_map, fn, is_leaf=is_leaf)

    def is_leaf_of_caller(x: Any) -> bool:
        return is_leaf is not None and is_leaf(x)

    def apply_to_node(x: Any, *rest: Any) -> Any:
        if isinstance(x, _StackedLayers) and not is_leaf_of_caller(x):
            return x.map_layers(map_layer, *rest)
        return fn(x, *rest)

    return map(apply_to_node, tree, *rest, is_leaf=lambda x: isinstance(x, _StackedLayers) or is_leaf_of_caller(x))


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], Structure]:
    """Returns the leaves of a tree, where a named array is one leaf, and its structure; see `jax.tree.flatten`.

    Args:
        tree: The tree.
        is_leaf: Function that returns whether a node of the tree is a leaf.

    Returns:
        A list of the leaves, and the structure, from which `unflatten` makes the tree again.

    Example:
        >>> import axonym as nym
        >>> leaves, structure = nym.tree.flatten({"a": nym.ones({"i": 2}), "b": 3})
        >>> leaves
        [NamedArray(float32, i: 2, [1., 1.]), 3]
        >>> nym.tree.unflatten(structure, [1, 2])
        {'a': 1, 'b': 2}
    """
    return jax.tree.flatten(tree, is_leaf=_make_is_leaf(is_leaf))


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Makes a tree of a structure and its leaves; see `jax.tree.unflatten`.

    Args:
        structure: A result of `flatten` or `structure`.
        leaves: The leaves in order; any objects may replace named arrays.

    Raises:
        TypeError: If the structure is something else.
        ValueError: If the number of leaves does not match the structure.

    Example:
        >>> import axonym as nym
        >>> leaves, structure = nym.tree.flatten([nym.ones({"i": 2}), 3])
        >>> nym.tree.unflatten(structure, leaves)
        [NamedArray(float32, i: 2, [1., 1.]), 3]
    """
    if not isinstance(structure, jax.tree_util.PyTreeDef):
        raise TypeError(f"`axonym.tree.unflatten` takes a structure and then leaves, not {format_value(structure)}")
    return jax.tree.unflatten(structure, leaves)


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Returns the leaves of a tree, where a named array is one leaf; see `jax.tree.leaves`. Arguments as for `flatten`.

    Example:
        >>> import axonym as nym
        >>> nym.tree.leaves({"a": nym.ones({"i": 2}), "b": [3, None]})
        [NamedArray(float32, i: 2, [1., 1.]), 3]
    """
    return jax.tree.leaves(tree, is_leaf=_make_is_leaf(is_leaf))


def structure(tree: Any, is_leaf: IsLeaf = None) -> Structure:
    """Returns the structure of a tree, where a named array is one leaf; see `jax.tree.structure`.

    Arguments as for `flatten`.

    Example:
        >>> import axonym as nym
        >>> nym.tree.structure({"a": nym.ones({"i": 2}), "b": 3}) == nym.tree.structure({"a": 1, "b": 2})
        True
    """
    return jax.tree.structure(tree, is_leaf=_make_is_leaf(is_leaf))

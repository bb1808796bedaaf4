"""Trees in which a named array is one leaf: what `jax.tree` does, names kept."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax

from ..named._base import NamedBase


IsLeaf: TypeAlias = Callable[[Any], bool] | None
Structure: TypeAlias = Any  # `jax.tree_util.PyTreeDef`, which type checkers take for a variable


@runtime_checkable
class _Layers(Protocol):
    """A module that holds layers of one kind, such as `axonym.nn.Stacked`."""

    def map_layers(self, fn: Callable[..., Any], *others: Any) -> Any:
        """Returns the module with `fn` applied to each of its layers and those in their place in others."""
        ...


def _is_named_or(is_leaf: IsLeaf) -> Callable[[Any], bool]:
    """Returns what tells the leaves: named arrays, and what else the caller says."""
    return lambda x: isinstance(x, NamedBase) or (is_leaf is not None and is_leaf(x))


def map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Applies a function to each leaf of a tree, where a named array is one leaf; see `jax.tree.map`.

    Args:
        fn: Function of a leaf of `tree`, and of what is in its place in each of the others.
        tree: The tree, such as a module or a dict.
        *rest: More trees; each has the structure of `tree`, or further structure in the place of its leaves.
        is_leaf: What else is a leaf, a function of a part of the tree.

    Returns:
        A tree of the structure of `tree` with what `fn` returns for its leaves.

    Raises:
        ValueError: If the trees differ in structure.

    Example:
        >>> import axonym as nym
        >>> nym.tree.map(lambda x: x.sum("i"), {"a": nym.ones({"i": 2, "j": 3})})
        {'a': NamedArray(float32, j: 3, [2., 2., 2.])}
    """
    return jax.tree.map(fn, tree, *rest, is_leaf=_is_named_or(is_leaf))


def scan_aware_map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Applies a function to each leaf of a tree, in stacked layers to each leaf of each layer.

    It is as `axonym.tree.map`, but `fn` never sees the layer axis of an `axonym.nn.Stacked`: it is vectorised over it,
    so that the result is what it would be if each layer was a module of its own. Arguments as for `axonym.tree.map`.

    Raises:
        TypeError: If stacked layers meet something else in another tree.
        ValueError: If the trees differ in structure.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> Layers, Embed = nym.make_axes(layers=3, embed=4)
        >>> stack = nym.nn.Stacked.init(Layers, nym.nn.RmsNorm)(Embed)
        >>> nym.tree.scan_aware_map(lambda x: x / x.sum(), stack).stacked.weight["layers", 0].array
        Array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """
    each_layer = functools.partial(scan_aware_map, fn, is_leaf=is_leaf)

    def applied(x: Any, *others: Any) -> Any:
        given = is_leaf is not None and is_leaf(x)
        return x.map_layers(each_layer, *others) if isinstance(x, _Layers) and not given else fn(x, *others)

    def stops(x: Any) -> bool:
        return isinstance(x, _Layers) or (is_leaf is not None and is_leaf(x))

    return map(applied, tree, *rest, is_leaf=stops)


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], Structure]:
    """Returns the leaves of a tree, where a named array is one leaf, and its structure; see `jax.tree.flatten`.

    Args:
        tree: The tree.
        is_leaf: What else is a leaf, a function of a part of the tree.

    Returns:
        A list of the leaves, and what `unflatten` needs to make the tree from such a list.

    Example:
        >>> import axonym as nym
        >>> leaves, structure = nym.tree.flatten({"a": nym.ones({"i": 2}), "b": 3})
        >>> leaves
        [NamedArray(float32, i: 2, [1., 1.]), 3]
        >>> nym.tree.unflatten(structure, [1, 2])
        {'a': 1, 'b': 2}
    """
    return jax.tree.flatten(tree, is_leaf=_is_named_or(is_leaf))


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Makes a tree of a structure and its leaves; see `jax.tree.unflatten`.

    Args:
        structure: What `flatten` or `structure` returned.
        leaves: The leaves, in order; anything may stand for a named array.

    Raises:
        ValueError: If there are more leaves, or fewer, than the structure has.

    Example:
        >>> import axonym as nym
        >>> leaves, structure = nym.tree.flatten([nym.ones({"i": 2}), 3])
        >>> nym.tree.unflatten(structure, leaves)
        [NamedArray(float32, i: 2, [1., 1.]), 3]
    """
    return jax.tree.unflatten(structure, leaves)


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Returns the leaves of a tree, where a named array is one leaf; see `jax.tree.leaves`. Arguments as for `flatten`.

    Example:
        >>> import axonym as nym
        >>> nym.tree.leaves({"a": nym.ones({"i": 2}), "b": [3, None]})
        [NamedArray(float32, i: 2, [1., 1.]), 3]
    """
    return jax.tree.leaves(tree, is_leaf=_is_named_or(is_leaf))


def structure(tree: Any, is_leaf: IsLeaf = None) -> Structure:
    """Returns the structure of a tree, where a named array is one leaf; see `jax.tree.structure`.

    Arguments as for `flatten`.

    Example:
        >>> import axonym as nym
        >>> nym.tree.structure({"a": nym.ones({"i": 2}), "b": 3}) == nym.tree.structure({"a": 1, "b": 2})
        True
    """
    return jax.tree.structure(tree, is_leaf=_is_named_or(is_leaf))

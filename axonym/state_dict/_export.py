"""State dicts in the layout of PyTorch: layers with several input or output axes have them merged into one."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from ..named._arguments import check_flag
from ..named._format import format_value
from ._from_state_dict import from_state_dict
from ._keys import find_method, is_array_leaf, list_children, make_depth_error, replace_children
from ._state_dict_reader import DtypeRule, StateDictReader, check_dtype_rule, report_misfits
from ._state_dict_writer import use_writer
from ._to_state_dict import to_state_dict


T = TypeVar("T")


def flatten_modules(tree: T) -> T:
    """Returns a tree whose layers have several input or output axes merged into one, for libraries without names.

    A module says how with its method `flatten_for_export`, as `nn.Linear`, `nn.LayerNorm` and `nn.RmsNorm` do; its
    arrays may have leading axes beyond its own, those of stacked layers. Other modules keep their arrays.

    Args:
        tree: A module or any other tree.

    Returns:
        A tree of the same nodes.

    Raises:
        ValueError: If the tree is nested too deeply.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> Heads, HeadDim, Embed = nym.make_axes(heads=2, head_dim=4, embed=8)
        >>> model = {"out": nym.nn.Linear.init((Heads, HeadDim), Embed, key=jax.random.key(0))}
        >>> nym.state_dict.flatten_modules(model)["out"].weight.shape
        (embed: 8, __IN__: 8)
    """
    own = find_method(tree, "flatten_for_export")
    try:
        return map_children(flatten_modules, tree) if own is None else own()
    except RecursionError:
        raise make_depth_error() from None


def unflatten_modules(tree: T, template: T) -> T:
    """Returns a tree whose layers have merged axes split into those of a template; the inverse of `flatten_modules`.

    Args:
        tree: A tree that `flatten_modules` returned.
        template: A tree with the axes to return, whose values are not used; its shapes are enough.

    Returns:
        A tree with the axes of the template.

    Raises:
        ValueError: If the template has another structure, or the tree is nested too deeply.

    Example:
        >>> import axonym as nym
        >>> norm = nym.nn.LayerNorm.init(nym.make_axes(heads=2, head_dim=4))
        >>> flat = nym.state_dict.flatten_modules(norm)
        >>> flat.weight.shape, nym.state_dict.unflatten_modules(flat, norm).weight.shape
        ((__OUT: 8), (heads: 2, head_dim: 4))
    """
    own = find_method(tree, "unflatten_from_export")
    if own is not None and type(template) is not type(tree):
        raise make_template_error(tree, template)
    try:
        return map_children(unflatten_modules, tree, template) if own is None else own(template)
    except RecursionError:
        raise make_depth_error() from None


def map_children(fn: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Returns a node with a function applied to each child, and to those of others; a leaf is returned as it is."""
    each = [[child for _, child in list_children(one)] for one in (tree, *others)]
    if is_array_leaf(tree) or not each[0]:
        return tree
    for other, children in zip(others, each[1:], strict=True):
        if len(children) != len(each[0]):
            raise make_template_error(tree, other)
    return replace_children(tree, [*map(fn, *each)])


def make_template_error(tree: Any, template: Any) -> ValueError:
    return ValueError(
        f"the template does not have the structure of the tree: {format_value(template)} is in place of "
        f"{format_value(tree)}; pass the flattened tree first, and then a tree that is not flattened"
    )


def to_numpy_state_dict(tree: Any, prefix: str | None = None) -> dict[str, np.ndarray]:
    """Returns the arrays of a tree as `to_state_dict` does, in host memory.

    Args:
        tree: A module or any other tree of arrays.
        prefix: First part of all keys.

    Returns:
        NumPy arrays by key.

    Raises:
        ValueError: As `to_state_dict`.

    Example:
        >>> import axonym as nym
        >>> nym.state_dict.to_numpy_state_dict({"bias": nym.zeros({"embed": 2})})
        {'bias': array([0., 0.], dtype=float32)}
    """
    return {key: np.asarray(array) for key, array in to_state_dict(tree, prefix).items()}


def to_torch_compatible_state_dict(
    tree: Any, prefix: str | None = None, *, flatten: bool = True
) -> dict[str, np.ndarray]:
    """Returns the arrays of a tree by name, with the axes that PyTorch has.

    The axes of layers are merged as by `flatten_modules`. A weight of `nn.Linear` that has its output axes first, as by
    default, then has the layout of `torch.nn.Linear`; with `out_first=False` it is the transposed one, as in GPT-2.

    Args:
        tree: A module or any other tree of arrays.
        prefix: First part of all keys.
        flatten: Whether to merge axes.

    Returns:
        NumPy arrays by key; `safetensors.numpy.save_file` writes them, and `torch.from_numpy` takes each.

    Raises:
        ValueError: As `to_state_dict`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> Heads, HeadDim, Embed = nym.make_axes(heads=2, head_dim=4, embed=6)
        >>> layer = nym.nn.Linear.init((Heads, HeadDim), Embed, key=jax.random.key(0))
        >>> state = nym.state_dict.to_torch_compatible_state_dict(layer, "attention.out")
        >>> {key: x.shape for key, x in state.items()}
        {'attention.out.weight': (6, 8), 'attention.out.bias': (6,)}
    """
    check_flag("`flatten`", flatten)
    with use_writer(flattens=flatten, defers=False):
        return to_numpy_state_dict(tree, prefix)


def from_torch_compatible_state_dict(
    tree: T,
    state_dict: Mapping[str, Any],
    prefix: str | None = None,
    *,
    unflatten: bool = True,
    strict: bool = True,
    dtypes: DtypeRule = "check",
) -> T:
    """Returns a tree with the arrays of a state dict of PyTorch; the inverse of `to_torch_compatible_state_dict`.

    Args:
        tree: A module or any other tree of arrays, or its shapes as `equinox.filter_eval_shape` returns them.
        state_dict: Plain arrays by key, as for `from_state_dict`; tensors of PyTorch may be passed as they are if they
            are in host memory and NumPy has their dtype.
        prefix: First part of the keys to read; all others are ignored.
        unflatten: Whether to split the axes that `to_torch_compatible_state_dict` merges.
        strict: As for `from_state_dict`.
        dtypes: As for `from_state_dict`.

    Returns:
        A tree of the same structure. Named arrays are sharded by the active mapping.

    Raises:
        TypeError: As `from_state_dict`.
        ValueError: As `from_state_dict`; shapes are those with merged axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> import numpy as np
        >>> Heads, HeadDim, Embed = nym.make_axes(heads=2, head_dim=4, embed=6)
        >>> layer = nym.nn.Linear.init((Heads, HeadDim), Embed, key=jax.random.key(0))
        >>> state = {"weight": np.ones((6, 8), np.float32), "bias": np.zeros(6, np.float32)}
        >>> nym.state_dict.from_torch_compatible_state_dict(layer, state).weight.shape
        (embed: 6, heads: 2, head_dim: 4)
    """
    check_dtype_rule(dtypes)
    check_flag("`unflatten`", unflatten)
    with report_misfits(StateDictReader(state_dict, dtypes, unflatten), prefix, strict) as reader:
        return from_state_dict(tree, reader, prefix)

"""Replaces the `dot_general` of the linear layers in a model."""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import keystr

from .._ground.formats import format_value
from ..named._array import is_named_array
from ..named._axis import Axis, parse_axes
from ..named._dot import check_dot_general
from ..named._elementwise._arithmetic import copy
from ..named._shape._broadcast import broadcast_to


T = TypeVar("T")
Target = str | Sequence[str] | Callable[[str, Any], bool] | None


def quantize_linear_layers(tree: T, dot_general: Any, targets: Target = None) -> T:
    """Replaces the `dot_general` of linear layers, those of a `Stacked` included.

    Args:
        tree: A model.
        dot_general: The replacement: an `Int8DotGeneral`, a `Float8DotGeneral`, another module that is called as
            `jax.lax.dot_general`, or None for that function itself. Each layer gets copies of the arrays of this
            module; in a `Stacked`, these also have the axes of the layers, in front.
        targets: Which layers: a regular expression, or several, searched for in the path of each layer, whose keys are
            separated by slashes as in `blocks/stacked/mlp/up`; or a function of the path and the layer; None for all.

    Returns:
        The model with the other layers unchanged.

    Raises:
        TypeError: If `dot_general` is not a function or a module, or a target is neither text nor a function.
        ValueError: If the tree has no linear layers, or a target matches none of them or is not a regular expression.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> mlp = nym.nn.MLP.init(*nym.make_axes(pixel=64, label=10), 32, 2, key=jax.random.key(0))
        >>> int8 = nym.quantization.Int8DotGeneral()
        >>> quantized = nym.quantization.quantize_linear_layers(mlp, int8, targets=["layers/0", "layers/1"])
        >>> [layer.dot_general for layer in quantized.layers]
        [Int8DotGeneral(), Int8DotGeneral(), None]
    """
    if dot_general is not None:
        check_dot_general(dot_general)
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_linear)
    layers = {keystr(path, simple=True, separator="/"): layer for path, layer in leaves if _is_linear(layer)}
    target_paths = _find_target_paths(layers, targets)

    def replace(path: Any, layer: Any) -> Any:
        if not _is_linear(layer) or keystr(path, simple=True, separator="/") not in target_paths:
            return layer
        layer_axes = {axis.name for axis in (*parse_axes(layer.In), *parse_axes(layer.Out))}
        stacked_axes = tuple(axis for axis in layer.weight.axes if axis.name not in layer_axes)
        stacked = _stack_arrays(dot_general, stacked_axes)
        return eqx.tree_at(lambda linear: linear.dot_general, layer, stacked, is_leaf=lambda x: x is None)

    return jax.tree_util.tree_map_with_path(replace, tree, is_leaf=_is_linear)


def _is_linear(x: Any) -> bool:
    """Returns whether this is a `Linear`, or another module with the same fields."""
    fields = getattr(type(x), "__dataclass_fields__", {})
    return isinstance(x, eqx.Module) and {"weight", "In", "Out", "dot_general"} <= set(fields)


def _find_target_paths(layers: dict[str, Any], targets: Target) -> set[str]:
    """Returns the paths of the layers that a target matches."""
    if not layers:
        raise ValueError("there are no linear layers in this tree; `quantize_linear_layers` replaces their dot_general")
    if targets is None:
        return set(layers)
    if callable(targets):
        return {path for path, layer in layers.items() if targets(path, layer)}
    expressions = [targets] if isinstance(targets, str) else targets
    if not isinstance(expressions, Sequence) or not all(isinstance(expression, str) for expression in expressions):
        raise TypeError(
            "The `targets` of `quantize_linear_layers` are regular expressions or a function of a path and a layer, "
            f"not {format_value(targets)}."
        )
    try:
        patterns = [re.compile(expression) for expression in expressions]
    except re.error as error:
        raise ValueError(
            f"target {error.pattern!r} is not a regular expression: {error}; `re.escape` makes one of a path"
        ) from None
    target_paths: set[str] = set()
    for pattern in patterns:
        matching_paths = {path for path in layers if pattern.search(path)}
        if not matching_paths:
            raise ValueError(f"target {pattern.pattern!r} matches no linear layer; their paths are {', '.join(layers)}")
        target_paths |= matching_paths
    return target_paths


def _stack_arrays(tree: Any, axes: tuple[Axis, ...]) -> Any:
    """Returns a tree with copies of its arrays, each broadcast along the axes, which come first."""

    def stack(x: Any) -> Any:
        if is_named_array(x):
            return copy(broadcast_to(x, (*axes, *x.axes)))
        sizes = tuple(axis.size for axis in axes)
        return jnp.copy(jnp.broadcast_to(x, (*sizes, *x.shape))) if eqx.is_array(x) else x

    return jax.tree.map(stack, tree, is_leaf=is_named_array)

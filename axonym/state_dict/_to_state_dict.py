"""`to_state_dict`: the arrays of a tree by name, also in the layout of PyTorch, where axes of a layer are merged.

When a tree is written to files, its arrays are made one after the other. The methods of modules do not know who calls
them, so the options of the outermost call are in a context variable.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import numpy as np
from numpy.ma import MaskedArray

from .._ground.arguments import check_flag
from .._ground.formats import format_value
from ..named._base import get_plain_array
from ..named._numpy_input import MASK_PROBLEM
from ._from_state_dict import DtypeRule, StateDictReader, check_dtype_rule, from_state_dict, report_misfits
from ._keys import (
    NO_NAMES,
    FieldNames,
    add_prefix,
    check_field_names,
    check_key_part,
    eval_shapes,
    find_merged_dims,
    find_method,
    is_array_leaf,
    list_array_leaves,
    list_children,
    make_depth_error,
    make_unnamed_array_error,
    replace_children,
)
from ._safetensors_format import SavedAxes


T = TypeVar("T")

_writer: "ContextVar[StateDictWriter | None]" = ContextVar("writer", default=None)


class StateDictWriter:
    """The options of the call that writes the entire tree, and the axes of its arrays.

    Attributes:
        flattens: Whether layers merge their axes, as by `flatten_modules`.
        defers: Whether arrays that have to be computed are made later.
    """

    def __init__(self, flattens: bool, defers: bool) -> None:
        self.flattens, self.defers = flattens, defers
        # By the `id` of each array. The array is kept, so that no later one gets the same `id`.
        self._axes: dict[int, tuple[Any, SavedAxes]] = {}

    def add_axes(self, array: Any, axes: SavedAxes) -> None:
        """Remembers the axes of a plain array, unless they are known already."""
        self._axes.setdefault(id(array), (array, axes))

    def find_axes(self, array: Any) -> SavedAxes | None:
        """Returns the axes of a plain array; None if a module has computed it."""
        _, axes = self._axes.get(id(array), (None, None))
        return axes


def list_named_sizes(x: Any) -> tuple[tuple[str, int], ...] | None:
    """Returns the names and sizes of the axes of an array; None if it has no names."""
    names = getattr(x, "names", None)
    return None if names is None else tuple(zip(names, get_plain_array(x).shape, strict=True))


@contextmanager
def use_writer(*, flattens: bool, defers: bool, parent: StateDictWriter | None = None) -> Iterator[StateDictWriter]:
    """Activates a writer, which shares the axes of its parent."""
    writer = StateDictWriter(flattens, defers)
    if parent is not None:
        writer._axes = parent._axes
    token = _writer.set(writer)
    try:
        yield writer
    finally:
        _writer.reset(token)


class DeferredArray:
    """An array of a state dict that is made when it is needed, together with the others of its module.

    Methods `to_state_dict` of modules may compute with it as with any other array.
    """

    def __init__(self, source: "_ArraySource", key: str, struct: Any) -> None:
        self._source, self._key = source, key
        self.shape, self.dtype = struct.shape, struct.dtype
        self.ndim, self.size = len(struct.shape), struct.size

    def make(self) -> Any:
        """Returns the array."""
        return self._source.take(self._key)

    def __jax_array__(self) -> Any:
        return self.make()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.make().__array__(dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.make(), name)


class _ArraySource:
    """Makes the arrays of one module together, and keeps each until it is taken."""

    def __init__(self, make_arrays: Callable[[], dict[str, Any]]) -> None:
        self._make_arrays = make_arrays
        self._arrays: dict[str, Any] = {}

    def take(self, key: str) -> Any:
        if key not in self._arrays:
            self._arrays = self._make_arrays()
        return self._arrays.pop(key)


def defer_writing(write: Callable[[Any], dict[str, Any]], tree: Any) -> dict[str, Any]:
    """Returns the state dict `write(tree)`; if files are being written, its arrays are made later."""
    writer = _writer.get()
    if writer is None or not writer.defers:
        return write(tree)
    axes: dict[str, SavedAxes | None] = {}  # set by `write_now`

    def write_now(tree: Any) -> dict[str, Any]:
        with use_writer(flattens=writer.flattens, defers=False) as inner:
            arrays = write(tree)
        axes.update({key: inner.find_axes(array) for key, array in arrays.items()})
        return arrays

    source = _ArraySource(lambda: write_now(tree))
    deferred_arrays: dict[str, Any] = {}
    for key, struct in eval_shapes(write_now, tree).items():  # traced, which computes nothing
        deferred_arrays[key] = DeferredArray(source, key, struct)
        if (array_axes := axes[key]) is not None:
            writer.add_axes(deferred_arrays[key], array_axes)
    return deferred_arrays


def to_state_dict(tree: Any, prefix: str | None = None) -> dict[str, Any]:
    """Returns the arrays of a tree in a dict, by the names of the fields that lead to them.

    The key of an array consists of the names of fields, the keys of dicts and the positions in sequences, joined by
    dots: `"blocks.0.mlp.weight"`. The layers of `nn.Stacked` and `nn.BlockSeq` are written one by one, by their number.
    Only arrays are written; numbers, functions and static fields are not.

    A module customises this with two methods, `to_state_dict(prefix)` and `from_state_dict(state_dict, prefix)`; see
    `write_fields` and `read_fields`, from which both can be made.

    Args:
        tree: A module or any other tree of arrays.
        prefix: First part of all keys.

    Returns:
        Plain arrays by key, in the order of the tree. Those of named arrays have their axes in order, without names.

    Raises:
        TypeError: If the prefix is not a string.
        ValueError: If the tree is itself an array and there is no prefix, two arrays would have the same key, an array
            is a masked one of NumPy, or the tree is nested too deeply.

    Example:
        >>> import axonym as nym
        >>> Layers, Embed = nym.make_axes(layers=2, embed=3)
        >>> norms = nym.nn.Stacked.init(Layers, nym.nn.RmsNorm)(Embed)
        >>> {key: x.shape for key, x in nym.state_dict.to_state_dict({"norms": norms}).items()}
        {'norms.0.weight': (3,), 'norms.1.weight': (3,)}
    """
    writer = _writer.get()
    try:
        if writer is not None and writer.flattens and find_method(tree, "flatten_for_export"):
            return defer_writing(functools.partial(_write_flattened, prefix=prefix), tree)
        method = find_method(tree, "to_state_dict")
        return write_fields(tree, prefix) if method is None else method(prefix)
    except RecursionError:
        raise make_depth_error() from None


def write_fields(tree: Any, prefix: str | None = None, names: FieldNames = NO_NAMES) -> dict[str, Any]:
    """Returns the arrays of a tree as `to_state_dict` does, with other names for its own fields.

    Args:
        tree: A module or any other tree of arrays, whose own method `to_state_dict` is not called.
        prefix: First part of all keys.
        names: What its fields are called in the state dict; None leaves out the name of a field.

    Returns:
        Plain arrays by key.

    Raises:
        TypeError: If the prefix is not a string, or the names are not a mapping.
        ValueError: As `to_state_dict`.

    Example:
        >>> import axonym as nym
        >>> import equinox as eqx
        >>> NAMES = {"norm": "ln_1"}
        >>> class Block(eqx.Module):
        ...     norm: nym.nn.RmsNorm
        ...
        ...     def to_state_dict(self, prefix=None):
        ...         return nym.state_dict.write_fields(self, prefix, NAMES)
        ...
        ...     def from_state_dict(self, state_dict, prefix=None):
        ...         return nym.state_dict.read_fields(self, state_dict, prefix, NAMES)
        >>> block = Block(nym.nn.RmsNorm.init(nym.Axis("embed", 3)))
        >>> list(nym.state_dict.to_state_dict([block]))
        ['0.ln_1.weight']
    """
    check_key_part(prefix)
    check_field_names(names)
    if is_array_leaf(tree):
        if not prefix:
            raise make_unnamed_array_error()
        array, writer = get_plain_array(tree), _writer.get()
        if isinstance(array, MaskedArray):
            raise ValueError(f"{prefix!r} {MASK_PROBLEM}")
        if writer is not None and (axes := list_named_sizes(tree)) is not None:
            writer.add_axes(array, tuple((axis,) for axis in axes))
        return {prefix: array}
    state_dict: dict[str, Any] = {}
    for name, child in list_children(tree):
        for key, array in to_state_dict(child, add_prefix(prefix, names.get(name, name))).items():
            if key in state_dict:
                raise ValueError(f"two arrays would have the key {key!r} in the state dict; give a field another name")
            state_dict[key] = array
    return state_dict


def write_layers(layers: Any, prefix: str | None) -> dict[str, Any]:
    """Returns the arrays of layers, each under the number of its layer; deferred ones are made a layer at a time."""
    state_dict: dict[str, Any] = {}
    for index in range(layers.Block.size):
        state_dict |= defer_writing(functools.partial(_write_layer, index=index, prefix=prefix), layers)
    return state_dict


def _write_layer(layers: Any, index: int, prefix: str | None) -> dict[str, Any]:
    return to_state_dict(layers.get_layer(index), add_prefix(prefix, str(index)))


def _write_flattened(module: Any, prefix: str | None) -> dict[str, Any]:
    """Returns the arrays of a module whose axes are merged, and remembers the axes."""
    writer = cast(StateDictWriter, _writer.get())
    flat, merged_dims = module.flatten_for_export(), find_merged_dims(module)
    if merged_dims is not None:
        leaves, flat_leaves = list_array_leaves(module), list_array_leaves(flat)
        for leaf, flat_leaf, dims_of_leaf in zip(leaves, flat_leaves, merged_dims, strict=True):
            if (axes := list_named_sizes(leaf)) is not None:
                merged_axes = tuple(tuple(axes[dim] for dim in dims) for dims in dims_of_leaf)
                writer.add_axes(get_plain_array(flat_leaf), merged_axes)
    with use_writer(flattens=False, defers=False, parent=writer):
        return to_state_dict(flat, prefix)


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
    flatten = find_method(tree, "flatten_for_export")
    try:
        return map_children(flatten_modules, tree) if flatten is None else flatten()
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
    unflatten = find_method(tree, "unflatten_from_export")
    if unflatten is not None and type(template) is not type(tree):
        raise make_template_error(tree, template)
    try:
        return map_children(unflatten_modules, tree, template) if unflatten is None else unflatten(template)
    except RecursionError:
        raise make_depth_error() from None


def map_children(fn: Callable[..., Any], tree: Any, *templates: Any) -> Any:
    """Returns a node with `fn(child, *template_children)` in place of each child; a leaf is returned as it is."""
    children = [child for _, child in list_children(tree)]
    if is_array_leaf(tree) or not children:
        return tree
    template_children = [[child for _, child in list_children(template)] for template in templates]
    for template, counterparts in zip(templates, template_children, strict=True):
        if len(counterparts) != len(children):
            raise make_template_error(tree, template)
    return replace_children(tree, [*map(fn, children, *template_children)])


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

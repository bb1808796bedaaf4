"""`to_state_dict`: the arrays of a tree by name."""

import functools
from typing import Any, cast

from numpy.ma import MaskedArray

from ..named._base import get_plain_array
from ..named._numpy_input import MASK_PROBLEM
from ._keys import (
    NO_NAMES,
    FieldNames,
    add_prefix,
    check_field_names,
    check_key_part,
    find_method,
    is_array_leaf,
    list_children,
    make_depth_error,
    make_unnamed_array_error,
)
from ._state_dict_writer import StateDictWriter, defer_writing, get_writer, list_named_sizes, use_writer


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
    writer = get_writer()
    try:
        if writer is not None and writer.flattens and find_method(tree, "flatten_for_export"):
            return defer_writing(lambda tree: _write_flattened(tree, prefix), tree)
        customised = find_method(tree, "to_state_dict")
        return write_fields(tree, prefix) if customised is None else customised(prefix)
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
        array, writer = get_plain_array(tree), get_writer()
        if isinstance(array, MaskedArray):
            raise ValueError(f"{prefix!r} {MASK_PROBLEM}")
        if writer is not None and (axes := list_named_sizes(tree)) is not None:
            writer.add_axes(array, tuple((axis,) for axis in axes))
        return {prefix: array}
    found: dict[str, Any] = {}
    for name, child in list_children(tree):
        for key, array in to_state_dict(child, add_prefix(prefix, names.get(name, name))).items():
            if key in found:
                raise ValueError(f"two arrays would have the key {key!r} in the state dict; give a field another name")
            found[key] = array
    return found


def write_layers(layers: Any, prefix: str | None) -> dict[str, Any]:
    """Returns the arrays of layers by the number of the layer; those of one layer at a time if they are computed."""
    found: dict[str, Any] = {}
    for index in range(layers.Block.size):
        found |= defer_writing(functools.partial(_write_layer, index=index, prefix=prefix), layers)
    return found


def _write_layer(layers: Any, index: int, prefix: str | None) -> dict[str, Any]:
    return to_state_dict(layers.get_layer(index), add_prefix(prefix, str(index)))


def _write_flattened(module: Any, prefix: str | None) -> dict[str, Any]:
    """Returns the arrays of a module whose axes are merged."""
    writer = cast(StateDictWriter, get_writer())
    flat = module.flatten_for_export()
    writer.add_flattened(module, flat)
    with use_writer(flattens=False, defers=False, parent=writer):
        return to_state_dict(flat, prefix)

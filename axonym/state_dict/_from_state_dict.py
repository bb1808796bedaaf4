"""`from_state_dict`: a tree with the arrays of a state dict in place of its own."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import jax

from ..named._ambient import constrain_sharding
from ..named._array import is_named_array
from ..named._shape._rearrange import rearrange
from ._keys import (
    NO_NAMES,
    FieldNames,
    add_prefix,
    check_field_names,
    eval_shapes,
    find_method,
    is_array_leaf,
    list_children,
    make_depth_error,
    make_unnamed_array_error,
    replace_children,
)
from ._merged_axes import find_merged_dims, list_array_leaves
from ._state_dict_reader import DtypeRule, Misfits, StateDictReader, read_state_dict


T = TypeVar("T")


def from_state_dict(
    tree: T,
    state_dict: Mapping[str, Any],
    prefix: str | None = None,
    *,
    strict: bool = True,
    dtypes: DtypeRule = "check",
) -> T:
    """Returns a tree with the arrays of a state dict in place of its own; the inverse of `to_state_dict`.

    Without `jax_enable_x64`, JAX has no 64 bits. Integers of 64 bits become 32 if their values fit, and are an error
    otherwise; floats of 64 bits are an error unless `dtypes="cast"` converts them to a field of 32. A field that is a
    NumPy array gets one, with all bits.

    Args:
        tree: A module or any other tree of arrays, or its shapes as `equinox.filter_eval_shape` returns them.
        state_dict: Plain arrays by key, of JAX, NumPy or anything else that NumPy can convert.
        prefix: First part of the keys to read; all others are ignored.
        strict: Whether a key that no field has is an error.
        dtypes: What happens to an array of another dtype than its field: `"check"` is an error, `"cast"` converts it,
            and `"keep"` leaves it.

    Returns:
        A tree of the same structure. Named arrays are sharded by the active mapping.

    Raises:
        TypeError: If the state dict is not a mapping, or a key or the prefix is not a string.
        ValueError: If keys are missing or have no field, arrays have another shape or dtype than their fields, values
            do not fit, or an array is a masked one of NumPy. The error lists all of them, with the nearest key for each
            that is missing. If the tree is nested too deeply.

    Example:
        >>> import axonym as nym
        >>> norm = nym.nn.RmsNorm.init(nym.Axis("embed", 3))
        >>> nym.state_dict.from_state_dict(norm, {"weight": [1.0, 2.0, 3.0]}, dtypes="cast").weight.array
        Array([1., 2., 3.], dtype=float32)
        >>> nym.state_dict.from_state_dict(norm, {"wieght": [1.0, 2.0]})
        Traceback (most recent call last):
        ValueError: the state dict does not fit:
          'weight' is missing; did you mean 'wieght'?
          'wieght' has no field
    """
    with read_state_dict(state_dict, prefix, strict, dtypes) as reader:
        try:
            if reader.flattens and find_method(tree, "flatten_for_export"):
                return _read_flattened(tree, reader, prefix)
            customised = find_method(tree, "from_state_dict")
            return read_fields(tree, reader, prefix) if customised is None else customised(reader, prefix)
        except RecursionError:
            raise make_depth_error() from None


def read_fields(
    tree: T,
    state_dict: Mapping[str, Any],
    prefix: str | None = None,
    names: FieldNames = NO_NAMES,
) -> T:
    """Returns a tree with the arrays of a state dict as `from_state_dict` does, with other names for its own fields.

    Args:
        tree: A module or any other tree of arrays, whose own method `from_state_dict` is not called.
        state_dict: Plain arrays by key. Within the method `from_state_dict` of a module it keeps the options of the
            call of `from_state_dict` that reads the entire tree.
        prefix: First part of the keys.
        names: What its fields are called in the state dict; None leaves out the name of a field.

    Returns:
        A tree of the same structure.

    Raises:
        TypeError: If the state dict or the names are not a mapping, or the prefix is not a string.
        ValueError: As `from_state_dict`.

    Example:
        >>> import axonym as nym
        >>> norm = nym.nn.RmsNorm.init(nym.Axis("embed", 2))
        >>> state = {"ln.scale": nym.ones({"embed": 2}).array}
        >>> nym.state_dict.read_fields(norm, state, "ln", {"weight": "scale"}).weight.array
        Array([1., 1.], dtype=float32)
    """
    with read_state_dict(state_dict, prefix) as reader:
        if is_array_leaf(tree):
            if not prefix:
                raise make_unnamed_array_error()
            return reader.load(tree, prefix)
        check_field_names(names)
        children: list[Any] = []
        reasons: dict[str, str] = {}
        for name, child in list_children(tree):
            try:
                children.append(from_state_dict(child, reader, add_prefix(prefix, names.get(name, name))))
            except Misfits as misfits:
                reasons |= misfits.reasons
        if reasons:
            raise Misfits(reasons)
        return replace_children(tree, children) if children else tree


def read_layers(layers: Any, state_dict: Mapping[str, Any], prefix: str | None) -> Iterator[Any]:
    """Yields layers with the arrays of a state dict, one at a time, so that not all of them are in memory at once.

    Args:
        layers: The layers, or their shapes.
        state_dict: Plain arrays by key.
        prefix: First part of the keys, before the number of a layer.

    Raises:
        ValueError: As `from_state_dict`, at the end.
    """
    reasons: dict[str, str] = {}
    with read_state_dict(state_dict, prefix) as reader:
        for index, layer in enumerate(layers):
            try:
                yield from_state_dict(layer, reader, add_prefix(prefix, str(index)))
            except Misfits as misfits:
                reasons |= misfits.reasons
        if reasons:
            raise Misfits(reasons)


def _read_flattened(module: Any, reader: StateDictReader, prefix: str | None) -> Any:
    """Returns a module with arrays whose axes are merged in the state dict."""
    merged = None if _has_customised_parts(module) else find_merged_dims(module)
    if merged is None:
        with reader.read_unmerged():
            flat = from_state_dict(eval_shapes(lambda module: module.flatten_for_export(), module), reader, prefix)
        arrays = iter(list_array_leaves(flat.unflatten_from_export(module)))
        return jax.tree.map(
            lambda own: _restore_order(next(arrays), own) if is_array_leaf(own) else own, module, is_leaf=is_named_array
        )
    with reader.read_unmerged(list_array_leaves(module), merged):
        return from_state_dict(module, reader, prefix)


def _has_customised_parts(tree: Any) -> bool:
    """Returns whether a part of a module reads or merges its arrays in its own way, as stacked layers do."""
    for _, part in list_children(tree):
        customised = find_method(part, "flatten_for_export") or find_method(part, "from_state_dict")
        if customised or _has_customised_parts(part):
            return True
    return False


def _restore_order(x: Any, like: Any) -> Any:
    """Returns an array with its axes in the order of another, sharded by their names."""
    return constrain_sharding(rearrange(x, like.names)) if is_named_array(x) else x

"""The inputs of attention, checked, which every implementation takes as one value."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from ..._ground.arguments import check_dtype, check_integer, check_number
from ..._ground.formats import format_axes
from ...named._array import NamedArray, is_named_array
from ...named._axis import Axis, AxisSelection, AxisSelector, Names, axis_name, check_matching_sizes, parse_selection
from ...named._base import format_shape
from ...named._elementwise._arithmetic import where
from ...named._sharding import constrain_sharding
from ...random._keys import as_plain_key
from .._layer import cast_array, check_input
from ._mask import AttentionMask, MaskBlock, PlacedMask, as_attention_mask
from ._scores import HIDDEN_BIAS, fill_masked


# A plain dataclass, because a module of Equinox enters several Python functions for each field that it sets.
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionInputs:
    """Queries, keys and values, with all that changes the scores; see `dot_product_attention`.

    Attributes:
        query_axis: Name of the axis of query positions, None if there is none.
        key_axis: Name of the axis of key positions.
        contracted: Names of the axes to contract.
        may_hide_all_keys: Whether the bias or the mask may hide all keys from a query.
        dtype: Element type of the scores.
        starts: Index of the first query and of the first key among those of all devices, for dropout.
    """

    query: NamedArray
    key: NamedArray
    value: NamedArray
    bias: NamedArray | None
    mask: AttentionMask | None
    dropout_key: jax.Array | None
    sinks: NamedArray | None
    scale: Any
    query_axis: str | None = dataclasses.field(metadata={"static": True})
    key_axis: str = dataclasses.field(metadata={"static": True})
    contracted: Names = dataclasses.field(metadata={"static": True})
    may_hide_all_keys: bool = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})
    precision: Any = dataclasses.field(metadata={"static": True})
    soft_cap: float | None = dataclasses.field(metadata={"static": True})
    dropout: float = dataclasses.field(metadata={"static": True})
    block_size: int = dataclasses.field(metadata={"static": True})
    starts: tuple[Any, Any] | None = (0, 0)

    def scale_query(self) -> NamedArray:
        """Returns the query times the scale, in the element type of the scores."""
        scale = self.scale
        if scale is None:
            scale = 1 / math.sqrt(math.prod(self.query.axis_size(name) for name in self.contracted))
        return cast_array(self.query, self.dtype) * scale

    def rename_keys(self, name: str) -> "AttentionInputs":
        """Returns inputs with another name of the axis of key positions, all of them sharded by the mapping."""

        def rename(x: Any) -> Any:
            if not is_named_array(x):
                return x
            return constrain_sharding(x.rename({self.key_axis: name}) if self.key_axis in x.names else x)

        return dataclasses.replace(jax.tree.map(rename, self, is_leaf=is_named_array), key_axis=name)

    def hide_by_mask(self) -> "AttentionInputs":
        """Returns inputs whose mask hides the keys that the bias has hidden, and whose bias is finite."""
        if self.bias is None:
            return self
        is_hidden = self.bias <= HIDDEN_BIAS
        mask = as_attention_mask(~is_hidden)
        if self.mask is not None:
            mask = mask & self.mask
        return dataclasses.replace(self, bias=where(is_hidden, 0, self.bias), mask=mask)

    def zero_hidden_queries(self, averages: NamedArray) -> NamedArray:
        """Returns averages with zeros for queries from which the bias and the mask hide all keys."""
        mask = self.hide_by_mask().materialize_mask() if self.may_hide_all_keys else None
        if mask is None:
            return averages
        has_keys = mask.any(self.key_axis) if self.key_axis in mask.names else mask
        return fill_masked(averages, has_keys, 0)

    def materialize_mask(self) -> NamedArray | None:
        """Returns the mask as an array with only the axes that it depends on, None if there is none."""
        if self.mask is None:
            return None
        QPos = None if self.query_axis is None else self.query.resolve_axis(self.query_axis)
        return self.mask.compute_block(MaskBlock(QPos, self.key.resolve_axis(self.key_axis)))

    def find_foreign_axis(self) -> str | None:
        """Returns which axis the scores have that neither query nor key has, None if they have none."""
        score_names = {*self.query.names, *self.key.names} - {*self.contracted}
        for label, x in self.list_score_operands():
            for name in x.names:
                if name not in score_names:
                    return f"the {label} has axis {name!r}, which neither query nor key has"
        if is_named_array(self.scale):
            for name in self.scale.names:
                if name not in self.query.names:
                    return f"the scale has axis {name!r}, which the query lacks"
        return None

    def list_score_operands(self) -> list[tuple[str, NamedArray]]:
        """Returns the arrays that have axes of the scores, each with what it is."""
        mask_arrays = () if self.mask is None else self.mask.arrays
        bias = () if self.bias is None else (self.bias,)
        return [*(("bias", x) for x in bias), *(("mask", x) for x in mask_arrays)]

    def count_scores(self) -> int:
        """Returns the number of scores of a head: queries times keys."""
        return _count_queries(self.query, self.query_axis) * self.key.axis_size(self.key_axis)


def _count_queries(query: NamedArray, query_axis: str | None) -> int:
    return 1 if query_axis is None else query.axis_size(query_axis)


def parse_attention_inputs(
    KPos: AxisSelector,
    Key: AxisSelection,
    query: NamedArray,
    key: NamedArray,
    value: NamedArray,
    # The defaults are those of `dot_product_attention`, for `explain_attention`.
    mask: NamedArray | AttentionMask | None = None,
    bias: NamedArray | None = None,
    attention_dtype: Any = None,
    precision: Any = None,
    *,
    QPos: AxisSelector | None = None,
    scale: Any = None,
    soft_cap: float | None = None,
    sinks: NamedArray | None = None,
    dropout: float = 0.0,
    dropout_key: jax.Array | None = None,
    block_size: int = 512,
    positions: NamedArray | None = None,
) -> AttentionInputs:
    """Returns the arguments of `dot_product_attention`, checked, with names in place of axes."""
    check_input("dot_product_attention (query)", query, Key)
    check_input("dot_product_attention (key)", key, (KPos, *parse_selection(Key)))
    check_input("dot_product_attention (value)", value, KPos)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(f"dot_product_attention ({name}): the array must have floats, not {x.dtype}; use `astype`.")
    if bias is not None:
        check_input("dot_product_attention (bias)", bias, ())
        if bias.dtype == bool:
            raise TypeError("dot_product_attention: `bias` is added to the scores; give booleans as `mask`.")
    key_axis, contracted = axis_name(KPos), tuple(map(axis_name, parse_selection(Key)))
    if key_axis in query.names:
        raise ValueError(
            f"dot_product_attention: the query {format_shape(query)} has the axis of key positions "
            f"{key_axis!r}; `rename` it in key and value"
        )
    if key.axis_size(key_axis) == 0:
        raise ValueError(
            f"dot_product_attention: axis {key_axis!r} of the key {format_shape(key)} has size 0, so a query "
            "has nothing to attend to; give at least one key, which a `mask` may hide"
        )
    query_axis = _find_query_axis(QPos, query, key, mask)
    if mask is not None:
        mask = as_attention_mask(mask).bind_axes(query_axis, key_axis)
    if positions is not None:
        mask = _place_mask(mask, positions, query, query_axis, key.resolve_axis(key_axis))
    # A block that is sliced from an array hides that the array has another size.
    operands = jax.tree.leaves((query, key, bias, scale, mask), is_leaf=is_named_array)
    check_matching_sizes(*((x.names, x.array.shape) for x in operands if is_named_array(x)))
    value.resolve_axis(key.resolve_axis(key_axis))
    if soft_cap is not None:
        soft_cap = check_number("dot_product_attention: `soft_cap`", soft_cap, above=0)
    if sinks is not None:
        check_input("dot_product_attention (sinks)", sinks, ())
        allowed = {*query.names, *key.names} - {key_axis, *contracted}
        if extra := [name for name in sinks.names if name not in allowed]:
            raise ValueError(
                f"dot_product_attention: `sinks` {format_shape(sinks)} have axes {format_axes(extra)}; allowed are "
                f"{format_axes([name for name in query.names if name in allowed])}"
            )
    dropout = check_number("dot_product_attention: `dropout`", dropout, least=0, below=1)
    if dropout and dropout_key is None:
        raise ValueError(f"dot_product_attention: a `dropout` of {dropout} needs a random key, `dropout_key`")
    may_hide_all_keys = bias is not None
    if mask is not None:
        # A mask that lets a query attend to the key with its own index hides all keys where there is no such key.
        has_same_index = _count_queries(query, query_axis) <= key.axis_size(key_axis)
        may_hide_all_keys |= not (mask.allows_same_index and has_same_index)
    dtype = query.dtype if attention_dtype is None else attention_dtype
    check_dtype(dtype, "dot_product_attention: `attention_dtype`")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dot_product_attention: `attention_dtype` must be a float, not {jnp.dtype(dtype)}.")
    return AttentionInputs(
        query=query,
        key=key,
        value=value,
        bias=bias,
        mask=mask,
        dropout_key=as_plain_key(dropout_key) if dropout else None,
        sinks=sinks,
        scale=scale,
        query_axis=query_axis,
        key_axis=key_axis,
        contracted=contracted,
        may_hide_all_keys=may_hide_all_keys,
        dtype=dtype,
        precision=tuple(precision) if isinstance(precision, list) else precision,  # static fields must be hashable
        soft_cap=soft_cap,
        dropout=dropout,
        block_size=check_integer("dot_product_attention: `block_size`", block_size, 1),
    )


def _place_mask(
    mask: AttentionMask | None, positions: NamedArray, query: NamedArray, query_axis: str | None, KPos: Axis
) -> AttentionMask | None:
    """Returns a mask that compares given positions of queries, and of keys that are in the same order."""
    check_input("dot_product_attention (positions)", positions, query_axis or ())
    if not jnp.issubdtype(positions.dtype, jnp.integer):
        raise TypeError(f"dot_product_attention (positions): the array must have integers, not {positions.dtype}.")
    queries = _count_queries(query, query_axis)
    if query_axis is None or {queries, positions.axis_size(query_axis)} != {KPos.size}:
        raise ValueError(
            f"dot_product_attention: `positions` {format_shape(positions)} are those of queries and keys, and there "
            f"are {queries} queries and {KPos.size} keys"
        )
    positions = positions.astype(jnp.int32)  # differences of positions have signs
    return None if mask is None else PlacedMask(mask, positions, positions.rename({query_axis: KPos.name}))


def _find_query_axis(
    QPos: AxisSelector | None, query: NamedArray, key: NamedArray, mask: NamedArray | AttentionMask | None
) -> str | None:
    """Returns the name of the axis of query positions.

    Without `QPos`, that is the axis of the query that the key lacks. If there are several, it is the only one of them
    that arrays in the mask have. Otherwise an `AttentionMask`, which has to know it, is an error, and without one it is
    the longest.
    """
    if QPos is not None:
        check_input("dot_product_attention (query)", query, QPos)
        if axis_name(QPos) in key.names:
            raise ValueError(
                f"dot_product_attention: the key {format_shape(key)} has the axis of query positions "
                f"{axis_name(QPos)!r}; `rename` it in key and value"
            )
        return axis_name(QPos)
    candidates = [name for name in query.names if name not in key.names]
    if isinstance(mask, AttentionMask):
        mask_arrays = mask.arrays
    else:
        mask_arrays = () if mask is None else (mask,)
    in_mask = [name for name in candidates if any(name in getattr(x, "names", ()) for x in mask_arrays)]
    if len(in_mask) == 1:
        return in_mask[0]
    if len(candidates) > 1 and isinstance(mask, AttentionMask):
        raise ValueError(
            f"dot_product_attention: axes {format_axes(candidates)} of the query {format_shape(query)} are not in the "
            "key, so the mask does not know which has the positions; name it with `QPos`"
        )
    return max(candidates, key=query.axis_size, default=None)

"""The arguments of attention after checks, which every implementation takes."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from ..named._arguments import check_dtype, check_number
from ..named._array import NamedArray
from ..named._axis import AxisSelection, AxisSelector, Names, axis_name, parse_selection
from ..named._base import format_shape
from ..named._format import format_axes
from ..random._sampling import as_plain_key
from ._attention_mask import AttentionMask, check_boolean
from ._inputs import cast_array, check_input
from ._mask_block import MaskBlock


@dataclasses.dataclass(frozen=True)
class AttentionInputs:
    """Queries, keys and values, with what changes the scores; see `dot_product_attention`.

    Attributes:
        QPos: Name of the axis of query positions, None if there is none.
        KPos: Name of the axis of key positions.
        Key: Names of the axes to contract.
        dtype: Element type of the scores.
    """

    QPos: str | None
    KPos: str
    Key: Names
    query: NamedArray
    key: NamedArray
    value: NamedArray
    mask: NamedArray | AttentionMask | None
    bias: NamedArray | None
    dtype: Any
    precision: Any
    scale: Any
    soft_cap: float | None
    sinks: NamedArray | None
    dropout: float
    dropout_key: jax.Array | None

    def scale_query(self) -> NamedArray:
        """Returns the query times the scale, in the element type of the scores."""
        scale = self.scale
        if scale is None:
            scale = 1 / math.sqrt(math.prod(self.query.axis_size(axis) for axis in self.Key))
        return cast_array(self.query, self.dtype) * scale

    def materialize_mask(self) -> NamedArray | None:
        """Returns the mask as an array, with no more axes than it needs."""
        if not isinstance(self.mask, AttentionMask):
            return self.mask
        QPos = None if self.QPos is None else self.query.resolve_axis(self.QPos)
        return self.mask.compute_block(MaskBlock(QPos, self.key.resolve_axis(self.KPos)))


def check_attention_inputs(
    KPos: AxisSelector,
    Key: AxisSelection,
    query: NamedArray,
    key: NamedArray,
    value: NamedArray,
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
) -> AttentionInputs:
    """Returns the arguments of `dot_product_attention`, checked, with names in place of axes."""
    _check_axes(KPos, Key, query, key, value, bias)
    keys, names = axis_name(KPos), tuple(map(axis_name, parse_selection(Key)))
    found = _find_query_axis(QPos, query, key, mask)
    if isinstance(mask, AttentionMask):
        mask = mask.bind_axes(found, keys)
    elif mask is not None:
        check_boolean(mask)
    if soft_cap is not None:
        soft_cap = check_number("dot_product_attention: `soft_cap`", soft_cap, above=0)
    if sinks is not None:
        _check_sinks(sinks, keys, names, query, key)
    dropout = check_number("dot_product_attention: `dropout`", dropout, least=0, below=1)
    if dropout and dropout_key is None:
        raise ValueError(f"dot_product_attention: a `dropout` of {dropout} needs a random key, `dropout_key`")
    dropout_key = as_plain_key(dropout_key) if dropout else None
    dtype = query.dtype if attention_dtype is None else attention_dtype
    check_dtype(dtype, "dot_product_attention: `attention_dtype`")
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"dot_product_attention: `attention_dtype` must be a float, not {jnp.dtype(dtype)}.")
    rest = (query, key, value, mask, bias, dtype, precision, scale, soft_cap, sinks, dropout, dropout_key)
    return AttentionInputs(found, keys, names, *rest)


def _check_axes(
    KPos: AxisSelector,
    Key: AxisSelection,
    query: NamedArray,
    key: NamedArray,
    value: NamedArray,
    bias: NamedArray | None,
) -> None:
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
    if axis_name(KPos) in query.names:
        raise ValueError(
            f"dot_product_attention: the query {format_shape(query)} has the axis of key positions "
            f"{axis_name(KPos)!r}; `rename` it in key and value"
        )
    if key.axis_size(KPos) == 0:
        raise ValueError(
            f"dot_product_attention: axis {axis_name(KPos)!r} of the key {format_shape(key)} has size 0, so a query "
            "has nothing to attend to; give at least one key, which a `mask` may hide"
        )


def _find_query_axis(
    QPos: AxisSelector | None, query: NamedArray, key: NamedArray, mask: NamedArray | AttentionMask | None
) -> str | None:
    """Returns the axis of query positions: the one that the key lacks, or that arrays of the mask have, of several."""
    if QPos is not None:
        check_input("dot_product_attention (query)", query, QPos)
        if axis_name(QPos) in key.names:
            raise ValueError(
                f"dot_product_attention: the key {format_shape(key)} has the axis of query positions "
                f"{axis_name(QPos)!r}; `rename` it in key and value"
            )
        return axis_name(QPos)
    own = [name for name in query.names if name not in key.names]
    arrays = mask.arrays if isinstance(mask, AttentionMask) else () if mask is None else (mask,)
    in_mask = [name for name in own if any(name in getattr(x, "names", ()) for x in arrays)]
    if len(own) > 1 and len(in_mask) != 1:
        if isinstance(mask, AttentionMask):
            raise ValueError(
                f"dot_product_attention: axes {format_axes(own)} of the query {format_shape(query)} are not in the "
                "key, so the mask does not know which has the positions; name it with `QPos`"
            )
        return max(own, key=query.axis_size)
    return (in_mask or own or [None])[0]


def _check_sinks(sinks: NamedArray, KPos: str, Key: Names, query: NamedArray, key: NamedArray) -> None:
    check_input("dot_product_attention (sinks)", sinks, ())
    allowed = {*query.names, *key.names} - {KPos, *Key}
    if extra := [name for name in sinks.names if name not in allowed]:
        raise ValueError(
            f"dot_product_attention: `sinks` {format_shape(sinks)} have axes {format_axes(extra)}; allowed are "
            f"{format_axes([name for name in query.names if name in allowed])}"
        )

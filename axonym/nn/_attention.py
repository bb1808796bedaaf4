"""Scaled dot-product attention over named axes, and the causal mask."""

import math
from typing import Any

import jax.numpy as jnp

from ..named._ambient import constrain_sharding
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelection, AxisSelector, axis_name, parse_axes, parse_selection
from ..named._base import format_shape
from ..named._creation import as_plain_number, make_from_indices
from ..named._dot import dot
from ..named._elementwise._where import where
from ..named._reduce import _softmax
from ._inputs import cast_array, check_input


def causal_mask(QPos: Axis, KPos: Axis, q_start: Any = 0, k_start: Any = 0) -> NamedArray:
    """Makes the mask that lets a query attend to the keys at its own position and before.

    Args:
        QPos: The axis of query positions.
        KPos: The axis of key positions, which needs another name.
        q_start: Position of the first query; it may be traced.
        k_start: Position of the first key; it may be traced.

    Returns:
        Boolean array with both axes, True where a query attends to a key.

    Example:
        >>> import axonym as nym
        >>> nym.nn.causal_mask(*nym.make_axes(pos=2, key_pos=2)).array
        Array([[ True, False],
               [ True,  True]], dtype=bool)
    """
    starts = {"q_start": as_plain_number(q_start), "k_start": as_plain_number(k_start)}
    given = {name: start for name, start in starts.items() if not (isinstance(start, int) and start == 0)}
    return make_from_indices(_compare_positions, parse_axes((QPos, KPos)), **given)


def _compare_positions(sizes: tuple[int, int], positions: list[Any], q_start: Any = None, k_start: Any = None) -> Any:
    queries, keys = positions
    return (queries if q_start is None else queries + q_start) >= (keys if k_start is None else keys + k_start)


def dot_product_attention(
    KPos: AxisSelector,
    Key: AxisSelection,
    query: NamedArray,
    key: NamedArray,
    value: NamedArray,
    mask: NamedArray | None = None,
    bias: NamedArray | None = None,
    attention_dtype: Any = None,
    precision: Any = None,
) -> NamedArray:
    """Averages values by how well their keys match each query (Vaswani et al., 2017).

    Args:
        KPos: The axis of key positions, which `key` and `value` have and `query` lacks.
        Key: The axes of `query` and `key` to contract, often the size of a head.
        query: Array with `Key` and any other axes, such as batch, heads and query positions.
        key: Array with `KPos`, `Key` and other axes of `query`.
        value: Array with `KPos` and any others.
        mask: Boolean array that broadcasts with the scores, True where a query attends to a key. A query that attends
            to no key averages all of them.
        bias: Added to the scores, after scaling.
        attention_dtype: dtype of the scores and weights; the dtype of the query if None.
        precision: As for `jax.lax.dot_general`.

    Returns:
        Array with the axes shared by weights and values, then the remaining axes of the query, then those of the value.

    Raises:
        ValueError: If an array lacks one of its axes, `query` has `KPos`, or there are no keys.
        TypeError: If an array is not named, or `mask` is not boolean.

    Example:
        >>> import axonym as nym
        >>> q = nym.ones({"heads": 2, "pos": 3, "head_dim": 4})
        >>> k = q.rename({"pos": "key_pos"})
        >>> nym.nn.dot_product_attention("key_pos", "head_dim", q, k, k).shape
        (heads: 2, pos: 3, head_dim: 4)
    """
    check_input("dot_product_attention (query)", query, Key)
    check_input("dot_product_attention (key)", key, (KPos, *parse_selection(Key)))
    check_input("dot_product_attention (value)", value, KPos)
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
    dtype = query.dtype if attention_dtype is None else attention_dtype
    scale = 1 / math.sqrt(math.prod(query.axis_size(axis) for axis in parse_selection(Key)))
    scores = dot(cast_array(query, dtype) * scale, cast_array(key, dtype), axis=Key, precision=precision)
    if bias is not None:
        scores = scores + cast_array(bias, scores.dtype)
    if mask is not None:
        if mask.dtype != bool:
            raise TypeError(f"`mask` must be boolean, not {mask.dtype}; make it so with `mask > 0`.")
        scores = where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = cast_array(_softmax.softmax(scores, KPos), value.dtype)
    return constrain_sharding(dot(weights, value, axis=KPos, precision=precision))

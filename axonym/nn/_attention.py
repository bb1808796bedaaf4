"""Attention by name: scaled dot products, masks, and rotary position embedding."""

import math
from typing import Any

import jax.numpy as jnp

from ..named import _reduce
from ..named._ambient import constrain_sharding
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelection, AxisSelector, axis_name, format_axes, parse_axes, parse_selection
from ..named._base import format_shape
from ..named._creation import arange, as_plain_number, make_from_indices
from ..named._dot import dot
from ..named._elementwise import cos, sin, where
from ..named._shape import broadcast_axis, concatenate, split
from ._parameters import cast, check_input


def causal_mask(QPos: Axis, KPos: Axis, q_start: Any = 0, k_start: Any = 0) -> NamedArray:
    """Makes the mask in which a query sees the keys at its own position and before.

    Args:
        QPos: The axis of query positions.
        KPos: The axis of key positions, under another name.
        q_start: Position of the first query; it may be traced.
        k_start: Position of the first key; it may be traced.

    Returns:
        Boolean array with both axes, True where a key is seen.

    Example:
        >>> import axonym as nym
        >>> nym.nn.causal_mask(*nym.make_axes(pos=2, key_pos=2)).array
        Array([[ True, False],
               [ True,  True]], dtype=bool)
    """
    starts = {"q_start": as_plain_number(q_start), "k_start": as_plain_number(k_start)}
    given = {name: start for name, start in starts.items() if not (isinstance(start, int) and start == 0)}
    return make_from_indices(_seen, parse_axes((QPos, KPos)), **given)


def _seen(sizes: tuple[int, int], places: list[Any], q_start: Any = None, k_start: Any = None) -> Any:
    queries, keys = places
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
        KPos: The axis of key positions, in `key` and `value` and not in `query`.
        Key: The axes of a query and a key that are contracted, often the size of a head.
        query: Array with `Key` and any other axes, such as batch, heads and query positions.
        key: Array with `KPos`, `Key` and other axes of `query`.
        value: Array with `KPos` and any others.
        mask: Boolean array that lines up with the scores; keys where it is False are not seen. A query that sees no key
            averages all of them.
        bias: Added to the scores, after scaling.
        attention_dtype: Element type of the scores and weights, that of the query if None.
        precision: As for `jax.lax.dot_general`.

    Returns:
        Array with the axes shared by weights and values, then the others of the query, then the others of the value.

    Raises:
        ValueError: If one of the arrays lacks an axis, or `query` has `KPos`.

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
            f"dot_product_attention: the query {format_shape(query)} has the axis of key positions {axis_name(KPos)!r}; "
            "`rename` it in key and value"
        )
    dtype = query.dtype if attention_dtype is None else attention_dtype
    scale = 1 / math.sqrt(math.prod(query.axis_size(axis) for axis in parse_selection(Key)))
    scores = dot(cast(query, dtype) * scale, cast(key, dtype), axis=Key, precision=precision)
    if bias is not None:
        scores = scores + cast(bias, scores.dtype)
    if mask is not None:
        if mask.dtype != bool:
            raise TypeError(
                f"A mask is True where a key is seen, this one holds {mask.dtype}; make one with `mask > 0`."
            )
        scores = where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = cast(_reduce.softmax(scores, KPos), value.dtype)
    return constrain_sharding(dot(weights, value, axis=KPos, precision=precision))


def rotary_embedding(
    x: NamedArray, Pos: AxisSelector, Key: AxisSelector, *, positions: NamedArray | None = None, theta: float = 10000.0
) -> NamedArray:
    """Turns pairs of elements by angles that grow with the position (Su et al., 2021).

    Element `i` of the first half of `Key` is paired with element `i` of the second half, and the pair is turned by
    `position * theta ** (-2 i / size)` radians.

    Args:
        x: Array with both axes and any others, such as queries or keys.
        Pos: The axis of positions.
        Key: The axis whose elements are turned, of even size.
        positions: Position of each element along `Pos`, with any other axes of `x`; counted from 0 if None.
        theta: Base of the angles.

    Returns:
        Array with the axes and the element type of `x`.

    Raises:
        ValueError: If `x` lacks an axis, the size of `Key` is odd, or `positions` lacks `Pos` or has an axis that `x`
            has not.

    Example:
        >>> import axonym as nym
        >>> x = nym.named([[1.0, 0.0], [1.0, 0.0]], ("pos", "head_dim"))
        >>> turned = nym.nn.rotary_embedding(x, "pos", "head_dim")
        >>> [[f"{value:.2f}" for value in row] for row in turned.array]
        [['1.00', '0.00'], ['0.54', '0.84']]
    """
    check_input("rotary_embedding", x, (Pos, Key))
    axis = x.resolve_axis(Key)
    if axis.size % 2:
        raise ValueError(f"rotary_embedding: axis {axis.name!r} has size {axis.size}, which is odd")
    half = axis.resize(axis.size // 2)
    places = arange(x.resolve_axis(Pos)) if positions is None else _places(x, Pos, axis, positions)
    frequencies = theta ** (arange(half, dtype=jnp.float32) * (-2 / axis.size))
    angles = broadcast_axis(frequencies, places.axes) * places.astype(jnp.float32)
    cosine, sine = cos(angles).astype(x.dtype), sin(angles).astype(x.dtype)
    first, second = split(x, axis, (half, half))
    return concatenate(axis, (first * cosine - second * sine, second * cosine + first * sine))


def _places(x: NamedArray, Pos: AxisSelector, Key: Axis, positions: NamedArray) -> NamedArray:
    check_input("rotary_embedding (positions)", positions, Pos)
    if extra := [name for name in positions.names if name not in x.names or name == Key.name]:
        raise ValueError(
            f"rotary_embedding: the positions {format_shape(positions)} have axes {format_axes(extra)}; allowed are those of "
            f"{format_shape(x)} except {Key.name!r}"
        )
    return positions

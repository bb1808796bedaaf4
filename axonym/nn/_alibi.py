"""Attention with linear biases, ALiBi (Press et al., 2021): slopes of heads, and the bias that they make."""

import math
from typing import Any

import jax.numpy as jnp

from ..named._arguments import check_dtype, check_number
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSpec, get_names_and_sizes, parse_axes, parse_one_axis
from ..named._creation import arange, named
from ..named._dot import dot
from ..named._format import format_axes


def alibi_slopes(Heads: AxisSpec, bias_max: float = 8, dtype: Any = jnp.float32) -> NamedArray:
    """Makes the slopes of ALiBi (Press et al., 2021): a geometric sequence from `2 ** (-bias_max / heads)` on.

    If the number of heads is not a power of two, every other slope of twice as many heads follows those of the power of
    two below.

    Args:
        Heads: The axis of heads, or several whose elements are all heads, such as groups of queries.
        bias_max: The exponent of the last slope is minus this.
        dtype: Element type of the result.

    Returns:
        Array with the axes of heads.

    Raises:
        ValueError: If there are no heads, or `bias_max` is not positive.

    Example:
        >>> import axonym as nym
        >>> nym.nn.alibi_slopes(nym.Axis("heads", 4)).array
        Array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    """
    names, sizes = get_names_and_sizes(parse_axes(Heads))
    if 0 in sizes:
        raise ValueError(f"alibi_slopes: there are no heads in {format_axes(names, sizes)}")
    bias_max = check_number("alibi_slopes: `bias_max`", bias_max, above=0)
    check_dtype(dtype)
    return named(jnp.asarray(_list_slopes(math.prod(sizes), bias_max), dtype).reshape(sizes), names)


def alibi_bias(
    Heads: AxisSpec, KPos: Axis, bias_max: float = 8, dtype: Any = jnp.float32, k_start: Any = 0
) -> NamedArray:
    """Makes the bias of ALiBi (Press et al., 2021): the position of a key times the slope of the head.

    The softmax does not change if a query adds the same to all its scores, so this equals a bias that falls linearly
    with the distance to keys before the query. Use it with a causal mask.

    Args:
        Heads: The axis of heads, or several whose elements are all heads.
        KPos: The axis of key positions.
        bias_max: As for `alibi_slopes`.
        dtype: Element type of the result.
        k_start: Position of the first key; it may be traced.

    Returns:
        Array with the axes of heads, then that of key positions.

    Example:
        >>> import axonym as nym
        >>> nym.nn.alibi_bias(*nym.make_axes(heads=1, key_pos=3)).array
        Array([[0.        , 0.00390625, 0.0078125 ]], dtype=float32)
    """
    slopes = alibi_slopes(Heads, bias_max, dtype)
    return dot(slopes, arange(parse_one_axis(KPos), start=k_start).astype(dtype), axis=())


def _list_slopes(heads: int, bias_max: float) -> list[float]:
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-bias_max * (i + 1) / power) for i in range(power)]
    return slopes if power == heads else slopes + _list_slopes(2 * power, bias_max)[::2][: heads - power]

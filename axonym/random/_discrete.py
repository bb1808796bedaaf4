"""Distributions of booleans, integers and positions along an axis."""

from typing import Any

import jax

from ..named._array import NamedArray
from ..named._axis import AxisSelector, AxisSpec, find_axis, get_names_and_sizes, parse_axes
from ..named._base import NamedBase, format_shape
from ..named._format import format_axes
from ._sampling import check_bounds, check_parameter, draw_sample


def bernoulli(key: jax.Array, shape: AxisSpec, p: Any = 0.5) -> NamedArray:
    """Draws booleans that are True with probability `p`; see `jax.random.bernoulli`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        p: The probability, a scalar or a named array of some of the axes.

    Returns:
        Boolean array with those axes, sharded by the active mapping.

    Raises:
        ValueError: If `p` has an axis that the array lacks, or one of another size.
        TypeError: If `p` is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.bernoulli(jax.random.key(0), nym.Axis("i", 4), 1.0).all().item()
        True
    """
    check_parameter("bernoulli: `p`", p, least=0, most=1)
    return draw_sample(jax.random.bernoulli, key, shape, {"p": p})


def randint(key: jax.Array, shape: AxisSpec, minval: Any, maxval: Any, dtype: Any = int) -> NamedArray:
    """Draws integers uniformly from `[minval, maxval)`; see `jax.random.randint`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        minval: Lower bound, an integer or a named array of some of the axes.
        maxval: Upper bound, an integer or a named array of some of the axes.
        dtype: Integer dtype of the result.

    Returns:
        Integer array with those axes, sharded by the active mapping.

    Raises:
        ValueError: If a bound has an axis that the array lacks, or one of another size.
        TypeError: If a bound is a plain array with axes, or not an integer.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.randint(jax.random.key(0), nym.Axis("i", 100), 3, 6).max().item()
        5
    """
    check_bounds("randint", is_strict=True, minval=minval, maxval=maxval)
    return draw_sample(jax.random.randint, key, shape, {"minval": minval, "maxval": maxval}, dtype=dtype)


def rademacher(key: jax.Array, shape: AxisSpec, dtype: Any = int) -> NamedArray:
    """Draws -1 and 1, each with probability one half; see `jax.random.rademacher`. Arguments as for `normal`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> abs(nym.random.rademacher(jax.random.key(0), nym.Axis("i", 3))).array
        Array([1, 1, 1], dtype=int32)
    """
    return draw_sample(jax.random.rademacher, key, shape, dtype=dtype)


def poisson(key: jax.Array, shape: AxisSpec, lam: Any, dtype: Any = int) -> NamedArray:
    """Draws from the Poisson distribution; see `jax.random.poisson`. Other arguments as for `randint`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        lam: The mean, a scalar or a named array of some of the axes.
        dtype: Integer dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.poisson(jax.random.key(0), nym.Axis("i", 3), 0.0).array
        Array([0, 0, 0], dtype=int32)
    """
    check_parameter("poisson: `lam`", lam, least=0)
    return draw_sample(jax.random.poisson, key, shape, {"lam": lam}, dtype=dtype)


def geometric(key: jax.Array, shape: AxisSpec, p: Any, dtype: Any = int) -> NamedArray:
    """Draws the number of trials until the first success; see `jax.random.geometric`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        p: The probability of success, a scalar or a named array of some of the axes.
        dtype: Integer dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.geometric(jax.random.key(0), nym.Axis("i", 100), 0.5).min().item()
        1
    """
    check_parameter("geometric: `p`", p, above=0, most=1)
    return draw_sample(jax.random.geometric, key, shape, {"p": p}, dtype=dtype)


def binomial(key: jax.Array, shape: AxisSpec, n: Any, p: Any, dtype: Any = float) -> NamedArray:
    """Draws the number of successes in `n` trials; see `jax.random.binomial`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        n: The number of trials, a scalar or a named array of some of the axes.
        p: The probability of success, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.binomial(jax.random.key(0), nym.Axis("i", 3), 10, 1.0).array
        Array([10., 10., 10.], dtype=float32)
    """
    check_parameter("binomial: `n`", n, least=0)
    check_parameter("binomial: `p`", p, least=0, most=1)
    return draw_sample(jax.random.binomial, key, shape, {"n": n, "p": p}, dtype=dtype)


def categorical(key: jax.Array, logits: NamedArray, axis: AxisSelector, shape: AxisSpec | None = None) -> NamedArray:
    """Draws positions along an axis with probabilities `softmax(logits)`; see `jax.random.categorical`.

    The values equal JAX's with that axis last; they do not depend on the position of the axis.

    Args:
        key: A random key.
        logits: Unnormalised log probabilities.
        axis: The axis along which positions are drawn.
        shape: The axes of the result, which must include the axes of `logits` other than `axis`; only those if None.

    Returns:
        Integer array of positions.

    Raises:
        ValueError: If `logits` lacks the axis, or another of its axes is missing in `shape` or has another size there.
        TypeError: If `logits` is not a named array.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> logits = nym.named([-1e9, 0.0, -1e9], "vocab")
        >>> nym.random.categorical(jax.random.key(0), logits, "vocab", nym.Axis("batch", 2)).array
        Array([1, 1], dtype=int32)
    """
    if not isinstance(logits, NamedBase):
        raise TypeError(f"`logits` must be a named array, not {type(logits).__name__}; use `axonym.named`.")
    at = find_axis(logits.names, logits.array.shape, axis)
    rest = tuple(one for i, one in enumerate(logits.axes) if i != at)
    axes = rest if shape is None else parse_axes(shape)
    names = [one.name for one in axes]
    if extra := [one.name for one in rest if one.name not in names]:
        raise ValueError(
            f"`logits` {format_shape(logits)} has axes {format_axes(extra)}, which "
            f"`shape` {format_axes(*get_names_and_sizes(axes))} lacks"
        )
    return draw_sample(jax.random.categorical, key, axes, {"logits": logits}, cores={"logits": (axis,)})

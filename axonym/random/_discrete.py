"""Distributions over whole numbers, booleans and positions along an axis."""

from typing import Any

import jax

from ..named._array import NamedArray
from ..named._axis import AxisSelector, AxisSpec, find_axis, format_axes, parse_axes
from ..named._base import NamedBase, format_shape
from ._drawing import drawn


def bernoulli(key: jax.Array, shape: AxisSpec, p: Any = 0.5) -> NamedArray:
    """Draws booleans that are True with probability `p`; see `jax.random.bernoulli`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        p: The probability, a scalar or a named array of some of the axes.

    Returns:
        Boolean array with those axes, sharded as the mapping in force says.

    Raises:
        ValueError: If `p` has an axis that the array has not, or has in another size.
        TypeError: If `p` is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.bernoulli(jax.random.key(0), nym.Axis("i", 4), 1.0).all().item()
        True
    """
    return drawn(jax.random.bernoulli, key, shape, (p,))


def randint(key: jax.Array, shape: AxisSpec, minval: Any, maxval: Any, dtype: Any = int) -> NamedArray:
    """Draws integers evenly from `minval` up to but not including `maxval`; see `jax.random.randint`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        minval: Lower bound, an integer or a named array of some of the axes.
        maxval: Upper bound, an integer or a named array of some of the axes.
        dtype: Element type, an integer.

    Returns:
        Integer array with those axes, sharded as the mapping in force says.

    Raises:
        ValueError: If a bound has an axis that the array has not, or has in another size.
        TypeError: If a bound is a plain array with axes, or no integer.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.randint(jax.random.key(0), nym.Axis("i", 100), 3, 6).max().item()
        5
    """
    return drawn(_randint, key, shape, (minval, maxval), dtype=dtype)


def _randint(key: Any, minval: Any, maxval: Any, *, shape: Any, dtype: Any) -> Any:
    return jax.random.randint(key, shape, minval, maxval, dtype)


def rademacher(key: jax.Array, shape: AxisSpec, dtype: Any = int) -> NamedArray:
    """Draws -1 and 1, each with probability one half; see `jax.random.rademacher`. Arguments as for `normal`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> abs(nym.random.rademacher(jax.random.key(0), nym.Axis("i", 3))).array
        Array([1, 1, 1], dtype=int32)
    """
    return drawn(jax.random.rademacher, key, shape, dtype=dtype)


def poisson(key: jax.Array, shape: AxisSpec, lam: Any, dtype: Any = int) -> NamedArray:
    """Draws from the Poisson distribution; see `jax.random.poisson`. Other arguments as for `randint`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        lam: The mean, a scalar or a named array of some of the axes.
        dtype: Element type, an integer.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.poisson(jax.random.key(0), nym.Axis("i", 3), 0.0).array
        Array([0, 0, 0], dtype=int32)
    """
    return drawn(jax.random.poisson, key, shape, (lam,), dtype=dtype)


def geometric(key: jax.Array, shape: AxisSpec, p: Any, dtype: Any = int) -> NamedArray:
    """Draws how many trials it takes until one succeeds; see `jax.random.geometric`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        p: The probability of success, a scalar or a named array of some of the axes.
        dtype: Element type, an integer.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.geometric(jax.random.key(0), nym.Axis("i", 100), 0.5).min().item()
        1
    """
    return drawn(jax.random.geometric, key, shape, (p,), dtype=dtype)


def binomial(key: jax.Array, shape: AxisSpec, n: Any, p: Any, dtype: Any = float) -> NamedArray:
    """Draws how many of `n` trials succeed; see `jax.random.binomial`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        n: The number of trials, a scalar or a named array of some of the axes.
        p: The probability of success, a scalar or a named array of some of the axes.
        dtype: Element type, a float.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.binomial(jax.random.key(0), nym.Axis("i", 3), 10, 1.0).array
        Array([10., 10., 10.], dtype=float32)
    """
    return drawn(jax.random.binomial, key, shape, (n, p), dtype=dtype)


def categorical(key: jax.Array, logits: NamedArray, axis: AxisSelector, shape: AxisSpec | None = None) -> NamedArray:
    """Draws positions along an axis with probabilities `softmax(logits)`; see `jax.random.categorical`.

    The values are those that JAX draws where that axis is the last one; they do not depend on where it is.

    Args:
        key: A random key.
        logits: Unnormalised log probabilities.
        axis: The axis whose positions are drawn.
        shape: The axes of the result, which must include those of `logits` but `axis`; just those if None.

    Returns:
        Integer array of positions.

    Raises:
        ValueError: If `logits` lacks the axis, or has another that `shape` lacks or gives another size.
        TypeError: If `logits` is not a named array.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> logits = nym.named([-1e9, 0.0, -1e9], "vocab")
        >>> nym.random.categorical(jax.random.key(0), logits, "vocab", nym.Axis("batch", 2)).array
        Array([1, 1], dtype=int32)
    """
    if not isinstance(logits, NamedBase):
        raise TypeError(f"`categorical` takes named logits, not {type(logits).__name__}; use `axonym.named`.")
    at = find_axis(logits.names, logits.array.shape, axis)
    rest = tuple(one for i, one in enumerate(logits.axes) if i != at)
    axes = rest if shape is None else parse_axes(shape)
    names = [one.name for one in axes]
    if extra := [one.name for one in rest if one.name not in names]:
        raise ValueError(
            f"{format_shape(logits)} has axes {format_axes(extra)}, which {format_axes(names, [one.size for one in axes])} lacks"
        )
    return drawn(jax.random.categorical, key, axes, (logits,), cores=((axis,),))

"""Drawing named arrays, and splitting keys along an axis."""

import operator
from collections.abc import Callable
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp

from ..named._align import check_sizes, lined_up, operand
from ..named._ambient import constrain, out_sharding
from ..named._array import NamedArray
from ..named._axis import Axis, AxisSelector, AxisSpec, Names, intern_names, listed, position, spec_axes
from ..named._base import NamedBase, described


def _drawn(
    sample: Callable[..., Any], key: jax.Array, shape: AxisSpec, parameters: tuple[Any, ...], **options: Any
) -> NamedArray:
    """Draws an array; parameters that are named arrays are lined up with its axes by name."""
    axes = spec_axes(shape)
    names, sizes = tuple(axis.name for axis in axes), tuple(axis.size for axis in axes)
    values = [_parameter(value, names, sizes) for value in parameters]
    array = sample(_plain_key(key), *values, shape=sizes, **options, out_sharding=out_sharding(names, sizes))
    return constrain(NamedArray(array, intern_names(names)))


def _parameter(value: Any, names: Names, sizes: tuple[int, ...]) -> Any:
    array, own = operand(value)
    if not own:
        return array
    if extra := [name for name in own if name not in names]:
        raise ValueError(f"a parameter has axes {listed(extra)} that the array drawn, {listed(names, sizes)}, has not")
    check_sizes((own, array.shape), (names, sizes))
    return lined_up(array, own, names)


def _plain_key(key: Any) -> jax.Array:
    if not isinstance(key, NamedBase):
        return key
    if key.names:
        raise ValueError(f"one key is needed, {described(key)} are given; use `axonym.vmap` over their axes")
    return key.array


def normal(key: jax.Array, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Draws from the normal distribution of mean 0 and variance 1; see `jax.random.normal`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        dtype: Element type, a float.

    Returns:
        Array with those axes, sharded as the mapping in force says. The values do not depend on the sharding.

    Raises:
        TypeError: If an axis has no size.
        ValueError: If a name occurs twice, or the mesh does not divide a mapped axis.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.normal(jax.random.key(0), {"batch": 2, "embed": 32})
        NamedArray(float32, batch: 2, embed: 32)
    """
    return _drawn(jax.random.normal, key, shape, (), dtype=dtype)


def uniform(key: jax.Array, shape: AxisSpec, dtype: Any = float, minval: Any = 0.0, maxval: Any = 1.0) -> NamedArray:
    """Draws evenly from `[minval, maxval)`; see `jax.random.uniform`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        dtype: Element type, a float.
        minval: Lower bound, a scalar or a named array of some of the axes.
        maxval: Upper bound, a scalar or a named array of some of the axes.

    Returns:
        Array with those axes, sharded as the mapping in force says.

    Raises:
        ValueError: If a bound has an axis that the array has not, or has in another size.
        TypeError: If a bound is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.uniform(jax.random.key(0), nym.Axis("i", 1000)).max().item() < 1
        True
    """

    def sample(key: Any, low: Any, high: Any, *, shape: Any, dtype: Any, out_sharding: Any) -> Any:
        return jax.random.uniform(key, shape, dtype, low, high, out_sharding=out_sharding)

    return _drawn(sample, key, shape, (minval, maxval), dtype=dtype)


def truncated_normal(key: jax.Array, shape: AxisSpec, lower: Any, upper: Any, dtype: Any = float) -> NamedArray:
    """Draws from the normal distribution cut off at two bounds; see `jax.random.truncated_normal`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        lower: Lower bound, a scalar or a named array of some of the axes.
        upper: Upper bound, a scalar or a named array of some of the axes.
        dtype: Element type, a float.

    Returns:
        Array with those axes, sharded as the mapping in force says.

    Raises:
        ValueError: If a bound has an axis that the array has not, or has in another size.
        TypeError: If a bound is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> abs(nym.random.truncated_normal(jax.random.key(0), nym.Axis("i", 1000), -2, 2)).max().item() <= 2
        True
    """
    return _drawn(jax.random.truncated_normal, key, shape, (lower, upper), dtype=dtype)


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
    return _drawn(jax.random.bernoulli, key, shape, (p,))


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
    at = position(logits.names, logits.array.shape, axis)
    rest = logits.names[:at] + logits.names[at + 1 :]
    axes = tuple(one for one in logits.axes if one.name in rest) if shape is None else spec_axes(shape)
    names, sizes = tuple(one.name for one in axes), tuple(one.size for one in axes)
    if extra := [name for name in rest if name not in names]:
        raise ValueError(f"{described(logits)} has axes {listed(extra)}, which {listed(names, sizes)} lacks")
    check_sizes((rest, tuple(logits.axis_size(name) for name in rest)), (names, sizes))
    own = (*logits.names[:at], "", *logits.names[at + 1 :])  # "" is no name of an axis
    lined = lined_up(logits.array, own, (*names, ""))
    array = jax.random.categorical(
        _plain_key(key), lined, axis=-1, shape=sizes, out_sharding=out_sharding(names, sizes)
    )
    return constrain(NamedArray(array, intern_names(names)))


def split(key: jax.Array, axis: Axis | int = 2) -> Any:
    """Splits a key into several; see `jax.random.split`.

    Args:
        key: A random key.
        axis: The axis along which the new keys lie, or how many of them.

    Returns:
        Named array of keys with that axis, sharded as the mapping in force says; a plain array of keys if a number is
        given.

    Raises:
        TypeError: If the axis has no size, or the key is not of the typed kind.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.split(jax.random.key(0), nym.Axis("layers", 4)).shape
        (layers: 4)
    """
    if isinstance(axis, SupportsIndex):
        return jax.random.split(_plain_key(key), operator.index(axis))
    (one,), plain = spec_axes(axis), _plain_key(key)
    if not jnp.issubdtype(plain.dtype, jax.dtypes.prng_key):
        raise TypeError("`split` along an axis needs a typed key; make it with `jax.random.key(seed)`.")
    return constrain(NamedArray(jax.random.split(plain, one.size), one))

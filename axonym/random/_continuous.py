"""Distributions of independent real numbers: the normal distribution and others over the real line."""

from typing import Any

import jax

from ..named._array import NamedArray
from ..named._axis import AxisSpec
from ._sampling import check_bounds, check_parameter, draw_sample


def normal(key: jax.Array, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Draws from the normal distribution of mean 0 and variance 1; see `jax.random.normal`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        dtype: Float dtype of the result.

    Returns:
        Array with those axes, sharded by the active mapping. The values do not depend on the sharding.

    Raises:
        TypeError: If an axis has no size.
        ValueError: If a name occurs twice, or a mapped axis is not divisible by its mesh axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.normal(jax.random.key(0), {"batch": 2, "embed": 32}).shape
        (batch: 2, embed: 32)
    """
    return draw_sample(jax.random.normal, key, shape, dtype=dtype)


def uniform(key: jax.Array, shape: AxisSpec, dtype: Any = float, minval: Any = 0.0, maxval: Any = 1.0) -> NamedArray:
    """Draws uniformly from `[minval, maxval)`; see `jax.random.uniform`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        dtype: Float dtype of the result.
        minval: Lower bound, a scalar or a named array of some of the axes.
        maxval: Upper bound, a scalar or a named array of some of the axes.

    Returns:
        Array with those axes, sharded by the active mapping.

    Raises:
        ValueError: If a bound has an axis that the array lacks, or one of another size.
        TypeError: If a bound is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.uniform(jax.random.key(0), nym.Axis("i", 1000)).max().item() < 1
        True
    """
    check_bounds("uniform", minval=minval, maxval=maxval)
    return draw_sample(jax.random.uniform, key, shape, {"minval": minval, "maxval": maxval}, dtype=dtype)


def truncated_normal(key: jax.Array, shape: AxisSpec, lower: Any, upper: Any, dtype: Any = float) -> NamedArray:
    """Draws from the normal distribution truncated at two bounds; see `jax.random.truncated_normal`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        lower: Lower bound, a scalar or a named array of some of the axes.
        upper: Upper bound, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Returns:
        Array with those axes, sharded by the active mapping.

    Raises:
        ValueError: If a bound has an axis that the array lacks, or one of another size.
        TypeError: If a bound is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> abs(nym.random.truncated_normal(jax.random.key(0), nym.Axis("i", 1000), -2, 2)).max().item() <= 2
        True
    """
    check_bounds("truncated_normal", is_strict=True, lower=lower, upper=upper)
    return draw_sample(jax.random.truncated_normal, key, shape, {"lower": lower, "upper": upper}, dtype=dtype)


def lognormal(key: jax.Array, shape: AxisSpec, sigma: Any = 1.0, dtype: Any = float) -> NamedArray:
    """Draws from the log-normal distribution; see `jax.random.lognormal`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        sigma: Standard deviation of the logarithm, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Returns:
        Array with those axes, sharded by the active mapping.

    Raises:
        ValueError: If `sigma` has an axis that the array lacks, or one of another size.
        TypeError: If `sigma` is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.lognormal(jax.random.key(0), nym.Axis("i", 2), 0.0).array
        Array([1., 1.], dtype=float32)
    """
    check_parameter("lognormal: `sigma`", sigma, least=0)
    return draw_sample(jax.random.lognormal, key, shape, {"sigma": sigma}, dtype=dtype)


def generalized_normal(key: jax.Array, shape: AxisSpec, p: Any, dtype: Any = float) -> NamedArray:
    """Draws with a density of `exp(-abs(x) ** p)`; see `jax.random.generalized_normal`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        p: The power, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> abs(nym.random.generalized_normal(jax.random.key(0), nym.Axis("i", 100), 50.0)).max().item() < 1.2
        True
    """
    check_parameter("generalized_normal: `p`", p, above=0)
    return draw_sample(jax.random.generalized_normal, key, shape, {"p": p}, dtype=dtype)


def laplace(key: jax.Array, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Draws from the Laplace distribution of mean 0 and scale 1; see `jax.random.laplace`. Arguments as for `normal`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.laplace(jax.random.key(0), {"batch": 2, "embed": 32}).shape
        (batch: 2, embed: 32)
    """
    return draw_sample(jax.random.laplace, key, shape, dtype=dtype)


def logistic(key: jax.Array, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Draws from the logistic distribution; see `jax.random.logistic`. Arguments as for `normal`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.logistic(jax.random.key(0), {"batch": 2, "embed": 32}).shape
        (batch: 2, embed: 32)
    """
    return draw_sample(jax.random.logistic, key, shape, dtype=dtype)


def gumbel(key: jax.Array, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Draws from the Gumbel distribution; see `jax.random.gumbel`. Arguments as for `normal`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.gumbel(jax.random.key(0), {"batch": 2, "embed": 32}).shape
        (batch: 2, embed: 32)
    """
    return draw_sample(jax.random.gumbel, key, shape, dtype=dtype)


def cauchy(key: jax.Array, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Draws from the Cauchy distribution; see `jax.random.cauchy`. Arguments as for `normal`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.cauchy(jax.random.key(0), {"batch": 2, "embed": 32}).shape
        (batch: 2, embed: 32)
    """
    return draw_sample(jax.random.cauchy, key, shape, dtype=dtype)


def t(key: jax.Array, shape: AxisSpec, df: Any, dtype: Any = float) -> NamedArray:
    """Draws from Student's t distribution; see `jax.random.t`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        df: Degrees of freedom, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.t(jax.random.key(0), {"batch": 2, "embed": 32}, 3.0).shape
        (batch: 2, embed: 32)
    """
    check_parameter("t: `df`", df, above=0)
    return draw_sample(jax.random.t, key, shape, {"df": df}, dtype=dtype)


def triangular(key: jax.Array, shape: AxisSpec, left: Any, mode: Any, right: Any, dtype: Any = float) -> NamedArray:
    """Draws from the triangular distribution between `left` and `right`; see `jax.random.triangular`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        left: Lower bound, a scalar or a named array of some of the axes.
        mode: Where the density is highest, a scalar or a named array of some of the axes.
        right: Upper bound, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.triangular(jax.random.key(0), nym.Axis("i", 100), 1.0, 2.0, 4.0).max().item() < 4
        True
    """
    check_bounds("triangular", left=left, mode=mode, right=right)
    return draw_sample(jax.random.triangular, key, shape, {"left": left, "mode": mode, "right": right}, dtype=dtype)

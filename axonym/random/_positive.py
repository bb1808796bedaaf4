"""Distributions of independent positive numbers: exponential, gamma and related ones."""

from typing import Any

import jax

from ..named._array import NamedArray
from ..named._axis import AxisSpec
from ._sampling import check_parameter, draw_sample


def exponential(key: jax.Array, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Draws from the exponential distribution of mean 1; see `jax.random.exponential`. Arguments as for `normal`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.exponential(jax.random.key(0), nym.Axis("i", 1000)).min().item() >= 0
        True
    """
    return draw_sample(jax.random.exponential, key, shape, dtype=dtype)


def gamma(key: jax.Array, shape: AxisSpec, a: Any, dtype: Any = float) -> NamedArray:
    """Draws from the gamma distribution of scale 1; see `jax.random.gamma`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        a: The shape parameter and mean, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Returns:
        Array with those axes, sharded by the active mapping.

    Raises:
        ValueError: If a parameter has an axis that the array lacks, or one of another size.
        TypeError: If a parameter is a plain array with axes.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.gamma(jax.random.key(0), nym.Axis("i", 1000), 2.0).min().item() >= 0
        True
    """
    check_parameter("gamma: `a`", a, above=0)
    return draw_sample(jax.random.gamma, key, shape, {"a": a}, dtype=dtype)


def loggamma(key: jax.Array, shape: AxisSpec, a: Any, dtype: Any = float) -> NamedArray:
    """Draws logarithms of gamma samples, accurate for small `a`; see `jax.random.loggamma`. Arguments as for `gamma`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.loggamma(jax.random.key(0), {"batch": 2, "embed": 32}, 0.1).shape
        (batch: 2, embed: 32)
    """
    check_parameter("loggamma: `a`", a, above=0)
    return draw_sample(jax.random.loggamma, key, shape, {"a": a}, dtype=dtype)


def beta(key: jax.Array, shape: AxisSpec, a: Any, b: Any, dtype: Any = float) -> NamedArray:
    """Draws from the beta distribution, between 0 and 1; see `jax.random.beta`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        a: First shape parameter, a scalar or a named array of some of the axes.
        b: Second shape parameter, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.beta(jax.random.key(0), nym.Axis("i", 1000), 1.0, 2.0).max().item() <= 1
        True
    """
    check_parameter("beta: `a`", a, above=0)
    check_parameter("beta: `b`", b, above=0)
    return draw_sample(jax.random.beta, key, shape, {"a": a, "b": b}, dtype=dtype)


def chisquare(key: jax.Array, shape: AxisSpec, df: Any, dtype: Any = float) -> NamedArray:
    """Draws from the chi-square distribution; see `jax.random.chisquare`. Arguments as for `t`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.chisquare(jax.random.key(0), nym.Axis("i", 1000), 3.0).min().item() >= 0
        True
    """
    check_parameter("chisquare: `df`", df, above=0)
    return draw_sample(jax.random.chisquare, key, shape, {"df": df}, dtype=dtype)


def f(key: jax.Array, shape: AxisSpec, dfnum: Any, dfden: Any, dtype: Any = float) -> NamedArray:
    """Draws from the F distribution; see `jax.random.f`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        dfnum: Degrees of freedom of the numerator, a scalar or a named array of some of the axes.
        dfden: Degrees of freedom of the denominator, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.f(jax.random.key(0), nym.Axis("i", 1000), 3.0, 4.0).min().item() >= 0
        True
    """
    check_parameter("f: `dfnum`", dfnum, above=0)
    check_parameter("f: `dfden`", dfden, above=0)
    return draw_sample(jax.random.f, key, shape, {"dfnum": dfnum, "dfden": dfden}, dtype=dtype)


def pareto(key: jax.Array, shape: AxisSpec, b: Any, dtype: Any = float) -> NamedArray:
    """Draws from the Pareto distribution, from 1 upwards; see `jax.random.pareto`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        b: How fast the tail decays, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.pareto(jax.random.key(0), nym.Axis("i", 1000), 2.0).min().item() >= 1
        True
    """
    check_parameter("pareto: `b`", b, above=0)
    return draw_sample(jax.random.pareto, key, shape, {"b": b}, dtype=dtype)


def weibull_min(key: jax.Array, shape: AxisSpec, scale: Any, concentration: Any, dtype: Any = float) -> NamedArray:
    """Draws from the Weibull distribution; see `jax.random.weibull_min`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        scale: The scale, a scalar or a named array of some of the axes.
        concentration: The shape parameter, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.weibull_min(jax.random.key(0), nym.Axis("i", 1000), 1.0, 2.0).min().item() >= 0
        True
    """
    check_parameter("weibull_min: `scale`", scale, above=0)
    check_parameter("weibull_min: `concentration`", concentration, above=0)
    return draw_sample(
        jax.random.weibull_min, key, shape, {"scale": scale, "concentration": concentration}, dtype=dtype
    )


def rayleigh(key: jax.Array, shape: AxisSpec, scale: Any, dtype: Any = float) -> NamedArray:
    """Draws from the Rayleigh distribution, the lengths of 2D normal vectors; see `jax.random.rayleigh`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        scale: Standard deviation of the vector components, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.rayleigh(jax.random.key(0), nym.Axis("i", 1000), 2.0).min().item() >= 0
        True
    """
    check_parameter("rayleigh: `scale`", scale, above=0)
    return draw_sample(jax.random.rayleigh, key, shape, {"scale": scale}, dtype=dtype)


def maxwell(key: jax.Array, shape: AxisSpec, dtype: Any = float) -> NamedArray:
    """Draws from the Maxwell distribution, the lengths of 3D normal vectors; see `jax.random.maxwell`.

    Arguments as for `normal`.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.maxwell(jax.random.key(0), nym.Axis("i", 1000)).min().item() >= 0
        True
    """
    return draw_sample(jax.random.maxwell, key, shape, dtype=dtype)


def wald(key: jax.Array, shape: AxisSpec, mean: Any, dtype: Any = float) -> NamedArray:
    """Draws from the Wald (inverse Gaussian) distribution; see `jax.random.wald`.

    Args:
        key: A random key.
        shape: The axes: an `Axis`, a sequence of them, or a mapping from name to size.
        mean: The mean, a scalar or a named array of some of the axes.
        dtype: Float dtype of the result.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.wald(jax.random.key(0), nym.Axis("i", 1000), 2.0).min().item() >= 0
        True
    """
    check_parameter("wald: `mean`", mean, above=0)
    return draw_sample(jax.random.wald, key, shape, {"mean": mean}, dtype=dtype)

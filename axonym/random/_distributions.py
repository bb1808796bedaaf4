"""Distributions of independent numbers: real, positive, whole and boolean, and positions along an axis."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._ground.arguments import as_python_integer, check_dtype, check_integer, check_number
from .._ground.formats import format_axes
from ..named._array import NamedArray
from ..named._axis import AxisSelector, AxisSpec, find_axis, get_names_and_sizes, parse_axes
from ..named._base import NamedBase, format_shape
from ..named._numpy_input import get_integer_limits
from ._draw_sample import check_bounds, check_parameter, draw_sample


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
    parameters = {"minval": minval, "maxval": maxval}
    result_dtype = float if dtype is None else dtype
    return draw_sample(_draw_uniform, key, shape, parameters, dtype=dtype, result_dtype=result_dtype)


def _draw_uniform(key: Any, minval: Any, maxval: Any, *, shape: Any, dtype: Any, result_dtype: Any) -> Any:
    minval, maxval = (jnp.asarray(bound, result_dtype) for bound in (minval, maxval))
    draws = jax.random.uniform(key, shape, dtype, minval, maxval)
    # The largest draws could be rounded up to `maxval`.
    below_maxval = jnp.nextafter(*jax.lax.stop_gradient((maxval, minval)))
    return jnp.minimum(draws, below_maxval.astype(draws.dtype))


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
    has_numbers = isinstance(lower, int | float) and isinstance(upper, int | float)
    is_central = has_numbers and lower <= TAIL_START and upper >= -TAIL_START
    sample = jax.random.truncated_normal if is_central else _draw_truncated_normal
    return draw_sample(sample, key, shape, {"lower": lower, "upper": upper}, dtype=dtype)


TAIL_START = 2.0  # beyond this, JAX's `truncated_normal` loses precision: in float32 it takes P(x > 6) for 0


def _draw_truncated_normal(key: Any, lower: Any, upper: Any, *, shape: Any, dtype: Any) -> Any:
    share = jax.random.uniform(key, shape, dtype)
    lower, upper = (jnp.asarray(bound, share.dtype) for bound in (lower, upper))
    is_left = upper < -TAIL_START
    is_tail = is_left | (lower > TAIL_START)
    central_bounds = jnp.where(is_tail, -1, lower), jnp.where(is_tail, 1, upper)
    central_draws = jax.random.truncated_normal(key, *central_bounds, shape, dtype)

    # In a tail, this share of the mass between both bounds lies between the nearer one and the draw. Newton's method
    # finds the distance of the draw from 0, from above, by the logarithm of the mass beyond it.
    share = jnp.maximum(share, jnp.finfo(share.dtype).eps / 2)  # a bound may be infinite, but no draw
    share = jnp.where(is_left, 1 - share, share)
    near_bound = jnp.where(is_tail, jnp.minimum(abs(lower), abs(upper)), TAIL_START)
    # The derivative at infinity would be NaN.
    far_bound = jnp.clip(jnp.maximum(abs(lower), abs(upper)), near_bound, near_bound + 40)
    log_ndtr = jax.scipy.special.log_ndtr  # JAX imports this module when it is used
    log_mass = log_ndtr(-near_bound)
    log_ratio = jnp.log1p(share * jnp.expm1(log_ndtr(-far_bound) - log_mass))
    distance = jnp.sqrt(near_bound**2 - 2 * log_ratio)
    for _ in range(3):
        distance = jax.lax.stop_gradient(distance)  # the last step has the whole derivative
        log_mass_beyond = log_ndtr(-distance)
        # The hazard rate is between these limits, also far out, where the logarithms are too large for a difference.
        log_density = -(distance**2 + math.log(2 * math.pi)) / 2
        hazard = jnp.clip(jnp.exp(log_density - log_mass_beyond), distance, distance + 1 / distance)
        distance += (log_mass_beyond - log_mass - log_ratio) / hazard
    tail_draws = jnp.clip(jnp.where(is_left, -distance, distance), lower, upper)
    return jnp.where(is_tail, tail_draws, central_draws)


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
    """Draws with a density proportional to `exp(-abs(x) ** p)`; see `jax.random.generalized_normal`.

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
        ValueError: If a bound has an axis that the array lacks, or one of another size, or does not fit the dtype.
        TypeError: If a bound is a plain array with axes, or not an integer.

    Example:
        >>> import axonym as nym
        >>> import jax
        >>> nym.random.randint(jax.random.key(0), nym.Axis("i", 100), 3, 6).max().item()
        5
    """
    check_bounds("randint", is_strict=True, minval=minval, maxval=maxval)
    check_dtype(dtype)
    drawn_dtype = jnp.result_type(int if dtype is None else dtype)
    bounds = {"minval": minval, "maxval": maxval}
    parameters = {name: _parse_bound(name, bound, drawn_dtype) for name, bound in bounds.items()}
    return draw_sample(jax.random.randint, key, shape, parameters, dtype=dtype)


def _parse_bound(name: str, bound: Any, dtype: Any) -> Any:
    """Returns a bound of `randint`, after checking that a known number is an integer that fits the dtype."""
    limits = get_integer_limits(dtype)
    if limits is None or not isinstance(bound, int | float | np.number):
        return bound
    default_limits = jnp.iinfo(jnp.result_type(int))
    # `maxval` itself is not drawn, so it may be one more than the largest number; JAX takes it as an unsigned one.
    largest_bound = min(limits.max + (name == "maxval"), 2 * default_limits.max + 1)
    number = as_python_integer(bound)
    if number is None or not limits.min <= number <= largest_bound:
        label = f"randint: `{name}` for {dtype}"
        check_number(label, check_integer(label, bound), least=limits.min, most=largest_bound)
    return bound if bound <= default_limits.max else np.dtype(f"uint{default_limits.bits}").type(bound)


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
    """Draws from the Poisson distribution; see `jax.random.poisson`.

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
    class_dim = find_axis(logits.names, logits.array.shape, axis)
    batch_axes = tuple(batch_axis for dim, batch_axis in enumerate(logits.axes) if dim != class_dim)
    axes = batch_axes if shape is None else parse_axes(shape)
    names, _ = get_names_and_sizes(axes)
    if extra := [batch_axis.name for batch_axis in batch_axes if batch_axis.name not in names]:
        raise ValueError(
            f"`logits` {format_shape(logits)} has axes {format_axes(extra)}, which "
            f"`shape` {format_axes(*get_names_and_sizes(axes))} lacks"
        )
    return draw_sample(jax.random.categorical, key, axes, {"logits": logits}, cores={"logits": (axis,)})

"""`haliax.random`: named arrays of random numbers."""

from typing import Any

from .. import random
from ._adapt import adapt, adapt_all


globals().update(
    adapt_all(
        random,
        {
            "": """
            ball bernoulli beta categorical cauchy choice exponential gamma gumbel laplace loggamma logistic normal
            pareto permutation poisson randint t truncated_normal uniform weibull_min
            """
        },
    )
)


def rademacher(key: Any, shape: Any, dtype: Any = float) -> Any:
    """Returns -1 or 1 with equal probability, as floats by default; see `axonym.random.rademacher`.

    Example:
        >>> import axonym.haliax as hax
        >>> import jax
        >>> hax.random.rademacher(jax.random.key(0), {"i": 2}).dtype
        dtype('float32')
    """
    return adapt(random.rademacher)(key, shape, dtype)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

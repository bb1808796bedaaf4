"""Random named arrays: the draws of `jax.random` for the same key and sizes, sharded by the active mapping.

Floats of fewer than 32 bits are draws in float32, rounded.
"""

from ._choice import choice as choice, permutation as permutation
from ._distributions import (
    bernoulli as bernoulli,
    beta as beta,
    binomial as binomial,
    categorical as categorical,
    cauchy as cauchy,
    chisquare as chisquare,
    exponential as exponential,
    f as f,
    gamma as gamma,
    generalized_normal as generalized_normal,
    geometric as geometric,
    gumbel as gumbel,
    laplace as laplace,
    loggamma as loggamma,
    logistic as logistic,
    lognormal as lognormal,
    maxwell as maxwell,
    normal as normal,
    pareto as pareto,
    poisson as poisson,
    rademacher as rademacher,
    randint as randint,
    rayleigh as rayleigh,
    t as t,
    triangular as triangular,
    truncated_normal as truncated_normal,
    uniform as uniform,
    wald as wald,
    weibull_min as weibull_min,
)
from ._keys import fold_in as fold_in, split as split
from ._structured import (
    ball as ball,
    dirichlet as dirichlet,
    multinomial as multinomial,
    multivariate_normal as multivariate_normal,
    orthogonal as orthogonal,
)

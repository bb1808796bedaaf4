"""Random named arrays: the draws of `jax.random` for the same key and sizes, sharded by the active mapping."""

from ._continuous import (
    cauchy as cauchy,
    generalized_normal as generalized_normal,
    gumbel as gumbel,
    laplace as laplace,
    logistic as logistic,
    lognormal as lognormal,
    normal as normal,
    t as t,
    triangular as triangular,
    truncated_normal as truncated_normal,
    uniform as uniform,
)
from ._discrete import (
    bernoulli as bernoulli,
    binomial as binomial,
    categorical as categorical,
    geometric as geometric,
    poisson as poisson,
    rademacher as rademacher,
    randint as randint,
)
from ._keys import split as split
from ._positive import (
    beta as beta,
    chisquare as chisquare,
    exponential as exponential,
    f as f,
    gamma as gamma,
    loggamma as loggamma,
    maxwell as maxwell,
    pareto as pareto,
    rayleigh as rayleigh,
    wald as wald,
    weibull_min as weibull_min,
)
from ._structured import (
    ball as ball,
    choice as choice,
    dirichlet as dirichlet,
    multinomial as multinomial,
    multivariate_normal as multivariate_normal,
    orthogonal as orthogonal,
    permutation as permutation,
)

"""Draws in each float dtype follow their distribution: their counts in bins are compared with those of SciPy."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import axonym as nym
import axonym.haliax as hax


Draw, Class = nym.Axis("draw", 2**13), nym.Axis("kind", 200)
KEY = jax.random.key(0)
random = nym.random
each_dtype = pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])

# Parameters, which 16 bits hold exactly, and a distribution of SciPy.
FLOATS = {
    "normal": ({}, stats.norm()),
    "uniform": ({}, stats.uniform()),
    "uniform between bounds": ({"minval": -3, "maxval": 0.5}, stats.uniform(-3, 3.5)),
    "truncated_normal": ({"lower": -1, "upper": 3}, stats.truncnorm(-1, 3)),
    "truncated_normal in the right tail": ({"lower": 8, "upper": 9}, stats.truncnorm(8, 9)),
    "truncated_normal in the left tail": ({"lower": -np.inf, "upper": -20}, stats.truncnorm(-np.inf, -20)),
    "lognormal": ({"sigma": 0.5}, stats.lognorm(0.5)),
    "generalized_normal": ({"p": 1.5}, stats.gennorm(1.5)),
    "laplace": ({}, stats.laplace()),
    "logistic": ({}, stats.logistic()),
    "gumbel": ({}, stats.gumbel_r()),
    "cauchy": ({}, stats.cauchy()),
    "t": ({"df": 3}, stats.t(3)),
    "triangular": ({"left": -1, "mode": 0.5, "right": 2}, stats.triang(0.5, -1, 3)),
    "exponential": ({}, stats.expon()),
    "gamma": ({"a": 1.5}, stats.gamma(1.5)),
    "loggamma": ({"a": 0.125}, stats.loggamma(0.125)),
    "beta": ({"a": 1.5, "b": 3}, stats.beta(1.5, 3)),
    "chisquare": ({"df": 3}, stats.chi2(3)),
    "f": ({"dfnum": 3, "dfden": 5}, stats.f(3, 5)),
    "pareto": ({"b": 3}, stats.pareto(3)),
    "weibull_min": ({"scale": 2, "concentration": 1.5}, stats.weibull_min(1.5, scale=2)),
    "rayleigh": ({"scale": 2}, stats.rayleigh(scale=2)),
    "maxwell": ({}, stats.maxwell()),
    "wald": ({"mean": 2}, stats.invgauss(2)),
}

# The first component of each draw, and its distribution.
VECTORS = {
    "ball": (
        lambda dtype: random.ball(KEY, Draw, nym.Axis("i", 3), parameter(2, dtype), dtype),
        stats.beta(2, 2, -1, 2),
    ),
    "dirichlet": (
        lambda dtype: random.dirichlet(KEY, Draw, parameter([0.5, 1, 2], dtype, "i"), "i", dtype),
        stats.beta(0.5, 3),
    ),
    "multivariate_normal": (
        lambda dtype: random.multivariate_normal(
            KEY, Draw, parameter([0.5, 1], dtype, "i"), parameter([[4, 1], [1, 1]], dtype, "i", "j"), "i", "j"
        ),
        stats.norm(0.5, 2),
    ),
    "orthogonal": (
        lambda dtype: random.orthogonal(KEY, nym.Axis("i", 3), nym.Axis("j", 3), Draw, dtype)["j", 0],
        stats.uniform(-1, 2),
    ),
}

ZIPF = np.random.default_rng(0).permutation(1 / np.arange(5.0, 205.0))

# The probability of each number from 0 on, given the dtype.
INTEGERS = {
    "bernoulli": (
        lambda dtype: random.bernoulli(KEY, Draw, parameter(1 / 512, dtype)),
        lambda dtype: [511 / 512, 1 / 512],
    ),
    "geometric": (
        lambda dtype: random.geometric(KEY, Draw, parameter(1 / 64, dtype)),
        lambda dtype: stats.geom(1 / 64).pmf(np.arange(2000)),
    ),
    "poisson": (
        lambda dtype: random.poisson(KEY, Draw, parameter(20, dtype)),
        lambda dtype: stats.poisson(20).pmf(np.arange(100)),
    ),
    "binomial": (
        lambda dtype: random.binomial(KEY, Draw, parameter(100, dtype), parameter(0.25, dtype), dtype),
        lambda dtype: stats.binom(100, 0.25).pmf(np.arange(101)),
    ),
    "multinomial": (
        lambda dtype: random.multinomial(KEY, Draw, 20, parameter([0.25, 0.25, 0.5], dtype, "i"), "i", dtype)["i", 0],
        lambda dtype: stats.binom(20, 0.25).pmf(np.arange(21)),
    ),
    "randint": (lambda dtype: random.randint(KEY, Draw, 0, 200), lambda dtype: np.ones(200)),
    "rademacher": (lambda dtype: random.rademacher(KEY, Draw, dtype) > 0, lambda dtype: [1, 1]),
    "categorical": (
        lambda dtype: random.categorical(KEY, parameter(np.log(ZIPF), dtype, "kind"), "kind", Draw),
        lambda dtype: np.exp(round_to(np.log(ZIPF), dtype)),
    ),
    "categorical of Haliax": (
        lambda dtype: hax.random.categorical(KEY, parameter(np.log(ZIPF), dtype, "kind"), "kind", Draw),
        lambda dtype: np.exp(round_to(np.log(ZIPF), dtype)),
    ),
    "choice": (
        lambda dtype: random.choice(KEY, Draw, nym.arange(Class), Class, p=parameter(ZIPF, dtype, "kind")),
        lambda dtype: round_to(ZIPF, dtype),
    ),
    "choice without replacement": (
        lambda dtype: nym.vmap(
            lambda key: random.choice(key, (), nym.arange(Class), Class, False, parameter(ZIPF, dtype, "kind")), Draw
        )(random.split(KEY, Draw)),
        lambda dtype: round_to(ZIPF, dtype),
    ),
    "permutation": (
        lambda dtype: nym.vmap(
            lambda key: random.permutation(key, nym.arange(nym.Axis("i", 8)).astype(dtype), "i")["i", 0], Draw
        )(random.split(KEY, Draw)),
        lambda dtype: np.ones(8),
    ),
}


def round_to(values, dtype):
    return np.asarray(values).astype(dtype).astype(float)


def parameter(values, dtype, *names):
    return nym.named(jnp.asarray(values, dtype), names)


def draw_numbers(draw, dtype):
    context = jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()
    with context:
        x = draw(jnp.dtype(dtype))
        return x.array.dtype, np.asarray(x.array).astype(float)


def check_counts(bins, probabilities):
    expected = Draw.size * np.asarray(probabilities) / np.sum(probabilities)
    assert stats.chisquare(np.bincount(bins, minlength=len(expected)), expected).pvalue > 1e-4


def check_floats(draw, distribution, dtype):
    """Compares draws with a distribution in bins between whose edges rounding to the dtype moves no draw."""
    drawn_dtype, numbers = draw_numbers(draw, dtype)
    assert drawn_dtype == dtype
    lower, upper = round_to(distribution.support(), dtype)
    assert (numbers >= lower).all() and (numbers <= upper).all()
    quantiles = distribution.ppf([2e-3, 1e-2, *np.linspace(0.05, 0.95, 19), 0.99, 0.998])
    below = np.unique(quantiles.astype(dtype))
    above = np.nextafter(below, np.array(np.inf, dtype))
    edges = ((below.astype(float) + above.astype(float)) / 2)[above < upper]
    check_counts(np.searchsorted(edges, numbers), np.diff(distribution.cdf(edges), prepend=0, append=1))
    return numbers


@each_dtype
@pytest.mark.parametrize("name", FLOATS)
def test_floats_follow_their_distribution(name, dtype):
    parameters, distribution = FLOATS[name]
    sample = name.split()[0]

    def draw(dtype):
        named = {label: parameter(number, dtype) for label, number in parameters.items()}
        return getattr(random, sample)(KEY, Draw, dtype=dtype, **named)

    numbers = check_floats(draw, distribution, dtype)
    if sample == "uniform":
        assert numbers.max() < distribution.support()[1]


@each_dtype
@pytest.mark.parametrize("name", VECTORS)
def test_vectors_follow_their_distribution(name, dtype):
    draw, distribution = VECTORS[name]
    check_floats(lambda dtype: draw(dtype)["i", 0], distribution, dtype)


@each_dtype
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_follow_their_distribution(name, dtype):
    draw, compute_probabilities = INTEGERS[name]
    _, numbers = draw_numbers(draw, dtype)
    probabilities = np.asarray(compute_probabilities(jnp.dtype(dtype)))
    probabilities = probabilities / probabilities.sum()
    # Rare numbers share a bin.
    order = np.argsort(-probabilities)
    bins = np.empty(len(order), int)
    bins[order] = 50 * (np.cumsum(probabilities[order]) - probabilities[order] / 2)
    bins = np.unique(bins, return_inverse=True)[1]
    check_counts(bins[numbers.astype(int)], np.bincount(bins, probabilities))

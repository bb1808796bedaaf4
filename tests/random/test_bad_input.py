"""Parameters of distributions that are Python numbers out of range, and keys and dtypes that are none, are refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import random


KEY, DRAWS = jax.random.key(0), nym.Axis("i", 2)

MISTAKES = {
    "probability above 1": (
        lambda: random.bernoulli(KEY, DRAWS, 1.5),
        "bernoulli: `p` must be at least 0 and at most 1, not 1.5",
    ),
    "probability is NaN": (lambda: random.bernoulli(KEY, DRAWS, float("nan")), "not nan"),
    "geometric of 0": (lambda: random.geometric(KEY, DRAWS, 0), "geometric: `p` must be above 0 and at most 1, not 0"),
    "negative trials": (lambda: random.binomial(KEY, DRAWS, -1, 0.5), "binomial: `n` must be at least 0, not -1"),
    "binomial": (lambda: random.binomial(KEY, DRAWS, 3, 2), "binomial: `p` must be at least 0 and at most 1, not 2"),
    "negative rate": (lambda: random.poisson(KEY, DRAWS, -1.0), "poisson: `lam` must be at least 0, not -1.0"),
    "lognormal": (lambda: random.lognormal(KEY, DRAWS, -0.5), "lognormal: `sigma` must be at least 0, not -0.5"),
    "generalized": (lambda: random.generalized_normal(KEY, DRAWS, 0), "generalized_normal: `p` must be above 0, not 0"),
    "t": (lambda: random.t(KEY, DRAWS, 0.0), "t: `df` must be above 0, not 0.0"),
    "gamma": (lambda: random.gamma(KEY, DRAWS, -1), "gamma: `a` must be above 0, not -1"),
    "loggamma": (lambda: random.loggamma(KEY, DRAWS, 0), "loggamma: `a` must be above 0, not 0"),
    "beta": (lambda: random.beta(KEY, DRAWS, 1.0, 0.0), "beta: `b` must be above 0, not 0.0"),
    "chisquare": (lambda: random.chisquare(KEY, DRAWS, 0), "chisquare: `df` must be above 0, not 0"),
    "f": (lambda: random.f(KEY, DRAWS, 1, -1), "f: `dfden` must be above 0, not -1"),
    "pareto": (lambda: random.pareto(KEY, DRAWS, 0), "pareto: `b` must be above 0, not 0"),
    "weibull": (lambda: random.weibull_min(KEY, DRAWS, 1.0, 0), "weibull_min: `concentration` must be above 0, not 0"),
    "rayleigh": (lambda: random.rayleigh(KEY, DRAWS, -1.0), "rayleigh: `scale` must be above 0, not -1.0"),
    "wald": (lambda: random.wald(KEY, DRAWS, 0), "wald: `mean` must be above 0, not 0"),
    "ball": (lambda: random.ball(KEY, (), DRAWS, 0.0), "ball: `p` must be above 0, not 0.0"),
    "uniform": (
        lambda: random.uniform(KEY, DRAWS, float, 1, 0),
        "uniform: `minval` must be at most `maxval`, they are 1 and 0",
    ),
    "randint": (lambda: random.randint(KEY, DRAWS, 3, 3), "randint: `minval` must be below `maxval`, they are 3 and 3"),
    "randint past int32": (
        lambda: random.randint(KEY, DRAWS, 0, 2**32),
        "randint: `maxval` for int32 must be at least -2147483648 and at most 2147483648, not 4294967296",
    ),
    "randint past int8": (
        lambda: random.randint(KEY, DRAWS, 0, np.int64(200), jnp.int8),
        "randint: `maxval` for int8 must be at least -128 and at most 128, not 200",
    ),
    "negative randint": (
        lambda: random.randint(KEY, DRAWS, -1, 2, jnp.uint8),
        "randint: `minval` for uint8 must be at least 0 and at most 255, not -1",
    ),
    "truncated": (
        lambda: random.truncated_normal(KEY, DRAWS, 1.0, -1.0),
        "truncated_normal: `lower` must be below `upper`, they are 1.0 and -1.0",
    ),
    "triangular": (
        lambda: random.triangular(KEY, DRAWS, 0.0, 3.0, 2.0),
        "triangular: `mode` must be at most `right`, they are 3.0 and 2.0",
    ),
    "several keys": (
        lambda: random.normal(jax.random.split(KEY, 3), DRAWS),
        "one key is needed, not an array of keys of shape (3,); take one of them, as in `keys[0]`, or use `jax.vmap`",
    ),
    "several untyped keys": (
        lambda: random.normal(jnp.zeros((3, 2), jnp.uint32), DRAWS),
        "one key is needed, not an array of keys of shape (3, 2)",
    ),
    "number of keys": (lambda: random.split(KEY, -1), "split: the number of keys must be at least 0, not -1"),
}

OF_ANOTHER_TYPE = {
    "probability is true": (lambda: random.bernoulli(KEY, DRAWS, True), "bernoulli: `p` must be a number, not True."),
    "probability is text": (
        lambda: random.bernoulli(KEY, DRAWS, "0.5"),
        "An operand is a named array or a number, not '0.5'.",
    ),
    "randint of a float": (
        lambda: random.randint(KEY, DRAWS, 0, 2.5),
        "randint: `maxval` for int32 must be an integer, not 2.5.",
    ),
    "randint of a float of NumPy": (
        lambda: random.randint(KEY, DRAWS, 0, np.float32(2.5)),
        "randint: `maxval` for int32 must be an integer, not np.float32(2.5).",
    ),
    "parameter is a layer axis": (
        lambda: random.poisson(KEY, DRAWS, DRAWS),
        "An operand is a named array or a number, not Axis",
    ),
    "swapped": (lambda: random.normal(DRAWS, KEY), "A random key such as `jax.random.key(0)` is needed, not Axis("),
    "an array as key": (
        lambda: random.normal(np.ones(3), DRAWS),
        "A random key such as `jax.random.key(0)` is needed, not float64 of shape (3,).",
    ),
    "dtype": (
        lambda: random.normal(KEY, DRAWS, "fp8"),
        "`dtype` must be an element type such as `jnp.float32` or 'bfloat16', not 'fp8'.",
    ),
    "keys of a flag": (lambda: random.split(KEY, True), "split: the number of keys must be an integer, not True."),
    "key of resize_axis": (
        lambda: nym.tree_util.resize_axis(nym.ones(DRAWS), "i", 3, 0),
        "A random key such as `jax.random.key(0)` is needed, not 0.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_number_out_of_range_is_refused(mistake):
    call, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("mistake", OF_ANOTHER_TYPE)
def test_a_value_of_another_type_is_refused(mistake):
    call, message = OF_ANOTHER_TYPE[mistake]
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(("dtype", "last"), [(jnp.int32, 2**31 - 1), (jnp.uint32, 2**32 - 2), (jnp.int8, 127)])
def test_integers_are_drawn_up_to_the_largest(dtype, last):
    assert random.randint(KEY, {"i": 20}, last, last + 1, dtype).array.tolist() == [last] * 20


def test_bounds_may_be_equal_infinite_or_arrays():
    assert random.uniform(KEY, DRAWS, minval=2.0, maxval=2.0).array.tolist() == [2, 2]
    assert random.truncated_normal(KEY, DRAWS, 0.0, float("inf")).min().item() >= 0
    assert random.bernoulli(KEY, DRAWS, nym.named([0.0, 1.0], DRAWS)).array.tolist() == [False, True]

"""Distributions: counts of draws in bins against SciPy, draws against those of `jax.random`, and what is refused."""

import contextlib
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import axonym as nym
import axonym.haliax as hax

from ..refusals import refusal


A, B, Two = nym.make_axes(a=3, b=2, i=2)
Draw, Class = nym.Axis("draw", 2**13), nym.Axis("kind", 200)
KEY = jax.random.key(0)
random = nym.random
DTYPES = "bfloat16", "float16", "float32", "float64"

# Parameters, which 16 bits hold exactly, and a distribution of SciPy.
FLOATS = {
    "normal": ({}, stats.norm()),
    "uniform": ({}, stats.uniform()),
    "uniform between bounds": ({"minval": -3, "maxval": 0.5}, stats.uniform(-3, 3.5)),
    "truncated_normal": ({"lower": -1, "upper": 3}, stats.truncnorm(-1, 3)),
    "truncated_normal in the right tail": ({"lower": 8, "upper": 9}, stats.truncnorm(8, 9)),
    "truncated_normal in the left tail": ({"lower": -np.inf, "upper": -20}, stats.truncnorm(-np.inf, -20)),
    "generalized_normal": ({"p": 1.5}, stats.gennorm(1.5)),
    "gumbel": ({}, stats.gumbel_r()),
    "cauchy": ({}, stats.cauchy()),
    "t": ({"df": 3}, stats.t(3)),
    "exponential": ({}, stats.expon()),
    "gamma": ({"a": 1.5}, stats.gamma(1.5)),
    "loggamma": ({"a": 0.125}, stats.loggamma(0.125)),
    "beta": ({"a": 1.5, "b": 3}, stats.beta(1.5, 3)),
    "chisquare": ({"df": 3}, stats.chi2(3)),
    "f": ({"dfnum": 3, "dfden": 5}, stats.f(3, 5)),
    "pareto": ({"b": 3}, stats.pareto(3)),
    "wald": ({"mean": 2}, stats.invgauss(2)),
}

# The first component of each draw, and its distribution.
VECTORS = {
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
    "multinomial": (
        lambda dtype: random.multinomial(KEY, Draw, 20, parameter([0.25, 0.25, 0.5], dtype, "i"), "i", dtype)["i", 0],
        lambda dtype: stats.binom(20, 0.25).pmf(np.arange(21)),
    ),
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
}


# Most are drawn in float32 and rounded, so that the other dtypes can wait for the night.
OFTEN = {
    *itertools.product([*FLOATS, *INTEGERS], ["bfloat16"]),
    *[("uniform", dtype) for dtype in DTYPES],
    *[("normal", "float64"), ("truncated_normal in the right tail", "float32"), ("choice", "float16")],
    *[("orthogonal", "bfloat16"), ("multivariate_normal", "bfloat16")],
} - {("multinomial", "bfloat16")}


def in_each_dtype(table):
    cases = [(case, () if case in OFTEN else pytest.mark.thorough) for case in itertools.product(table, DTYPES)]
    return pytest.mark.parametrize(("name", "dtype"), [pytest.param(*case, marks=marks) for case, marks in cases])


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


@in_each_dtype(FLOATS)
def test_floats_follow_their_distribution(name, dtype):
    parameters, distribution = FLOATS[name]
    sample = name.split()[0]

    def draw(dtype):
        named = {label: parameter(number, dtype) for label, number in parameters.items()}
        return getattr(random, sample)(KEY, Draw, dtype=dtype, **named)

    numbers = check_floats(draw, distribution, dtype)
    if sample == "uniform":
        assert numbers.max() < distribution.support()[1]


@in_each_dtype(VECTORS)
def test_vectors_follow_their_distribution(name, dtype):
    draw, distribution = VECTORS[name]
    check_floats(lambda dtype: draw(dtype)["i", 0], distribution, dtype)


@in_each_dtype(INTEGERS)
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


# Values that any parameter of these names may have; other parameters are between 0 and 1.
RANGES = {"minval": (-9, 0), "maxval": (1, 9), "lower": (-2, 0), "upper": (0, 2), "n": (1, 20), "lam": (0, 20)}
RANGES |= {"left": (-3, -1), "mode": (-1, 1), "right": (1, 3)}
PUBLIC = {name for name, thing in vars(random).items() if inspect.isfunction(thing) and not name.startswith("_")}
# These have axes that are no axes of the shape, and tests of their own.
STRUCTURED = {"ball", "categorical", "choice", "dirichlet", "multinomial", "multivariate_normal", "orthogonal"}
SAMPLES = sorted(PUBLIC - STRUCTURED - {"permutation", "split", "fold_in"})
OF_ALL = "key", "shape", "dtype"
# They take long to compile, and are compared with SciPy.
LOOPS = {"beta", "binomial", "chisquare", "f", "gamma", "generalized_normal", "loggamma", "poisson", "t"}


def get_parameters(name):
    return [label for label in inspect.signature(getattr(random, name)).parameters if label not in OF_ALL]


def draw_parameters(name):
    """Returns a value for each element of the first parameter, and for each along the last axis of the others."""
    kind, drawn = np.int32 if name == "randint" else np.float32, {}
    for place, label in enumerate(get_parameters(name)):
        low, high = RANGES.get(label, (0.1, 0.9))
        values = np.random.default_rng(len(label)).uniform(low, high, (1, 2) if place else (3, 2))
        drawn[label] = values.astype(kind)
    return drawn


def draw_by_name(name):
    values = draw_parameters(name).items()
    named = {label: nym.named(x.T, ("b", "a")) if len(x) == 3 else nym.named(x[0], "b") for label, x in values}
    return getattr(random, name)(KEY, (A, B), **named)


def draw_by_position(name):
    return getattr(jax.random, name)(KEY, shape=(3, 2), **draw_parameters(name))


@pytest.mark.parametrize(
    "names", [[*{*SAMPLES} - LOOPS], pytest.param([*LOOPS], marks=pytest.mark.thorough)], ids=["simple", "loops"]
)
def test_values_are_those_of_jax(names):
    named, plain = jax.jit(lambda: [{name: fn(name) for name in names} for fn in (draw_by_name, draw_by_position)])()
    for name, x in named.items():
        assert x.names == ("a", "b") and x.dtype == plain[name].dtype
        np.testing.assert_allclose(x.array, plain[name], rtol=1e-5, err_msg=name)


def test_loops_have_the_axes_and_dtype_of_jax():
    by_name, by_position = jax.eval_shape(
        lambda: [{name: fn(name) for name in LOOPS} for fn in (draw_by_name, draw_by_position)]
    )
    for name, x in by_name.items():
        assert x.names == ("a", "b")
        assert (x.array.shape, x.dtype) == (by_position[name].shape, by_position[name].dtype)


@pytest.mark.parametrize("name", SAMPLES)
def test_signatures_have_the_key_the_shape_and_then_the_parameters(name):
    own, theirs = (inspect.signature(getattr(module, name)).parameters for module in (random, jax.random))
    assert list(own)[:2] == ["key", "shape"]
    labels = [label for label in theirs if label in own and label not in ("shape", "dtype")]
    assert labels == ["key", *get_parameters(name)] and ("dtype" in own) == ("dtype" in theirs)


def test_integers_of_16_bits_are_those_of_jax():
    found, expected = random.randint(KEY, A, -5, 5, jnp.int16), jax.random.randint(KEY, (3,), -5, 5)
    assert found.dtype == jnp.int16
    np.testing.assert_array_equal(found.array, expected.astype(jnp.int16))


logits = nym.named(np.sin(np.arange(48, dtype=np.float32)).reshape(6, 8), ("vocab", "batch"))


def test_errors_of_categorical_say_what_does_not_fit():
    with refusal("no axis 'vocba' in (vocab: 6, batch: 8); did you mean 'vocab'?"):
        random.categorical(KEY, logits, "vocba")
    with refusal("`logits` (vocab: 6, batch: 8) has axes (batch), which `shape` (embed: 4) lacks"):
        random.categorical(KEY, logits, "vocab", nym.Axis("embed", 4))
    with refusal("`logits` must be a named array, not ", TypeError):
        random.categorical(KEY, logits.array, "vocab")


# Numbers after the key and the axes, and what is said of them.
OUT_OF_RANGE = [
    ("bernoulli", (float("nan"),), "`p` must be at least 0 and at most 1, not nan"),
    ("randint", (0, 2**32), "`maxval` for int32 must be at least -2147483648 and at most 2147483648, not 4294967296"),
    ("bernoulli", (1.5,), "`p` must be at least 0 and at most 1, not 1.5"),
    ("geometric", (0,), "`p` must be above 0 and at most 1, not 0"),
    ("binomial", (-1, 0.5), "`n` must be at least 0, not -1"),
    ("binomial", (3, 2), "`p` must be at least 0 and at most 1, not 2"),
    ("poisson", (-1.0,), "`lam` must be at least 0, not -1.0"),
    ("lognormal", (-0.5,), "`sigma` must be at least 0, not -0.5"),
    ("t", (0.0,), "`df` must be above 0, not 0.0"),
    ("gamma", (-1,), "`a` must be above 0, not -1"),
    ("loggamma", (0,), "`a` must be above 0, not 0"),
    ("beta", (1.0, 0.0), "`b` must be above 0, not 0.0"),
    ("f", (1, -1), "`dfden` must be above 0, not -1"),
    ("rayleigh", (-1.0,), "`scale` must be above 0, not -1.0"),
    ("wald", (0,), "`mean` must be above 0, not 0"),
    ("uniform", (float, 1, 0), "`minval` must be at most `maxval`, they are 1 and 0"),
    ("randint", (3, 3), "`minval` must be below `maxval`, they are 3 and 3"),
    ("randint", (0, np.int64(200), jnp.int8), "`maxval` for int8 must be at least -128 and at most 128, not 200"),
    ("randint", (-1, 2, jnp.uint8), "`minval` for uint8 must be at least 0 and at most 255, not -1"),
    ("truncated_normal", (1.0, -1.0), "`lower` must be below `upper`, they are 1.0 and -1.0"),
    ("triangular", (0.0, 3.0, 2.0), "`mode` must be at most `right`, they are 3.0 and 2.0"),
]
OF_ANOTHER_TYPE = [
    ("bernoulli", (True,), "bernoulli: `p` must be a number, not True."),
    ("bernoulli", ("0.5",), "An operand is a named array or a number, not '0.5'."),
    ("randint", (0, 2.5), "randint: `maxval` for int32 must be an integer, not 2.5."),
    ("poisson", (Two,), "An operand is a named array or a number, not Axis"),
    ("normal", ("fp8",), "`dtype` must be an element type such as `jnp.float32` or 'bfloat16', not 'fp8'."),
]


@pytest.mark.parametrize(("name", "values", "message"), OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused(name, values, message):
    with refusal(f"{name}: {message}"):
        getattr(random, name)(KEY, Two, *values)


@pytest.mark.parametrize(("name", "values", "message"), OF_ANOTHER_TYPE)
def test_a_value_of_another_type_is_refused(name, values, message):
    with refusal(message, TypeError):
        getattr(random, name)(KEY, Two, *values)


@pytest.mark.parametrize(("dtype", "last"), [(jnp.int32, 2**31 - 1), (jnp.uint32, 2**32 - 2), (jnp.int8, 127)])
def test_integers_are_drawn_up_to_the_largest(dtype, last):
    assert random.randint(KEY, {"i": 20}, last, last + 1, dtype).array.tolist() == [last] * 20


def test_bounds_may_be_equal_infinite_or_arrays():
    assert random.uniform(KEY, Two, minval=2.0, maxval=2.0).array.tolist() == [2, 2]
    assert random.truncated_normal(KEY, Two, 0.0, float("inf")).min().item() >= 0
    assert random.bernoulli(KEY, Two, nym.named([0.0, 1.0], Two)).array.tolist() == [False, True]
    assert {*random.rademacher(KEY, {"i": 64}).array.tolist()} == {-1, 1}
    assert {*random.randint(KEY, {"i": 64}, nym.named(-1, ()), 2).array.tolist()} == {-1, 0, 1}

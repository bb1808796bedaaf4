"""Random named arrays: the values of `jax.random`, whatever the mapping and the mesh, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Batch, Vocab, Embed = nym.make_axes(batch=8, vocab=6, embed=4)
KEY = jax.random.key(0)
MAPPING = {"batch": "data", "vocab": "model"}
random = nym.random

low = nym.named(jnp.linspace(-1.0, 0.0, 6), "vocab")
high = nym.named(jnp.linspace(1.0, 9.0, 48).reshape(6, 8), ("vocab", "batch"))
chance = nym.named(jnp.linspace(0.0, 1.0, 8), "batch")
logits = nym.named(jnp.sin(jnp.arange(48.0)).reshape(6, 8), ("vocab", "batch"))
FIRST, LAST = low.array[None], high.array.T
BOTH = (Batch, Vocab)


def _round(array):
    return array.astype(jnp.bfloat16).astype(jnp.float32)


CASES = {
    "normal": (lambda key: random.normal(key, BOTH), lambda key: jax.random.normal(key, (8, 6))),
    "uniform between": (
        lambda key: random.uniform(key, BOTH, minval=low, maxval=high),
        lambda key: jax.random.uniform(key, (8, 6), minval=FIRST, maxval=LAST),
    ),
    "truncated_normal between": (
        lambda key: random.truncated_normal(key, BOTH, low, high),
        lambda key: jax.random.truncated_normal(key, FIRST, LAST, (8, 6)),
    ),
    "exponential in 16 bits": (
        lambda key: random.exponential(key, BOTH, jnp.bfloat16),
        lambda key: jax.random.exponential(key, (8, 6)).astype(jnp.bfloat16),
    ),
    "bernoulli of chance": (
        lambda key: random.bernoulli(key, BOTH, chance),
        lambda key: jax.random.bernoulli(key, chance.array[:, None], (8, 6)),
    ),
    "weibull_min": (
        lambda key: random.weibull_min(key, BOTH, 2.0, high),
        lambda key: jax.random.weibull_min(key, 2.0, LAST, (8, 6)),
    ),
    "categorical in 16 bits": (
        lambda key: random.categorical(key, logits.astype(jnp.bfloat16), Vocab, (Embed, Batch)),
        lambda key: jax.random.categorical(key, _round(logits.array.T), shape=(4, 8)),
    ),
    "categorical in a shape": (
        lambda key: random.categorical(key, logits, Vocab, (Embed, Batch)),
        lambda key: jax.random.categorical(key, logits.array.T, shape=(4, 8)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_jax_whatever_the_mesh(mesh, case):
    own, theirs = CASES[case]
    with jax.set_mesh(None):
        expected, alone = theirs(KEY), own(KEY)
    with nym.axis_mapping(MAPPING):
        eager, compiled = own(KEY), nym.named_jit(own)(KEY)
    assert alone.dtype == expected.dtype
    assert alone.shape == {axis.name: axis.size for axis in (Embed, *BOTH) if axis.name in alone.names}
    for found in (alone, eager, compiled):
        assert found.names == alone.names
        assert allclose(jax.device_get(found.array), jax.device_get(expected), rtol=1e-6)
    for found in (eager, compiled):
        wanted = nym.sharding_for_axis(found.axes, MAPPING)
        assert any(wanted.spec) and found.sharding.is_equivalent_to(wanted, found.ndim)


def test_a_sharded_array_is_never_whole_on_one_device(mesh):
    with nym.axis_mapping(MAPPING):
        program = nym.named_jit(lambda key: random.normal(key, BOTH)).lower(KEY).compile().as_text()
    assert "[2,3]" in program and "[8,6]" not in program and "all-gather" not in program


@pytest.mark.parametrize("case", CASES)
def test_eager_draws_are_made_where_they_belong(mesh, monkeypatch, case):
    own, _ = CASES[case]

    def moved(*_):
        raise AssertionError("The array was made elsewhere, whole, and then moved.")

    monkeypatch.setattr(jax, "device_put", moved)
    with nym.axis_mapping(MAPPING):
        assert any(nym.sharding_for_axis(own(KEY).axes).spec)


def test_parameters_may_be_sharded_and_traced(mesh):
    with nym.axis_mapping(MAPPING):
        bounds = nym.shard((low, high))
        eager, compiled = (
            fn(KEY, *bounds)
            for fn in (
                lambda key, *ends: random.uniform(key, BOTH, minval=ends[0], maxval=ends[1]),
                jax.jit(lambda key, *ends: random.uniform(key, BOTH, minval=ends[0], maxval=ends[1])),
            )
        )
    unmapped = random.uniform(KEY, BOTH, minval=bounds[0], maxval=bounds[1])
    with jax.set_mesh(None):
        expected = jax.random.uniform(KEY, (8, 6), minval=FIRST, maxval=LAST)
    for found in (eager, compiled, unmapped):
        np.testing.assert_allclose(found.array, expected, rtol=1e-6)


def test_parameters_have_gradients():
    def total(scale):
        return random.rayleigh(KEY, BOTH, scale).sum().array

    def theirs(scale):
        return jax.random.rayleigh(KEY, scale[None], (8, 6)).sum()

    scale = low + 2
    np.testing.assert_allclose(jax.grad(total)(scale).array, jax.grad(theirs)(scale.array), rtol=1e-5)


def test_bounds_of_tails_have_gradients():
    lower, upper = np.array([-1.0, 8.0, 30.0, -9.0], np.float32), np.array([2.0, 9.0, np.inf, -8.0], np.float32)

    def draw(lower, upper):
        return random.truncated_normal(KEY, {"i": 4}, nym.named(lower, "i"), nym.named(upper, "i")).array

    draws = np.asarray(draw(lower, upper), float)
    by_lower, by_upper = jax.grad(lambda *bounds: draw(*bounds).sum(), (0, 1))(lower, upper)
    share, density = stats.truncnorm(lower, upper).cdf(draws), stats.norm.pdf
    np.testing.assert_allclose(by_lower, (1 - share) * density(lower) / density(draws), rtol=1e-3)
    np.testing.assert_allclose(by_upper, share * density(upper) / density(draws), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("sample", [random.normal, random.uniform])
def test_the_element_type_can_be_chosen(sample):
    assert sample(KEY, Embed).dtype == jnp.float32
    assert sample(KEY, Embed, jnp.bfloat16).dtype == jnp.bfloat16
    assert random.truncated_normal(KEY, Embed, -1, 1, dtype=jnp.bfloat16).dtype == jnp.bfloat16


def test_python_numbers_do_for_parameters_of_any_dtype():
    with jax.enable_x64(True):
        for dtype in (jnp.float32, jnp.bfloat16):
            assert random.rayleigh(KEY, Embed, 2.0, dtype).dtype == dtype


def test_axes_are_given_in_any_way():
    expected = jax.random.normal(KEY, (8, 4))
    for shape in ((Batch, Embed), [Batch, Embed], {"batch": 8, "embed": 4}):
        found = random.normal(KEY, shape)
        assert found.names == ("batch", "embed") and np.array_equal(found.array, expected)
    assert random.normal(KEY, Embed).names == ("embed",)
    assert random.normal(KEY, ()).shape == ()


def test_a_key_may_be_named_or_of_the_older_kind():
    expected = random.normal(KEY, Embed).array
    assert np.array_equal(random.normal(nym.named(KEY, ()), Embed).array, expected)
    assert np.array_equal(random.normal(jax.random.PRNGKey(0), Embed).array, expected)


def test_scalar_parameters_may_be_named_or_plain():
    expected = jax.random.uniform(KEY, (4,), minval=2.0, maxval=3.0)
    for one in (2.0, np.float32(2), jnp.float32(2), nym.named(2.0, ())):
        assert np.array_equal(random.uniform(KEY, Embed, minval=one, maxval=3).array, expected)


@pytest.mark.parametrize("own", ["abc", "cab", "ca", "b"])
def test_parameters_are_lined_up_by_name(own):
    parameter = nym.named(
        10.0 * np.random.default_rng(0).permutation(3 ** len(own)).reshape([3] * len(own)), tuple(own)
    )
    for order in ("abc", "bca", "cba"):
        axes = tuple(nym.Axis(name, 3) for name in order)
        found = random.uniform(KEY, axes, minval=parameter, maxval=parameter + 1)
        assert found.names == tuple(order)
        assert (nym.floor(found) == parameter).all()


@pytest.mark.parametrize(
    "sample",
    [
        lambda key: random.normal(key, (Vocab, Embed)),
        lambda key: random.categorical(key, logits["batch", 0], "vocab", (Vocab.resize(2), Embed)),
    ],
    ids=["normal", "categorical"],
)
def test_keys_can_be_mapped_over(mesh, sample):
    with jax.set_mesh(None):
        expected = jnp.stack([sample(key).array for key in jax.random.split(KEY, 8)])
    with nym.axis_mapping(MAPPING):
        keys = random.split(KEY, Batch)
        found = nym.vmap(sample, Batch)(keys)
    assert tuple(keys.sharding.spec) == ("data",)
    assert found.names == ("batch", "vocab", "embed")
    assert tuple(found.sharding.spec)[:2] == ("data", "model")
    assert allclose(jax.device_get(found.array), jax.device_get(expected), rtol=1e-6)


def test_errors_say_what_does_not_fit():
    with refusal("a parameter has axes (embed), which the array to draw, (batch: 8, vocab: 6), lacks"):
        random.uniform(KEY, BOTH, minval=nym.zeros(Embed))
    for wrong in (1, 3):
        with refusal(f"axis 'vocab' has size {wrong} and size 6 in (vocab: {wrong}) and (batch: 8, vocab: 6)"):
            random.bernoulli(KEY, BOTH, nym.zeros({"vocab": wrong}))
        with refusal(f"axis 'batch' has size {wrong} and size 8 in (batch: {wrong}) and (batch: 8)"):
            random.categorical(KEY, nym.zeros({"batch": wrong, "vocab": 6}), "vocab", Batch)
    with refusal("A plain array of shape (6,) has no axis names; give it some with `axonym.named", TypeError):
        random.truncated_normal(KEY, BOTH, low.array, 1.0)
    with refusal("A new axis needs a size: give `Axis('batch', size)` instead of 'batch'", TypeError):
        random.normal(KEY, "batch")
    with refusal("axis 'batch' occurs more than once in (batch, batch)"):
        random.normal(KEY, (Batch, Batch))
    with refusal("one key is needed, not keys (embed: 4); use `axonym.vmap` over their axes"):
        random.normal(random.split(KEY, Embed), Batch)


def test_an_axis_that_the_mesh_does_not_divide_is_refused(mesh):
    with nym.axis_mapping({"batch": "data"}):
        with refusal("axis 'batch' has size 6, which is not divisible by mesh axis 'data' of size 4"):
            random.normal(KEY, Batch.resize(6))


def test_what_is_no_key_is_refused():
    with pytest.raises(TypeError, match=r"A random key such as `jax.random.key\(0\)` is needed, not 0"):
        nym.random.normal(0, {"i": 2})

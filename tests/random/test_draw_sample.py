"""Random named arrays: the values of `jax.random`, whatever the mapping and the mesh, and what is refused."""

import functools

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

low = nym.named(np.linspace(-1, 0, 6, dtype=np.float32), "vocab")
high = nym.named(np.linspace(1, 9, 48, dtype=np.float32).reshape(6, 8), ("vocab", "batch"))
chance = nym.named(np.linspace(0, 1, 8, dtype=np.float32), "batch")
logits = nym.named(np.sin(np.arange(48, dtype=np.float32)).reshape(6, 8), ("vocab", "batch"))
FIRST, LAST = low.array[None], high.array.T
BOTH = (Batch, Vocab)


SAMPLES = {
    "uniform between": (
        lambda key: random.uniform(key, BOTH, minval=low, maxval=high),
        lambda key: jax.random.uniform(key, (8, 6), minval=FIRST, maxval=LAST),
    ),
    "exponential in 16 bits": (
        lambda key: random.exponential(key, BOTH, jnp.bfloat16),
        lambda key: jax.random.exponential(key, (8, 6)).astype(jnp.bfloat16),
    ),
    "bernoulli of chance": (
        lambda key: random.bernoulli(key, BOTH, chance),
        lambda key: jax.random.bernoulli(key, chance.array[:, None], (8, 6)),
    ),
    "categorical in 16 bits": (
        lambda key: random.categorical(key, logits.astype(jnp.bfloat16), Vocab, (Embed, Batch)),
        lambda key: jax.random.categorical(key, logits.array.T.astype(jnp.bfloat16).astype("float32"), shape=(4, 8)),
    ),
}


def draw_all(place, key):
    return {name: sample[place](key) for name, sample in SAMPLES.items()}


@pytest.fixture(scope="module")
def expected():
    """What `jax.random` draws on one device."""
    return jax.device_get(jax.jit(functools.partial(draw_all, 1))(KEY))


def check_draws(draws, expected):
    for name, array in expected.items():
        x = draws[name]
        assert x.dtype == array.dtype and x.names == (
            ("embed", "batch") if name.startswith("cat") else ("batch", "vocab")
        )
        assert allclose(jax.device_get(x.array), array, rtol=1e-6), name
        wanted = nym.sharding_for_axis(x.axes, MAPPING)
        assert any(wanted.spec) and x.sharding.is_equivalent_to(wanted, x.ndim)


def test_values_are_those_of_jax_whatever_the_mesh(mesh, expected):
    with nym.axis_mapping(MAPPING):
        check_draws(nym.named_jit(functools.partial(draw_all, 0))(KEY), expected)


def test_eager_draws_are_those_of_jax_and_made_where_they_belong(mesh, monkeypatch, expected):
    def move(*_):
        raise AssertionError("The array was made elsewhere, whole, and then moved.")

    with nym.axis_mapping(MAPPING):
        monkeypatch.setattr(jax, "device_put", move)
        draws = draw_all(0, KEY)
        monkeypatch.undo()
        check_draws(draws, expected)


def test_a_sharded_array_is_never_whole_on_one_device(mesh):
    with nym.axis_mapping(MAPPING):
        program = nym.named_jit(lambda key: random.normal(key, BOTH)).lower(KEY).compile().as_text()
    assert "[2,3]" in program and "[8,6]" not in program and "all-gather" not in program


def test_parameters_may_be_sharded_and_traced(mesh, expected):
    def draw(bounds):
        return random.uniform(KEY, BOTH, minval=bounds[0], maxval=bounds[1])

    with nym.axis_mapping(MAPPING):
        bounds = nym.shard((low, high))
        compiled = jax.jit(draw)(bounds)
    for x in (compiled, draw(bounds)):  # also without a mapping
        np.testing.assert_allclose(x.array, expected["uniform between"], rtol=1e-6)


def test_bounds_of_tails_have_gradients():
    lower, upper = np.array([-1.0, 8.0, 30.0, -9.0], np.float32), np.array([2.0, 9.0, np.inf, -8.0], np.float32)

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
    def differentiate(lower, upper):
        draws = random.truncated_normal(KEY, {"i": 4}, nym.named(lower, "i"), nym.named(upper, "i")).array
        return draws.sum(), draws

    (by_lower, by_upper), draws = jax.device_get(differentiate(lower, upper))
    share, density = stats.truncnorm(lower, upper).cdf(draws.astype(float)), stats.norm.pdf
    np.testing.assert_allclose(by_lower, (1 - share) * density(lower) / density(draws), rtol=1e-3)
    np.testing.assert_allclose(by_upper, share * density(upper) / density(draws), rtol=1e-3, atol=1e-6)


def test_numbers_of_python_do_for_parameters_of_any_element_type():
    with jax.enable_x64(True):
        for dtype in (jnp.float32, jnp.bfloat16):
            assert jax.eval_shape(lambda dtype=dtype: random.rayleigh(KEY, Embed, 2.0, dtype)).dtype == dtype


def test_a_key_may_be_named_or_of_the_older_kind():
    expected = random.normal(KEY, Embed).array
    assert np.array_equal(random.normal(nym.named(KEY, ()), Embed).array, expected)
    assert np.array_equal(random.normal(jax.random.PRNGKey(0), Embed).array, expected)


def test_keys_can_be_mapped_over(mesh):
    def draw(key):
        drawn = random.categorical(key, logits["batch", 0], "vocab", (Vocab.resize(2), Embed))
        return random.normal(key, (Vocab, Embed)), drawn

    with jax.set_mesh(None):
        expected = jax.device_get(jax.jit(lambda: [[x.array for x in draw(key)] for key in jax.random.split(KEY, 8)])())
    with nym.axis_mapping(MAPPING):
        keys = random.split(KEY, Batch)
        found = nym.vmap(draw, Batch)(keys)
    assert tuple(keys.sharding.spec) == ("data",)
    for x, values in zip(found, zip(*expected, strict=True), strict=True):
        assert x.names == ("batch", "vocab", "embed") and tuple(x.sharding.spec)[:2] == ("data", "model")
        assert allclose(jax.device_get(x.array), np.stack(values), rtol=1e-6)


def test_errors_say_what_does_not_fit():
    with refusal("a parameter has axes (embed), which the array to draw, (batch: 8, vocab: 6), lacks"):
        random.uniform(KEY, BOTH, minval=nym.zeros(Embed))
    for wrong in (1, 3):
        with refusal(f"axis 'vocab' has size {wrong} and size 6 in (vocab: {wrong}) and (batch: 8, vocab: 6)"):
            random.bernoulli(KEY, BOTH, nym.zeros({"vocab": wrong}))
    with refusal("A plain array of shape (6,) has no axis names; give it some with `axonym.named", TypeError):
        random.truncated_normal(KEY, BOTH, low.array, 1.0)
    with refusal("A new axis needs a size: give `Axis('batch', size)` instead of 'batch'", TypeError):
        random.normal(KEY, "batch")
    with refusal("axis 'batch' occurs more than once in (batch, batch)"):
        random.normal(KEY, (Batch, Batch))


def test_an_axis_that_the_mesh_does_not_divide_is_refused(mesh):
    with nym.axis_mapping({"batch": "data"}):
        with refusal("axis 'batch' has size 6, which is not divisible by mesh axis 'data' of size 4"):
            random.normal(KEY, Batch.resize(6))

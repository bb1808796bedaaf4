"""Keys split along an axis: those of `jax.random`, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


Embed = nym.Axis("embed", 4)
KEY = jax.random.key(0)
random = nym.random


def test_a_key_is_split_along_an_axis():
    expected = jax.random.key_data(jax.random.split(KEY, 4))
    keys = random.split(KEY, Embed)
    assert keys.shape == {"embed": 4}
    assert np.array_equal(jax.random.key_data(keys.array), expected)
    assert np.array_equal(jax.random.key_data(keys["embed", 2].array), expected[2])
    for number in (4, np.int64(4)):
        assert np.array_equal(jax.random.key_data(random.split(nym.named(KEY, ()), number)), expected)
    first, second = random.split(KEY)
    assert not np.array_equal(jax.random.key_data(first), jax.random.key_data(second))


def test_numbers_are_folded_into_keys_by_name(mesh):
    with jax.set_mesh(None):
        fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
        expected = jax.device_get(jax.random.key_data(fold(jax.random.split(KEY, 4), np.array([7, 8]))))
    with nym.axis_mapping({"embed": "data"}):
        keys, numbers = random.split(KEY, Embed), nym.named([7, 8], "number")
        folded = random.fold_in(keys, 7)
        assert folded.sharding.is_equivalent_to(nym.sharding_for_axis(Embed), 1)
        assert np.array_equal(jax.device_get(jax.random.key_data(folded.array)), expected[:, 0])
        for fold_in in (random.fold_in, nym.named_jit(random.fold_in)):
            folded = fold_in(keys.broadcast_axis(nym.Axis("number", 2)), numbers)
            data = jax.device_get(jax.random.key_data(folded.rearrange(("embed", "number")).array))
            assert np.array_equal(data, expected)


def test_slices_of_keys_are_plain_keys():
    def draw(*args):
        first, second = jax.random.split(args[-1])  # as in `init` of a layer
        draws = random.normal(first, {"i": 2}) + random.normal(random.fold_in(second, 1), {"i": 2})
        return draws if len(args) == 1 else (None, draws)

    @jax.jit
    def draw_all(keys):
        expected = [draw(key).array for key in keys.array]
        return expected, nym.vmap(draw, Embed)(keys), nym.map(draw, Embed)(keys), nym.scan(draw, Embed)(None, keys)[1]

    expected, *found = draw_all(random.split(KEY, Embed))
    for x in found:
        np.testing.assert_allclose(x.array, expected, rtol=1e-6)


@pytest.mark.parametrize("number", [-1, np.int8(-1), 2**32 - 1])
def test_negative_numbers_are_folded_in_as_arrays_of_them_are(number):
    expected = jax.random.key_data(jax.random.fold_in(KEY, jnp.int32(-1)))
    for folded in (random.fold_in(KEY, number), random.fold_in(nym.full({"i": 1}, KEY), number).array[0]):
        assert np.array_equal(jax.random.key_data(folded), expected)


THREE_KEYS = "not an array of keys of shape (3,); take one of them, as in `keys[0]`, or use `jax.vmap`"
NO_KEY = "A random key such as `jax.random.key(0)` is needed, not"
UNTYPED = "along an axis needs a typed key; make it with `jax.random.key(seed)`"
NO_INTEGER = "fold_in: `data` must be an integer or a named array of them, not of float32."
REFUSED = [
    (lambda: random.fold_in(KEY, 2**40), OverflowError, "fold_in: `data` has 32 bits, from -2147483648 to 4294967295,"),
    (lambda: random.fold_in(KEY, 1.5), TypeError, NO_INTEGER),
    (lambda: random.fold_in(KEY, nym.ones(Embed)), TypeError, NO_INTEGER),
    (lambda: random.fold_in(jax.random.PRNGKey(0), nym.arange(Embed)), TypeError, f"`fold_in` {UNTYPED}"),
    (lambda: random.split(jax.random.PRNGKey(0), Embed), TypeError, f"`split` {UNTYPED}"),
    (lambda: random.split(KEY, -1), ValueError, "split: the number of keys must be at least 0, not -1"),
    (lambda: random.split(KEY, True), TypeError, "split: the number of keys must be an integer, not True."),
    (lambda: random.split(random.split(KEY, Embed)), ValueError, "one key is needed, not keys (embed: 4); use `axo"),
    (lambda: random.normal(jax.random.split(KEY, 3), ()), ValueError, THREE_KEYS),
    (lambda: random.normal(jnp.zeros((3, 2), jnp.uint32), ()), ValueError, "not an array of keys of shape (3, 2)"),
    (lambda: random.normal(Embed, KEY), TypeError, f"{NO_KEY} Axis("),
    (lambda: random.normal(0, Embed), TypeError, f"{NO_KEY} 0."),
    (lambda: random.normal(np.ones(3), Embed), TypeError, f"{NO_KEY} float64 of shape (3,)."),
    (lambda: nym.tree_util.resize_axis(nym.ones(Embed), Embed, 3, 0), TypeError, f"{NO_KEY} 0."),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_is_no_key_or_cannot_be_split_or_folded_in_is_refused(call, error, message):
    with refusal(message, error):
        call()

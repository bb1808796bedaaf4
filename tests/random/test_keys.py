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


def test_keys_are_sharded_by_the_mapping(mesh):
    with nym.axis_mapping({"embed": "data"}):
        assert random.split(KEY, Embed).sharding.is_equivalent_to(nym.sharding_for_axis(Embed), 1)


def test_numbers_are_folded_into_keys_by_name(mesh):
    with jax.set_mesh(None):
        keys = jax.random.split(KEY, 4)
        expected = jax.random.key_data(jnp.stack([jnp.stack([jax.random.fold_in(k, i) for i in (7, 8)]) for k in keys]))
        first = jax.random.key_data(jax.random.fold_in(KEY, 7))
    for plain in (random.fold_in(KEY, 7), random.fold_in(nym.named(KEY, ()), nym.named(7, ()))):
        assert np.array_equal(jax.random.key_data(plain), first)
    with nym.axis_mapping({"embed": "data"}):
        keys, numbers = random.split(KEY, Embed), nym.named([7, 8], "number")
        folded = random.fold_in(keys, 7)
        assert folded.sharding.is_equivalent_to(nym.sharding_for_axis(Embed), 1)
        assert np.array_equal(jax.device_get(jax.random.key_data(folded.array)), expected[:, 0])
        for fold_in in (random.fold_in, nym.named_jit(random.fold_in)):
            folded = fold_in(keys.broadcast_axis(nym.Axis("number", 2)), numbers)
            data = jax.device_get(jax.random.key_data(folded.rearrange(("embed", "number")).array))
            assert np.array_equal(data, expected)


@pytest.mark.parametrize(
    "transform",
    [nym.vmap, nym.map, lambda f, axis: lambda x: nym.scan(f, axis)(None, x)[1]],
    ids=["vmap", "map", "scan"],
)
def test_slices_of_keys_are_plain_keys(transform):
    def draw(*args):
        first, second = jax.random.split(args[-1])  # as in `init` of a layer
        draws = random.normal(first, {"i": 2}) + random.normal(random.fold_in(second, 1), {"i": 2})
        return draws if len(args) == 1 else (None, draws)

    expected = [draw(key).array for key in jax.random.split(KEY, 4)]
    np.testing.assert_allclose(transform(draw, "embed")(random.split(KEY, Embed)).array, expected, rtol=1e-6)


@pytest.mark.parametrize("number", [-1, np.int8(-1), 2**32 - 1])
def test_negative_numbers_are_folded_in_as_arrays_of_them_are(number):
    expected = jax.random.key_data(jax.random.fold_in(KEY, jnp.int32(-1)))
    for folded in (random.fold_in(KEY, number), random.fold_in(nym.full({"i": 1}, KEY), number).array[0]):
        assert np.array_equal(jax.random.key_data(folded), expected)


def test_errors_say_what_cannot_be_folded_in():
    with refusal("fold_in: `data` has 32 bits, from -2147483648 to 4294967295, which 1099511627776", OverflowError):
        random.fold_in(KEY, 2**40)
    for data in (1.5, nym.ones(Embed)):
        with refusal("fold_in: `data` must be an integer or a named array of them, not of float32.", TypeError):
            random.fold_in(KEY, data)
    with refusal("`fold_in` along an axis needs a typed key; make it with `jax.random.key(seed)`", TypeError):
        random.fold_in(jax.random.PRNGKey(0), nym.arange(Embed))
    with refusal("one key is needed, not an array of keys of shape (2,)"):
        random.fold_in(jax.random.split(KEY), 1)


def test_errors_say_what_cannot_be_split():
    with refusal("`split` along an axis needs a typed key; make it with `jax.random.key(seed)`", TypeError):
        random.split(jax.random.PRNGKey(0), Embed)
    with refusal("A new axis needs a size: give `Axis('embed', size)` instead of 'embed'", TypeError):
        random.split(KEY, "embed")
    with refusal("one key is needed, not keys (embed: 4); use `axonym.vmap` over their axes"):
        random.split(random.split(KEY, Embed))

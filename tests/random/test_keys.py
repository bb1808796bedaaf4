"""Keys split along an axis: those of `jax.random`, and what is refused."""

import re

import jax
import numpy as np
import pytest

import axonym as nym


Embed = nym.Axis("embed", 4)
KEY = jax.random.key(0)
random = nym.random


def refusal(message, error=ValueError):
    return pytest.raises(error, match=re.escape(message))


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


def test_errors_say_what_cannot_be_split():
    with refusal("`split` along an axis needs a typed key; make it with `jax.random.key(seed)`", TypeError):
        random.split(jax.random.PRNGKey(0), Embed)
    with refusal("A new axis needs a size: give `Axis('embed', size)` instead of 'embed'", TypeError):
        random.split(KEY, "embed")
    with refusal("one key is needed, not keys (embed: 4); use `axonym.vmap` over their axes"):
        random.split(random.split(KEY, Embed))

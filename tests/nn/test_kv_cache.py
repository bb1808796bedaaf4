"""The key-value cache: attention step by step equals attention over everything at once, and errors."""

import jax
import numpy as np
import pytest

import axonym as nym
from axonym.nn import AttentionMask, KVCache

from ..refusals import refusal


Batch, Pos, KPos, Heads, HeadDim = nym.make_axes(batch=4, pos=11, key_pos=16, heads=2, head_dim=4)
AXES = (Batch, Heads, HeadDim)


def attend_at_once(query, key, value, window, padding):
    mask = AttentionMask.causal()
    if window:
        mask = mask & AttentionMask.sliding_window(window)
    if padding is not None:
        mask = mask & ~AttentionMask.prefix(padding)
    key, value = (x.rename({"pos": "key_pos"}) for x in (key, value))
    return nym.nn.dot_product_attention("key_pos", HeadDim, query, key, value, mask)


def attend_in_parts(query, key, value, window, padding):
    cache = KVCache.init(KPos.resize(window or 16), AXES, padding=padding, sliding_window=window is not None)
    result, start = [], 0
    for size in (2, 1, 5, 1, 2):
        q, k, v = (x["pos", start : start + size] for x in (query, key, value))
        keys, values, mask = cache.extend(k, v, "pos")
        result.append(nym.nn.dot_product_attention("key_pos", HeadDim, q, keys, values, mask))
        cache = cache.update(k, v, "pos")
        start += size
    return nym.concatenate("pos", result), cache


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("padded", [False, True])
def test_attention_in_parts_is_that_at_once(draw, window, padded):
    query, key, value = draw(Batch, Pos, Heads, HeadDim), draw(Batch, Pos, Heads, HeadDim), draw(Pos, *AXES)
    padding = nym.arange(Batch) if padded else None

    @jax.jit
    def attend_both(query, key, value):
        result, cache = attend_in_parts(query, key, value, window, padding)
        return result, cache, attend_at_once(query, key, value, window, padding)

    result, cache, expected = attend_both(query, key, value)
    np.testing.assert_allclose(result.rearrange(expected.names).array, expected.array, atol=1e-5)
    assert cache.length.item() == 11
    assert cache.key.shape == {"batch": 4, "heads": 2, "key_pos": window or 16, "head_dim": 4}


@pytest.mark.parametrize("window", [None, 8])
def test_key_positions_are_sharded_whatever_the_number_of_new_ones(draw, mesh, window):
    query, key, value = draw(Batch, Pos, Heads, HeadDim), draw(Batch, Pos, Heads, HeadDim), draw(Pos, *AXES)
    expected = attend_at_once(query, key, value, window, None)

    @nym.named_jit(axis_resources={"batch": "data", "key_pos": "model"})
    def attend(query, key, value):
        return attend_in_parts(query, key, value, window, None)

    result, cache = attend(query, key, value)
    np.testing.assert_allclose(jax.device_get(result.rearrange(expected.names)).array, expected.array, atol=1e-5)
    assert "model" in cache.key.sharding.spec


def test_all_layers_are_stored_at_once(draw, mesh):
    Layers = nym.Axis("layers", 3)
    key, value = draw(Layers, Batch, Pos, Heads, HeadDim), draw(Layers, Batch, Pos, Heads, HeadDim)
    mapping = {"batch": "data", "heads": "model"}

    @nym.named_jit(axis_resources=mapping, donate_args=(True, False, False))
    def store(cache, key, value):
        return cache.update(key, value, "pos")

    with nym.axis_mapping(mapping):
        cache = KVCache.init(KPos, (Layers, *AXES))
    cache = store(
        store(cache, *nym.shard((key["pos", :3], value["pos", :3]), mapping)), key["pos", 3:4], value["pos", 3:4]
    )
    for stored, x in ((cache.key, key), (cache.value, value)):
        assert stored.sharding.is_equivalent_to(nym.sharding_for_axis(stored.axes, mapping), stored.ndim)
        expected = x["pos", :4].rename({"pos": "key_pos"}).rearrange(stored.names).array
        np.testing.assert_array_equal(stored["key_pos", :4].array, expected)
        assert not stored["key_pos", 4:].array.any()


@pytest.mark.parametrize("sliding_window", [False, True])
def test_a_new_position_is_seen_where_it_is_stored(draw, mesh, sliding_window):
    """Also past the end of a cache that has no sliding window, whose last place is overwritten."""
    mapping = {"batch": "data", "heads": "model"}
    key = draw(Batch, Pos, Heads, HeadDim)

    @nym.named_jit(axis_resources=mapping)
    def store(cache, key):
        return cache.extend(key, -key, "pos")[:2], cache.update(key, -key, "pos")

    with nym.axis_mapping(mapping):
        cache = KVCache.init(KPos.resize(3), AXES, sliding_window=sliding_window)
    for start in range(5):
        seen, cache = store(cache, key["pos", start : start + 1])
        for x, stored in zip(seen, (cache.key, cache.value), strict=True):
            assert x.axes == stored.axes and x.sharding.is_equivalent_to(stored.sharding, x.ndim)
            np.testing.assert_array_equal(x.array, stored.array)
    np.testing.assert_array_equal(cache.key["key_pos", 1 if sliding_window else 2].array, key["pos", 4].array)


def test_positions_continue_and_skip_padding():
    padding = nym.named([0, 2], "batch")
    two = Batch.resize(2)
    cache = KVCache.init(KPos, (two, HeadDim), padding=padding)
    key = nym.ones((two, Pos.resize(3), HeadDim))
    after = cache.update(key, key, "pos")
    assert after.positions(Pos.resize(2)).array.tolist() == [[3, 4], [1, 2]]
    assert KVCache.init(KPos, HeadDim).positions(Pos.resize(2)).array.tolist() == [0, 1]


def test_keys_are_stored_in_the_dtype_of_the_cache(draw):
    cache = KVCache.init(KPos, AXES, "bfloat16")
    key = draw(Batch, Pos, Heads, HeadDim)
    assert cache.update(key, key, "pos").key.dtype == "bfloat16"
    assert {x.dtype.name for x in cache.extend(key, key, "pos")} == {"bfloat16", "bool"}


@pytest.mark.parametrize("sliding_window", [False, True])
def test_a_cache_of_eight_bits_rounds_what_is_stored_alone(draw, sliding_window):
    """The ring is written in every way: several positions at once, and past its end."""
    key, query = draw(Batch, Pos, Heads, HeadDim), draw(Batch, Pos.resize(3), Heads, HeadDim)
    cache = KVCache.init(KPos.resize(7), AXES, "float8_e4m3fn", sliding_window=sliding_window)
    rounded = KVCache.init(KPos.resize(7), AXES, sliding_window=sliding_window)
    for start in (0, 3):
        new = key["pos", start : start + 3]
        keys, values, mask = cache.extend(new, -new, "pos")
        low = new.astype("float8_e4m3fn").astype("float32")
        exact = rounded.extend(low, -low, "pos")
        for implementation in ("plain", "blocked"):
            result, expected = (
                nym.nn.dot_product_attention(KPos.name, HeadDim, query, *inputs, implementation=implementation)
                for inputs in ((keys, values, mask), exact)
            )
            assert result.dtype == "float32"
            np.testing.assert_allclose(result.array, expected.array, atol=1e-6)
        cache, rounded = cache.update(new, -new, "pos"), rounded.update(low, -low, "pos")


@pytest.mark.parametrize("sliding_window", [False, True])
def test_a_dtype_without_infinity_takes_its_largest_number_instead(sliding_window):
    cache = KVCache.init(KPos.resize(7), HeadDim, "float8_e4m3fn", sliding_window=sliding_window)
    for size in (1, 3):
        key = nym.full((Pos.resize(size), HeadDim), 1000.0, "bfloat16")
        keys, values, _ = cache.extend(key, -key, "pos")
        cache = cache.update(key, -key, "pos")
        for x, largest in ((keys, 448), (values, -448), (cache.key, 448), (cache.value, -448)):
            assert {*np.asarray(x.array, np.float32).ravel().tolist()} == {0, largest}


def test_errors_of_the_cache_name_axes_and_sizes(draw):
    key = draw(Batch, Pos, Heads, HeadDim)
    with refusal("KVCache: `axes` has axis 'key_pos', which is given as `KPos`; leave it out"):
        KVCache.init(KPos, (Batch, KPos, HeadDim))
    with refusal("`padding` (batch: 4) has axis 'batch', which keys and values lack; add it to `axes`"):
        KVCache.init(KPos, HeadDim, padding=nym.arange(Batch))
    with refusal("Axes and keys are arguments of `KVCache.init(...)`", TypeError):
        KVCache(KPos, HeadDim)
    cache = KVCache.init(KPos, AXES)
    with refusal("KVCache (key): no axis 'position' in (batch: 4, pos: 11, heads: 2, head_dim: 4)"):
        cache.update(key, key, "position")
    with refusal("KVCache (value): no axis 'heads' in (batch: 4, pos: 11, head_dim: 4)"):
        cache.extend(key, key["heads", 0], "pos")
    with refusal("axis 'key_pos' has size 16, which 11 stored positions and 11 new ones exceed; make it larger"):
        cache.update(key, key, "pos").extend(key, key, "pos")

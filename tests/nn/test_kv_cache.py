"""The key-value cache: attention step by step equals attention over everything at once, and errors."""

import jax
import jax.numpy as jnp
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


@pytest.mark.parametrize(("window", "padded"), [(None, True), (4, False), (4, True)])
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


@pytest.mark.parametrize(("axis_types", "window"), [("auto", 8), ("explicit", None), ("explicit", 8)])
def test_key_positions_are_sharded_whatever_the_number_of_new_ones(draw, request, axis_types, window):
    query, key, value = draw(Batch, Pos, Heads, HeadDim), draw(Batch, Pos, Heads, HeadDim), draw(Pos, *AXES)
    expected = jax.jit(attend_at_once, static_argnums=(3, 4))(query, key, value, window, None)

    @nym.named_jit(axis_resources={"batch": "data", "key_pos": "model"})
    def attend(query, key, value):
        return attend_in_parts(query, key, value, window, None)

    with jax.set_mesh(request.getfixturevalue(f"{axis_types}_mesh")):
        result, cache = attend(query, key, value)
    np.testing.assert_allclose(jax.device_get(result.rearrange(expected.names)).array, expected.array, atol=1e-5)
    assert "model" in cache.key.sharding.spec


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_and_gradients_have_the_type_of_their_inputs_with_64_bits(dtype):
    def compute_loss(query, key, value, padding, is_window):
        cache = KVCache.init(KPos.resize(4), AXES, key.dtype, padding=padding, sliding_window=is_window)
        for _ in range(2):
            keys, values, mask = cache.extend(key, value, "pos")
            result = nym.nn.dot_product_attention("key_pos", HeadDim, query, keys, values, mask)
            cache = cache.update(key, value, "pos")
        return nym.sum(result).scalar(), result

    with jax.enable_x64(True):
        x, padding = nym.ones((Pos.resize(2), *AXES), dtype), nym.arange(Batch)
        for is_window in (False, True):
            step = jax.grad(lambda *args, w=is_window: compute_loss(*args, w), (0, 1, 2), has_aux=True)
            assert {leaf.dtype.name for leaf in jax.tree.leaves(jax.eval_shape(step, x, x, x, padding))} == {dtype}


def test_all_layers_are_stored_at_once(draw, mesh):
    Layers = nym.Axis("layers", 3)
    key, value = draw(Layers, Batch, Pos, Heads, HeadDim), draw(Layers, Batch, Pos, Heads, HeadDim)
    mapping = {"batch": "data", "heads": "model"}

    @nym.named_jit(axis_resources=mapping, donate_args=(True, False, False))
    def store(cache, key, value):
        return cache.update(key, value, "pos")

    with nym.axis_mapping(mapping):
        cache = KVCache.init(KPos, (Layers, *AXES))
    cache = store(cache, *nym.shard((key["pos", :3], value["pos", :3]), mapping))
    cache = store(cache, key["pos", 3:4], value["pos", 3:4])
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
    cache = KVCache.init(KPos, (Batch.resize(2), HeadDim), padding=nym.named([0, 2], "batch"))
    key = nym.ones((Batch.resize(2), Pos.resize(3), HeadDim))
    after = cache.update(key, key, "pos")
    assert after.positions(Pos.resize(2)).array.tolist() == [[3, 4], [1, 2]]
    assert KVCache.init(KPos, HeadDim).positions(Pos.resize(2)).array.tolist() == [0, 1]


@pytest.mark.parametrize("sliding_window", [False, True])
def test_a_cache_of_eight_bits_rounds_what_is_stored_alone(draw, sliding_window):
    """The ring is written in every way: several positions at once, and past its end."""
    key, query = draw(Batch, Pos, Heads, HeadDim), draw(Batch, Pos.resize(3), Heads, HeadDim)

    @jax.jit
    def attend_by_steps(dtype, key, query):
        cache = KVCache.init(KPos.resize(7), AXES, dtype.dtype, sliding_window=sliding_window)
        results = []
        for start, implementation in ((0, "plain"), (3, "plain"), (6, "blocked")):
            new = key["pos", start : start + 3]
            inputs = cache.extend(new, -new, "pos")
            attend = nym.nn.dot_product_attention
            results.append(attend(KPos.name, HeadDim, query, *inputs, implementation=implementation))
            cache = cache.update(new, -new, "pos") if start < 3 else cache
        return results

    low = key.astype("float8_e4m3fn").astype("float32")
    results = attend_by_steps(np.zeros(0, "float8_e4m3fn"), key, query)
    for result, expected in zip(results, attend_by_steps(np.zeros(0, "float32"), low, query), strict=True):
        assert result.dtype == "float32"
        np.testing.assert_allclose(result.array, expected.array, atol=1e-6)


@pytest.mark.parametrize("sliding_window", [False, True])
def test_a_dtype_without_infinity_takes_its_largest_number_instead(sliding_window):
    @jax.jit
    def store():
        cache = KVCache.init(KPos.resize(7), HeadDim, "float8_e4m3fn", sliding_window=sliding_window)
        stored = []
        for size in (1, 3):
            key = nym.full((Pos.resize(size), HeadDim), 1000.0, "bfloat16")
            keys, values, _ = cache.extend(key, -key, "pos")
            cache = cache.update(key, -key, "pos")
            stored += [keys, -values, cache.key, -cache.value]
        return [x.array for x in stored]

    for array in store():
        assert {*np.asarray(array, np.float32).ravel().tolist()} == {0, 448}


def test_errors_of_the_cache_name_axes_and_sizes(draw):
    key = draw(Batch, Pos, Heads, HeadDim)
    with refusal("KVCache: `axes` has axis 'key_pos', which is given as `KPos`; leave it out"):
        KVCache.init(KPos, (Batch, KPos, HeadDim))
    with refusal("`padding` (batch: 4) has axis 'batch', which keys and values lack; add it to `axes`"):
        KVCache.init(KPos, HeadDim, padding=nym.arange(Batch))
    with refusal("KVCache: `padding` is a number of positions, an integer, not float32.", TypeError):
        KVCache.init(KPos, AXES, padding=nym.ones(Batch))
    with refusal("KVCache: `sliding_window` must be True or False, not 512.", TypeError):
        KVCache.init(KPos, HeadDim, sliding_window=512)
    with refusal("KVCache: `dtype` must be a float, which keys and values are, not int8"):
        KVCache.init(KPos, HeadDim, jnp.int8)
    with refusal("Axes and keys are arguments of `KVCache.init(...)`", TypeError):
        KVCache(KPos, HeadDim)
    cache = KVCache.init(KPos, AXES)
    with refusal("axis 'key_pos' has size 16, which 11 stored positions and 11 new ones exceed; make it larger"):
        cache.update(key, key, "pos").extend(key, key, "pos")

"""Attention and its masks: parity with JAX, and errors."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Batch, Heads, Pos, KeyPos, HeadDim = nym.make_axes(batch=8, heads=2, pos=4, key_pos=6, head_dim=8)
attention = nym.nn.dot_product_attention
AXES = ("batch", "heads", "pos", "head_dim")


@pytest.fixture
def inputs(draw):
    """Query, key and value, each with its axes in another order."""
    return draw(Batch, Pos, Heads, HeadDim), draw(Heads, KeyPos, HeadDim, Batch), draw(Batch, KeyPos, Heads, HeadDim)


def by_jax(query, key, value, **options):
    query = query.rearrange(("batch", "pos", "heads", "head_dim"))
    key, value = (x.rearrange(("batch", "key_pos", "heads", "head_dim")) for x in (key, value))
    result = jax.nn.dot_product_attention(query.array, key.array, value.array, **options)
    return nym.named(result, ("batch", "pos", "heads", "head_dim")).rearrange(AXES)


def test_attention_is_that_of_jax(check, inputs):
    check(
        lambda _, *inputs: attention("key_pos", "head_dim", *inputs),
        lambda _, *inputs: by_jax(*inputs),
        None,
        *inputs,
    )


def test_attention_with_mask_and_bias_is_that_of_jax(check, draw, inputs):
    mask = nym.nn.causal_mask(Pos, KeyPos, q_start=2)
    bias = draw(Heads, Pos, KeyPos)

    def reference(_, query, key, value, bias):
        return by_jax(query, key, value, bias=bias.array[None], mask=mask.array[None, None])

    def own(_, query, key, value, bias):
        return attention(KeyPos, HeadDim, query, key, value, mask, bias)

    check(own, reference, None, *inputs, bias)


def test_axes_are_told_apart_by_name_alone(draw):
    grouped, several = nym.make_axes(group=3, depth=2)
    query = draw(Heads, grouped, Pos, HeadDim, several)
    key, value = draw(KeyPos, Heads, HeadDim, several), draw(KeyPos, Heads, nym.Axis("out", 5))
    result = attention("key_pos", ("head_dim", "depth"), query, key, value)
    assert result.shape == {"heads": 2, "group": 3, "pos": 4, "out": 5}
    scores = jnp.einsum("hgpdx,khdx->hgpk", query.array, key.array) / 4
    expected = jnp.einsum("hgpk,kho->hgpo", jax.nn.softmax(scores), value.array)
    assert allclose(result.array, expected, atol=1e-5)


def test_a_query_that_sees_no_key_gets_zeros(inputs):
    query, key, value = inputs
    mask = nym.named(jnp.zeros((4, 6), bool).at[1:].set(True), ("pos", "key_pos"))
    result = attention("key_pos", "head_dim", query, key, value, mask)
    assert not result["pos", 0].array.any() and result["pos", 1:].array.all()
    mask_of_queries = nym.zeros((Pos, Heads, Batch), bool)
    result = attention("key_pos", "head_dim", query, key, value["head_dim", 0], mask_of_queries)
    assert result.names == ("batch", "heads", "pos") and not result.array.any()
    window = nym.nn.AttentionMask.sliding_window(1)
    result = attention("key_pos", "head_dim", query, key["key_pos", :2], value["key_pos", :2], window)
    assert result["pos", :2].array.all() and not result["pos", 2:].array.any()
    result = attention("key_pos", "head_dim", query * jnp.nan, key, value, mask)
    assert jnp.isnan(result["pos", 1:].array).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_large_numbers_in_a_bias_are_no_nan(inputs, dtype):
    """The softmax in 16 bits, in which -1e9 is minus infinity or hides the scores."""
    low = [x.astype(dtype) for x in inputs]
    bias = nym.where(nym.arange(KeyPos) < nym.arange(Pos).broadcast_axis(KeyPos) + 3, -1e9, 0.0)
    result = attention("key_pos", "head_dim", *low, bias=bias).astype(float)
    assert allclose(result["pos", -1].array, inputs[2].mean("key_pos").array, atol=0.02)


def types_of(primitive, *args, **options):
    """The element types in which a primitive of attention is computed."""
    jaxpr = jax.make_jaxpr(lambda *args: attention("key_pos", "head_dim", *args, **options))(*args)
    return re.findall(rf":(\w+)\[[^]]*\] = {primitive}\b", str(jaxpr))


def test_scores_have_the_element_type_asked_for(draw, inputs):
    low = [x.astype(jnp.bfloat16) for x in inputs]
    bias = draw(Pos, KeyPos)
    assert types_of("exp", *low) == types_of("exp", *low, bias=bias) == ["bf16"]
    assert types_of("exp", *low, bias=bias, attention_dtype=jnp.float32) == ["f32"]
    result = attention("key_pos", "head_dim", *low, bias=bias, attention_dtype=jnp.float32)
    assert result.dtype == jnp.bfloat16
    exact = attention("key_pos", "head_dim", *(x.astype(jnp.float32) for x in low), bias=bias)
    assert allclose(result.array.astype(jnp.float32), exact.array, atol=0.03)


def test_precision_reaches_both_products(inputs):
    def traced(*inputs):
        return attention("key_pos", "head_dim", *inputs, precision=jax.lax.Precision.HIGHEST)

    assert str(jax.make_jaxpr(traced)(*inputs)).count("precision=(Precision.HIGHEST, Precision.HIGHEST)") == 2


def test_grouped_queries_keep_the_precision_of_each_operand(draw):
    query, key = draw(Heads, Pos, nym.Axis("group", 3), HeadDim), draw(Heads, KeyPos, HeadDim)

    def traced(query, key):
        return attention("key_pos", "head_dim", query, key, key, precision=("high", "highest"))

    result = str(jax.make_jaxpr(traced)(query, key))
    assert result.count("precision=(Precision.HIGHEST, Precision.HIGH)") == 2  # keys and values are the first operands


def test_it_compiles_to_no_transpose(inputs):
    mask = nym.nn.causal_mask(Pos, KeyPos)
    jaxpr = jax.make_jaxpr(lambda *inputs: attention("key_pos", "head_dim", *inputs, mask=mask))(*inputs)
    assert str(jaxpr).count("dot_general[") == 2
    assert "transpose[" not in str(jaxpr)


@pytest.mark.parametrize(("q_start", "k_start"), [(0, 0), (2, 0), (0, 3), (5, 4)])
def test_a_query_sees_keys_at_its_position_and_before(q_start, k_start):
    expected = q_start + jnp.arange(4)[:, None] >= k_start + jnp.arange(6)[None]
    for mask in (
        nym.nn.causal_mask(Pos, KeyPos, q_start, k_start),
        jax.jit(lambda q, k: nym.nn.causal_mask(Pos, KeyPos, q_start=q, k_start=k))(q_start, k_start),
    ):
        assert mask.shape == {"pos": 4, "key_pos": 6} and mask.names == ("pos", "key_pos")
        assert mask.dtype == jnp.bool_
        assert np.array_equal(mask.array, expected)


def test_a_causal_mask_is_sharded_and_not_transposed(mesh):
    assert "transpose[" not in str(jax.make_jaxpr(lambda: nym.nn.causal_mask(Pos, KeyPos))())
    with nym.axis_mapping({"pos": "data", "key_pos": "model"}):
        result = nym.nn.causal_mask(Pos, KeyPos)
    assert tuple(result.sharding.spec) == ("data", "model")
    assert np.array_equal(jax.device_get(result.array), jnp.tril(jnp.ones((4, 6), bool)))


def test_errors_of_attention_name_the_input_and_the_axes(draw):
    query, key = draw(Pos, HeadDim), draw(KeyPos, HeadDim)
    with refusal("dot_product_attention (query): no axis 'head_dmi' in (pos: 4, head_dim: 8); did you mean"):
        attention("key_pos", "head_dmi", query, key, key)
    with refusal("dot_product_attention (key): no axis 'key_pos' in (pos: 4, head_dim: 8)"):
        attention("key_pos", "head_dim", query, query, key)
    with refusal("dot_product_attention (value): no axis 'key_pos' in (pos: 4, head_dim: 8)"):
        attention("key_pos", "head_dim", query, key, query)
    with refusal("the query (pos: 4, head_dim: 8) has the axis of key positions 'pos'; `rename` it in key and value"):
        attention("pos", "head_dim", query, query, query)
    with refusal("dot_product_attention (key): axis 'key_pos' has size 6 here, 5 was asked for"):
        attention(KeyPos.resize(5), "head_dim", query, key, key)
    with refusal("dot_product_attention (value): the input must be a named array", TypeError):
        attention("key_pos", "head_dim", query, key, key.array)
    none = key["key_pos", 0:0]
    with refusal("axis 'key_pos' of the key (key_pos: 0, head_dim: 8) has size 0, so a query has nothing to attend to"):
        attention("key_pos", "head_dim", query, none, none)
    with refusal("cannot broadcast"):
        attention("key_pos", "head_dim", query, key, key, nym.ones({"pos": 4, "kye_pos": 6}, bool))
    with refusal("axis 'pos' occurs more than once"):
        nym.nn.causal_mask(Pos, Pos)


def test_a_mask_of_numbers_is_refused():
    q = nym.ones({"pos": 2, "d": 4})
    k = q.rename({"pos": "key_pos"})
    with pytest.raises(TypeError, match="`mask` must be boolean, not float32"):
        nym.nn.dot_product_attention("key_pos", "d", q, k, k, mask=nym.zeros({"pos": 2, "key_pos": 2}))


def test_scale_soft_cap_and_sinks_are_those_of_the_papers(draw, inputs):
    query, key, value = inputs
    bias, sinks = draw(Heads, Pos, KeyPos), draw(Heads)
    result = attention("key_pos", "head_dim", *inputs, bias=bias, scale=0.5, soft_cap=1.5, sinks=sinks)
    scores = jnp.einsum("bqhd,hkdb->bhqk", query.array, key.array) * 0.5
    scores = 1.5 * jnp.tanh(scores / 1.5) + bias.array[None]
    column = jnp.broadcast_to(sinks.array[None, :, None, None], (*scores.shape[:3], 1))
    weights = jax.nn.softmax(jnp.concatenate([scores, column], axis=-1))[..., :-1]
    expected = jnp.einsum("bhqk,bkhd->bhqd", weights, value.array)
    assert result.names == AXES and allclose(result.array, expected, atol=1e-5)


def test_dropout_sets_weights_to_zero_and_scales_the_rest(inputs):
    query, key, _ = inputs
    value = nym.eye(KeyPos, nym.Axis("out", 6))  # the result is the weights
    weights = attention("key_pos", "head_dim", query, key, value)
    for raw in (jax.random.key(1), jax.random.PRNGKey(1)):
        result = attention("key_pos", "head_dim", query, key, value, dropout=0.25, dropout_key=raw)
        kept = result.array != 0
        assert abs(kept.mean() - 0.75) < 0.1
        assert allclose(result.array, jnp.where(kept, weights.array / 0.75, 0), atol=1e-6)


def test_positions_are_found_among_the_axes_of_the_query(draw):
    grouped = nym.Axis("group", 3)
    query, key = draw(Pos, grouped, HeadDim), draw(KeyPos, HeadDim)
    mask = nym.nn.AttentionMask.causal()
    with refusal(
        "axes (pos, group) of the query (pos: 4, group: 3, head_dim: 8) are not in the key, so the mask does not"
    ):
        attention("key_pos", "head_dim", query, key, key, mask)
    result = attention("key_pos", "head_dim", query, key, key, mask, QPos="pos")
    one = query["pos", 1:2]
    decoded = attention("key_pos", "head_dim", one, key, key, nym.nn.AttentionMask.causal(q_start=1), QPos="pos")
    assert allclose(result["pos", 1:2].array, decoded.array, atol=1e-6)
    ids = nym.zeros(Pos, int)
    by_ids = attention(
        "key_pos", "head_dim", query, key, key, mask & nym.nn.AttentionMask.segment_ids(ids, nym.zeros(KeyPos, int))
    )
    assert allclose(by_ids.array, result.array, atol=1e-6)
    with refusal("the key (key_pos: 6, head_dim: 8) has the axis of query positions 'head_dim'; `rename` it in key"):
        attention("key_pos", "head_dim", query, key, key, mask, QPos="head_dim")


def test_numbers_of_attention_are_checked(draw, inputs):
    with refusal("dot_product_attention: `soft_cap` must be above 0, not 0.0"):
        attention("key_pos", "head_dim", *inputs, soft_cap=0.0)
    with refusal("dot_product_attention: `dropout` must be at least 0 and below 1, not 1.0"):
        attention("key_pos", "head_dim", *inputs, dropout=1.0)
    with refusal("dot_product_attention: a `dropout` of 0.5 needs a random key, `dropout_key`"):
        attention("key_pos", "head_dim", *inputs, dropout=0.5)
    with refusal("`sinks` (key_pos: 6) have axes (key_pos); allowed are (batch, pos, heads)"):
        attention("key_pos", "head_dim", *inputs, sinks=draw(KeyPos))
    with refusal(
        "dot_product_attention (sinks): the input must be a named array, not float; use `axonym.named`.", TypeError
    ):
        attention("key_pos", "head_dim", *inputs, sinks=0.5)
    with refusal("dot_product_attention (bias): the input must be a named array, not float", TypeError):
        attention("key_pos", "head_dim", *inputs, bias=0.5)


@pytest.mark.parametrize("heads", [1, 4, 6])
def test_alibi_is_a_bias_that_falls_with_distance(draw, heads):
    several = nym.Axis("heads", heads)
    slopes = nym.nn.alibi_slopes(several).array
    known = {1: [8], 4: [2, 4, 6, 8], 6: [2, 4, 6, 8, 1, 3]}[heads]  # Press et al., 2021; others as their own program
    assert allclose(slopes, 2.0 ** -jnp.array(known))
    query, key = draw(Pos, several, HeadDim), draw(KeyPos, several, HeadDim)
    distance = jnp.arange(6)[None] - jnp.arange(4)[:, None]
    bias = nym.named(slopes[:, None, None] * distance[None], ("heads", "pos", "key_pos"))
    mask = nym.nn.AttentionMask.causal()
    expected = attention("key_pos", "head_dim", query, key, key, mask, bias)
    result = attention("key_pos", "head_dim", query, key, key, mask, nym.nn.alibi_bias(several, KeyPos))
    assert allclose(result.array, expected.array, atol=1e-5)


def test_grouped_queries_keep_the_order_of_axes():
    random = np.random.default_rng(0)
    query = nym.named(random.normal(size=(2, 5, 3, 2, 4)).astype(np.float32), ("batch", "pos", "heads", "group", "d"))
    key = nym.named(random.normal(size=(2, 5, 3, 4)).astype(np.float32), ("batch", "key_pos", "heads", "d"))
    causal = nym.nn.AttentionMask.causal()
    result = nym.nn.dot_product_attention("key_pos", "d", query, key, key * 2, causal, QPos="pos")
    scores = jnp.einsum("bphgd,bkhd->bhgpk", query.array, key.array) / 2
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((5, 5), bool)), scores, -jnp.inf))
    assert result.names == ("batch", "heads", "pos", "group", "d")
    expected = jnp.einsum("bhgpk,bkhd->bhpgd", weights, key.array * 2)
    np.testing.assert_allclose(result.array, expected, rtol=1e-5, atol=1e-5)


def test_dropout_of_grouped_queries_averages_to_the_result_without_it():
    query = nym.ones({"pos": 3, "heads": 2, "group": 2, "d": 4})
    key = nym.ones({"key_pos": 400, "heads": 2, "d": 4})
    options = {"dropout": 0.5, "dropout_key": jax.random.key(0)}
    result = nym.nn.dot_product_attention("key_pos", "d", query, key, key, QPos="pos", **options)
    assert result.names == ("heads", "pos", "group", "d")
    np.testing.assert_allclose(result.array.mean(), 1.0, atol=0.1)

"""Attention: parity with JAX, the element types in which it computes, and errors."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Batch, Heads, Pos, KeyPos, HeadDim = nym.make_axes(batch=8, heads=2, pos=4, key_pos=6, head_dim=8)
attention = eqx.filter_jit(nym.nn.dot_product_attention)
CAUSAL = nym.nn.AttentionMask.causal()
AXES = ("batch", "heads", "pos", "head_dim")


@pytest.fixture
def inputs(draw):
    """Query, key and value, each with its axes in another order."""
    return draw(Batch, Pos, Heads, HeadDim), draw(Heads, KeyPos, HeadDim, Batch), draw(Batch, KeyPos, Heads, HeadDim)


def test_attention_is_that_of_jax(check, draw, inputs):
    mask = nym.nn.causal_mask(Pos, KeyPos, q_start=2)

    def reference(_, query, key, value, bias):
        query = query.rearrange(("batch", "pos", "heads", "head_dim"))
        key, value = (x.rearrange(("batch", "key_pos", "heads", "head_dim")) for x in (key, value))
        options = {"bias": bias.array[None], "mask": mask.array[None, None]}
        result = jax.nn.dot_product_attention(query.array, key.array, value.array, **options)
        return nym.named(result, ("batch", "pos", "heads", "head_dim")).rearrange(AXES)

    def compute(_, query, key, value, bias):
        return attention(KeyPos, HeadDim, query, key, value, mask, bias)

    check(compute, reference, None, *inputs, draw(Heads, Pos, KeyPos))


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
    mask = nym.arange(Pos).broadcast_axis(KeyPos) > 0

    @jax.jit
    def attend(query, key, value):
        return (
            attention("key_pos", "head_dim", query, key, value, mask),
            attention("key_pos", "head_dim", query, key, value["head_dim", 0], nym.zeros((Pos, Heads, Batch), bool)),
            attention(
                *("key_pos", "head_dim", query, key["key_pos", :2], value["key_pos", :2]),
                nym.nn.AttentionMask.sliding_window(1),
            ),
            attention("key_pos", "head_dim", query * jnp.nan, key, value, mask),
        )

    by_keys, by_queries, by_window, of_nan = attend(query, key, value)
    assert not by_keys["pos", 0].array.any() and by_keys["pos", 1:].array.all()
    assert by_queries.names == ("batch", "heads", "pos") and not by_queries.array.any()
    assert by_window["pos", :2].array.all() and not by_window["pos", 2:].array.any()
    assert np.isnan(of_nan["pos", 1:].array).all()


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


@pytest.mark.parametrize("groups", [(), nym.make_axes(group=3)], ids=["plain", "grouped"])
def test_both_products_have_the_precision_of_each_operand(draw, groups):
    query, key = draw(Heads, Pos, *groups, HeadDim), draw(Heads, KeyPos, HeadDim)

    def compute(query, key):
        return attention("key_pos", "head_dim", query, key, key, precision=("high", "highest"))

    # Keys and values are the first operands of products of grouped queries.
    order = "Precision.HIGHEST, Precision.HIGH" if groups else "Precision.HIGH, Precision.HIGHEST"
    assert str(jax.make_jaxpr(compute)(query, key)).count(f"precision=({order})") == 2


def test_it_compiles_to_no_transpose(inputs):
    mask = nym.nn.causal_mask(Pos, KeyPos)
    jaxpr = jax.make_jaxpr(lambda *inputs: attention("key_pos", "head_dim", *inputs, mask=mask))(*inputs)
    assert str(jaxpr).count("dot_general[") == 2
    assert "transpose[" not in str(jaxpr)


def test_a_causal_mask_shows_keys_up_to_the_position_and_is_sharded(mesh):
    expected = 5 + np.arange(4)[:, None] >= 4 + np.arange(6)[None]
    with nym.axis_mapping({"pos": "data", "key_pos": "model"}):
        for mask in (
            nym.nn.causal_mask(Pos, KeyPos, 5, 4),
            jax.jit(lambda q, k: nym.nn.causal_mask(Pos, KeyPos, q_start=q, k_start=k))(5, 4),
        ):
            assert mask.names == ("pos", "key_pos") and tuple(mask.sharding.spec) == ("data", "model")
            assert np.array_equal(jax.device_get(mask.array), expected)


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
    query, key = draw(Pos, nym.Axis("group", 3), HeadDim), draw(KeyPos, HeadDim)
    result = attention("key_pos", "head_dim", query, key, key, CAUSAL, QPos="pos")
    step = nym.nn.AttentionMask.causal(q_start=1)
    decoded = attention("key_pos", "head_dim", query["pos", 1:2], key, key, step, QPos="pos")
    assert allclose(result["pos", 1:2].array, decoded.array, atol=1e-6)
    mask = CAUSAL & nym.nn.AttentionMask.segment_ids(nym.zeros(Pos, int), nym.zeros(KeyPos, int))
    assert allclose(attention("key_pos", "head_dim", query, key, key, mask).array, result.array, atol=1e-6)


@pytest.mark.parametrize(("heads", "exponents"), [(1, [8]), (4, [2, 4, 6, 8]), (6, [2, 4, 6, 8, 1, 3])])
def test_slopes_of_alibi_are_those_of_the_paper(heads, exponents):
    """Press et al., 2021; other numbers than powers of 2 as their own program."""
    assert allclose(nym.nn.alibi_slopes(nym.Axis("heads", heads)).array, 2.0 ** -np.array(exponents))


def test_alibi_is_a_bias_that_falls_with_distance(draw):
    query, key = draw(Pos, Heads, HeadDim), draw(KeyPos, Heads, HeadDim)
    distance = np.arange(6)[None] - np.arange(4)[:, None]
    slopes = np.asarray(nym.nn.alibi_slopes(Heads).array)
    bias = nym.named(slopes[:, None, None] * distance[None], ("heads", "pos", "key_pos"))
    expected = attention("key_pos", "head_dim", query, key, key, CAUSAL, bias)
    result = attention("key_pos", "head_dim", query, key, key, CAUSAL, nym.nn.alibi_bias(Heads, KeyPos))
    assert allclose(result.array, expected.array, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.5, "dropout_key": jax.random.key(0)}])
def test_grouped_queries_keep_the_order_of_axes(options):
    query = nym.ones(nym.make_axes(batch=2, pos=5, heads=3, group=7, d=4))
    key = nym.ones(nym.make_axes(batch=2, key_pos=5, heads=3, d=4))
    result = attention("key_pos", "d", query, key, key, CAUSAL, QPos="pos", **options)
    assert list(result.shape.items()) == [("batch", 2), ("heads", 3), ("pos", 5), ("group", 7), ("d", 4)]


def test_errors_of_attention_name_the_input_and_the_axes(draw):
    query, key = nym.ones((Pos, HeadDim)), nym.ones((KeyPos, HeadDim))
    with refusal("dot_product_attention (query): no axis 'head_dmi' in (pos: 4, head_dim: 8); did you mean"):
        attention("key_pos", "head_dmi", query, key, key)
    with refusal("the query (pos: 4, head_dim: 8) has the axis of key positions 'pos'; `rename` it in key and value"):
        attention("pos", "head_dim", query, query, query)
    with refusal("axis 'key_pos' has size 7 here, 6 was asked for"):
        attention(KeyPos, "head_dim", query, key, nym.ones((KeyPos.resize(7), HeadDim)))
    with refusal("dot_product_attention (query): the array must have floats, not int32; use `astype`.", TypeError):
        attention("key_pos", "head_dim", query.astype(int), key, key)
    none = key["key_pos", 0:0]
    with refusal("axis 'key_pos' of the key (key_pos: 0, head_dim: 8) has size 0, so a query has nothing to attend to"):
        attention("key_pos", "head_dim", query, none, none)
    with refusal("axis 'pos' occurs more than once"):
        nym.nn.causal_mask(Pos, Pos)
    with refusal("alibi_slopes: there are no heads in (heads: 0)"):
        nym.nn.alibi_slopes(Heads.resize(0))
    grouped = nym.ones((*nym.make_axes(pos=4, group=3), HeadDim))
    with refusal(
        "axes (pos, group) of the query (pos: 4, group: 3, head_dim: 8) are not in the key, so the mask does not"
    ):
        attention("key_pos", "head_dim", grouped, key, key, CAUSAL)
    with refusal("the key (key_pos: 6, head_dim: 8) has the axis of query positions 'head_dim'; `rename` it in key"):
        attention("key_pos", "head_dim", grouped, key, key, CAUSAL, QPos="head_dim")


KEYS = jax.random.split(jax.random.key(0), 3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": nym.ones({"pos": 4, "kye_pos": 6}, bool)}, ValueError, "cannot broadcast"),
        ({"mask": nym.zeros((Pos, KeyPos))}, TypeError, "`mask` must be boolean, not float32; make it so with"),
        ({"mask": nym.ones({"key_pos": 2}, bool), "implementation": "blocked"}, ValueError, "has size 6 and size 2"),
        ({"bias": nym.ones(Pos.resize(5)), "implementation": "blocked"}, ValueError, "'pos' has size 4 and size 5 in"),
        ({"bias": nym.ones((Pos, KeyPos), bool)}, TypeError, "`bias` is added to the scores; give booleans as `mask`."),
        ({"bias": 0.5}, TypeError, "dot_product_attention (bias): the input must be a named array, not float"),
        ({"sinks": 0.5}, TypeError, "(sinks): the input must be a named array, not float; use `axonym.named`."),
        ({"sinks": nym.ones(KeyPos)}, ValueError, "`sinks` (key_pos: 6) have axes (key_pos); allowed are (pos)"),
        ({"attention_dtype": int}, TypeError, "dot_product_attention: `attention_dtype` must be a float, not int"),
        ({"soft_cap": 0.0}, ValueError, "dot_product_attention: `soft_cap` must be above 0, not 0.0"),
        ({"dropout": 1.0}, ValueError, "dot_product_attention: `dropout` must be at least 0 and below 1, not 1.0"),
        ({"dropout": 0.5}, ValueError, "dot_product_attention: a `dropout` of 0.5 needs a random key, `dropout_key`"),
        ({"dropout": 0.5, "dropout_key": KEYS}, ValueError, "one key is needed, not an array of keys of shape (3,)"),
        ({"block_size": 0}, ValueError, "dot_product_attention: `block_size` must be at least 1, not 0"),
        ({"implementation": "flash"}, ValueError, "must be 'auto', 'splash', 'jax', 'blocked' or 'plain', not 'flash'"),
    ],
)
def test_options_of_attention_are_checked(options, error, message):
    query, key = nym.ones((Pos, HeadDim)), nym.ones((KeyPos, HeadDim))
    with refusal(message, error):
        attention("key_pos", "head_dim", query, key, key, **options)

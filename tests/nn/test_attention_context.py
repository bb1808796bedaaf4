"""Attention whose positions are sharded: keys that are gathered, go around a ring, or are exchanged for heads."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.nn import AttentionMask, dot_product_attention, explain_attention, zigzag_positions


Batch, Pos, Heads, Group, Dim = nym.make_axes(batch=2, pos=32, heads=4, group=2, dim=8)
CONTEXT = 4
AXES = ("data", "context", "model")
MAPPING = {"batch": "data", "pos": "context", "heads": "model"}
CONTEXTS = ["all_gather", "ring", "all_to_all"]


def draw(seed: int, *axes: nym.Axis) -> nym.NamedArray:
    return nym.random.normal(jax.random.key(seed), axes)


QUERY = draw(0, Batch, Pos, Heads, Group, Dim)
KEY, VALUE = draw(1, Batch, Pos, Heads, Dim), draw(2, Batch, Pos, Heads, Dim)
FACTORS = draw(3, Batch, Pos, Heads, Group, Dim)  # of the results, to get gradients
SEGMENTS = nym.named(np.sort(np.random.default_rng(0).integers(0, 3, (Batch.size, Pos.size))), (Batch, Pos))
MASKS: dict[str, Any] = {
    "none": lambda segments: None,
    "causal": lambda segments: AttentionMask.causal(),
    "window": lambda segments: AttentionMask.causal() & AttentionMask.sliding_window(9),
    "prefix": lambda segments: AttentionMask.causal() | AttentionMask.prefix(5),
    "packed": lambda segments: AttentionMask.causal() & AttentionMask.segment_ids(segments),
    "without keys": lambda segments: AttentionMask.prefix(nym.named(jnp.array([0, 7]), Batch)),
    "inverted": lambda segments: ~AttentionMask.sliding_window(20) | AttentionMask.prefix(1),
}


def attend(query: Any, key: Any, value: Any, **options: Any) -> nym.NamedArray:
    key, value = (x.rename({"pos": "key_pos"}) for x in (key, value))
    return dot_product_attention("key_pos", "dim", query, key, value, QPos="pos", block_size=4, **options)


def differentiate(compute: Any, *operands: Any) -> Any:
    """Returns the result and gradients of all operands."""

    def compute_loss(*operands: Any) -> Any:
        result = compute(*operands)
        factors = FACTORS if positions is None else FACTORS["pos", positions]
        return nym.sum(result * factors).scalar(), result

    *operands, positions = operands
    (_, result), gradients = jax.value_and_grad(compute_loss, range(len(operands)), has_aux=True)(*operands)
    return result, gradients


def assert_same(results: Any, expected: Any, order: Any = None) -> None:
    is_array = nym.is_named_array
    pairs = zip(jax.tree.leaves(results, is_leaf=is_array), jax.tree.leaves(expected, is_leaf=is_array), strict=True)
    for result, value in pairs:
        if order is not None and "pos" in value.names:
            value = value["pos", order]
        expected_array = np.asarray(value.rearrange(result.names).array)
        np.testing.assert_allclose(np.asarray(result.array), expected_array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(("axis_types", "is_zigzag"), [("auto", False), ("explicit", True)])
def test_every_mask_is_right_under_every_placement(context: str, mask: str, axis_types: Any, is_zigzag: bool):
    def compute(query: Any, key: Any, value: Any, segments: Any = SEGMENTS, **options: Any) -> Any:
        return attend(query, key, value, mask=MASKS[mask](segments), **options)

    expected = differentiate(lambda *operands: compute(*operands, implementation="plain"), QUERY, KEY, VALUE, None)
    positions = zigzag_positions(Pos, CONTEXT) if is_zigzag else None
    operands = QUERY, KEY, VALUE, SEGMENTS
    if positions is not None:
        operands = tuple(x["pos", positions] for x in operands)

    @nym.named_jit(axis_resources=MAPPING)
    def step(query: Any, key: Any, value: Any, segments: Any, positions: Any) -> Any:
        return differentiate(
            lambda *operands: compute(*operands, segments, context=context, positions=positions),
            *(query, key, value, positions),
        )

    with jax.set_mesh(nym.create_mesh((2, CONTEXT, 1), AXES, axis_types=axis_types)):
        results = step(*operands, positions)
    assert_same(results, expected, positions)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_scores_are_changed_as_on_one_device(context: str, axis_types: Any):
    bias, sinks, scale = draw(4, Heads, Pos.alias("key_pos")), draw(5, Heads), nym.exp(draw(6, Heads))

    def compute(query: Any, key: Any, value: Any, bias: Any, sinks: Any, scale: Any, **options: Any) -> Any:
        options |= {"bias": bias, "sinks": sinks, "scale": scale, "soft_cap": 5.0, "mask": AttentionMask.causal()}
        return attend(query, key, value, **options)

    operands = QUERY, KEY, VALUE, bias, sinks, scale
    expected = differentiate(lambda *operands: compute(*operands, implementation="plain"), *operands, None)

    @nym.named_jit(axis_resources=MAPPING)
    def step(*operands: Any) -> Any:
        return differentiate(lambda *operands: compute(*operands, context=context), *operands, None)

    with jax.set_mesh(nym.create_mesh((2, 2, 2), AXES, axis_types=axis_types)):
        assert_same(step(*operands), expected)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_nothing_is_sent_but_what_the_context_says(axis_types: Any):
    def count_bytes(context: str) -> dict[Any, int]:
        step = nym.named_jit(
            jax.grad(lambda *operands: nym.sum(attend(*operands, context=context) ** 2).scalar(), (0, 1, 2)),
            axis_resources=MAPPING,
            in_axis_resources=MAPPING,
        )
        report = nym.planner.communication_report(step, QUERY, KEY, VALUE)
        return {kind: size for kind, size in report.count_bytes().items() if size > 64}

    shard = KEY.array.size * 4 // 8  # the bytes of the keys of a device
    with jax.set_mesh(nym.create_mesh((2, CONTEXT, 1), AXES, axis_types=axis_types)):
        # Keys and values three times forward and backward, and their gradients four times.
        assert count_bytes("ring") == {"collective-permute": (3 * 2 + 3 * 2 + 4 * 2) * shard}
        # Keys, values, queries and results, of which queries have two groups; all again backward.
        assert count_bytes("all_to_all") == {"all-to-all": 2 * (2 + 2 * 2) * shard}


def test_auto_goes_around_a_ring_where_gathered_keys_are_large():
    def explain(size: int, heads: int = 5, **options: Any) -> Any:
        query = nym.named(jax.ShapeDtypeStruct((1, size, heads, 128), "float32"), ("batch", "pos", "heads", "dim"))
        key = value = query.rename({"pos": "key_pos"})
        return explain_attention("key_pos", "dim", query, key, value, QPos="pos", **options)

    mesh = nym.create_abstract_mesh((8,), ("context",))
    with jax.sharding.use_abstract_mesh(mesh), nym.axis_mapping({"pos": "context"}):
        short, long, divisible = explain(8192), explain(16384), explain(16384, heads=8)
        dropped = explain(16384, dropout=0.5, dropout_key=jax.random.key(0))
    contexts = [choice.context for choice in (short, long, divisible, dropped)]
    assert contexts == ["all_gather", "ring", "all_to_all", "all_gather"]
    assert "context ring    gathered keys and values take 80.0 MiB of a device, more than 64 MiB" in str(long)
    assert dropped.context_reason == "no ring can compute this: devices would drop the same weights"
    assert explain(8192).context is None


def test_what_a_context_cannot_compute_is_an_error():
    def check(context: str, text: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=text):
            nym.named_jit(lambda *operands: attend(*operands, context=context, **options), MAPPING)(QUERY, KEY, VALUE)

    with jax.set_mesh(nym.create_mesh((1, 8, 1), AXES)):
        check("all_to_all", "context 'all_to_all' cannot compute this: no axis of query, key and value but those of")
        check("ring", "the mask has both axes of positions", mask=nym.ones((Pos, Pos.alias("key_pos"))) > 0)
        check("ring", "'blocked' does, not as 'plain'; 'all_gather' can", implementation="plain")
        check("round", "`context` must be 'auto', 'all_gather', 'ring' or 'all_to_all', not 'round'")
        check("ring", "are those of queries and keys", positions=nym.arange(Pos)["pos", :8])
    with pytest.raises(ValueError, match=r"size 32, which is not divisible into 2 chunks for each of 3 devices; .* 36"):
        zigzag_positions(Pos, 3)

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
AXES = ("data", "ring", "inner", "model")
MAPPING = {"batch": "data", "pos": ("ring", "inner"), "heads": "model"}
CONTEXTS = ["all_gather", "ring", "all_to_all", "mixed"]


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


def rename_keys(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    return query, *(x.rename({"pos": "key_pos"}) for x in (key, value))


def attend(query: Any, key: Any, value: Any, **options: Any) -> nym.NamedArray:
    operands = rename_keys(query, key, value)
    return dot_product_attention("key_pos", "dim", *operands, QPos="pos", block_size=4, **options)


def differentiate(compute: Any, *operands: Any, positions: Any = None) -> Any:
    """Returns the result and gradients of all operands, for tokens in the order of some positions."""
    factors = FACTORS if positions is None else FACTORS["pos", positions]

    def compute_loss(*operands: Any) -> Any:
        result = compute(*operands)
        return nym.sum(result * factors).scalar(), result

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

    expected = differentiate(lambda *operands: compute(*operands, implementation="plain"), QUERY, KEY, VALUE)
    positions = zigzag_positions(Pos, CONTEXT) if is_zigzag else None
    operands = QUERY, KEY, VALUE, SEGMENTS
    if positions is not None:
        operands = tuple(x["pos", positions] for x in operands)

    @nym.named_jit(axis_resources=MAPPING)
    def step(query: Any, key: Any, value: Any, segments: Any, positions: Any) -> Any:
        return differentiate(
            lambda *operands: compute(*operands, segments, context=context, positions=positions),
            *(query, key, value),
            positions=positions,
        )

    with jax.set_mesh(nym.create_mesh((2, 2, 2, 1), AXES, axis_types=axis_types)):
        results = step(*operands, positions)
    assert_same(results, expected, positions)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_scores_are_changed_as_on_one_device(context: str, axis_types: Any):
    KPos = Pos.alias("key_pos")
    is_shown = (nym.arange(KPos) > 2).broadcast_axis(Heads) & (nym.arange(Heads) > 0)  # some queries attend to no key
    bias = nym.where(is_shown, draw(4, Heads, KPos), -jnp.inf)
    sinks, scale = draw(5, Heads), nym.exp(draw(6, Heads))

    def compute(query: Any, key: Any, value: Any, bias: Any, sinks: Any, scale: Any, **options: Any) -> Any:
        options |= {"bias": bias, "sinks": sinks, "scale": scale, "soft_cap": 5.0, "mask": AttentionMask.causal()}
        return attend(query, key, value, **options)

    operands = QUERY, KEY, VALUE, bias, sinks, scale
    expected = differentiate(lambda *operands: compute(*operands, implementation="plain"), *operands)

    @nym.named_jit(axis_resources={**MAPPING, "key_pos": MAPPING["pos"]})
    def step(*operands: Any) -> Any:
        return differentiate(lambda *operands: compute(*operands, context=context), *operands)

    shape = (1, 2, 2, 2) if context == "mixed" else (2, 2, 1, 2)
    with jax.set_mesh(nym.create_mesh(shape, AXES, axis_types=axis_types)):
        assert_same(step(*operands), expected)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
@pytest.mark.parametrize("implementation", ["blocked", "jax"])
def test_gathered_keys_may_share_the_mesh_axes_of_queries(implementation: str, axis_types: Any):
    """The operands are not sharded yet, so that gradients are to be like them."""

    def compute(*operands: Any, **options: Any) -> Any:
        return attend(*operands, mask=AttentionMask.causal(), **options)

    expected = differentiate(lambda *operands: compute(*operands, implementation="plain"), QUERY, KEY, VALUE)

    @nym.named_jit(axis_resources={**MAPPING, "key_pos": "ring"})
    def step(*operands: Any) -> Any:
        options = {"implementation": implementation, "context": "all_gather"}
        return differentiate(lambda *operands: compute(*operands, **options), *operands)

    with jax.set_mesh(nym.create_mesh((2, 2, 2, 1), AXES, axis_types=axis_types)):
        assert_same(step(QUERY, KEY, VALUE), expected)


LONG = Pos.resize(512)  # shards of 128 positions, the fewest that the kernel takes
LONG_SEGMENTS = nym.named(np.arange(512) // 200, LONG)
LONG_MASKS: dict[str, Any] = {
    "causal": AttentionMask.causal(),
    "window": AttentionMask.causal() & AttentionMask.sliding_window(90),
    "prefix": AttentionMask.causal() | AttentionMask.prefix(50),
}


@pytest.mark.parametrize(
    ("axis_types", "context", "mask", "is_zigzag"),
    [
        ("auto", "ring", "window", True),
        ("explicit", "ring", "causal", True),
        ("auto", "mixed", "prefix", False),
        ("explicit", "mixed", "packed", False),
        ("explicit", "all_gather", "window", True),
        ("auto", "all_to_all", "causal", True),
    ],
)
def test_shards_are_computed_by_the_kernel(axis_types: Any, context: str, mask: str, is_zigzag: bool):
    axes = Batch, LONG, Heads, Dim
    operands = draw(0, *axes, Group), draw(1, *axes), draw(2, *axes), draw(3, Heads, Group)
    positions = zigzag_positions(LONG, CONTEXT)

    def compute(query: Any, key: Any, value: Any, segments: Any, sinks: Any, **options: Any) -> Any:
        long_mask = LONG_MASKS["causal"] & AttentionMask.segment_ids(segments) if mask == "packed" else LONG_MASKS[mask]
        return attend(query, key, value, mask=long_mask, sinks=sinks, soft_cap=20.0, **options)

    def differentiate_mean(order: Any, segments: Any, *operands: Any, **options: Any) -> Any:
        factors = nym.arange(LONG, dtype=jnp.float32) / LONG.size
        if order is not None:
            factors = factors["pos", order]

        def compute_loss(query: Any, key: Any, value: Any, sinks: Any) -> Any:
            result = compute(query, key, value, segments, sinks, positions=order, **options)
            return nym.sum(factors * result**2).scalar()

        return jax.value_and_grad(compute_loss, (0, 1, 2, 3))(*operands)

    expected = nym.named_jit(differentiate_mean)(None, LONG_SEGMENTS, *operands, implementation="plain")
    order, segments = (positions, LONG_SEGMENTS["pos", positions]) if is_zigzag else (None, LONG_SEGMENTS)
    placed = [x["pos", positions] if is_zigzag and "pos" in x.names else x for x in operands]

    @nym.named_jit(axis_resources=MAPPING)
    def step(segments: Any, *operands: Any) -> Any:
        return differentiate_mean(order, segments, *operands, implementation="splash", context=context)

    shape = (2, 4, 1, 1) if context in ("ring", "all_to_all") else (1, 2, 2, 2)
    with jax.set_mesh(nym.create_mesh(shape, AXES, axis_types=axis_types)):
        loss, gradients = step(segments, *placed)

    np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
    assert_same(gradients, expected[1], positions if is_zigzag else None)


DROPOUT: dict[str, Any] = {"dropout": 0.3, "dropout_key": jax.random.key(7)}


@pytest.mark.parametrize(("axis_types", "context"), [("auto", "ring"), ("explicit", "mixed"), ("auto", "all_to_all")])
def test_devices_drop_other_weights_and_gradients_see_the_same(axis_types: Any, context: str):
    options = {"mask": AttentionMask.causal(), "context": context, **DROPOUT}

    def attend_with(query: Any, key: Any, value: Any, factors: Any) -> nym.NamedArray:
        query, key, value = rename_keys(query, key, value)
        scores = nym.dot(query, key, axis="dim") / np.sqrt(Dim.size)
        mask = AttentionMask.causal().materialize(Pos, Pos.alias("key_pos"))
        weights = nym.nn.softmax(nym.where(mask, scores, -jnp.inf), "key_pos")
        return nym.dot(weights * factors, value, axis="key_pos")

    @nym.named_jit(axis_resources=MAPPING)
    def step(*operands: Any) -> Any:
        results = differentiate(lambda *operands: attend(*operands, **options), *operands)
        # Equal weights of values that are one at their own position and zero elsewhere.
        choices = nym.nn.one_hot(nym.arange(Pos), nym.Axis("choice", Pos.size)).broadcast_axis((Batch, Heads))
        weights = attend(0 * QUERY, KEY, choices, context=context, **DROPOUT)
        return results, weights.rename({"choice": "key_pos"}) * Pos.size

    shape = (2, 2, 2, 1) if context == "mixed" else (2, 2, 1, 2)
    with jax.set_mesh(nym.create_mesh(shape, AXES, axis_types=axis_types)):
        results, factors = jax.device_get(step(QUERY, KEY, VALUE))
    assert_same(results, differentiate(lambda *operands: attend_with(*operands, factors), QUERY, KEY, VALUE))
    is_kept = factors.rearrange(("batch", "heads", "group", "pos", "key_pos")).array > 0
    assert abs(is_kept.mean() - 0.7) < 0.02
    np.testing.assert_allclose(factors.array.max(), 1 / 0.7, rtol=1e-5)
    blocks = is_kept.reshape(2, 4, 2, 4, 8, 4, 8).swapaxes(4, 5).reshape(-1, 64)
    assert len(np.unique(blocks, axis=0)) == len(blocks)


@pytest.mark.parametrize("is_zigzag", [False, True])
def test_devices_that_share_positions_alone_drop_what_one_does(is_zigzag: bool):
    positions = zigzag_positions(Pos, 8) if is_zigzag else None
    key = jax.random.PRNGKey(7) if is_zigzag else jax.random.key(7)
    options = {"mask": AttentionMask.causal(), "positions": positions, "dropout": 0.3, "dropout_key": key}
    expected = differentiate(lambda *operands: attend(*operands, **options), QUERY, KEY, VALUE)
    step = nym.named_jit(
        lambda *operands: differentiate(lambda *operands: attend(*operands, context="ring", **options), *operands),
        axis_resources=MAPPING,
    )
    with jax.set_mesh(nym.create_mesh((1, 4, 2, 1), AXES)):
        assert_same(step(QUERY, KEY, VALUE), expected)


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
    with jax.set_mesh(nym.create_mesh((2, 2, 2, 1), AXES, axis_types=axis_types)):
        # Keys and values three times forward and backward, and their gradients four times. XLA for CPUs may keep the
        # keys that come first for the backward pass.
        assert count_bytes("ring") in [{"collective-permute": (3 * 2 + n * 2 + 4 * 2) * shard} for n in (2, 3)]
        # Keys, values, queries and results, of which queries have two groups; all again backward.
        assert count_bytes("all_to_all") == {"all-to-all": 2 * (2 + 2 * 2) * shard}
        # Two groups of two: the same exchange, and keys and values once, or once each way, and their gradients twice.
        sent = count_bytes("mixed")
        assert sent.pop("collective-permute") in [(n * 2 + 2 * 2) * shard for n in (1, 2)]
        assert sent == {"all-to-all": 2 * (2 + 2 * 2) * shard}


def explain(size: int, heads: int = 5, groups: int = 1, **options: Any) -> Any:
    shape = nym.make_axes(batch=1, pos=size, heads=heads, group=groups, dim=128)
    query = nym.named(jax.ShapeDtypeStruct(tuple(axis.size for axis in shape), "float32"), shape)
    key = nym.named(jax.ShapeDtypeStruct((1, size, heads, 128), "float32"), ("batch", "key_pos", "heads", "dim"))
    return explain_attention("key_pos", "dim", query, key, key, QPos="pos", **options)


def test_auto_goes_around_a_ring_where_gathered_keys_are_large():
    mesh, bias = nym.create_abstract_mesh((8,), ("context",)), nym.ones({"layers": 2})
    with jax.sharding.use_abstract_mesh(mesh), nym.axis_mapping({"pos": "context"}):
        short, long, divisible = explain(8192), explain(16384), explain(16384, heads=8)
        foreign = explain(16384, bias=bias)
    contexts = [choice.context for choice in (short, long, divisible, foreign)]
    assert contexts == ["all_gather", "ring", "all_to_all", "all_gather"]
    assert "context ring    gathered keys and values take 80.0 MiB of a device, more than 64 MiB" in str(long)
    text = "no ring is used: the bias has axis 'layers', which neither query nor key has"
    assert foreign.context_reason == text
    assert explain(8192).context is None


def test_auto_mixes_where_heads_cannot_be_divided_by_all_devices_and_it_sends_least():
    def explain_mapped(mesh: Any, *args: int, **options: Any) -> Any:
        mapping = {"pos": mesh.axis_names}
        with jax.sharding.use_abstract_mesh(mesh), nym.axis_mapping(mapping):
            return explain(*args, **options)

    mesh = nym.create_abstract_mesh((2, 4), ("ring", "heads"))
    choice = explain_mapped(mesh, 16384, 4)
    text = "context mixed   with groups of 4 devices that exchange heads it sends less than a gather or a ring"
    assert text in str(choice)
    reason = "a ring computes in blocks where it has no kernel"
    assert (choice.context, choice.implementation, choice.reason) == ("mixed", "blocked", reason)
    assert explain_mapped(mesh, 65536, 2).context == "ring"  # 4 devices cannot divide 2 heads
    assert explain_mapped(mesh, 65536, 4, 8).context == "ring"  # queries of 8 groups are more than keys
    assert explain_mapped(mesh, 16384, 8).context == "all_to_all"
    assert explain_mapped(mesh, 16384, 4, implementation="plain").context == "all_gather"
    with pytest.raises(ValueError, match=r"a device 4 devices could divide \(batch: 1, heads: 3\); .* 'ring' can"):
        explain_mapped(mesh, 16384, 3, context="mixed")
    line = nym.create_abstract_mesh((8,), ("context",))
    assert explain_mapped(line, 65536, 4).context == "ring"
    with pytest.raises(ValueError, match=r"a ring and groups need one each, as in \{'pos': \('ring', 'heads'\)\}"):
        explain_mapped(line, 16384, 4, context="mixed")


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_the_last_mesh_axes_of_positions_exchange_heads(axis_types: Any):
    def compute(*operands: Any, **options: Any) -> Any:
        return attend(*operands, mask=AttentionMask.causal(), **options)

    expected = differentiate(lambda *operands: compute(*operands, implementation="plain"), QUERY, KEY, VALUE)
    step = nym.named_jit(
        lambda *operands: differentiate(lambda *operands: compute(*operands, context="mixed"), *operands),
        axis_resources={"pos": ("ring", "heads")},
    )
    with jax.set_mesh(nym.create_mesh((4, 2), ("ring", "heads"), axis_types=axis_types)):
        assert_same(step(QUERY, KEY, VALUE), expected)
        report = nym.planner.communication_report(step, QUERY, KEY, VALUE)
    mesh_axes = {item.kind: item.mesh_axes for item in report.collectives if item.kind != "all-gather"}
    assert mesh_axes == {"all-to-all": ("heads",), "collective-permute": ("ring",)}


def test_the_implementation_that_is_explained_is_that_of_a_device():
    query = nym.named(jax.ShapeDtypeStruct((8, 8192, 64), "float32"), ("heads", "pos", "dim"))
    key = query.rename({"pos": "key_pos"})
    with jax.sharding.use_abstract_mesh(nym.create_abstract_mesh((8,), ("context",))), nym.axis_mapping(pos="context"):
        choice = explain_attention("key_pos", "dim", query, key, key, context="all_to_all")
        ring = explain_attention("key_pos", "dim", query, key, key, context="ring")
    assert (choice.context, choice.implementation) == ("all_to_all", "blocked")
    assert choice.reason == "the scores of a head are many: 67,108,864, more than 4,194,304"
    reason = "a ring computes in blocks where it has no kernel"
    assert (ring.context, ring.implementation, ring.reason) == ("ring", "blocked", reason)
    assert "splash          on cpu it runs in interpret mode, which is slow" in str(ring)


def test_keys_of_another_sequence_and_an_axis_without_positions():
    key, value = draw(7, Pos.resize(16), Heads, Dim), draw(8, Pos.resize(16), Heads, Dim)  # of all of the batch
    expected = differentiate(lambda *operands: attend(*operands, implementation="plain"), QUERY, key, value)
    with jax.set_mesh(nym.create_mesh((2, 2, 2, 1), AXES)):
        for context in CONTEXTS:
            step = nym.named_jit(
                lambda *operands, context=context: differentiate(
                    lambda *operands: attend(*operands, context=context), *operands
                ),
                axis_resources=MAPPING,
            )
            assert_same(step(QUERY, key, value), expected)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_auto_gathers_where_nothing_else_is_right(axis_types: Any):
    mapping = MAPPING | {"heads": None, "dim": "model"}
    expected = attend(QUERY, KEY, VALUE, implementation="plain")
    with jax.set_mesh(nym.create_mesh((1, 2, 2, 2), AXES, axis_types=axis_types)):
        result = nym.named_jit(attend, axis_resources=mapping)(QUERY, KEY, VALUE)
        for context in ("ring", "all_to_all"):
            with pytest.raises(ValueError, match="axis 'dim', which is contracted, is sharded"):
                nym.named_jit(lambda *x, context=context: attend(*x, context=context), mapping)(QUERY, KEY, VALUE)
    assert_same(result, expected)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_auto_gathers_where_mesh_axes_are_manual(axis_types: Any):
    contexts: list[str | None] = []

    def differentiate_shards(*operands: Any) -> Any:
        contexts.append(explain_attention("key_pos", "dim", *rename_keys(*operands), QPos="pos").context)
        return jax.grad(lambda *operands: nym.sum(attend(*operands) ** 2).scalar(), (0, 1, 2))(*operands)

    mesh = nym.create_mesh((2, 2, 2, 1), AXES, axis_types=axis_types)
    with jax.set_mesh(mesh), nym.axis_mapping(MAPPING | {"heads": None}):
        step = nym.named_jit(nym.shard_map(differentiate_shards, axis_names={"data"}))
        results = step(*nym.shard((QUERY, KEY, VALUE)))
    expected = jax.grad(lambda *operands: nym.sum(attend(*operands) ** 2).scalar(), (0, 1, 2))(QUERY, KEY, VALUE)
    assert_same(results, expected)
    assert set(contexts) == {"all_gather"}


def test_every_context_runs_where_few_devices_share_positions():
    expected = attend(QUERY, KEY, VALUE)
    for sizes in ((1, 1), (2, 1), (1, 2)):
        mesh = nym.create_mesh(sizes, ("ring", "inner"), devices=jax.devices()[: np.prod(sizes)])
        for context in CONTEXTS:
            step = nym.named_jit(lambda *operands, context=context: attend(*operands, context=context))
            with jax.set_mesh(mesh), nym.axis_mapping({"pos": ("ring", "inner")}):
                assert_same(step(QUERY, KEY, VALUE), expected)


@pytest.mark.parametrize("context", CONTEXTS)
def test_contexts_are_mapped_over_another_axis(context: str):
    Layer = nym.Axis("layer", 2)
    queries = nym.stack(Layer, [QUERY, 2 * QUERY])
    step = nym.named_jit(
        lambda queries: nym.vmap(lambda query: attend(query, KEY, VALUE, context=context), Layer)(queries), MAPPING
    )
    with jax.set_mesh(nym.create_mesh((2, 2, 2, 1), AXES)):
        result = step(queries)
    assert_same([result["layer", 0], result["layer", 1]], [attend(QUERY, KEY, VALUE), attend(2 * QUERY, KEY, VALUE)])


def test_what_a_context_cannot_compute_is_an_error():
    def check(context: str, text: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=text):
            nym.named_jit(lambda *operands: attend(*operands, context=context, **options), MAPPING)(QUERY, KEY, VALUE)

    with jax.set_mesh(nym.create_mesh((1, 4, 2, 1), AXES)):
        check("all_to_all", r"a device 8 devices could divide \(batch: 2, heads: 4\); .* 'ring' and 'mixed' can")
        check("ring", "the mask has both axes of positions", mask=nym.ones((Pos, Pos.alias("key_pos"))) > 0)
        check("ring", "as 'splash' or 'blocked' do, not as 'plain'; 'all_gather' can", implementation="plain")
        text = "'splash' cannot compute the shards of a ring: "
        check("ring", f"{text}it needs a multiple of 128 positions on each of 8 shards", implementation="splash")
        check("round", "`context` must be 'auto', 'all_gather', 'ring', 'all_to_all' or 'mixed', not 'round'")
        check("ring", "are those of queries and keys", positions=nym.arange(Pos)["pos", :8])
    with pytest.raises(ValueError, match=r"size 32, which is not divisible into 2 chunks for each of 3 devices; .* 36"):
        zigzag_positions(Pos, 3)


def test_narrow_positions_do_not_wrap():
    mask = AttentionMask.causal() & AttentionMask.sliding_window(9)
    result = attend(QUERY, KEY, VALUE, mask=mask, positions=nym.arange(Pos).astype(jnp.uint8))
    assert_same(result, attend(QUERY, KEY, VALUE, mask=mask))

"""Attention whose positions are sharded: keys that are gathered, go around a ring, or are exchanged for heads."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.nn import AttentionMask, dot_product_attention, explain_attention, zigzag_positions

from ..refusals import refusal


Batch, Pos, Heads, Group, Dim = nym.make_axes(batch=2, pos=32, heads=4, group=2, dim=8)
KeyPos = Pos.alias("key_pos")
AXES = ("data", "ring", "inner", "model")
MAPPING = {"batch": "data", "pos": ("ring", "inner"), "heads": "model"}
RANDOM = np.random.default_rng(0)


def draw(*axes):
    values = RANDOM.normal(size=[axis.size for axis in axes]).astype(np.float32)
    return nym.named(jax.device_put(values), axes)


OPERANDS = {
    "query": draw(Batch, Pos, Heads, Group, Dim),
    "key": draw(Batch, Pos, Heads, Dim),
    "value": draw(Batch, Pos, Heads, Dim),
}
QUERY, KEY, VALUE = OPERANDS.values()
CAUSAL = AttentionMask.causal()
MASKS = {
    "none": lambda segments: None,
    "causal": lambda segments: CAUSAL,
    "window": lambda segments: CAUSAL & AttentionMask.sliding_window(segments.axis_size("pos") // 4 + 1),
    "prefix": lambda segments: CAUSAL | AttentionMask.prefix(5),
    "packed": lambda segments: CAUSAL & AttentionMask.segment_ids(segments),
    "without keys": lambda segments: AttentionMask.prefix(nym.named(jnp.array([0, 7]), Batch)),
    "inverted": lambda segments: ~AttentionMask.sliding_window(20) | AttentionMask.prefix(1),
}


def rename_keys(query, key, value):
    return query, *(x.rename({"pos": "key_pos"}) for x in (key, value))


def attend(query, key, value, **options):
    operands = rename_keys(query, key, value)
    return dot_product_attention("key_pos", "dim", *operands, QPos="pos", block_size=4, **options)


def differentiate(operands, factors, **options):
    """Returns the result and the gradients of a sum of it, in which each element has a factor."""

    def compute_loss(operands):
        result = attend(**operands, **options)
        return nym.sum(result * factors).scalar(), result

    (_, result), gradients = jax.value_and_grad(compute_loss, has_aux=True)(operands)
    return result, gradients


def attend_alone(operands, factors, **options):
    return attend(**operands, **options)


@functools.partial(jax.jit, static_argnames=("compute", "soft_cap"))
def compute_plainly(operands, factors, compute, **options):
    return compute(operands, factors, implementation="plain", **options)


def reorder(x, positions):
    """Returns an array with its queries and keys in the order of some positions."""
    for name in ("pos", "key_pos"):
        if positions is not None and x.has_axis(name):
            x = x[name, positions.rename({"pos": name})]
    return x


def assert_same(results, expected, positions=None):
    trees = (jax.tree.leaves(tree, is_leaf=nym.is_named_array) for tree in (results, expected))
    for result, target in zip(*trees, strict=True):
        target = reorder(target, positions).rearrange(result.names)
        np.testing.assert_allclose(np.asarray(result.array), np.asarray(target.array), rtol=1e-4, atol=1e-5)


def check_placement(
    sizes, operands, mask="none", mapping=MAPPING, axis_types="auto", is_zigzag=False, compute=differentiate, **options
):
    """Compares results and gradients on a mesh of these sizes with those of all scores at once on one device."""
    QPos, KPos = (operands[name].resolve_axis("pos") for name in ("query", "key"))
    factors = draw(*operands["query"].axes)
    segments = nym.named(np.sort(RANDOM.integers(0, 3, (Batch.size, QPos.size))), (Batch, QPos))
    positions = zigzag_positions(QPos, sizes[1] * sizes[2]) if is_zigzag else None
    scores = {"soft_cap": options["soft_cap"]} if "soft_cap" in options else {}
    whole_mask = MASKS[mask](segments)
    if whole_mask is not None:
        whole_mask = whole_mask.materialize(QPos, KPos.alias("key_pos"))
    expected = compute_plainly(operands, factors, compute, mask=whole_mask, **scores)

    @nym.named_jit(axis_resources=mapping)
    def step(operands, factors, segments):
        return compute(operands, factors, mask=MASKS[mask](segments), positions=positions, **options)

    operands = {name: reorder(x, positions) for name, x in operands.items()}
    with jax.set_mesh(nym.create_mesh(sizes, AXES, axis_types=axis_types)):
        assert_same(step(operands, reorder(factors, positions), reorder(segments, positions)), expected, positions)


@pytest.mark.parametrize(
    ("context", "mask", "axis_types", "is_zigzag"),
    [
        ("all_gather", "packed", "auto", False),
        ("ring", "packed", "explicit", True),
        ("ring", "without keys", "auto", False),
        ("all_to_all", "without keys", "explicit", True),
        ("mixed", "packed", "auto", False),
        *(pytest.param("ring", mask, "auto", True, marks=pytest.mark.thorough) for mask in MASKS),
    ],
)
def test_masks_are_right_under_every_placement(context, mask, axis_types, is_zigzag):
    options = {"axis_types": axis_types, "is_zigzag": is_zigzag, "context": context}
    check_placement((2, 2, 2, 1), OPERANDS, mask, **options)


@pytest.mark.parametrize(
    ("context", "mask", "axis_types", "is_zigzag"),
    [
        pytest.param("all_gather", "inverted", "explicit", True, marks=pytest.mark.thorough),
        ("ring", "window", "explicit", False),
        ("all_to_all", "prefix", "auto", True),
        pytest.param("mixed", "causal", "explicit", True, marks=pytest.mark.thorough),
    ],
)
def test_scores_are_capped_biased_and_scaled_as_on_one_device(context, mask, axis_types, is_zigzag):
    """Heads are sharded, too, and the bias leaves some queries no key."""
    is_shown = (nym.arange(KeyPos) > 2).broadcast_axis(Heads) & (nym.arange(Heads) > 0)
    bias = nym.where(is_shown, draw(Heads, KeyPos), -jnp.inf)
    operands = {**OPERANDS, "bias": bias, "sinks": draw(Heads), "scale": nym.exp(draw(Heads))}
    sizes = (1, 2, 2, 2) if context == "mixed" else (2, 2, 1, 2)
    mapping = {**MAPPING, "key_pos": MAPPING["pos"]}
    options = {"axis_types": axis_types, "is_zigzag": is_zigzag, "context": context, "soft_cap": 5.0}
    check_placement(sizes, operands, mask, mapping, **options)


@pytest.mark.parametrize(("implementation", "axis_types"), [("blocked", "explicit"), ("jax", "auto")])
def test_gathered_keys_may_share_the_mesh_axes_of_queries(implementation, axis_types):
    """The operands are not sharded yet, so that gradients are to be like them."""
    options = {"axis_types": axis_types, "implementation": implementation, "context": "all_gather"}
    check_placement((2, 2, 2, 1), OPERANDS, "causal", {**MAPPING, "key_pos": "ring"}, **options)


def test_keys_may_be_of_another_sequence():
    keys = {"key": draw(Batch, Pos.resize(16), Heads, Dim), "value": draw(Batch, Pos.resize(16), Heads, Dim)}
    check_placement((2, 2, 2, 1), OPERANDS | keys, context="ring")


@pytest.mark.parametrize(
    ("sizes", "context", "mask", "axis_types", "compute"),
    [
        pytest.param((2, 4, 1, 1), "ring", "window", "auto", attend_alone, marks=pytest.mark.thorough),
        ((1, 2, 2, 2), "mixed", "packed", "explicit", differentiate),
        pytest.param((1, 2, 2, 2), "all_gather", "window", "explicit", differentiate, marks=pytest.mark.thorough),
    ],
)
def test_shards_are_computed_by_the_kernel(sizes, context, mask, axis_types, compute):
    Long = Pos.resize(512)  # shards of 128 positions, the fewest that the kernel takes
    axes = Batch, Long, Heads, Dim
    operands = {"query": draw(*axes, Group), "key": draw(*axes), "value": draw(*axes), "sinks": draw(Heads, Group)}
    options = {"axis_types": axis_types, "context": context, "soft_cap": 20.0, "compute": compute}
    check_placement(sizes, operands, mask, is_zigzag=True, implementation="splash", **options)


def test_devices_drop_other_weights_and_gradients_see_the_same():
    options = {"context": "mixed", "dropout": 0.3, "dropout_key": jax.random.key(7)}
    factors = draw(*QUERY.axes)

    @nym.named_jit(axis_resources=MAPPING)
    def step(operands, factors):
        results = differentiate(operands, factors, mask=CAUSAL, **options)
        # Equal weights of values that are one at their own position and zero elsewhere.
        choices = nym.nn.one_hot(nym.arange(Pos), nym.Axis("choice", Pos.size)).broadcast_axis((Batch, Heads))
        weights = attend(0 * QUERY, KEY, choices, **options)
        return results, weights.rename({"choice": "key_pos"}) * Pos.size

    @jax.jit
    def differentiate_with(operands, factors, kept):
        """Computes attention whose weights are multiplied by what was kept."""

        def compute_loss(operands):
            query, key, value = rename_keys(**operands)
            scores = nym.dot(query, key, axis="dim") / np.sqrt(Dim.size)
            weights = nym.nn.softmax(nym.where(CAUSAL.materialize(Pos, KeyPos), scores, -jnp.inf), "key_pos")
            result = nym.dot(weights * kept, value, axis="key_pos")
            return nym.sum(result * factors).scalar(), result

        gradients, result = jax.grad(compute_loss, has_aux=True)(operands)
        return result, gradients

    with jax.set_mesh(nym.create_mesh((2, 2, 2, 1), AXES, axis_types="explicit")):
        results, kept = jax.device_get(step(OPERANDS, factors))
    assert_same(results, differentiate_with(OPERANDS, factors, kept))
    is_kept = np.asarray(kept.rearrange(("batch", "heads", "group", "pos", "key_pos")).array) > 0
    assert abs(is_kept.mean() - 0.7) < 0.02
    np.testing.assert_allclose(kept.array.max(), 1 / 0.7, rtol=1e-5)
    blocks = is_kept.reshape(2, 4, 2, 4, 8, 4, 8).swapaxes(4, 5).reshape(-1, 64)
    assert len(np.unique(blocks, axis=0)) == len(blocks)


def test_devices_that_share_positions_alone_drop_what_one_does():
    dropout = {"dropout": 0.3, "dropout_key": jax.random.PRNGKey(7)}
    options = {"mask": CAUSAL, "positions": zigzag_positions(Pos, 8), **dropout}
    expected = jax.jit(functools.partial(attend, **options))(QUERY, KEY, VALUE)
    step = nym.named_jit(functools.partial(attend, context="ring", **options), MAPPING)
    with jax.set_mesh(nym.create_mesh((1, 4, 2, 1), AXES)):
        assert_same(step(QUERY, KEY, VALUE), expected)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_nothing_is_sent_but_what_the_context_says(axis_types):
    def report(context):
        def compute_loss(*operands):
            return nym.sum(attend(*operands, context=context) ** 2).scalar()

        gradient = jax.grad(compute_loss, (0, 1, 2))
        step = nym.named_jit(gradient, axis_resources=MAPPING, in_axis_resources=MAPPING)
        communication = nym.planner.communication_report(step, QUERY, KEY, VALUE)
        sizes = {kind: size for kind, size in communication.count_bytes().items() if size > 64}
        return sizes, {item.kind: item.mesh_axes for item in communication.collectives if item.kind in sizes}

    shard = KEY.array.size * 4 // 8  # the bytes of the keys of a device
    with jax.set_mesh(nym.create_mesh((2, 2, 2, 1), AXES, axis_types=axis_types)):
        if axis_types == "auto":
            # Keys and values three times forward and backward, and their gradients four times. XLA for CPUs may keep
            # the keys that come first for the backward pass.
            assert report("ring")[0] in [{"collective-permute": (3 * 2 + n * 2 + 4 * 2) * shard} for n in (2, 3)]
            # Keys, values, queries and results, of which queries have two groups; all again backward.
            assert report("all_to_all")[0] == {"all-to-all": 2 * (2 + 2 * 2) * shard}
            return
        # Two groups of two: the same exchange, and keys and values once, or once each way, and their gradients twice.
        sizes, mesh_axes = report("mixed")
        assert sizes.pop("collective-permute") in [(n * 2 + 2 * 2) * shard for n in (1, 2)]
        assert sizes == {"all-to-all": 2 * (2 + 2 * 2) * shard}
        assert mesh_axes == {"all-to-all": ("inner",), "collective-permute": ("ring",)}


def explain(size, heads=5, groups=1, **options):
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
    def explain_mapped(mesh, *args, **options):
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


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_auto_gathers_where_a_contracted_axis_is_sharded(axis_types):
    mapping = MAPPING | {"heads": None, "dim": "model"}
    with jax.set_mesh(nym.create_mesh((1, 2, 2, 2), AXES, axis_types=axis_types)):
        result = nym.named_jit(attend, axis_resources=mapping)(QUERY, KEY, VALUE)
        for context in ("ring", "all_to_all"):
            with refusal("axis 'dim', which is contracted, is sharded"):
                nym.named_jit(functools.partial(attend, context=context), mapping)(QUERY, KEY, VALUE)
    assert_same(result, attend(QUERY, KEY, VALUE, implementation="plain"))


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_auto_gathers_where_mesh_axes_are_manual(axis_types):
    contexts = []

    def differentiate_shards(*operands):
        contexts.append(explain_attention("key_pos", "dim", *rename_keys(*operands), QPos="pos").context)
        return jax.grad(lambda *operands: nym.sum(attend(*operands) ** 2).scalar(), (0, 1, 2))(*operands)

    expected = jax.jit(differentiate_shards)(QUERY, KEY, VALUE)
    mesh = nym.create_mesh((2, 2, 2, 1), AXES, axis_types=axis_types)
    with jax.set_mesh(mesh), nym.axis_mapping(MAPPING | {"heads": None}):
        step = nym.named_jit(nym.shard_map(differentiate_shards, axis_names={"data"}))
        assert_same(step(*nym.shard((QUERY, KEY, VALUE))), expected)
    assert set(contexts) == {None, "all_gather"}


@pytest.mark.parametrize(("sizes", "context"), [((1, 1), "ring"), ((2, 1), "mixed"), ((1, 2), "mixed")])
def test_every_context_runs_where_few_devices_share_positions(sizes, context):
    mesh = nym.create_mesh(sizes, ("ring", "inner"), devices=jax.devices()[: np.prod(sizes)])
    with jax.set_mesh(mesh), nym.axis_mapping({"pos": ("ring", "inner")}):
        result = nym.named_jit(functools.partial(attend, context=context))(QUERY, KEY, VALUE)
    assert_same(result, attend(QUERY, KEY, VALUE))


def test_contexts_are_mapped_over_another_axis():
    queries = nym.stack("layer", [QUERY, 2 * QUERY])
    attend_to_keys = nym.vmap(lambda query: attend(query, KEY, VALUE, context="mixed"), "layer")
    with jax.set_mesh(nym.create_mesh((2, 2, 2, 1), AXES)):
        result = nym.named_jit(attend_to_keys, MAPPING)(queries)
    assert_same([result["layer", 0], result["layer", 1]], [attend(QUERY, KEY, VALUE), attend(2 * QUERY, KEY, VALUE)])


def test_what_a_context_cannot_compute_is_an_error():
    def check(context, text, **options):
        with pytest.raises(ValueError, match=text):
            nym.named_jit(functools.partial(attend, context=context, **options), MAPPING)(QUERY, KEY, VALUE)

    with jax.set_mesh(nym.create_mesh((1, 4, 2, 1), AXES)):
        check("all_to_all", r"a device 8 devices could divide \(batch: 2, heads: 4\); .* 'ring' and 'mixed' can")
        check("ring", "the mask has both axes of positions", mask=nym.ones((Pos, KeyPos)) > 0)
        check("ring", "as 'splash' or 'blocked' do, not as 'plain'; 'all_gather' can", implementation="plain")
        text = "'splash' cannot compute the shards of a ring: it needs a multiple of 128 positions on each of 8 shards"
        check("ring", text, implementation="splash")
        check("round", "`context` must be 'auto', 'all_gather', 'ring', 'all_to_all' or 'mixed', not 'round'")
        check("ring", "are those of queries and keys", positions=nym.arange(Pos)["pos", :8])
    with refusal("size 32, which is not divisible into 2 chunks for each of 3 devices; the next size that is so is 36"):
        zigzag_positions(Pos, 3)


def test_narrow_positions_do_not_wrap():
    mask = CAUSAL & AttentionMask.sliding_window(9)
    result = attend(QUERY, KEY, VALUE, mask=mask, positions=nym.arange(Pos).astype(jnp.uint8))
    assert_same(result, attend(QUERY, KEY, VALUE, mask=mask))

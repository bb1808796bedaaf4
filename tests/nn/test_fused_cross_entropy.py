"""The fused cross entropy: equal to the plain one in value and gradient, sharded or not, in two blocks of memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


Batch, Pos, Embed, Vocab = nym.make_axes(batch=8, pos=3, embed=4, vocab=22)
ALL_OPTIONS = {"label_smoothing": 0.1, "z_loss": 1e-2, "logit_soft_cap": 2.0}


def plain_loss(hidden, head, targets, embed=Embed, reduction=None, logit_soft_cap=None, **options):
    logits = nym.dot(hidden, nym.auto_sharded(head), axis=embed)
    if logit_soft_cap is not None:
        logits = logit_soft_cap * nym.tanh(logits / logit_soft_cap)
    return nym.nn.cross_entropy_loss(logits, Vocab, targets, reduction, **options)


def fused_loss(hidden, head, targets, embed=Embed, reduction=None, block_size=4, **options):
    return nym.nn.fused_cross_entropy(hidden, head, targets, embed, Vocab, reduction, block_size=block_size, **options)


@pytest.fixture
def ids(draw):
    """Labels, one of which is below and one above the vocabulary."""
    labels = draw.random.integers(0, Vocab.size, (Pos.size, Batch.size))
    labels[0, 0], labels[1, 1] = -1, Vocab.size
    return nym.named(jax.device_put(labels), (Pos, Batch))


def test_values_and_gradients_are_those_of_the_logits(check, draw, ids):
    hidden = draw(Batch, Pos, Embed)
    check(
        lambda head, hidden, ids: fused_loss(hidden, head, ids, **ALL_OPTIONS),
        lambda head, hidden, ids: plain_loss(hidden, head, ids, **ALL_OPTIONS),
        draw(Vocab, Embed),
        hidden,
        ids,
    )


def test_low_precision_is_summed_in_float32(check, draw, ids):
    head, hidden = draw(Embed, Vocab).astype(jnp.bfloat16), draw(Batch, Pos, Embed).astype(jnp.bfloat16)
    losses = fused_loss(hidden, head, ids)
    exact = plain_loss(hidden.astype(jnp.float32), head.astype(jnp.float32), ids)
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(losses.array, exact.array, rtol=1e-5, atol=1e-5)
    check(
        lambda head, hidden, ids: fused_loss(hidden, head, ids),
        lambda head, hidden, ids: plain_loss(hidden, head, ids),
        head,
        hidden,
        ids,
        tolerance=0.1,
    )


def test_weights_and_masks_reduce_as_in_the_plain_loss(draw, ids):
    hidden, head = draw(Batch, Pos, Embed), draw(Vocab, Embed)
    seen, weight = nym.arange(Batch) > 2, nym.exp(draw(Pos, Batch))
    options = {"where": seen, "weight": weight, "z_loss": 0.1}
    for reduction, axis in ((nym.mean, None), (nym.sum, "batch"), (None, None)):
        result = fused_loss(hidden, head, ids, Embed, reduction, reduction_axis=axis, **options)
        expected = plain_loss(hidden, head, ids, Embed, reduction, reduction_axis=axis, **options)
        assert result.shape == expected.shape
        np.testing.assert_allclose(result.array, expected.array, rtol=1e-5)


def test_arrays_have_their_axes_in_any_order(draw):
    Heads, Dim = nym.make_axes(heads=2, head_dim=3)
    cases = [
        (draw(Dim, Batch, Heads, Pos), draw(Heads, Vocab, Dim), nym.arange(Pos)),
        (draw(Heads, Dim), draw(Heads, Dim, Vocab), nym.named(5, ())),
    ]
    for case in cases:

        def gradients(fn, case=case):
            loss = lambda hidden, head: fn(hidden, head, case[2], (Heads, Dim), nym.sum).scalar()  # noqa: E731
            return jax.jit(jax.value_and_grad(loss, (0, 1)))(*case[:2])

        pairs = zip(*(jax.tree.leaves(gradients(fn)) for fn in (fused_loss, plain_loss)), strict=True)
        for result, expected in pairs:
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_what_is_sharded_stays_in_place_under_any_mapping(mesh, draw, ids):
    hidden, head = draw(Batch, Pos, Embed), draw(Vocab, Embed)

    def step(fn):
        loss = lambda hidden, head: fn(hidden, head, ids, Embed, nym.mean).scalar()  # noqa: E731
        return jax.value_and_grad(loss, (0, 1))

    with jax.set_mesh(None):
        expected = jax.jit(step(plain_loss))(hidden, head)
    for mapping in ({"batch": "data", "embed": "model"}, {"batch": ("data", "model")}, {"vocab": "model"}):
        with nym.axis_mapping(mapping):
            args = nym.shard((hidden, head))
            compiled = nym.named_jit(step(fused_loss)).lower(*args).compile()
        assert "all-gather" not in compiled.as_text()
        for actual, target in zip(*map(jax.tree.leaves, (compiled(*args), expected)), strict=True):
            np.testing.assert_allclose(np.asarray(actual), np.asarray(target), rtol=1e-5, atol=1e-6)


def test_without_a_mapping_explicit_shardings_decide(explicit_mesh, draw, ids):
    hidden, head = draw(Batch, Pos, Embed), draw(Vocab, Embed)
    expected = fused_loss(hidden, head, ids)
    with jax.set_mesh(explicit_mesh):
        hidden, head = nym.shard(hidden, {"batch": "data"}), nym.shard(head, {"vocab": "model"})
        result = fused_loss(hidden, head, ids)
        assert result.sharding.spec == jax.P("data", None)
        np.testing.assert_allclose(np.asarray(result.array), expected.array, rtol=1e-5)


def test_gradients_outside_of_the_mapping_are_those_inside(mesh, draw, ids):
    hidden, head = draw(Batch, Pos, Embed), draw(Vocab, Embed)

    def loss(hidden):
        with nym.axis_mapping({"batch": "data", "vocab": "model"}):
            return fused_loss(hidden, nym.auto_sharded(head), ids, Embed, nym.mean).scalar()

    result = jax.grad(loss)(hidden)
    with jax.set_mesh(None):
        expected = jax.jit(jax.grad(lambda hidden: plain_loss(hidden, head, ids, Embed, nym.mean).scalar()))(hidden)
    np.testing.assert_allclose(np.asarray(result.array), expected.array, rtol=1e-5, atol=1e-7)


def test_a_head_for_each_group_is_mapped_over(draw, ids):
    Group = nym.Axis("group", 2)
    hidden, heads = draw(Batch, Pos, Embed), draw(Group, Vocab, Embed)
    result = nym.vmap(lambda head: fused_loss(hidden, head, ids), Group)(heads)
    for group in range(2):
        expected = fused_loss(hidden, heads["group", group], ids)
        np.testing.assert_allclose(result["group", group].array, expected.array, rtol=1e-5)


def measure_temporaries(loss, vocab, embed, mapping=None):
    """Bytes of temporary arrays on each device, of a loss of 1,024 tokens and its gradients."""
    shapes = jax.eval_shape(
        lambda: (
            nym.zeros((Batch.resize(32), Pos.resize(32), embed)),
            nym.zeros((vocab, embed)),
            nym.zeros((Batch.resize(32), Pos.resize(32)), int),
        )
    )

    def step(hidden, head, targets):
        return jax.value_and_grad(lambda *args: loss(*args, targets).scalar(), (0, 1))(hidden, head)

    shapes = shapes if mapping is None else nym.shard(shapes, mapping)
    return nym.named_jit(step, mapping).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def test_memory_is_two_blocks_for_any_vocabulary():
    embed, block = nym.Axis("embed", 8), 1024 * 512 * 4
    fused = lambda vocab: lambda *args: nym.nn.fused_cross_entropy(*args, "embed", vocab, block_size=512)  # noqa: E731
    plain = lambda vocab: lambda x, w, ids: nym.nn.cross_entropy_loss(nym.dot(x, w, axis=embed), vocab, ids)  # noqa: E731
    sizes = [nym.Axis("vocab", size) for size in (1024, 4096, 4100)]
    result = [measure_temporaries(fused(vocab), vocab, embed) for vocab in sizes]
    assert max(result) < 2.1 * block and result[1] == result[0]
    assert measure_temporaries(plain(sizes[1]), sizes[1], embed) > 8 * 2 * block


def test_memory_is_two_blocks_of_a_sharded_vocabulary(mesh):
    embed, vocab, block = nym.Axis("embed", 8), nym.Axis("vocab", 4096), 1024 // 4 * 512 * 4
    loss = lambda *args: nym.nn.fused_cross_entropy(*args, embed, vocab, block_size=512)  # noqa: E731
    result = measure_temporaries(loss, vocab, embed, {"batch": "data", "vocab": "model"})
    of_head = 2 * vocab.size // 2 * embed.size * 4  # its gradient, before and after it is summed over the devices
    assert result < 2.1 * block + of_head


def test_errors_name_the_array_and_what_does_not_fit():
    hidden, head, ids = nym.zeros((Batch, Embed)), nym.zeros((Vocab, Embed)), nym.zeros(Batch, int)
    with refusal("fused_cross_entropy (hidden): no axis 'embde' in (batch: 8, embed: 4); did you mean 'embed'?"):
        fused_loss(hidden, head, ids, "embde")
    with refusal("fused_cross_entropy (hidden): the input (batch: 8, vocab: 22) has the output axis 'vocab' already"):
        fused_loss(nym.zeros((Batch, Vocab)), head, ids, ())
    with refusal("fused_cross_entropy (head): no axis 'vocab' in (embed: 4)"):
        fused_loss(hidden, nym.zeros(Embed), ids)
    with refusal("axis 'embed' has size 4 and size 5 in (batch: 8, embed: 4) and (vocab: 22, embed: 5)"):
        fused_loss(hidden, nym.zeros((Vocab, Embed.resize(5))), ids, "embed")
    with refusal("the head (group: 2, vocab: 22, embed: 4) has axes (group) besides (embed, vocab); for several"):
        fused_loss(hidden, nym.zeros((nym.Axis("group", 2), Vocab, Embed)), ids)
    with refusal("the targets (pos: 3) have axes (pos), which the hidden (batch: 8, embed: 4) lack"):
        fused_loss(hidden, head, nym.zeros(Pos, int))
    with refusal("the targets (embed: 4) must not have axis 'embed'"):
        fused_loss(hidden, head, nym.zeros(Embed, int))
    with refusal("targets of float32 are not integer labels; `cross_entropy_loss` takes probabilities"):
        fused_loss(hidden, head, nym.zeros(Batch))
    with refusal("`block_size` must be at least 1, not 0"):
        fused_loss(hidden, head, ids, block_size=0)
    with refusal("`label_smoothing` must be at least 0 and at most 1, not 2"):
        fused_loss(hidden, head, ids, label_smoothing=2)
    with refusal("fused_cross_entropy (head): the input must be a named array", TypeError):
        fused_loss(hidden, head.array, ids)
    conflict = {"batch": "data", "vocab": "data"}
    with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))), nym.axis_mapping(conflict):
        head = nym.zeros((Vocab.resize(24), Embed))
        with refusal("axes 'vocab' and 'batch' of (vocab: 24, batch: 8) are both mapped to mesh axis 'data'"):
            nym.nn.fused_cross_entropy(hidden, head, ids, "embed", "vocab")

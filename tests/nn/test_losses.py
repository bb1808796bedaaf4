"""Losses: parity with Optax, what is left out and reduced, sharded or not, and the fused one in little memory."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal
from .conftest import assert_leaves_close


Batch, Pos, Embed, Vocab = nym.make_axes(batch=8, pos=3, embed=4, vocab=22)
Label = nym.Axis("label", 6)
cross_entropy, fused = nym.nn.cross_entropy_loss, nym.nn.fused_cross_entropy
binary_loss, squared_error, reduce = nym.nn.binary_cross_entropy_loss, nym.nn.mean_squared_error, nym.nn.reduce_loss


@pytest.fixture
def labels(draw):
    return nym.named(jax.device_put(draw.random.integers(0, 6, (3, 8))), (Pos, Batch))


def by_optax(logits, targets):
    logits = logits.rearrange((Batch, Pos, Label)).array.astype(jnp.float32)
    if "label" in targets.names:
        losses = optax.softmax_cross_entropy(logits, targets.rearrange((Batch, Pos, Label)).array)
    else:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets.rearrange((Batch, Pos)).array)
    return nym.named(losses, (Batch, Pos))


def test_with_label_numbers_it_is_that_of_optax(check, draw, labels):
    seen = nym.arange(Batch) > 2

    def reference(_, logits, labels):
        losses, where = by_optax(logits, labels).array, np.repeat(np.arange(8)[:, None] > 2, 3, 1)
        return nym.named(losses.mean(where=where), ())

    logits = 3 * draw(Batch, Label, Pos)
    check(lambda _, logits, labels: cross_entropy(logits, Label, labels, where=seen), reference, None, logits, labels)


def test_with_probabilities_it_is_that_of_optax(check, draw):
    probabilities = nym.softmax(draw(Pos, Label, Batch), "label")
    losses = lambda _, logits, targets: cross_entropy(logits, "label", targets, None)  # noqa: E731
    check(losses, lambda _, *operands: by_optax(*operands), None, draw(Batch, Pos, Label), probabilities)


def test_options_and_reductions_are_those_of_their_formulas(draw, labels):
    logits, weight, seen = draw(Batch, Pos, Label), nym.exp(draw(Pos, Batch)), nym.arange(Batch) > 2
    one_hot = jax.device_put(np.eye(6, dtype=np.float32)[np.asarray(labels.array).T])

    @jax.jit
    def compute(logits, labels, weight):
        loss = lambda *args, **options: cross_entropy(logits, "label", *args, **options)  # noqa: E731
        return {
            "mean": loss(labels),
            "sum": loss(labels, nym.sum),
            "none": loss(labels, reduction=None),
            "max": loss(labels, nym.max, reduction_axis="pos"),
            "seen sum": loss(labels, nym.sum, seen, ("batch", Pos)),
            "seen": loss(labels, None, seen),
            "weighted": loss(labels, None, weight=weight, z_loss=0.1),
            "weighted mean": loss(labels, weight=weight, z_loss=0.1),
            "smooth": loss(labels, None, label_smoothing=0.2),
            "smooth one-hot": loss(nym.named(one_hot, (Batch, Pos, Label)), None, label_smoothing=0.2),
            "uniform": loss(nym.full(Label, 1 / 6)),
            "out of range": loss(nym.full(Batch, -1), None),
        }

    scores, weights, is_seen = np.asarray(logits.array), np.asarray(weight.array).T, np.arange(8)[:, None] > 2
    normalizers = np.log(np.exp(scores).sum(-1))
    losses = normalizers - (scores * one_hot).sum(-1)
    weighted = (losses + 0.1 * normalizers**2) * weights
    smooth = normalizers - (scores * (0.8 * np.asarray(one_hot) + 0.2 / 6)).sum(-1)
    expected = {
        "mean": losses.mean(),
        "sum": losses.sum(),
        "none": losses,
        "max": losses.max(1),
        "seen sum": losses.sum(where=is_seen),
        "seen": np.where(is_seen, losses, 0),
        "weighted": weighted,
        "weighted mean": weighted.sum() / weights.sum(),
        "smooth": smooth,
        "smooth one-hot": smooth,
        "uniform": normalizers.mean() - scores.mean(),
        "out of range": normalizers,  # as a score of 0
    }
    results = compute(logits, labels, weight)
    assert results["max"].names == ("batch",) and results["none"].names == ("batch", "pos")
    for name, result in results.items():
        np.testing.assert_allclose(result.array, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_infinite_scores_may_be_left_out_or_have_labels_of_probability_0(draw):
    logits, probabilities = draw(Batch, Label.resize(5)), nym.softmax(draw(Batch, Label.resize(5)), "label")
    seen = nym.arange(Batch) > 2

    @jax.jit
    def compute(logits, probabilities):
        hidden, targets = (
            nym.pad(logits, {"label": (0, 1)}, constant_values=-np.inf),
            nym.pad(probabilities, {"label": (0, 1)}),
        )
        differentiate = jax.value_and_grad(lambda x, targets: cross_entropy(x, "label", targets).scalar())
        partly = nym.where(seen, hidden, -np.inf)
        left_out = [cross_entropy(partly, "label", targets, reduction, seen).sum() for reduction in (None, nym.sum)]
        wrong = cross_entropy(hidden, "label", nym.roll(targets, 1, "label"))
        return differentiate(hidden, targets), differentiate(logits, probabilities), left_out, wrong

    (result, gradient), (expected, expected_gradient), left_out, wrong = compute(logits, probabilities)
    assert allclose(result, expected, rtol=1e-6) and wrong.item() == np.inf
    assert allclose(gradient.array, np.pad(expected_gradient.array, ((0, 0), (0, 1))), atol=1e-6)
    losses = cross_entropy(logits["batch", 3:], "label", probabilities["batch", 3:], nym.sum).item()
    assert [x.item() for x in left_out] == pytest.approx([losses, losses])


def test_low_precision_is_widened_and_its_gradient_is_not(draw, labels):
    @jax.jit
    def compute(logits):
        loss = jax.value_and_grad(lambda logits: cross_entropy(logits, "label", labels).scalar())
        results = loss(logits), nym.nn.cross_entropy_loss_and_log_normalizers(logits, Label, labels)
        return *results, by_optax(logits, labels), jax.nn.logsumexp(logits.array.astype(jnp.float32), axis=-1)

    (result, gradient), (losses, normalizers), expected, expected_normalizers = compute(
        draw(Batch, Pos, Label).astype(jnp.bfloat16)
    )
    assert result.dtype == jnp.float32 and gradient.dtype == jnp.bfloat16
    assert allclose(result, expected.array.mean(), rtol=1e-6)
    assert allclose(losses.array, expected.array, atol=1e-6)
    assert normalizers.dtype == jnp.float32 and normalizers.names == ("batch", "pos")
    assert allclose(normalizers.array, expected_normalizers, atol=1e-6)


def test_a_divided_label_axis_is_never_gathered(mesh, draw, labels):
    mapping = {"batch": "data", "label": "model"}
    scores = draw(Batch, Pos, Label)
    logits = nym.shard(scores, mapping)
    step = nym.named_jit(jax.value_and_grad(lambda logits: cross_entropy(logits, "label", labels).scalar()), mapping)
    program = step.lower(logits).compile().as_text()
    assert "all-reduce" in program
    assert "all-gather" not in program and " gather(" not in program
    result, gradient = step(logits)
    with jax.set_mesh(None):
        assert allclose(jax.device_get(result), by_optax(scores, labels).array.mean(), rtol=1e-5)
    assert tuple(gradient.sharding.spec) == ("data", None, "model")


def test_errors_of_the_cross_entropy():
    logits, labels = nym.zeros((Batch, Label)), nym.zeros(Batch, int)
    with refusal("cross_entropy_loss: no axis 'lable' in (batch: 8, label: 6); did you mean 'label'?"):
        cross_entropy(logits, "lable", labels)
    with refusal("targets of float32 without axis 'label' are neither integer labels nor probabilities"):
        cross_entropy(logits, "label", nym.zeros(Batch))
    with refusal("targets (batch: 8, pos: 3) have axes (pos), which the logits (batch: 8, label: 6) lack"):
        cross_entropy(logits, "label", nym.zeros((Batch, Pos), int))
    with refusal("axis 'batch' has size 8 and size 4 in (batch: 8, label: 6) and (batch: 4)"):
        cross_entropy(logits, "label", nym.zeros({"batch": 4}, int))
    with refusal("cross_entropy_loss: the input must be a named array", TypeError):
        cross_entropy(logits.array, "label", labels)
    with refusal("cross_entropy_loss: `label_smoothing` must be at least 0 and at most 1, not -0.1"):
        cross_entropy(logits, "label", labels, label_smoothing=-0.1)


ALL_OPTIONS = {"label_smoothing": 0.1, "z_loss": 1e-2, "logit_soft_cap": 2.0}


def plain_loss(hidden, head, targets, embed=Embed, reduction=None, logit_soft_cap=None, **options):
    logits = nym.dot(hidden, nym.auto_sharded(head), axis=embed)
    if logit_soft_cap is not None:
        logits = logit_soft_cap * nym.tanh(logits / logit_soft_cap)
    return cross_entropy(logits, Vocab, targets, reduction, **options)


def fused_loss(hidden, head, targets, embed=Embed, reduction=None, block_size=4, **options):
    return fused(hidden, head, targets, embed, Vocab, reduction, block_size=block_size, **options)


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


def test_low_precision_is_summed_in_float32(draw, ids):
    low = draw(Embed, Vocab).astype(jnp.bfloat16), draw(Batch, Pos, Embed).astype(jnp.bfloat16)

    def compute(loss, head, hidden):
        losses = lambda head, hidden: loss(hidden, head, ids)  # noqa: E731
        gradients = jax.grad(lambda *args: losses(*args).sum().scalar(), (0, 1))(head, hidden)
        return gradients, losses(head, hidden)

    gradients, losses = jax.jit(lambda *low: compute(fused_loss, *low))(*low)
    exact_gradients, exact = jax.jit(lambda *low: compute(plain_loss, *(x.astype(jnp.float32) for x in low)))(*low)
    assert losses.dtype == jnp.float32
    np.testing.assert_allclose(losses.array, exact.array, rtol=1e-5, atol=1e-5)
    for gradient, target in zip(gradients, exact_gradients, strict=True):
        assert gradient.dtype == jnp.bfloat16
        np.testing.assert_allclose(gradient.array.astype(np.float32), target.array, rtol=0.1, atol=0.1)


def test_fused_losses_are_weighted_reduced_and_mapped_as_plain_ones(draw, ids):
    Group = nym.Axis("group", 2)
    hidden, heads, weight = draw(Batch, Pos, Embed), draw(Group, Vocab, Embed), nym.exp(draw(Pos, Batch))
    options = {"where": nym.arange(Batch) > 2, "weight": weight, "z_loss": 0.1}

    @jax.jit
    def compute(hidden, heads):
        losses = []
        for loss in (fused_loss, plain_loss):
            for reduction, axis in ((nym.mean, None), (nym.sum, "batch"), (None, None)):
                head = heads["group", 0]
                losses.append(loss(hidden, head, ids, Embed, reduction, reduction_axis=axis, **options))
            losses.append(nym.vmap(lambda head, loss=loss: loss(hidden, head, ids), Group)(heads))
        return losses[:4], losses[4:]

    assert_leaves_close(*compute(hidden, heads))


def test_arrays_have_their_axes_in_any_order(draw):
    Heads, Dim = nym.make_axes(heads=2, head_dim=3)
    several = draw(Dim, Batch, Heads, Pos), draw(Heads, Vocab, Dim)
    single = draw(Heads, Dim), draw(Heads, Dim, Vocab)

    def compute(fn):
        def loss(several, single):
            losses = fn(*several, nym.arange(Pos), (Heads, Dim), nym.sum), fn(*single, nym.named(5, ()), (Heads, Dim))
            return sum(losses).scalar()

        return jax.value_and_grad(loss, (0, 1))(several, single)

    results, expected = jax.jit(lambda: (compute(fused_loss), compute(plain_loss)))()
    assert_leaves_close(results, expected)


@pytest.mark.parametrize(
    ("axis_types", "mapping"),
    [
        ("auto", {"batch": "data", "embed": "model"}),
        ("explicit", {"batch": ("data", "model")}),
        ("explicit", {"vocab": "model"}),
    ],
)
def test_what_is_sharded_stays_in_place_under_any_mapping(request, draw, ids, axis_types, mapping):
    hidden, head = draw(Batch, Pos, Embed), draw(Vocab, Embed)

    def step(fn):
        loss = lambda hidden, head: fn(hidden, head, ids, Embed, nym.mean).scalar()  # noqa: E731
        return jax.value_and_grad(loss, (0, 1))

    expected = jax.jit(step(plain_loss))(hidden, head)
    mesh = request.getfixturevalue(f"{axis_types}_mesh")
    with jax.set_mesh(mesh), nym.axis_mapping(mapping):
        args = nym.shard((hidden, head))
        compiled = nym.named_jit(step(fused_loss)).lower(*args).compile()
        assert "all-gather" not in compiled.as_text()
        assert_leaves_close(compiled(*args), expected)


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


@pytest.mark.parametrize("vocab_size", [4096, 4100])
def test_memory_is_two_blocks_of_a_sharded_vocabulary(explicit_mesh, vocab_size):
    """Bytes of temporary arrays on each device, of a loss of 1,024 tokens and its gradients."""
    embed, vocab, block = nym.Axis("embed", 8), nym.Axis("vocab", vocab_size), 1024 // 4 * 512 * 4
    mapping, tokens = {"batch": "data", "vocab": "model"}, (Batch.resize(32), Pos.resize(32))

    def step(hidden, head, targets):
        loss = lambda *args: fused(*args, targets, embed, vocab, block_size=512).scalar()  # noqa: E731
        return jax.value_and_grad(loss, (0, 1))(hidden, head)

    shapes = jax.eval_shape(lambda: (nym.zeros((*tokens, embed)), nym.zeros((vocab, embed)), nym.zeros(tokens, int)))
    with jax.set_mesh(explicit_mesh):
        compiled = nym.named_jit(step, mapping).lower(*nym.shard(shapes, mapping)).compile()
    of_head = 2 * vocab.size // 2 * embed.size * 4  # its gradient, before and after it is summed over the devices
    assert compiled.memory_analysis().temp_size_in_bytes < 2.1 * block + of_head


def test_fused_losses_keep_the_type_of_their_inputs_with_64_bits(draw, ids):
    hidden, head = draw(Batch, Pos, Embed), draw(Vocab, Embed)
    options = {"label_smoothing": 0.1, "logit_soft_cap": 30.0}

    def step(loss, hidden, head):
        return jax.value_and_grad(lambda *args: loss(*args, ids, Embed, nym.mean, **options).scalar(), (0, 1))(
            hidden, head
        )

    with jax.enable_x64(True):
        program = str(jax.make_jaxpr(lambda *args: step(fused_loss, *args))(hidden, head))
        assert re.findall(r"f32\[4,8,3\]", program) and not re.findall(r"f64\[4,8,3\]", program)
        wide = hidden.astype(float), head.astype(float)
        result, expected = jax.jit(lambda *args: [step(loss, *args) for loss in (fused_loss, plain_loss)])(*wide)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(result)} == {"float64"}
        assert_leaves_close(result, expected, 1e-10)


def test_errors_of_the_fused_loss():
    hidden, head, ids = nym.zeros((Batch, Embed)), nym.zeros((Vocab, Embed)), nym.zeros(Batch, int)
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
    conflict = {"batch": "data", "vocab": "data"}
    with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))), nym.axis_mapping(conflict):
        head = nym.zeros((Vocab.resize(24), Embed))
        with refusal("axes 'vocab' and 'batch' of (vocab: 24, batch: 8) are both mapped to mesh axis 'data'"):
            fused(hidden, head, ids, "embed", "vocab")


@pytest.mark.parametrize(
    ("loss", "reference", "dtype"),
    [
        (binary_loss, optax.sigmoid_binary_cross_entropy, jnp.bfloat16),
        (squared_error, optax.squared_error, jnp.float32),
    ],
)
def test_elementwise_losses_are_those_of_optax(check, draw, loss, reference, dtype):
    predictions, targets = (20 * draw(Batch, Pos)).astype(dtype), nym.sin(draw(Pos, Batch)) ** 2

    def by_position(_, predictions, targets):
        losses = reference(predictions.array.astype(jnp.float32), targets.rearrange(predictions.names).array)
        return nym.named(losses, predictions.names)

    check(lambda _, *operands: loss(*operands, None), by_position, None, predictions, targets)


def test_the_binary_loss_is_exact_for_scores_of_zero_and_for_large_and_infinite_ones():
    targets = nym.named([0.0, 0.3, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0], "i")
    logits = nym.named([0.0, 0.0, 0.0, 50.0, -50.0, -np.inf, np.inf, -np.inf, np.inf], "i")
    compute_sum = lambda x: (binary_loss(x, targets, nym.sum).scalar(), binary_loss(x, targets, None))  # noqa: E731
    gradient, losses = jax.jit(jax.grad(compute_sum, has_aux=True))(logits)
    expected = [np.log(2), np.log(2), np.log(2), np.exp(-50), np.exp(-50), 0, 0, np.inf, np.inf]
    np.testing.assert_allclose(losses.array, np.float32(expected), rtol=1e-6)
    np.testing.assert_allclose(gradient.array, [0.5, 0.2, -0.5, 0, 0, 0, 0, -1, 1], atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_losses_compute_where_jax_forbids_implicit_conversions(dtype):
    def compute():
        logits, flags = nym.ones((Batch, Pos)).astype(dtype), nym.arange(Pos) < 2
        one_hot = nym.nn.one_hot(nym.zeros(Batch, int), Pos)
        for targets in (flags, flags.astype(int), flags.astype(dtype), flags.astype("float32")):
            binary = binary_loss(logits, targets, weight=flags)
            squared = squared_error(logits, targets, weight=flags.astype(dtype))
            assert binary.dtype == squared.dtype == jnp.float32
            assert reduce(binary, nym.sum, weight=nym.named(2, ())).dtype == jnp.float32
        for targets in (nym.zeros(Batch, int), one_hot, one_hot.astype(int)):
            assert cross_entropy(logits, Pos, targets, label_smoothing=0.1, z_loss=0.1).dtype == jnp.float32

    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(compute)


def test_losses_are_weighted_and_reduced_over_named_axes_on_each_mesh(mesh, draw):
    losses, seen, weight = draw(Batch, Pos), nym.arange(Batch) > 2, nym.exp(draw(Pos))
    options = {"where": seen, "weight": weight}

    @nym.named_jit(axis_resources={"batch": "data", "pos": None})
    def compute(x):
        squares = squared_error(x, nym.zeros(Pos), nym.sum, reduction_axis="batch", **options)
        return squares, reduce(x, **options), reduce(x, reduction_axis="pos", **options)

    squares, mean, means = jax.device_get(compute(losses))
    values, weights = np.asarray(losses.array)[3:], np.asarray(weight.array)
    assert squares.names == ("pos",) and means.names == ("batch",)
    assert allclose(squares.array, (values**2).sum(0) * weights, rtol=1e-5)
    assert allclose(mean.array, np.average(values, weights=np.tile(weights, (5, 1))), rtol=1e-5)
    assert allclose(means.array, np.pad(np.average(values, axis=1, weights=weights), (3, 0)), rtol=1e-5)


def test_a_mean_of_nothing_is_zero():
    losses, none = nym.named([[1.0, np.nan], [3.0, 5.0]], ("batch", "pos")), nym.named([False, True], "batch")
    infinite, weight = nym.named([np.inf, 3.0], "batch"), nym.named([0.0, 2.0], "batch")
    nothing = {"where": none & False}, {"weight": 0 * weight}

    @jax.jit
    def compute(losses, infinite):
        no_rows = losses["batch", :0]
        gradients = [jax.value_and_grad(lambda x, o=o: reduce(x, **o).scalar())(nym.ones(weight.axes)) for o in nothing]
        results = [
            reduce(losses, reduction_axis="pos", where=none),
            reduce(losses, where=none & False),
            reduce(no_rows),
            reduce(no_rows, reduction_axis="batch"),
            squared_error(no_rows, no_rows),
            reduce(infinite, weight=weight),
            reduce(infinite, nym.sum, weight=weight),
            nym.mean(losses, where=none & False),
        ]
        return [result.array for result in results], gradients

    results, gradients = jax.device_get(compute(losses, infinite))
    for result, expected in zip(results, [[0, 4], 0, 0, [0, 0], 0, 3, 6, np.nan], strict=True):
        np.testing.assert_array_equal(result, expected)
    for loss, gradient in gradients:
        assert loss == 0 and gradient.array.tolist() == [0, 0]


def test_errors_of_elementwise_losses_and_reductions():
    logits = nym.zeros(Batch)
    with refusal("binary_cross_entropy_loss: the targets (pos: 3) have axes (pos), which the logits (batch: 8) lack"):
        binary_loss(logits, nym.zeros(Pos))
    with refusal("mean_squared_error (targets): the input must be a named array, not float", TypeError):
        squared_error(logits, 0.0)
    with refusal("reduce_loss: the weights (pos: 3) have axes (pos), which the losses (batch: 8) lack"):
        reduce(logits, weight=nym.ones(Pos))
    with refusal("reduce_loss: `reduction` must be a function such as `axonym.mean`, not 'mean'.", TypeError):
        squared_error(logits, logits, "mean")

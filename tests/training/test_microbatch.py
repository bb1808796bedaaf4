"""Values and gradients of microbatches are those of the whole batch, which stays on its devices."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.planner import communication_report
from tests.partitioning.arrays import Block, assert_close
from tests.refusals import refusal


Batch, Pos, Embed, Mlp, Vocab, Layers = nym.make_axes(batch=16, pos=3, embed=8, mlp=16, vocab=32, layers=2)
COMPUTE = {"batch": "data", "mlp": "model"}
WAYS = {
    "data": ({"batch": "data"}, {"batch": "data"}),
    "tensor": (COMPUTE, COMPUTE),
    "FSDP": ({**COMPUTE, "embed": "data"}, COMPUTE),
}


class Model(eqx.Module):
    embedding: nym.nn.Embedding
    blocks: nym.nn.Stacked[Block]

    def compute_loss(self, tokens):
        return nym.mean(self.blocks.fold(self.embedding(tokens)) ** 2).scalar()

    def compute_fused_loss(self, tokens):
        x = self.blocks.fold(self.embedding(tokens))
        return nym.nn.fused_cross_entropy(x, self.embedding.weight, tokens, Embed, Vocab, block_size=8).scalar()


class Largest(nym.quantization.OverwriteWithGradient):
    value: jax.Array

    def accumulate(self, other):
        return Largest(jnp.maximum(self.value, other.value))


def make_model():
    stacked = nym.nn.Stacked.init(Layers, Block, gradient_checkpointing=True)
    blocks = stacked(Embed, Mlp, key=jax.random.split(jax.random.key(0), Layers.size))
    return Model(nym.nn.Embedding.init(Vocab, Embed, key=jax.random.key(1)), blocks)


def take_step(model, tokens, count, *, compute_loss=Model.compute_loss, **options):
    return nym.microbatch(jax.value_and_grad(compute_loss), Batch, count, **options)(model, tokens)


def take_fused_step(model, tokens, count, **options):
    return take_step(model, tokens, count, compute_loss=Model.compute_fused_loss, **options)


def convert(tree, dtype):
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x).astype(dtype)), tree)


PARAMETER_BYTES = {32 * 8 * 4, 16 // 2 * 8 * 4, 8 * 4}  # gathered for a layer: the embedding, a weight, a bias
TOKENS = nym.named(np.arange(48).reshape(16, 3) % 32, (Batch, Pos))


@pytest.fixture(scope="module")
def reference():
    """The model, with its losses and gradients without a mesh: of the mean, and of the fused loss."""

    def compute():
        model = make_model()
        losses = Model.compute_loss, Model.compute_fused_loss
        return model, *(jax.value_and_grad(loss)(model, TOKENS) for loss in losses)

    with jax.set_mesh(None):
        return jax.tree.map(np.asarray, jax.jit(compute)())


@pytest.mark.parametrize(
    ("way", "axis_types", "reduce_once"),
    [
        ("data", "explicit", False),
        ("tensor", "auto", True),
        ("tensor", "explicit", True),
        ("FSDP", "auto", True),
        pytest.param("FSDP", "explicit", False, marks=pytest.mark.thorough),
    ],
)
def test_value_and_gradient_are_those_of_the_whole_batch(way, axis_types, reduce_once, reference):
    stored, compute = WAYS[way]
    with jax.set_mesh(nym.create_mesh({"data": 4, "model": 2}, axis_types=axis_types)):
        model, tokens = nym.shard((reference[0], TOKENS), stored)
        compiled = nym.fsdp(take_step, stored, compute).lower(model, tokens, 2, reduce_once=reduce_once).compile()
        results = compiled(model, tokens, 2, reduce_once=reduce_once)
    assert_close(results, reference[1], atol=1e-5)
    for gradient, parameter in zip(jax.tree.leaves(results[1]), jax.tree.leaves(model), strict=True):
        assert gradient.sharding.is_equivalent_to(parameter.sharding, gradient.ndim)
    report = communication_report(compiled)
    if reduce_once:
        assert {each.runs for each in report.select(axis="data")} == {1}
        assert {each.mesh_axes for each in report.collectives} >= {("data",), ("model",)}
    else:
        assert {each.kind for each in report.collectives} <= {"all-reduce", "all-gather", "reduce-scatter"}
        assert {each.result_bytes for each in report.select("all-gather")} <= PARAMETER_BYTES


def test_fused_loss_is_reduced_once(reference):
    with jax.set_mesh(nym.create_mesh({"data": 4, "model": 2})):
        step = nym.named_jit(take_fused_step, {"batch": "data"})
        assert_close(step(reference[0], TOKENS, 2, reduce_once=True), reference[2], atol=1e-5)


def test_other_results_are_reduced_once_too(auto_mesh):
    def count_ones(x, key, scale):
        return {
            "ones": (x == 1).sum(),
            "constant": jnp.ones(2),
            "draw": jax.random.uniform(key),
            "mean": x.mean() * scale,
        }

    run = nym.named_jit(nym.microbatch(count_ones, "batch", 2, reduce_once=True), {"batch": "data"})
    x, key = nym.named(np.arange(16) // 4 * 1.0, Batch), jax.random.key(0)
    with jax.set_mesh(auto_mesh):
        results = run(x, key, 2.0)
    draws = jax.jit(lambda: [jax.random.uniform(jax.random.fold_in(key, i)) for i in range(8)])()
    np.testing.assert_allclose(results["draw"], np.mean(draws), rtol=1e-6)
    assert (results["ones"].item(), results["constant"].tolist(), results["mean"].item()) == (4, [1, 1], 3)
    assert nym.microbatch(lambda x: x.mean(), "batch", 2, reduce_once=True)(x).item() == 1.5  # without a mesh
    grow = nym.microbatch(lambda x: Largest(x.max().array), "batch", 2, reduce_once=True)
    with (
        jax.set_mesh(auto_mesh),
        refusal("`reduce_once` averages arrays, but the function returns a Largest; leave it out"),
    ):
        nym.named_jit(grow, {"batch": "data"})(x)


def test_numbers_of_low_precision_are_added_up_in_another_dtype(explicit_mesh, reference):
    model = convert(reference[0], jnp.bfloat16)
    with jax.set_mesh(explicit_mesh), nym.axis_mapping(COMPUTE):
        results = nym.named_jit(take_step)(model, TOKENS, 4, dtype=jnp.float32)
    assert {x.dtype for x in jax.tree.leaves(results)} == {np.dtype(jnp.bfloat16)}
    assert_close(convert(results, np.float32), reference[1], 0.03, 0.03)


def test_results_of_other_kinds_are_added_up_or_averaged():
    x, labels = nym.arange(Batch) * 1.0, nym.arange(Batch) % 3
    seen = []

    def evaluate(scale, x, *, labels, key):
        seen.append((x.shape, labels.shape))
        hits = {"zeros": (labels == 0).sum(), "first": x["batch", 0], "any": jnp.array(True)}
        return nym.mean(x) * scale, hits, None, jax.random.uniform(key)

    run = nym.microbatch(evaluate, "batch", 4)
    for call in (run, jax.jit(run)):
        mean, hits, nothing, random = call(2.0, x, labels=labels, key=jax.random.key(0))
        assert (mean.item(), hits["zeros"].item(), hits["first"].item(), hits["any"]) == (15.0, 6, 1.5, 4)
        assert nothing is None
        keys = [jax.random.fold_in(jax.random.key(0), i) for i in range(4)]
        np.testing.assert_allclose(random, np.mean([jax.random.uniform(key) for key in keys]), rtol=1e-6)
    assert {str(shapes) for shapes in seen} == {"((batch: 4), (batch: 4))"}
    once = nym.microbatch(evaluate, "batch", 1)(2.0, x, labels=labels, key=jax.random.key(0))
    assert once[3] == jax.random.uniform(jax.random.key(0))
    assert once[1]["any"].dtype == bool


def test_each_microbatch_draws_other_numbers():
    key, x = jax.random.key(0), nym.ones(Batch)
    heads, examples = nym.random.split(key, nym.Axis("heads", 2)), nym.random.split(key, Batch)

    def draw(x, keys):
        draws = jax.vmap(jax.random.uniform)(keys["heads"].array), jax.vmap(jax.random.uniform)(keys["layers"])
        own = nym.vmap(nym.random.uniform, "batch")(keys["batch"], shape=())
        return draws, nym.random.uniform(keys["single"], ()), own.mean()

    keys = {"heads": heads, "layers": jax.random.split(key, 3), "single": nym.named(key, ()), "batch": examples}
    results = jax.jit(nym.microbatch(draw, "batch", 4))(x, keys)
    shared = {name: value for name, value in keys.items() if name != "batch"}

    @jax.jit
    def draw_parts():
        return [draw(x, {**fold_in_each(shared, number), "batch": examples}) for number in range(4)]

    assert_close(results, jax.tree.map(lambda *draws: np.mean(draws, axis=0), *draw_parts()))


def fold_in_each(tree, number):
    def fold_in(keys):
        return jnp.stack([jax.random.fold_in(key, number) for key in keys.ravel()]).reshape(keys.shape)

    return jax.tree.map(fold_in, tree)


def test_a_legacy_key_is_an_error():
    run = nym.microbatch(lambda x, state: x.mean() * state["key"].sum(), "batch", 2)
    for key in (jax.random.PRNGKey(0), np.asarray(jax.random.PRNGKey(0))):
        with pytest.raises(
            TypeError,
            match=r"`microbatch` cannot tell whether state\['key'\], a plain uint32 array of shape \(2,\), is a legacy "
            r"random key or data; pass a typed key, from `jax.random.key\(seed\)` or `jax.random.wrap_key_data\(array",
        ):
            run(nym.ones(Batch), {"key": key})
    assert run(nym.ones(Batch), {"key": nym.named(jnp.ones(2, jnp.uint32), "pair")}).item() == 2


def test_plain_arrays_are_not_split_and_modules_may_accumulate():
    def measure(x, weight):
        return {"largest": Largest(x.max().array), "sum": (x.sum() * weight.sum()).array}

    result = jax.jit(nym.microbatch(measure, "batch", 8))(nym.arange(Batch) * 1.0, jnp.ones(16))
    assert result["largest"].value == 15
    assert result["sum"] == 120 / 8 * 16


def test_mistakes_are_explained(explicit_mesh):
    x = nym.arange(Batch) * 1.0
    with refusal("axis 'batch' has size 16, which is not divisible by 3 microbatches"):
        nym.microbatch(nym.mean, "batch", 3)(x)
    with refusal("`microbatch` splits axis 'pos', which no argument has"):
        nym.microbatch(nym.mean, Pos, 2)(x)
    with refusal("returns an array with axis 'batch', (batch: 8); return averages over it"):
        nym.microbatch(lambda x: x * 2, "batch", 2)(x)
    with refusal("1 or more; it was 0"):
        nym.microbatch(nym.mean, "batch", 0)
    with refusal("an integer; it was True", TypeError):
        nym.microbatch(nym.mean, "batch", True)
    with refusal("`microbatch`", TypeError):
        nym.microbatch(3, "batch", 2)
    with (
        jax.set_mesh(explicit_mesh),
        nym.axis_mapping({"batch": "data"}),
        refusal("axis 'batch' has size 2, which is not divisible by mesh axis 'data' of size 4"),
    ):
        nym.named_jit(nym.microbatch(nym.mean, "batch", 8))(x)


REPLICAS = {"batch": ("replica", "data"), "mlp": "model"}


@pytest.mark.parametrize(
    ("stored_axes", "count", "reduce_once"),
    [
        pytest.param("data", 1, "replica", marks=pytest.mark.thorough),
        ("data", 2, False),
        (None, 4, ("replica", "data")),
    ],
)
def test_gradients_of_shards_are_added_up_over_replicas_once(stored_axes, count, reduce_once, reference):
    """On Explicit mesh axes, without anything whole; a gradient that is replicated is added up over `data` once."""
    with jax.set_mesh(nym.create_mesh({"replica": 2, "data": 2, "model": 2}, axis_types="explicit")):
        step = nym.fsdp(take_fused_step, {**REPLICAS, "embed": stored_axes}, REPLICAS)
        compiled = step.lower(reference[0], TOKENS, count, reduce_once=reduce_once).compile()
        assert_close(compiled(reference[0], TOKENS, count, reduce_once=reduce_once), reference[2], atol=1e-5)
    report = communication_report(compiled)
    sums = [each for each in report.collectives if "replica" in each.mesh_axes and each.result_bytes > 4]
    assert {each.runs for each in sums} == {1}  # without that of the loss
    assert {each.kind for each in report.select("all-gather")} == ({"all-gather"} if stored_axes else set())


@jax.custom_vjp
def multiply(weight, x):
    return weight.array[0] * x.array.sum()


multiply.defvjp(lambda weight, x: (multiply(weight, x), (weight, x)), lambda saved, g: (saved[0] * g, saved[1] * g))


def compute_gradient(w, x):
    return jax.grad(lambda w: nym.mean(nym.dot(x, w, axis="embed") ** 2).scalar())(w)


UNTYPED = {
    "the norm of a gradient": lambda w, x: jax.tree.map(lambda g: g / (1 + jnp.sum(g**2)), compute_gradient(w, x)),
    "decay of weights": lambda w, x: jax.tree.map(lambda g, p: g + 0.5 * p, compute_gradient(w, x), w),
    "a product of plain arrays": lambda w, x: jax.grad(lambda w: jnp.mean((x.array * w.array[3]) ** 2))(w),
    "a custom rule": lambda w, x: jax.grad(lambda w: multiply(w, x))(w),
    "something of a parameter": lambda w, x: (nym.mean(w).scalar(), x.mean().scalar()),
}


@pytest.mark.parametrize(("what", "is_on_mesh"), [*zip(UNTYPED, (False, True, False, True, True), strict=True)])
def test_what_no_type_permits_is_added_up_in_each_microbatch(what, is_on_mesh, draw):
    run = nym.microbatch(UNTYPED[what], "batch", 2)
    w, x = draw(embed=8), draw(batch=16, embed=8)
    expected = jax.jit(run)(w, x)
    with jax.set_mesh(nym.create_mesh({"replica": 2, "data": 4}, axis_types="explicit")):
        mapping = {"batch": ("replica", "data")}
        if is_on_mesh:
            w, x = nym.shard((w, x), mapping)
        results = nym.named_jit(run, mapping)(w, x)
        assert_close(results, expected, atol=1e-5)
        if what != "something of a parameter":
            with pytest.raises(Exception, match=r".") as caught:
                nym.named_jit(nym.microbatch(UNTYPED[what], "batch", 2, reduce_once="replica"), mapping)(w, x)
            assert "With `reduce_once='replica'` parameters of `microbatch` are typed" in caught.value.__notes__[0]
        jax.tree.map(lambda result: (result**2).sum(), results)  # they have no types of which JAX knows little


def test_mesh_axes_to_reduce_once_are_checked(auto_mesh, explicit_mesh):
    x = nym.arange(Batch) * 1.0

    def run(once):
        return nym.named_jit(nym.microbatch(lambda x: x.mean(), "batch", 2, reduce_once=once), {"batch": "data"})(x)

    for once in (2, ("data", 2)):
        with refusal("`reduce_once` is a boolean or names of mesh axes; it was", TypeError):
            run(once)
    text = "`reduce_once` names mesh axis 'replica', but axis 'batch' is sharded over data; name"
    with jax.set_mesh(explicit_mesh), refusal(text):
        run("replica")
    text = "`reduce_once` with the name of mesh axis 'data' needs a mesh whose axes are all Explicit"
    with jax.set_mesh(auto_mesh), refusal(text):
        run("data")
    assert nym.microbatch(nym.mean, "batch", 2, reduce_once="data")(x).item() == 7.5  # without a mesh


def test_a_step_without_microbatches_keeps_its_keys_and_results():
    def compute(x, key):
        return x + jax.random.normal(key)

    x, key = nym.arange(Batch) * 1.0, jax.random.key(0)
    with jax.set_mesh(nym.create_mesh({"data": 8}, axis_types="explicit")):
        run = nym.named_jit(nym.microbatch(compute, "batch", 1, reduce_once="data"), {"batch": "data"})
        assert_close(run(x, key), compute(x, key))

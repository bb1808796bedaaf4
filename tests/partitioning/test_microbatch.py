"""Values and gradients of microbatches are those of the whole batch, which stays on its devices."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.planner import communication_report


Batch, Pos, Embed, Mlp, Layers = nym.make_axes(batch=16, pos=3, embed=8, mlp=16, layers=2)
COMPUTE = {"batch": "data", "mlp": "model"}
WAYS = {
    "replicated": ({}, {}),
    "data": ({"batch": "data"}, {"batch": "data"}),
    "tensor": (COMPUTE, COMPUTE),
    "FSDP": ({**COMPUTE, "embed": "data"}, COMPUTE),
}


class Block(eqx.Module):
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(key):
        return Block(nym.nn.Linear.init(Embed, Mlp, key=key), nym.nn.Linear.init(Mlp, Embed, key=key))

    def __call__(self, x):
        return x + self.down(nym.nn.tanh(self.up(x)))


class Model(eqx.Module):
    embedding: nym.nn.Embedding
    blocks: nym.nn.Stacked[Block]

    def compute_loss(self, tokens):
        return nym.mean(self.blocks.fold(self.embedding(tokens)) ** 2).scalar()


class Largest(nym.quantization.OverwriteWithGradient):
    value: jax.Array

    def accumulate(self, other):
        return Largest(jnp.maximum(self.value, other.value))


def make_model():
    embedding = nym.nn.Embedding.init(nym.Axis("vocab", 32), Embed, key=jax.random.key(1))
    return Model(embedding, nym.nn.Stacked.init(Layers, Block, gradient_checkpointing=True)(key=jax.random.key(0)))


def take_step(model, tokens, count, **options):
    return nym.microbatch(jax.value_and_grad(Model.compute_loss), Batch, count, **options)(model, tokens)


def convert(tree, dtype):
    return jax.tree.map(lambda x: x.astype(dtype), tree)


PARAMETER_BYTES = {32 * 8 * 4, 16 // 2 * 8 * 4, 8 * 4}  # gathered for a layer: the embedding, a weight, a bias
TOKENS = nym.arange(nym.Axis("tokens", 48)).unflatten_axis("tokens", (Batch, Pos)) % 32


def check_close(tree, expected, tolerance):
    for one, other in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(np.float32(one), np.float32(other), rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def reference():
    """The model, its loss and its gradient, without a mesh."""
    with jax.set_mesh(None):
        model = jax.jit(make_model)()
        return jax.tree.map(np.asarray, (model, *jax.jit(jax.value_and_grad(Model.compute_loss))(model, TOKENS)))


def compile_step(way, model, count, **options):
    """Returns the result of a step, which has the shardings of the parameters, and its report."""
    stored, compute = WAYS[way]
    model, tokens = nym.shard((jax.tree.map(jnp.asarray, model), TOKENS), stored)
    compiled = nym.fsdp(take_step, stored, compute).lower(model, tokens, count, **options).compile()
    value, gradients = compiled(model, tokens, count, **options)
    for one, parameter in zip(jax.tree.leaves(gradients), jax.tree.leaves(model), strict=True):
        assert one.sharding.is_equivalent_to(parameter.sharding, one.ndim)
    return (value, gradients), communication_report(compiled)


@pytest.mark.parametrize("way", WAYS)
def test_value_and_gradient_are_those_of_the_whole_batch(mesh, way, reference):
    result, report = compile_step(way, reference[0], 2)
    check_close(result, reference[1:], 1e-5)
    assert {one.kind for one in report.collectives} <= {"all-reduce", "all-gather"}
    assert {one.result_bytes for one in report.select("all-gather")} <= PARAMETER_BYTES


@pytest.mark.parametrize("way", ["tensor", "FSDP"])
def test_gradients_are_reduced_once(mesh, way, reference):
    result, report = compile_step(way, reference[0], 2, reduce_once=True)
    check_close(result, reference[1:], 1e-5)
    assert {one.runs for one in report.select(axis="data")} == {1}
    assert {one.mesh_axes for one in report.collectives} >= {("data",), ("model",)}


def test_other_results_are_reduced_once_too():
    def count_ones(x, key, scale):
        return {
            "ones": (x == 1).sum(),
            "constant": jnp.ones(2),
            "draw": jax.random.uniform(key),
            "mean": x.mean() * scale,
        }

    run = nym.named_jit(nym.microbatch(count_ones, "batch", 2, reduce_once=True), {"batch": "data"})
    x, key = nym.arange(Batch) // 4 * 1.0, jax.random.key(0)
    if jax.device_count() < 8:
        pytest.skip("This needs 8 devices.")
    with jax.set_mesh(nym.create_mesh({"data": 4, "model": 2})):
        found = run(x, key, 2.0)
    draws = [jax.random.uniform(jax.random.fold_in(key, i)) for i in range(8)]
    np.testing.assert_allclose(found["draw"], np.mean(draws), rtol=1e-6)
    assert (found["ones"].item(), found["constant"].tolist(), found["mean"].item()) == (4, [1, 1], 3)
    assert nym.microbatch(lambda x: x.mean(), "batch", 2, reduce_once=True)(x).item() == 1.5  # without a mesh
    grow = nym.microbatch(lambda x: Largest(x.max().array), "batch", 2, reduce_once=True)
    with (
        jax.set_mesh(nym.create_mesh({"data": 8})),
        pytest.raises(
            ValueError, match="`reduce_once` averages arrays, but the function returns a Largest; leave it out"
        ),
    ):
        nym.named_jit(grow, {"batch": "data"})(x)


def test_numbers_of_low_precision_are_added_up_in_another_dtype(mesh, reference):
    model = convert(jax.tree.map(jnp.asarray, reference[0]), jnp.bfloat16)
    with nym.axis_mapping(COMPUTE):
        value, gradients = nym.named_jit(take_step)(model, TOKENS, 4, dtype=jnp.float32)
    check_close((value, gradients), convert(jax.tree.map(jnp.asarray, reference[1:]), jnp.bfloat16), 0.03)


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
    found = jax.jit(nym.microbatch(draw, "batch", 4))(x, keys)
    shared = {name: value for name, value in keys.items() if name != "batch"}
    parts = [draw(x, {**fold_in_each(shared, number), "batch": examples}) for number in range(4)]
    expected = jax.tree.map(lambda *draws: np.mean(draws, axis=0), *parts)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


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


def test_mistakes_are_explained():
    x = nym.arange(Batch) * 1.0
    with pytest.raises(ValueError, match="axis 'batch' has size 16, which is not divisible by 3 microbatches"):
        nym.microbatch(nym.mean, "batch", 3)(x)
    with pytest.raises(ValueError, match="`microbatch` splits axis 'pos', which no argument has"):
        nym.microbatch(nym.mean, Pos, 2)(x)
    with pytest.raises(ValueError, match=r"returns an array with axis 'batch', \(batch: 8\); return averages over it"):
        nym.microbatch(lambda x: x * 2, "batch", 2)(x)
    with pytest.raises(ValueError, match="1 or more; it was 0"):
        nym.microbatch(nym.mean, "batch", 0)
    with pytest.raises(TypeError, match="an integer; it was True"):
        nym.microbatch(nym.mean, "batch", True)
    with pytest.raises(TypeError, match="`microbatch`"):
        nym.microbatch(3, "batch", 2)
    if jax.device_count() >= 8:
        with (
            jax.set_mesh(nym.create_mesh({"data": 8}, axis_types="explicit")),
            nym.axis_mapping({"batch": "data"}),
            pytest.raises(
                ValueError, match=r"axis 'batch' has size 4, which is not divisible by mesh axis 'data' of size 8"
            ),
        ):
            nym.named_jit(nym.microbatch(nym.mean, "batch", 4))(x)

"""Gradients of stored parameters, which `fsdp` adds up on shards on Explicit meshes: equal to those of one device."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym
from axonym.partitioning import _gather
from tests.partitioning.blocks import Block


Batch, Pos, Embed, Mlp, Vocab, Layers = nym.make_axes(batch=8, pos=2, embed=8, mlp=4, vocab=16, layers=2)


class Model(eqx.Module):
    embedding: nym.nn.Embedding
    blocks: nym.nn.Stacked
    norm: nym.nn.RmsNorm
    head: nym.nn.Linear | None

    def compute_loss(self, tokens, *, fused):
        x = self.norm(self.blocks.fold(self.embedding(tokens)))
        weight = self.embedding.weight if self.head is None else self.head.weight
        if fused:
            return nym.nn.fused_cross_entropy(x, weight, tokens, Embed, Vocab, block_size=8).scalar()
        logits = self.embedding.unembed(x) if self.head is None else self.head(x)
        return nym.nn.cross_entropy_loss(logits, Vocab, tokens).scalar()


def make_model(policy: Any, tied: bool) -> Model:
    keys = jax.random.split(jax.random.key(0), Layers.size + 2)
    blocks = nym.nn.Stacked.init(Layers, Block, gradient_checkpointing=policy)(Embed, Mlp, key=keys[2:])
    head = None if tied else nym.nn.Linear.init(Embed, Vocab, key=keys[1], use_bias=False)
    return Model(nym.nn.Embedding.init(Vocab, Embed, key=keys[0]), blocks, nym.nn.RmsNorm.init(Embed), head)


TOKENS = nym.named(np.random.default_rng(0).integers(0, Vocab.size, (Batch.size, Pos.size)), (Batch, Pos))


def make_step(fused: bool, microbatches: int, reduce_once: Any = False) -> Any:
    def step(model: Model, tokens: nym.NamedArray) -> Any:
        compute = jax.value_and_grad(lambda model, tokens: model.compute_loss(tokens, fused=fused))
        return nym.microbatch(compute, "batch", microbatches, reduce_once=reduce_once)(model, tokens)

    return step


def assert_same(results: Any, expected: Any) -> None:
    for (path, result), value in zip(jax.tree.leaves_with_path(results), jax.tree.leaves(expected), strict=True):
        where = jax.tree_util.keystr(path)
        np.testing.assert_allclose(np.asarray(result), np.asarray(value), rtol=1e-4, atol=1e-6, err_msg=where)


@pytest.mark.parametrize("seed", range(16))
def test_gradients_are_those_of_one_device(seed):
    """And they are added up over replicas once for each microbatch and layer, or once a step."""
    rng = np.random.default_rng(seed)
    mesh = nym.create_mesh((2, 2, 2), tuple(rng.permutation(["data", "replica", "model"])), axis_types="explicit")
    batch_axes = [("data",), ("replica", "data"), ("data", "replica")][rng.integers(3)]
    computing = {"batch": batch_axes, "pos": None, "layers": None}
    for name in ("mlp", "vocab"):
        computing[name] = [None, "model"][rng.integers(2)]
    embed_axes = [("data",), batch_axes]
    if not computing["mlp"] and not computing["vocab"]:  # gathered over another mesh axis than those of the batch
        embed_axes += [("model",), ("data", "model"), ("model", "data")]
    stored = {**computing, "embed": embed_axes[rng.integers(len(embed_axes))]}
    policy = [False, True, "offload", "nested"][rng.integers(4)]
    model = make_model(policy, tied=bool(rng.integers(2)))
    microbatches = int(rng.integers(1, 3))
    has_replicas = "replica" in batch_axes
    reduce_once = "replica" if has_replicas and rng.integers(2) else False
    step = make_step(bool(rng.integers(2)), microbatches, reduce_once)
    expected = jax.jit(step)(model, TOKENS)
    with jax.set_mesh(mesh):
        compiled = nym.fsdp(step, stored, computing)
        assert_same(compiled(model, TOKENS), expected)
        # A table whose vocabulary is sharded is not typed.
        if has_replicas and "replica" not in stored["embed"] and not computing["vocab"]:
            report = nym.planner.communication_report(compiled, model, TOKENS)
            sums = [one for one in report.collectives if "replica" in one.mesh_axes and one.result_bytes > 8]
            most_runs = 1 if microbatches > 1 or reduce_once else Layers.size
            assert {one.runs for one in sums} <= {1, most_runs}


def compute_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("policy", [False, True])
def test_replicas_add_up_gradients_of_shards(policy):
    computing = {"batch": ("replica", "data")}
    model = make_model(policy, tied=False)
    step = nym.fsdp(make_step(fused=True, microbatches=1), {**computing, "embed": "data"}, computing)
    with use_replicas():
        sent = nym.planner.communication_report(step, model, TOKENS).count_bytes("mesh_axes")
    bias = compute_bytes(model.blocks.stacked.up.bias)  # it lacks the axis that the others are stored by
    assert sent["replica",] == (compute_bytes(model) - bias) / 4
    assert sent["replica", "data"] == bias + 4  # and the loss


def use_replicas() -> Any:
    return jax.set_mesh(nym.create_mesh((2, 4), ("replica", "data"), axis_types="explicit"))


COMPUTING = {"batch": ("replica", "data")}
STORED = {**COMPUTING, "embed": "data"}


def apply_layers(model, tokens):
    return nym.mean(model.head(model.norm(model.embedding(tokens))) ** 2).scalar()


def differentiate_twice(model, tokens):
    gradient = jax.grad(apply_layers)
    return jax.jvp(lambda model: gradient(model, tokens), (model,), (model,))


DERIVATIVES = {
    "forward mode": lambda model, tokens: jax.jvp(lambda model: apply_layers(model, tokens), (model,), (model,)),
    "second": differentiate_twice,
    "vmap of layers": lambda model, tokens: jax.grad(
        lambda model: jax.vmap(lambda scale: apply_layers(jax.tree.map(lambda x: x * scale, model), tokens))(
            jnp.arange(3.0)
        ).sum()
    )(model),
    "vmap of examples": lambda model, tokens: jax.grad(
        lambda model: (
            nym.vmap(lambda tokens: nym.named(apply_layers(model, tokens), ()), "batch")(tokens).sum().scalar()
        )
    )(model),
    "bfloat16": lambda model, tokens: jax.grad(
        lambda model: apply_layers(jax.tree.map(lambda x: x.astype(jnp.bfloat16), model), tokens).astype(jnp.float32)
    )(model),
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_derivatives(derivative):
    model = make_model(False, tied=False)
    fn = DERIVATIVES[derivative]
    expected = jax.jit(fn)(model, TOKENS)
    with use_replicas():
        results = nym.fsdp(fn, STORED, COMPUTING)(model, TOKENS)
    tolerance = 2e-2 if derivative == "bfloat16" else 1e-4
    for result, value in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(result), np.asarray(value), rtol=tolerance, atol=tolerance / 100)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("batch_axes", [(), ("data",)])
def test_inputs_that_are_sharded_over_fewer_mesh_axes(batch_axes, fused):
    """A batch of another name: then gradients are added up where the parameter is used."""
    tokens = TOKENS.rename({"batch": "examples"})
    computing, stored = {**COMPUTING, "examples": batch_axes or None}, {**STORED, "examples": batch_axes or None}
    model = make_model(True, tied=True)
    step = make_step(fused, microbatches=1)
    expected = jax.jit(step)(model, TOKENS)
    with use_replicas():
        step = jax.value_and_grad(lambda model, tokens: model.compute_loss(tokens, fused=fused))
        assert_same(nym.fsdp(step, stored, computing)(model, tokens), expected)


def test_only_explicit_mesh_axes_have_types():
    types = (AxisType.Explicit, AxisType.Auto)
    model = make_model(True, tied=True)
    step = make_step(fused=False, microbatches=1)
    with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"), axis_types=types)):
        results = nym.fsdp(step, {"batch": "data", "embed": "data"}, {"batch": "data", "mlp": "model"})(model, TOKENS)
    assert_same(results, jax.jit(step)(model, TOKENS))


def test_arrays_that_a_function_takes_from_around_it():
    """An array that was made without a mesh has no mesh in its type."""
    layer = nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
    x = nym.random.normal(jax.random.key(1), (Batch, Embed))
    step = jax.value_and_grad(lambda layer: nym.mean(layer(x) ** 2).scalar())
    with use_replicas():
        assert_same(nym.fsdp(step, STORED, COMPUTING)(layer), jax.jit(step)(layer))


class Table(eqx.Module):
    """A table and a scale."""

    embedding: nym.nn.Embedding
    scale: nym.NamedArray

    def compute_loss(self, tokens):
        return nym.mean((self.embedding(tokens) * self.scale) ** 2).scalar()


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize(("vocab", "embed"), [(896, 64), (1024, 512)])  # no tiles; 128 elements for each of 4 devices
@pytest.mark.parametrize(
    ("mesh_axes", "batch_axes", "rounds"),
    [
        ({"data": 8}, "data", 2),
        ({"x": 2, "y": 4}, ("x", "y"), 2),
        ({"replica": 2, "data": 4}, ("replica", "data"), 1),
    ],
    ids=str,
)
def test_rounds_on_tpus(monkeypatch, mesh_axes, batch_axes, rounds, vocab, embed, microbatches):
    """The rounds in which gradients are scattered, here on CPUs: over a whole slice, in rows, in another order."""
    monkeypatch.setattr(_gather, "find_platform", lambda: "tpu")
    monkeypatch.setattr(_gather, "_SMALLEST_TORUS", 8)
    monkeypatch.setattr(_gather, "_SMALLEST_SCATTER", 1)
    monkeypatch.setattr(_gather, "_plan_gather", _gather._plan_gather.__wrapped__)  # without the cache
    stored_axes = "data" if "data" in mesh_axes else batch_axes
    embedding = nym.nn.Embedding.init(Vocab.resize(vocab), Embed.resize(embed), key=jax.random.key(0))
    model = Table(embedding, nym.random.normal(jax.random.key(1), Embed.resize(embed)))
    tokens = nym.random.randint(jax.random.key(2), {"batch": 16, "pos": 2}, 0, vocab)

    def step(model, tokens):
        return nym.microbatch(jax.value_and_grad(Table.compute_loss), "batch", microbatches)(model, tokens)

    expected = jax.jit(step)(model, tokens)
    computing = {"batch": batch_axes}
    with jax.set_mesh(nym.create_mesh(mesh_axes, axis_types="explicit")):
        compiled = nym.fsdp(step, {**computing, "embed": stored_axes}, computing)
        assert_same(compiled(model, tokens), expected)
        report = nym.planner.communication_report(compiled, model, tokens)
    assert [one.layer for one in report.select("reduce-scatter")] == ["Embedding"] * rounds


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize(
    "stored",
    [{"embed": "data", "mlp": "model"}, {"embed": ("data", "model")}, {"mlp": ("model", "data")}, {"embed": "model"}],
    ids=str,
)
def test_parameters_that_are_gathered_over_other_mesh_axes_than_the_batch(stored, microbatches):
    """Devices along these have the same gradient, which must not be added up."""
    layer = nym.nn.Linear.init(Embed, Mlp.resize(8), key=jax.random.key(0))
    x = nym.random.normal(jax.random.key(1), {"batch": 8, "inputs": 8})

    def step(layer, x):
        compute = jax.value_and_grad(lambda layer, x: nym.mean(layer(x.rename({"inputs": "embed"})) ** 2).scalar())
        return nym.microbatch(compute, "batch", microbatches)(layer, x)

    expected = jax.jit(step)(layer, x)
    computing = {"batch": "data"}
    with jax.set_mesh(nym.create_mesh({"data": 4, "model": 2}, axis_types="explicit")):
        assert_same(nym.fsdp(step, {**computing, **stored}, computing)(layer, x), expected)
        with nym.axis_mapping(computing):
            assert_same(jax.jit(step)(nym.shard(layer, stored), nym.shard(x)), expected)

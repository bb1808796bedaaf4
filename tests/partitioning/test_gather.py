"""Gradients of stored parameters, which `fsdp` adds up on shards on Explicit meshes: equal to those of one device."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym


Batch, Pos, Embed, Mlp, Vocab, Layers = nym.make_axes(batch=8, pos=2, embed=8, mlp=4, vocab=16, layers=2)


class Block(eqx.Module):
    norm: nym.nn.LayerNorm
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(key):
        up_key, down_key = jax.random.split(key)
        up = nym.nn.Linear.init(Embed, Mlp, key=up_key)
        return Block(nym.nn.LayerNorm.init(Embed), up, nym.nn.Linear.init(Mlp, Embed, key=down_key, use_bias=False))

    def __call__(self, x):
        return x + self.down(nym.nn.silu(self.up(self.norm(x))))


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
    blocks = nym.nn.Stacked.init(Layers, Block, gradient_checkpointing=policy)(keys[2:])
    head = None if tied else nym.nn.Linear.init(Embed, Vocab, key=keys[1], use_bias=False)
    return Model(nym.nn.Embedding.init(Vocab, Embed, key=keys[0]), blocks, nym.nn.RmsNorm.init(Embed), head)


TOKENS = nym.named(np.random.default_rng(0).integers(0, Vocab.size, (Batch.size, Pos.size)), (Batch, Pos))


def make_step(fused: bool, microbatches: int) -> Any:
    def step(model: Model, tokens: nym.NamedArray) -> Any:
        compute = jax.value_and_grad(lambda model, tokens: model.compute_loss(tokens, fused=fused))
        return nym.microbatch(compute, "batch", microbatches)(model, tokens)

    return step


def assert_same(results: Any, expected: Any) -> None:
    for (path, result), value in zip(jax.tree.leaves_with_path(results), jax.tree.leaves(expected), strict=True):
        where = jax.tree_util.keystr(path)
        np.testing.assert_allclose(np.asarray(result), np.asarray(value), rtol=1e-4, atol=1e-6, err_msg=where)


@pytest.mark.parametrize("seed", range(10))
def test_gradients_are_those_of_one_device(seed):
    rng = np.random.default_rng(seed)
    mesh = nym.create_mesh((2, 2, 2), tuple(rng.permutation(["data", "replica", "model"])), axis_types="explicit")
    batch_axes = [("data",), ("replica", "data"), ("data", "replica")][rng.integers(3)]
    computing = {"batch": batch_axes, "pos": None, "layers": None}
    for name in ("mlp", "vocab"):
        computing[name] = [None, "model"][rng.integers(2)]
    stored = {**computing, "embed": batch_axes if rng.integers(2) else "data"}
    model = make_model([False, True, "offload", "nested"][rng.integers(4)], tied=bool(rng.integers(2)))
    step = make_step(fused=bool(rng.integers(2)), microbatches=int(rng.integers(1, 3)))
    expected = jax.jit(step)(model, TOKENS)
    with jax.set_mesh(mesh):
        results = nym.fsdp(step, stored, computing)(model, TOKENS)
    assert_same(results, expected)


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

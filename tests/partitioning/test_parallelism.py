"""Models of the examples train in each form of parallelism with the losses of one device."""

import functools
import itertools
from types import MappingProxyType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import axonym as nym
from examples.models import llama, mixtral


STEPS = 20
# All experts of each token and small steps, or rounding would be seen: tokens choose others after a few steps.
CONFIG = {
    "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 4, "intermediate_size": 32, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu",
    "tie_word_embeddings": False, "num_local_experts": 4, "num_experts_per_tok": 4, "max_position_embeddings": 16,
}  # fmt: skip
MODELS: dict[str, Any] = {"llama": (llama.Config, llama.Llama), "mixtral": (mixtral.Config, mixtral.Mixtral)}
TOKENS = nym.named(np.random.default_rng(0).integers(0, 32, (STEPS, 16, 16)), ("step", "batch", "pos"))
OPTIMIZER = optax.adam(2e-3, eps=1e-3)


def compute_loss(model: Any, tokens: Any) -> Any:
    Pos = tokens.resolve_axis("pos")
    logits, metrics = model(tokens), 0.0
    if isinstance(model, mixtral.Mixtral):
        logits, (_, found) = model.run_blocks(tokens, None)
        metrics = 1e-2 * found.router_z_loss.mean().scalar()
    targets = nym.nn.one_hot(nym.roll(tokens, -1, Pos), model.config.vocab)
    return nym.nn.cross_entropy_loss(logits, model.config.vocab, targets).mean().scalar() + metrics


def train(model: Any, state: Any, tokens: Any) -> Any:
    """Returns the losses of all steps."""

    def step(carry: Any, tokens: Any) -> Any:
        model, state = carry
        loss, gradients = eqx.filter_value_and_grad(compute_loss)(model, tokens)
        updates, state = OPTIMIZER.update(gradients, state)
        return (eqx.apply_updates(model, updates), state), loss

    return nym.scan(step, "step")((model, state), tokens)[1]


def make_model(family: str, **options: Any) -> Any:
    config, model = MODELS[family]
    return model.init(config.from_hf(CONFIG)._replace(**options), key=jax.random.key(0))


@functools.cache
def train_on_one_device(family: str) -> np.ndarray:
    model = make_model(family)
    losses = np.asarray(eqx.filter_jit(train)(model, OPTIMIZER.init(model), TOKENS))
    assert losses[-1] < 0.95 * losses[0]
    return losses


class Case(NamedTuple):
    """A form of parallelism: a model, the mesh, the mapping, and options of the model and of the mapping."""

    family: str
    mesh: dict[str, int]
    mapping: dict[str, Any]
    options: Any = MappingProxyType({})
    microbatches: int | None = None
    repeats: int = 1


TENSOR = {"mlp": "model", "heads": "model", "vocab": "model"}
CONTEXT = {"batch": "data", "pos": "context", "mlp": "model", "vocab": "model"}
EXPERTS = {"batch": ("data", "expert"), "experts": "expert", **TENSOR}
STAGES = {"batch": "data", "layers": "stage", **TENSOR}
BOUNDED = {"dispatch": "all_to_all", "capacity_factor": 2.0}  # so that no token is dropped
CASES = {
    "all_gather": Case("llama", {"data": 2, "context": 2, "model": 2}, CONTEXT, {"context": "all_gather"}),
    "ring": Case("llama", {"data": 2, "context": 2, "model": 2}, CONTEXT, {"context": "ring"}),
    "all_to_all": Case("llama", {"data": 2, "context": 2, "model": 2}, CONTEXT, {"context": "all_to_all"}),
    "mixed": Case(
        "llama", {"data": 2, "ring": 2, "swap": 2}, {"batch": "data", "pos": ("ring", "swap")}, {"context": "mixed"}
    ),
    "experts, gather": Case("mixtral", {"data": 2, "expert": 2, "model": 2}, EXPERTS, {"dispatch": "gather"}),
    "experts, all_to_all": Case("mixtral", {"data": 2, "expert": 2, "model": 2}, EXPERTS, BOUNDED),
    "experts, ragged": Case("mixtral", {"data": 2, "expert": 4}, EXPERTS, {"dispatch": "ragged_all_to_all"}),
    "2 stages, 4": Case("llama", {"stage": 2, "data": 2, "model": 2}, STAGES, {}, 4),
    "2 stages, 8, interleaved": Case("llama", {"stage": 2, "data": 2, "model": 2}, STAGES, {}, 8, 2),
    "4 stages, 4": Case("llama", {"stage": 4, "data": 2}, STAGES, {}, 4),
    "4 stages, 8": Case("llama", {"stage": 4, "model": 2}, STAGES, {}, 8),
    "4 stages, 8, interleaved": Case("llama", {"stage": 4, "data": 2}, STAGES, {}, 8, 2),
    "stages and a ring": Case(
        "llama", {"stage": 2, "data": 2, "context": 2}, {**CONTEXT, "layers": "stage"}, {"context": "ring"}, 4
    ),
    "stages and heads": Case(
        "mixtral", {"stage": 2, "data": 2, "context": 2}, {**CONTEXT, "layers": "stage"}, {"context": "all_to_all"}, 4
    ),
    "stages and experts": Case(
        "mixtral", {"stage": 2, "data": 2, "expert": 2}, {**EXPERTS, "layers": "stage"}, {"dispatch": "gather"}, 4, 2
    ),
    "stages and bounded experts": Case(
        "mixtral", {"stage": 2, "data": 2, "expert": 2}, {**EXPERTS, "layers": "stage"}, BOUNDED, 4
    ),
}


def train_case(name: str, axis_types: Any) -> np.ndarray:
    family, sizes, entries, options, microbatches, repeats = CASES[name]
    entries = {key: [axis for axis in np.atleast_1d(axes).tolist() if axis in sizes] for key, axes in entries.items()}
    computing = nym.AxisMapping(entries, microbatches=microbatches and {"batch": microbatches})
    stored = {**entries, "batch": None, "pos": None, "embed": "data" if "data" in sizes else None}
    model = make_model(family, **options)
    blocks = model.blocks.interleave(sizes.get("stage", 1), repeats)
    model = jax.tree.map(np.asarray, eqx.tree_at(lambda model: model.blocks, model, blocks))
    with jax.set_mesh(nym.create_mesh(tuple(sizes.values()), tuple(sizes), axis_types=axis_types)):
        model = nym.shard(model, stored)
        state = nym.named_jit(OPTIMIZER.init, out_axis_resources=stored)(model)
        losses = nym.fsdp(train, stored, computing)(model, state, nym.shard(TOKENS, computing))
    return np.asarray(losses)


@pytest.mark.parametrize(("name", "axis_types"), [*zip(CASES, itertools.cycle(["auto", "explicit"]), strict=False)])
def test_training_has_the_losses_of_one_device(name: str, axis_types: Any):
    np.testing.assert_allclose(train_case(name, axis_types), train_on_one_device(CASES[name].family), rtol=1e-4)

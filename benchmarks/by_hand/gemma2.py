"""Gemma 2 in plain JAX, for comparison with `examples/models/gemma2.py`."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .handwritten_model import rms_norm, stack_axes
from .llama import HandwrittenLlama


class Block(NamedTuple):
    """The parameters of a block, or what belongs to each; in the order of the example's fields."""

    attention_norm: Any = ("embed",)
    query: Any = ("heads", "group", "head_dim", "embed")
    key: Any = ("heads", "head_dim", "embed")
    value: Any = ("heads", "head_dim", "embed")
    attention_out: Any = ("embed", "heads", "group", "head_dim")
    attention_out_norm: Any = ("embed",)
    mlp_norm: Any = ("embed",)
    gate: Any = ("mlp", "embed")
    up: Any = ("mlp", "embed")
    down: Any = ("embed", "mlp")
    mlp_out_norm: Any = ("embed",)


class Pair(NamedTuple):
    """The parameters of a layer with a sliding window, and of one that attends to everything before."""

    near: Any = Block()
    far: Any = Block()


class Parameters(NamedTuple):
    """The parameters of the model, or what belongs to each; those of layers have the pairs in front."""

    embedding: Any = ("vocab", "embed")
    pairs: Any = stack_axes("pairs", Pair())
    norm: Any = ("embed",)


@dataclasses.dataclass(frozen=True)
class HandwrittenGemma2(HandwrittenLlama):
    """The model's loss and train step.

    Attributes:
        window: To how many positions every other layer attends.
        scale: Of the scores of attention.
        score_cap: The greatest score of attention.
        logit_cap: The greatest logit.
    """

    axes = Parameters()

    eps: float = 1e-6
    theta: float = 10000.0
    window: int = 4096
    scale: float = 1 / 16
    score_cap: float = 50.0
    logit_cap: float = 30.0

    def norm(self, weight: jax.Array, x: jax.Array) -> jax.Array:
        return self.shard(rms_norm(x, 1 + weight, self.eps), "batch", "pos", "embed")

    def compute_scores(self, query: jax.Array, key: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", query * self.scale, key)
        return self.score_cap * jnp.tanh(scores / self.score_cap)

    def activate(self, x: jax.Array) -> jax.Array:
        return jax.nn.gelu(x)

    def run_layer(self, weights: Block, x: jax.Array, window: int | None) -> jax.Array:
        weights = self.use(weights, Block())
        attended = self.attend(weights, self.norm(weights.attention_norm, x), window)
        x = x + self.norm(weights.attention_out_norm, attended)
        return x + self.norm(weights.mlp_out_norm, self.apply_mlp(weights, self.norm(weights.mlp_norm, x)))

    def run_block(self, x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        return self.run_layer(weights.far, self.run_layer(weights.near, x, self.window), None), None

    def compute_loss(self, parameters: Any, *inputs: jax.Array) -> jax.Array:
        tokens, targets = inputs
        outer = self.use(parameters._replace(pairs=None), self.axes._replace(pairs=None))
        x = self.shard(outer.embedding[tokens] * math.sqrt(self.sizes["embed"]), "batch", "pos", "embed")
        x, _ = jax.lax.scan(self.checkpoint(self.run_block), x, parameters.pairs)
        logits = jnp.einsum("bpe,ve->bpv", self.norm(outer.norm, x), outer.embedding)
        return self.compute_cross_entropy(self.logit_cap * jnp.tanh(logits / self.logit_cap), targets)

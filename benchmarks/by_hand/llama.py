"""Llama in plain JAX, for comparison with `examples/models/llama.py`."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .handwritten_model import HandwrittenModel, hide_future, rms_norm, stack_axes


class Block(NamedTuple):
    """The parameters of a block, or what belongs to each; in the order of the example's fields."""

    attention_norm: Any = ("embed",)
    query: Any = ("heads", "group", "head_dim", "embed")
    key: Any = ("heads", "head_dim", "embed")
    value: Any = ("heads", "head_dim", "embed")
    attention_out: Any = ("embed", "heads", "group", "head_dim")
    mlp_norm: Any = ("embed",)
    gate: Any = ("mlp", "embed")
    up: Any = ("mlp", "embed")
    down: Any = ("embed", "mlp")


class Parameters(NamedTuple):
    """The parameters of the model, or what belongs to each; those of blocks have the layers in front."""

    embedding: Any = ("vocab", "embed")
    blocks: Any = stack_axes("layers", Block())
    norm: Any = ("embed",)
    head: Any = ("vocab", "embed")


@dataclasses.dataclass(frozen=True)
class HandwrittenLlama(HandwrittenModel):
    """The model's loss and train step.

    Attributes:
        eps: Added to the mean squares.
        theta: Base of the angles of rotary embeddings.
    """

    block = Block()  # the axes of one
    axes = Parameters()

    eps: float = 1e-5
    theta: float = 500000.0

    def norm(self, weight: jax.Array, x: jax.Array) -> jax.Array:
        return self.shard(rms_norm(x, weight, self.eps), "batch", "pos", "embed")

    def rotate(self, x: jax.Array) -> jax.Array:
        half = self.sizes["head_dim"] // 2
        frequencies = self.theta ** (jnp.arange(half, dtype=jnp.float32) * (-1 / half))
        angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
        angles = angles.reshape(x.shape[1], *[1] * (x.ndim - 3), half)
        cosine, sine = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
        first, second = jnp.split(x, 2, -1)
        return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    def project(self, weights: Any, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns queries, keys and values."""
        queries, keys = ("batch", "pos", "heads", "group", "head_dim"), ("batch", "pos", "heads", "head_dim")
        query = self.shard(jnp.einsum("bpe,hgde->bphgd", x, weights.query), *queries)
        key = self.shard(jnp.einsum("bpe,hde->bphd", x, weights.key), *keys)
        value = self.shard(jnp.einsum("bpe,hde->bphd", x, weights.value), *keys)
        return query, key, value

    def compute_scores(self, query: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.einsum("bqhgd,bkhd->bhgqk", query / math.sqrt(query.shape[-1]), key)

    def attend(self, weights: Any, x: jax.Array, window: int | None = None) -> jax.Array:
        query, key, value = self.project(weights, x)
        scores = hide_future(self.compute_scores(self.rotate(query), self.rotate(key)), window)
        mixed = jnp.einsum("bhgqk,bkhd->bqhgd", jax.nn.softmax(scores), value)
        mixed = self.shard(mixed, "batch", "pos", "heads", "group", "head_dim")
        return self.shard(jnp.einsum("bphgd,ehgd->bpe", mixed, weights.attention_out), "batch", "pos", "embed")

    def activate(self, x: jax.Array) -> jax.Array:
        return jax.nn.silu(x)

    def apply_mlp(self, weights: Any, x: jax.Array) -> jax.Array:
        gate = self.shard(jnp.einsum("bpe,me->bpm", x, weights.gate), "batch", "pos", "mlp")
        up = self.shard(jnp.einsum("bpe,me->bpm", x, weights.up), "batch", "pos", "mlp")
        down = jnp.einsum("bpm,em->bpe", self.activate(gate) * up, weights.down)
        return self.shard(down, "batch", "pos", "embed")

    def run_block(self, x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        weights = self.use(weights, self.block)
        x = x + self.attend(weights, self.norm(weights.attention_norm, x))
        return x + self.apply_mlp(weights, self.norm(weights.mlp_norm, x)), None

    def compute_loss(self, parameters: Parameters, *inputs: jax.Array) -> jax.Array:
        tokens, targets = inputs
        outer = self.use(parameters._replace(blocks=None), self.axes._replace(blocks=None))
        x = self.shard(outer.embedding[tokens], "batch", "pos", "embed")
        x, _ = jax.lax.scan(self.checkpoint(self.run_block), x, parameters.blocks)
        logits = jnp.einsum("bpe,ve->bpv", self.norm(outer.norm, x), outer.head)
        return self.compute_cross_entropy(logits, targets)

"""GPT-2 in plain JAX, for comparison with `examples/models/gpt2.py`."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .handwritten_model import Affine, HandwrittenModel, hide_future, layer_norm, stack_axes


class Block(NamedTuple):
    """The parameters of a block, or what belongs to each; in the order of the example's fields."""

    attention_norm: Any = Affine()
    query_key_value: Any = Affine(("embed", "qkv", "heads", "head_dim"), ("qkv", "heads", "head_dim"))
    attention_out: Any = Affine(("heads", "head_dim", "embed"))
    mlp_norm: Any = Affine()
    up: Any = Affine(("embed", "mlp"), ("mlp",))
    down: Any = Affine(("mlp", "embed"))


class Parameters(NamedTuple):
    """The parameters of the model, or what belongs to each; those of blocks have the layers in front."""

    token_embedding: Any = ("vocab", "embed")
    position_embedding: Any = ("positions", "embed")
    blocks: Any = stack_axes("layers", Block())
    norm: Any = Affine()


@dataclasses.dataclass(frozen=True)
class HandwrittenGPT2(HandwrittenModel):
    """The model's loss and train step.

    Attributes:
        eps: Added to the variances.
    """

    axes = Parameters()

    eps: float = 1e-5

    def norm(self, weights: Affine, x: jax.Array) -> jax.Array:
        return self.shard(layer_norm(x, weights.weight, weights.bias, self.eps), "batch", "pos", "embed")

    def attend(self, weights: Block, x: jax.Array) -> jax.Array:
        projected = jnp.einsum("bpe,eqhd->bpqhd", x, weights.query_key_value.weight) + weights.query_key_value.bias
        projected = self.shard(projected, "batch", "pos", "qkv", "heads", "head_dim")
        query, key, value = (projected[:, :, at] for at in range(3))
        scores = hide_future(jnp.einsum("bqhd,bkhd->bhqk", query / math.sqrt(query.shape[-1]), key))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
        mixed = self.shard(mixed, "batch", "pos", "heads", "head_dim")
        out = jnp.einsum("bphd,hde->bpe", mixed, weights.attention_out.weight)
        return self.shard(out + weights.attention_out.bias, "batch", "pos", "embed")

    def apply_mlp(self, weights: Block, x: jax.Array) -> jax.Array:
        up = self.shard(jnp.einsum("bpe,em->bpm", x, weights.up.weight) + weights.up.bias, "batch", "pos", "mlp")
        down = jnp.einsum("bpm,me->bpe", jax.nn.gelu(up), weights.down.weight)
        return self.shard(down + weights.down.bias, "batch", "pos", "embed")

    def run_block(self, x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        weights = self.use(weights, Block())
        x = x + self.attend(weights, self.norm(weights.attention_norm, x))
        return x + self.apply_mlp(weights, self.norm(weights.mlp_norm, x)), None

    def compute_loss(self, parameters: Parameters, *inputs: jax.Array) -> jax.Array:
        tokens, targets = inputs
        outer = self.use(parameters._replace(blocks=None), self.axes._replace(blocks=None))
        x = outer.token_embedding[tokens] + outer.position_embedding[: tokens.shape[-1]]
        x = self.shard(x, "batch", "pos", "embed")
        x, _ = jax.lax.scan(self.checkpoint(self.run_block), x, parameters.blocks)
        logits = jnp.einsum("bpe,ve->bpv", self.norm(outer.norm, x), outer.token_embedding)
        return self.compute_cross_entropy(logits, targets)

"""BERT in plain JAX, trained to find masked tokens, for comparison with `examples/models/bert.py`."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .encoder import DOWN, UP, Attention, HandwrittenEncoder
from .handwritten_model import TOKENS, Affine, Input, stack_axes


FLAGS = Input(("batch", "pos"), of="flags")


class Block(NamedTuple):
    """The parameters of a block, or what belongs to each; in the order of the example's fields."""

    attention: Any = Attention()
    attention_norm: Any = Affine()
    up: Any = UP
    down: Any = DOWN
    mlp_norm: Any = Affine()


class Parameters(NamedTuple):
    """The parameters of the model, or what belongs to each; those of blocks have the layers in front."""

    token_embedding: Any = ("vocab", "embed")
    position_embedding: Any = ("positions", "embed")
    type_embedding: Any = ("types", "embed")
    embedding_norm: Any = Affine()
    blocks: Any = stack_axes("layers", Block())
    head: Any = Affine(("head_embed", "embed"), ("head_embed",))
    head_norm: Any = Affine(("head_embed",), ("head_embed",))
    head_bias: Any = ("vocab",)


@dataclasses.dataclass(frozen=True)
class HandwrittenBERT(HandwrittenEncoder):
    """The model's loss and train step.

    Its inputs are tokens, 0 where they are padding and else 1, their types, the targets, and 1 where they count.
    """

    axes = Parameters()
    inputs = (TOKENS, FLAGS, Input(("batch", "pos"), of="types"), TOKENS, FLAGS)

    def run_block(self, x: jax.Array, weights: Any, is_token: jax.Array) -> tuple[jax.Array, None]:
        weights = self.use(weights, Block())
        query = self.project(weights.attention.query, x)
        key, value = self.project_source(weights.attention, x)
        scores = self.score(query, key)
        scores = jnp.where(is_token[:, None, None, :], scores, jnp.finfo(scores.dtype).min)
        x = self.norm(weights.attention_norm, x + self.mix(weights.attention, scores, value))
        return self.norm(weights.mlp_norm, x + self.apply_mlp(weights.up, weights.down, x)), None

    def compute_loss(self, parameters: Parameters, *inputs: jax.Array) -> jax.Array:
        tokens, mask, types, targets, is_masked = inputs
        outer = self.use(parameters._replace(blocks=None), self.axes._replace(blocks=None))
        x = outer.token_embedding[tokens] + outer.position_embedding[: tokens.shape[-1]] + outer.type_embedding[types]
        x = self.norm(outer.embedding_norm, self.shard(x, "batch", "pos", "embed"))
        block = self.checkpoint(lambda x, weights: self.run_block(x, weights, mask == 1))
        x, _ = jax.lax.scan(block, x, parameters.blocks)
        x = jnp.einsum("bpe,he->bph", x, outer.head.weight) + outer.head.bias
        x = self.norm(outer.head_norm, jax.nn.gelu(self.shard(x, "batch", "pos", "embed"), approximate=False))
        logits = jnp.einsum("bpe,ve->bpv", x, outer.token_embedding) + outer.head_bias
        return self.compute_cross_entropy(logits, targets, is_masked == 1)

"""What BERT, ViT and Whisper share in plain JAX: layer norms, attention and a perceptron, with biases."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .handwritten_model import Affine, HandwrittenModel, layer_norm


class Attention(NamedTuple):
    """The parameters of an attention, or what belongs to each; in the order of the examples' fields."""

    query: Any = Affine(("heads", "head_dim", "embed"), ("heads", "head_dim"))
    key: Any = Affine(("heads", "head_dim", "embed"), ("heads", "head_dim"))
    value: Any = Affine(("heads", "head_dim", "embed"), ("heads", "head_dim"))
    out: Any = Affine(("embed", "heads", "head_dim"))


UP = Affine(("mlp", "embed"), ("mlp",))
DOWN = Affine(("embed", "mlp"))


@dataclasses.dataclass(frozen=True)
class HandwrittenEncoder(HandwrittenModel):
    """The layers.

    Attributes:
        eps: Added to the variances.
    """

    eps: float = 1e-12

    def norm(self, weights: Affine, x: jax.Array) -> jax.Array:
        return self.shard(layer_norm(x, weights.weight, weights.bias, self.eps), "batch", "pos", "embed")

    def project(self, weights: Affine, x: jax.Array) -> jax.Array:
        """Returns queries, keys or values."""
        x = jnp.einsum("bpe,hde->bphd", x, weights.weight)
        x = x if weights.bias is None else x + weights.bias
        return self.shard(x, "batch", "pos", "heads", "head_dim")

    def score(self, query: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.einsum("bqhd,bkhd->bhqk", query / math.sqrt(query.shape[-1]), key)

    def mix(self, weights: Attention, scores: jax.Array, value: jax.Array) -> jax.Array:
        """Returns what each query gets, by its scores."""
        x = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
        x = self.shard(x, "batch", "pos", "heads", "head_dim")
        x = jnp.einsum("bphd,ehd->bpe", x, weights.out.weight) + weights.out.bias
        return self.shard(x, "batch", "pos", "embed")

    def attend(self, weights: Attention, x: jax.Array, source: jax.Array) -> jax.Array:
        """Returns what positions get from all those of the source."""
        query, key, value = self.project(weights.query, x), *self.project_source(weights, source)
        return self.mix(weights, self.score(query, key), value)

    def project_source(self, weights: Attention, source: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns keys and values."""
        return self.project(weights.key, source), self.project(weights.value, source)

    def apply_mlp(self, up: Affine, down: Affine, x: jax.Array) -> jax.Array:
        x = self.shard(jnp.einsum("bpe,me->bpm", x, up.weight) + up.bias, "batch", "pos", "mlp")
        x = jnp.einsum("bpm,em->bpe", jax.nn.gelu(x, approximate=False), down.weight) + down.bias
        return self.shard(x, "batch", "pos", "embed")

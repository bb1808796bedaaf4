"""The decoder-only transformer that `train_lm.py` trains: RMSNorm, rotary embeddings, SwiGLU and a scan over layers.

The model does not mention a mesh: its axes have names, and the training program maps the names to mesh axes.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax

import axonym as nym
from axonym import Axis, NamedArray
from axonym.nn import KVCache


class Axes(NamedTuple):
    """All axes of the model."""

    batch: Axis
    pos: Axis
    key_pos: Axis
    embed: Axis
    heads: Axis
    head_dim: Axis
    mlp: Axis
    vocab: Axis
    layers: Axis


def make_axes(batch: int, seq: int, embed: int, layers: int) -> Axes:
    head_dim = 32 if embed % 32 == 0 else embed
    heads = embed // head_dim
    return Axes(
        *nym.make_axes(batch=batch, pos=seq, key_pos=seq, embed=embed, heads=heads, head_dim=head_dim),
        *nym.make_axes(mlp=3 * embed, vocab=256, layers=layers),
    )


class Block(eqx.Module):
    """Pre-norm attention and a pre-norm gated MLP, each with a residual connection."""

    attention_norm: nym.nn.RmsNorm
    query: nym.nn.Linear
    key: nym.nn.Linear
    value: nym.nn.Linear
    out: nym.nn.Linear
    mlp_norm: nym.nn.RmsNorm
    gate: nym.nn.Linear
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(axes: Axes, *, key: jax.Array) -> "Block":
        keys = iter(jax.random.split(key, 7))
        norm, head, residual = nym.nn.RmsNorm.init, (axes.heads, axes.head_dim), 1 / math.sqrt(2 * axes.layers.size)

        def linear(In: Any, Out: Any, scale: float = 1.0) -> nym.nn.Linear:
            return nym.nn.Linear.init(In, Out, key=next(keys), use_bias=False, init_scale=scale)

        return Block(
            attention_norm=norm(axes.embed),
            query=linear(axes.embed, head),
            key=linear(axes.embed, head),
            value=linear(axes.embed, head),
            out=linear(head, axes.embed, residual),
            mlp_norm=norm(axes.embed),
            gate=linear(axes.embed, axes.mlp),
            up=linear(axes.embed, axes.mlp),
            down=linear(axes.mlp, axes.embed, residual),
        )

    def __call__(self, x: NamedArray) -> NamedArray:
        return self.decode(x, None)[0]

    def decode(self, x: NamedArray, cache: KVCache | None) -> tuple[NamedArray, tuple[NamedArray, NamedArray]]:
        """Returns the result with the keys and values of these positions, which the cache does not have yet."""
        attended, new = self.attention(self.attention_norm(x), cache)
        x = x + attended.rearrange(x.names)
        y = self.mlp_norm(x)
        return x + self.down(nym.nn.silu(self.gate(y)) * self.up(y)), new

    def attention(self, x: NamedArray, cache: KVCache | None) -> tuple[NamedArray, tuple[NamedArray, NamedArray]]:
        pos, (_, head_dim) = x.resolve_axis("pos"), self.query.Out
        positions = None if cache is None else cache.positions(pos)
        query = nym.nn.rotary_embedding(self.query(x), pos, head_dim, positions=positions)
        key, value = nym.nn.rotary_embedding(self.key(x), pos, head_dim, positions=positions), self.value(x)
        if cache is None:
            keys, values = key.rename({"pos": "key_pos"}), value.rename({"pos": "key_pos"})
            mask = nym.nn.AttentionMask.causal()
        else:
            keys, values, mask = cache.extend(key, value, pos)
        return self.out(nym.nn.dot_product_attention("key_pos", head_dim, query, keys, values, mask)), (key, value)


class Transformer(eqx.Module):
    """Maps bytes to the logits of the next byte."""

    embedding: nym.nn.Embedding
    blocks: nym.nn.Stacked[Block]
    norm: nym.nn.RmsNorm
    head: nym.nn.Linear

    @staticmethod
    def init(axes: Axes, *, key: jax.Array) -> "Transformer":
        embedding_key, blocks_key, head_key = jax.random.split(key, 3)
        return Transformer(
            nym.nn.Embedding.init(axes.vocab, axes.embed, key=embedding_key, init_scale=0.02),
            nym.nn.Stacked.init(axes.layers, Block, gradient_checkpointing=True)(axes, key=blocks_key),
            nym.nn.RmsNorm.init(axes.embed),
            nym.nn.Linear.init(axes.embed, axes.vocab, key=head_key, use_bias=False, init_scale=0.5),
        )

    def __call__(self, tokens: NamedArray) -> NamedArray:
        return self.head(self.norm(self.blocks.fold(self.embedding(tokens))))

    def init_cache(self, Batch: Axis, KPos: Axis, **options: Any) -> KVCache:
        """Returns an empty cache for `decode`; options are those of `KVCache.init`."""
        return KVCache.init(KPos, (self.blocks.Block, Batch, *self.blocks.stacked.key.Out), **options)

    def decode(self, tokens: NamedArray, cache: KVCache, *, last_only: bool = False) -> tuple[NamedArray, KVCache]:
        """Returns the logits of new tokens, or of the last one alone, and the cache with their keys and values."""
        x, (key, value) = self.blocks.scan_via(Block.decode)(self.embedding(tokens), cache)
        x = self.norm(x["pos", -1:] if last_only else x)
        return self.head(x), cache.update(key, value, "pos")

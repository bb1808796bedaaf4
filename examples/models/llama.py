"""Llama 3 (Grattafiori et al., 2024) and earlier ones."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax

import axonym as nym
from axonym import Axis, NamedArray
from axonym.nn import Embedding, KVCache, Linear, RmsNorm, RotaryScaling, Stacked

from .common import NewKeys, Pretrained, attend, read_rotary, rotate


NAMES = {
    "embedding": "model.embed_tokens",
    "blocks": "model.layers",
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}


class Config(NamedTuple):
    """The axes of the model, and its other numbers."""

    vocab: Axis
    layers: Axis
    embed: Axis
    heads: Axis  # of keys and values; each serves a group of queries
    group: Axis
    head_dim: Axis
    mlp: Axis
    eps: float = 1e-5
    theta: float = 500000.0
    scaling: RotaryScaling | None = None
    tied: bool = False  # whether the embedding is also the head
    context: str = "auto"  # how devices that share positions exchange keys

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> "Config":
        """Returns the configuration that a `config.json` describes."""
        if config.get("attention_bias") or config.get("mlp_bias") or config["hidden_act"] != "silu":
            raise ValueError("this Llama has no biases, and its activation is 'silu'")
        embed, queries = config["hidden_size"], config["num_attention_heads"]
        heads = config.get("num_key_value_heads") or queries
        theta, scaling = read_rotary(config)
        return Config(
            *nym.make_axes(vocab=config["vocab_size"], layers=config["num_hidden_layers"], embed=embed),
            *nym.make_axes(heads=heads, group=queries // heads, head_dim=config.get("head_dim") or embed // queries),
            *nym.make_axes(mlp=config["intermediate_size"]),
            eps=config["rms_norm_eps"],
            theta=theta,
            scaling=scaling,
            tied=config["tie_word_embeddings"],
        )


class Block(Pretrained):
    """Pre-norm attention and a pre-norm gated MLP, each with a residual connection.

    The names `query`, `key`, `value` and `attention_out` are for policies of what is saved for the backward pass.
    """

    config: Config = eqx.field(static=True)
    attention_norm: RmsNorm
    query: Linear
    key: Linear
    value: Linear
    attention_out: Linear
    mlp_norm: RmsNorm
    gate: Linear
    up: Linear
    down: Linear

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "Block":
        keys = iter(jax.random.split(key, 7))
        queries = (config.heads, config.group, config.head_dim)

        def linear(In: Any, Out: Any) -> Linear:
            return Linear.init(In, Out, key=next(keys), use_bias=False)

        return Block(
            config=config,
            attention_norm=RmsNorm.init(config.embed, config.eps),
            query=linear(config.embed, queries),
            key=linear(config.embed, (config.heads, config.head_dim)),
            value=linear(config.embed, (config.heads, config.head_dim)),
            attention_out=linear(queries, config.embed),
            mlp_norm=RmsNorm.init(config.embed, config.eps),
            gate=linear(config.embed, config.mlp),
            up=linear(config.embed, config.mlp),
            down=linear(config.mlp, config.embed),
        )

    def __call__(self, x: NamedArray, cache: KVCache | None = None) -> tuple[NamedArray, NewKeys]:
        y = self.attention_norm(x)
        query, key = rotate(self.query(y), self.key(y), cache, self.config.theta, self.config.scaling)
        query, key, value = map(nym.tree_checkpoint_name, (query, key, self.value(y)), ("query", "key", "value"))
        attended, new = attend(query, key, value, cache, context=self.config.context)
        x = x + nym.tree_checkpoint_name(self.attention_out(attended).rearrange(x.names), "attention_out")
        y = self.mlp_norm(x)
        gate, up = map(nym.tree_checkpoint_name, (self.gate(y), self.up(y)), ("gate", "up"))
        return x + self.down(nym.nn.silu(gate) * up), new


class SequenceParallelBlock(Block):
    """The same layer, whose positions are called `token` within its halves and `pos` between them.

    A mapping can then shard heads, the MLP and `pos` over one mesh axis: the values between the halves, of which each
    device would have a copy, are sharded over their positions (Korthikanti et al., "Reducing Activation Recomputation
    in Large Transformer Models", 2023).
    """

    def __call__(self, x: NamedArray, cache: KVCache | None = None) -> tuple[NamedArray, NewKeys]:
        y = nym.shard(self.attention_norm(x).rename({"pos": "token"}))
        query, key = self.query(y), self.key(y)
        query, key = rotate(query, key, cache, self.config.theta, self.config.scaling, Pos="token")
        query, key, value = map(nym.tree_checkpoint_name, (query, key, self.value(y)), ("query", "key", "value"))
        attended, new = attend(query, key, value, cache, Pos="token", context=self.config.context)
        out = nym.shard(self.attention_out(attended).rearrange(y.names).rename({"token": "pos"}))
        x = x + nym.tree_checkpoint_name(out, "attention_out")
        y = nym.shard(self.mlp_norm(x).rename({"pos": "token"}))
        gate, up = map(nym.tree_checkpoint_name, (self.gate(y), self.up(y)), ("gate", "up"))
        return x + nym.shard(self.down(nym.nn.silu(gate) * up).rename({"token": "pos"})), new


class Llama(Pretrained):
    """Maps tokens to the logits of the next token."""

    config: Config = eqx.field(static=True)
    embedding: Embedding
    blocks: Stacked[Block]
    norm: RmsNorm
    head: Linear | None

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "Llama":
        embedding_key, blocks_key, head_key = jax.random.split(key, 3)
        return Llama(
            config,
            Embedding.init(config.vocab, config.embed, key=embedding_key, init_scale=0.02),
            Stacked.init(config.layers, Block, gradient_checkpointing=True)(config, key=blocks_key),
            RmsNorm.init(config.embed, config.eps),
            None if config.tied else Linear.init(config.embed, config.vocab, key=head_key, use_bias=False),
        )

    def use_sequence_parallelism(self) -> "Llama":
        """Returns the model with layers whose values between their halves can be sharded over `pos`."""
        layers = SequenceParallelBlock(**vars(self.blocks.stacked))
        return dataclasses.replace(self, blocks=dataclasses.replace(self.blocks, stacked=layers))

    def init_cache(self, Batch: Axis, KPos: Axis, **options: Any) -> KVCache:
        """Returns an empty cache for `decode`; options are those of `KVCache.init`."""
        return KVCache.init(KPos, (self.config.layers, Batch, self.config.heads, self.config.head_dim), **options)

    def __call__(self, tokens: NamedArray) -> NamedArray:
        return self.decode(tokens, None)[0]

    def decode(
        self, tokens: NamedArray, cache: KVCache | None, *, last_only: bool = False
    ) -> tuple[NamedArray, KVCache | None]:
        """Returns the logits of new tokens, or of the last one alone, and the cache with their keys and values."""
        x, new = self.blocks.scan(self.embedding(tokens), cache)
        x = self.norm(x["pos", -1:] if last_only else x)
        return self.embedding.unembed(x) if self.head is None else self.head(x), cache and cache.update(*new, Pos="pos")

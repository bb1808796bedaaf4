"""Gemma 2 (Riviere et al., 2024): layers with a sliding window alternate with layers that attend to everything."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax

import axonym as nym
from axonym import Axis, NamedArray
from axonym.nn import Embedding, KVCache, Linear, RmsNorm, RotaryScaling, Stacked

from .common import NewKeys, Pretrained, attend, number_layers, read_rotary, rotate


NAMES = {
    "embedding": "model.embed_tokens",
    "pairs": "model.layers",
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_out": "self_attn.o_proj",
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "mlp_out_norm": "post_feedforward_layernorm",
    "norm": "model.norm",
}
Caches = tuple[KVCache, KVCache]


class Config(NamedTuple):
    """The axes of the model, and its other numbers."""

    vocab: Axis
    pairs: Axis  # of layers
    embed: Axis
    heads: Axis  # of keys and values; each serves a group of queries
    group: Axis
    head_dim: Axis
    mlp: Axis
    window: int
    scale: float  # of the scores of attention
    score_cap: float | None = 50.0
    logit_cap: float | None = 30.0
    eps: float = 1e-6
    theta: float = 10000.0
    scaling: RotaryScaling | None = None

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> "Config":
        """Returns the configuration that a `config.json` describes."""
        layers, heads = config["num_hidden_layers"], config["num_key_value_heads"]
        if layers % 2 or config.get("attention_bias") or config["hidden_activation"] != "gelu_pytorch_tanh":
            raise ValueError("this Gemma 2 has pairs of layers, no biases, and the activation 'gelu_pytorch_tanh'")
        theta, scaling = read_rotary(config)
        return Config(
            *nym.make_axes(vocab=config["vocab_size"], pairs=layers // 2, embed=config["hidden_size"], heads=heads),
            *nym.make_axes(group=config["num_attention_heads"] // heads, head_dim=config["head_dim"]),
            *nym.make_axes(mlp=config["intermediate_size"]),
            window=config["sliding_window"],
            scale=config["query_pre_attn_scalar"] ** -0.5,
            score_cap=config["attn_logit_softcapping"],
            logit_cap=config["final_logit_softcapping"],
            eps=config["rms_norm_eps"],
            theta=theta,
            scaling=scaling,
        )


class OffsetNorm(Pretrained):
    """RMSNorm that multiplies by 1 plus its parameter."""

    weight: NamedArray
    norm: RmsNorm

    @staticmethod
    def init(config: Config) -> "OffsetNorm":
        return OffsetNorm(nym.zeros(config.embed), RmsNorm.init(config.embed, config.eps, use_weight=False))

    def __call__(self, x: NamedArray) -> NamedArray:
        return nym.auto_sharded((self.norm(x) * (1 + nym.auto_sharded(self.weight))).astype(x.dtype))


class Block(Pretrained):
    """Attention and a gated MLP, each with a norm before and after and a residual connection."""

    config: Config = eqx.field(static=True)
    window: int | None = eqx.field(static=True)
    attention_norm: OffsetNorm
    query: Linear
    key: Linear
    value: Linear
    attention_out: Linear
    attention_out_norm: OffsetNorm
    mlp_norm: OffsetNorm
    gate: Linear
    up: Linear
    down: Linear
    mlp_out_norm: OffsetNorm

    @staticmethod
    def init(config: Config, window: int | None, *, key: jax.Array) -> "Block":
        keys = iter(jax.random.split(key, 7))
        queries = (config.heads, config.group, config.head_dim)

        def linear(In: Any, Out: Any) -> Linear:
            return Linear.init(In, Out, key=next(keys), use_bias=False)

        return Block(
            config=config,
            window=window,
            attention_norm=OffsetNorm.init(config),
            query=linear(config.embed, queries),
            key=linear(config.embed, (config.heads, config.head_dim)),
            value=linear(config.embed, (config.heads, config.head_dim)),
            attention_out=linear(queries, config.embed),
            attention_out_norm=OffsetNorm.init(config),
            mlp_norm=OffsetNorm.init(config),
            gate=linear(config.embed, config.mlp),
            up=linear(config.embed, config.mlp),
            down=linear(config.mlp, config.embed),
            mlp_out_norm=OffsetNorm.init(config),
        )

    def __call__(self, x: NamedArray, cache: KVCache | None = None) -> tuple[NamedArray, NewKeys]:
        y, options = self.attention_norm(x), {"scale": self.config.scale, "soft_cap": self.config.score_cap}
        query, key = rotate(self.query(y), self.key(y), cache, self.config.theta, self.config.scaling)
        attended, new = attend(query, key, self.value(y), cache, window=self.window, **options)
        x = x + self.attention_out_norm(self.attention_out(attended)).rearrange(x.names)
        y = self.mlp_norm(x)
        return x + self.mlp_out_norm(self.down(nym.nn.gelu(self.gate(y)) * self.up(y))), new


class Pair(Pretrained):
    """A layer with a sliding window, and one that attends to everything."""

    near: Block
    far: Block

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "Pair":
        near_key, far_key = jax.random.split(key)
        return Pair(Block.init(config, config.window, key=near_key), Block.init(config, None, key=far_key))

    def to_state_dict(self, prefix: str | None = None) -> dict[str, Any]:
        near, far = number_layers(prefix)
        return self.near.to_state_dict(near) | self.far.to_state_dict(far)

    def from_state_dict(self, state_dict: Mapping[str, Any], prefix: str | None = None) -> "Pair":
        near, far = number_layers(prefix)
        return Pair(self.near.from_state_dict(state_dict, near), self.far.from_state_dict(state_dict, far))

    def __call__(self, x: NamedArray, caches: Caches | None = None) -> tuple[NamedArray, tuple[NewKeys, NewKeys]]:
        near_cache, far_cache = caches or (None, None)
        x, near = self.near(x, near_cache)
        x, far = self.far(x, far_cache)
        return x, (near, far)


class Gemma2(Pretrained):
    """Maps tokens to the logits of the next token."""

    config: Config = eqx.field(static=True)
    embedding: Embedding
    pairs: Stacked[Pair]
    norm: OffsetNorm

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "Gemma2":
        embedding_key, pairs_key = jax.random.split(key)
        return Gemma2(
            config,
            Embedding.init(config.vocab, config.embed, key=embedding_key, init_scale=0.02),
            Stacked.init(config.pairs, Pair, gradient_checkpointing=True)(config, key=pairs_key),
            OffsetNorm.init(config),
        )

    def init_cache(self, Batch: Axis, KPos: Axis, **options: Any) -> Caches:
        """Returns empty caches for `decode`; options are those of `KVCache.init`."""
        axes = (self.config.pairs, Batch, self.config.heads, self.config.head_dim)
        window_options = {**options, "sliding_window": True}
        window_cache = KVCache.init(KPos.resize(self.config.window), axes, **window_options)
        return window_cache, KVCache.init(KPos, axes, **options)

    def __call__(self, tokens: NamedArray) -> NamedArray:
        return self.decode(tokens, None)[0]

    def decode(
        self, tokens: NamedArray, cache: Caches | None, *, last_only: bool = False
    ) -> tuple[NamedArray, Caches | None]:
        """Returns the logits of new tokens, or of the last one alone, and the caches with their keys and values."""
        x = self.embedding(tokens) * math.sqrt(self.config.embed.size)
        x, (near, far) = self.pairs.scan(x, cache)
        logits = self.embedding.unembed(self.norm(x["pos", -1:] if last_only else x))
        if (cap := self.config.logit_cap) is not None:
            logits = cap * nym.tanh(logits / cap)
        return logits, cache and (cache[0].update(*near, Pos="pos"), cache[1].update(*far, Pos="pos"))

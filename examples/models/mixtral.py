"""Mixtral (Jiang et al., 2024), a mixture of experts."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax

import axonym as nym
from axonym import Axis, NamedArray
from axonym.nn import Embedding, KVCache, Linear, MixtureMetrics, MixtureOfExperts, RmsNorm, RotaryScaling, Stacked

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
    "moe": "block_sparse_moe",
    "norm": "model.norm",
    "head": "lm_head",
}
EXPERTS = {"gate": "w1", "up": "w3", "down": "w2"}  # of each expert, with outputs before inputs


class Config(NamedTuple):
    """The axes of the model, and its other numbers."""

    vocab: Axis
    layers: Axis
    embed: Axis
    heads: Axis  # of keys and values; each serves a group of queries
    group: Axis
    head_dim: Axis
    mlp: Axis
    experts: Axis
    top_k: int = 2
    eps: float = 1e-5
    theta: float = 1e6
    scaling: RotaryScaling | None = None
    window: int | None = None
    context: str = "auto"  # how devices that share positions exchange keys
    dispatch: Literal["auto", "gather", "all_to_all", "ragged_all_to_all"] = (
        "auto"  # how tokens reach experts elsewhere
    )
    capacity_factor: float | None = None  # of each sequence

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> "Config":
        """Returns the configuration that a `config.json` describes."""
        if config["hidden_act"] != "silu" or config["tie_word_embeddings"]:
            raise ValueError("Mixtral has the activation 'silu' and a head of its own")
        embed, queries = config["hidden_size"], config["num_attention_heads"]
        heads = config.get("num_key_value_heads") or queries
        theta, scaling = read_rotary(config)
        return Config(
            *nym.make_axes(vocab=config["vocab_size"], layers=config["num_hidden_layers"], embed=embed),
            *nym.make_axes(heads=heads, group=queries // heads, head_dim=config.get("head_dim") or embed // queries),
            *nym.make_axes(mlp=config["intermediate_size"], experts=config["num_local_experts"]),
            top_k=config["num_experts_per_tok"],
            eps=config["rms_norm_eps"],
            theta=theta,
            scaling=scaling,
            window=config.get("sliding_window"),
        )


class Block(Pretrained):
    """Pre-norm attention and a pre-norm mixture of gated MLPs, each with a residual connection."""

    config: Config = eqx.field(static=True)
    attention_norm: RmsNorm
    query: Linear
    key: Linear
    value: Linear
    attention_out: Linear
    mlp_norm: RmsNorm
    moe: MixtureOfExperts

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "Block":
        keys = iter(jax.random.split(key, 5))
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
            moe=MixtureOfExperts.init(
                config.embed,
                config.mlp,
                config.experts,
                config.top_k,
                key=next(keys),
                capacity_factor=config.capacity_factor,
                capacity_axis=None if config.capacity_factor is None else "pos",
                dispatch=config.dispatch,
            ),
        )

    def to_saved(self) -> Any:
        moe = self.moe
        weights = {name: getattr(moe, field).unbind("experts") for field, name in EXPERTS.items()}
        experts = [
            {name: {"weight": each[at].rearrange(each[at].names[::-1])} for name, each in weights.items()}
            for at in range(self.config.experts.size)
        ]
        return {**vars(self), "moe": {"gate": moe.router, "experts": experts}}

    def from_saved(self, saved: Any) -> "Block":
        router, experts = saved["moe"]["gate"], saved["moe"]["experts"]
        weights = {
            field: nym.stack(self.config.experts, [each[name]["weight"] for each in experts])
            for field, name in EXPERTS.items()
        }
        weights = {field: x.rearrange(getattr(self.moe, field).names) for field, x in weights.items()}
        return dataclasses.replace(self, **{**saved, "moe": dataclasses.replace(self.moe, router=router, **weights)})

    def __call__(
        self, x: NamedArray, cache: KVCache | None = None
    ) -> tuple[NamedArray, tuple[NewKeys, MixtureMetrics]]:
        y = self.attention_norm(x)
        query, key = rotate(self.query(y), self.key(y), cache, self.config.theta, self.config.scaling)
        query, key, value = map(nym.tree_checkpoint_name, (query, key, self.value(y)), ("query", "key", "value"))
        attended, new = attend(query, key, value, cache, window=self.config.window, context=self.config.context)
        x = x + nym.tree_checkpoint_name(self.attention_out(attended).rearrange(x.names), "attention_out")
        mixed, metrics = self.moe(self.mlp_norm(x))
        return x + mixed, (new, metrics)


class Mixtral(Pretrained):
    """Maps tokens to the logits of the next token."""

    config: Config = eqx.field(static=True)
    embedding: Embedding
    blocks: Stacked[Block]
    norm: RmsNorm
    head: Linear

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "Mixtral":
        embedding_key, blocks_key, head_key = jax.random.split(key, 3)
        return Mixtral(
            config,
            Embedding.init(config.vocab, config.embed, key=embedding_key, init_scale=0.02),
            Stacked.init(config.layers, Block, gradient_checkpointing=True)(config, key=blocks_key),
            RmsNorm.init(config.embed, config.eps),
            Linear.init(config.embed, config.vocab, key=head_key, use_bias=False),
        )

    def init_cache(self, Batch: Axis, KPos: Axis, **options: Any) -> KVCache:
        """Returns an empty cache for `decode`; options are those of `KVCache.init`."""
        window = self.config.window
        if window is not None and window < KPos.size:
            KPos, options = KPos.resize(window), {**options, "sliding_window": True}
        return KVCache.init(KPos, (self.config.layers, Batch, self.config.heads, self.config.head_dim), **options)

    def __call__(self, tokens: NamedArray) -> NamedArray:
        """Returns the logits; to train with the auxiliary losses, see `run_blocks`."""
        return self.run_blocks(tokens, None)[0]

    def decode(
        self, tokens: NamedArray, cache: KVCache | None, *, last_only: bool = False
    ) -> tuple[NamedArray, KVCache | None]:
        """Returns the logits of new tokens, or of the last one alone, and the cache with their keys and values."""
        logits, (new, _) = self.run_blocks(tokens, cache, last_only)
        return logits, cache and new and cache.update(*new, Pos="pos")

    def run_blocks(
        self, tokens: NamedArray, cache: KVCache | None, last_only: bool = False
    ) -> tuple[NamedArray, tuple[NewKeys, MixtureMetrics]]:
        """Returns the logits, and what the blocks return: new keys, and metrics with the auxiliary losses of each."""
        x, found = self.blocks.scan(self.embedding(tokens), cache)
        return self.head(self.norm(x["pos", -1:] if last_only else x)), found

"""GPT-2 (Radford et al., 2019), without its dropout."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax

import axonym as nym
from axonym import Axis, NamedArray
from axonym.nn import Embedding, KVCache, LayerNorm, Linear, Stacked

from .common import NewKeys, Pretrained, attend, embed_positions


NAMES = {
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "blocks": "transformer.h",
    "attention_norm": "ln_1",
    "query_key_value": "attn.c_attn",
    "attention_out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
    "norm": "transformer.ln_f",
}


class Config(NamedTuple):
    """The axes of the model, and its other numbers."""

    vocab: Axis
    positions: Axis
    layers: Axis
    embed: Axis
    heads: Axis
    head_dim: Axis
    mlp: Axis
    eps: float = 1e-5

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> "Config":
        """Returns the configuration that a `config.json` describes."""
        embed, heads = config["n_embd"], config["n_head"]
        if config.get("activation_function", "gelu_new") != "gelu_new":
            raise ValueError(f"the activation is {config['activation_function']!r}; GPT-2 has 'gelu_new'")
        return Config(
            *nym.make_axes(vocab=config["vocab_size"], positions=config["n_positions"], layers=config["n_layer"]),
            *nym.make_axes(embed=embed, heads=heads, head_dim=embed // heads, mlp=config.get("n_inner") or 4 * embed),
            eps=config["layer_norm_epsilon"],
        )


class Block(Pretrained):
    """Pre-norm attention and a pre-norm MLP, each with a residual connection."""

    attention_norm: LayerNorm
    query_key_value: Linear
    attention_out: Linear
    mlp_norm: LayerNorm
    up: Linear
    down: Linear

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "Block":
        keys = iter(jax.random.split(key, 4))
        heads = (config.heads, config.head_dim)

        def linear(In: Any, Out: Any) -> Linear:
            return Linear.init(In, Out, key=next(keys), out_first=False)

        return Block(
            attention_norm=LayerNorm.init(config.embed, config.eps),
            query_key_value=linear(config.embed, (Axis("qkv", 3), *heads)),
            attention_out=linear(heads, config.embed),
            mlp_norm=LayerNorm.init(config.embed, config.eps),
            up=linear(config.embed, config.mlp),
            down=linear(config.mlp, config.embed),
        )

    def __call__(self, x: NamedArray, cache: KVCache | None = None) -> tuple[NamedArray, NewKeys]:
        query, key, value = self.query_key_value(self.attention_norm(x)).unbind("qkv")
        attended, new = attend(query, key, value, cache)
        x = x + self.attention_out(attended).rearrange(x.names)
        return x + self.down(nym.nn.gelu(self.up(self.mlp_norm(x)))), new


class GPT2(Pretrained):
    """Maps tokens to the logits of the next token."""

    config: Config = eqx.field(static=True)
    token_embedding: Embedding
    position_embedding: Embedding
    blocks: Stacked[Block]
    norm: LayerNorm

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "GPT2":
        token_key, position_key, blocks_key = jax.random.split(key, 3)
        return GPT2(
            config,
            Embedding.init(config.vocab, config.embed, key=token_key, init_scale=0.02),
            Embedding.init(config.positions, config.embed, key=position_key, init_scale=0.01),
            Stacked.init(config.layers, Block, gradient_checkpointing=True)(config, key=blocks_key),
            LayerNorm.init(config.embed, config.eps),
        )

    def init_cache(self, Batch: Axis, KPos: Axis, **options: Any) -> KVCache:
        """Returns an empty cache for `decode`; options are those of `KVCache.init`."""
        _, _, layers, _, heads, head_dim, *_ = self.config
        return KVCache.init(KPos, (layers, Batch, heads, head_dim), **options)

    def __call__(self, tokens: NamedArray) -> NamedArray:
        return self.decode(tokens, None)[0]

    def decode(
        self, tokens: NamedArray, cache: KVCache | None, *, last_only: bool = False
    ) -> tuple[NamedArray, KVCache | None]:
        """Returns the logits of new tokens, or of the last one alone, and the cache with their keys and values."""
        Pos = tokens.resolve_axis("pos")
        x = self.token_embedding(tokens) + embed_positions(self.position_embedding, Pos, cache)
        x, new = self.blocks.scan(x, cache)
        x = self.norm(x["pos", -1:] if last_only else x)
        return self.token_embedding.unembed(x), cache and cache.update(*new, Pos="pos")

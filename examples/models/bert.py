"""BERT (Devlin et al., 2019) with its head for masked tokens, without its dropout."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax

import axonym as nym
from axonym import Axis, NamedArray
from axonym.nn import Embedding, LayerNorm, Linear, Stacked

from .common import Pretrained, embed_positions


NAMES = {
    "token_embedding": "bert.embeddings.word_embeddings",
    "position_embedding": "bert.embeddings.position_embeddings",
    "type_embedding": "bert.embeddings.token_type_embeddings",
    "embedding_norm": "bert.embeddings.LayerNorm",
    "blocks": "bert.encoder.layer",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "mlp_norm": "output.LayerNorm",
    "head": "cls.predictions.transform.dense",
    "head_norm": "cls.predictions.transform.LayerNorm",
    "head_bias": "cls.predictions.bias",
}


class Config(NamedTuple):
    """The axes of the model, and its other numbers."""

    vocab: Axis
    positions: Axis
    types: Axis
    layers: Axis
    embed: Axis
    heads: Axis
    head_dim: Axis
    mlp: Axis
    eps: float = 1e-12

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> "Config":
        """Returns the configuration that a `config.json` describes."""
        embed, heads = config["hidden_size"], config["num_attention_heads"]
        if config.get("hidden_act", "gelu") != "gelu":
            raise ValueError(f"the activation is {config['hidden_act']!r}; BERT has 'gelu'")
        return Config(
            *nym.make_axes(vocab=config["vocab_size"], positions=config["max_position_embeddings"]),
            *nym.make_axes(types=config["type_vocab_size"], layers=config["num_hidden_layers"], embed=embed),
            *nym.make_axes(heads=heads, head_dim=embed // heads, mlp=config["intermediate_size"]),
            eps=config["layer_norm_eps"],
        )


class Block(Pretrained):
    """Attention and an MLP, each with a residual connection and a norm after it."""

    query: Linear
    key: Linear
    value: Linear
    attention_out: Linear
    attention_norm: LayerNorm
    up: Linear
    down: Linear
    mlp_norm: LayerNorm

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "Block":
        keys = iter(jax.random.split(key, 6))
        heads = (config.heads, config.head_dim)

        def linear(In: Any, Out: Any) -> Linear:
            return Linear.init(In, Out, key=next(keys))

        return Block(
            query=linear(config.embed, heads),
            key=linear(config.embed, heads),
            value=linear(config.embed, heads),
            attention_out=linear(heads, config.embed),
            attention_norm=LayerNorm.init(config.embed, config.eps),
            up=linear(config.embed, config.mlp),
            down=linear(config.mlp, config.embed),
            mlp_norm=LayerNorm.init(config.embed, config.eps),
        )

    def __call__(self, x: NamedArray, mask: NamedArray | None) -> NamedArray:
        key, value = (layer(x).rename({"pos": "key_pos"}) for layer in (self.key, self.value))
        attended = nym.nn.dot_product_attention("key_pos", "head_dim", self.query(x), key, value, mask)
        x = self.attention_norm(x + self.attention_out(attended).rearrange(x.names))
        return self.mlp_norm(x + self.down(nym.nn.gelu(self.up(x), approximate=False)))


class BERT(Pretrained):
    """Maps tokens, some of which are masked, to the logits of the tokens."""

    config: Config = eqx.field(static=True)
    token_embedding: Embedding
    position_embedding: Embedding
    type_embedding: Embedding
    embedding_norm: LayerNorm
    blocks: Stacked[Block]
    head: Linear
    head_norm: LayerNorm
    head_bias: NamedArray

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "BERT":
        *keys, blocks_key, head_key = jax.random.split(key, 5)
        axes, embed = (config.vocab, config.positions, config.types), config.embed
        tables = (Embedding.init(axis, embed, key=key, init_scale=0.02) for axis, key in zip(axes, keys, strict=True))
        token_embedding, position_embedding, type_embedding = tables
        return BERT(
            config,
            token_embedding,
            position_embedding,
            type_embedding,
            LayerNorm.init(embed, config.eps),
            Stacked.init(config.layers, Block, gradient_checkpointing=True)(config, key=blocks_key),
            Linear.init(embed, embed.alias("head_embed"), key=head_key),  # input and output need different names
            LayerNorm.init(embed.alias("head_embed"), config.eps),
            nym.zeros(config.vocab),
        )

    def encode(self, tokens: NamedArray, mask: NamedArray | None = None, types: NamedArray | None = None) -> NamedArray:
        """Returns the hidden states.

        Args:
            tokens: Integer array with axis `pos`.
            mask: Boolean array with axis `pos`, False where a token is padding.
            types: Integer array, to which segment a token belongs; 0 if None.
        """
        Pos = tokens.resolve_axis("pos")
        x = self.token_embedding(tokens) + embed_positions(self.position_embedding, Pos)
        x = self.embedding_norm(x + self.type_embedding(nym.zeros(Pos, int) if types is None else types))
        return self.blocks.fold(x, None if mask is None else mask.rename({Pos: "key_pos"}))

    def __call__(
        self, tokens: NamedArray, mask: NamedArray | None = None, types: NamedArray | None = None
    ) -> NamedArray:
        """Returns the logits of all tokens; see `encode`."""
        x = self.head_norm(nym.nn.gelu(self.head(self.encode(tokens, mask, types)), approximate=False))
        return self.token_embedding.unembed(x.rename({"head_embed": self.config.embed})) + self.head_bias

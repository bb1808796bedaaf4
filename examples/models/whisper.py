"""Whisper (Radford et al., 2022): an encoder of speech and a decoder of text, without their dropout."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax

import axonym as nym
from axonym import Axis, NamedArray
from axonym.nn import Conv, Embedding, KVCache, LayerNorm, Linear, Stacked

from .common import NewKeys, Pretrained, attend, embed_positions


NAMES = {
    "encoder": "model.encoder",
    "decoder": "model.decoder",
    "position_embedding": "embed_positions",
    "token_embedding": "embed_tokens",
    "blocks": "layers",
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "out": "out_proj",
    "self_norm": "self_attn_layer_norm",
    "cross_norm": "encoder_attn_layer_norm",
    "mlp_norm": "final_layer_norm",
    "up": "fc1",
    "down": "fc2",
    "norm": "layer_norm",
}
Source = tuple[NamedArray, NamedArray]  # keys and values of the encoded speech, of one layer or all of the decoder


class Config(NamedTuple):
    """The axes of the model: of both stacks, then of the encoder and of the decoder."""

    embed: Axis
    mel: Axis
    source: Axis
    vocab: Axis
    positions: Axis
    encoder: tuple[Axis, ...]  # layers, heads, head_dim and mlp
    decoder: tuple[Axis, ...]

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> "Config":
        """Returns the configuration that a `config.json` describes."""
        if config.get("activation_function", "gelu") != "gelu" or config.get("scale_embedding"):
            raise ValueError("Whisper has the activation 'gelu', and its embeddings are not scaled")
        embed = config["d_model"]

        def make_stack(which: str) -> tuple[Axis, ...]:
            layers, heads, mlp = (config[f"{which}_{what}"] for what in ("layers", "attention_heads", "ffn_dim"))
            return nym.make_axes(layers=layers, heads=heads, head_dim=embed // heads, mlp=mlp)

        return Config(
            *nym.make_axes(embed=embed, mel=config["num_mel_bins"], source=config["max_source_positions"]),
            *nym.make_axes(vocab=config["vocab_size"], positions=config["max_target_positions"]),
            encoder=make_stack("encoder"),
            decoder=make_stack("decoder"),
        )


class Attention(Pretrained):
    """The four projections of an attention; that of keys has no bias."""

    query: Linear
    key: Linear
    value: Linear
    out: Linear

    @staticmethod
    def init(Embed: Axis, heads: tuple[Axis, ...], *, key: jax.Array) -> "Attention":
        keys = jax.random.split(key, 4)
        query, keys_, value = (Linear.init(Embed, heads, key=keys[i], use_bias=i != 1) for i in range(3))
        return Attention(query, keys_, value, Linear.init(heads, Embed, key=keys[3]))

    def project(self, x: NamedArray) -> Source:
        """Returns keys and values, with the axis of key positions."""
        return self.key(x).rename({"pos": "key_pos"}), self.value(x).rename({"pos": "key_pos"})

    def __call__(self, x: NamedArray, keys: NamedArray, values: NamedArray) -> NamedArray:
        attended = nym.nn.dot_product_attention("key_pos", "head_dim", self.query(x), keys, values)
        return self.out(attended).rearrange(x.names)


class Block(Pretrained):
    """Pre-norm attention and a pre-norm MLP; in the decoder with attention to the encoded speech between them."""

    self_norm: LayerNorm
    self_attention: Attention
    cross_norm: LayerNorm | None
    cross_attention: Attention | None
    mlp_norm: LayerNorm
    up: Linear
    down: Linear

    @staticmethod
    def init(Embed: Axis, stack: tuple[Axis, ...], is_decoder: bool, *, key: jax.Array) -> "Block":
        self_key, cross_key, up_key, down_key = jax.random.split(key, 4)
        _, *heads, mlp = stack
        return Block(
            LayerNorm.init(Embed),
            Attention.init(Embed, (*heads,), key=self_key),
            LayerNorm.init(Embed) if is_decoder else None,
            Attention.init(Embed, (*heads,), key=cross_key) if is_decoder else None,
            LayerNorm.init(Embed),
            Linear.init(Embed, mlp, key=up_key),
            Linear.init(mlp, Embed, key=down_key),
        )

    def __call__(self, x: NamedArray, cache: KVCache | None = None, source: Any = None) -> tuple[NamedArray, NewKeys]:
        y, attention, new = self.self_norm(x), self.self_attention, None
        if self.cross_norm is None or self.cross_attention is None:
            x = x + attention(y, *attention.project(y))
        else:
            attended, new = attend(attention.query(y), attention.key(y), attention.value(y), cache)
            x = x + attention.out(attended).rearrange(x.names)
            source = source if isinstance(source, tuple) else self.cross_attention.project(source)
            x = x + self.cross_attention(self.cross_norm(x), *source)
        return x + self.down(nym.nn.gelu(self.up(self.mlp_norm(x)), approximate=False)), new


class Encoder(Pretrained):
    """Maps spectrograms with axes `mel` and `frames` to hidden states with axes `pos` and `embed`, at half the rate."""

    conv1: Conv
    conv2: Conv
    position_embedding: Embedding
    blocks: Stacked[Block]
    norm: LayerNorm

    def __call__(self, features: NamedArray) -> NamedArray:
        x = nym.nn.gelu(self.conv1(features.rearrange((..., "frames", "mel"))), approximate=False)
        x = nym.nn.gelu(self.conv2(x.rename({"embed": "hidden"})), approximate=False).rename({"frames": "pos"})
        return self.norm(self.blocks.scan(x + self.position_embedding.weight.rename({"source": "pos"}))[0])


class Decoder(Pretrained):
    token_embedding: Embedding
    position_embedding: Embedding
    blocks: Stacked[Block]
    norm: LayerNorm


class Whisper(Pretrained):
    """Maps speech and tokens to the logits of the next token."""

    config: Config = eqx.field(static=True)
    encoder: Encoder
    decoder: Decoder

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "Whisper":
        keys = iter(jax.random.split(key, 7))
        embed, mel, source, vocab, positions, encoder, decoder = config

        def conv(In: Axis, stride: int) -> Conv:
            return Conv.init("frames", In, embed, kernel_size=3, stride=stride, padding=1, key=next(keys))

        def embedding(axis: Axis) -> Embedding:
            return Embedding.init(axis, embed, key=next(keys), init_scale=0.02)

        def stack(axes: tuple[Axis, ...], is_decoder: bool) -> tuple[Stacked[Block], LayerNorm]:
            make = Stacked.init(axes[0], Block, gradient_checkpointing=True)
            return make(embed, axes, is_decoder, key=next(keys)), LayerNorm.init(embed)

        listener = Encoder(conv(mel, 1), conv(embed.alias("hidden"), 2), embedding(source), *stack(encoder, False))
        return Whisper(config, listener, Decoder(embedding(vocab), embedding(positions), *stack(decoder, True)))

    def init_cache(self, Batch: Axis, KPos: Axis, **options: Any) -> KVCache:
        """Returns an empty cache for `decode`; options are those of `KVCache.init`."""
        layers, heads, head_dim, _ = self.config.decoder
        return KVCache.init(KPos, (layers, Batch, heads, head_dim), **options)

    def encode(self, features: NamedArray) -> Source:
        """Returns the keys and values of speech for each layer of the decoder; features have axes `mel`, `frames`."""
        encoded, layers = self.encoder(features), self.config.decoder[0]
        return nym.vmap(lambda block: block.cross_attention.project(encoded), layers)(self.decoder.blocks.stacked)

    def __call__(self, features: NamedArray, tokens: NamedArray) -> NamedArray:
        return self.decode(tokens, None, self.encoder(features))[0]

    def decode(
        self, tokens: NamedArray, cache: KVCache | None, source: Any, *, last_only: bool = False
    ) -> tuple[NamedArray, KVCache | None]:
        """Returns the logits of new tokens, or of the last one alone, and the cache with their keys and values.

        `source` may also be the encoded speech.
        """
        Pos, decoder = tokens.resolve_axis("pos"), self.decoder
        x = decoder.token_embedding(tokens) + embed_positions(decoder.position_embedding, Pos, cache)
        x, new = decoder.blocks.scan(x, cache, source)
        x = decoder.norm(x["pos", -1:] if last_only else x)
        return decoder.token_embedding.unembed(x), cache and cache.update(*new, Pos="pos")

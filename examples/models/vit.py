"""The vision transformer (Dosovitskiy et al., 2021) with its classification head, without its dropout."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax

import axonym as nym
from axonym import Axis, NamedArray
from axonym.nn import LayerNorm, Linear, Stacked

from .common import Pretrained


NAMES = {
    "class_embedding": "vit.embeddings.cls_token",
    "position_embedding": "vit.embeddings.position_embeddings",
    "patch_embedding": "vit.embeddings.patch_embeddings.projection",
    "blocks": "vit.encoder.layer",
    "attention_norm": "layernorm_before",
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "attention_out": "attention.output.dense",
    "mlp_norm": "layernorm_after",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm": "vit.layernorm",
    "head": "classifier",
}


class Config(NamedTuple):
    """The axes of the model, and its other numbers."""

    channels: Axis
    rows: Axis
    columns: Axis
    patch_rows: Axis
    patch_columns: Axis
    layers: Axis
    embed: Axis
    heads: Axis
    head_dim: Axis
    mlp: Axis
    labels: Axis
    eps: float = 1e-12

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> "Config":
        """Returns the configuration that a `config.json` describes."""
        embed, heads = config["hidden_size"], config["num_attention_heads"]
        patch, count = config["patch_size"], config["image_size"] // config["patch_size"]
        if config.get("hidden_act", "gelu") != "gelu":
            raise ValueError(f"the activation is {config['hidden_act']!r}; ViT has 'gelu'")
        return Config(
            *nym.make_axes(channels=config["num_channels"], rows=count, columns=count),
            *nym.make_axes(patch_rows=patch, patch_columns=patch, layers=config["num_hidden_layers"]),
            *nym.make_axes(embed=embed, heads=heads, head_dim=embed // heads, mlp=config["intermediate_size"]),
            labels=Axis("labels", len(config.get("id2label", range(2)))),
            eps=config["layer_norm_eps"],
        )

    @property
    def pos(self) -> Axis:
        """The axis of positions: the class token, then the patches row by row."""
        return Axis("pos", 1 + self.rows.size * self.columns.size)


class Block(Pretrained):
    """Pre-norm attention and a pre-norm MLP, each with a residual connection."""

    attention_norm: LayerNorm
    query: Linear
    key: Linear
    value: Linear
    attention_out: Linear
    mlp_norm: LayerNorm
    up: Linear
    down: Linear

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "Block":
        keys = iter(jax.random.split(key, 6))
        heads = (config.heads, config.head_dim)

        def linear(In: Any, Out: Any) -> Linear:
            return Linear.init(In, Out, key=next(keys))

        return Block(
            attention_norm=LayerNorm.init(config.embed, config.eps),
            query=linear(config.embed, heads),
            key=linear(config.embed, heads),
            value=linear(config.embed, heads),
            attention_out=linear(heads, config.embed),
            mlp_norm=LayerNorm.init(config.embed, config.eps),
            up=linear(config.embed, config.mlp),
            down=linear(config.mlp, config.embed),
        )

    def __call__(self, x: NamedArray) -> NamedArray:
        y = self.attention_norm(x)
        key, value = (layer(y).rename({"pos": "key_pos"}) for layer in (self.key, self.value))
        attended = nym.nn.dot_product_attention("key_pos", "head_dim", self.query(y), key, value)
        x = x + self.attention_out(attended).rearrange(x.names)
        return x + self.down(nym.nn.gelu(self.up(self.mlp_norm(x)), approximate=False))


class ViT(Pretrained):
    """Maps images to the logits of their labels."""

    config: Config = eqx.field(static=True)
    class_embedding: NamedArray
    position_embedding: NamedArray
    patch_embedding: Linear
    blocks: Stacked[Block]
    norm: LayerNorm
    head: Linear

    @staticmethod
    def init(config: Config, *, key: jax.Array) -> "ViT":
        class_key, position_key, patch_key, blocks_key, head_key = jax.random.split(key, 5)
        patch = (config.channels, config.patch_rows, config.patch_columns)
        return ViT(
            config,
            0.02 * nym.random.normal(class_key, config.embed),
            0.02 * nym.random.normal(position_key, (config.pos, config.embed)),
            Linear.init(patch, config.embed, key=patch_key),
            Stacked.init(config.layers, Block, gradient_checkpointing=True)(config, key=blocks_key),
            LayerNorm.init(config.embed, config.eps),
            Linear.init(config.embed, config.labels, key=head_key),
        )

    def to_saved(self) -> Any:
        one, patch = nym.make_axes(one=1, another=1), self.patch_embedding
        return {
            **vars(self),
            "class_embedding": self.class_embedding.broadcast_axis(one),
            "position_embedding": self.position_embedding.broadcast_axis(one[0]),
            "patch_embedding": {"weight": patch.weight, "bias": patch.bias},  # a weight whose axes are not merged
        }

    def from_saved(self, saved: Any) -> "ViT":
        embedding, patch = saved["class_embedding"]["one", 0, "another", 0], saved["patch_embedding"]
        saved = {
            **saved,
            "class_embedding": embedding,
            "position_embedding": saved["position_embedding"]["one", 0],
            "patch_embedding": dataclasses.replace(self.patch_embedding, **patch),
        }
        return dataclasses.replace(self, **saved)

    def __call__(self, images: NamedArray) -> NamedArray:
        """Returns the logits of images with axes `channels`, `height` and `width`, and any others."""
        config = self.config
        patches = images.unflatten_axis("height", (config.rows, config.patch_rows))
        patches = patches.unflatten_axis("width", (config.columns, config.patch_columns))
        x = self.patch_embedding(patches).flatten_axes((config.rows, config.columns), "pos")
        token = nym.broadcast_axis(self.class_embedding, [axis for axis in x.axes if axis.name not in ("pos", "embed")])
        x = nym.concatenate("pos", (token.broadcast_axis(Axis("pos", 1)).rearrange(x.names), x))
        x = self.norm(self.blocks.fold(x + self.position_embedding))
        return self.head(x["pos", 0])

"""The vision transformer in plain JAX, trained to classify images, for comparison with `examples/models/vit.py`."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .encoder import DOWN, UP, Attention, HandwrittenEncoder
from .handwritten_model import Affine, Input, stack_axes


class Block(NamedTuple):
    """The parameters of a block, or what belongs to each; in the order of the example's fields."""

    attention_norm: Any = Affine()
    attention: Any = Attention()
    mlp_norm: Any = Affine()
    up: Any = UP
    down: Any = DOWN


class Parameters(NamedTuple):
    """The parameters of the model, or what belongs to each; those of blocks have the layers in front."""

    class_embedding: Any = ("embed",)
    position_embedding: Any = ("patches", "embed")  # and the class
    patch_embedding: Any = Affine(("embed", "channels", "patch_rows", "patch_columns"))
    blocks: Any = stack_axes("layers", Block())
    norm: Any = Affine()
    head: Any = Affine(("labels", "embed"), ("labels",))


@dataclasses.dataclass(frozen=True)
class HandwrittenViT(HandwrittenEncoder):
    """The model's loss and train step, of images and their labels."""

    axes = Parameters()
    inputs = (Input(("batch", "channels", "height", "width")), Input(("batch",), of="labels"))

    def embed_patches(self, weights: Affine, images: jax.Array) -> jax.Array:
        """Returns a vector for each patch, row by row."""
        layout, patch = ("NCHW", "OIHW", "NHWC"), weights.weight.shape[2:]
        x = jax.lax.conv_general_dilated(images, weights.weight, patch, "VALID", dimension_numbers=layout)
        return self.shard(x.reshape(x.shape[0], -1, x.shape[-1]) + weights.bias, "batch", "pos", "embed")

    def run_block(self, x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        weights = self.use(weights, Block())
        y = self.norm(weights.attention_norm, x)
        x = x + self.attend(weights.attention, y, y)
        return x + self.apply_mlp(weights.up, weights.down, self.norm(weights.mlp_norm, x)), None

    def compute_loss(self, parameters: Parameters, *inputs: jax.Array) -> jax.Array:
        images, targets = inputs
        outer = self.use(parameters._replace(blocks=None), self.axes._replace(blocks=None))
        x = self.embed_patches(outer.patch_embedding, images.astype(self.dtype))
        first = jnp.broadcast_to(outer.class_embedding, (x.shape[0], 1, x.shape[-1]))
        x = self.shard(jnp.concatenate([first, x], 1) + outer.position_embedding, "batch", "pos", "embed")
        x, _ = jax.lax.scan(self.checkpoint(self.run_block), x, parameters.blocks)
        x = self.norm(outer.norm, x)[:, 0]
        logits = jnp.einsum("be,le->bl", x, outer.head.weight) + outer.head.bias
        return self.compute_cross_entropy(logits, targets, axes=("batch", "labels"))

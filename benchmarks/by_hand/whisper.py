"""Whisper in plain JAX, trained to predict the next token, for comparison with `examples/models/whisper.py`."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .encoder import DOWN, UP, Attention, HandwrittenEncoder
from .handwritten_model import TOKENS, Affine, Input, hide_future, stack_axes


ATTENTION = Attention(key=Affine(("heads", "head_dim", "embed"), None))


class Block(NamedTuple):
    """The parameters of a block, or what belongs to each; in the order of the example's fields."""

    self_norm: Any = Affine()
    self_attention: Any = ATTENTION
    cross_norm: Any = Affine()
    cross_attention: Any = ATTENTION
    mlp_norm: Any = Affine()
    up: Any = UP
    down: Any = DOWN


ENCODER_BLOCK = Block(cross_norm=None, cross_attention=None)


class Encoder(NamedTuple):
    """The parameters of the encoder, or what belongs to each; those of blocks have the layers in front."""

    conv1: Any = Affine(("embed", "mel", "kernel"))
    conv2: Any = Affine(("embed", "hidden", "kernel"))
    position_embedding: Any = ("source", "embed")
    blocks: Any = stack_axes("layers", ENCODER_BLOCK)
    norm: Any = Affine()


class Decoder(NamedTuple):
    """The parameters of the decoder, or what belongs to each; those of blocks have the layers in front."""

    token_embedding: Any = ("vocab", "embed")
    position_embedding: Any = ("positions", "embed")
    blocks: Any = stack_axes("layers", Block())
    norm: Any = Affine()


class Parameters(NamedTuple):
    """The parameters of the model, or what belongs to each."""

    encoder: Encoder = Encoder()
    decoder: Decoder = Decoder()


@dataclasses.dataclass(frozen=True)
class HandwrittenWhisper(HandwrittenEncoder):
    """The model's loss and train step, of spectrograms, tokens, and the tokens that follow them."""

    axes = Parameters()
    inputs = (Input(("batch", "mel", "frames")), TOKENS, TOKENS)

    eps: float = 1e-5

    def convolve(self, weights: Affine, x: jax.Array, layout: str, stride: int) -> jax.Array:
        """Returns the convolution along frames, with the channels last."""
        layouts = (layout, "OIH", "NHC")
        x = jax.lax.conv_general_dilated(x, weights.weight, (stride,), [(1, 1)], dimension_numbers=layouts)
        return jax.nn.gelu(self.shard(x + weights.bias, "batch", "frames", "embed"), approximate=False)

    def run_encoder_block(self, x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        weights = self.use(weights, ENCODER_BLOCK)
        y = self.norm(weights.self_norm, x)
        x = x + self.attend(weights.self_attention, y, y)
        return x + self.apply_mlp(weights.up, weights.down, self.norm(weights.mlp_norm, x)), None

    def run_decoder_block(self, x: jax.Array, weights: Any, source: jax.Array) -> tuple[jax.Array, None]:
        weights = self.use(weights, Block())
        y, own = self.norm(weights.self_norm, x), weights.self_attention
        query, (key, value) = self.project(own.query, y), self.project_source(own, y)
        x = x + self.mix(own, hide_future(self.score(query, key)), value)
        x = x + self.attend(weights.cross_attention, self.norm(weights.cross_norm, x), source)
        return x + self.apply_mlp(weights.up, weights.down, self.norm(weights.mlp_norm, x)), None

    def encode(self, parameters: Encoder, features: jax.Array) -> jax.Array:
        outer = self.use(parameters._replace(blocks=None), self.axes.encoder._replace(blocks=None))
        x = self.convolve(outer.conv1, features.astype(self.dtype), "NCH", 1)
        x = self.convolve(outer.conv2, x, "NHC", 2) + outer.position_embedding
        x, _ = jax.lax.scan(self.checkpoint(self.run_encoder_block), x, parameters.blocks)
        return self.norm(outer.norm, x)

    def compute_loss(self, parameters: Parameters, *inputs: jax.Array) -> jax.Array:
        features, tokens, targets = inputs
        source, decoder = self.encode(parameters.encoder, features), parameters.decoder
        outer = self.use(decoder._replace(blocks=None), self.axes.decoder._replace(blocks=None))
        x = outer.token_embedding[tokens] + outer.position_embedding[: tokens.shape[-1]]
        x = self.shard(x, "batch", "pos", "embed")
        block = self.checkpoint(lambda x, weights: self.run_decoder_block(x, weights, source))
        x, _ = jax.lax.scan(block, x, decoder.blocks)
        return self.compute_cross_entropy(
            jnp.einsum("bpe,ve->bpv", self.norm(outer.norm, x), outer.token_embedding), targets
        )

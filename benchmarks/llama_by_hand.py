"""Llama and its train step in plain JAX: what `examples/models/llama.py` is compared with once both are compiled.

The parameters are those of the example. Each is cast to the type to compute in and gathered where it is used;
mappings from names of axes to mesh axes give the shardings, because a plan for a TPU pod is as easily written this way.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec as P


class Block(NamedTuple):
    """The parameters of a block, or what belongs to each; in the order of the example's fields."""

    attention_norm: Any
    query: Any
    key: Any
    value: Any
    attention_out: Any
    mlp_norm: Any
    gate: Any
    up: Any
    down: Any


class Parameters(NamedTuple):
    """The parameters of the model, or what belongs to each; those of blocks have the layers in front."""

    embedding: Any
    blocks: Block
    norm: Any
    head: Any


BLOCK = Block(
    attention_norm=("embed",),
    query=("heads", "group", "head_dim", "embed"),
    key=("heads", "head_dim", "embed"),
    value=("heads", "head_dim", "embed"),
    attention_out=("embed", "heads", "group", "head_dim"),
    mlp_norm=("embed",),
    gate=("mlp", "embed"),
    up=("mlp", "embed"),
    down=("embed", "mlp"),
)
AXES = Parameters(
    embedding=("vocab", "embed"),
    blocks=Block(*(("layers", *axes) for axes in BLOCK)),
    norm=("embed",),
    head=("vocab", "embed"),
)


def is_axes(x: Any) -> bool:
    return isinstance(x, tuple) and not isinstance(x, Parameters | Block)


@dataclasses.dataclass(frozen=True)
class HandwrittenLlama:
    """The model's loss and train step.

    Attributes:
        sizes: The size of each axis.
        stored: From names of axes to mesh axes, for parameters between steps.
        compute: The same, for parameters and activations where they are used.
        dtype: The dtype to compute in.
        mesh: The mesh, or None for one device.
        eps: Added to the mean squares.
        theta: Base of the angles of rotary embeddings.
        remat: Whether blocks are computed again on the way back.
    """

    sizes: Mapping[str, int]
    stored: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    compute: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dtype: Any = jnp.float32
    mesh: Any = None
    eps: float = 1e-5
    theta: float = 500000.0
    remat: bool = True

    def make_sharding(self, axes: tuple[str, ...], mapping: Mapping[str, Any]) -> NamedSharding:
        return NamedSharding(self.mesh, P(*(mapping.get(name) for name in axes)))

    def shard(self, x: jax.Array, *axes: str) -> jax.Array:
        if self.mesh is None:
            return x
        return jax.lax.with_sharding_constraint(x, self.make_sharding(axes, self.compute))

    def use(self, weight: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        """Returns a parameter in the dtype to compute in, gathered from where it is stored."""
        weight = weight.astype(self.dtype)
        if self.mesh is not None:  # both, so that the gradient is scattered, too
            weight = jax.lax.with_sharding_constraint(weight, self.make_sharding(axes, self.stored))
        return self.shard(weight, *axes)

    def norm(self, weight: jax.Array, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + self.eps)
        return self.shard((wide * weight).astype(x.dtype), "batch", "pos", "embed")

    def rotate(self, x: jax.Array) -> jax.Array:
        half = self.sizes["head_dim"] // 2
        frequencies = self.theta ** (jnp.arange(half, dtype=jnp.float32) * (-1 / half))
        angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
        angles = angles.reshape(x.shape[1], *[1] * (x.ndim - 3), half)
        cosine, sine = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
        first, second = jnp.split(x, 2, -1)
        return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    def attend(self, weights: Block, x: jax.Array) -> jax.Array:
        queries, keys = ("batch", "pos", "heads", "group", "head_dim"), ("batch", "pos", "heads", "head_dim")
        query = self.shard(jnp.einsum("bpe,hgde->bphgd", x, weights.query), *queries)
        key = self.shard(jnp.einsum("bpe,hde->bphd", x, weights.key), *keys)
        value = self.shard(jnp.einsum("bpe,hde->bphd", x, weights.value), *keys)
        query, key = self.rotate(query) / math.sqrt(query.shape[-1]), self.rotate(key)
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", query, key)
        positions = jnp.arange(scores.shape[-1])
        scores = jnp.where(positions[:, None] >= positions, scores, jnp.finfo(scores.dtype).min)
        mixed = self.shard(jnp.einsum("bhgqk,bkhd->bqhgd", jax.nn.softmax(scores), value), *queries)
        return self.shard(jnp.einsum("bphgd,ehgd->bpe", mixed, weights.attention_out), "batch", "pos", "embed")

    def run_block(self, x: jax.Array, weights: Block) -> tuple[jax.Array, None]:
        weights = Block(*map(self.use, weights, BLOCK))
        x = x + self.attend(weights, self.norm(weights.attention_norm, x))
        y = self.norm(weights.mlp_norm, x)
        gate = self.shard(jnp.einsum("bpe,me->bpm", y, weights.gate), "batch", "pos", "mlp")
        up = self.shard(jnp.einsum("bpe,me->bpm", y, weights.up), "batch", "pos", "mlp")
        down = jnp.einsum("bpm,em->bpe", jax.nn.silu(gate) * up, weights.down)
        return x + self.shard(down, "batch", "pos", "embed"), None

    def compute_loss(self, parameters: Parameters, inputs: jax.Array, targets: jax.Array) -> jax.Array:
        embedding, norm, head = (
            self.use(getattr(parameters, name), getattr(AXES, name)) for name in ("embedding", "norm", "head")
        )
        x = self.shard(embedding[inputs], "batch", "pos", "embed")
        block = jax.checkpoint(self.run_block, prevent_cse=False) if self.remat else self.run_block
        x, _ = jax.lax.scan(block, x, parameters.blocks)
        logits = jnp.einsum("bpe,ve->bpv", self.norm(norm, x), head)
        logits = self.shard(logits, "batch", "pos", "vocab").astype(jnp.float32)
        # Not `take_along_axis`, which would gather the scores of the whole vocabulary.
        chosen = jnp.where(targets[..., None] == jnp.arange(logits.shape[-1]), logits, 0).sum(-1)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    def make_shapes(self, batch: int, pos: int, optimizer: Any) -> tuple[Any, ...]:
        """Returns the shapes of parameters, optimizer state, inputs and targets, each with its sharding."""

        def make_shape(axes: tuple[str, ...]) -> jax.ShapeDtypeStruct:
            shape = tuple(self.sizes[name] for name in axes)
            sharding = None if self.mesh is None else self.make_sharding(axes, self.stored)
            return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

        parameters = jax.tree.map(make_shape, AXES, is_leaf=is_axes)
        whole = None if self.mesh is None else NamedSharding(self.mesh, P())
        state = optax.tree.map_params(
            optimizer,
            lambda shape, parameter: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=parameter.sharding),
            jax.eval_shape(optimizer.init, parameters),
            parameters,
            transform_non_params=lambda shape: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=whole),
        )
        spread = None if self.mesh is None else self.make_sharding(("batch", "pos"), self.compute)
        tokens = jax.ShapeDtypeStruct((batch, pos), jnp.int32, sharding=spread)
        return parameters, state, tokens, tokens

    def make_train_step(self, optimizer: Any) -> Any:
        """Returns the compiled step, which donates parameters and optimizer state."""

        def train_step(parameters: Any, state: Any, inputs: jax.Array, targets: jax.Array) -> Any:
            loss, gradients = jax.value_and_grad(self.compute_loss)(parameters, inputs, targets)
            updates, state = optimizer.update(gradients, state, parameters)
            return optax.apply_updates(parameters, updates), state, loss

        shapes = self.make_shapes(1, 1, optimizer)
        parameters, state = jax.tree.map(lambda shape: shape.sharding, shapes[:2])
        whole = None if self.mesh is None else NamedSharding(self.mesh, P())
        return jax.jit(train_step, donate_argnums=(0, 1), out_shardings=(parameters, state, whole))

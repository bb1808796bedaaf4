"""Mixtral in plain JAX, Llama with a mixture of experts, for comparison with `examples/models/mixtral.py`."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .handwritten_model import stack_axes
from .llama import HandwrittenLlama, Parameters


class Block(NamedTuple):
    """The parameters of a block, or what belongs to each; in the order of the example's fields."""

    attention_norm: Any = ("embed",)
    query: Any = ("heads", "group", "head_dim", "embed")
    key: Any = ("heads", "head_dim", "embed")
    value: Any = ("heads", "head_dim", "embed")
    attention_out: Any = ("embed", "heads", "group", "head_dim")
    mlp_norm: Any = ("embed",)
    router: Any = ("experts", "embed")
    gate: Any = ("experts", "embed", "mlp")
    up: Any = ("experts", "embed", "mlp")
    down: Any = ("experts", "mlp", "embed")


@dataclasses.dataclass(frozen=True)
class HandwrittenMixtral(HandwrittenLlama):
    """The model's loss and train step.

    Attributes:
        top_k: How many experts each token is sent to.
    """

    block = Block()
    axes = Parameters(blocks=stack_axes("layers", block))

    theta: float = 1e6
    top_k: int = 2

    def apply_mlp(self, weights: Any, x: jax.Array) -> jax.Array:
        arrays = (x, weights.router, weights.gate, weights.up, weights.down)
        if self.mesh is None:
            return self.mix_tokens(*arrays)
        # The compiler cannot divide sorting and `ragged_dot`: each device sends its tokens to its experts.
        names = (("batch", "pos", "embed"), (), self.block.gate, self.block.up, self.block.down)
        specs = tuple(self.make_sharding(axes, self.compute).spec for axes in names)
        mix = jax.shard_map(self.mix_tokens, mesh=self.mesh, in_specs=specs, out_specs=specs[0])
        return self.shard(mix(*arrays), *names[0])

    def mix_tokens(self, x: jax.Array, router: jax.Array, *experts: jax.Array) -> jax.Array:
        """Returns the weighted sum of the experts of each token of this device, or those of its experts."""
        scores = jnp.einsum("bpe,xe->bpx", x.astype(jnp.float32), router.astype(jnp.float32))
        shares, chosen = jax.lax.top_k(jax.nn.softmax(scores), self.top_k)
        shares = (shares / shares.sum(-1, keepdims=True)).astype(x.dtype)
        order, sizes = jnp.argsort(chosen.reshape(-1)), jnp.bincount(chosen.reshape(-1), length=self.sizes["experts"])
        if (axis := self.compute.get("experts")) is not None:  # choices of the experts of this device come first
            first = jax.lax.axis_index(axis) * experts[0].shape[0]
            order = jnp.roll(order, sizes[first] - jnp.cumsum(sizes)[first])
            sizes = jax.lax.dynamic_slice_in_dim(sizes, first, experts[0].shape[0])
        rows = self.apply_experts(x.reshape(-1, x.shape[-1])[order // self.top_k], sizes, *experts)
        rows = rows[jnp.argsort(order)].reshape(*shares.shape, x.shape[-1])
        mixed = jnp.einsum("bpke,bpk->bpe", rows, shares)
        added = tuple(self.compute[name] for name in ("experts", "mlp") if name in self.compute)
        return jax.lax.psum(mixed, added) if added else mixed

    def apply_experts(self, rows: jax.Array, sizes: jax.Array, *experts: jax.Array) -> jax.Array:
        gate, up, down = experts
        rows = self.keep_own(rows, sizes)
        hidden = self.activate(jax.lax.ragged_dot(rows, gate, sizes)) * jax.lax.ragged_dot(rows, up, sizes)
        return self.keep_own(jax.lax.ragged_dot(hidden, down, sizes), sizes)

    def keep_own(self, rows: jax.Array, sizes: jax.Array) -> jax.Array:
        """Returns zeros for rows of other devices' experts, which must not reach the sums, nor the gradient."""
        if "experts" not in self.compute:
            return rows
        return jnp.where(jnp.arange(rows.shape[0])[:, None] < sizes.sum(), rows, 0)

"""Mixtral in plain JAX, Llama with a mixture of experts, for comparison with `examples/models/mixtral.py`."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

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
    axes = Parameters(("vocab", "embed"), stack_axes("layers", block), ("embed",), ("vocab", "embed"))

    theta: float = 1e6
    top_k: int = 2

    def mix(self, weights: Any, x: jax.Array) -> jax.Array:
        arrays = (x, weights.router, weights.gate, weights.up, weights.down)
        axis = self.compute.get("experts")
        if self.mesh is None or axis is None:
            return self.shard(self.mix_tokens(None, *arrays), "batch", "pos", "embed")
        # The compiler cannot divide `ragged_dot` by experts: each device applies its own to its tokens.
        batch, experts = P(self.compute.get("batch")), P(axis)
        mix = functools.partial(self.mix_tokens, axis)
        specs = (batch, P(), experts, experts, experts)
        return jax.shard_map(mix, mesh=self.mesh, in_specs=specs, out_specs=batch, check_vma=False)(*arrays)

    def mix_tokens(self, axis: str | None, x: jax.Array, router: jax.Array, *experts: jax.Array) -> jax.Array:
        """Returns the weighted sum of the experts of each token; `axis` is the mesh axis over which experts lie."""
        wide = jnp.einsum("bpe,xe->bpx", x.astype(jnp.float32), router.astype(jnp.float32))
        shares, chosen = jax.lax.top_k(jax.nn.softmax(wide), self.top_k)
        shares = (shares / shares.sum(-1, keepdims=True)).astype(x.dtype)
        sizes = jnp.bincount(chosen.reshape(-1), length=self.sizes["experts"])
        if axis is not None:  # experts of this device come first
            own = experts[0].shape[0]
            first = jax.lax.axis_index(axis) * own
            chosen = (chosen - first) % self.sizes["experts"]
            sizes = jax.lax.dynamic_slice_in_dim(sizes, first, own)
        order = jnp.argsort(chosen.reshape(-1))
        rows = x.reshape(-1, x.shape[-1])[order // self.top_k]
        rows = self.apply_experts(rows, sizes, *experts)
        if axis is not None:  # rows of other experts hold nothing of use
            rows = jnp.where((jnp.arange(rows.shape[0]) < sizes.sum())[:, None], rows, 0)
        rows = rows[jnp.argsort(order)].reshape(*shares.shape, x.shape[-1])
        mixed = jnp.einsum("bpke,bpk->bpe", rows, shares)
        return mixed if axis is None else jax.lax.psum(mixed, axis)

    def apply_experts(self, rows: jax.Array, sizes: jax.Array, *experts: jax.Array) -> jax.Array:
        gate, up, down = experts
        hidden = jax.nn.silu(jax.lax.ragged_dot(rows, gate, sizes)) * jax.lax.ragged_dot(rows, up, sizes)
        return jax.lax.ragged_dot(hidden, down, sizes)

"""Qwen 3 in plain JAX, Llama with norms of queries and keys, for comparison with `examples/models/qwen3.py`."""

import dataclasses
from typing import Any, NamedTuple

import jax

from .handwritten_model import rms_norm, stack_axes
from .llama import HandwrittenLlama, Parameters


class Block(NamedTuple):
    """The parameters of a block, or what belongs to each; in the order of the example's fields."""

    attention_norm: Any = ("embed",)
    query: Any = ("heads", "group", "head_dim", "embed")
    query_norm: Any = ("head_dim",)
    key: Any = ("heads", "head_dim", "embed")
    key_norm: Any = ("head_dim",)
    value: Any = ("heads", "head_dim", "embed")
    attention_out: Any = ("embed", "heads", "group", "head_dim")
    mlp_norm: Any = ("embed",)
    gate: Any = ("mlp", "embed")
    up: Any = ("mlp", "embed")
    down: Any = ("embed", "mlp")


@dataclasses.dataclass(frozen=True)
class HandwrittenQwen3(HandwrittenLlama):
    """The model's loss and train step."""

    block = Block()
    axes = Parameters(blocks=stack_axes("layers", block))

    eps: float = 1e-6
    theta: float = 1000000.0

    def project(self, weights: Any, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        query, key, value = super().project(weights, x)
        return rms_norm(query, weights.query_norm, self.eps), rms_norm(key, weights.key_norm, self.eps), value

"""A block of a residual network, for tests of what `fsdp` gathers."""

from typing import Any

import equinox as eqx
import jax

import axonym as nym


class Block(eqx.Module):
    norm: nym.nn.LayerNorm
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(Embed: nym.Axis, Mlp: nym.Axis, *, key: Any) -> "Block":
        up_key, down_key = jax.random.split(key)
        up = nym.nn.Linear.init(Embed, Mlp, key=up_key)
        return Block(nym.nn.LayerNorm.init(Embed), up, nym.nn.Linear.init(Mlp, Embed, key=down_key, use_bias=False))

    def __call__(self, x: nym.NamedArray) -> nym.NamedArray:
        return x + self.down(nym.nn.silu(self.up(self.norm(x))))

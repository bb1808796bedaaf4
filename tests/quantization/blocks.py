"""What tests of quantised dots share: small axes, and a stack of blocks of linear layers."""

import equinox as eqx
import jax
import numpy as np

import axonym as nym


Layers, Embed, Mlp, Batch = nym.make_axes(layers=2, embed=16, mlp=8, batch=8)
COMPUTE = {"batch": "data", "mlp": "model"}
PARAMETERS = {**COMPUTE, "embed": "data"}


class Block(eqx.Module):
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(*, key):
        first, second = jax.random.split(key)
        return Block(nym.nn.Linear.init(Embed, Mlp, key=first), nym.nn.Linear.init(Mlp, Embed, key=second))

    def __call__(self, x):
        return x + self.down(nym.nn.relu(self.up(x)))


def make_stack():
    return nym.nn.Stacked.init(Layers, Block, gradient_checkpointing=True)(key=jax.random.key(0))


def squared_error(model, x, y):
    return ((model.fold(x) - y).astype("float32") ** 2).mean().scalar()


def assert_trees_close(found, expected, tolerance):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(*jax.device_get((jax.tree.leaves(found), jax.tree.leaves(expected))), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)

"""A small training step gives the same values on an Auto mesh, on an Explicit one and on one device."""

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym


Embed, Mlp = nym.make_axes(embed=4, mlp=8)
MAPPING = {"batch": "data", "mlp": "model"}


class Block(eqx.Module):
    norm: nym.nn.RmsNorm
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(key):
        up, down = jax.random.split(key)
        return Block(
            nym.nn.RmsNorm.init(Embed),
            nym.nn.Linear.init(Embed, Mlp, key=up),
            nym.nn.Linear.init(Mlp, Embed, key=down, out_first=False),
        )

    def __call__(self, x):
        return x + self.down(nym.nn.gelu(self.up(self.norm(x))))


def step(blocks, x):
    def loss(blocks):
        y = x
        for block in blocks:
            y = block(y)
        return nym.mean(nym.square(y)).array

    value, grads = jax.value_and_grad(loss)(blocks)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, blocks, grads)


def run(compiled):
    """Returns the value and the new parameters of a step from a fixed start, under the mesh and mapping in force."""
    x = nym.auto_sharded(
        nym.NamedArray(np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32), ("batch", "embed"))
    )
    blocks = [Block.init(key) for key in jax.random.split(jax.random.key(0))]
    return compiled(step)(blocks, x)


@pytest.fixture(scope="module")
def reference():
    with jax.set_mesh(None):
        return run(jax.jit)


@pytest.mark.parametrize("compiled", [jax.jit, nym.named_jit], ids=["jit", "named_jit"])
def test_values_do_not_depend_on_the_mesh(mesh, compiled, reference):
    with nym.axis_mapping(MAPPING):
        value, blocks = run(compiled)
    assert blocks[0].up.weight.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, P("model", None)), 2)
    np.testing.assert_allclose(value, reference[0], rtol=1e-5)
    for one, other in zip(jax.tree.leaves(blocks), jax.tree.leaves(reference[1]), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-6)


def test_named_jit_makes_a_sharded_model(mesh, reference):
    with nym.axis_mapping(MAPPING):
        block = nym.named_jit(Block.init)(jax.random.key(0))
    assert block.up.weight.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, P("model", None)), 2)
    assert block.down.weight.names == ("mlp", "embed")
    with jax.set_mesh(None):
        alone = Block.init(jax.random.key(0))
    for one, other in zip(jax.tree.leaves(block), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6)

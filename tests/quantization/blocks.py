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


def assert_trees_close(result, expected, tolerance):
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for leaf, target in zip(*jax.device_get((jax.tree.leaves(result), jax.tree.leaves(expected))), strict=True):
        np.testing.assert_allclose(leaf, target, rtol=tolerance, atol=tolerance)


def check_products(draw, dot_general, round_operand, round_gradient, dtype, tolerance):
    """Compares a product and its gradients with those of rounded operands, and returns the largest magnitude.

    Two axes are contracted and one is of the batch, and the axes of the operands are in different orders.
    """
    x, w = draw(heads=2, batch=8, embed=4, pos=3).astype(dtype), draw(embed=4, mlp=5, batch=8, pos=3).astype(dtype)
    g = draw(batch=8, heads=2, mlp=5).astype(dtype)

    @jax.jit
    def multiply(x, w, g):
        out, pull = jax.vjp(lambda x, w: nym.dot(x, w, axis=("embed", "pos"), dot_general=dot_general), x, w)
        return out, *pull(g)

    results = multiply(x, w, g)
    whole_x, whole_w, whole_g = (np.asarray(operand.array, np.float32) for operand in (x, w, g))
    left, right, back = round_operand(whole_x, "x"), round_operand(whole_w, "w"), round_gradient(whole_g)
    equations = {"hbep,embp->bhm": (left, right), "bhm,embp->hbep": (back, right), "bhm,hbep->embp": (back, left)}
    assert results[0].names == ("batch", "heads", "mlp")
    for result, (equation, operands) in zip(results, equations.items(), strict=True):
        expected = np.einsum(equation, *operands)
        assert result.dtype == dtype
        np.testing.assert_allclose(np.asarray(result.array, np.float32), expected, rtol=tolerance, atol=tolerance)
    return np.abs(whole_x).max()

"""What tests of layers share: random layers and inputs, and one check against a reference, sharded and not."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import axonym as nym


COMPUTE = {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model"}
PARAMETERS = {**COMPUTE, "embed": "data"}


class Draw:
    """Draws with NumPy, and puts arrays onto a device without `jnp.asarray`: there is nothing to compile."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)

    def __call__(self, *axes: nym.Axis) -> nym.NamedArray:
        return nym.named(self.array(tuple(axis.size for axis in axes)), axes)

    def array(self, shape: tuple[int, ...], scale: float = 1.0) -> jax.Array:
        return jax.device_put((scale * self.random.normal(size=shape)).astype(np.float32))

    def layer(self, init: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The layer that `init` makes for these arguments and a key, with every parameter drawn anew."""
        shapes = eqx.filter_eval_shape(lambda: init(*args, key=jax.random.key(0), **kwargs))
        is_shape = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)  # noqa: E731
        return jax.tree.map(lambda leaf: self.array(leaf.shape, 0.5) if is_shape(leaf) else leaf, shapes)


def keyless(init: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function for `draw.layer` that makes a layer without a key."""
    return lambda *args, key, **kwargs: init(*args, **kwargs)


@pytest.fixture
def draw(getkey: Any) -> Draw:
    return Draw(getkey.seed)


def weighted(out: nym.NamedArray) -> jax.Array:
    """A scalar to differentiate: every element of the result counts, each differently."""
    weights = np.sin(1 + np.arange(out.size, dtype=np.float32)).reshape(out.array.shape)
    return (out.astype(jnp.float32) * nym.named(weights, out.names)).sum().scalar()


def results(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of a layer and its inputs that gives the result and the gradients for both."""

    def computed(layer: Any, args: Any) -> Any:
        differentiated, static = eqx.partition((layer, args), eqx.is_inexact_array)

        def loss(differentiated: Any) -> Any:
            layer, args = eqx.combine(differentiated, static)
            out = fn(layer, *args)
            return weighted(out), out

        gradients, out = jax.grad(loss, has_aux=True)(differentiated)
        return out, gradients

    return computed


def arrays(tree: Any) -> list[nym.NamedArray]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, nym.NamedArray))
    return [leaf for leaf in leaves if isinstance(leaf, nym.NamedArray) and leaf.array is not None]


@pytest.fixture
def check(auto_mesh: Mesh, explicit_mesh: Mesh) -> Callable[..., None]:
    """Compares a function of a layer and inputs with a reference: without a mesh, and on both kinds of mesh.

    On a mesh the layer is sharded by one mapping and used under another, which lacks `embed`: its result has the
    sharding of its names under the second, and its gradient that under the first.
    """

    def checked(fn: Any, reference: Any, layer: Any, *args: Any, tolerance: float = 1e-5) -> None:
        compute = jax.jit(lambda *operands: (results(fn)(*operands), results(reference)(*operands)))
        result, expected = compute(layer, args)
        assert_close(result, expected, tolerance)
        for mesh in (auto_mesh, explicit_mesh):
            with jax.set_mesh(mesh):
                assert_close(on_mesh(fn, layer, args), expected, tolerance)

    return checked


def assert_close(result: Any, expected: Any, tolerance: float) -> None:
    result, expected = arrays(result), arrays(expected)
    assert [x.names for x in result] == [x.names for x in expected]
    for actual, target in zip(result, expected, strict=True):
        assert actual.dtype == target.dtype
        actual, target = jax.device_get((actual.array, target.array))
        np.testing.assert_allclose(actual, target, rtol=tolerance, atol=tolerance)


def assert_leaves_close(results: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Compares trees of one structure leaf by leaf, on whatever devices their arrays are."""
    assert jax.tree.structure(results) == jax.tree.structure(expected)
    for result, target in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(jax.device_get(result), jax.device_get(target), rtol=tolerance, atol=tolerance)


def on_mesh(fn: Callable[..., Any], layer: Any, args: Any) -> tuple[Any, Any]:
    """Computes sharded results and checks that they are as their names say.

    They leave the compiled function without names: nothing but the layers themselves shards them.
    """
    traced = []

    def step(layer: Any, args: Any) -> list[Any]:
        out, (for_layer, for_args) = results(fn)(layer, args)
        traced[:] = arrays((out, for_layer, for_args))
        return [x.array for x in arrays((out, nym.shard(for_layer, PARAMETERS), for_args))]

    result = nym.named_jit(step, COMPUTE)(nym.shard(layer, PARAMETERS), nym.shard(args, COMPUTE))
    result = [nym.named(array, x.names) for array, x in zip(result, traced, strict=True)]
    of_layer = len(arrays(layer))
    for x, mapping in zip(result, [COMPUTE, *[PARAMETERS] * of_layer], strict=False):
        expected = nym.sharding_for_axis(x.axes, mapping)
        assert x.sharding.is_equivalent_to(expected, x.ndim), f"{x}: {x.sharding}, not {expected}"
    return result[0], result[1:]

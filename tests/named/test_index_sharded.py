"""Picking and replacing elements of sharded arrays: the values of the whole array, sharded as the names say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym
from axonym import Axis, dslice
from tests.refusals import refusal


SHARDED = {
    "integer": (lambda x, i: x["batch", 3], "pm"),
    "slice": (lambda x, i: x["batch", 2:6], "dpm"),
    "dslice": (lambda x, i: x["batch", dslice(2, 4)], "dpm"),
    "list": (lambda x, i: x["batch", [3, 0, 7, 3]], "dpm"),
    "named": (lambda x, i: x["embed", i % 4], "dppp"),
    "named of sharded": (lambda x, i: x["batch", i], "pppm"),
    "aligned": (lambda x, i: x["pos", nym.arange(Axis("batch", 8)) % 3], "dm"),
    "several": (lambda x, i: x["batch", 0:4, "embed", 1, "pos", i % 3], "dpp"),
    "set": (lambda x, i: x.at["batch", 3].set(0.0), "dpm"),
    "set dslice": (lambda x, i: x.at["batch", dslice(3, 3)].set(x["batch", 0]), "dpm"),
    "add named": (lambda x, i: x.at["batch", i].add(1.0), "dpm"),
    "multiply aligned": (lambda x, i: x.at["pos", nym.arange(Axis("batch", 8)) % 3].multiply(2.0), "dpm"),
    "fill of two axes": (lambda x, i: x.at["pos", wide, "batch", 2:6].get(fill=0.0), "dpm"),
    "set of a mask": (lambda x, i: x.at["batch", mask].set(x["batch", 0]), "dpm"),
    "apply repeated": (lambda x, i: x.at["batch", nym.named([0, 2, 0], "i")].apply(jnp.negative), "dpm"),
    "add of a mask": (lambda x, i: x.at["pos", wide, "embed", nym.named([0, 2], "i")].add(1.0), "dpm"),
    "power of a mask": (lambda x, i: x.at["pos", wide, "embed", 1].power(2), "dpm"),
    "known mask": (lambda x, i: x["batch", np.arange(8) % 2 == 0], "dpm"),
}
mask = nym.named(np.arange(8) % 3 > 0, "batch")
wide = nym.named(np.arange(24).reshape(3, 8) % 5 > 1, ("pos", "batch"))


def test_sharded_arrays(check_sharded, draw):
    operands = draw(batch=8, pos=3, embed=4), draw.integers(0, 8, q=2, r=3)
    check_sharded(SHARDED, *operands, outside=("integer", "aligned", "set dslice", "set of a mask"))


def test_a_slice_that_the_mesh_does_not_divide(explicit_mesh):
    with jax.set_mesh(explicit_mesh):
        y = nym.zeros({"batch": 8})
        with nym.axis_mapping(batch="data"), refusal("axis 'batch' has size 3, which is not divisible"):
            nym.shard(y)["batch", 0:3]
        with nym.axis_mapping(batch="data", uneven="replicate"):
            assert nym.shard(y)["batch", 0:3].sharding.spec == jax.P(None)


def test_an_array_on_a_mesh_that_is_not_in_force(mesh, draw):
    x = draw(batch=8, embed=4)
    sharded = nym.shard(x, {"batch": "data", "embed": "model"})
    with jax.set_mesh(None):
        assert np.array_equal(sharded["batch", 4:].array, x.array[4:])
        assert np.array_equal(nym.flip(sharded, "batch").array, x.array[::-1])


@pytest.mark.parametrize("types", ["Auto Auto", "Explicit Explicit", "Explicit Auto"])
def test_updates_along_an_axis_that_is_sharded_in_the_same_function(types):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=tuple(AxisType[kind] for kind in types.split()))
    random = np.random.default_rng(0)
    x, y, weight = (random.uniform(0.5, 1.5, shape).astype(np.float32) for shape in ((8, 4), (8,), (8, 4)))

    def compute(method, x, y):
        def update(x, y):
            return getattr(nym.auto_sharded(x).at["b", 3], method)(y)

        weights = nym.named(weight, ("a", "b"))
        gradients = nym.grad(lambda operands: (update(*operands) * weights).sum())((x, y))
        return update(weights, y), gradients

    def compute_all(x, y):
        return {method: compute(method, x, y) for method in ("set", "power")}

    operands = nym.named(x, ("a", "b")), nym.named(y, "a")
    expected = jax.tree.map(np.asarray, jax.jit(compute_all)(*operands))
    with jax.set_mesh(mesh), nym.axis_mapping({"a": "y", "b": "x"}):
        results = jax.tree.map(np.asarray, nym.named_jit(compute_all)(*operands))
    for result, other in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-4)

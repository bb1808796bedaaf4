"""Picking and replacing elements of sharded arrays: the values of the whole array, sharded as the names say."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym
from axonym import Axis, dslice


SHARDED = {
    "integer": (lambda x, i: x["batch", 3], "pm"),
    "integer of another axis": (lambda x, i: x["pos", 1], "dm"),
    "two integers": (lambda x, i: x["embed", 1, "pos", 2], "d"),
    "slice": (lambda x, i: x["batch", 2:6], "dpm"),
    "backwards": (lambda x, i: x["embed", ::-1], "dpm"),
    "dslice": (lambda x, i: x["batch", dslice(2, 4)], "dpm"),
    "list": (lambda x, i: x["batch", [3, 0, 7, 3]], "dpm"),
    "named": (lambda x, i: x["embed", i % 4], "dppp"),
    "named of sharded": (lambda x, i: x["batch", i], "pppm"),
    "aligned": (lambda x, i: x["pos", nym.arange(Axis("batch", 8)) % 3], "dm"),
    "take": (lambda x, i: nym.take(x, "embed", i % 4), "dppp"),
    "several": (lambda x, i: x["batch", 0:4, "embed", 1, "pos", i % 3], "dpp"),
    "set": (lambda x, i: x.at["batch", 3].set(0.0), "dpm"),
    "set slice": (lambda x, i: x.at["embed", 1:3].set(x["embed", 0]), "dpm"),
    "set dslice": (lambda x, i: x.at["batch", dslice(3, 3)].set(x["batch", 0]), "dpm"),
    "add named": (lambda x, i: x.at["batch", i].add(1.0), "dpm"),
    "max list": (lambda x, i: x.at["pos", [0, 2]].max(0.0), "dpm"),
    "multiply aligned": (lambda x, i: x.at["pos", nym.arange(Axis("batch", 8)) % 3].multiply(2.0), "dpm"),
}


def test_sharded_arrays(mapped, draw):
    operands = draw(batch=8, pos=3, embed=4), draw.integers(0, 8, q=2, r=3)
    sharded = nym.shard(operands)
    inside = jax.jit(lambda *operands: {name: operation(*operands) for name, (operation, _) in SHARDED.items()})(
        *sharded
    )
    for name, (operation, letters) in SHARDED.items():
        expected = operation(*operands)
        outside = [operation(*sharded)] if name in ("integer", "slice", "aligned", "set", "set dslice") else []
        for result in (inside[name], *outside):
            assert result.names == expected.names and np.array_equal(result.array, expected.array), name
            if mapped.axis_types[0] == AxisType.Explicit:
                spec = jax.P(*({"d": "data", "m": "model", "p": None}[letter] for letter in letters))
                assert result.sharding.spec == spec, name


def test_a_slice_that_the_mesh_does_not_divide(explicit_mesh):
    with jax.set_mesh(explicit_mesh):
        y = nym.zeros({"batch": 8})
        with (
            nym.axis_mapping(batch="data"),
            pytest.raises(ValueError, match="axis 'batch' has size 3, which is not divisible"),
        ):
            nym.shard(y)["batch", 0:3]
        with nym.axis_mapping(batch="data", uneven="replicate"):
            assert nym.shard(y)["batch", 0:3].sharding.spec == jax.P(None)


def test_an_array_on_a_mesh_that_is_not_in_force(mesh, draw):
    x = draw(batch=8, embed=4)
    sharded = nym.shard(x, {"batch": "data", "embed": "model"})
    with jax.set_mesh(None):
        for pick in (lambda x: x["batch", 4:], lambda x: x["embed", 0], lambda x: nym.flip(x, "batch")):
            assert np.array_equal(pick(sharded).array, pick(x).array)


@pytest.mark.parametrize("method", ["set", "add", "multiply", "divide", "power"])
@pytest.mark.parametrize("types", ["Auto Auto", "Explicit Explicit", "Explicit Auto"])
def test_updates_along_an_axis_that_is_sharded_in_the_same_function(types, method):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=tuple(AxisType[kind] for kind in types.split()))
    random = np.random.default_rng(0)
    x, y, weight = (random.uniform(0.5, 1.5, shape).astype(np.float32) for shape in ((8, 4), (8,), (8, 4)))

    def update(x, y):
        return getattr(nym.auto_sharded(x).at["b", 3], method)(y)

    def compute_loss(x, y):
        return (update(x, y) * nym.named(weight, ("a", "b"))).sum()

    def compute(x, y):
        return update(nym.named(weight, ("a", "b")), y), nym.grad(lambda xy: compute_loss(*xy))((x, y))

    given = nym.named(x, ("a", "b")), nym.named(y, "a")
    wanted = jax.tree.map(np.asarray, jax.jit(compute)(*given))
    with jax.set_mesh(mesh), nym.axis_mapping({"a": "y", "b": "x"}):
        found = jax.tree.map(np.asarray, nym.named_jit(compute)(*given))
    for one, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-4)

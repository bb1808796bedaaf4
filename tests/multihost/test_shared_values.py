"""Values of several processes, here of one; the texts by which they are compared are equal for equal values only."""

import dataclasses
import enum
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.multihost._shared_values import write_canonical_text

from ..refusals import refusal


class Size(enum.Enum):
    small = 1
    large = 2


@dataclasses.dataclass
class Settings:
    rate: float
    names: object = None

    def scaled(self, value):
        return self.rate * value


class Model(eqx.Module):
    weight: nym.NamedArray
    act: object


def model(value=1.0, act=nym.tanh):
    return Model(nym.NamedArray(np.full(3, value), "embed"), act)


EQUAL = {
    "mappings": (nym.AxisMapping({"a": "x", "b": ["y"], "c": None}), nym.AxisMapping({"b": "y", "a": ("x",)})),
    "arrays": (np.arange(3, dtype=np.float32), jnp.arange(3.0)),
    "keys": (jax.random.key(3), jax.random.key(3)),
    "modules": (model(), model()),
    "objects": (Settings(0.1, {"b": 1, "a": 2}), Settings(0.1, {"a": 2, "b": 1})),
    "nan": ([float("nan")], [float("nan")]),
    "functions": (functools.partial(np.sum, axis=0), functools.partial(np.sum, axis=0)),
    "methods": (Settings(0.1).scaled, Settings(0.1).scaled),
    "methods of classes": (dict.fromkeys, dict.fromkeys),
    "no mask": (np.ma.array([1, 2]), np.ma.array([1, 2], mask=[0, 0])),
    "objects in arrays": (np.array([("a", [1])], "U1, O"), np.array([("a", [1])], "U1, O")),
}
OTHERS = {
    "values": (1, 2), "kinds": (1, 1.0), "texts": ("1", 1), "containers": ([1], (1,)),
    "enums": (Size.small, Size.large),
    "uneven": (nym.AxisMapping({"a": "x"}), nym.AxisMapping({"a": "x"}, uneven="replicate")),
    "mesh axes": ({"a": ("x", "y")}, {"a": ("y", "x")}),
    "elements": (np.zeros(3), np.asarray([0, 0, 1.0])),
    "types": (np.zeros(3), np.zeros(3, np.float32)),
    "keys": (jax.random.key(3), jax.random.key(4)),
    "modules": (model(1.0), model(2.0)), "module fields": (model(), model(act=nym.exp)),
    "objects": (Settings(0.1), Settings(0.2)), "functions": (np.sum, np.prod),
    "methods": (Settings(0.1).scaled, Settings(0.2).scaled), "methods of Python": ([1].append, [2].append),
    "masks": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    "objects in arrays": (np.array([("a", [1])], "U1, O"), np.array([("a", [2])], "U1, O")),
    "specs": (jax.P("data"), jax.P(None, "data")),
    "names": (nym.NamedArray(np.zeros(3), "a"), nym.NamedArray(np.zeros(3), "b")),
    "shape structs": (jax.ShapeDtypeStruct((2,), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.float32)),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_equal_values_have_one_text(name):
    first, second = map(write_canonical_text, EQUAL[name])
    assert first == second and "0x" not in first


@pytest.mark.parametrize("name", OTHERS)
def test_different_values_have_different_texts(name):
    first, second = map(write_canonical_text, OTHERS[name])
    assert first != second


def test_different_meshes_have_different_texts(auto_mesh, explicit_mesh):
    turned = jax.sharding.Mesh(auto_mesh.devices[::-1], auto_mesh.axis_names)
    meshes = [auto_mesh, explicit_mesh, turned, auto_mesh.abstract_mesh, nym.create_mesh((8, 1), ("data", "model"))]
    assert len({*map(write_canonical_text, meshes)}) == len(meshes)
    assert write_canonical_text(auto_mesh) == write_canonical_text(nym.create_mesh((4, 2), ("data", "model")))
    specs = [jax.P("data"), jax.P("model")]
    shardings = [jax.NamedSharding(mesh, spec) for mesh in (auto_mesh, turned) for spec in specs]
    assert len({*map(write_canonical_text, shardings)}) == 4


def test_a_value_may_contain_itself():
    loop = [1]
    loop.append(loop)
    assert write_canonical_text(loop) == "[1, <itself>]"


def test_one_process_agrees_with_itself_and_gets_the_tree_itself():
    tree = {"x": nym.NamedArray(np.ones(2), "batch"), "name": "run"}
    nym.assert_same_on_all_hosts(tree, "tree")
    assert nym.broadcast_from_host_zero(tree) is tree
    with refusal("an object of type `generator` has no content that another process could", TypeError):
        nym.assert_same_on_all_hosts({"rows": (row for row in ())})
    with refusal("`name` is empty; pass a name, or None"):
        nym.assert_same_on_all_hosts(1, "")
    with refusal("`timeout` is a number of seconds from"):
        nym.broadcast_from_host_zero(1, timeout=0)

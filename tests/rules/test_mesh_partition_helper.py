"""`MeshPartitionHelper`: plans for shapes, specs from methods, and trees put in place, inside jit and outside."""

import math
import pickle
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import axonym as nym
from tests.partitioning.arrays import assert_close, on_auto
from tests.refusals import refusal


MESH = AbstractMesh((4, 2), ("data", "model"))
FOUR = AbstractMesh((2, 2, 3, 5), ("a", "b", "c", "d"))
THREE = AbstractMesh((2, 2, 2), ("a", "b", "c"))
FIVE = AbstractMesh((2, 4, 1, 2, 1), ("dp", "fsdp", "ep", "tp", "sp"))


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def parts(tree):
    """Returns the shapes of what each device holds."""
    return jax.tree.map(lambda x: x.sharding.shard_shape(x.shape), tree, is_leaf=nym.is_named_array)


# Plans.


def test_each_shape_has_the_mesh_axes_that_go_together_on_its_dimensions():
    tree = {
        "b": [jnp.ones((8, 16)), struct(8, 16), nym.ones({"x": 5, "y": 8}), np.ones(())],
        "a": struct(7),
        "c": (None, "name", 2.5, np.array(["text"])),
    }
    methods = nym.MeshPartitionHelper(MESH).analyze_pytree(tree)
    assert methods == {(7,): [], (8, 16): [("data",), ("model",)], (5, 8): [("data", "model")], (): []}
    assert list(methods) == [(7,), (8, 16), (5, 8), ()]


def test_axes_for_batches_divide_no_array():
    assert nym.MeshPartitionHelper(FIVE).partition_specs(struct(1024, 4096)) == P(("dp", "fsdp"), "tp")
    assert nym.MeshPartitionHelper(FIVE, batch_axes=["dp"]).partition_specs(struct(1024, 4096)) == P("fsdp", "tp")
    helper = nym.MeshPartitionHelper(MESH, batch_axes=["data"])
    assert helper.analyze_pytree(struct(8, 16)) == {(8, 16): [("model",)]}
    with refusal("'data' is one of the `batch_axes` ('data',), which shard no arrays; take it"):
        helper.create_partition_spec((8, 16), [("model",), ("data",)])


def test_arrays_below_the_minimum_size_are_replicated():
    helper = nym.MeshPartitionHelper(MESH)
    assert helper.partition_specs([struct(32, 31), struct(32, 32)], min_shard_size=1024) == [P(), P("data", "model")]
    assert helper.partition_specs([struct(3), struct(4)], min_shard_size=4) == [P(), P("data")]
    assert helper.create_partition_spec((64, 64), ["data", "model"]) == P("data", None)  # 1024 if nothing is said
    assert helper.partition_specs(struct(4), 0) == helper.partition_specs(struct(4), 1) == P("data")


# Specs from methods.


@pytest.mark.parametrize(
    ("mesh", "shape", "methods", "spec"),
    [
        (MESH, (64, 32), [("data", "model")], P(("data", "model"), None)),  # together where nothing is lost by it
        (MESH, (4, 5), [("data", "model")], P("data", None)),
        (FOUR, (4, 3, 5), [("c", "d"), ("a", "b")], P(("a", "b"), "c", "d")),
        (THREE, (2,), [("c",), ("a",)], P("c")),  # earlier methods come first
        (MESH, (8, 8), ["model"], P("model", None)),  # a name alone is a method
        (MESH, (8, 8), [("model",), ("data", "model"), "model"], P("model", "data")),
        (MESH, (8, 8), [], P()),
        (FIVE, (8, 8), [("ep", "sp"), ("sp", "tp")], P("tp", None)),  # mesh axes of size one divide nothing
    ],
    ids=str,
)
def test_methods_make_a_spec(mesh, shape, methods, spec):
    assert nym.MeshPartitionHelper(mesh).create_partition_spec(shape, methods, 1) == spec


def test_shapes_methods_and_least_sizes_are_checked():
    helper = nym.MeshPartitionHelper(MESH)
    with refusal("`array_shape` is a tuple of sizes, such as (1024, 4096), not 8.", TypeError):
        helper.create_partition_spec(8, [("data",)])
    for methods, error, text in (
        ("model", TypeError, "`methods` is a list of tuples of mesh axes, such as [('data',)], not 'model'"),
        ([3], TypeError, "`methods` is a name of a mesh axis or a list of them, not 3"),
        ([("modle",)], ValueError, "no mesh axis 'modle' in (data: 4, model: 2); did you mean 'model'"),
        ([("data", "data")], ValueError, "which names a mesh axis twice"),
    ):
        with refusal(text, error):
            helper.create_partition_spec((3,), methods)
    for least in (-1, 1.5, math.nan, True, "1"):
        with pytest.raises((TypeError, ValueError), match="`min_shard_size` is an integer of at least 0, not"):
            helper.create_partition_spec((8,), ["data"], least)
        with pytest.raises((TypeError, ValueError), match="`min_shard_size` is an integer of at least 0, not"):
            helper.auto_shard_pytree(jnp.ones(8), least)


# Putting arrays in place.


def tree_of_all_kinds():
    return {
        "array": jnp.arange(128.0).reshape(8, 16),
        "numpy": np.arange(128.0, dtype=np.float32).reshape(16, 8),
        "named": nym.named(jnp.arange(128.0).reshape(8, 16), ("embed", "mlp")),
        "bfloat16": jnp.ones((8,), jnp.bfloat16),
        "small": jnp.ones((3,)),
    }


PARTS = {"array": (2, 8), "numpy": (4, 4), "named": (2, 8), "bfloat16": (1,), "small": (3,)}


def test_a_tree_is_moved_at_once_and_not_again_and_a_traced_one_is_constrained(mesh):
    tree, helper = tree_of_all_kinds(), nym.MeshPartitionHelper(mesh)
    with mock.patch.object(jax, "device_put", wraps=jax.device_put) as moves:
        placed = helper.auto_shard_pytree(tree, 1)
        again = helper.auto_shard_pytree(placed, 1)
    assert moves.call_count == 1
    assert all(one is other for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(placed), strict=True))
    assert all(x.sharding.mesh == mesh for x in jax.tree.leaves(placed))
    for result in (placed, jax.jit(lambda tree: helper.auto_shard_pytree(tree, 1))(tree)):
        assert parts(result) == PARTS
        assert_close(result, tree)


def test_random_keys_and_arrays_on_other_devices_are_moved(mesh):
    values, other = np.ones((8, 16), np.float32), nym.create_mesh((2, 4), ("x", "y"))
    tree = {
        "keys": jax.random.split(jax.random.key(0), 8),
        "on one device": jax.device_put(values, jax.devices()[3]),
        "on another mesh": jax.device_put(values, NamedSharding(other, P("y"))),
    }
    placed = nym.MeshPartitionHelper(mesh).auto_shard_pytree(tree, 1)
    assert parts(placed) == {"keys": (1,), "on one device": (2, 8), "on another mesh": (2, 8)}
    assert {x.sharding.mesh for x in placed.values()} == {mesh}


def test_inside_shard_map_arrays_are_divided_over_what_is_not_manual(mesh):
    helper, specs = nym.MeshPartitionHelper(mesh), []

    def body(x):
        specs.append(helper.partition_specs(x, 1))
        return helper.auto_shard_pytree(x, 1)

    x = jax.device_put(jnp.arange(128.0).reshape(8, 16), NamedSharding(mesh, P("data")))
    y = jax.jit(jax.shard_map(body, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}))(x)
    assert specs == [P(None, "model")]
    assert y.sharding.shard_shape(y.shape) == (2, 8)
    np.testing.assert_array_equal(y, x)


def test_what_is_no_array_is_returned_as_it_is(auto_mesh):
    text = np.array(["text"] * 8)
    tree = {"name": "mlp", "rate": 0.5, "act": jnp.tanh, "none": None, "text": text, "more": (1, [True])}
    helper = nym.MeshPartitionHelper(auto_mesh)
    assert helper.auto_shard_pytree(tree, 1) == tree
    assert helper.auto_shard_pytree(tree, 1)["text"] is text
    assert helper.partition_specs({"text": text, "rate": 0.5}, 1) == {"text": P(), "rate": P()}


def test_shapes_get_the_sharding_also_without_devices_but_data_needs_some():
    helper = nym.MeshPartitionHelper(MESH)
    shapes = {"weight": struct(8, 16), "named": nym.named(struct(8, 16), ("embed", "mlp"))}
    placed = helper.auto_shard_pytree(shapes, 1)
    assert parts(placed) == {"weight": (2, 8), "named": (2, 8)}
    assert placed["weight"].sharding == NamedSharding(MESH, P("data", "model"))
    assert placed["named"].names == ("embed", "mlp")
    with refusal("arrays can only be placed on a mesh with devices; on an abstract one, shard"):
        helper.auto_shard_pytree({"weight": np.ones((64, 64))})


@on_auto
def test_one_array_is_sharded_by_a_spec(mesh):
    helper, x = nym.MeshPartitionHelper(mesh), jnp.ones((8, 16))
    spec = P(None, ("model", "data"))
    assert parts(helper.shard_array(x, spec)) == (8, 2)
    assert parts(jax.jit(lambda x: helper.shard_array(x, spec))(x)) == (8, 2)
    assert parts(helper.shard_array(np.ones((8, 16)), P("data"))) == (2, 16)
    assert parts(helper.shard_array(struct(8, 16), P("data"))) == (2, 16)
    named = helper.shard_array(nym.ones({"embed": 8, "mlp": 16}), P("data"))
    assert (named.names, parts(named)) == (("embed", "mlp"), (2, 16))


@pytest.mark.parametrize(
    ("array", "spec", "error", "text"),
    [
        ({"x": 1}, P("data"), TypeError, "shards an array, not {'x': 1}; `auto_shard_pytree` shards trees"),
        (struct(8), "data", TypeError, "`partition_spec` is a `PartitionSpec`, not 'data'"),
        (struct(8), P("data", None), ValueError, "P('data', None) has 2 entries, the array (8,) has 1"),
        (struct(4, 7), P(None, "data"), ValueError, "an array of shape (4, 7): dimension 1 has size 7, which"),
    ],
    ids=str,
)
def test_a_spec_that_does_not_fit_is_an_error(array, spec, error, text):
    with refusal(text, error):
        nym.MeshPartitionHelper(MESH).shard_array(array, spec)


# The helper itself.


@on_auto
def test_the_mesh_in_force_counts_where_none_is_given(mesh):
    assert nym.MeshPartitionHelper() == nym.MeshPartitionHelper(mesh)
    with jax.set_mesh(None), pytest.raises(ValueError, match="`MeshPartitionHelper` needs a mesh; set one with"):
        nym.MeshPartitionHelper()


def test_options_are_checked_when_the_helper_is_made():
    with refusal(" not one name; write ['data']", TypeError):
        nym.MeshPartitionHelper(MESH, batch_axes="data")
    with refusal("no mesh axis 'dta' in (data: 4, model: 2); did you mean 'data'"):
        nym.MeshPartitionHelper(MESH, batch_axes=["dta"])


def test_a_helper_is_a_value(auto_mesh):
    helper, same = (nym.MeshPartitionHelper(auto_mesh, batch_axes=axes) for axes in (["data"], ("data",)))
    assert helper == same == pickle.loads(pickle.dumps(helper))
    assert hash(helper) == hash(same)
    assert helper != nym.MeshPartitionHelper(auto_mesh)
    assert repr(helper) == f"MeshPartitionHelper(mesh={auto_mesh!r}, batch_axes=('data',))"
    with pytest.raises(AttributeError, match="mesh"):
        helper.mesh = MESH

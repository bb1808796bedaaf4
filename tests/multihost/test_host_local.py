"""Parts of a batch that each process has read, and the array of all; `test_processes.py` has several processes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


def rows(**sizes):
    """A named array of NumPy with different elements."""
    return nym.NamedArray(np.arange(np.prod(list(sizes.values()))).reshape(*sizes.values()), tuple(sizes))


def test_the_part_of_one_process_is_the_entire_array(mesh):
    given = {"rows": rows(batch=8, pos=3), "step": np.int32(4), "name": "green-fox"}
    got = nym.host_local_to_global(given, {"batch": ("data", "model")})
    assert got["rows"].names == ("batch", "pos") and got["rows"].sharding.spec == jax.P(("data", "model"), None)
    assert got["rows"].sharding.mesh == mesh and got["name"] == "green-fox"
    assert got["step"].sharding.spec == jax.P() and int(got["step"]) == 4
    back = nym.global_to_host_local(got)
    assert isinstance(back["rows"].array, np.ndarray) and back["rows"].names == ("batch", "pos")
    np.testing.assert_array_equal(back["rows"].array, given["rows"].array)
    assert back["step"] == 4 and back["name"] == "green-fox"


def test_mappings_and_meshes_are_given_or_active_and_a_part_of_the_tree_may_have_its_own(auto_mesh):
    given = (rows(batch=4), nym.ShardedBy(rows(batch=4), {"batch": "model"}))
    with nym.axis_mapping(batch="data"):
        first, second = nym.host_local_to_global(given, mesh=auto_mesh)
    assert first.sharding == jax.NamedSharding(auto_mesh, jax.P("data")) and second.tree.sharding.spec == jax.P("model")


def test_shapes_become_global_shapes(mesh):
    given = nym.NamedArray(jax.ShapeDtypeStruct((4, 2), jnp.int32), ("batch", "pos"))
    shape = nym.host_local_to_global(given, {"batch": "data"}).array
    assert shape == jax.ShapeDtypeStruct((4, 2), jnp.int32, sharding=jax.NamedSharding(mesh, jax.P("data", None)))


def test_integers_of_64_bits_keep_their_values_or_are_refused(mesh):
    fitting = np.array([2**31 - 1, -(2**31)] * 4)
    got = nym.host_local_to_global({"x": nym.NamedArray(fitting, "batch")}, {"batch": "data"})["x"]
    assert got.dtype == jnp.int32 and np.asarray(got).tolist() == fitting.tolist()
    said = r"^\['x'\]: an array of shape \(8,\) has int64 elements from 7 to 1099511627783, which do not fit int32;"
    with pytest.raises(ValueError, match=said):
        nym.host_local_to_global({"x": nym.NamedArray(np.array([7] * 7 + [2**40 + 7]), "batch")}, {"batch": "data"})


NYM: Any = nym  # without types, because every call here is wrong
ROWS = rows(batch=8)
WRONG_CALLS = {
    "not the mesh (d": (TypeError, lambda mesh: NYM.host_local_to_global(ROWS, mesh, {})),
    "not an array of shape": (TypeError, lambda mesh: NYM.host_local_to_global({}, ROWS, mesh)),
    "such as `axonym.create_mesh` returns, not 3": (TypeError, lambda mesh: NYM.host_local_to_global(ROWS, {}, 3)),
    "`check` must be True": (TypeError, lambda mesh: NYM.host_local_to_global(ROWS, {}, mesh, check="x")),
    "array of shape (8,) has dtype <U1, which JAX lacks; convert it with `astype` first": (
        ValueError,
        lambda mesh: NYM.host_local_to_global(nym.NamedArray(np.array(["a"] * 8), "batch"), {}, mesh),
    ),
    "has dtype >f4, which JAX lacks; convert it with `astype` first": (
        ValueError,
        lambda mesh: NYM.host_local_to_global(nym.NamedArray(np.ones(8, ">f4"), "batch"), {}, mesh),
    ),
    "needs a mapping; pass one": (ValueError, lambda mesh: NYM.host_local_to_global(ROWS, mesh=mesh)),
    "needs a mesh; set one with": (ValueError, lambda mesh: NYM.host_local_to_global(ROWS, {"batch": "data"})),
    "devices, not an abstract one": (ValueError, lambda mesh: NYM.host_local_to_global(ROWS, {}, mesh.abstract_mesh)),
    "['x']: an array of shape (8, 3) has no names,": (
        ValueError,
        lambda mesh: NYM.host_local_to_global({"x": np.zeros((8, 3))}, {}, mesh),
    ),
}


def test_wrong_arguments_are_errors_that_name_them(auto_mesh):
    for message, (error, call) in WRONG_CALLS.items():
        with refusal(message, error):
            call(auto_mesh)


def test_a_size_that_does_not_fit_is_as_in_shard(mesh):
    mapping = nym.AxisMapping({"batch": "data"}, uneven="replicate")
    assert nym.host_local_to_global(rows(batch=6), mapping).sharding.spec == jax.P(None)
    with pytest.raises(ValueError, match="size 6, which is not divisible by mesh axis 'data' of size 4"):
        nym.host_local_to_global(rows(batch=6), {"batch": "data"})


def test_within_a_traced_function_there_are_no_parts(auto_mesh):
    with jax.set_mesh(auto_mesh):
        with pytest.raises(ValueError, match="needs a mesh with devices; call it outside of traced functions"):
            jax.eval_shape(lambda x: nym.host_local_to_global(x, {"batch": "data"}), nym.ones({"batch": 4}))
        with pytest.raises(ValueError, match="has no parts to return inside a traced function"):
            jax.eval_shape(nym.global_to_host_local, nym.ones({"batch": 4}))

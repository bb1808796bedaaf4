"""Activating a mesh, with devices and without, and deactivating it."""

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym
from axonym.mesh import create_abstract_mesh, create_mesh, set_mesh


def active_meshes():
    return jax.sharding.get_mesh(), jax.sharding.get_abstract_mesh()


def test_a_mesh_is_active_within_a_block(auto_mesh):
    with set_mesh(auto_mesh):
        assert jax.sharding.get_mesh() == auto_mesh
        x = nym.shard(nym.ones({"batch": 8}), {"batch": "data"})
        y = jax.device_put(jnp.ones(8), P("data"))
    assert jax.sharding.get_mesh().empty
    assert x.array.sharding == y.sharding
    assert x.array.sharding.mesh == auto_mesh


def test_a_constraint_within_jit_sees_the_mesh(mesh):
    jax.set_mesh(None)
    set_mesh(mesh)
    x = jax.jit(lambda: nym.shard(nym.ones({"batch": 8}), {"batch": "data"}))()
    assert x.sharding.spec == P("data")


def test_a_mesh_is_active_after_a_plain_call(auto_mesh, explicit_mesh):
    set_mesh(auto_mesh)
    assert jax.sharding.get_mesh() == auto_mesh
    set_mesh(explicit_mesh)
    assert active_meshes() == (explicit_mesh, explicit_mesh.abstract_mesh)
    set_mesh(None)
    assert jax.sharding.get_mesh().empty
    assert jax.sharding.get_abstract_mesh().empty


def test_the_previous_mesh_is_active_after_a_block(auto_mesh, explicit_mesh):
    with set_mesh(auto_mesh):
        with pytest.raises(RuntimeError, match="stop"), set_mesh(explicit_mesh):
            raise RuntimeError("stop")
        assert jax.sharding.get_mesh() == auto_mesh
        with set_mesh(None):
            assert jax.sharding.get_mesh().empty
        assert jax.sharding.get_mesh() == auto_mesh
        with jax.set_mesh(explicit_mesh), set_mesh(auto_mesh):
            assert jax.sharding.get_mesh() == auto_mesh
    assert jax.sharding.get_mesh().empty


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_an_abstract_mesh_takes_the_place_of_one_with_devices(auto_mesh, axis_types):
    planned = create_abstract_mesh((128, 8), ("data", "model"), axis_types=axis_types)
    shapes = nym.named(jax.ShapeDtypeStruct((1024,), jnp.float32), ("batch",))
    with set_mesh(auto_mesh):
        before = active_meshes()
        with set_mesh(planned):
            assert jax.sharding.get_mesh().empty
            assert jax.sharding.get_abstract_mesh() == planned
            assert nym.shard(shapes, {"batch": "data"}).array.sharding.shard_shape((1024,)) == (8,)
        assert active_meshes() == before
        with pytest.raises(RuntimeError, match="stop"), set_mesh(planned):
            raise RuntimeError("stop")
        assert active_meshes() == before


def test_an_abstract_mesh_is_active_after_a_plain_call(auto_mesh):
    planned = create_abstract_mesh((128, 8), ("data", "model"))
    set_mesh(planned)
    assert jax.sharding.get_abstract_mesh() == planned
    set_mesh(auto_mesh)
    assert active_meshes() == (auto_mesh, auto_mesh.abstract_mesh)


def test_another_thread_has_no_mesh_until_it_sets_one(auto_mesh):
    found = []

    def look():
        found.append(jax.sharding.get_mesh().empty)
        with set_mesh(auto_mesh):
            found.append(jax.sharding.get_mesh() == auto_mesh)

    with set_mesh(auto_mesh):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert found == [True, True]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "data:4", "a string; make one of it with `parse_mesh_from_string`"),
        (lambda: {"data": 8}, "a `dict`; make one of it with `create_mesh`"),
        (jax.devices, "a `list`; make one of devices with `create_mesh(sizes, names, devices=...)`"),
        (lambda: jax.devices()[0], "a `Device`; make one of devices with `create_mesh(sizes, names, devices=...)`"),
        (
            lambda: np.array(jax.devices()),
            "a `ndarray`; make one of devices with `create_mesh(sizes, names, devices=...)`",
        ),
        (lambda: create_mesh, "the function `create_mesh`; call it if it makes one"),
        (lambda: 8, "a `int`; make one with `create_mesh`"),
    ],
    ids=["string", "dict", "devices", "device", "array", "function", "integer"],
)
def test_other_values_are_an_error_with_what_makes_a_mesh(auto_mesh, make, message):
    with set_mesh(auto_mesh):
        with pytest.raises(TypeError, match=re.escape(f"`set_mesh` takes a mesh, not {message}")):
            set_mesh(make())
        assert jax.sharding.get_mesh() == auto_mesh


@pytest.mark.parametrize("create", [create_mesh, create_abstract_mesh])
def test_an_active_mesh_has_no_manual_axes(create):
    mesh = create((4, 2), ("data", "model"), axis_types=("auto", "manual"))
    with pytest.raises(
        ValueError, match="mesh axis 'model' is Manual, and the axes of an active mesh are Auto or Explicit; make"
    ):
        set_mesh(mesh)
    assert jax.sharding.get_abstract_mesh().empty


@pytest.mark.parametrize("create", [create_mesh, create_abstract_mesh])
def test_a_mesh_is_not_set_within_jit(create):
    mesh = create((4, 2), ("data", "model"))
    with pytest.raises(ValueError, match=r"only be used outside of `jax\.jit`"):
        jax.jit(lambda: set_mesh(mesh))()
    assert jax.sharding.get_abstract_mesh().empty

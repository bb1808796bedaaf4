"""Meshes over the devices of one process, whichever way they are built."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import axonym as nym
from axonym.mesh import create_mesh, parse_mesh_from_string


def test_the_defaults_are_one_axis_over_everything():
    mesh = create_mesh()
    assert dict(mesh.shape) == {"dp": 1, "fsdp": 8, "ep": 1, "tp": 1, "sp": 1}
    assert mesh.axis_types == (AxisType.Auto,) * 5


def test_a_mesh_has_the_axes_in_order_and_the_devices_in_theirs():
    mesh = create_mesh((2, 4), ("data", "model"))
    assert isinstance(mesh, Mesh)
    assert dict(mesh.shape) == {"data": 2, "model": 4}
    assert mesh.devices.ravel().tolist() == jax.devices()


@given(sizes=st.permutations([1, 2, 4]), kind=st.sampled_from([None, "explicit", "manual"]))
@settings(deadline=None, max_examples=20)
def test_the_builder_does_not_change_the_mesh(sizes, kind):
    names = ("a", "b", "c")
    ours = create_mesh(sizes, names, axis_types=kind)
    jaxs = create_mesh(sizes, names, axis_types=kind, use_jax=True)
    assert ours == jaxs
    assert ours.devices.tolist() == jaxs.devices.tolist()


def test_a_mapping_gives_names_and_sizes():
    assert nym.create_mesh({"data": 4, "model": -1}).shape == {"data": 4, "model": 2}
    assert nym.create_mesh({"data": 4}, devices=jax.devices()[:4]).shape == {"data": 4}
    assert nym.create_cpu_mesh({"data": -1}).shape == {"data": 8}
    assert nym.create_abstract_mesh({"data": 16, "model": 2}).shape == {"data": 16, "model": 2}
    mesh = nym.create_mesh({"data": 4, "model": 2})
    assert nym.create_mesh(mesh.shape, mesh.axis_names) == mesh
    with pytest.raises(ValueError, match=r"mesh \(data: 4\) needs 4 devices, but there are 8; the nearest fit is"):
        nym.create_mesh({"data": 4})
    with pytest.raises(
        TypeError, match=r"`axis_dims` is the mapping {'data': 8}, .*; leave out `axis_names`, here \('model',\)"
    ):
        nym.create_mesh({"data": 8}, ("model",))
    with pytest.raises(TypeError, match="`axis_names` holds 3, which is not a string"):
        nym.create_mesh({3: 8})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("use_jax", [False, True])
def test_devices_make_a_sub_mesh_in_their_order(use_jax):
    devices = jax.devices()[5:1:-1]
    mesh = create_mesh((2, -1), ("a", "b"), devices=devices, use_jax=use_jax)
    assert mesh.devices.shape == (2, 2)
    assert mesh.devices.ravel().tolist() == devices


def test_devices_of_another_mesh_make_a_sub_mesh():
    whole = create_mesh((2, 4), ("data", "model"))
    part = create_mesh((2, 2), ("data", "model"), devices=whole.devices[:, :2])
    assert part.devices.tolist() == whole.devices[:, :2].tolist()


def test_a_string_makes_a_sub_mesh_of_any_axis_types():
    devices = jax.devices()[4:]
    mesh = parse_mesh_from_string("b:2", ["a", "b"], axis_types="explicit", devices=devices[:2])
    assert mesh == create_mesh((1, 2), ("a", "b"), axis_types="explicit", devices=devices[:2])


def test_a_backend_gives_its_devices():
    assert create_mesh((8,), ("a",), backend="cpu") == create_mesh((8,), ("a",))
    assert parse_mesh_from_string("8", ["a"], backend="cpu") == create_mesh((8,), ("a",))


def test_a_backend_that_is_not_there_is_an_error():
    with pytest.raises(RuntimeError, match="nonsense"):
        create_mesh((8,), ("a",), backend="nonsense")


def test_devices_that_cannot_be_used_are_an_error():
    device = jax.devices()[0]
    with pytest.raises(ValueError, match="`devices` is empty"):
        create_mesh((1,), ("a",), devices=[])
    with pytest.raises(ValueError, match="`devices` holds cpu:0 twice"):
        create_mesh((2,), ("a",), devices=[device, device])
    with pytest.raises(ValueError, match="`devices` and `backend='cpu'` were both given"):
        create_mesh((1,), ("a",), backend="cpu", devices=[device])
    with pytest.raises(TypeError, match="`devices` holds 0, which is not a device"):
        create_mesh((2,), ("a",), devices=[0, 1])
    with pytest.raises(TypeError, match="`devices` is a sequence of devices"):
        create_mesh((1,), ("a",), devices=device)


def test_a_mesh_is_made_of_the_devices_that_are_there_now(monkeypatch):
    whole = create_mesh()
    part = jax.devices()[:4]
    monkeypatch.setattr(jax, "devices", lambda backend=None: part)
    assert create_mesh().devices.ravel().tolist() == part
    monkeypatch.undo()
    assert create_mesh() == whole


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_a_mesh_shards(axis_types):
    mesh = create_mesh((2, 4), ("data", "model"), axis_types=axis_types)
    spec = PartitionSpec("data", "model")
    x = jax.device_put(np.arange(64.0).reshape(8, 8), NamedSharding(mesh, spec))
    with jax.set_mesh(mesh):
        y = jax.jit(lambda x: 2 * x)(x)
    assert y.sharding.shard_shape(y.shape) == (4, 2)
    assert float(y.sum()) == 64 * 63

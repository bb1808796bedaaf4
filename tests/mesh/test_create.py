"""Meshes over the devices of one process, whichever way they are built; abstract, on the CPU, and active ones."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec as P

import axonym as nym
from axonym.mesh import (
    cpu_context,
    create_abstract_mesh,
    create_cpu_mesh,
    create_mesh,
    force_cpu,
    parse_mesh_from_string,
    set_mesh,
)

from ..refusals import refusal


ONES = np.ones(8, np.float32)


def test_a_mesh_has_the_axes_in_order_and_the_devices_in_theirs_whoever_builds_it():
    mesh = create_mesh()
    assert dict(mesh.shape) == {"dp": 1, "fsdp": 8, "ep": 1, "tp": 1, "sp": 1}
    assert mesh.axis_types == (AxisType.Auto,) * 5
    for kind, sizes in [(None, (2, 4)), ("explicit", (4, 2)), ("manual", (1, 8))]:
        mesh = create_mesh(sizes, ("data", "model"), axis_types=kind)
        assert isinstance(mesh, Mesh)
        assert dict(mesh.shape) == {"data": sizes[0], "model": sizes[1]}
        assert mesh.devices.ravel().tolist() == jax.devices()
        assert mesh == create_mesh(sizes, ("data", "model"), axis_types=kind, use_jax=True)


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


def test_devices_make_a_sub_mesh_in_their_order():
    devices = jax.devices()[5:1:-1]
    for use_jax in (False, True):
        mesh = create_mesh((2, -1), ("a", "b"), devices=devices, use_jax=use_jax)
        assert mesh.devices.shape == (2, 2)
        assert mesh.devices.ravel().tolist() == devices
    whole = create_mesh((2, 4), ("data", "model"))
    part = create_mesh((2, 2), ("data", "model"), devices=whole.devices[:, :2])
    assert part.devices.tolist() == whole.devices[:, :2].tolist()
    mesh = parse_mesh_from_string("b:2", ["a", "b"], axis_types="explicit", devices=devices[:2])
    assert mesh == create_mesh((1, 2), ("a", "b"), axis_types="explicit", devices=devices[:2])
    assert create_mesh((8,), ("a",), backend="cpu") == parse_mesh_from_string("8", ["a"], backend="cpu")
    with pytest.raises(RuntimeError, match="nonsense"):
        create_mesh((8,), ("a",), backend="nonsense")


def test_devices_that_cannot_be_used_are_an_error():
    device = jax.devices()[0]
    for devices, kind, text in [
        ([], ValueError, "`devices` is empty"),
        ([device, device], ValueError, "`devices` holds cpu:0 twice"),
        ([0, 1], TypeError, "`devices` holds 0, which is not a device"),
        (device, TypeError, "`devices` is a sequence of devices"),
    ]:
        with refusal(text, kind):
            create_mesh((2,), ("a",), devices=devices)
    with refusal("`devices` and `backend='cpu'` were both given"):
        create_mesh((1,), ("a",), backend="cpu", devices=[device])


# Abstract meshes


def test_an_abstract_mesh_has_the_sizes_and_types_that_were_asked():
    for axis_types, expected in [
        (None, (AxisType.Auto, AxisType.Auto)),
        ("explicit", (AxisType.Explicit, AxisType.Explicit)),
        (["auto", AxisType.Manual], (AxisType.Auto, AxisType.Manual)),
    ]:
        mesh = create_abstract_mesh((128, 8), ("data", "model"), axis_types=axis_types)
        assert isinstance(mesh, AbstractMesh)
        assert dict(mesh.shape) == {"data": 128, "model": 8}
        assert mesh.axis_types == expected
    with refusal("`device_count` holds 8.0, which is not an integer", TypeError):
        create_abstract_mesh((2, 4), ("a", "b"), device_count=8.0)


def test_a_size_of_an_abstract_mesh_is_inferred_from_the_number_stated():
    mesh = create_abstract_mesh((-1, 8), ("data", "model"), device_count=1024)
    assert dict(mesh.shape) == {"data": 128, "model": 8}
    with refusal("mesh (data: -1, model: 8) has a size to infer from the number of devices; pass"):
        create_abstract_mesh((-1, 8), ("data", "model"))
    mesh = create_abstract_mesh("model: 8, data: -1", ("data", "model", "expert"), device_count=1024)
    assert dict(mesh.shape) == {"data": 128, "model": 8, "expert": 1}
    with refusal("no mesh axis 'modle' for 'modle:8'; did you mean 'model'?"):
        create_abstract_mesh("modle:8", ("data", "model"))


@pytest.mark.parametrize(
    ("sizes", "names", "count", "message"),
    [
        (
            (100, 8),
            "ab",
            1024,
            "needs 800 devices, but there are 1024; the nearest fit is (a: 128, b: 8), or pass `dev",
        ),
        ((10**12, 2), "aa", None, "the nearest fit is (a: 1000000000000, a_2: 2)"),
        ((2, 4), "ab", 0, "`device_count` is 0; a mesh needs at least one device"),
    ],
)
def test_impossible_meshes_are_the_same_errors_as_with_devices(sizes, names, count, message):
    with refusal(message):
        create_abstract_mesh(sizes, tuple(names), device_count=count)


# The CPU


def test_a_cpu_mesh_is_over_all_cpu_devices():
    mesh = create_cpu_mesh()
    assert dict(mesh.shape) == {"dp": 1, "fsdp": 8, "ep": 1, "tp": 1, "sp": 1}
    assert {device.platform for device in mesh.devices.flat} == {"cpu"}
    assert create_cpu_mesh((2, 4), ("a", "b")) == create_mesh((2, 4), ("a", "b"))
    assert create_cpu_mesh((8,), ("a",), axis_types="explicit").axis_types == (AxisType.Explicit,)
    with refusal("the nearest fit is (a: 2, b: 4)"):
        create_cpu_mesh((3, 4), ("a", "b"))


def test_the_devices_that_are_there_now_count_and_for_a_cpu_mesh_not_those_of_the_default_backend(monkeypatch):
    cpus, here, whole = jax.devices("cpu"), jax.local_devices(backend="cpu"), create_mesh()
    # As on a machine whose default backend is another one, with fewer devices and two processes.
    monkeypatch.setattr(jax, "devices", lambda backend=None: {"cpu": cpus, None: cpus[:4]}[backend])
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: {"cpu": here}[backend])
    monkeypatch.setattr(jax, "device_count", lambda backend=None: 4)
    monkeypatch.setattr(jax, "process_count", lambda backend=None: 2)
    assert create_cpu_mesh().devices.ravel().tolist() == cpus
    with cpu_context() as mesh:
        assert mesh.devices.size == 8
    monkeypatch.setattr(jax, "process_count", lambda backend=None: 1)
    assert create_mesh().devices.ravel().tolist() == cpus[:4]
    monkeypatch.undo()
    assert create_mesh() == whole


def test_force_cpu_sets_the_default_device():
    cpu = jax.local_devices(backend="cpu")[0]
    x = jax.device_put(ONES, jax.devices()[3])
    for before in (None, jax.devices()[3]):
        with jax.default_device(before):
            with force_cpu() as device:
                assert device == jax.config.jax_default_device == jnp.ones(3).device == cpu
                assert (x + 1).device == x.device, "a committed array stays where it is"
            assert jax.config.jax_default_device == before


@pytest.mark.parametrize("planned", [False, True])
def test_force_cpu_holds_while_a_mesh_is_active(planned):
    outer = create_mesh((2, 4), ("a", "b"))
    chosen = outer.abstract_mesh if planned else outer
    with set_mesh(chosen):
        with force_cpu() as device:
            assert jnp.ones(3).sharding.device_set == nym.ones({"x": 8}).sharding.device_set == {device}
            assert jax.sharding.get_abstract_mesh().empty
            with set_mesh(outer):
                assert jnp.ones(3).sharding.device_set == set(jax.devices())
        with pytest.raises(RuntimeError, match="stop"), force_cpu():
            raise RuntimeError("stop")
        assert jax.sharding.get_abstract_mesh() == outer.abstract_mesh
        assert planned or jax.sharding.get_mesh() == outer
    assert jax.sharding.get_abstract_mesh().empty


def test_a_function_can_be_decorated_to_run_on_the_cpu():
    @force_cpu()
    def device():
        return jnp.ones(3).device

    @cpu_context()
    def shape():
        return dict(jax.sharding.get_mesh().shape)

    with jax.default_device(jax.devices()[3]):
        assert [device(), device()] == [jax.devices()[0]] * 2
        assert shape()["fsdp"] == shape()["fsdp"] == 8
        assert jnp.ones(3).device == jax.devices()[3]

    @jax.jit
    def double(x):
        with force_cpu():
            assert jax.sharding.get_abstract_mesh() == outer.abstract_mesh, "traced functions keep their mesh"
            return 2 * x

    outer = create_mesh((8,), ("a",))
    with jax.set_mesh(outer):
        assert double(ONES).tolist() == [2] * 8


def test_the_cpu_context_sets_mesh_and_device_and_takes_bare_partition_specs():
    with cpu_context() as mesh:
        assert mesh == create_cpu_mesh() == jax.sharding.get_mesh()
        assert jax.config.jax_default_device == jax.local_devices(backend="cpu")[0]
        x = jax.device_put(ONES, P("fsdp"))
        y = jax.jit(jax.shard_map(lambda x: x + 1, in_specs=P("fsdp"), out_specs=P("fsdp")))(x)
        with cpu_context((2, -1), ("data", "model"), axis_types="explicit") as inner:
            assert jax.sharding.get_mesh() == inner
            assert dict(inner.shape) == {"data": 2, "model": 4}
            assert inner.axis_types == (AxisType.Explicit,) * 2
        assert jax.sharding.get_mesh() == mesh
    assert x.sharding.mesh == y.sharding.mesh == mesh
    assert y.sharding.shard_shape(y.shape) == (1,)
    assert jax.sharding.get_mesh().empty
    assert jax.config.jax_default_device is None


def test_the_cpu_context_restores_after_an_exception_and_is_of_one_thread():
    outer, seen = create_mesh((2, 4), ("a", "b")), []

    def look():
        seen.append((jax.config.jax_default_device, jax.sharding.get_mesh().empty))
        with set_mesh(outer):
            seen.append(jax.sharding.get_mesh() == outer)

    with jax.set_mesh(outer), jax.default_device(jax.devices()[3]):
        with pytest.raises(RuntimeError, match="stop"), cpu_context():
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            raise RuntimeError("stop")
        for sizes, options, text in [((3,), {}, "needs 3 devices, but"), ((8,), {"axis_types": "manual"}, "manual")]:
            with pytest.raises(ValueError, match=text), cpu_context(sizes, ("a",), **options):
                pass
        assert jax.sharding.get_mesh() == outer
        assert jax.config.jax_default_device == jax.devices()[3]
    assert jax.sharding.get_mesh().empty
    assert seen == [(None, True), True]


# Active meshes


def active_meshes():
    return jax.sharding.get_mesh(), jax.sharding.get_abstract_mesh()


def test_a_mesh_is_active_after_a_plain_call(auto_mesh, explicit_mesh):
    planned = create_abstract_mesh((128, 8), ("data", "model"))
    set_mesh(auto_mesh)
    assert jax.sharding.get_mesh() == auto_mesh
    set_mesh(planned)
    assert jax.sharding.get_abstract_mesh() == planned
    set_mesh(explicit_mesh)
    assert active_meshes() == (explicit_mesh, explicit_mesh.abstract_mesh)
    set_mesh(None)
    assert [mesh.empty for mesh in active_meshes()] == [True, True]


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


MAKE = "make one of devices with `create_mesh(sizes, names, devices=...)`"


def test_other_values_are_an_error_with_what_makes_a_mesh(auto_mesh):
    devices = jax.devices()
    with set_mesh(auto_mesh):
        for value, text in [
            ("data:4", "a string; make one of it with `parse_mesh_from_string`"),
            ({"data": 8}, "a `dict`; make one of it with `create_mesh`"),
            (devices, f"a `list`; {MAKE}"),
            (devices[0], f"a `Device`; {MAKE}"),
            (np.array(devices), f"a `ndarray`; {MAKE}"),
            (create_mesh, "the function `create_mesh`; call it if it makes one"),
            (8, "a `int`; make one with `create_mesh`"),
        ]:
            with refusal(f"`set_mesh` takes a mesh, not {text}", TypeError):
                set_mesh(value)
            assert jax.sharding.get_mesh() == auto_mesh


@pytest.mark.parametrize("create", [create_mesh, create_abstract_mesh])
def test_a_mesh_with_manual_axes_or_within_jit_is_not_set(create):
    with refusal("mesh axis 'model' is Manual, and the axes of an active mesh are Auto or Explicit; make"):
        set_mesh(create((4, 2), ("data", "model"), axis_types=("auto", "manual")))
    mesh = create((4, 2), ("data", "model"))
    with refusal("only be used outside of `jax.jit`"):
        jax.jit(lambda: set_mesh(mesh))()
    assert jax.sharding.get_abstract_mesh().empty

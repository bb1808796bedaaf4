"""Meshes and defaults on the CPU: what they set, leave alone and restore."""

import threading

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from axonym import ones
from axonym.mesh import cpu_context, create_cpu_mesh, create_mesh, force_cpu, set_mesh


def test_a_cpu_mesh_is_over_all_cpu_devices():
    mesh = create_cpu_mesh()
    assert dict(mesh.shape) == {"dp": 1, "fsdp": 8, "ep": 1, "tp": 1, "sp": 1}
    assert {device.platform for device in mesh.devices.flat} == {"cpu"}
    assert create_cpu_mesh((2, 4), ("a", "b")) == create_mesh((2, 4), ("a", "b"))


def test_a_cpu_mesh_takes_axis_types():
    assert create_cpu_mesh((8,), ("a",), axis_types="explicit").axis_types == (AxisType.Explicit,)


def test_a_cpu_mesh_does_not_ask_the_default_backend(monkeypatch):
    cpus, locals_ = jax.devices("cpu"), jax.local_devices(backend="cpu")
    # As on a machine whose default backend is another one, with one device and two processes.
    monkeypatch.setattr(jax, "devices", lambda backend=None: {"cpu": cpus}[backend])
    monkeypatch.setattr(jax, "local_devices", lambda backend=None: {"cpu": locals_}[backend])
    monkeypatch.setattr(jax, "device_count", lambda backend=None: 1)
    monkeypatch.setattr(jax, "process_count", lambda backend=None: 2)
    assert create_cpu_mesh().devices.ravel().tolist() == cpus
    with cpu_context() as mesh:
        assert mesh.devices.size == 8


def test_a_cpu_mesh_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match=r"the nearest fit is \(a: 2, b: 4\)"):
        create_cpu_mesh((3, 4), ("a", "b"))


def test_force_cpu_sets_the_default_device():
    before = jax.config.jax_default_device
    with force_cpu() as device:
        assert device == jax.local_devices(backend="cpu")[0]
        assert jax.config.jax_default_device == device
        assert jnp.ones(3).device == device
    assert jax.config.jax_default_device == before


def test_force_cpu_is_within_another_default():
    with jax.default_device(jax.devices()[3]):
        with force_cpu() as device:
            assert jnp.ones(3).device == device
        assert jnp.ones(3).device == jax.devices()[3]


@pytest.mark.parametrize("planned", [False, True])
def test_force_cpu_holds_while_a_mesh_is_active(planned):
    outer = create_mesh((2, 4), ("a", "b"))
    chosen = outer.abstract_mesh if planned else outer
    with set_mesh(chosen):
        with force_cpu() as device:
            assert jnp.ones(3).sharding.device_set == ones({"x": 8}).sharding.device_set == {device}
            assert jax.sharding.get_abstract_mesh().empty
            with set_mesh(outer):
                assert jnp.ones(3).sharding.device_set == set(jax.devices())
        with pytest.raises(RuntimeError, match="stop"), force_cpu():
            raise RuntimeError("stop")
        assert jax.sharding.get_abstract_mesh() == outer.abstract_mesh
        assert planned or jax.sharding.get_mesh() == outer
    assert jax.sharding.get_abstract_mesh().empty


def test_force_cpu_within_a_traced_function_leaves_the_mesh_alone():
    @jax.jit
    def double(x):
        with force_cpu():
            assert jax.sharding.get_abstract_mesh() == outer.abstract_mesh
            return 2 * x

    outer = create_mesh((8,), ("a",))
    with jax.set_mesh(outer):
        assert double(jnp.ones(8)).tolist() == [2] * 8


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


def test_force_cpu_leaves_committed_arrays_where_they_are():
    x = jax.device_put(jnp.ones(3), jax.devices()[3])
    with force_cpu():
        assert (x + 1).device == jax.devices()[3]


def test_the_cpu_context_sets_mesh_and_device():
    with cpu_context() as mesh:
        assert mesh == create_cpu_mesh()
        assert jax.sharding.get_mesh() == mesh
        assert jax.config.jax_default_device == jax.local_devices(backend="cpu")[0]
    assert jax.sharding.get_mesh().empty
    assert jax.config.jax_default_device is None


def test_the_cpu_context_takes_bare_partition_specs():
    with cpu_context() as mesh:
        x = jax.device_put(jnp.ones((8, 4)), PartitionSpec("fsdp"))
        y = jax.jit(lambda x: 2 * x, out_shardings=PartitionSpec("fsdp"))(x)
        z = jax.shard_map(lambda x: x + 1, in_specs=PartitionSpec("fsdp"), out_specs=PartitionSpec("fsdp"))(y)
    assert x.sharding.mesh == y.sharding.mesh == z.sharding.mesh == mesh
    assert z.sharding.shard_shape(z.shape) == (1, 4)
    assert float(z.sum()) == 96


def test_the_cpu_context_takes_axes_of_any_name_and_type():
    with cpu_context((2, -1), ("data", "model"), axis_types="explicit") as mesh:
        assert jax.sharding.get_abstract_mesh() == mesh.abstract_mesh
        assert dict(mesh.shape) == {"data": 2, "model": 4}
        assert mesh.axis_types == (AxisType.Explicit,) * 2


def test_the_cpu_context_restores_after_an_exception():
    outer = create_mesh((2, 4), ("a", "b"))
    with jax.set_mesh(outer), jax.default_device(jax.devices()[3]):
        with pytest.raises(RuntimeError, match="stop"), cpu_context():
            raise RuntimeError("stop")
        assert jax.sharding.get_mesh() == outer
        assert jax.config.jax_default_device == jax.devices()[3]
    assert jax.sharding.get_mesh().empty


def test_the_cpu_context_restores_when_it_cannot_be_entered():
    with pytest.raises(ValueError, match="needs 3 devices, but there are 8"), cpu_context((3,), ("a",)):
        pass
    with pytest.raises(ValueError, match="manual"), cpu_context((8,), ("a",), axis_types="manual"):
        pass
    assert jax.config.jax_default_device is None
    assert jax.sharding.get_mesh().empty


def test_the_cpu_context_nests():
    with cpu_context() as outer:
        with cpu_context((2, 4), ("a", "b")) as inner:
            assert jax.sharding.get_mesh() == inner
        assert jax.sharding.get_mesh() == outer
    assert jax.sharding.get_mesh().empty


def test_another_thread_does_not_inherit_the_cpu_context():
    found = []

    def look():
        found.append((jax.config.jax_default_device, jax.sharding.get_mesh().empty))

    with cpu_context():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert found == [(None, True)]

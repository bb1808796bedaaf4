"""Meshes over two real processes, on one machine, that share an array."""

from tests.processes import run


PROGRAM = """
start()

import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from axonym.mesh import (
    calculate_host_mesh_shape, cpu_context, create_cpu_mesh, create_mesh, parse_mesh_from_string
)

def processes(mesh):
    return np.vectorize(lambda device: device.process_index)(mesh.devices)

def total(mesh, spec):
    here = NamedSharding(mesh, spec)
    rows = jax.make_array_from_callback((128,), here, lambda index: np.arange(128.0)[index])
    everywhere = NamedSharding(mesh, PartitionSpec())
    return float(jax.jit(lambda rows: rows.sum(), out_shardings=everywhere)(rows))

assert jax.process_count() == 2 and len(jax.devices()) == 8
ordered = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
names = ("dp", "fsdp", "ep", "tp", "sp")

for use_jax in (False, True):
    for sizes in [(1, 8, 1, 1, 1), (2, 4, 1, 1, 1), (1, 4, 1, 2, 1), (8, 1, 1, 1, 1)]:
        mesh = create_mesh(sizes, names, use_jax=use_jax)
        assert mesh.devices.shape == sizes
        assert mesh.devices.ravel().tolist() == ordered
assert total(mesh, PartitionSpec("dp")) == 8128

# The factor of the slow network is on the axis that was asked, and within its size.
mesh = create_mesh((1, 4, 1, 2, 1), names, (1, 1, 1, 2, 1))
assert mesh.devices.shape == (1, 4, 1, 2, 1)
assert processes(mesh).reshape(4, 2).tolist() == [[0, 1]] * 4
assert total(mesh, PartitionSpec(("fsdp", "tp"))) == 8128

assert calculate_host_mesh_shape((2, 4)) == (1, 4)
assert parse_mesh_from_string("tp:-1", names).devices.shape == (1, 1, 1, 8, 1)
assert create_mesh((4,), ("a",), devices=jax.local_devices()).devices.size == 4
assert create_cpu_mesh() == create_mesh()
with cpu_context() as mesh:
    assert mesh.devices.ravel().tolist() == ordered
    assert jax.config.jax_default_device == jax.local_devices()[0]
print("done", PROCESS)
"""


def test_two_processes_have_the_mesh_that_was_asked():
    outputs = run(PROGRAM, processes=2, devices=4)
    assert [f"done {process}" in output for process, output in enumerate(outputs)] == [True, True]

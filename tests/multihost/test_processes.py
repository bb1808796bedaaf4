"""Two real processes on one machine: meshes over both, and calls in which one of them fails."""

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


MISHAPS = """
import time, types
import numpy as np
from axonym.mesh._coordination import coordination

start(shutdown_timeout_seconds=10)

# A process that comes late to the first call, before JAX has found any device, is named, and is told at once. The next
# call of each meets the next call of the other.
store = coordination().client
if PROCESS == 1:
    store.blocking_key_value_get("given up", 60_000)
started = time.monotonic()
text = raised(TimeoutError, nym.barrier_sync, 1.5, "first")
took = time.monotonic() - started
if PROCESS == 0:
    has(text, "barrier 'first' waited 1.5 s for process 1 of 2, which did not come")
    assert 1.4 < took < 4
    store.key_value_set("given up", "")
else:
    has(text, "barrier 'first' is over: process 0 gave up after 1.5 s, before this process, 1, came")
    assert took < 1
nym.barrier_sync(20, "first")

def same(value):
    nym.assert_same_on_all_hosts(value, timeout=20)

def sent(value, timeout=20):
    return nym.broadcast_from_host_zero(value if PROCESS == 0 else None, timeout=timeout)

class Bad:
    def __reduce__(self):
        raise RuntimeError("boom")

class Worse:
    def __getattr__(self, name):
        raise RuntimeError("boom")

# Whatever an object's own methods raise, all processes hear of it, and the next call works.
deep = []
for _ in range(3000):
    deep = [deep]
has(raised(TypeError, sent, Bad()), "the tree of process 0 cannot be sent to the others: RuntimeError: boom")
assert sent("again") == "again"
gone = jax.numpy.ones(3)
gone.delete()
has(raised(TypeError, sent, [gone]), "cannot be sent to the others: RuntimeError: Array has been deleted")
has(raised(TypeError, same, Worse() if PROCESS else 1), "on process 1: a value of type `Worse` cannot be compared")
has(raised(TypeError, same, deep if PROCESS == 0 else 1), "on process 0: a value of type `list` cannot be compared")
same("again")

# It hears of its own error even if nobody else comes.
if PROCESS == 0:
    has(raised(TypeError, sent, Bad(), 0.2), "the tree of process 0 cannot be sent to the others: RuntimeError: boom")
    store.key_value_set("failed alone", "")
else:
    store.blocking_key_value_get("failed alone", 60_000)
    has(raised(TimeoutError, sent, None), "is over: process 0 gave up after 0.2 s")
assert sent("again") == "again"

# Arrays are found at any depth, beside keys of any kinds, and stay one where they are one.
x = jax.numpy.arange(3.0)
value = {1: x, "a": {2, "b"}, None: types.SimpleNamespace(at=(x, jax.random.key(3)))}
got = sent(value)
assert list(map(str, got)) == ["1", "a", "None"] and got["a"] == {2, "b"} and got[1] is got[None].at[0]
assert isinstance(got[1], jax.Array) and got[1].tolist() == [0, 1, 2]
assert jax.random.key_data(got[None].at[1]).tolist() == jax.random.key_data(jax.random.key(3)).tolist()

# What is large comes in pieces, and within the time.
large = np.random.default_rng(1).bytes((9 << 20) + 1)
assert sent(large) == large
nym.barrier_sync(20)
started = time.monotonic()
text = raised(TimeoutError, sent, bytes(64 << 20), 0.02 if PROCESS == 0 else 20)
has(text, "`broadcast_from_host_zero` has sent ", " of 671", " bytes in 0.02 s; pass a longer timeout")
assert time.monotonic() - started < 10
assert sent("again") == "again"

# A difference is shown wherever it is: at the border of what is compared at once, and beyond the end of a text.
for at in (5, 65_530, 65_536, 200_001):
    text = raised(ValueError, same, "a" * at + f"{PROCESS}" + "b" * 70_000)
    has(text, "aa0bb", "aa1bb", "bb...; process 1 has ")
    assert len(text) < 900
has(raised(ValueError, same, "a" * 70_000 + "b" * 70_000 * PROCESS), "aa'; process 1 has ...aa", "aabb")
has(raised(ValueError, same, types.SimpleNamespace(rate=PROCESS).__repr__), "{'rate': 0}", "{'rate': 1}")
nym.barrier_sync(20, chr(0xD800) + " is half a character")
while store.key_value_dir_get_bytes("axonym"):
    assert time.monotonic() - started < 60
    time.sleep(0.05)
print("done", PROCESS)
"""


def test_a_call_that_fails_leaves_the_next_one_in_order():
    outputs = run(MISHAPS, 2, 1)
    assert [f"done {process}" in output for process, output in enumerate(outputs)] == [True, True]

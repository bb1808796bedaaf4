"""Real processes on one machine: meshes, barriers, broadcasts, comparisons, and calls in which one of them fails."""

import time

from tests.processes import launched, run


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
from axonym.multihost._rendezvous import get_coordination_store

start(shutdown_timeout_seconds=10)

# A process that comes late to the first call, before JAX has found any device, is named, and is told at once. The next
# call of each meets the next call of the other.
store = get_coordination_store().client
if PROCESS == 1:
    store.blocking_key_value_get("given up", 60_000)
started = time.monotonic()
text = raised(TimeoutError, nym.barrier_sync, 1.5, "first")
took = time.monotonic() - started
if PROCESS == 0:
    has(text, "barrier 'first' waited 1.5 s for process 1 of 2, which did not arrive")
    assert 1.4 < took < 4
    store.key_value_set("given up", "")
else:
    has(text, "barrier 'first' is over: process 0 gave up after 1.5 s, before this process, 1, arrived")
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
    has(text, "process 0 has ", "aa0bb", "aa1bb", "bb...; process 1 has ")
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


AGREEMENT = """
import time
import numpy as np
from axonym.multihost._rendezvous import get_coordination_store

start(shutdown_timeout_seconds=10)
for _ in range(20):
    nym.barrier_sync(20)
    nym.barrier_sync(20, "again / and\\nagain")
for name in range(20):
    nym.barrier_sync(20, f"{name}")

# A process that comes late is named, it is told, and the next barrier works: one of the same name too.
store = get_coordination_store().client
for name in ("late", None):
    if PROCESS == 1:
        store.blocking_key_value_get(f"given up on {name}", 60_000)
    started = time.monotonic()
    text = raised(TimeoutError, nym.barrier_sync, 1.5, name)
    took = time.monotonic() - started
    if PROCESS == 1:
        has(text, "is over: process ", "gave up after 1.5 s, before this process, 1, arrived")
    else:
        has(text, f"waited 1.5 s for process 1 of {PROCESSES}, which did not arrive: slow, stuck or dead")
        assert 1.4 < took < 5
    if PROCESS == 0:
        store.key_value_set(f"given up on {name}", "")
    has(text, "barrier 'late'" if name else "an unnamed barrier (call 21 of this process)")
    assert ("match in the order of calls" in text) == (name is None)
    nym.barrier_sync(20, name)

# Barriers with different names do not meet.
has(raised(TimeoutError, nym.barrier_sync, 0.3, f"of {PROCESS}"), f"barrier 'of {PROCESS}' waited 0.3 s for process")

x = nym.NamedArray(jax.numpy.asarray([-0.0, np.nan, 1.5], "bfloat16"), "batch")
given = {"x": x, "key": jax.random.key(7), "rows": np.arange(3), "name": "green-fox", "none": None}
got = nym.broadcast_from_host_zero(given if PROCESS == 0 else "not this", timeout=20)
assert isinstance(got["rows"], np.ndarray) and got["rows"].tolist() == [0, 1, 2]
assert got["x"].names == ("batch",) and isinstance(got["x"].array, jax.Array)
assert np.asarray(got["x"].array).tobytes() == np.asarray(x.array).tobytes()
assert jax.random.key_data(got["key"]).tolist() == jax.random.key_data(given["key"]).tolist()
assert (got["name"], got["none"], sorted(got)) == ("green-fox", None, sorted(given))
large = np.random.default_rng(PROCESS).normal(size=300_000)
got = nym.broadcast_from_host_zero([large], timeout=20)
assert got[0].tobytes() == np.random.default_rng(0).normal(size=300_000).tobytes()
has(raised(TypeError, nym.broadcast_from_host_zero, {"f": lambda: 0}), "the tree of process 0 cannot be sent")

mesh = nym.create_mesh((PROCESSES, -1), ("data", "model"))
spread = jax.make_array_from_callback(
    (8,), jax.NamedSharding(mesh, jax.P(("data", "model"))), lambda at: np.arange(8.0)[at]
)
has(raised(ValueError, nym.broadcast_from_host_zero, spread), "array of shape (8,) is sharded over several processes")
names = {"batch", "embed", "mlp", "heads", "vocab"}
mapping = nym.AxisMapping({name: "data" for name in names}, uneven="replicate")
entries = {name: "model" for name in names}
for value in (names, mapping, entries, mesh, spread, x, 17, {"specs": [jax.P("data", None)]}, nym.shard, np.float32):
    nym.assert_same_on_all_hosts(value, timeout=20)
orders = set(nym.broadcast_from_host_zero(str(names)) for _ in range(2)) | {str(names)}
if PROCESS:
    assert len(orders) == 2, "the hash seeds give one order of a set; choose others"

odd = {"batch": "data" if PROCESS < PROCESSES - 1 else ("data", "model")}
text = raised(ValueError, nym.assert_same_on_all_hosts, nym.AxisMapping(odd), "compute mapping")
has(text, "'compute mapping' differs between processes: processes 0, 1 and 2 have AxisMapping{'batch': 'data'")
has(text, f"; process {PROCESSES - 1} has AxisMapping{{'batch': ('data', 'model')")
text = raised(ValueError, nym.assert_same_on_all_hosts, {"text": "a" * 5000 + f"{PROCESS}" + "b" * 5000})
has(text, "a value differs", "...aaa", "a0b", "a1b", "bbb...")
assert len(text) < 1500
has(raised(ValueError, nym.assert_same_on_all_hosts, np.full(3, PROCESS)), "array(int64[3], ")
text = raised(TypeError, nym.assert_same_on_all_hosts, iter(()) if PROCESS else (row for row in ()), "rows")
has(text, "`assert_same_on_all_hosts` of 'rows' on process 0: an object of type `generator`")
if PROCESS != 1:
    text = raised(TimeoutError, nym.assert_same_on_all_hosts, 1, "seed", timeout=0.3)
    has(text, "`assert_same_on_all_hosts` of 'seed' waited 0.3 s for process 1")

# What is over leaves nothing behind, but for what some process did not come to.
deadline = time.monotonic() + 20
while True:
    left = {key.split("/")[2] for key, _ in store.key_value_dir_get("axonym")}
    if left <= {"seed", *(f"of%20{process}" for process in range(PROCESSES))}:
        break
    assert time.monotonic() < deadline, left
    time.sleep(0.05)
print("done", PROCESS)
"""


def test_processes_wait_for_each_other_and_agree():
    outputs = run(AGREEMENT, 4, 1, environment=[{"PYTHONHASHSEED": str(seed)} for seed in (1, 2, 3, 4)])
    assert [f"done {process}" in output for process, output in enumerate(outputs)] == [True] * 4


def test_a_process_that_was_killed_is_named_and_the_others_end():
    started = time.monotonic()
    done = launched(
        """
        import os, signal, time
        start(shutdown_timeout_seconds=2, heartbeat_timeout_seconds=10)
        nym.barrier_sync(20)
        if PROCESS == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic()
        text = raised(TimeoutError, nym.barrier_sync, 1, "checkpoint")
        has(text, "barrier 'checkpoint' waited 1 s for process 2 of 3, which did not arrive")
        assert time.monotonic() - started < 2
        has(raised(TimeoutError, nym.assert_same_on_all_hosts, 1, timeout=0.3), "process 2 of 3")
        print("told", flush=True)
        """,
        processes=3,
    )
    assert ["told" in one.output for one in done] == [True, True, False], "\n".join(one.output for one in done)
    assert time.monotonic() - started < 60

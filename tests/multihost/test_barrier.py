"""Processes that are connected, wait for each other, and agree: with one process here, and with several real ones."""

import socket
import time
import types

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

import axonym as nym
from tests.processes import free_port, launched, run


@pytest.fixture
def cluster(monkeypatch):
    """An environment that says nothing of a cluster."""
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_BIND_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("10.0.0.1:1234", 4, 4), ValueError, "is 4, and there are 4 processes: they are numbered from 0 to 3"),
        (("10.0.0.1:1234", 4, -1), ValueError, "`process_id` is -1, and there are 4 processes: they are numbered"),
        ((None, None, -1), ValueError, "`process_id` is -1: they are numbered from 0 on"),
        (("10.0.0.1:1234", 0, 0), ValueError, "`num_processes` is 0; there is at least one"),
        (("10.0.0.1:1234", 2.0, 0), TypeError, "`num_processes` is an integer, not 2.0"),
        (("10.0.0.1:1234", 2, True), TypeError, "`process_id` is an integer, not True"),
        ((1234, 2, 0), TypeError, "`coordinator_address` is a string such as '10.0.0.1:1234', not 1234"),
        (("localhost", 2, 0), ValueError, "'localhost'; it is the host of process 0 and a port from 1 to 65535"),
        (("localhost:", 2, 0), ValueError, "a port from 1 to 65535"),
        ((":1234", 2, 0), ValueError, "the host of process 0 and a port"),
        (("localhost:70000", 2, 0), ValueError, "a port from 1 to 65535"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused(cluster, arguments, kind, message):
    with pytest.raises(kind, match=message):
        nym.initialize(*arguments)


@pytest.mark.parametrize("seconds", [0, -1, 0.0005, 1e8, float("inf"), float("nan")])
def test_a_time_to_connect_that_cannot_be_is_refused(cluster, seconds):
    with pytest.raises(ValueError, match=r"`initialization_timeout` is .* seconds from 0\.001 to 31536000"):
        nym.initialize("localhost:1234", 2, 1, initialization_timeout=seconds)


def test_arguments_come_from_the_environment(cluster):
    cluster.setenv("JAX_COORDINATOR_ADDRESS", "localhost")
    with pytest.raises(ValueError, match="`coordinator_address` is 'localhost'"):
        nym.initialize(None, 2, 0)
    cluster.setenv("JAX_NUM_PROCESSES", "2")
    cluster.setenv("JAX_PROCESS_ID", "3")
    with pytest.raises(ValueError, match="`process_id` is 3, and there are 2 processes"):
        nym.initialize("localhost:1234")
    cluster.setenv("JAX_PROCESS_ID", "first")
    with pytest.raises(ValueError, match="environment variable JAX_PROCESS_ID is 'first', which is not an integer"):
        nym.initialize("localhost:1234")


def test_devices_that_are_in_use_cannot_be_connected(cluster):
    jax.devices()
    with pytest.raises(RuntimeError, match="JAX has used its devices already; call `initialize` first"):
        nym.initialize(f"localhost:{free_port()}", 1, 0)


def test_a_port_that_is_taken_is_named(cluster):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"process 0 cannot listen on port {port} of this machine .*in use"):
            nym.initialize(f"localhost:{port}", 2, 0)


@pytest.mark.parametrize("by_variable", [False, True])
def test_an_address_to_listen_at_is_checked_too(cluster, by_variable):
    def initialize(bound, process=0):
        if by_variable:
            cluster.setenv("JAX_COORDINATOR_BIND_ADDRESS", bound)
        nym.initialize("localhost:1234", 2, process, coordinator_bind_address=None if by_variable else bound)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bound = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RuntimeError, match=r"on port \d+ of 127\.0\.0\.1 \(address already in use\); choose"):
            initialize(bound)
    with pytest.raises(RuntimeError, match=r"of 192\.0\.2\.1 \(cannot assign .*another address of this machine"):
        initialize("192.0.2.1:1234")
    with pytest.raises(ValueError, match="`coordinator_bind_address` is 'localhost'; it is an address of this machine"):
        initialize("localhost", process=1)


def test_an_address_to_listen_at_is_a_string(cluster):
    with pytest.raises(TypeError, match=r"`coordinator_bind_address` is a string such as '0\.0\.0\.0:1234', not 1234"):
        nym.initialize("localhost:1234", 2, 0, coordinator_bind_address=1234)  # pyright: ignore[reportArgumentType]


def test_what_is_missing_is_named():
    (output,) = run(
        """
        has(raised(ValueError, nym.initialize), "`coordinator_address`, `num_processes`, `process_id` are missing",
            "finds no cluster", "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID")
        has(raised(ValueError, nym.initialize, "localhost:1234", 2), "`process_id` is missing", "set JAX_PROCESS_ID")
        has(raised(ValueError, nym.initialize, process_id=0), "`coordinator_address`, `num_processes` are missing")
        has(raised(ValueError, nym.initialize, cluster_detection_method="slrum"),
            "JAX finds no cluster by `cluster_detection_method='slrum'`; give all three arguments")
        year = 365 * 24 * 3600
        start(coordinator_bind_address=f"127.0.0.1:{PORT}", initialization_timeout=year,
              heartbeat_timeout_seconds=year, shutdown_timeout_seconds=year)
        has(raised(RuntimeError, start), "`initialize` was called before")
        nym.barrier_sync()
        print(jax.process_count(), nym.broadcast_from_host_zero("alone"))
        """,
        processes=1,
    )
    assert output.endswith("1 alone\n")


def test_processes_that_do_not_come_are_an_error_that_says_what_to_check():
    done = launched(
        """
        import socket, time
        closed = socket.socket()
        closed.bind(("127.0.0.1", 0))  # nobody listens there
        port = closed.getsockname()[1] if PROCESS else PORT
        started = time.monotonic()
        text = raised(TimeoutError, nym.initialize, f"127.0.0.1:{port}", 3, PROCESS, initialization_timeout=2)
        assert time.monotonic() - started < 6
        has(text, f"process {PROCESS} has not met the other 2 processes within 2 s", f"{port} can")
        has(text, "cannot be reached from here (" if PROCESS else "so some other process is missing")
        print("told", flush=True)
        """,
    )
    assert ["told" in one.output for one in done] == [True] * 2, "\n".join(one.output for one in done)


@pytest.mark.parametrize("seconds", [-1, 0, 0.0005, 1e8, 1e300, float("inf"), float("nan")])
def test_a_timeout_that_cannot_be_is_refused(seconds):
    with pytest.raises(ValueError, match=r"`timeout` is a number of seconds from 0\.001 to 31536000, a year"):
        nym.barrier_sync(seconds)
    with pytest.raises(ValueError, match="`timeout` is a number of seconds"):
        nym.broadcast_from_host_zero(1, timeout=seconds)


def test_arguments_of_the_wrong_kind_are_refused():
    with pytest.raises(TypeError, match="`timeout` is a number of seconds, not 'long'"):
        nym.barrier_sync("long")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="`timeout` is a number of seconds, not True"):
        nym.barrier_sync(True)
    with pytest.raises(TypeError, match="`name` is a string or None, not 3"):
        nym.barrier_sync(name=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`name` is empty"):
        nym.assert_same_on_all_hosts(1, "")
    with pytest.raises(TypeError, match="an object of type `generator` has no content that another process could"):
        nym.assert_same_on_all_hosts({"rows": (row for row in ())})


def test_one_process_waits_for_nobody():
    tree = {"x": nym.ones({"batch": 2}), "name": "run"}
    started = time.monotonic()
    for _ in range(1000):
        nym.barrier_sync(np.float32(0.001), "here")
    assert time.monotonic() - started < 1
    assert nym.broadcast_from_host_zero(tree) is tree
    nym.assert_same_on_all_hosts(tree)


def test_a_jax_that_keeps_its_service_elsewhere_is_named(monkeypatch):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    state = types.SimpleNamespace(client=object(), process_id=0, num_processes=2)
    monkeypatch.setattr(multihost_utils, "distributed", types.SimpleNamespace(global_state=state))
    with pytest.raises(RuntimeError, match=f"JAX {jax.__version__} keeps its coordination service .*key_value_set"):
        nym.barrier_sync()
    monkeypatch.delattr(multihost_utils, "distributed")
    with pytest.raises(RuntimeError, match="keeps its coordination service where Axonym does not find it"):
        nym.barrier_sync()


def connect_two(monkeypatch, come, seconds):
    """Makes this process number 0 of two, of which some come to every meeting, and JAX slow to find the devices."""
    store: dict[str, str] = {}

    def waited(key, milliseconds):
        time.sleep(milliseconds / 1000)
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")

    client = types.SimpleNamespace(
        blocking_key_value_get=waited,
        blocking_key_value_get_bytes=waited,
        key_value_delete=lambda key: None,
        key_value_dir_get=lambda folder: [(f"{folder}/{process}", "") for process in come],
        key_value_increment=lambda key, by: by,
        key_value_set=store.__setitem__,
        key_value_set_bytes=store.__setitem__,
        key_value_try_get=store.get,
    )
    state = types.SimpleNamespace(client=client, process_id=0, num_processes=2)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(multihost_utils, "distributed", types.SimpleNamespace(global_state=state))
    monkeypatch.setattr(jax, "process_count", lambda: time.sleep(seconds))


def test_devices_that_do_not_come_are_an_error_and_no_hang(monkeypatch):
    connect_two(monkeypatch, come=[0, 1], seconds=1)
    with pytest.raises(TimeoutError, match=r"barrier 'here' waited 0\.1 s for JAX to find the devices of all 2 proc"):
        nym.barrier_sync(0.1, "here")


def test_devices_and_processes_have_one_time_together(monkeypatch):
    connect_two(monkeypatch, come=[0], seconds=0.9)
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"barrier 'here' waited 1 s for process 1 of 2, which did not come"):
        nym.barrier_sync(1, "here")
    assert 0.9 < time.monotonic() - started < 1.7


def test_processes_that_nothing_connects_are_told_to_connect(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(RuntimeError, match="4 processes share the devices, but nothing connects them; call"):
        nym.barrier_sync()


AGREEMENT = """
import time
import numpy as np
from axonym.mesh._coordination import coordination

start(shutdown_timeout_seconds=10)
for _ in range(20):
    nym.barrier_sync(20)
    nym.barrier_sync(20, "again / and\\nagain")
for name in range(20):
    nym.barrier_sync(20, f"{name}")

# A process that comes late is named, it is told, and the next barrier works: one of the same name too.
store = coordination().client
for name in ("late", None):
    if PROCESS == 1:
        store.blocking_key_value_get(f"given up on {name}", 60_000)
    started = time.monotonic()
    text = raised(TimeoutError, nym.barrier_sync, 1.5, name)
    took = time.monotonic() - started
    if PROCESS == 1:
        has(text, "is over: process ", "gave up after 1.5 s, before this process, 1, came")
    else:
        has(text, f"waited 1.5 s for process 1 of {PROCESSES}, which did not come: slow, stuck or dead")
        assert 1.4 < took < 5
    if PROCESS == 0:
        store.key_value_set(f"given up on {name}", "")
    has(text, "barrier 'late'" if name else "an unnamed barrier (call 21 of this process)")
    assert ("meet in the order of calls" in text) == (name is None)
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
has(raised(ValueError, nym.broadcast_from_host_zero, spread), "array of shape (8,) is divided over several processes")
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
first = "process 0 has" if PROCESSES == 2 else "processes 0, 1 and 2 have"
has(text, f"'compute mapping' differs between processes: {first} AxisMapping{{'batch': 'data'")
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


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_wait_for_each_other_and_agree(processes):
    seeds = [{"PYTHONHASHSEED": str(process + 1)} for process in range(processes)]
    outputs = run(AGREEMENT, processes, 1, environment=seeds)
    assert [f"done {process}" in output for process, output in enumerate(outputs)] == [True] * processes


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
        has(text, "barrier 'checkpoint' waited 1 s for process 2 of 3, which did not come")
        assert time.monotonic() - started < 2
        has(raised(TimeoutError, nym.assert_same_on_all_hosts, 1, timeout=0.3), "process 2 of 3")
        print("told", flush=True)
        """,
        processes=3,
    )
    assert ["told" in one.output for one in done] == [True, True, False], "\n".join(one.output for one in done)
    assert time.monotonic() - started < 60

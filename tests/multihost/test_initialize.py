"""`initialize`: wrong arguments, taken ports, and processes that do not connect."""

import socket

import jax
import pytest

import axonym as nym
from tests.processes import free_port, launched, run


@pytest.fixture
def cluster(monkeypatch):
    """An environment without the variables of a cluster."""
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_BIND_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("10.0.0.1:1234", 4, 4), ValueError, "is 4, but the 4 processes are numbered from 0 to 3"),
        (("10.0.0.1:1234", 4, -1), ValueError, "`process_id` is -1, but the 4 processes are numbered"),
        ((None, None, -1), ValueError, "`process_id` is -1, but processes are numbered from 0"),
        (("10.0.0.1:1234", 0, 0), ValueError, "`num_processes` is 0; it is at least 1"),
        (("10.0.0.1:1234", 2.0, 0), TypeError, "`num_processes` is an integer, not 2.0"),
        (("10.0.0.1:1234", 2, True), TypeError, "`process_id` is an integer, not True"),
        ((1234, 2, 0), TypeError, "`coordinator_address` is a string such as '10.0.0.1:1234', not 1234"),
        (("localhost", 2, 0), ValueError, "'localhost'; it is the host of process 0 and a port from 1 to 65535"),
        (("localhost:", 2, 0), ValueError, "a port from 1 to 65535"),
        ((":1234", 2, 0), ValueError, "the host of process 0 and a port"),
        (("localhost:70000", 2, 0), ValueError, "a port from 1 to 65535"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(cluster, arguments, kind, message):
    with pytest.raises(kind, match=message):
        nym.initialize(*arguments)


@pytest.mark.parametrize("seconds", [0, -1, 0.0005, 1e8, float("inf"), float("nan")])
def test_a_wrong_initialization_timeout_is_refused(cluster, seconds):
    with pytest.raises(ValueError, match=r"`initialization_timeout` is .* seconds from 0\.001 to 31536000"):
        nym.initialize("localhost:1234", 2, 1, initialization_timeout=seconds)


def test_arguments_come_from_the_environment(cluster):
    cluster.setenv("JAX_COORDINATOR_ADDRESS", "localhost")
    with pytest.raises(ValueError, match="`coordinator_address` is 'localhost'"):
        nym.initialize(None, 2, 0)
    cluster.setenv("JAX_NUM_PROCESSES", "2")
    cluster.setenv("JAX_PROCESS_ID", "3")
    with pytest.raises(ValueError, match="`process_id` is 3, but the 2 processes"):
        nym.initialize("localhost:1234")
    cluster.setenv("JAX_PROCESS_ID", "first")
    with pytest.raises(ValueError, match="environment variable JAX_PROCESS_ID is 'first', which is not an integer"):
        nym.initialize("localhost:1234")


def test_devices_must_not_be_in_use(cluster):
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
def test_the_bind_address_is_checked(cluster, by_variable):
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


def test_the_bind_address_is_a_string(cluster):
    with pytest.raises(TypeError, match=r"`coordinator_bind_address` is a string such as '0\.0\.0\.0:1234', not 1234"):
        nym.initialize("localhost:1234", 2, 0, coordinator_bind_address=1234)  # pyright: ignore[reportArgumentType]


def test_missing_arguments_are_named():
    (output,) = run(
        """
        has(raised(ValueError, nym.initialize), "`coordinator_address`, `num_processes`, `process_id` are missing",
            "finds no cluster", "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID")
        has(raised(ValueError, nym.initialize, "localhost:1234", 2), "`process_id` is missing", "set JAX_PROCESS_ID")
        has(raised(ValueError, nym.initialize, process_id=0), "`coordinator_address`, `num_processes` are missing")
        has(raised(ValueError, nym.initialize, cluster_detection_method="slrum"),
            "JAX finds no cluster by `cluster_detection_method='slrum'`; pass all three arguments")
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


def test_processes_that_do_not_connect_are_an_error_with_what_to_check():
    done = launched(
        """
        import socket, time
        closed = socket.socket()
        closed.bind(("127.0.0.1", 0))  # nobody listens there
        port = closed.getsockname()[1] if PROCESS else PORT
        started = time.monotonic()
        text = raised(TimeoutError, nym.initialize, f"127.0.0.1:{port}", 3, PROCESS, initialization_timeout=2)
        assert time.monotonic() - started < 6
        has(text, f"process {PROCESS} has not connected with the other 2 processes within 2 s", f"{port} can")
        has(text, "cannot be reached from here (" if PROCESS else "so another process is missing")
        print("told", flush=True)
        """,
    )
    assert ["told" in one.output for one in done] == [True] * 2, "\n".join(one.output for one in done)


def test_different_numbers_of_processes_are_an_error_in_all_of_them():
    outputs = run(
        """
        import time
        started = time.monotonic()
        text = raised(ValueError, nym.initialize, f"127.0.0.1:{PORT}", 3 + PROCESS, PROCESS)
        assert text == ("`num_processes` is 3 in process 0 and 4 in process 1; start all processes again, with the "
            "same number"), text
        assert time.monotonic() - started < 20
        print("told", flush=True)
        """,
        processes=3,
    )
    assert ["told" in output for output in outputs] == [True] * 3

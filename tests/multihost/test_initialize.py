"""`initialize`: wrong arguments, taken ports, and processes that do not connect."""

import socket

import jax
import pytest

import axonym as nym
from tests.processes import free_port, run
from tests.refusals import refusal


@pytest.fixture
def cluster(monkeypatch):
    """An environment without the variables of a cluster."""
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_BIND_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


WRONG_ARGUMENTS = {
    "is 4, but the 4 processes are numbered from 0 to 3": (ValueError, ("10.0.0.1:1234", 4, 4)),
    "`process_id` is -1, but the 4 processes are numbered": (ValueError, ("10.0.0.1:1234", 4, -1)),
    "`process_id` is -1, but processes are numbered from 0": (ValueError, (None, None, -1)),
    "`num_processes` is 0; it is at least 1": (ValueError, ("10.0.0.1:1234", 0, 0)),
    "`coordinator_address` is a string such as '10.0.0.1:1234', not 1234": (TypeError, (1234, 2, 0)),
    "'localhost'; it is the host of process 0 and a port from 1 to 65535": (ValueError, ("localhost", 2, 0)),
    "':1234'; it is the host of process 0": (ValueError, (":1234", 2, 0)),
    "'localhost:70000'; it is the host of process 0": (ValueError, ("localhost:70000", 2, 0)),
}


def test_wrong_arguments_are_refused(cluster):
    for message, (error, arguments) in WRONG_ARGUMENTS.items():
        with refusal(message, error):
            nym.initialize(*arguments)
    with refusal("`initialization_timeout` is a number of seconds from 0.001 to 31536000"):
        nym.initialize("localhost:1234", 2, 1, initialization_timeout=0)
    with refusal("`coordinator_bind_address` is a string such as '0.0.0.0:1234', not 1234", TypeError):
        nym.initialize("localhost:1234", 2, 0, coordinator_bind_address=1234)  # pyright: ignore[reportArgumentType]


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


def test_a_port_that_is_taken_and_a_bind_address_that_cannot_be_used_are_named(cluster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=rf"on port {port} of this machine .*in use"):
            nym.initialize(f"localhost:{port}", 2, 0)
        with pytest.raises(RuntimeError, match=r"on port \d+ of 127\.0\.0\.1 \(address already in use\); choose"):
            nym.initialize("localhost:1234", 2, 0, coordinator_bind_address=f"127.0.0.1:{port}")
    cluster.setenv("JAX_COORDINATOR_BIND_ADDRESS", "192.0.2.1:1234")
    with pytest.raises(RuntimeError, match=r"of 192\.0\.2\.1 \(cannot assign .*another address of this machine"):
        nym.initialize("localhost:1234", 2, 0)
    cluster.setenv("JAX_COORDINATOR_BIND_ADDRESS", "localhost")
    with pytest.raises(ValueError, match="`coordinator_bind_address` is 'localhost'; it is an address of this machine"):
        nym.initialize("localhost:1234", 2, 1)


def test_what_is_missing_is_named_and_processes_that_do_not_connect_are_told_what_to_check():
    outputs = run(
        """
        has(raised(ValueError, nym.initialize), "`coordinator_address`, `num_processes`, `process_id` are missing",
            "finds no cluster", "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES, JAX_PROCESS_ID")
        has(raised(ValueError, nym.initialize, f"localhost:{PORT}", 2), "`process_id` is missing", "set JAX_PROCESS_ID")
        has(raised(ValueError, nym.initialize, process_id=0), "`coordinator_address`, `num_processes` are missing")
        has(raised(ValueError, nym.initialize, cluster_detection_method="slrum"),
            "JAX finds no cluster by `cluster_detection_method='slrum'`; pass all three arguments")

        import os, socket, time
        closed = socket.socket()
        closed.bind(("127.0.0.1", 0))  # nobody listens there
        port = closed.getsockname()[1] if PROCESS else PORT
        started = time.monotonic()
        text = raised(TimeoutError, nym.initialize, f"127.0.0.1:{port}", 3, PROCESS, initialization_timeout=2)
        assert time.monotonic() - started < 6
        has(text, f"process {PROCESS} has not connected with the other 2 processes within 2 s", f"{port} can")
        has(text, "cannot be reached from here (" if PROCESS else "so another process is missing")
        print("told", flush=True)
        os._exit(0)  # JAX would end the process when its own wait is over
        """,
    )
    assert ["told" in output for output in outputs] == [True] * 2


def test_different_numbers_of_processes_are_an_error_in_all_of_them():
    outputs = run(
        """
        text = raised(ValueError, nym.initialize, f"127.0.0.1:{PORT}", 2 + PROCESS, PROCESS)
        assert text == ("`num_processes` is 2 in process 0 and 3 in process 1; start all processes again, with the "
            "same number"), text
        print("told", flush=True)
        """,
    )
    assert ["told" in output for output in outputs] == [True] * 2

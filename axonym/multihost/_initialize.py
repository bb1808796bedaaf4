"""`initialize`: connects the processes of a program, as `jax.distributed.initialize` does, with helpful errors.

JAX ends the process without an exception if the others do not connect in time or the port is taken. So the arguments
are checked first, and JAX connects in a separate thread, which is abandoned before JAX gives up.
"""

import functools
import math
import operator
import os
import socket
import time
from collections.abc import Sequence
from concurrent.futures import wait
from typing import Any

import jax

from .._ground.formats import format_value
from .._ground.jax_compat import find_coordination_client, is_late_initialize_error, is_unknown_cluster_error
from ._rendezvous import CoordinationStore, Rendezvous, as_seconds, call_in_thread, format_processes


_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
_BIND, _BIND_VARIABLE = "coordinator_bind_address", "JAX_COORDINATOR_BIND_ADDRESS"
_MARGIN = 60  # seconds that JAX waits longer than we do
_LEAST = 5  # seconds for comparing numbers of processes after a late connection


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    local_device_ids: int | Sequence[int] | None = None,
    cluster_detection_method: str | None = None,
    initialization_timeout: float = 300,
    heartbeat_timeout_seconds: int = 100,
    shutdown_timeout_seconds: int = 300,
    coordinator_bind_address: str | None = None,
) -> None:
    """Connects this process with the others of the program; each process calls it once, before anything else in JAX.

    It is `jax.distributed.initialize` with helpful errors. The first three arguments default to the variables
    `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`; on TPU, SLURM, Open MPI and Kubernetes JAX
    determines the missing ones.

    Args:
        coordinator_address: Host and port of process 0, as in "10.0.0.1:1234". The port must be free there.
        num_processes: The number of processes.
        process_id: The index of this process, from 0.
        local_device_ids: The local GPUs that this process uses; None for all, or for one per process on SLURM and Open
            MPI.
        cluster_detection_method: How JAX looks for a cluster, "deactivate" for not at all; see JAX.
        initialization_timeout: How long to wait for the other processes, in seconds.
        heartbeat_timeout_seconds: Seconds of silence after which a process counts as dead. JAX then ends the others.
        shutdown_timeout_seconds: How long a process waits for the others when it ends, in seconds.
        coordinator_bind_address: Where process 0 listens, if not on all its network interfaces.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If the arguments do not fit each other, `num_processes` differs between processes, or some arguments
            are missing and JAX finds no cluster with them.
        RuntimeError: If it has been called before, JAX has used its devices already, or the port is taken.
        TimeoutError: If the others do not connect in time. End the process then: JAX cannot connect a second time.

    Example:
        >>> import axonym as nym
        >>> nym.initialize("10.0.0.1:1234", num_processes=4, process_id=4)
        Traceback (most recent call last):
            ...
        ValueError: `process_id` is 4, but the 4 processes are numbered from 0 to 3
    """
    if jax.distributed.is_initialized():
        raise RuntimeError("`initialize` was called before; call it once, at the start of the process")
    arguments = _resolve_arguments(coordinator_address, num_processes, process_id)
    seconds = as_seconds(initialization_timeout, "initialization_timeout")
    _check_process_numbers(arguments["num_processes"], arguments["process_id"])
    _check_addresses(arguments["coordinator_address"], coordinator_bind_address, arguments["process_id"])
    options = {
        "local_device_ids": local_device_ids,
        "cluster_detection_method": cluster_detection_method,
        "heartbeat_timeout_seconds": math.ceil(as_seconds(heartbeat_timeout_seconds, "heartbeat_timeout_seconds")),
        "shutdown_timeout_seconds": math.ceil(as_seconds(shutdown_timeout_seconds, "shutdown_timeout_seconds")),
        "coordinator_bind_address": coordinator_bind_address,
    }
    deadline = time.monotonic() + seconds
    error = _connect_processes(arguments, options, seconds)
    if error is not None:
        raise _explain_initialize_error(error, arguments, cluster_detection_method)
    _check_same_process_count(max(_LEAST, deadline - time.monotonic()))


def _resolve_arguments(address: Any, count: Any, number: Any) -> dict[str, Any]:
    """Returns the arguments, read from the environment where they are None."""
    arguments = {"coordinator_address": address, "num_processes": count, "process_id": number}
    for argument, variable in _VARIABLES.items():
        text = os.environ.get(variable)
        if arguments[argument] is None and text:
            is_address = argument == "coordinator_address"
            arguments[argument] = text if is_address else _parse_environment_integer(text, variable)
    for argument in ("num_processes", "process_id"):
        value = arguments[argument]
        if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
            raise TypeError(f"`{argument}` is an integer, not {format_value(value)}")
        arguments[argument] = None if value is None else operator.index(value)
    return arguments


def _parse_environment_integer(text: str, variable: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the environment variable {variable} is {text!r}, which is not an integer") from None


def _check_process_numbers(count: int | None, number: int | None) -> None:
    if count is not None and count < 1:
        raise ValueError(f"`num_processes` is {count}; it is at least 1")
    if number is not None and (number < 0 or (count is not None and number >= count)):
        processes_text = "processes" if count is None else f"the {count} processes"
        last = "" if count is None else f" to {count - 1}"
        raise ValueError(f"`process_id` is {number}, but {processes_text} are numbered from 0{last}")


def _check_addresses(address: Any, bind_address: Any, number: int | None) -> None:
    """Raises if an address is malformed, or process 0 cannot listen there: JAX would crash."""
    host, port = "", None
    if address is not None:
        _, port = _parse_address(address, "coordinator_address", "the host of process 0", "10.0.0.1:1234")
    bind_address = os.environ.get(_BIND_VARIABLE) if bind_address is None else bind_address
    if bind_address is not None:
        host, port = _parse_address(bind_address, _BIND, "an address of this machine", "0.0.0.0:1234")
    if number == 0 and port is not None:
        _check_port_is_free(host, port)


def _parse_address(address: Any, argument: str, host_of: str, example: str) -> tuple[str, int]:
    if not isinstance(address, str):
        raise TypeError(f"`{argument}` is a string such as {example!r}, not {format_value(address)}")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"`{argument}` is {address!r}; it is {host_of} and a port from 1 to 65535, as in {example!r}")
    return host.strip("[]"), int(port)


def _check_port_is_free(host: str, port: int) -> None:
    """Raises if this process cannot listen at an address, or at any address of this machine if the host is empty."""
    problem = _find_port_problem(host, port)
    if problem is None:
        return
    remedy = "choose another port in `coordinator_address`, the same in all processes, or end the program that uses it"
    if host:
        remedy = f"choose another address of this machine in `{_BIND}`, or end the program that uses this one"
    raise RuntimeError(
        f"process 0 cannot listen on port {port} of {host or 'this machine'} ({problem.lower()}); {remedy}"
    )


def _find_port_problem(host: str, port: int) -> str | None:
    """Returns why this process cannot listen at any address that a name stands for, or None if it can."""
    problem: str | None = None
    try:
        addresses = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return error.strerror
    for family, kind, protocol, _, place in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # A port that a program has just left is free, as it is to the coordinator.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
            return None
        except OSError as error:
            problem = error.strerror
    return problem


def _connect_processes(arguments: dict[str, Any], options: dict[str, Any], seconds: float) -> BaseException | None:
    """Lets JAX connect, in a thread that can be abandoned; returns the error, if any."""
    waiting = round(seconds) + _MARGIN  # JAX ends the process when its own wait is over
    connect = functools.partial(jax.distributed.initialize, **arguments, **options, initialization_timeout=waiting)
    call = call_in_thread(connect)
    wait([call], seconds)
    if call.done():
        return call.exception()
    return TimeoutError(
        f"{_format_who_waits(arguments)} within {seconds:g} s; "
        f"{_diagnose_coordinator(arguments['coordinator_address'])}"
    )


def _check_same_process_count(seconds: float) -> None:
    """Raises in every process if their numbers of processes differ; process 0 has as many connections as it says."""
    client, process, count = find_coordination_client()
    # Process 0 says how many there are: a `Rendezvous` of the number given here would never end if it were too large.
    key = "axonym/num_processes"
    if process == 0:
        client.key_value_set(key, str(count))
    connected = int(client.blocking_key_value_get(key, math.ceil(seconds * 1000)))
    store = CoordinationStore(client, process, connected)
    rendezvous = Rendezvous(store, "initialize", "all", seconds, "`initialize`", needs_devices=False)
    counts = [int(value) for value in rendezvous.exchange_values(str(count))]
    if process == 0:
        client.key_value_delete(key)
    for deviating_count in sorted({*counts} - {connected}):
        processes = [process for process in range(connected) if counts[process] == deviating_count]
        raise ValueError(
            f"`num_processes` is {connected} in process 0 and {deviating_count} in {format_processes(processes)}; "
            "start all processes again, with the same number"
        )


def _format_who_waits(arguments: dict[str, Any]) -> str:
    number, count = arguments["process_id"], arguments["num_processes"]
    waiting_process = "this process" if number is None else f"process {number}"
    if count is None:
        missing_processes = "other processes"
    else:
        missing_processes = "other process" if count == 2 else f"other {count - 1} processes"
    return f"{waiting_process} has not connected with the {missing_processes}"


def _diagnose_coordinator(address: str | None) -> str:
    """Tries to reach the coordinator, and returns what to check."""
    if address is None:
        return "check that all of them were started and can reach each other"
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=3).close()
    except OSError as error:
        return (
            f"{address} cannot be reached from here ({error}): check that process 0 runs on that host, that the name "
            "and the port are right, and that no firewall is in between"
        )
    return (
        f"{address} can be reached from here, so another process is missing or has a different address or number of "
        "processes: check that all of them were started, each with its own `process_id`"
    )


def _explain_initialize_error(error: BaseException, arguments: dict[str, Any], method: str | None) -> BaseException:
    """Returns an error of JAX, or one with what to do if the cause is known."""
    if is_late_initialize_error(error):
        return RuntimeError(
            "JAX has used its devices already; call `initialize` first, before this program or a module that it "
            "imports makes an array or calls functions such as `jax.devices()`"
        )
    missing = [argument for argument, value in arguments.items() if value is None]
    if missing and is_unknown_cluster_error(error):
        variables = ", ".join(_VARIABLES[argument] for argument in missing)
        known_clusters = "that it knows (TPU, SLURM, Open MPI, Kubernetes)"
        if method is not None:
            known_clusters = f"by `cluster_detection_method={method!r}`"
        return ValueError(
            f"{', '.join(f'`{argument}`' for argument in missing)} {'is' if len(missing) == 1 else 'are'} missing, and "
            f"JAX finds no cluster {known_clusters}; pass all three arguments, or set {variables}"
        )
    return error

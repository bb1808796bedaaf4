"""Connecting the processes of one program: `initialize`, JAX's own with what can go wrong said beforehand.

JAX ends the whole process, without an exception, if the others do not come in time or the port is taken. So what can
be checked is checked first, and JAX connects in a thread of its own, which is given up while JAX still waits.
"""

import errno
import functools
import math
import operator
import os
import socket
from collections.abc import Sequence
from typing import Any

import jax

from .._jax_compat import is_late_initialize_error, is_unknown_cluster_error
from ._barrier import checked_seconds
from ._rendezvous import Task


_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
_BIND, _BOUND = "coordinator_bind_address", "JAX_COORDINATOR_BIND_ADDRESS"
_MARGIN = 60  # seconds that JAX waits longer than we do


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
    """Connects this process with the others of the program; each calls it once, before anything else of JAX.

    It is `jax.distributed.initialize`, with errors that say what is wrong. The first three arguments are read from
    `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` where they are None; on TPU, SLURM, Open MPI and
    Kubernetes JAX finds out by itself what is still missing.

    Args:
        coordinator_address: Host and port of process 0, as in "10.0.0.1:1234". The port must be free there.
        num_processes: How many processes there are.
        process_id: The number of this one, from 0 on.
        local_device_ids: The local GPUs that this process uses; None for all, and for one per process where JAX finds
            SLURM or Open MPI.
        cluster_detection_method: How JAX looks for a cluster, "deactivate" for not at all; see JAX.
        initialization_timeout: How long to wait for the other processes, in seconds.
        heartbeat_timeout_seconds: After how many seconds of silence a process counts as dead. JAX then ends the others.
        shutdown_timeout_seconds: How long a process waits for the others when it ends, in seconds.
        coordinator_bind_address: Where process 0 listens, if not on all its network interfaces.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If the arguments do not fit each other, or some are missing and JAX finds no cluster that has them.
        RuntimeError: If it has been called before, JAX has used its devices already, or the port is taken.
        TimeoutError: If the others do not come in time. The process should end then: JAX cannot start again.

    Example:
        >>> import axonym as nym
        >>> nym.initialize("10.0.0.1:1234", num_processes=4, process_id=4)
        Traceback (most recent call last):
            ...
        ValueError: `process_id` is 4, and there are 4 processes: they are numbered from 0 to 3
    """
    if jax.distributed.is_initialized():
        raise RuntimeError("`initialize` was called before; a process calls it once, at its start")
    given = _given(coordinator_address, num_processes, process_id)
    seconds = checked_seconds(initialization_timeout, "initialization_timeout")
    _check_numbers(given["num_processes"], given["process_id"])
    _check_addresses(given["coordinator_address"], coordinator_bind_address, given["process_id"])
    options = {
        "local_device_ids": local_device_ids,
        "cluster_detection_method": cluster_detection_method,
        "heartbeat_timeout_seconds": _whole_seconds(heartbeat_timeout_seconds, "heartbeat_timeout_seconds"),
        "shutdown_timeout_seconds": _whole_seconds(shutdown_timeout_seconds, "shutdown_timeout_seconds"),
        "coordinator_bind_address": coordinator_bind_address,
    }
    error = _connected(given, options, seconds)
    if error is not None:
        raise _explained(error, given, cluster_detection_method)


def _given(address: Any, count: Any, number: Any) -> dict[str, Any]:
    """Returns the arguments, with those that are None read from the environment."""
    given = {"coordinator_address": address, "num_processes": count, "process_id": number}
    for argument, variable in _VARIABLES.items():
        text = os.environ.get(variable)
        if given[argument] is None and text:
            given[argument] = text if argument == "coordinator_address" else _integer(text, variable)
    for argument in ("num_processes", "process_id"):
        value = given[argument]
        if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
            raise TypeError(f"`{argument}` is an integer, not {value!r}")
        given[argument] = None if value is None else operator.index(value)
    return given


def _integer(text: str, variable: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the environment variable {variable} is {text!r}, which is not an integer") from None


def _whole_seconds(seconds: float, argument: str) -> int:
    """Returns a time as JAX takes it, rounded up."""
    return math.ceil(checked_seconds(seconds, argument))


def _check_numbers(count: int | None, number: int | None) -> None:
    if count is not None and count < 1:
        raise ValueError(f"`num_processes` is {count}; there is at least one process, this one")
    if number is not None and (number < 0 or (count is not None and number >= count)):
        there = "" if count is None else f", and there are {count} processes"
        numbers = "from 0 on" if count is None else f"from 0 to {count - 1}"
        raise ValueError(f"`process_id` is {number}{there}: they are numbered {numbers}")


def _check_addresses(address: Any, bound: Any, number: int | None) -> None:
    """Raises if an address has no such form, or process 0 cannot listen there: JAX would crash."""
    host, port = "", None
    if address is not None:
        _, port = _host_and_port(address, "coordinator_address", "the host of process 0", "10.0.0.1:1234")
    bound = os.environ.get(_BOUND) if bound is None else bound
    if bound is not None:
        host, port = _host_and_port(bound, _BIND, "an address of this machine", "0.0.0.0:1234")
    if number == 0 and port is not None:
        _check_free(host, port)


def _host_and_port(address: Any, argument: str, host_of: str, example: str) -> tuple[str, int]:
    """Returns both parts of an address."""
    if not isinstance(address, str):
        raise TypeError(f"`{argument}` is a string such as {example!r}, not {address!r}")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(f"`{argument}` is {address!r}; it is {host_of} and a port from 1 to 65535, as in {example!r}")
    return host.strip("[]"), int(port)


def _check_free(host: str, port: int) -> None:
    """Raises if this process cannot listen at an address, at every one of this machine if the host is empty."""
    problem = _why_not_free(host, port)
    if problem is None:
        return
    remedy = "choose another port in `coordinator_address`, the same in all processes, or end the program that has it"
    if host:
        remedy = f"choose another address of this machine in `{_BIND}`, or end the program that has this one"
    raise RuntimeError(
        f"process 0 cannot listen on port {port} of {host or 'this machine'} ({problem.lower()}); {remedy}"
    )


def _why_not_free(host: str, port: int) -> str | None:
    """Tries to listen; a name may stand for several addresses, of which one that does not exist here does no harm."""
    problems: list[OSError] = []
    try:
        places = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return error.strerror
    for family, kind, protocol, _, place in places:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as error:
            problems.append(error)
    taken = [error for error in problems if error.errno in (errno.EADDRINUSE, errno.EACCES)]
    if taken or len(problems) == len(places):
        return os.strerror((taken or problems)[0].errno or 0)
    return None


def _connected(given: dict[str, Any], options: dict[str, Any], seconds: float) -> BaseException | None:
    """Lets JAX connect, in a thread that can be given up; returns what went wrong."""
    waiting = round(seconds) + _MARGIN
    connect = functools.partial(jax.distributed.initialize, **given, **options, initialization_timeout=waiting)
    try:
        done = Task(connect).result(seconds)
    except Exception as error:
        return error
    if done is not None:
        return None
    return TimeoutError(f"{_late(given)} within {seconds:g} s; {_check(given['coordinator_address'])}")


def _late(given: dict[str, Any]) -> str:
    number, count = given["process_id"], given["num_processes"]
    who = "this process" if number is None else f"process {number}"
    others = "other process" if count == 2 else "other processes" if count is None else f"other {count - 1} processes"
    return f"{who} has not met the {others}"


def _check(address: str | None) -> str:
    """Says what to look at, after a look at the coordinator itself."""
    if address is None:
        return "see whether all of them were started and can reach each other"
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=3).close()
    except OSError as error:
        return (
            f"{address} cannot be reached from here ({error}): see whether process 0 runs on that host, whether the "
            "name and the port are right and no firewall is in between"
        )
    return (
        f"{address} can be reached from here, so some other process is missing or has another address, number of "
        "processes or `process_id`: see whether all of them were started, and with different numbers"
    )


def _explained(error: BaseException, given: dict[str, Any], method: str | None) -> BaseException:
    """Returns an error of JAX as one that says what to do, where we know."""
    if is_late_initialize_error(error):
        return RuntimeError(
            "JAX has used its devices already; call `initialize` first, before any array is made and before "
            "`jax.devices()` and the like are called, also by modules that the program imports"
        )
    missing = [argument for argument, value in given.items() if value is None]
    if missing and is_unknown_cluster_error(error):
        variables = ", ".join(_VARIABLES[argument] for argument in missing)
        known = "that it knows (TPU, SLURM, Open MPI, Kubernetes)"
        if method is not None:
            known = f"by `cluster_detection_method={method!r}`"
        return ValueError(
            f"{', '.join(f'`{argument}`' for argument in missing)} {'is' if len(missing) == 1 else 'are'} missing, and "
            f"JAX finds no cluster {known}; give all three arguments, or set {variables}"
        )
    return error

"""Several real processes on this machine that work as one: what the tests of many processes run."""

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .compiling import FASTER_COMPILING


START = """
import gc
import sys

gc.disable()  # it would take a fifth of the time of these imports
import jax
import axonym as nym
gc.enable()

PORT, PROCESSES, PROCESS = map(int, sys.argv[1:4])

def start(**options):
    nym.initialize(f"127.0.0.1:{PORT}", PROCESSES, PROCESS, **{"initialization_timeout": 60, **options})

def raised(kind, call, *args, **kwargs):
    '''The text of the error that a call must raise.'''
    try:
        call(*args, **kwargs)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")

def has(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in {text!r}"
"""


class Done(NamedTuple):
    """How one process ended."""

    code: int
    output: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launched(
    program: str, processes: int = 2, devices: int = 2, *, timeout: float = 120, environment: Sequence[dict] = ()
) -> list[Done]:
    """Runs a program in several processes at once, and returns how they ended; none is left behind.

    The program comes after `START`; it says `start()` where it wants to be connected. Each process has `devices` CPU
    devices, and its entry of `environment` in its environment. A process that has not ended in time is killed, and so
    are all others.
    """
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    port = free_port()
    source = START + f"jax.config.update('jax_num_cpu_devices', {devices})\n" + textwrap.dedent(program)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "SLURM_", "XLA_"))}
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", source, str(port), str(processes), str(process)],
            env={
                **inherited, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": FASTER_COMPILING,
                **(environment[process] if environment else {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(processes)
    ]  # fmt: skip
    outputs = [f"did not end within {timeout:g} s"] * processes
    try:
        for process, one in enumerate(running):
            outputs[process] = one.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        pass
    finally:
        for one in running:
            one.kill()
        for process, one in enumerate(running):
            outputs[process] = outputs[process] if one.stdout is None or one.stdout.closed else one.communicate()[0]
    return [Done(one.returncode, output) for one, output in zip(running, outputs, strict=True)]


def run(program: str, processes: int = 2, devices: int = 2, **options: object) -> list[str]:
    """Runs a program in several processes that must all end well, and returns what they printed."""
    done = launched(program, processes, devices, **options)  # pyright: ignore[reportArgumentType]
    shown = "\n".join(f"--- process {process} ended with {one.code}:\n{one.output}" for process, one in enumerate(done))
    assert [one.code for one in done] == [0] * processes, shown
    return [one.output for one in done]

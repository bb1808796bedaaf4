"""`barrier_sync`, its timeouts, and what it does without a service or without devices."""

import time
import types

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

import axonym as nym

from ..refusals import refusal


def test_wrong_arguments_are_refused():
    for seconds in (-1, 0, 0.0005, 1e8, 1e300, float("inf"), float("nan")):
        with refusal("`timeout` is a number of seconds from 0.001 to 31536000, a year"):
            nym.barrier_sync(seconds)
    for seconds in ("long", True):
        with refusal(f"`timeout` is a number of seconds, not {seconds!r}", TypeError):
            nym.barrier_sync(seconds)  # pyright: ignore[reportArgumentType]
    with refusal("`name` is a string or None, not 3", TypeError):
        nym.barrier_sync(name=3)  # pyright: ignore[reportArgumentType]


def test_one_process_does_not_wait():
    started = time.monotonic()
    for _ in range(1000):
        nym.barrier_sync(np.float32(0.001), "here")
    assert time.monotonic() - started < 1


def connect_two(monkeypatch, arrive, seconds):
    """Makes this process number 0 of two, some of which arrive at every rendezvous, and JAX slow to find devices."""
    store: dict[str, str] = {}

    def waited(key, milliseconds):
        time.sleep(milliseconds / 1000)
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")

    client = types.SimpleNamespace(
        blocking_key_value_get=waited,
        blocking_key_value_get_bytes=waited,
        key_value_delete=lambda key: None,
        key_value_dir_get=lambda folder: [(f"{folder}/{process}", "") for process in arrive],
        key_value_increment=lambda key, by: by,
        key_value_set=store.__setitem__,
        key_value_set_bytes=store.__setitem__,
        key_value_try_get=store.get,
    )
    state = types.SimpleNamespace(client=client, process_id=0, num_processes=2)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(multihost_utils, "distributed", types.SimpleNamespace(global_state=state))
    monkeypatch.setattr(jax, "process_count", lambda: time.sleep(seconds))


def test_missing_devices_are_an_error_not_a_hang(monkeypatch):
    connect_two(monkeypatch, arrive=[0, 1], seconds=0.3)
    with pytest.raises(TimeoutError, match=r"barrier 'here' waited 0\.1 s for JAX to find the devices of all 2 proc"):
        nym.barrier_sync(0.1, "here")


def test_devices_and_processes_share_one_timeout(monkeypatch):
    connect_two(monkeypatch, arrive=[0], seconds=0.4)
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"barrier 'here' waited 0\.5 s for process 1 of 2, which did not arrive"):
        nym.barrier_sync(0.5, "here")
    assert 0.4 < time.monotonic() - started < 0.85


def test_processes_must_be_connected(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(RuntimeError, match="4 processes share the devices, but are not connected; call"):
        nym.barrier_sync()

"""Sixteen threads trace and run at once under mappings of their own, and none sees the mapping of another.

A round is: enter a mapping and a mesh, ask what is in force, shard shapes, trace a new function, lower one that all
threads share, run it on one device, fail within another mapping, and, every fourth time, run it on all devices.
"""

import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import axonym as nym


THREADS = 16
ROUNDS = 480
NAMES = ("a", "b", "c")
VALUES = np.arange(512, dtype=np.float32).reshape(8, 8, 8)
SHAPE = nym.NamedArray(jax.ShapeDtypeStruct(VALUES.shape, VALUES.dtype), NAMES)


def every_mapping():
    """Returns the sixteen ways to divide three axes over two mesh axes."""
    some = [(), ("data",), ("model",), ("data", "model")]
    ways = [way for way in itertools.product(some, repeat=3) if sum(way, ()).count("data") < 2]
    return [way for way in ways if sum(way, ()).count("model") < 2]


WAYS = every_mapping()

traced = []
merging = nym.axis_mapping({"c": None}, merge=True)  # one object, entered by all threads
one_at_a_time = threading.Lock()  # XLA's CPU devices can block each other if several threads launch on all of them


@nym.named_jit(retrace_warning=False)
def double(x):
    traced.append(nym.current_mapping())
    return nym.auto_sharded(x + x)


def one_round(number, meshes):
    """Does one round, under a mapping that the other threads do not have at this time."""
    way = WAYS[(number + number // THREADS) % len(WAYS)]
    mapping = nym.AxisMapping(dict(zip(NAMES, way, strict=True)))
    spec = P(*(axes if len(axes) > 1 else axes[0] if axes else None for axes in way))
    assert nym.current_mapping() is None
    with jax.set_mesh(meshes[number % 2]), nym.axis_mapping(mapping):
        assert nym.current_mapping() == mapping
        assert nym.pspec_for_axis(SHAPE.axes) == spec
        assert nym.shard(SHAPE).array.sharding.spec == spec
        with merging:
            assert nym.pspec_for_axis(SHAPE.axes) == P(*spec[:2], None)
        inside = []
        jax.eval_shape(lambda x: inside.append((nym.current_mapping(), nym.shard(x + 1))), SHAPE)
        assert inside[0][0] == mapping
        with pytest.raises(ValueError, match="axis 'a' has size 7"), nym.axis_mapping(a="data"):
            nym.zeros({"a": 7})
        assert nym.current_mapping() == mapping
        sharding = double.lower(SHAPE).out_info.array.sharding
        assert number % 2 == 0 or sharding.spec == spec  # known before it runs on the Explicit mesh alone
        if number // THREADS % 4 == 0:
            with one_at_a_time:
                result = double(nym.NamedArray(VALUES, NAMES))
                np.testing.assert_array_equal(result.array, 2 * VALUES)
            assert result.sharding.is_equivalent_to(nym.sharding_for_axis(SHAPE.axes), 3)
    with jax.set_mesh(meshes[2 + len(way[0])]), nym.axis_mapping(mapping):
        np.testing.assert_array_equal(double(nym.NamedArray(VALUES, NAMES)).array, 2 * VALUES)
    assert nym.current_mapping() is None


def test_sixteen_threads_trace_and_run_at_once_under_their_own_mappings(auto_mesh, explicit_mesh):
    assert len(WAYS) == THREADS
    alone = [
        jax.make_mesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=[device])
        for device in jax.devices()[:3]
    ]
    traced.clear()
    double.clear_cache()
    start = threading.Barrier(THREADS)

    def work(thread):
        start.wait()
        for number in range(thread, ROUNDS, THREADS):
            one_round(number, [auto_mesh, explicit_mesh, *alone])
        return len(range(thread, ROUNDS, THREADS))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            assert sum(pool.map(work, range(THREADS))) == ROUNDS
    finally:
        sys.setswitchinterval(interval)
    assert set(traced) == {nym.AxisMapping(dict(zip(NAMES, way, strict=True))) for way in WAYS}


def test_jax_searches_its_cache_of_calls_without_code_in_python(auto_mesh):
    """Such code lets another thread run, which may change the cache meanwhile: that crashed."""
    compared = []

    def note_comparison(frame, event, _):
        if event == "call" and frame.f_code.co_name in ("__eq__", "__hash__") and "axonym" in frame.f_code.co_filename:
            compared.append(frame.f_code.co_qualname)

    functions = (
        jax.jit(lambda x, number: x, static_argnums=1),
        nym.named_jit(lambda x, number: x, retrace_warning=False),
    )
    for profile in (None, note_comparison):
        for number, name in enumerate("abcdefghijklmnop"):
            with jax.set_mesh(auto_mesh), nym.axis_mapping({name: "data"}):
                for function in functions:
                    sys.setprofile(profile)
                    function(VALUES, number // 4)
                    sys.setprofile(None)
    assert not compared

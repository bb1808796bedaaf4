"""`ShardedLoader` in one process: batches, prefetching, states, ends, errors, and threads."""

import gc
import itertools
import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.data import ShardedLoader


MAPPING = {"batch": "data"}
TOKENS = np.arange(40 * 3, dtype=np.int32).reshape(40, 3)


def make_batches(count=5, rows=8):
    return [TOKENS[rows * at : rows * (at + 1)] for at in range(count)]


def read_first(batch):
    return int(np.asarray(batch)[0, 0])


def find_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("axonym-data")]


@pytest.fixture(autouse=True)
def no_threads():
    yield
    gc.collect()
    until = time.monotonic() + 10
    while find_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert not find_threads(), "A thread is left behind."


@pytest.mark.parametrize("process_local", [True, False])
def test_batches_are_named_and_sharded_by_the_mapping(mesh, process_local):
    source = ({"tokens": rows, "weight": rows[:, 0] / 2, "step": at} for at, rows in enumerate(make_batches(3)))
    axes = {"tokens": (nym.Axis("batch", 8), "pos"), "weight": "batch", "step": None}
    with nym.axis_mapping(MAPPING):
        loader = ShardedLoader(source, axes=axes, process_local=process_local)
    with jax.set_mesh(None):  # mapping and mesh are those of when it was made
        batches = list(loader)
    assert [batch["step"] for batch in batches] == [0, 1, 2] and next(loader, None) is None
    for batch, rows in zip(batches, make_batches(3), strict=True):
        for name, expected in (("tokens", rows), ("weight", np.float32(rows[:, 0] / 2))):
            array = batch[name]
            assert array.sharding == jax.NamedSharding(mesh, jax.P("data", *(None,) * (expected.ndim - 1)))
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(np.asarray(array), expected)
    total = nym.named_jit(lambda x: nym.sum(x, "pos"))(batches[0]["tokens"])
    np.testing.assert_array_equal(np.asarray(total), make_batches()[0].sum(1))


@pytest.mark.parametrize("process_local", [True, False])
def test_positions_are_placed_in_an_order(mesh, process_local):
    mapping, tokens = {"batch": "model", "pos": "data"}, TOKENS[:32, 0].reshape(2, 16)
    positions = nym.nn.zigzag_positions(nym.Axis("pos", 16), 4)
    source = [{"tokens": tokens, "columns": tokens.T, "weight": tokens[:, 0], "step": 7}]
    axes = {"tokens": ("batch", "pos"), "columns": ("pos", "batch"), "weight": "batch", "step": None}
    with ShardedLoader(source, mapping, mesh, axes=axes, positions=positions, process_local=process_local) as loader:
        batch = next(loader)
    order = [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9]
    expected = {"tokens": tokens[:, order], "columns": tokens.T[order], "weight": tokens[:, 0], "positions": order}
    assert batch.pop("step") == 7 and batch.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(np.asarray(batch[name]), array)
    assert batch["tokens"].sharding.spec == jax.P("model", "data") and batch["positions"].sharding.spec == jax.P("data")


def test_named_arrays_and_modules_keep_their_names(auto_mesh):
    rows = nym.ShardedBy(nym.NamedArray(TOKENS[:8].astype(np.int64), ("batch", "pos")), {"batch": ("data", "model")})
    for process_local in (True, False):
        batch, step = next(ShardedLoader([(rows, np.int64(3))], MAPPING, auto_mesh, process_local=process_local))
        assert batch.tree.sharding.spec == jax.P(("data", "model"), None) and batch.tree.dtype == jnp.int32
        assert int(step) == 3 and step.sharding.spec == jax.P()


def test_random_keys_are_sharded_as_other_arrays(auto_mesh):
    keys = jax.random.split(jax.random.key(3, impl="rbg"), 8)
    for process_local in (True, False):
        source, axes = [{"keys": keys, "key": keys[0]}], {"keys": "batch", "key": None}
        batch = next(ShardedLoader(source, MAPPING, auto_mesh, axes=axes, process_local=process_local))
        assert batch["keys"].sharding.spec == jax.P("data") and jax.random.key_impl(batch["key"]) == "rbg"
        np.testing.assert_array_equal(jax.random.key_data(batch["keys"].array), jax.random.key_data(keys))


def test_a_source_may_reuse_its_array(auto_mesh):
    space = np.zeros(8 * 3 * 4 + 4096, np.uint8)
    rows = space[-space.ctypes.data % 4096 :][: 8 * 3 * 4].view(np.int32).reshape(8, 3)  # which JAX could alias

    def fill_rows():
        for at in range(4):
            rows[:] = at
            yield rows

    for process_local in (True, False):
        loader = ShardedLoader(fill_rows(), MAPPING, auto_mesh, 3, axes=("batch", "pos"), process_local=process_local)
        assert [read_first(batch) for batch in list(loader)] == [0, 1, 2, 3]


def test_memory_maps_are_read_where_devices_hold_rows(tmp_path, auto_mesh):
    TOKENS.tofile(tmp_path / "tokens.bin")
    tokens = nym.NamedArray(np.memmap(tmp_path / "tokens.bin", np.int32, "r", shape=(40, 3)), ("batch", "pos"))
    source = [nym.NamedArray(tokens.array[at : at + 8], tokens.names) for at in range(0, 40, 8)]
    for process_local in (True, False):
        loader = ShardedLoader(source, MAPPING, auto_mesh, process_local=process_local)
        np.testing.assert_array_equal(np.concatenate([np.asarray(batch) for batch in loader]), TOKENS)


def test_as_many_batches_as_asked_are_read_ahead(auto_mesh):
    seen, resume = [], threading.Event()

    def count():
        for at, rows in enumerate(make_batches()):
            seen.append((at, threading.current_thread().name))
            if at == 4:
                resume.wait(10)
            yield rows

    loader = ShardedLoader(count(), MAPPING, auto_mesh, prefetch=3, axes=("batch", "pos"))
    assert seen == []
    next(loader)
    wait_until(lambda: len(seen) == 4)
    time.sleep(0.05)
    assert [at for at, _ in seen] == [0, 1, 2, 3] and {name for _, name in seen} == {"axonym-data_0"}
    assert loader.get_state() == {"batches": 1}
    resume.set()
    assert len(list(loader)) == 4


def wait_until(condition):
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    assert condition()


def test_errors_of_the_source_arrive_with_their_traceback(auto_mesh):
    def fail():
        yield from make_batches(2)
        raise OSError("disk on fire")

    loader = ShardedLoader(fail(), MAPPING, auto_mesh, axes=("batch", "pos"))
    assert [read_first(next(loader)), read_first(next(loader))] == [0, 24]
    for _ in range(2):
        with pytest.raises(OSError, match="disk on fire") as caught:
            next(loader)
    assert "raise OSError" in "".join(traceback.format_exception(caught.value))
    assert loader.get_state() == {"batches": 2}


class Squares:
    """A source with a state of its own, in bytes, whose iterators can be closed."""

    def __init__(self):
        self.at, self.closed = 0, False

    def __iter__(self):
        return SquaresIterator(self)


class SquaresIterator:
    def __init__(self, owner):
        self.owner, self.at = owner, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == 9:
            raise StopIteration
        self.at += 1
        return np.full((8, 3), (self.at - 1) ** 2)

    def get_state(self):
        return bytes([self.at, 255])

    def set_state(self, state):
        assert state[1] == 255
        self.at = state[0]

    def close(self):
        self.owner.closed = True


def make_grain_dataset():
    return grain.MapDataset.source(TOKENS).shuffle(seed=1).repeat(2).batch(8).map(np.asarray)


SOURCES = {
    "list": make_batches,
    "generator": lambda: iter(make_batches()),
    "state in bytes": Squares,
    "dataset of grain": make_grain_dataset,
    "iterator of grain": lambda: iter(make_grain_dataset().to_iter_dataset()),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_state_is_that_of_the_batches_handed_out(auto_mesh, name):
    def load():
        return ShardedLoader(SOURCES[name](), MAPPING, auto_mesh, 3, axes=("batch", "pos"))

    with load() as loader:
        states, values = [loader.get_state()], []
        for batch in loader:
            states.append(json.loads(json.dumps(loader.get_state())))
            values.append(np.asarray(batch).tolist())
    assert len(values) >= 5 and [state["batches"] for state in states] == [*range(len(values) + 1)]
    with load() as loader:
        next(loader)  # and more are read ahead
        for at in (5, 4, 1, 0, len(values)) if name != "generator" else (4,):
            loader.set_state(states[at])
            assert loader.get_state() == states[at]
            assert [np.asarray(batch).tolist() for batch in loader] == values[at:], at


def test_a_state_that_does_not_fit_the_source_is_refused(auto_mesh):
    def load(source):
        return ShardedLoader(source, MAPPING, auto_mesh, axes=("batch", "pos"))

    with pytest.raises(ValueError, match="after batch 9, and the source of type `list` ends after 5"):
        load(make_batches()).set_state({"batches": 9})
    loader = load(iter(make_batches()))
    list(loader)
    expected = "type `list_iterator` is an iterator that has yielded 5 batches and cannot go back to batch 2; pass"
    with pytest.raises(ValueError, match=expected):
        loader.set_state({"batches": 2})
    with pytest.raises(ValueError, match=r"source with `get_state` and `set_state`, and .* `list` has none"):
        load([]).set_state(load(Squares()).get_state())


def test_a_short_last_batch_is_dropped_by_choice(auto_mesh):
    short = [*make_batches(2), TOKENS[:6]]
    loader = ShardedLoader(short, MAPPING, auto_mesh, axes=("batch", "pos"))
    assert len([next(loader), next(loader)]) == 2
    expected = "axis 'batch' has size 6, which is not divisible .*; drop a short last batch with `drop_remainder=True`,"
    with pytest.raises(ValueError, match=expected):
        next(loader)
    fitting = ShardedLoader([*make_batches(2), TOKENS[:4]], MAPPING, auto_mesh, axes=("batch", "pos"))
    assert [len(np.asarray(batch)) for batch in fitting] == [8, 8, 4]
    loader = ShardedLoader(short, MAPPING, auto_mesh, axes=("batch", "pos"), drop_remainder=True)
    assert len(list(loader)) == 2
    again = ShardedLoader(short, MAPPING, auto_mesh, axes=("batch", "pos"), drop_remainder=True)
    again.set_state(json.loads(json.dumps(loader.get_state())))
    assert list(again) == []


def test_a_closed_loader_has_no_thread_and_says_so(auto_mesh):
    source = Squares()
    loader = ShardedLoader(source, MAPPING, auto_mesh, axes=("batch", "pos"))
    next(loader)
    assert len(find_threads()) == 1
    loader.close()
    loader.close()
    assert source.closed and not find_threads()
    for call in (lambda: next(loader), lambda: loader.set_state({"batches": 0})):
        with pytest.raises(ValueError, match="the `ShardedLoader` is closed; make a new one"):
            call()
    generator = iter(make_batches())
    with ShardedLoader(generator, MAPPING, auto_mesh, 1, axes=("batch", "pos")) as loader:
        next(loader)
    assert len(list(generator)) >= 3, "An iterator of the user was closed."


def test_a_forgotten_loader_ends_its_thread(auto_mesh):
    seen = []
    endless = (seen.append(at) or TOKENS[:8] for at in iter(int, 1))
    loader = ShardedLoader(endless, MAPPING, auto_mesh, axes=("batch", "pos"))
    next(loader)
    del loader  # the fixture waits for the thread
    wait_until(lambda: not find_threads())
    assert len(seen) <= 4


def test_a_program_ends_after_an_interrupt(tmp_path):
    program = """
        import signal, threading, time
        import axonym as nym, numpy as np

        signal.signal(signal.SIGINT, signal.default_int_handler)  # which programs in the background ignore
        has_first, is_interrupted = threading.Event(), threading.Event()

        def read():
            yield np.zeros((8, 3))
            has_first.wait()
            time.sleep(1)  # Python loses an interrupt that comes just before the main thread begins to wait
            print("reading", flush=True)
            is_interrupted.wait()
            yield np.zeros((8, 3))

        mesh = nym.create_mesh((1,), ("data",))
        loader = nym.data.ShardedLoader(read(), {"batch": "data"}, mesh, axes=("batch", "pos"))
        try:
            for batch in loader:
                has_first.set()
        except KeyboardInterrupt:
            is_interrupted.set()
            print("interrupted at", loader.get_state(), "then", next(loader).shape)
            raise
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        printed, error = process.communicate(timeout=60)
    assert printed == "interrupted at {'batches': 1} then (batch: 8, pos: 3)\n"
    assert error.rstrip().endswith("KeyboardInterrupt") and process.returncode == -signal.SIGINT


Batch, SIXTEEN = nym.Axis("batch", 8), nym.Axis("batch", 16)
BATCHES_THAT_DO_NOT_FIT = [
    (TOKENS[:8], None, r"an array of shape \(8, 3\) has no names; .* `axes` to `ShardedLoader`"),
    ({"x": TOKENS[:8]}, {"y": "batch"}, "`axes` does not fit the batch: .*key"),
    ({"x": TOKENS[:8]}, {"x": "batch"}, r"batch\['x'\]: an array of shape \(8, 3\) has 2 axes, 1"),
    (TOKENS[:8], (SIXTEEN, "pos"), "'batch' has size 8 in all .*, and 16 in `axes`"),
    ({"x": 3}, None, "a batch has no arrays: "),
]
BATCHES_THAT_DO_NOT_FIT_POSITIONS = [
    (TOKENS[:8], ("batch", "pos"), "a dict without that key, and got an array"),
    ({"x": TOKENS[:8], "positions": TOKENS[:8]}, ("batch", "pos"), "and got one that has it"),
    ({"x": TOKENS[:8, :2]}, ("batch", "pos"), r"\['x'\]: the array \(batch: 8, pos: 2\) .* 3\); each process yields"),
    ({"x": TOKENS[:8, 0]}, "batch", "no array of the batch has the axis 'pos' of `positions`"),
]


@pytest.mark.parametrize(
    ("positions", "table"),
    [(None, BATCHES_THAT_DO_NOT_FIT), (nym.named([2, 0, 1], "pos"), BATCHES_THAT_DO_NOT_FIT_POSITIONS)],
    ids=["in order", "in another order"],
)
def test_batches_that_do_not_fit_are_errors(auto_mesh, positions, table):
    for batch, axes, message in table:
        with pytest.raises(ValueError, match=message):
            next(ShardedLoader([batch], MAPPING, auto_mesh, axes=axes, positions=positions))


DATA: Any = nym.data  # without types, because every call here is wrong
NO_POSITIONS = r"`positions` is a named array of integers with one axis, as .* not "
NO_STATE = "a state of `ShardedLoader` is what its `get_state` returned, a dict with 'batches', not "
ONE_SIZE = "`axes` has axis 'batch' of size 8 and of size 16; an axis has one size"
WRONG_OPTIONS = [
    ({"mapping": None}, ValueError, "`ShardedLoader` needs a mapping; pass one or"),
    ({"mesh": None}, ValueError, "`ShardedLoader` needs a mesh; set one with"),
    ({"mesh": 3}, TypeError, "`mesh` is a mesh, such as `axonym.create_mesh` returns, not 3"),
    ({"batches": 3}, TypeError, "yields batches when iterated over, .*; 3 cannot be iterated over"),
    ({"batches": MAPPING, "mapping": []}, TypeError, "A mapping goes from names .*, not a list of length"),
    ({"prefetch": 0}, ValueError, "`prefetch` must be at least 1, not 0"),
    ({"prefetch": 1.5}, TypeError, "`prefetch` must be an integer, not 1.5"),
    ({"process_local": 1}, TypeError, "`process_local` must be True or False"),
    ({"timeout": "x"}, TypeError, "`timeout` is a number of seconds, not"),
    ({"axes": {"x": 3}}, TypeError, r"`axes\['x'\]` is a name, an `Axis`, or a tuple of these, not 3"),
    ({"axes": [Batch, (SIXTEEN, "pos")]}, ValueError, ONE_SIZE),
    ({"positions": np.arange(3)}, TypeError, NO_POSITIONS),
    ({"positions": nym.ones({"batch": 8, "pos": 3}, dtype="int32")}, TypeError, NO_POSITIONS),
    ({"positions": nym.named([0, 1, 3], "pos")}, ValueError, "`positions` must have each position from 0 to 2 once"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG_OPTIONS)
def test_options_that_do_not_fit_are_errors(auto_mesh, options, error, message):
    options = {"batches": [], "mapping": MAPPING, "mesh": auto_mesh, **options}
    with pytest.raises(error, match=message):
        DATA.ShardedLoader(options.pop("batches"), options.pop("mapping"), **options)


def test_what_is_no_state_is_refused(auto_mesh):
    states = [None, {"batch": 3}, {"batches": -1}, {"batches": True}, {"batches": 0, "sizes": 3}]
    for source, state in [*(([], state) for state in states), (Squares(), {"batches": 0, "source_bytes": "A"})]:
        with pytest.raises(ValueError, match=NO_STATE):
            DATA.ShardedLoader(source, MAPPING, auto_mesh).set_state(state)


@pytest.mark.parametrize("process_local", [True, False])
def test_integers_of_64_bits_keep_their_values_or_are_refused(auto_mesh, process_local):
    def load(array):
        source = [{"tokens": {"ids": array}}]
        return next(ShardedLoader(source, MAPPING, auto_mesh, axes="batch", process_local=process_local))

    fitting = np.array([2**31 - 1, -(2**31)] * 4)
    found = load(fitting)["tokens"]["ids"]
    assert found.dtype == jnp.int32 and np.asarray(found).tolist() == fitting.tolist()
    said = r"^\['tokens'\]\['ids'\]: an array of shape \(8,\) has int64 elements from .* to 1099511627783, which do not"
    with pytest.raises(ValueError, match=f"{said} fit int32; convert them first, or set `jax_enable_x64`"):
        load(np.array([7] * 7 + [2**40 + 7]))
    assert np.asarray(load(np.full(8, 0.1))["tokens"]["ids"]).tolist() == [np.float32(0.1)] * 8


def test_threads_share_the_batches_of_a_loader(auto_mesh):
    seen, states = [], []

    def read(loader):
        for batch in loader:
            seen.append(int(np.asarray(batch)[0]))
            states.append(loader.get_state()["batches"])

    with ShardedLoader((np.full(8, at) for at in range(200)), MAPPING, auto_mesh, axes="batch") as loader:
        with ThreadPoolExecutor(4) as pool:
            for reading in [pool.submit(read, loader) for _ in range(4)]:
                reading.result()
    assert sorted(seen) == [*range(200)] and max(states) == 200


def test_a_loader_is_set_back_and_closed_while_threads_read(auto_mesh):
    class Counter:
        def __iter__(self):
            return (np.full(8, at) for at in itertools.count())

    def read(loader):
        with pytest.raises(ValueError, match="the `ShardedLoader` is closed; make a new one"):
            for batch in loader:
                seen.append(int(np.asarray(batch)[0]))

    seen: list[int] = []
    with ThreadPoolExecutor(3) as pool:
        with ShardedLoader(Counter(), MAPPING, auto_mesh, axes="batch") as loader:
            start = loader.get_state()
            readings = [pool.submit(read, loader) for _ in range(3)]
            for resets in range(5):
                wait_until(lambda resets=resets: len(seen) > 10 * resets and seen.count(0) == resets + 1)
                loader.set_state(start)
            wait_until(lambda: seen.count(0) == 6)
        for reading in readings:
            reading.result()
    assert seen.count(0) == 6


def test_rows_of_one_process_are_all_rows(mesh):
    rows = nym.data.find_local_rows(nym.Axis("batch", 8), MAPPING)
    assert (rows.index, rows.count, rows.size, rows.positions.tolist()) == (0, 1, 8, [*range(8)])
    for arguments, error, message in (
        (("batch", MAPPING), TypeError, "takes an `Axis` with the size of the batch, not 'batch'"),
        ((Batch, mesh, MAPPING), TypeError, "A mapping goes from names to"),
        ((Batch, MAPPING, 3), TypeError, "`mesh` is a mesh, such as `axonym.create_mesh` returns, not"),
        ((Batch,), ValueError, "`find_local_rows` needs a mapping"),
    ):
        with pytest.raises(error, match=message):
            DATA.find_local_rows(*arguments)

"""`ShardedLoader` and `find_local_rows` in real processes: rows by mapping, agreement, ends, errors and states.

The same processes check what other libraries get of an array that they share.
"""

from tests.processes import run


LOADING = """
import json
import time
import grain
import numpy as np
from jax.experimental import multihost_utils
from axonym.data import ShardedLoader, find_local_rows

start()
TOKENS = np.arange(64 * 3, dtype=np.int32).reshape(64, 3)
AXES = ("batch", "pos")
Batch = nym.Axis("batch", 8)
DEVICES = jax.device_count()

def gathered(x):
    return multihost_utils.process_allgather(x.array, tiled=True)

# Which rows a process reads, and that the batches have them in order, for each kind of mesh. The processes are along
# mesh axis `data`, or along `model` and share all rows, or both.
MESHES = [((PROCESSES, DEVICES // PROCESSES), ("data", "model")), ((4, DEVICES // 4), ("model", "data"))]
counts = []
for (sizes, names), kind in zip(MESHES, ("auto", "explicit"), strict=True):
    mesh = nym.create_mesh(sizes, names, axis_types=kind)
    with jax.set_mesh(mesh):
        for mapping in ({"batch": "data"}, {"batch": "model"}, {"batch": ("model", "data")}, {}):
            rows = find_local_rows(Batch, mapping)
            sharding = nym.sharding_for_axis(AXES, mapping)
            held = sharding.addressable_devices_indices_map((8, 3)).values()
            assert rows.positions.tolist() == sorted({i for at in held for i in range(8)[at[0]]}), (names, mapping)
            assert rows.size * rows.count == 8 and 0 <= rows.index < rows.count
            counts.append(rows.count)
            # In grain: batches of as many rows as a process reads, of which it takes each `count`-th.
            shuffled = grain.MapDataset.source(TOKENS).shuffle(seed=2)
            expected = [shuffled.batch(8)[at] for at in range(2)]
            local = shuffled.batch(rows.size)[rows.index :: rows.count]
            with ShardedLoader(local, mapping, axes=(Batch, "pos")) as loader:
                for at in range(2):
                    batch = next(loader)
                    assert batch.sharding.is_equivalent_to(sharding, 2)
                    got = gathered(batch)
                    if (np.diff(rows.positions) > 1).any():  # several blocks of rows, which get those of the next ones
                        got, expected[at] = np.sort(got, 0), np.sort(expected[at], 0)
                    np.testing.assert_array_equal(got, expected[at])
            whole = ShardedLoader(shuffled.batch(8), mapping, axes=AXES, process_local=False)
            whole.set_state({"batches": 1, "source": {"next_index": 1}})
            np.testing.assert_array_equal(gathered(next(whole)), shuffled.batch(8)[1])
assert counts == [PROCESSES, 1, PROCESSES, 1, 1, PROCESSES, PROCESSES, 1], counts

# Positions in an order, of sequences that the processes share: each yields them whole.
sequences = TOKENS[:, 0].reshape(4, 16)
order = nym.nn.zigzag_positions(nym.Axis("pos", 16), 4)
for process_local in (True, False):
    with jax.set_mesh(nym.create_mesh((4, DEVICES // 4), ("context", "data"))):
        options = {"axes": AXES, "positions": order, "process_local": process_local}
        rows = sequences[find_local_rows(nym.Axis("batch", 4), {"batch": "data"}).positions]
        source = [{"tokens": rows if process_local else sequences}]
        batch = next(ShardedLoader(source, {"pos": "context", "batch": "data"}, **options))
        for name, expected in (("tokens", sequences[:, order.array]), ("positions", order.array)):
            np.testing.assert_array_equal(gathered(batch[name]), expected)

mesh = nym.create_mesh((PROCESSES, DEVICES // PROCESSES), ("data", "model"))
jax.set_mesh(mesh)
MAPPING = {"batch": "data"}
LAST = PROCESSES - 1
OTHERS = "process 0"

def load(batches, mapping=MAPPING, timeout=30, **options):
    return ShardedLoader(batches, mapping, axes=AXES, timeout=timeout, **options)

def make_rows(count=2, dtype=np.int32):
    return np.full((count, 3), PROCESS, dtype)

def differing(batches, kind=ValueError, **options):
    loader = load(batches, **options)
    next(loader)
    text = raised(kind, next, loader)
    assert raised(kind, next, loader) == text and loader.get_state() == {"batches": 1}
    return text

# All processes raise the same if batches differ, and the loaders are in step afterwards.
odd = PROCESS == LAST
MADE = "for P('data', None) on mesh (data: "
text = differing([make_rows(), make_rows(4 if odd else 2)])
has(text, f"batch 1 differs between processes: the array is int32 (batch: 2, pos: 3) {MADE}", f" in {OTHERS} and int32 "
    f"(batch: 4, pos: 3) {MADE}", f" in process {LAST}; the sources of all processes must yield batches of the same")
has(differing([make_rows(), make_rows(dtype=np.float32 if odd else np.int32)]), "int32 (batch: 2, ", "float32 (batch: ")
trees = iter([{"x": make_rows()}, {"x": make_rows(), **({} if odd else {"y": make_rows()})}])
has(differing(trees), f"['y'] is int32 (batch: 2, pos: 3) {MADE}", f" in {OTHERS} and missing in process {LAST}; ")
assert len(list(load([make_rows()] * 2))) == 2
loader = load([make_rows()], {} if odd else MAPPING)
has(raised(ValueError, next, loader), "batch 0 differs between processes: ", "P('data', None)", "P(None, None)")

# One process ends earlier, or raises: all of them know.
text = differing([make_rows()] * (1 if odd else 3))
assert text == (f"the source of process {LAST} ends after 1 batches, and that of {OTHERS} does not; give all "
    "processes the same number of batches, or end with the shortest by `drop_remainder=True`"), text
for batches in ([make_rows()] * (1 if odd else 3), [make_rows(), make_rows(1 if odd else 2), make_rows()]):
    loader = load(batches, drop_remainder=True)
    assert len(list(loader)) == 1 and list(loader) == [] and loader.get_state()["batches"] == 1

def fail():
    yield make_rows()
    if odd:
        raise OSError("disk on fire")
    yield make_rows()

text = differing(fail(), OSError if odd else ValueError)
assert text == ("" if odd else f"process {LAST} cannot provide batch 1; it raises OSError: ") + "disk on fire", text
text = differing([make_rows(4), make_rows(5 if odd else 4)], mapping={"batch": ("data", "model")})
has(text, "axis 'batch' has size 5 in this process")

# States of different batches are found; equal ones are not; comparing now and then, or never, is a choice.
loader = load([make_rows()] * 4)
loader.set_state({"batches": 2 if odd else 1})
has(raised(ValueError, next, loader), "the number of the batch is 1 in ", f" and 2 in process {LAST}; ")
loader = load([make_rows()] * 3, check_every=2)
assert len(list(loader)) == 3
loader = load([make_rows(2 + 2 * (odd and at % 2)) for at in range(3)], check_every=2)
assert len([*loader]) == 3
has(raised(ValueError, load, [], drop_remainder=True, check_every=2), "`check_every` must be 1, not 2")
if not odd:
    text = raised(TimeoutError, next, load([make_rows()], timeout=0.3))
    has(text, "batch 0 of `ShardedLoader` ", "0.3 s")
nym.barrier_sync(60, "late")
if odd:
    has(raised(TimeoutError, next, load([make_rows()], timeout=0.3)), "gave up after 0.3 s")

# What other libraries get is the part of a process.
whole = nym.host_local_to_global(nym.NamedArray(np.arange(4), "batch"), MAPPING)
for call in (nym.interop.to_xarray, nym.interop.to_pandas):
    has(raised(ValueError, call, whole), f"process {PROCESS} has only a part of (batch: {4 * PROCESSES}), which is "
        "sharded over several processes; `axonym.global_to_host_local` returns that part")
    assert call(nym.global_to_host_local(whole)).values.tolist() == [0, 1, 2, 3]
nym.barrier_sync(60, "the end")
print("done", PROCESS)
"""


def test_processes_load_their_rows_and_agree():
    outputs = run(LOADING, processes=2, devices=4)
    assert [f"done {process}" in output for process, output in enumerate(outputs)] == [True, True]

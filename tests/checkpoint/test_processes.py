"""Checkpoints of two and four real processes, restored in other numbers of them and in one."""

from pathlib import Path

import jax
import numpy as np
import pytest

import axonym as nym

from ..processes import run
from .fail import KINDS, Failure, run_failures


PROGRAM = """
import resource
import shutil
import time
import warnings
import numpy as np

assert "orbax" not in sys.modules and "tensorstore" not in sys.modules  # imported where they are used
start()
PARAMETERS = {"embed": "data", "mlp": "model"}

class Data:
    def __init__(self, state=None):
        self.state = state
    def get_state(self):
        return self.state
    def set_state(self, state):
        self.state = state

def make():
    weight = nym.random.randint(jax.random.key(0), {"mlp": 8, "embed": 16}, -1000, 1000).astype("float32")
    keys = nym.named(jax.random.split(jax.random.key(1), 16), "embed")
    return {"weight": weight, "keys": keys, "low": weight.astype("bfloat16")}

def is_same(one, other):
    same = (one["weight"] == other["weight"]).all() & (one["low"] == other["low"]).all()
    data = [jax.random.key_data(state["keys"].array) for state in (one, other)]
    return bool(same.array) and bool((data[0] == data[1]).all()) and (one["numpy"] == other["numpy"]).all()

def activate(*sizes, kind):
    return jax.set_mesh(jax.make_mesh(sizes, ("data", "model"), axis_types=(kind,) * 2))
"""

SAVE = (
    PROGRAM
    + """
for step, kind in enumerate(jax.sharding.AxisType.__members__.values()):
    if kind is jax.sharding.AxisType.Manual:
        continue
    with activate(4, 2, kind=kind):
        state = {**nym.named_jit(make, PARAMETERS)(), "numpy": np.arange(3.0), "step": step}
        with nym.checkpoint.Checkpointer(FOLDER) as checkpointer:
            checkpointer.save(state, step, data=Data({"of": jax.process_index()}))
        data = Data()
        found = nym.checkpoint.restore(FOLDER, state, data=data)
        assert is_same(state, found) and found["step"] == step and data.state == {"of": jax.process_index()}
        assert found["weight"].sharding == state["weight"].sharding
with activate(8, 1, kind=jax.sharding.AxisType.Explicit):
    nym.checkpoint.save(FOLDER, state, 10, data=Data("same"))
    noise = nym.named_jit(lambda: nym.random.randint(jax.random.key(2), {"embed": 1 << 19}, 0, 1 << 30), PARAMETERS)()
    limits, start_time = resource.getrlimit(resource.RLIMIT_FSIZE), time.monotonic()
    with nym.checkpoint.Checkpointer(FOLDER) as checkpointer:
        if jax.process_index() == 1:  # it cannot write its part, and the other one does not wait for the timeout
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, limits[1]))
        checkpointer.save({"noise": noise}, 11)
        text = raised(OSError, checkpointer.wait)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        has(text, "the checkpoint of step 11 could not be saved", "complete: 0, 1, 10", "too large")
        assert ("in process 1: " in text) == (jax.process_index() == 0), text
        assert time.monotonic() - start_time < 60 and checkpointer.steps == [0, 1, 10]
        checkpointer.save({"noise": noise}, 12)
        assert bool((checkpointer.restore({"noise": noise})["noise"] == noise).all().array)
    nym.barrier_sync(name="after failure")
    if jax.process_index() == 0:
        shutil.rmtree(FOLDER / "12")
    # Processes that do not do the same are told so, and one that waits is for the timeout.
    text = raised(ValueError, nym.checkpoint.restore, FOLDER, state, step=PROCESS)
    has(text, "process 0 restores step 0, and process 1 restores step 1; call this in all processes together")
    text = raised(ValueError, nym.checkpoint.Checkpointer, FOLDER.with_name(f"own {PROCESS}"))
    has(text, "own 0 to save, and process 1 opens ", "own 1 to save; call this in all processes together")
    with nym.checkpoint.Checkpointer(FOLDER, read_only=True, timeout=2) as reader:
        time.sleep(3 * PROCESS)
        text = raised(TimeoutError, reader.restore, state)
        has(text, f"the checkpoints in {FOLDER} ", "gave up after 2 s" if PROCESS else "waited 2 s for process 1 of 2")
with jax.set_mesh(None):  # arrays of one process
    local = {"key": jax.random.key(5), "count": nym.arange(nym.Axis("embed", 3)) + jax.process_index()}
    nym.checkpoint.save(FOLDER.with_name("local"), local, 0)
    found = nym.checkpoint.restore(FOLDER.with_name("local"), local)
    assert jax.random.key_data(found["key"]).tolist() == [0, 5] and found["count"].array.tolist() == [0, 1, 2]
"""
)

RESTORE = (
    PROGRAM
    + """
with activate(2, 4, kind=jax.sharding.AxisType.Explicit):
    state = {**nym.named_jit(make, PARAMETERS)(), "numpy": np.arange(3.0), "step": 0}
    for step in nym.checkpoint.list_steps(FOLDER):
        found = nym.checkpoint.restore(FOLDER, state, step=step, mapping=PARAMETERS)
        assert is_same(state, found) and found["weight"].sharding.spec == state["weight"].sharding.spec
    like = {**state, "weight": nym.NamedArray(jax.ShapeDtypeStruct((16, 8), "float32"), ("embed", "mlp"))}
    found = nym.checkpoint.restore(FOLDER, like, mapping=PARAMETERS)
    assert found["weight"].names == ("embed", "mlp") and is_same(state, found)
    data = Data()
    nym.checkpoint.restore(FOLDER, state, data=data)
    assert data.state == "same"
    text = raised(ValueError, nym.checkpoint.restore, FOLDER, state, step=0, data=data)
    has(text, "each of 2 processes saved its own state of the data, and there are 4 now")
    nym.barrier_sync(name="before damage")
    if jax.process_index() == 0:
        largest = max((FOLDER / "10").rglob("ocdbt.process_1/d/*"), key=lambda path: path.stat().st_size)
        content = largest.read_bytes()
        largest.write_bytes(bytes(len(content)))
    nym.barrier_sync(name="damage")
    text = raised(nym.checkpoint.DamagedCheckpointError, nym.checkpoint.restore, FOLDER, state)
    has(text, "step 10 is damaged", "ocdbt.process_1/d/", "is damaged between bytes 0 and")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert is_same(state, nym.checkpoint.restore(FOLDER, state, fallback=True))
    assert any("skipped the checkpoint of step 10" in str(one.message) for one in caught)
    nym.checkpoint.save(FOLDER, state, 11)
"""
)


@pytest.mark.timeout(240)
def test_two_save_four_restore_and_one(tmp_path: Path) -> None:
    prefix = f"import pathlib\nFOLDER = pathlib.Path({str(tmp_path)!r})\n"
    run(prefix + SAVE, processes=2, devices=4)
    run(prefix + RESTORE, processes=4, devices=2)
    assert nym.checkpoint.list_steps(tmp_path) == [0, 1, 10, 11]
    with jax.set_mesh(None):
        weight = nym.random.randint(jax.random.key(0), {"mlp": 8, "embed": 16}, -1000, 1000).astype("float32")
        for step in (0, 1, 11):
            restored = nym.checkpoint.restore(tmp_path, step=step)
            assert np.array_equal(restored["weight"].array, weight.array)
            assert restored["weight"].array.devices() == {jax.devices()[0]}
        nym.checkpoint.save(tmp_path, restored, 12)


@pytest.mark.timeout(300)
def test_each_failure_is_named_in_time_and_loses_nothing() -> None:
    failures = [Failure(kind, process=number % 2, seconds=0.2) for number, kind in enumerate(KINDS)]
    *_, summary = run_failures(failures, timeout=5)
    assert summary.startswith(f"{len(KINDS)} failures, 2 of them deaths: ") and "none was lost" in summary

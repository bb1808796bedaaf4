"""Checkpoints of two real processes, restored in these, on other meshes, and in one; and saves in which one fails."""

from pathlib import Path

import jax
import numpy as np
import pytest

import axonym as nym

from ..processes import run
from .fail import KINDS, OFTEN, Data, Failure, check_folder, check_outputs, read_lines


PROGRAM = """
import pathlib
import time
import warnings
from tests.checkpoint.fail import Data, Failure, run_child
import numpy as np

assert "orbax" not in sys.modules and "tensorstore" not in sys.modules  # imported where they are used
start(shutdown_timeout_seconds=30)
FOLDER =
PARAMETERS = {"embed": "data", "mlp": "model"}

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

for step, kind in enumerate((jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)):
    with activate(4, 2, kind=kind):
        state = {**nym.named_jit(make, PARAMETERS)(), "numpy": np.arange(3.0), "step": step}
        with nym.checkpoint.Checkpointer(FOLDER) as checkpointer:
            checkpointer.save(state, step, data=Data({"of": PROCESS}))
        data = Data()
        restored = nym.checkpoint.restore(FOLDER, state, data=data)
        assert is_same(state, restored) and restored["step"] == step and data.state == {"of": PROCESS}
        assert restored["weight"].sharding == state["weight"].sharding

# Processes that do not do the same are told so, and one that waits is for the timeout.
text = raised(ValueError, nym.checkpoint.restore, FOLDER, state, step=PROCESS)
has(text, "process 0 restores step 0, and process 1 restores step 1; call this in all processes together")
text = raised(ValueError, nym.checkpoint.Checkpointer, FOLDER.with_name(f"own {PROCESS}"))
has(text, "own 0 to save, and process 1 opens ", "own 1 to save; call this in all processes together")
with nym.checkpoint.Checkpointer(FOLDER, read_only=True, timeout=1) as reader:
    time.sleep(1.5 * PROCESS)
    text = raised(TimeoutError, reader.restore, state)
    has(text, f"the checkpoints in {FOLDER} ", "gave up after 1 s" if PROCESS else "waited 1 s for process 1 of 2")
with jax.set_mesh(None):  # arrays of one process
    local = {"key": jax.random.key(5), "count": nym.arange(nym.Axis("embed", 3)) + PROCESS}
    nym.checkpoint.save(FOLDER.with_name("local"), local, 0)
    restored = nym.checkpoint.restore(FOLDER.with_name("local"), local)
    assert jax.random.key_data(restored["key"]).tolist() == [0, 5] and restored["count"].array.tolist() == [0, 1, 2]

with activate(2, 4, kind=jax.sharding.AxisType.Explicit):
    state = {**nym.named_jit(make, PARAMETERS)(), "numpy": np.arange(3.0), "step": 0}
    for step in (0, 1):
        restored = nym.checkpoint.restore(FOLDER, state, step=step, mapping=PARAMETERS)
        assert is_same(state, restored) and restored["weight"].sharding.spec == state["weight"].sharding.spec
    assert nym.checkpoint.restore(FOLDER, mapping=PARAMETERS)["weight"].sharding.spec == state["weight"].sharding.spec
    like = {**state, "weight": nym.NamedArray(jax.ShapeDtypeStruct((16, 8), "float32"), ("embed", "mlp"))}
    restored = nym.checkpoint.restore(FOLDER, like, mapping=PARAMETERS)
    assert restored["weight"].names == ("embed", "mlp") and is_same(state, restored)
    nym.checkpoint.save(FOLDER, state, 10, data=Data("same"))
    nym.barrier_sync(name="before damage")
    if PROCESS == 0:
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
    nym.checkpoint.save(FOLDER, state, 11, data=Data("same"))
run_child(FOLDER.with_name("failures"), FAILURES, 0, 2)
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kinds", [OFTEN, pytest.param(KINDS, marks=pytest.mark.thorough)], ids=["often", "all"])
def test_two_save_and_restore_fail_together_and_one_restores(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    folder = tmp_path / "checkpoints"
    failures = [Failure(kind, number % 2) for number, kind in enumerate(kinds)]
    program = PROGRAM.replace("FOLDER =", f"FOLDER = pathlib.Path({str(folder)!r})\nFAILURES = {failures}", 1)
    outputs = run(program, processes=2, devices=4)
    check_outputs(outputs, failures, 0, timeout=2)
    complete = [int(text) for output in outputs for text in read_lines(output, "complete")]
    check_folder(tmp_path / "failures", complete)
    assert len({*complete}) >= len(failures)

    assert nym.checkpoint.list_steps(folder) == [0, 1, 10, 11]
    with jax.set_mesh(None):
        weight = nym.random.randint(jax.random.key(0), {"mlp": 8, "embed": 16}, -1000, 1000).astype("float32")
        for step in (0, 1, 11):
            restored = nym.checkpoint.restore(folder, step=step)
            assert np.array_equal(restored["weight"].array, weight.array)
            assert restored["weight"].array.devices() == {jax.devices()[0]}
        data = Data()
        nym.checkpoint.restore(folder, data=data)
        assert data.state == "same"
        with pytest.raises(ValueError, match="each of 2 processes saved its own state of the data, and there"):
            nym.checkpoint.restore(folder, step=0, data=data)

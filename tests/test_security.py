"""What `SECURITY.md` promises: no loader unpickles, evaluates or imports what is in a file."""

import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from re import escape
from typing import Any

import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym


CODE = ("pickle.find_class", "exec", "os.system", "subprocess.Popen")  # of Python's audit events
TREE = {"weight": nym.ones({"embed": 4, "mlp": 4}), "step": 3, "note": "a text"}
ARRAYS = {"weight": nym.ones({"embed": 4, "mlp": 4})}
MESH, SPECS = nym.create_abstract_mesh({"data": 4}), {"weight": P("data")}
watched: list[tuple[str, str]] | None = None


class Harm:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes what Python reports of code that runs."""
    if watched is not None and event in CODE:
        watched.append((event, repr(arguments)[:200]))


sys.addaudithook(watch)  # stays as long as Python does


@pytest.fixture
def events() -> Iterator[list[tuple[str, str]]]:
    """Gives a list of what is unpickled, executed or started while the test runs."""
    global watched
    watched = []
    yield watched
    watched = None


@pytest.fixture
def harm(tmp_path: Path) -> bytes:
    """Returns a pickle that makes a folder `harmed`."""
    return pickle.dumps(Harm(tmp_path / "harmed"))


def read_checkpoint(path: Path) -> Any:
    return nym.checkpoint.inspect(path) and nym.checkpoint.restore(path)


def read_safetensors(path: Path) -> Any:
    return nym.state_dict.load_safetensors(ARRAYS, path)


def read_hardware(path: Path) -> Any:
    return nym.planner.read_hardware(path / "machines.json")


def read_plan(path: Path) -> Any:
    return nym.planner.read_plan(path / "plan.json")


def read_lock(path: Path) -> None:
    nym.assert_sharding_lock(ARRAYS, path / "sharding.lock", SPECS, mesh=MESH)


def write_all(folder: Path) -> dict[Callable[[Path], Any], Path]:
    """Writes a file for each loader, and returns where it is."""
    readers = (read_checkpoint, read_safetensors, read_hardware, read_plan, read_lock)
    folders: dict[Callable[[Path], Any], Path] = {reader: folder / reader.__name__ for reader in readers}
    nym.checkpoint.save(folders[read_checkpoint], TREE, step=1)
    nym.state_dict.save_safetensors(ARRAYS, folders[read_safetensors])
    for reader in (read_hardware, read_plan, read_lock):
        folders[reader].mkdir()
    (folders[read_hardware] / "machines.json").write_text('{"mine": {"base": "h100", "network_bandwidth": 1e10}}')
    machine = nym.planner.described_devices("cpu:8")[0].topology
    nym.planner.Plan((), machine, 3, {}, 0.0, 0, {}, {}, 0.5).to_json(folders[read_plan] / "plan.json")
    report = nym.ShardingAnalyzer(MESH).sharding_report(ARRAYS, SPECS)
    report.save_lock(folders[read_lock] / "sharding.lock")
    return folders


def test_loaders_run_nothing_of_a_file(tmp_path: Path, events: list[tuple[str, str]]):
    pytest.importorskip("orbax.checkpoint", reason="This needs Orbax: install the extra `io`.")
    folders = write_all(tmp_path)
    for reader, folder in folders.items():
        reader(folder)  # imports what it needs
        events.clear()
        reader(folder)
        assert events == [], reader.__name__
    pickle.loads(pickle.dumps(Path("a")))
    assert [event for event, _ in events] == ["pickle.find_class"], "Nothing would be noticed."


@pytest.mark.filterwarnings("ignore:.*damaged")
def test_pickles_in_place_of_each_file_are_errors(tmp_path: Path, harm: bytes):
    pytest.importorskip("orbax.checkpoint", reason="This needs Orbax: install the extra `io`.")
    for reader, folder in write_all(tmp_path).items():
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
            before = path.read_bytes()
            path.write_bytes(harm)
            with pytest.raises((ValueError, OSError)):
                reader(folder)
            path.write_bytes(before)
        reader(folder)
    assert not (tmp_path / "harmed").exists()
    pickle.loads(harm)
    assert (tmp_path / "harmed").exists(), "The pickle does no harm."


def test_files_of_pytorch_are_not_opened(tmp_path: Path, harm: bytes):
    (tmp_path / "pytorch_model.bin").write_bytes(harm)
    with pytest.raises(FileNotFoundError, match=escape("has neither 'model.safetensors' nor")):
        read_safetensors(tmp_path)
    index = {"weight_map": {"weight": "pytorch_model.bin"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=escape("pytorch_model.bin")):
        read_safetensors(tmp_path)
    index["weight_map"]["weight"] = "../secret.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="outside of its folder"):
        read_safetensors(tmp_path)
    assert not (tmp_path / "harmed").exists()

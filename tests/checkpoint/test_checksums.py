"""Damaged files, a full disk, a folder that cannot be made: errors that name the file, and nothing complete is lost."""

import errno
import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.checkpoint._checksums import CHECKSUMS, write_checksums

from .fail import limit_file_size


STATE = {"weight": nym.arange(nym.Axis("embed", 64), dtype=jnp.float32), "step": 3}
DAMAGED = nym.checkpoint.DamagedCheckpointError


def is_same(state: Any) -> bool:
    return state["step"] == STATE["step"] and np.array_equal(state["weight"].array, STATE["weight"].array)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("intact")
    with jax.set_mesh(None), nym.checkpoint.Checkpointer(folder) as checkpointer:
        checkpointer.save(STATE, 1)
        checkpointer.save(STATE, 2)
    return folder


@pytest.fixture
def folder(intact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(intact, tmp_path / "copy"))


def list_files(folder: Path) -> list[Path]:
    """Returns the files of the newest checkpoint."""
    return sorted(path for path in (folder / "2").rglob("*") if path.is_file())


def check_refused(folder: Path, path: Path) -> None:
    with pytest.raises(DAMAGED, match=r"step 2 is damaged: .*; `step=1` restores the one before") as raised:
        nym.checkpoint.restore(folder, STATE)
    assert str(path) in str(raised.value)


def test_a_changed_truncated_or_missing_file_is_found(folder: Path) -> None:
    files = list_files(folder)
    assert len(files) > 8
    for path in files:
        content = path.read_bytes()
        for index in {0, len(content) // 2, len(content) - 1}:
            path.write_bytes(content[:index] + bytes([content[index] ^ 4]) + content[index + 1 :])
            check_refused(folder, path)
        path.write_bytes(content[: len(content) // 2])
        check_refused(folder, path)
        path.unlink()
        check_refused(folder, path)
        path.write_bytes(content)
    assert is_same(nym.checkpoint.restore(folder, STATE))


def test_an_index_of_another_checkpoint_is_found(folder: Path, tmp_path: Path) -> None:
    nym.checkpoint.save(tmp_path / "other", {**STATE, "weight": STATE["weight"] * 2.0}, 2)
    for place in ("manifest.ocdbt", "ocdbt.process_0/manifest.ocdbt"):  # which end in a CRC-32C of their own
        path, content = folder / "2/default" / place, (tmp_path / "other/2/default" / place).read_bytes()
        intact = path.read_bytes()
        path.write_bytes(content + intact[len(content) :])
        check_refused(folder, path)
        path.write_bytes(intact)


def write_old_checksums(step: Path) -> None:
    """Replaces the checksums of a step by those of earlier versions: CRC-32C alone, of the files below `default`."""
    crc32c = pytest.importorskip("google_crc32c")
    (step / CHECKSUMS).unlink()
    files = {}
    for path in sorted(path for path in (step / "default").rglob("*") if path.is_file()):
        content = path.read_bytes()
        files[path.relative_to(step / "default").as_posix()] = [len(content), crc32c.value(content)]
    own = zlib.crc32(json.dumps(files).encode())
    (step / "default" / CHECKSUMS).write_text(json.dumps({"files": files, "crc32": own}))


def test_checkpoints_of_earlier_versions_are_read(folder: Path) -> None:
    write_old_checksums(folder / "2")
    assert is_same(nym.checkpoint.restore(folder, STATE)) and nym.checkpoint.inspect(folder).step == 2
    path = max((folder / "2/default/ocdbt.process_0/d").iterdir(), key=lambda file: file.stat().st_size)
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    check_refused(folder, path)
    path.write_bytes(content)
    (folder / "2/default" / CHECKSUMS).unlink()
    check_refused(folder, folder / "2" / CHECKSUMS)


def change_metadata(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def change_file(step: Path) -> None:
        path = step / "default" / "axonym.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return change_file


def change_array(**entries: Any) -> Callable[[Path], None]:
    return change_metadata(lambda content: content["tree"]["children"][1][1].update(entries))


CHANGES = {
    "no metadata": lambda step: (step / "default" / "axonym.json").unlink(),
    "nested metadata": lambda step: (step / "default" / "axonym.json").write_text("[" * 5000 + "]" * 5000),
    "no index": lambda step: (step / "default" / "manifest.ocdbt").unlink(),
    "no elements": lambda step: shutil.rmtree(step / "default" / "d"),
    "no process count": change_metadata(lambda content: content.pop("process_count")),
    "no format": change_metadata(lambda content: content.update(format=None)),
    "fractional shape": change_array(shape=[64.0]),
    "unknown dtype": change_array(dtype="float33"),
    "number as a name": change_array(names=[1]),
    "another value": change_metadata(lambda content: content["tree"]["children"][0][1].update(value="x")),
    "another child": change_metadata(lambda content: content["tree"]["children"].append(3)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_fallback_passes_all_that_cannot_be_read(folder: Path, change: Callable[[Path], Any]) -> None:
    """Checksums do not help where the files that they were computed of were incomplete."""
    change(folder / "2")
    write_checksums(folder / "2", process_count=0)
    for like in (None, STATE):
        with pytest.raises(DAMAGED, match=r"step 2 is damaged: .*; `step=1` restores the one before") as raised:
            nym.checkpoint.restore(folder, like)
        assert str(folder / "2") in str(raised.value)
        with pytest.warns(UserWarning, match="skipped the checkpoint of step 2"):
            assert is_same(nym.checkpoint.restore(folder, like, fallback=True))


def test_metadata_of_other_arrays_and_checksums_that_list_no_files_are_damage(folder: Path) -> None:
    change_array(shape=[65])(folder / "2")
    write_checksums(folder / "2", process_count=0)
    with pytest.raises(DAMAGED, match=r"\['weight'\] has shape \(64,\), and axonym.json says \(65,\)"):
        nym.checkpoint.restore(folder)
    content: dict[str, Any] = {"algorithm": "crc32c+sum64", "files": []}
    crc = zlib.crc32(json.dumps(content).encode())
    for text in (json.dumps({**content, "crc32": crc}), "[" * 5000):
        (folder / "2" / CHECKSUMS).write_text(text)
        check_refused(folder, folder / "2" / CHECKSUMS)


@pytest.mark.parametrize("name", [CHECKSUMS, "axonym.json"])
def test_too_many_open_files_are_no_damage(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == name:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        nym.checkpoint.restore(folder, STATE, fallback=True)


def test_large_files_are_checked_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("axonym.checkpoint._checksums._BLOCK", 1 << 12)
    noise = {"noise": jnp.asarray(np.random.default_rng(0).integers(0, 2**32, 1 << 12, np.uint32))}
    nym.checkpoint.save(tmp_path, noise, 1)
    assert np.array_equal(nym.checkpoint.restore(tmp_path, noise)["noise"], noise["noise"])
    path = max((tmp_path / "1" / "default").rglob("*"), key=lambda file: file.stat().st_size)
    content = bytearray(path.read_bytes())
    content[9000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DAMAGED, match=f"{path} is damaged between bytes 8192 and 12288: its checksum is not the one"):
        nym.checkpoint.restore(tmp_path, noise)


def test_fallback_takes_the_one_before_and_makes_way(folder: Path) -> None:
    next(path for path in list_files(folder) if path.parts[-3:-1] == ("ocdbt.process_0", "d")).write_bytes(b"")
    assert is_same(nym.checkpoint.restore(folder, STATE, step=1))
    with pytest.warns(UserWarning, match=r"skipped the checkpoint of step 2: .*has 0 bytes"):
        assert is_same(nym.checkpoint.restore(folder, STATE, fallback=True))
    assert nym.checkpoint.list_steps(folder) == [1, 2]
    with nym.checkpoint.Checkpointer(folder) as checkpointer:
        with pytest.warns(UserWarning, match="skipped the checkpoint of step 2"):
            assert is_same(checkpointer.restore(STATE, fallback=True))
        assert checkpointer.steps == [1] and (folder / "damaged-2").is_dir()
        checkpointer.save(STATE, 2)
    assert is_same(nym.checkpoint.restore(folder, STATE))
    for step in (1, 2):
        (folder / str(step) / "default" / "axonym.json").unlink()
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(DAMAGED, match=r"step 1 is damaged: .*axonym.json"):
        nym.checkpoint.restore(folder, STATE, fallback=True)


# Writes that are still under way when the first one fails report to an event loop that orbax has closed by then.
@pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning")
def test_full_disk(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 2**32, 1 << 19, np.uint32)
    with limit_file_size(1 << 18), nym.checkpoint.Checkpointer(tmp_path, max_to_keep=1) as checkpointer:
        checkpointer.save(STATE, 1)
        checkpointer.wait()
        checkpointer.save({"noise": jnp.asarray(noise)}, 2)
        with pytest.raises(OSError, match=r"step 2 could not be saved in .* \(complete: 1\): .*too large"):
            checkpointer.wait()
        assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".axonym-")] == ["1"]
        assert is_same(checkpointer.restore(STATE))
        checkpointer.save(STATE, 3)
        checkpointer.wait()
        assert checkpointer.steps == [3]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    folder = tmp_path / "file" / "run"
    folder.parent.touch()
    with pytest.raises(OSError, match=rf"{folder} cannot be opened to save: .*Not a directory.*; choose a folder that"):
        nym.checkpoint.save(folder, STATE, 4)

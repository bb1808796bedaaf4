"""Changes files of checkpoints at random, and exchanges them between checkpoints; all of it must be found.

A restore must then raise a `DamagedCheckpointError`, or return the bits that were saved, as after a change of white
space in JSON. With `fallback=True` it must return those of the newest checkpoint or of the one before.
"""

import random
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import axonym as nym


STEPS = (1, 2)
Change = Callable[[random.Random, Path, Path, list[Path]], str | None]


class Data:
    """An iterator over data that is at some position."""

    def __init__(self, position: int) -> None:
        self.position = position

    def get_state(self) -> dict[str, int]:
        return {"position": self.position}

    def set_state(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def make_state(seed: int) -> dict[str, Any]:
    """Returns a state whose leaves have other elements for another seed, and the same shapes."""
    noise = np.random.default_rng(seed).standard_normal((64, 96), np.float32)
    constant = {"weight": nym.full({"embed": 8}, float(seed)), "scale": jnp.float32(seed)}
    return {**constant, "noise": jnp.asarray(noise), "epoch": seed}


def save_checkpoints(folder: Path, first_seed: int) -> dict[int, int]:
    """Saves a checkpoint for each step; returns the seeds of their states."""
    seeds = {step: first_seed + step for step in STEPS}
    with nym.checkpoint.Checkpointer(folder) as checkpointer:
        for step, seed in seeds.items():
            checkpointer.save(make_state(seed), step, Data(seed))
    return seeds


def find_seed(state: Any, data: Data) -> int | None:
    """Returns the seed of a state, None if it is not as it was made from one."""
    seed, expected = state["epoch"], make_state(state["epoch"])
    same = [np.array_equal(state[name], expected[name]) for name in ("noise", "scale")]
    same += [np.array_equal(state["weight"].array, expected["weight"].array), data.position == seed]
    return seed if all(same) else None


def flip_bit(draw: random.Random, path: Path, folder: Path, others: list[Path]) -> str:
    content = bytearray(path.read_bytes())
    position, bit = draw.randrange(len(content)), draw.randrange(8)
    content[position] ^= 1 << bit
    path.write_bytes(content)
    return f"bit {bit} of byte {position} of {path.relative_to(folder)}"


def exchange_file(draw: random.Random, path: Path, folder: Path, others: list[Path]) -> str | None:
    """Replaces a file by another one of the same place in another checkpoint, where its name may be random."""
    places = [(path.parent.name, "" if path.parent.name == "d" else path.name) for path in (path, *others)]
    sources = [second for second, place in zip(others, places[1:], strict=True) if place == places[0]]
    sources = [second for second in sources if second.read_bytes() != path.read_bytes()]
    if not sources:
        return None
    source = draw.choice(sources)
    shutil.copyfile(source, path)
    return f"{path.relative_to(folder)} for {source.relative_to(folder.parent)}"


def run_changes(kind: str, change: Change, times: int, seed: int) -> Iterator[str]:
    """Changes a file again and again; yields a line for what was not found, and a summary."""
    draw, refused, unharmed = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as outer:
        folder, second = Path(outer, "checkpoints"), Path(outer, "others")
        seeds = save_checkpoints(folder, 0)
        save_checkpoints(second, 10)
        newest = folder / str(STEPS[-1])
        files = sorted(path for path in newest.rglob("*") if path.is_file())
        others = [path for path in Path(outer).rglob("*") if path.is_file() and newest not in path.parents]
        while refused + unharmed < times:
            path = draw.choice(files)
            content = path.read_bytes()
            what = change(draw, path, folder, others)
            if what is None:
                continue
            data = Data(-1)
            try:
                state = nym.checkpoint.restore(folder, data=data)
                assert find_seed(state, data) == seeds[STEPS[-1]], f"another state was restored after {what}"
                unharmed += 1
            except nym.checkpoint.DamagedCheckpointError as error:
                assert str(newest) in str(error), f"no file in {str(error)!r} after {what}"
                refused += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                state = nym.checkpoint.restore(folder, data=data, fallback=True)
            assert find_seed(state, data) in seeds.values(), f"`fallback` restored another state after {what}"
            path.write_bytes(content)
        data = Data(-1)
        assert find_seed(nym.checkpoint.restore(folder, data=data), data) == seeds[STEPS[-1]]
    yield f"{times} {kind} of {len(files)}: {refused} were refused, {unharmed} restored bit for bit, none was missed"


def run_flips(times: int, seed: int) -> Iterator[str]:
    yield from run_changes("files with a flipped bit", flip_bit, times, seed)


def run_exchanges(times: int, seed: int) -> Iterator[str]:
    yield from run_changes("exchanged files", exchange_file, times, seed)

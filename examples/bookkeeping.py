"""The bookkeeping of a training run: its folder of results, checkpoints, metrics, progress bar and Ctrl-C."""

import itertools
import json
import math
import signal
import sys
from pathlib import Path
from typing import Any, Self

import jax
import matplotlib
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import axonym as nym


matplotlib.use("Agg")
from matplotlib import pyplot as plt


console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)


def open_folder(folder: Path, options: dict[str, Any], *, resume: bool) -> None:
    """Makes the folder of results. A new run moves earlier results aside; a resumed one must have their options."""
    file = folder / "options.json"
    if resume:
        if not file.exists():
            raise ValueError(f"no run to resume in {folder}")
        saved = json.loads(file.read_text())
        for name, value in options.items():
            if saved[name] != value:
                raise ValueError(f"the run in {folder} has --{name} {saved[name]}, not {value}")
    elif jax.process_index() == 0:
        if folder.exists() and any(folder.iterdir()):
            names = (folder.with_name(f"{folder.name}-{i}") for i in itertools.count(1))
            aside = next(name for name in names if not name.exists())
            folder.rename(aside)
            console.print(f"moved the results of the previous run to {aside}")
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(options))
    nym.barrier_sync(name="folder of results")


class Checkpoints:
    """Saves and restores trees with orbax. Arrays are stored under their paths, so they can be read on any mesh."""

    def __init__(self, folder: Path) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        self.manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self, step: int, tree: Any) -> None:
        if self.manager.latest_step() != step:
            self.manager.save(step, args=ocp.args.StandardSave(get_leaves_by_path(tree)))
            self.manager.wait_until_finished()

    def restore(self, like: Any) -> tuple[int, Any]:
        """Returns the newest step and its tree, with the structure and the shardings of `like`."""
        step = self.manager.latest_step()
        if step is None:
            raise ValueError(f"no checkpoint to resume from in {self.manager.directory}")
        leaves = get_leaves_by_path(like)
        shapes = {path: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for path, x in leaves.items()}
        saved = self.manager.restore(step, args=ocp.args.StandardRestore(shapes))
        restored = [jax.device_put(saved[path], x.sharding) for path, x in leaves.items()]
        return step, jax.tree.unflatten(jax.tree.structure(like), restored)


def get_leaves_by_path(tree: Any) -> dict[str, jax.Array]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


class Metrics:
    """A file with one JSON object per line, written by the first process only."""

    def __init__(self, path: Path, step: int) -> None:
        rows = [json.loads(line) for line in path.read_text().splitlines()] if step and path.exists() else []
        self.path, self.rows = path, []
        if jax.process_index() == 0:
            path.write_text("")
        for row in rows:
            if row["step"] <= step:
                self.add(**row)

    def add(self, **row: float) -> None:
        self.rows.append(row)
        if jax.process_index() == 0:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def plot(self, path: Path) -> None:
        """Plots the training losses and the held-out losses, in bits per byte."""
        figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
        losses = [(row["step"], row["loss"] / math.log(2)) for row in self.rows if "loss" in row]
        held_out = [(row["step"], row["eval_bits_per_byte"]) for row in self.rows if "eval_bits_per_byte" in row]
        axis.plot(*zip(*losses, strict=True), color="tab:blue", label="training batch") if losses else None
        axis.plot(*zip(*held_out, strict=True), "o-", color="tab:orange", label="held-out text") if held_out else None
        axis.set(xlabel="step", ylabel="loss (bits per byte)")
        axis.grid(alpha=0.3)
        axis.legend()
        figure.savefig(path, dpi=120)
        plt.close(figure)


class Interrupt:
    """Lets the current step finish after the first Ctrl-C; the second one stops the program at once."""

    def __enter__(self) -> Self:
        self.asked = False
        self.before = signal.signal(signal.SIGINT, self.handle)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self.before)

    def handle(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self.before)

    def should_stop(self) -> bool:
        """Returns whether Ctrl-C was pressed for any process; all processes get the same answer."""
        if jax.process_count() == 1:
            return self.asked
        return bool(np.any(multihost_utils.process_allgather(np.array(self.asked))))


def make_progress_bar() -> Progress:
    return Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f} bits per byte"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
        console=console,
        disable=jax.process_index() != 0,
    )

"""The bookkeeping of a training run: its folder of results, metrics, progress bar and Ctrl-C."""

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
from jax.experimental import multihost_utils
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import axonym as nym


matplotlib.use("Agg")
from matplotlib import pyplot as plt


console = Console(width=None if sys.stdout.isatty() else 132, highlight=False)


def write_atomically(path: Path, text: str) -> None:
    """Writes a file; whenever the program is killed, the file has its old text or the new one."""
    part = path.with_name(f".{path.name}")
    part.write_text(text)
    part.replace(path)


def find_free_path(path: Path) -> Path:
    """Returns the path, or one with a number after the name if it exists."""
    numbered = (path.with_name(f"{path.name}-{i}") for i in itertools.count(1))
    return next(one for one in itertools.chain([path], numbered) if not one.exists())


def check_finite(loss: float, what: str) -> float:
    if not math.isfinite(loss):
        remedy = "lower --lr, or delete the newest checkpoint if that is damaged, and go on with --resume"
        raise FloatingPointError(f"the {what} is {loss}; {remedy}")
    return loss


def open_folder(folder: Path, options: dict[str, Any], *, resume: bool) -> None:
    """Makes the folder of results. A new run moves earlier results aside; a resumed one must have their options."""
    file = folder / "options.json"
    if resume:
        if not file.exists():
            raise ValueError(f"no run to resume in {folder}")
        try:
            saved = {name: json.loads(file.read_text())[name] for name in options}
        except (ValueError, LookupError, TypeError):
            raise ValueError(
                f"{file} is damaged; write the options of the run into it: {json.dumps(options)}"
            ) from None
        for name, value in options.items():
            if saved[name] != value:
                raise ValueError(f"the run in {folder} has --{name} {saved[name]}, not {value}")
    elif jax.process_index() == 0:
        if folder.exists() and any(folder.iterdir()):
            console.print(f"moved the results of the previous run to {folder.rename(find_free_path(folder))}")
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(options))
    nym.barrier_sync(name="folder of results")


def read_rows(path: Path) -> list[dict[str, float]]:
    """Returns the rows of a file, without a last line that is incomplete because the program was killed."""
    lines, rows = path.read_text(errors="replace").splitlines(), []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append({**row, "step": int(row["step"])})
        except (ValueError, LookupError, TypeError):
            if number < len(lines):
                raise ValueError(f"line {number} of {path} is damaged; delete it to resume") from None
    return rows


class Metrics:
    """A file with one JSON object per line, written by the first process only."""

    def __init__(self, path: Path, step: int) -> None:
        rows = read_rows(path) if step and path.exists() else []
        self.path, self.rows = path, [row for row in rows if row["step"] <= step]
        if jax.process_index() == 0:
            write_atomically(path, "".join(json.dumps(row) + "\n" for row in self.rows))

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
        """Returns whether Ctrl-C was pressed for any process."""
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

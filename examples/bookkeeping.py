"""What the programs share around their models: options, the mesh, progress bars, plots, results and Ctrl-C."""

import argparse
import contextlib
import itertools
import json
import math
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def add_mesh_options(parser: argparse.ArgumentParser, mesh: str | None = None, axis_types: str = "auto") -> None:
    """Adds the options of the mesh; without a default, its axis `model` has 2 devices if their number is even."""
    add, default_sizes = parser.add_argument, mesh or "model is 1 or 2"
    add(
        "--mesh",
        default=mesh,
        help=f"sizes of the mesh axes, such as data:4,model:2; -1 for the rest; default: {default_sizes}",
    )
    choices = ["auto", "explicit"]
    add("--axis-types", choices=choices, default=axis_types, help="type of the mesh axes; default %(default)s")
    add("--devices", type=int, default=8, help="virtual CPU devices per process, without GPUs and TPUs; default 8")


def check_positive(parser: argparse.ArgumentParser, args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name} must be positive, not {getattr(args, name)}")


def run_on_mesh(
    name: str,
    run: Callable[[argparse.Namespace], None],
    args: argparse.Namespace,
    mesh_axes: Sequence[str] = ("data", "model"),
) -> int:
    """Runs a program on the mesh of its options, and returns its exit code. Mistakes of users are one line."""
    try:
        jax.config.update("jax_num_cpu_devices", args.devices)
        if getattr(args, "distributed", False):
            # Found by JAX itself on SLURM, Open MPI and TPU pods; elsewhere by JAX_COORDINATOR_ADDRESS,
            # JAX_NUM_PROCESSES and JAX_PROCESS_ID in the environment.
            nym.initialize()
        sizes = args.mesh or f"data:-1,model:{2 - jax.device_count() % 2}"
        mesh = nym.parse_mesh_from_string(sizes, mesh_axes, axis_types=args.axis_types)
        console.quiet = jax.process_index() != 0
        sizes = ", ".join(f"{axis}: {size}" for axis, size in mesh.shape.items())
        console.print(f"mesh ({sizes}) of {mesh.size} {jax.default_backend()} devices, {args.axis_types} axes")
        with jax.set_mesh(mesh):
            run(args)
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: stopped at once; steps since the newest checkpoint, if any, are lost", file=sys.stderr)
        return 130
    return 0


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
        losses = [(row["step"], row["loss"] / math.log(2)) for row in self.rows if "loss" in row]
        held_out = [(row["step"], row["eval_bits_per_byte"]) for row in self.rows if "eval_bits_per_byte" in row]
        plot_curves(path, {"training batch": losses, "held-out text": held_out}, "loss (bits per byte)")


def plot_curves(path: Path, curves: Mapping[str, Sequence[tuple[float, float]]], label: str) -> None:
    """Plots points over their steps, by name."""
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, points in curves.items():
        axis.plot(*np.reshape(points, (-1, 2)).T, "o-" if len(points) < 30 else "-", label=name)
    axis.set(xlabel="step", ylabel=label)
    axis.grid(alpha=0.3)
    axis.legend()
    save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    console.print(f"wrote {path}")


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


def make_progress_bar(*texts: str) -> Progress:
    """Returns a bar with texts of the fields of a task, such as "loss {task.fields[loss]:.3f}"."""
    return Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        *map(TextColumn, texts),
        TimeRemainingColumn(),
        console=console,
        disable=jax.process_index() != 0,
    )


@contextlib.contextmanager
def show_progress(steps: int, *texts: str, completed: int = 0) -> Iterator[Callable[..., None]]:
    """Shows a bar, and gives the function to call after each step with what the texts show."""
    with make_progress_bar(*texts) as bar:
        task = bar.add_task("", total=steps, completed=completed, visible=False)
        yield lambda **fields: bar.update(task, advance=1, visible=True, **fields)

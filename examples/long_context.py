"""Trains on long sequences by sharding their positions: a device holds a part of each sequence (context parallelism).

For attention the devices that share a sequence exchange its keys and values: they gather them (`all_gather`), pass them
around a ring, or exchange heads for positions (`all_to_all`). A train step of `models/llama.py` is compiled for each
way and length, and the memory of a device and what it sends are printed beside those of one device. The step runs at
the shortest length, where all ways give the same loss.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from bookkeeping import add_mesh_options, check_positive, console, plt, run_on_mesh, save_figure, show_progress
from models.llama import Config, Llama
from rich.table import Table
from text_data import read_text, split_windows

import axonym as nym
from axonym import Axis, NamedArray


SHARDED = nym.AxisMapping({"batch": "data", "pos": "context"})
WAYS = {"one device": "auto", "all_gather": "all_gather", "ring": "ring", "all_to_all": "all_to_all"}


class Measurement(NamedTuple):
    """A compiled step: MiB that a device holds and sends, and the loss if it was run."""

    way: str
    length: int
    memory: float
    sent: float
    loss: float | None


def make_config(args: argparse.Namespace, way: str) -> Config:
    sizes = {"vocab": 256, "layers": args.layers, "embed": args.embed, "mlp": 2 * args.embed}
    sizes |= {"heads": args.heads, "group": 1, "head_dim": args.embed // args.heads}
    axes: Any = {name: Axis(name, size) for name, size in sizes.items()}
    return Config(**axes, context=WAYS[way])


def compute_loss(model: Llama, inputs: NamedArray, targets: NamedArray) -> jax.Array:
    return nym.nn.cross_entropy_loss(model(inputs), "vocab", targets).scalar()


@nym.named_jit(retrace_warning=False)  # each way and length is a program
def train_step(model: Llama, inputs: NamedArray, targets: NamedArray) -> tuple[Llama, jax.Array]:
    loss, gradients = jax.value_and_grad(compute_loss)(model, inputs, targets)
    return jax.tree.map(lambda x, gradient: x - 0.1 * gradient, model, gradients), loss


def measure_step(model: Llama, way: str, rows: np.ndarray, *, runs: bool) -> Measurement:
    """Compiles a step on the active mesh, and runs it if it should be."""
    with nym.axis_mapping({} if way == "one device" else SHARDED):
        inputs, targets = (nym.shard(nym.named(part, ("batch", "pos"))) for part in split_windows(rows))
        arguments = nym.shard(model), inputs, targets
        compiled = train_step.lower(*arguments).compile()
        memory: Any = compiled.memory_analysis()
        held_bytes = memory.argument_size_in_bytes + memory.temp_size_in_bytes
        sent_bytes = nym.planner.communication_report(compiled).sent_bytes
        loss = float(compiled(*arguments)[1]) if runs else None
    return Measurement(way, rows.shape[1] - 1, held_bytes / 2**20, sent_bytes / 2**20, loss)


def print_measurements(measurements: list[Measurement]) -> None:
    table = Table("positions", "way", "memory of a device", "sent by a device", "loss", box=None)
    for way, length, memory, sent, loss in measurements:
        loss_text = "" if loss is None else f"{loss:.4f}"
        table.add_row(f"{length:,}", way, f"{memory:.1f} MiB", f"{sent:.1f} MiB", loss_text)
    console.print(table)


def plot_memory(path: Path, measurements: list[Measurement]) -> None:
    """Plots the memory of a device by length, a bar for each way."""
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    lengths = sorted({measurement.length for measurement in measurements})
    width = 0.8 / len(WAYS)
    for number, way in enumerate(WAYS):
        memories = [measurement.memory for measurement in measurements if measurement.way == way]
        bars = axis.bar(np.arange(len(lengths)) + number * width, memories, width, label=way)
        axis.bar_label(bars, fmt="%.0f", fontsize=8)
    axis.set_xticks(np.arange(len(lengths)) + 0.4 - width / 2, [f"{length:,} positions" for length in lengths])
    axis.set(ylabel="memory of a device (MiB)")
    axis.legend()
    save_figure(figure, path)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="long_context", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add_mesh_options(parser, "context:-1", "explicit")
    add("--lengths", type=int, nargs="+", default=[512, 2048], help="positions of a sequence; default 512 2048")
    add("--batch", type=int, default=1, help="sequences per step; default %(default)s")
    add("--layers", type=int, default=2, help="blocks; default %(default)s")
    add("--embed", type=int, default=64, help="width of the model; default %(default)s")
    add("--heads", type=int, default=8, help="heads, a multiple of the devices for all_to_all; default %(default)s")
    add("--out", type=Path, default=Path("runs/long_context"), help="folder for memory.png; default %(default)s")
    args = parser.parse_args(argv)
    check_positive(parser, args, "batch", "layers", "embed", "heads", "devices")
    return args


def run(args: argparse.Namespace) -> None:
    lengths = sorted(args.lengths)
    text, _ = read_text([], nym.Axis("pos", lengths[-1]))
    mesh = jax.sharding.get_mesh()
    single = nym.create_mesh({name: 1 for name in mesh.axis_names}, devices=jax.devices()[:1])
    models = {way: eqx.filter_eval_shape(Llama.init, make_config(args, way), key=jax.random.key(0)) for way in WAYS}
    with jax.set_mesh(None):  # the parameters are the same for all ways, which are part of the structure of a model
        parameters = jax.tree.leaves(nym.named_jit(Llama.init)(make_config(args, "one device"), key=jax.random.key(0)))
    measurements = []
    with show_progress(len(lengths) * len(WAYS), "{task.fields[name]}") as advance:
        for length in lengths:
            for way in WAYS:
                rows = np.resize(text, (args.batch, length + 1))
                model = jax.tree.unflatten(jax.tree.structure(models[way]), parameters)
                with jax.set_mesh(single if way == "one device" else mesh):
                    measurements.append(measure_step(model, way, rows, runs=length == lengths[0]))
                advance(name=f"{length:,} positions, {way}")
    print_measurements(measurements)
    plot_memory(args.out / "memory.png", measurements)


def main(argv: list[str] | None = None) -> int:
    return run_on_mesh("long_context", run, parse_args(argv), ("data", "context"))


if __name__ == "__main__":
    sys.exit(main())

"""Trains a language model whose layers are stages of a pipeline, and compares its losses with those of one device.

The mapping alone makes the pipeline: it shards the axis of layers, and divides the batch into microbatches. The
transformer is that of `train_lm.py`. The schedule is printed: a row is a stage, a column a turn, and a number the
microbatch that the stage computes in it. With `--repeats` a stage has several groups of layers, which shortens the time
in which stages wait.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from bookkeeping import (
    add_mesh_options,
    check_finite,
    check_positive,
    console,
    plt,
    run_on_mesh,
    save_figure,
    show_progress,
)
from numpy.lib.stride_tricks import sliding_window_view
from text_data import read_text, split_windows
from transformer import Transformer, make_axes

import axonym as nym
from axonym import NamedArray


PARAMETERS = {"batch": "data", "embed": "data", "layers": "stage"}  # between steps
TEXTS = "loss {task.fields[loss]:.3f}", "on one device {task.fields[expected]:.3f}"


@nym.named_call
def compute_loss(model: Transformer, inputs: NamedArray, targets: NamedArray) -> jax.Array:
    return nym.nn.cross_entropy_loss(model(inputs), "vocab", targets).scalar()


def make_train_step(optimizer: Any, parameters: Any, compute: Any, policy: Any) -> Any:
    @nym.fsdp(parameters, compute, policy=policy, donate_args=(True, True))
    def train_step(model: Transformer, state: Any, inputs: NamedArray, targets: NamedArray) -> Any:
        loss, gradients = jax.value_and_grad(compute_loss)(model, inputs, targets)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    return train_step


class Trainer:
    """A model in training on a mesh, with one mapping for parameters between steps and one for computing."""

    def __init__(
        self, model: Transformer, optimizer: Any, mesh: Any, parameters: Any, compute: Any, policy: Any = None
    ) -> None:
        self.mesh, self.compute = mesh, compute
        self.step = make_train_step(optimizer, parameters, compute, policy)
        with jax.set_mesh(mesh), nym.axis_mapping(parameters):
            self.model = nym.shard(model)
            self.state = nym.named_jit(optimizer.init)(self.model)

    def train(self, rows: np.ndarray) -> float:
        """Runs a step on windows of a text, and returns its loss."""
        with jax.set_mesh(self.mesh):
            batch = (nym.shard(nym.named(part, ("batch", "pos")), self.compute) for part in split_windows(rows))
            self.model, self.state, loss = self.step(self.model, self.state, *batch)
        return float(loss)


def plot_schedule(path: Path, schedule: nym.nn.PipelineSchedule, losses: list[tuple[float, float]]) -> None:
    """Plots which microbatch each stage computes in each turn, and the losses of the pipeline and of one device."""
    figure = plt.figure(figsize=(8, 5), layout="constrained")
    top, bottom = figure.subplots(2, 1)
    turns = np.full((schedule.stages, schedule.turns), np.nan)
    for stage in range(schedule.stages):
        for work in range(schedule.works):
            turns[stage, stage + work] = schedule.find_microbatch(work)
            top.text(stage + work, stage, schedule.find_microbatch(work), ha="center", va="center", fontsize=8)
    top.imshow(turns, cmap="viridis", alpha=0.6, aspect="auto")
    top.set(xlabel="turn", ylabel="stage", yticks=range(schedule.stages), title=str(schedule).splitlines()[0])
    steps = range(1, len(losses) + 1)
    bottom.plot(steps, [pipeline for pipeline, _ in losses], linewidth=4, alpha=0.4, label="pipeline")
    bottom.plot(steps, [expected for _, expected in losses], "k--", linewidth=1, label="one device")
    bottom.set(xlabel="step", ylabel="loss (nats per byte)")
    bottom.legend()
    save_figure(figure, path)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pipeline", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add_mesh_options(parser, "stage:4,data:-1", "explicit")
    add("--microbatches", type=int, default=8, help="parts of a batch; default %(default)s")
    add("--repeats", type=int, default=1, help="groups of layers on each stage; default %(default)s")
    add("--layers", type=int, default=8, help="blocks; default %(default)s")
    add("--steps", type=int, default=20, help="number of steps; default %(default)s")
    add("--batch", type=int, default=32, help="sequences per step; default %(default)s")
    add("--seq", type=int, default=32, help="bytes per sequence; default %(default)s")
    add("--embed", type=int, default=64, help="width of the model; default %(default)s")
    add("--seed", type=int, default=0, help="seed of parameters and batches; default %(default)s")
    add("--out", type=Path, default=Path("runs/pipeline"), help="folder for schedule.png; default %(default)s")
    args = parser.parse_args(argv)
    check_positive(parser, args, "microbatches", "repeats", "layers", "steps", "batch", "seq", "embed", "devices")
    return args


def run(args: argparse.Namespace) -> None:
    axes = make_axes(args.batch, args.seq, args.embed, args.layers)
    text, _ = read_text([], axes.pos)
    mesh = jax.sharding.get_mesh()
    single = nym.create_mesh({name: 1 for name in mesh.axis_names}, devices=jax.devices()[:1])
    schedule = nym.nn.PipelineSchedule(mesh.shape["stage"], args.microbatches, args.repeats)
    console.print(str(schedule), markup=False)

    compute = {"batch": "data", "layers": "stage"}
    policy = nym.Policy(microbatches={"batch": args.microbatches})
    optimizer: Any = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(3e-3))
    with jax.set_mesh(None):
        model = nym.named_jit(Transformer.init)(axes, key=jax.random.key(args.seed))
    expected = Trainer(model, optimizer, single, {}, {})
    if args.repeats > 1:  # stored in the order in which the stages hold the layers
        model = eqx.tree_at(lambda model: model.blocks, model, model.blocks.interleave(schedule.stages, args.repeats))
    pipeline = Trainer(model, optimizer, mesh, PARAMETERS, compute, policy)
    weight = pipeline.model.blocks.stacked.up.weight
    console.print(f"a weight of the layers: {eqx.tree_pformat(weight)}", markup=False)

    random, losses = np.random.default_rng(args.seed), []
    windows = sliding_window_view(text, args.seq + 1)
    with show_progress(args.steps, *TEXTS) as advance:
        for step in range(1, args.steps + 1):
            rows = windows[random.integers(0, len(windows), args.batch)]
            loss = check_finite(pipeline.train(rows), f"loss of step {step}")
            losses.append((loss, expected.train(rows)))
            advance(loss=loss, expected=losses[-1][1])
    difference = max(abs(loss - expected) for loss, expected in losses)
    console.print(f"losses fall from {losses[0][0]:.3f} to {losses[-1][0]:.3f}, within {difference:.0e} of one device")
    plot_schedule(args.out / "schedule.png", schedule, losses)


def main(argv: list[str] | None = None) -> int:
    return run_on_mesh("pipeline", run, parse_args(argv), ("stage", "data"))


if __name__ == "__main__":
    sys.exit(main())

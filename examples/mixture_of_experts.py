"""Trains a small mixture of experts, whose experts are sharded over the devices, and shows how tokens spread over them.

The model is `models/mixtral.py`. Attention and the batch are sharded over both mesh axes, experts over `expert`, so
tokens travel to their experts and back, as `--dispatch` says. Without the load balance loss (`--balance 0`) a few
experts get most of the tokens; the picture shows the share of each expert by step.
"""

import argparse
import math
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
from models.mixtral import Config, Mixtral
from rich.table import Table
from text_data import load_batches, read_text

import axonym as nym
from axonym import NamedArray


COMPUTE = {"batch": ("data", "expert"), "experts": "expert"}
PARAMETERS = COMPUTE | {"embed": "data"}  # between steps; a device stores a part of its experts only
TEXTS = "loss {task.fields[loss]:.3f} bits per byte", "busiest expert {task.fields[busiest]:.1%} of tokens"


def make_config(args: argparse.Namespace) -> Config:
    axes = nym.make_axes(vocab=256, layers=args.layers, embed=args.embed, heads=2, group=1, head_dim=args.embed // 2)
    experts = nym.make_axes(mlp=args.embed, experts=args.experts)
    return Config(*axes, *experts, top_k=2, dispatch=args.dispatch, capacity_factor=args.capacity)


def make_train_step(optimizer: Any, balance: float) -> Any:
    @nym.named_call
    def compute_loss(model: Mixtral, inputs: NamedArray, targets: NamedArray) -> tuple[jax.Array, Any]:
        logits, (_, metrics) = model.run_blocks(inputs, None)
        loss = nym.nn.cross_entropy_loss(logits, "vocab", targets).scalar()
        auxiliary = balance * metrics.load_balance_loss + 0.001 * metrics.router_z_loss
        return loss + auxiliary.sum("layers").scalar(), (loss, metrics)

    @nym.fsdp(PARAMETERS, COMPUTE, donate_args=(True, True))
    def train_step(model: Mixtral, state: Any, inputs: NamedArray, targets: NamedArray) -> Any:
        gradients, (loss, metrics) = jax.grad(compute_loss, has_aux=True)(model, inputs, targets)
        updates, state = optimizer.update(gradients, state, model)
        load = metrics.tokens_per_expert / metrics.tokens_per_expert.sum("experts")
        return eqx.apply_updates(model, updates), state, loss, load, metrics.dropped_fraction.mean().scalar()

    return train_step


def plot_load(path: Path, loads: np.ndarray, losses: list[float]) -> None:
    """Plots the share of tokens of each expert, of loads by step, layer and expert, and the loss."""
    layers = loads.shape[1]
    figure = plt.figure(figsize=(8, 2 + 1.8 * layers), layout="constrained")
    panels: Any = figure.subplots(1 + layers, 1, sharex=True)
    steps = range(1, len(losses) + 1)
    panels[0].plot(steps, losses, color="tab:blue")
    panels[0].set(ylabel="bits per byte")
    panels[0].grid(alpha=0.3)
    for layer, panel in enumerate(panels[1:]):
        panel.stackplot(steps, loads[:, layer].T, edgecolor="white", linewidth=0.3)
        panel.set(ylabel=f"layer {layer}: share", ylim=(0, 1))
    panels[-1].set(xlabel="step")
    save_figure(figure, path)


def print_load(loads: np.ndarray) -> None:
    """Prints the share of tokens of each expert, averaged over some steps."""
    mean = loads.mean(0)
    table = Table("layer", *(f"expert {expert}" for expert in range(mean.shape[-1])), box=None)
    for layer, shares in enumerate(mean):
        table.add_row(str(layer), *(f"{share:.1%}" for share in shares))
    console.print(table)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mixture_of_experts", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add_mesh_options(parser, "data:2,expert:-1")
    dispatches = ["auto", "gather", "all_to_all", "ragged_all_to_all"]
    add("--dispatch", choices=dispatches, default="auto", help="how tokens travel to experts; default %(default)s")
    add("--capacity", type=float, help="times an equal share that an expert takes of a sequence; default: all tokens")
    add("--balance", type=float, default=0.02, help="factor of the load balance loss; default %(default)s")
    add("--experts", type=int, default=8, help="experts of a layer, of which a token takes two; default %(default)s")
    add("--steps", type=int, default=80, help="number of steps; default %(default)s")
    add("--batch", type=int, default=16, help="sequences per step; default %(default)s")
    add("--seq", type=int, default=32, help="bytes per sequence; default %(default)s")
    add("--layers", type=int, default=2, help="blocks; default %(default)s")
    add("--embed", type=int, default=64, help="width of the model; default %(default)s")
    add("--lr", type=float, default=1e-2, help="peak learning rate; default %(default)s")
    add("--seed", type=int, default=0, help="seed of parameters and batches; default %(default)s")
    add("--out", type=Path, default=Path("runs/mixture_of_experts"), help="folder for load.png; default %(default)s")
    args = parser.parse_args(argv)
    check_positive(parser, args, "experts", "steps", "batch", "seq", "layers", "embed", "devices")
    if args.dispatch == "all_to_all" and args.capacity is None:
        parser.error("--dispatch all_to_all takes as many tokens to each expert as its --capacity, such as 1.25")
    return args


def run(args: argparse.Namespace) -> None:
    Batch, Pos = nym.make_axes(batch=args.batch, pos=args.seq)
    text, _ = read_text([], Pos)
    schedule = optax.cosine_decay_schedule(args.lr, args.steps, 0.1)
    optimizer: Any = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
    with nym.axis_mapping(PARAMETERS):
        model = nym.named_jit(Mixtral.init)(make_config(args), key=jax.random.key(args.seed))
        init_moments: Any = nym.named_jit(optimizer.init)
        state = init_moments(model)
    experts = model.blocks.stacked.moe.up
    console.print(f"weights of the experts: {eqx.tree_pformat(experts)}", markup=False)
    train_step = make_train_step(optimizer, args.balance)
    losses, loads, dropped = [], [], []
    with load_batches(text, Batch, Pos, COMPUTE, args.seed) as loader, show_progress(args.steps, *TEXTS) as advance:
        for step in range(1, args.steps + 1):
            model, state, loss, load, dropped_fraction = train_step(model, state, *next(loader))
            losses.append(check_finite(float(loss), f"loss of step {step}") / math.log(2))
            loads.append(np.asarray(load.rearrange(("layers", "experts")).array))
            dropped.append(float(dropped_fraction))
            advance(loss=losses[-1], busiest=loads[-1].max())
    newest = slice(-max(1, args.steps // 4), None)
    print_load(np.stack(loads[newest]))
    busiest = np.stack(loads[newest]).mean(0).max() * args.experts
    console.print(
        f"loss {np.mean(losses[newest]):.3f} bits per byte; the busiest expert has {busiest:.2f} times an equal share; "
        f"{np.mean(dropped[newest]):.1%} of choices were dropped"
    )
    plot_load(args.out / "load.png", np.stack(loads), losses)


def main(argv: list[str] | None = None) -> int:
    return run_on_mesh("mixture_of_experts", run, parse_args(argv), ("data", "expert"))


if __name__ == "__main__":
    sys.exit(main())

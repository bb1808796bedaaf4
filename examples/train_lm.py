"""Trains a byte-level language model, sharded by the names of its axes.

The transformer of `transformer.py` learns to predict the next byte of a text: by default the documentation topics that
ship inside Python. Parameters and optimizer state are sharded over mesh axis `data`; heads, hidden units and vocabulary
over `model`. The model does not mention a mesh: two mappings from axis names to mesh axes do all the sharding. Run it
with `--help` for the options.
"""

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from bookkeeping import (
    Interrupt,
    Metrics,
    add_mesh_options,
    check_finite,
    check_positive,
    console,
    make_progress_bar,
    open_folder,
    run_on_mesh,
)
from jax.experimental import multihost_utils
from text_data import load_batches, load_held_out_batches, read_text
from transformer import Axes, Transformer, make_axes

import axonym as nym
from axonym import NamedArray


COMPUTE = {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model"}
PARAMETERS = COMPUTE | {"embed": "data"}  # between steps; each layer gathers its own weights when it runs
SAMPLING = COMPUTE | {"batch": None}  # for a batch of one
SHAPES = ("layers", "embed")  # options that set the shapes of the parameters


def init_state(axes: Axes, optimizer: Any, seed: int) -> dict[str, Any]:
    """Returns everything that a step updates and a checkpoint stores."""
    model = Transformer.init(axes, key=jax.random.key(seed))
    return {"model": model, "optimizer": optimizer.init(model), "step": 0}


def make_optimizer(args: argparse.Namespace) -> Any:  # optax's own types do not allow modules
    warmup = min(20, args.steps // 5)
    schedule = optax.warmup_cosine_decay_schedule(0.0, args.lr, warmup, max(args.steps, warmup + 1), 0.1 * args.lr)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))


@nym.named_call
def compute_loss(model: Transformer, inputs: NamedArray, targets: NamedArray) -> jax.Array:
    return nym.nn.cross_entropy_loss(model(inputs), "vocab", targets).scalar()


def make_train_step(optimizer: Any, gather_dtype: str | None = None, compute_dtype: str | None = None) -> Any:
    policy = nym.Policy(precision=nym.Precision(computing=compute_dtype), gather_dtype=gather_dtype)

    @nym.fsdp(PARAMETERS, COMPUTE, policy=policy, donate_args=(True, True))
    def train_step(model: Transformer, state: Any, inputs: NamedArray, targets: NamedArray) -> Any:
        loss, gradients = jax.value_and_grad(compute_loss)(model, inputs, targets)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    return train_step


def sample_text(model: Transformer, text: np.ndarray, axes: Axes, seed: int, temperature: float = 0.8) -> list[str]:
    """Returns the beginning of a text and the continuation that the model samples."""

    @nym.named_jit(axis_resources=SAMPLING)
    def continue_row(model: Transformer, row: NamedArray, key: jax.Array) -> NamedArray:
        def sample_byte(at: jax.Array, row: NamedArray) -> NamedArray:
            logits = model(row)[axes.pos, at - 1]
            byte = nym.random.categorical(jax.random.fold_in(key, at), logits / temperature, axes.vocab)
            return row.at[axes.pos, at].set(byte)

        return jax.lax.fori_loop(start, axes.pos.size, sample_byte, row)

    start = axes.pos.size // 3
    row = np.pad(text[:start], (0, axes.pos.size - start)).astype(np.int32)
    filled = continue_row(model, nym.named(row[None], ("batch", axes.pos)), jax.random.key(seed))
    data = np.asarray(multihost_utils.process_allgather(filled.array, tiled=True)[0], np.uint8).tobytes()
    return [part.decode(errors="replace") for part in (data[:start], data[start:])]


def train(
    args: argparse.Namespace, state: Any, optimizer: Any, loader: Any, held_out: Any, saves: Any, metrics: Metrics
) -> Any:
    """Runs the remaining steps; evaluates and saves four times, and saves at the end."""
    train_step = make_train_step(optimizer, args.gather_dtype, args.compute_dtype)
    eval_step = nym.fsdp(compute_loss, PARAMETERS, COMPUTE)
    texts = "loss {task.fields[loss]:.3f} bits per byte", "{task.fields[speed]:,.0f} tokens/s"
    with Interrupt() as interrupt, make_progress_bar(*texts) as bar:
        task = bar.add_task("", total=args.steps, completed=state["step"], loss=math.nan, speed=math.nan)
        while state["step"] < args.steps and not interrupt.should_stop():
            started, step = time.perf_counter(), state["step"] + 1
            model, moments, loss = train_step(state["model"], state["optimizer"], *next(loader))
            state = {"model": model, "optimizer": moments, "step": step}
            row = {"step": step, "loss": check_finite(float(loss), f"loss of step {step}")}  # in nats
            row["tokens_per_second"] = args.batch * args.seq / (time.perf_counter() - started)
            metrics.add(**row)
            bar.update(task, completed=step, loss=row["loss"] / math.log(2), speed=row["tokens_per_second"])
            if step == args.steps or step % max(1, args.steps // 4) == 0:
                mean = np.mean([float(eval_step(model, *batch)) for batch in held_out]) / math.log(2)
                shown = check_finite(float(mean), f"held-out loss of step {step}")
                metrics.add(step=step, eval_bits_per_byte=shown)
                saves.save(state, step, data=loader)
                bar.console.print(f"step {step}: held-out loss {shown:.3f} bits per byte")
        saves.wait()
        if state["step"] not in saves.steps:
            saves.save(state, state["step"], data=loader)
    metrics.plot(args.out / "loss.png")
    return state


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train_lm", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add_mesh_options(parser)
    add("--gather-dtype", help="element type in which layers gather their weights, such as int8; default: float32")
    add("--compute-dtype", help="element type in which layers compute, such as bfloat16; default: float32")
    add("--steps", type=int, default=280, help="number of steps; default %(default)s")
    add("--batch", type=int, default=32, help="sequences per step; default %(default)s")
    add("--seq", type=int, default=128, help="bytes per sequence; default %(default)s")
    add("--layers", type=int, default=4, help="blocks; default %(default)s")
    add("--embed", type=int, default=128, help="width of the model; default %(default)s")
    add("--lr", type=float, default=3e-3, help="peak learning rate; default %(default)s")
    add("--seed", type=int, default=0, help="seed of parameters and batches; default %(default)s")
    add("--text", type=Path, nargs="+", default=[], help="files to train on; default: Python's own documentation")
    add("--out", type=Path, default=Path("runs/train_lm"), help="folder of results; default %(default)s")
    add("--resume", action="store_true", help="continue from the newest undamaged checkpoint under --out")
    add("--distributed", action="store_true", help="run as one of several processes, one per host")
    args = parser.parse_args(argv)
    check_positive(parser, args, "steps", "batch", "seq", "layers", "embed", "devices")
    return args


def run(args: argparse.Namespace) -> None:
    axes = make_axes(args.batch, args.seq, args.embed, args.layers)
    text, held_out = read_text(args.text, axes.pos)
    optimizer = make_optimizer(args)
    loader = load_batches(text, axes.batch, axes.pos, COMPUTE, args.seed)
    held_out_batches = load_held_out_batches(held_out, axes.batch, axes.pos, COMPUTE)
    open_folder(args.out, {name: getattr(args, name) for name in SHAPES}, resume=args.resume)
    with loader, nym.checkpoint.Checkpointer(args.out / "checkpoints", max_to_keep=2) as saves:
        if args.resume:
            like = eqx.filter_eval_shape(init_state, axes, optimizer, args.seed)
            state = saves.restore(like, mapping=PARAMETERS, data=loader, fallback=True)
            if state["step"] >= args.steps:
                console.print(f"nothing left to do: the run in {args.out} is at step {state['step']}")
                return
        else:
            state = nym.named_jit(init_state, PARAMETERS)(axes, optimizer, args.seed)
        console.print(f"training on {len(text):,} bytes, {len(held_out):,} held out")
        console.print(
            str(nym.explain(state["model"], PARAMETERS, compute_mapping=COMPUTE)), markup=False, soft_wrap=True
        )
        metrics = Metrics(args.out / "metrics.jsonl", state["step"])
        state = train(args, state, optimizer, loader, held_out_batches, saves, metrics)
    if state["step"] < args.steps:
        console.print(f"stopped and saved at step {state['step']}; go on with --resume")
        return
    last = [row["eval_bits_per_byte"] for row in metrics.rows if "eval_bits_per_byte" in row][-1]
    prompt, continuation = sample_text(state["model"], held_out, axes, args.seed)
    console.print(f"final held-out loss: {last:.3f} bits per byte")
    console.print(f"[dim]{prompt!r}[/dim] goes on as\n{continuation!r}")
    console.print(f"results are in {args.out}")


def main(argv: list[str] | None = None) -> int:
    return run_on_mesh("train_lm", run, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())

"""Trains a byte-level language model, sharded by the names of its axes.

The transformer of `transformer.py` learns to predict the next byte of a text: by default the documentation topics that
ship inside Python. Parameters and optimizer state are sharded over mesh axis `data`; heads, hidden units and vocabulary
over `model`. The model does not mention a mesh: two mappings from axis names to mesh axes do all the sharding. Run it
with `--help` for the options.
"""

import argparse
import importlib
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax
from bookkeeping import Checkpoints, Interrupt, Metrics, check_finite, console, make_progress_bar, open_folder
from jax.experimental import multihost_utils
from transformer import Axes, Transformer, make_axes

import axonym as nym
from axonym import NamedArray


COMPUTE = {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model"}
PARAMETERS = {**COMPUTE, "embed": "data"}  # between steps; each layer gathers its own weights when it runs
SAMPLING = {**COMPUTE, "batch": None}  # for a batch of one
SHAPES = ("layers", "embed")  # options that set the shapes of the parameters


class State(NamedTuple):
    """Everything that a step updates and a checkpoint stores."""

    model: Transformer
    optimizer: Any
    step: int


def make_optimizer(args: argparse.Namespace) -> Any:  # optax's own types do not allow modules
    warmup = min(20, args.steps // 5)
    schedule = optax.warmup_cosine_decay_schedule(0.0, args.lr, warmup, max(args.steps, warmup + 1), 0.1 * args.lr)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))


@nym.named_call
def compute_loss(model: Transformer, inputs: NamedArray, targets: NamedArray) -> jax.Array:
    return nym.nn.cross_entropy_loss(model(inputs), "vocab", targets).scalar()


def make_train_step(optimizer: Any) -> Any:
    @nym.fsdp(PARAMETERS, COMPUTE, donate_args=(True, True))
    def train_step(model: Transformer, state: Any, inputs: NamedArray, targets: NamedArray) -> Any:
        loss, gradients = jax.value_and_grad(compute_loss)(model, inputs, targets)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    return train_step


class Text:
    """The bytes of a text. The last tenth is held out, and each batch depends only on the seed and the step."""

    def __init__(self, data: np.ndarray, axes: Axes, seed: int) -> None:
        split = len(data) - len(data) // 10
        self.train, self.held_out = data[:split], data[split:]
        if len(self.held_out) <= axes.pos.size:
            raise ValueError(
                f"the text has {len(data)} bytes; sequences of {axes.pos.size} need {10 * axes.pos.size + 10}"
            )
        self.axes, self.seed = axes, seed
        self.sharding = nym.sharding_for_axis((axes.batch, axes.pos), COMPUTE)

    def make_batch(self, step: int) -> tuple[NamedArray, NamedArray]:
        rng = np.random.default_rng((self.seed, step))
        return self.cut_windows(self.train, rng.integers(0, len(self.train) - self.axes.pos.size, self.axes.batch.size))

    def make_held_out_batches(self) -> list[tuple[NamedArray, NamedArray]]:
        size = self.axes.batch.size
        starts = np.arange(0, len(self.held_out) - self.axes.pos.size, self.axes.pos.size)
        starts = starts[: max(1, len(starts) // size) * size]
        starts = np.resize(starts, math.ceil(len(starts) / size) * size)  # a short text is repeated
        return [self.cut_windows(self.held_out, part) for part in starts.reshape(-1, size)]

    def cut_windows(self, data: np.ndarray, starts: np.ndarray) -> tuple[NamedArray, NamedArray]:
        rows = data[starts[:, None] + np.arange(self.axes.pos.size + 1)].astype(np.int32)
        return self.shard_rows(rows[:, :-1]), self.shard_rows(rows[:, 1:])

    def shard_rows(self, rows: np.ndarray) -> NamedArray:
        """Puts the rows on the devices, which may belong to several processes."""
        array = jax.make_array_from_callback(rows.shape, self.sharding, lambda index: rows[index])
        return NamedArray(array, (self.axes.batch, self.axes.pos))


def read_text(paths: list[Path]) -> np.ndarray:
    if paths:
        data = b"\n".join(path.read_bytes() for path in paths)
    else:
        data = "\n".join(importlib.import_module("pydoc_data.topics").topics.values()).encode()
    if not data:
        raise ValueError(f"the text is empty: {', '.join(map(str, paths))}")
    return np.frombuffer(data, np.uint8)


def evaluate(eval_step: Any, model: Transformer, batches: list[Any]) -> float:
    """Returns the mean loss over the held-out text, in bits per byte."""
    return float(np.mean([float(eval_step(model, *batch)) for batch in batches])) / math.log(2)


def make_sampler(axes: Axes, prompt: int, temperature: float = 0.8) -> Any:
    """Returns a function that samples the bytes of a row from position `prompt` on."""

    @nym.named_jit(axis_resources=SAMPLING)
    def continue_row(model: Transformer, row: NamedArray, key: jax.Array) -> NamedArray:
        def sample_byte(at: jax.Array, row: NamedArray) -> NamedArray:
            logits = model(row)[axes.pos, at - 1]
            byte = nym.random.categorical(jax.random.fold_in(key, at), logits / temperature, axes.vocab)
            return row.at[axes.pos, at].set(byte)

        return jax.lax.fori_loop(prompt, axes.pos.size, sample_byte, row)

    return continue_row


def sample_text(model: Transformer, text: Text, seed: int) -> tuple[str, str]:
    """Returns the beginning of the held-out text and the continuation that the model samples."""
    axes = text.axes
    start = axes.pos.size // 3
    row = np.zeros((1, axes.pos.size), np.int32)
    row[0, :start] = text.held_out[:start]
    filled = make_sampler(axes, start)(model, nym.named(row, ("batch", axes.pos)), jax.random.key(seed))
    data = np.asarray(multihost_utils.process_allgather(filled.array, tiled=True)[0], np.uint8).tobytes()
    return data[:start].decode(errors="replace"), data[start:].decode(errors="replace")


def train(args: argparse.Namespace, text: Text, state: State, optimizer: Any, metrics: Metrics, saves: Any) -> State:
    """Runs the remaining steps; evaluates and saves four times, and saves at the end."""
    train_step, eval_step = make_train_step(optimizer), nym.fsdp(compute_loss, PARAMETERS, COMPUTE)
    held_out = text.make_held_out_batches()
    with Interrupt() as interrupt, make_progress_bar() as bar:
        task = bar.add_task("", total=args.steps, completed=state.step, loss=math.nan, speed=math.nan)
        while state.step < args.steps and not interrupt.should_stop():
            started, step = time.perf_counter(), state.step + 1
            model, moments, loss = train_step(state.model, state.optimizer, *text.make_batch(state.step))
            state = State(model, moments, step)
            row = {"step": step, "loss": check_finite(float(loss), f"loss of step {step}")}  # in nats
            row["tokens_per_second"] = args.batch * args.seq / (time.perf_counter() - started)
            metrics.add(**row)
            bar.update(task, completed=step, loss=row["loss"] / math.log(2), speed=row["tokens_per_second"])
            if step == args.steps or step % max(1, args.steps // 4) == 0:
                shown = check_finite(evaluate(eval_step, state.model, held_out), f"held-out loss of step {step}")
                metrics.add(step=step, eval_bits_per_byte=shown)
                saves.save(state.step, state[:2])
                bar.console.print(f"step {step}: held-out loss {shown:.3f} bits per byte")
    saves.save(state.step, state[:2])
    metrics.plot(args.out / "loss.png")
    return state


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train_lm", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add(
        "--mesh",
        help="sizes of the mesh axes, such as data:4,model:2; -1 for what is left; default: model is 1 or 2",
    )
    add("--axis-types", choices=["auto", "explicit"], default="auto", help="type of the mesh axes; default %(default)s")
    add("--steps", type=int, default=240, help="number of steps; default %(default)s")
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
    add("--devices", type=int, default=8, help="virtual CPU devices per process, without GPUs and TPUs; default 8")
    args = parser.parse_args(argv)
    for name in ("steps", "batch", "seq", "layers", "embed", "devices"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be positive, not {getattr(args, name)}")
    return args


def start_jax(args: argparse.Namespace) -> None:
    """Sets up the devices and, with --distributed, connects to the other processes.

    JAX finds them by itself on SLURM, Open MPI and TPU pods. Elsewhere, set the environment variables
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.
    """
    jax.config.update("jax_num_cpu_devices", args.devices)
    if args.distributed:
        nym.initialize()


def run(args: argparse.Namespace) -> None:
    axes = make_axes(args.batch, args.seq, args.embed, args.layers)
    text = Text(read_text(args.text), axes, args.seed)
    optimizer = make_optimizer(args)
    model = nym.named_jit(Transformer.init, PARAMETERS)(axes, key=jax.random.key(args.seed))
    state = State(model, nym.named_jit(optimizer.init, PARAMETERS)(model), 0)
    open_folder(args.out, {name: getattr(args, name) for name in SHAPES}, resume=args.resume)
    saves = Checkpoints(args.out / "checkpoints")
    if args.resume:
        step, (model, moments) = saves.restore(state[:2])
        state = State(model, moments, step)
        if state.step >= args.steps:
            console.print(f"nothing left to do: the run in {args.out} is at step {state.step}")
            return
    console.print(f"training on {len(text.train):,} bytes, {len(text.held_out):,} held out")
    console.print(str(nym.explain(state.model, PARAMETERS)), markup=False, soft_wrap=True)
    metrics = Metrics(args.out / "metrics.jsonl", state.step)
    state = train(args, text, state, optimizer, metrics, saves)
    if state.step < args.steps:
        console.print(f"stopped and saved at step {state.step}; go on with --resume")
        return
    last = [row["eval_bits_per_byte"] for row in metrics.rows if "eval_bits_per_byte" in row][-1]
    prompt, continuation = sample_text(state.model, text, args.seed)
    console.print(f"final held-out loss: {last:.3f} bits per byte")
    console.print(f"[dim]{prompt!r}[/dim] goes on as\n{continuation!r}")
    console.print(f"results are in {args.out}")


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        start_jax(args)
        sizes = args.mesh or f"data:-1,model:{2 - jax.device_count() % 2}"
        mesh = nym.parse_mesh_from_string(sizes, ("data", "model"), axis_types=args.axis_types)
        console.quiet = jax.process_index() != 0
        shown = ", ".join(f"{name}: {size}" for name, size in mesh.shape.items())
        console.print(f"mesh ({shown}) of {mesh.size} {jax.default_backend()} devices, {args.axis_types} axes")
        with jax.set_mesh(mesh):
            run(args)
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"train_lm: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train_lm: stopped at once; steps since the newest checkpoint, if any, are lost", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

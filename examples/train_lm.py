"""Trains a byte-level language model, sharded by the names of its axes.

The transformer of `transformer.py` learns to predict the next byte of a text: by default the documentation topics that
ship inside Python. Parameters and optimizer state are divided over the mesh axis `data`, heads, hidden units and
vocabulary over `model`. Nothing in the model mentions a mesh: two mappings from axis names to mesh axes are all there
is. Run it with `--help` for the options.
"""

import argparse
import importlib
import itertools
import json
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import matplotlib
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from transformer import Axes, Transformer, make_axes

import axonym as nym
from axonym import NamedArray


matplotlib.use("Agg")
from matplotlib import pyplot as plt


COMPUTE = {"batch": "data", "heads": "model", "mlp": "model", "vocab": "model"}
PARAMETERS = {**COMPUTE, "embed": "data"}  # between steps; each layer gathers its own weights when it runs
ALONE = {**COMPUTE, "batch": None}  # for a batch of one
console = Console(width=None if sys.stdout.isatty() else 132)


class State(NamedTuple):
    """What a step changes and a checkpoint holds."""

    model: Transformer
    optimizer: Any
    step: int


def make_optimizer(args: argparse.Namespace) -> Any:  # optax's own type knows no modules
    warmup = min(20, args.steps // 5)
    schedule = optax.warmup_cosine_decay_schedule(0.0, args.lr, warmup, max(args.steps, warmup + 1), 0.1 * args.lr)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))


def loss_of(model: Transformer, inputs: NamedArray, targets: NamedArray) -> jax.Array:
    return nym.nn.cross_entropy_loss(model(inputs), "vocab", targets).scalar()


def make_train_step(optimizer: Any) -> Any:
    @nym.fsdp(PARAMETERS, COMPUTE, donate_args=(True, True))
    def train_step(model: Transformer, state: Any, inputs: NamedArray, targets: NamedArray) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(model, inputs, targets)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    return train_step


class Text:
    """The text as bytes: the last tenth is held out, and the batch of a step depends on the seed and the step alone."""

    def __init__(self, data: np.ndarray, axes: Axes, seed: int) -> None:
        split = len(data) - len(data) // 10
        self.train, self.held_out = data[:split], data[split:]
        if len(self.held_out) <= axes.pos.size:
            raise ValueError(
                f"the text has {len(data)} bytes; sequences of {axes.pos.size} need {10 * axes.pos.size + 10}"
            )
        self.axes, self.seed = axes, seed
        self.sharding = nym.sharding_for_axis((axes.batch, axes.pos), COMPUTE)

    def batch(self, step: int) -> tuple[NamedArray, NamedArray]:
        rng = np.random.default_rng((self.seed, step))
        return self.windows(self.train, rng.integers(0, len(self.train) - self.axes.pos.size, self.axes.batch.size))

    def held_out_batches(self) -> list[tuple[NamedArray, NamedArray]]:
        size = self.axes.batch.size
        starts = np.arange(0, len(self.held_out) - self.axes.pos.size, self.axes.pos.size)
        starts = starts[: max(1, len(starts) // size) * size]
        starts = np.resize(starts, math.ceil(len(starts) / size) * size)  # a short text fills the batch by repeating
        return [self.windows(self.held_out, part) for part in starts.reshape(-1, size)]

    def windows(self, data: np.ndarray, starts: np.ndarray) -> tuple[NamedArray, NamedArray]:
        rows = data[starts[:, None] + np.arange(self.axes.pos.size + 1)].astype(np.int32)
        return self.spread(rows[:, :-1]), self.spread(rows[:, 1:])

    def spread(self, rows: np.ndarray) -> NamedArray:
        """Gives each device its part of the rows, also where a process has only some of the devices."""
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


def show_shardings(model: Transformer) -> None:
    """Prints which parameter lies where, and what that saves."""
    table = Table("parameter", "axes", "spec", title="what is sharded how", title_justify="left", box=box.SIMPLE)
    table.add_column("bytes per device", justify="right")
    total = here = 0
    for path, x in jax.tree_util.tree_leaves_with_path(model, is_leaf=lambda x: isinstance(x, NamedArray)):
        own = math.prod(x.sharding.shard_shape(x.array.shape)) * x.dtype.itemsize
        table.add_row(jax.tree_util.keystr(path)[1:], str(x.shape), str(x.sharding.spec), f"{own:,}")
        total, here = total + x.nbytes, here + own
    table.add_section()
    table.add_row("all", f"{total:,} bytes if replicated, {total / here:.2f} times less here", "", f"{here:,}")
    console.print(table)


SHAPES = ("layers", "embed")  # the options that the parameters' shapes depend on


def open_folder(args: argparse.Namespace) -> None:
    """Makes the folder of results; earlier ones are moved aside unless they are resumed, and then must fit."""
    options = args.out / "options.json"
    if args.resume:
        if not options.exists():
            raise ValueError(f"no run to resume in {args.out}")
        saved = json.loads(options.read_text())
        for name in SHAPES:
            if saved[name] != getattr(args, name):
                raise ValueError(f"the run in {args.out} has --{name} {saved[name]}, not {getattr(args, name)}")
    elif jax.process_index() == 0:
        if args.out.exists() and any(args.out.iterdir()):
            names = (args.out.with_name(f"{args.out.name}-{i}") for i in itertools.count(1))
            aside = next(name for name in names if not name.exists())
            args.out.rename(aside)
            console.print(f"the results of the run before are now in {aside}", highlight=False)
        args.out.mkdir(parents=True, exist_ok=True)
        options.write_text(json.dumps({name: getattr(args, name) for name in SHAPES}))
    nym.barrier_sync(name="the folder is there")


class Checkpoints:
    """Saves and restores the state with orbax, under names, whatever the mesh."""

    def __init__(self, folder: Path) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        self.manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def save(self, state: State) -> None:
        if self.manager.latest_step() != state.step:
            self.manager.save(state.step, args=ocp.args.StandardSave(named_leaves(state)))
            self.manager.wait_until_finished()

    def restore(self, state: State) -> State:
        step = self.manager.latest_step()
        if step is None:
            raise ValueError(f"no checkpoint to resume from in {self.manager.directory}")
        like = named_leaves(state)
        shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for name, x in like.items()}
        saved = self.manager.restore(step, args=ocp.args.StandardRestore(shapes))
        leaves = [jax.device_put(saved[name], x.sharding) for name, x in like.items()]
        model, optimizer = jax.tree.unflatten(jax.tree.structure(state[:2]), leaves)
        return State(model, optimizer, step)


def named_leaves(state: State) -> dict[str, jax.Array]:
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state[:2])}


class Metrics:
    """One JSON object a line, kept by the first process alone."""

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
        """Draws the losses of all steps, and of the held-out text where it was evaluated, in bits per byte."""
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


def evaluate(eval_step: Any, model: Transformer, batches: list[Any]) -> float:
    """Returns the mean loss over the held-out text, in bits per byte."""
    return float(np.mean([float(eval_step(model, *batch)) for batch in batches])) / math.log(2)


def make_continuation(axes: Axes, prompt: int, temperature: float = 0.8) -> Any:
    """Returns a function that fills a row of bytes from position `prompt` on, drawn from what the model predicts."""

    @nym.named_jit(axis_resources=ALONE)
    def continuation(model: Transformer, row: NamedArray, key: jax.Array) -> NamedArray:
        def step(at: jax.Array, row: NamedArray) -> NamedArray:
            logits = model(row)[axes.pos, at - 1]
            byte = nym.random.categorical(jax.random.fold_in(key, at), logits / temperature, axes.vocab)
            return row.at[axes.pos, at].set(byte)

        return jax.lax.fori_loop(prompt, axes.pos.size, step, row)

    return continuation


def sample(model: Transformer, text: Text, seed: int) -> tuple[str, str]:
    """Continues the beginning of the held-out text; returns the beginning and the continuation."""
    axes = text.axes
    start = axes.pos.size // 3
    row = np.zeros((1, axes.pos.size), np.int32)
    row[0, :start] = text.held_out[:start]
    filled = make_continuation(axes, start)(model, nym.named(row, ("batch", axes.pos)), jax.random.key(seed))
    data = np.asarray(multihost_utils.process_allgather(filled.array, tiled=True)[0], np.uint8).tobytes()
    return data[:start].decode(errors="replace"), data[start:].decode(errors="replace")


class Interrupt:
    """Remembers Ctrl-C, so that a step is never cut in two; a second one stops at once."""

    def __enter__(self) -> "Interrupt":
        self.asked = False
        self.before = signal.signal(signal.SIGINT, self.ask)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self.before)

    def ask(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self.before)

    def agreed(self) -> bool:
        """Tells whether any process was asked to stop, the same on all of them."""
        if jax.process_count() == 1:
            return self.asked
        return bool(np.any(multihost_utils.process_allgather(np.array(self.asked))))


def progress_bar() -> Progress:
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


def train(args: argparse.Namespace, text: Text, state: State, optimizer: Any, metrics: Metrics, saves: Any) -> State:
    """Runs the steps that are left, evaluates four times and at the end, and saves what it reached."""
    train_step, eval_step = make_train_step(optimizer), nym.fsdp(loss_of, PARAMETERS, COMPUTE)
    held_out = text.held_out_batches()
    with Interrupt() as interrupt, progress_bar() as bar:
        task = bar.add_task("", total=args.steps, completed=state.step, loss=math.nan, speed=math.nan)
        while state.step < args.steps and not interrupt.agreed():
            started, step = time.perf_counter(), state.step + 1
            model, moments, loss = train_step(state.model, state.optimizer, *text.batch(state.step))
            state = State(model, moments, step)
            row = {"step": step, "loss": float(loss)}  # in nats, as the optimizer sees it
            row["tokens_per_second"] = args.batch * args.seq / (time.perf_counter() - started)
            metrics.add(**row)
            bar.update(task, completed=step, loss=row["loss"] / math.log(2), speed=row["tokens_per_second"])
            if step == args.steps or step % max(1, args.steps // 4) == 0:
                metrics.add(step=step, eval_bits_per_byte=evaluate(eval_step, state.model, held_out))
                saves.save(state)
                shown = metrics.rows[-1]["eval_bits_per_byte"]
                bar.console.print(f"step {step}: held-out loss {shown:.3f} bits per byte", highlight=False)
    saves.save(state)
    metrics.plot(args.out / "loss.png")
    return state


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train_lm", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--mesh", help="sizes of the mesh axes, as in data:4,model:2; -1 for what is left; default: model is 1 or 2")
    add("--axis-types", choices=["auto", "explicit"], default="auto", help="who decides about shardings in between")
    add("--steps", type=int, default=240, help="steps in all; default %(default)s")
    add("--batch", type=int, default=32, help="sequences a step; default %(default)s")
    add("--seq", type=int, default=128, help="bytes a sequence; default %(default)s")
    add("--layers", type=int, default=4, help="blocks; default %(default)s")
    add("--embed", type=int, default=128, help="width of the model; default %(default)s")
    add("--lr", type=float, default=3e-3, help="peak learning rate; default %(default)s")
    add("--seed", type=int, default=0, help="of parameters and batches; default %(default)s")
    add("--text", type=Path, nargs="+", default=[], help="files to learn from; default: Python's own documentation")
    add("--out", type=Path, default=Path("runs/train_lm"), help="folder of results; default %(default)s")
    add("--resume", action="store_true", help="go on from the newest checkpoint under --out")
    add("--distributed", action="store_true", help="run as one process of several, one per host")
    add("--devices", type=int, default=8, help="virtual CPU devices per process, without GPUs and TPUs; default 8")
    args = parser.parse_args(argv)
    for name in ("steps", "batch", "seq", "layers", "embed", "devices"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be positive, not {getattr(args, name)}")
    return args


def start_jax(args: argparse.Namespace) -> None:
    """Sets up the devices; with --distributed also the connection to the other processes.

    Where JAX cannot find out by itself (SLURM, Open MPI and TPU pods tell it), the variables JAX_COORDINATOR_ADDRESS,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID do.
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
    open_folder(args)
    saves = Checkpoints(args.out / "checkpoints")
    if args.resume:
        state = saves.restore(state)
        if state.step >= args.steps:
            console.print(f"nothing left to do: the run in {args.out} is at step {state.step}", highlight=False)
            return
    console.print(f"training on {len(text.train):,} bytes, {len(text.held_out):,} held out")
    show_shardings(state.model)
    metrics = Metrics(args.out / "metrics.jsonl", state.step)
    state = train(args, text, state, optimizer, metrics, saves)
    if state.step < args.steps:
        console.print(f"stopped and saved at step {state.step}; go on with --resume")
        return
    last = [row["eval_bits_per_byte"] for row in metrics.rows if "eval_bits_per_byte" in row][-1]
    prompt, continuation = sample(state.model, text, args.seed)
    console.print(f"final held-out loss: {last:.3f} bits per byte", highlight=False)
    console.print(f"[dim]{prompt!r}[/dim] goes on as\n{continuation!r}", highlight=False, markup=True)
    console.print(f"results are in {args.out}", highlight=False)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        start_jax(args)
        sizes = args.mesh or f"data:-1,model:{2 - jax.device_count() % 2}"
        mesh = nym.parse_mesh_from_string(sizes, ("data", "model"), axis_types=args.axis_types)
        console.quiet = jax.process_index() != 0
        shown = ", ".join(f"{name}: {size}" for name, size in mesh.shape.items())
        console.print(f"mesh ({shown}) of {mesh.size} {jax.default_backend()} devices, {args.axis_types} axes")
        with jax.set_mesh(mesh):
            run(args)
    except (ValueError, OSError) as error:
        print(f"train_lm: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train_lm: stopped at once; steps since the newest checkpoint, if any, are lost", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The step times that `estimate_step_time` predicts for training runs whose step times are published.

`python -m benchmarks.published_steps [--only NAME ...] [--page FILE]` compiles the step of `examples/models/llama.py`
whole, in the sizes, on the devices and with the mapping of each published run, and compares the estimate with the
published time. `make tpu` and `make gpu-plugins` install the compilers, into the folders that AXONYM_LIBTPU and
AXONYM_GPU_PLUGINS name. A run on TPUs takes up to eight minutes of CPU time, one on GPUs a quarter of a minute; nothing
is run. With `--page`, the tables replace those in a page of the documentation.

The model is Llama's in all runs, in bfloat16 or 8-bit floats with AdamW on float32. Under tensor parallelism the values
between layers are sharded over the positions, as MaxText shards them over an axis, too.
"""

import argparse
import collections
import dataclasses
import datetime
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import axonym as nym
from axonym.planner import CompiledProgram, StepTime, compile_for, described_devices, estimate_step_time, get_hardware
from examples.models import llama, mixtral

from .compiled_steps import replace_table
from .published_runs import RUNS, Run


def init_model(run: Run) -> Any:
    """Makes the model of a run."""
    module, model_class = (mixtral, mixtral.Mixtral) if "experts" in run.sizes else (llama, llama.Llama)
    axes = {name: nym.Axis(name, run.sizes[name]) for name in module.Config._fields if name in run.sizes}
    config: Any = module.Config(**axes, **run.options)
    model = model_class.init(config, key=jax.random.key(0))
    blocks = dataclasses.replace(model.blocks, gradient_checkpointing=run.policy)
    if run.is_float8:
        blocks = nym.quantization.quantize_linear_layers(blocks, nym.quantization.Float8DotGeneral.init(16))
    model = dataclasses.replace(model, blocks=blocks)
    return model.use_sequence_parallelism() if isinstance(model, llama.Llama) else model


def is_history(x: Any) -> bool:
    """Returns whether this is what 8-bit products keep of steps before."""
    return isinstance(x, nym.quantization.OverwriteWithGradient)


def compute_loss(model: Any, tokens: nym.NamedArray, targets: nym.NamedArray) -> jax.Array:
    """Returns the loss in bfloat16, whose logits are sharded over the vocabulary."""

    def convert(x: Any) -> Any:
        return x if is_history(x) or not jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.bfloat16)

    model = jax.tree.map(convert, model, is_leaf=is_history)
    x, _ = model.blocks.scan(model.embedding(tokens), None)
    logits = model.head(nym.shard(model.norm(x).rename({"pos": "token"})))
    return nym.nn.cross_entropy_loss(logits, "vocab", targets.rename({"pos": "token"})).scalar()


def describe_step(run: Run) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step of a run, and the shapes of its arguments."""
    optimizer = optax.adamw(3e-4, b2=0.95, weight_decay=0.1)

    @nym.fsdp(run.stored, run.compute, donate_args=(True, True), retrace_warning=False)
    def train_step(model: Any, state: Any, tokens: nym.NamedArray, targets: nym.NamedArray) -> Any:
        loss, gradients = jax.value_and_grad(compute_loss)(model, tokens, targets)
        overwrites, gradients = nym.quantization.partition_overwrites(gradients)
        updates, state = optimizer.update(gradients, state, get_parameters(model))
        return nym.quantization.apply_updates(model, updates, overwrites), state, loss

    model = eqx.filter_eval_shape(init_model, run)
    tokens = jax.eval_shape(lambda: nym.zeros({"batch": run.sizes["batch"], "pos": run.sizes["pos"]}, jnp.int32))
    return train_step, (model, eqx.filter_eval_shape(optimizer.init, get_parameters(model)), tokens, tokens)


def get_parameters(model: Any) -> Any:
    """Returns the model without what 8-bit products keep of steps before."""
    return nym.quantization.partition_overwrites(model)[1]


def compile_run(run: Run, *, stop_early: bool = False) -> CompiledProgram:
    """Returns the compiled step of a run."""
    step, arguments = describe_step(run)
    mesh = nym.create_mesh(run.mesh, devices=described_devices(run.devices))
    options = {"stop_early": stop_early, "compiler_options": run.compiler_options}
    return compile_for(step, *arguments, mesh=mesh, mapping=run.stored, **options)


def format_row(run: Run, program: CompiledProgram, time: StepTime) -> str:
    """Returns the row of the table for a run."""
    waiting = sum(time.waiting.values())
    parts = (time.compute, time.attention, waiting, time.host, sum(time.hidden.values()))
    memory = f"{program.memory.peak_bytes / 2**30:.1f} of {program.hardware.hbm_available / 2**30:.1f}"
    published, off = "", ""
    if run.seconds is not None:
        published, off = f"{run.seconds:.2f}", f"{100 * (time.total / run.seconds - 1):+.1f} %"
    cells = [run.label, published, f"{time.total:.2f}", off]
    return f"| {' | '.join([*cells, *(f'{part:.2f}' for part in parts), memory])} |"


def format_table(rows: Sequence[str], program: CompiledProgram) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in program.versions.items())
    heads = ("published s", "predicted s", "difference", "compute", "attention", "waiting", "host", "hidden", "GiB")
    return "\n".join(
        [
            f"Compiled {datetime.date.today()} with {versions}.",
            "",
            f"| run | {' | '.join(heads)} |",
            f"|---|{'---:|' * len(heads)}",
            *rows,
        ]
    )


def count_ordered_pairs(page: str) -> str:
    """Returns how often two runs of one model are predicted in the right order, by the tables of a page.

    Runs are compared by the seconds of a device for each token. Those less than 10 % apart do not count.
    """
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in page.splitlines()]
    seconds = {row[0]: [*map(float, row[1:3])] for row in rows if len(row) == 10 and row[3].endswith("%")}
    same_kind, other_kind = list[bool](), list[bool]()
    for first, second in itertools.combinations(RUNS.values(), 2):
        if all(first.sizes[name] == second.sizes[name] for name in ("layers", "embed", "mlp", "vocab")):
            published, predicted = measure_token_seconds(first, seconds)
            other_published, other_predicted = measure_token_seconds(second, seconds)
            if max(published, other_published) >= 1.1 * min(published, other_published):
                is_same = get_hardware(first.devices) == get_hardware(second.devices)
                is_right = (published < other_published) == (predicted < other_predicted)
                (same_kind if is_same else other_kind).append(is_right)
    return (
        f"{sum(same_kind)} of {len(same_kind)} pairs on devices of one kind are right\n"
        f"{sum(other_kind)} of {len(other_kind)} pairs on devices of two kinds are right"
    )


def measure_token_seconds(run: Run, seconds: Mapping[str, Sequence[float]]) -> list[float]:
    """Returns the published and the predicted seconds of a device for each token, from those of a step by title."""
    devices, tokens = len(described_devices(run.devices)), run.sizes["batch"] * run.sizes["pos"]
    return [devices * step_seconds / tokens for step_seconds in seconds[run.label]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="which runs; default: all")
    parser.add_argument("--page", type=Path, help="a page whose tables are replaced")
    parser.add_argument("--pairs", type=Path, help="a page; count the pairs of its runs whose order is right, and end")
    given = parser.parse_args(arguments)
    if given.pairs:
        print(count_ordered_pairs(given.pairs.read_text()))
        return
    rows: dict[str, list[str]] = collections.defaultdict(list)  # by the name of the table
    programs: dict[str, CompiledProgram] = {}
    for name in given.only:
        run = RUNS[name]
        program = programs[run.table] = compile_run(run)
        rows[run.table].append(format_row(run, program, estimate_step_time(program)))
        print(rows[run.table][-1], flush=True)
    for table in rows:
        text = format_table(rows[table], programs[table])
        print(text)
        if given.page:
            given.page.write_text(replace_table(given.page.read_text(), text, table))


if __name__ == "__main__":
    main()

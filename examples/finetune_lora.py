"""Fine-tunes a language model by low-rank adapters (LoRA): a small product is trained beside each large weight.

The weights of queries, keys, values and the output of attention stay as they are, and each gets an addition of a low
rank, which begins as zero (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021). So the optimizer has
states for the adapters alone, and the file of adapters is small. They are float32, also beside weights in bfloat16.
With `--model`, the model is a run of `train_lm.py` or a folder as Hugging Face's `transformers` saves it; without, a
small one is trained first. It then learns a text of another kind, by default source code of Python. At the end the
additions are merged into the weights.
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
import train_lm
from bookkeeping import (
    add_mesh_options,
    check_finite,
    check_positive,
    console,
    plot_curves,
    run_on_mesh,
    show_progress,
)
from generate import Bytes, load_folder, load_run
from text_data import load_batches, load_held_out_batches, read_text

import axonym as nym
from axonym import Axis, NamedArray
from axonym.nn import Linear


COMPUTE = nym.AxisMapping(train_lm.COMPUTE, uneven="replicate")
PARAMETERS = COMPUTE.merged({"embed": "data"})  # between steps
ADAPTED = ("query", "key", "value", "out", "attention_out")  # fields of layers, of which each model has some


class Adapter(eqx.Module):
    """An addition of low rank to the weight of a layer, or to those of stacked layers.

    Attributes:
        down: Array with the input axes and `rank`.
        up: Array with the output axes and `rank`.
        scale: Factor of the addition.
    """

    down: NamedArray
    up: NamedArray
    scale: float = eqx.field(static=True)

    @staticmethod
    def init(linear: Linear, rank: int, scale: float, *, key: jax.Array) -> "Adapter":
        """Returns an addition of zero."""
        Rank = Axis("rank", rank)
        layers = [axis for axis in linear.weight.axes if axis not in (*linear.In, *linear.Out)]
        fan_in = math.prod(axis.size for axis in linear.In)
        down = nym.random.normal(key, (*layers, Rank, *linear.In)) / math.sqrt(fan_in)
        return Adapter(down, nym.zeros((*layers, *linear.Out, Rank)), scale)


class AdaptedLinear(eqx.Module):
    """A linear layer and the addition to its weight."""

    linear: Linear
    adapter: Adapter

    @property
    def In(self) -> tuple[Axis, ...]:
        return self.linear.In

    @property
    def Out(self) -> tuple[Axis, ...]:
        return self.linear.Out

    def __call__(self, x: NamedArray) -> NamedArray:
        down, up = (nym.auto_sharded(weight).astype(x.dtype) for weight in (self.adapter.down, self.adapter.up))
        narrow = nym.dot(x, down, axis=self.In)
        return self.linear(x) + self.adapter.scale * nym.auto_sharded(nym.dot(narrow, up, axis="rank"))

    def merge(self) -> Linear:
        """Returns a layer with the addition in its weight, which keeps its dtype."""
        weight = self.linear.weight
        addition = self.adapter.scale * nym.dot(self.adapter.up, self.adapter.down, axis="rank")
        merged = (weight + addition.rearrange(weight.names)).astype(weight.dtype)
        return eqx.tree_at(lambda linear: linear.weight, self.linear, merged)


def init_adapters(model: Any, rank: int, scale: float, *, key: jax.Array) -> dict[str, Adapter]:
    """Returns an adapter for each layer of attention, by the name of its field."""
    if not hasattr(model, "blocks"):
        raise ValueError(f"{type(model).__name__} has no stacked layers in `blocks`, which adapters are added to")
    layers = {name: getattr(model.blocks.stacked, name) for name in ADAPTED if hasattr(model.blocks.stacked, name)}
    keys = jax.random.split(key, len(layers))
    return {
        name: Adapter.init(layer, rank, scale, key=key) for (name, layer), key in zip(layers.items(), keys, strict=True)
    }


def adapt(model: Any, adapters: dict[str, Adapter]) -> Any:
    """Returns the model with an adapter in each of these layers."""
    layers = [AdaptedLinear(getattr(model.blocks.stacked, name), adapter) for name, adapter in adapters.items()]
    return replace_layers(model, adapters, layers)


def merge(model: Any, adapters: dict[str, Adapter]) -> Any:
    """Returns the model with the additions in its weights, which has the layers that it had."""
    layers = [AdaptedLinear(getattr(model.blocks.stacked, name), adapter) for name, adapter in adapters.items()]
    return replace_layers(model, adapters, [layer.merge() for layer in layers])


def replace_layers(model: Any, adapters: dict[str, Adapter], layers: list[Any]) -> Any:
    return eqx.tree_at(lambda model: [getattr(model.blocks.stacked, name) for name in adapters], model, layers)


@nym.named_call
def compute_loss(adapters: dict[str, Adapter], model: Any, inputs: NamedArray, targets: NamedArray) -> jax.Array:
    logits = adapt(model, adapters)(inputs)
    return nym.nn.cross_entropy_loss(logits, "vocab", targets).scalar()


def make_optimizer(args: argparse.Namespace) -> Any:  # optax's own types do not allow modules
    schedule = optax.cosine_decay_schedule(args.lr, args.steps, 0.1)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))


def make_train_step(optimizer: Any) -> Any:
    @nym.fsdp(PARAMETERS, COMPUTE, donate_args=(True, True, False, False, False))
    def train_step(adapters: Any, state: Any, model: Any, inputs: NamedArray, targets: NamedArray) -> Any:
        loss, gradients = jax.value_and_grad(compute_loss)(adapters, model, inputs, targets)
        updates, state = optimizer.update(gradients, state, adapters)
        return eqx.apply_updates(adapters, updates), state, loss

    return train_step


def train_base(args: argparse.Namespace) -> Any:
    """Returns a small model after some steps on the documentation of Python."""
    axes = train_lm.make_axes(args.batch, args.seq, embed=64, layers=2)
    optimizer = train_lm.make_optimizer(argparse.Namespace(steps=args.base_steps, lr=1e-2))
    train_step = train_lm.make_train_step(optimizer)
    state = nym.named_jit(train_lm.init_state, PARAMETERS)(axes, optimizer, args.seed)
    model, moments = state["model"], state["optimizer"]
    text, _ = read_text([], axes.pos)
    with (
        load_batches(text, axes.batch, axes.pos, COMPUTE, args.seed) as loader,
        show_progress(args.base_steps, "first, the model: loss {task.fields[loss]:.3f} bits per byte") as advance,
    ):
        for _ in range(args.base_steps):
            model, moments, loss = train_step(model, moments, *next(loader))
            advance(loss=float(loss) / math.log(2))
    return model


def count_elements(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="finetune_lora", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add_mesh_options(parser)
    add("--model", type=Path, help="folder of a run of train_lm.py, or as transformers saves it; default: a small one")
    add("--base-steps", type=int, default=120, help="steps of training that small one; default %(default)s")
    add(
        "--text", type=Path, nargs="+", default=[Path(argparse.__file__)], help="files to learn; default: a Python file"
    )
    add("--rank", type=int, default=4, help="rank of the additions; default %(default)s")
    add("--scale", type=float, default=2.0, help="factor of the additions; default %(default)s")
    add("--steps", type=int, default=80, help="number of steps; default %(default)s")
    add("--batch", type=int, default=16, help="sequences per step; default %(default)s")
    add("--seq", type=int, default=64, help="tokens per sequence; default %(default)s")
    add("--lr", type=float, default=1e-2, help="peak learning rate; default %(default)s")
    add("--seed", type=int, default=0, help="seed of adapters and batches; default %(default)s")
    add("--out", type=Path, default=Path("runs/finetune_lora"), help="folder of results; default %(default)s")
    args = parser.parse_args(argv)
    check_positive(parser, args, "base_steps", "rank", "steps", "batch", "seq", "devices")
    return args


def run(args: argparse.Namespace) -> None:
    tokens: Any = Bytes()
    if args.model is None:
        model = train_base(args)
    else:
        with nym.axis_mapping(PARAMETERS):
            model, tokens = (load_run if (args.model / "options.json").exists() else load_folder)(args.model)
    Batch, Pos = nym.make_axes(batch=args.batch, pos=args.seq)
    parts = read_text(args.text, Pos)
    text, held_out = (np.array(tokens.encode(part.tobytes().decode(errors="replace"))) for part in parts)

    with nym.axis_mapping(PARAMETERS):
        adapters = nym.named_jit(init_adapters)(model, args.rank, args.scale, key=jax.random.key(args.seed))
        optimizer = make_optimizer(args)
        init_moments: Any = nym.named_jit(optimizer.init)
        state = init_moments(adapters)
    trained, fixed = count_elements(adapters), count_elements(model)
    console.print(f"{trained:,} elements are trained beside {fixed:,}, {trained / fixed:.1%}, in {', '.join(adapters)}")

    train_step, eval_step = make_train_step(optimizer), nym.fsdp(compute_loss, PARAMETERS, COMPUTE)
    held_out_batches = load_held_out_batches(held_out, Batch, Pos, COMPUTE)

    def evaluate(adapters: Any, model: Any) -> float:
        """Returns the held-out loss in bits per token."""
        return float(np.mean([float(eval_step(adapters, model, *batch)) for batch in held_out_batches])) / math.log(2)

    first_loss, losses = evaluate(adapters, model), []
    with (
        load_batches(text, Batch, Pos, COMPUTE, args.seed) as loader,
        show_progress(args.steps, "adapters: loss {task.fields[loss]:.3f} bits per token") as advance,
    ):
        for step in range(1, args.steps + 1):
            adapters, state, loss = train_step(adapters, state, model, *next(loader))
            losses.append((step, check_finite(float(loss), f"loss of step {step}") / math.log(2)))
            advance(loss=losses[-1][1])
    last_loss = evaluate(adapters, model)
    console.print(f"held-out loss: {first_loss:.3f} bits per token before, {last_loss:.3f} after")

    with nym.axis_mapping(PARAMETERS):
        merged = nym.named_jit(merge)(model, adapters)
    console.print(f"with the additions merged into the weights: {evaluate({}, merged):.3f}")
    nym.state_dict.save_safetensors(adapters, args.out)
    console.print(f"adapters are in {args.out}, {(args.out / 'model.safetensors').stat().st_size / 1024:.0f} KiB")
    curves = {"training batch": losses, "held-out text": [(0, first_loss), (args.steps, last_loss)]}
    plot_curves(args.out / "loss.png", curves, "loss (bits per token)")


def main(argv: list[str] | None = None) -> int:
    return run_on_mesh("finetune_lora", run, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())

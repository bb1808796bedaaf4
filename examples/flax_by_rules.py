"""Trains a model of Flax NNX, whose plain arrays are sharded by rules instead of names of axes.

A rule is the fallback of the mapping: it chooses the spec of each array by its path, shape or role. `--rule roles`
shards the weights of layers in pairs, as tensor parallelism does, `sizes` divides the largest dimensions, and `paths`
has patterns. The model does not change. A mixer of patches (Tolstikhin et al., "MLP-Mixer", 2021) reads scikit-learn's
images of digits.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from bookkeeping import (
    add_mesh_options,
    check_finite,
    check_positive,
    console,
    plot_curves,
    run_on_mesh,
    show_progress,
)
from flax import nnx
from jax import P
from rich.table import Table
from sklearn.datasets import load_digits

import axonym as nym


RULES = {
    "roles": nym.RoleShardingRule(tensor="model", fsdp="data"),
    "sizes": nym.AutoShardingRule(min_shard_size=1024),
    "paths": nym.PathShardingRule({"up_proj/kernel": P("data", "model"), "down_proj/kernel": P("model", "data")}),
}
HELD_OUT = 384


class Mlp(nnx.Module):
    """A layer that widens the last dimension of an array, and narrows it again."""

    def __init__(self, size: int, width: int, *, rngs: nnx.Rngs):
        self.up_proj = nnx.Linear(size, width, rngs=rngs)
        self.down_proj = nnx.Linear(width, size, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down_proj(nnx.gelu(self.up_proj(x)))


class Block(nnx.Module):
    """Mixes the patches of an image, then the features of each patch."""

    def __init__(self, patches: int, embed: int, *, rngs: nnx.Rngs):
        self.patch_norm = nnx.LayerNorm(embed, rngs=rngs)
        self.patch_mlp = Mlp(patches, 4 * patches, rngs=rngs)
        self.norm = nnx.LayerNorm(embed, rngs=rngs)
        self.mlp = Mlp(embed, 4 * embed, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.patch_mlp(self.patch_norm(x).swapaxes(1, 2)).swapaxes(1, 2)
        return x + self.mlp(self.norm(x))


class Mixer(nnx.Module):
    """Maps images of 8 x 8 pixels to the logits of their labels."""

    def __init__(self, embed: int, layers: int, *, rngs: nnx.Rngs):
        self.patch_embedding = nnx.Linear(4, embed, rngs=rngs)
        self.blocks = nnx.List([Block(16, embed, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(embed, rngs=rngs)
        self.head = nnx.Linear(embed, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        patches = images.reshape(-1, 4, 2, 4, 2).swapaxes(2, 3).reshape(-1, 16, 4)
        x = self.patch_embedding(patches)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def shard_states(*modules: Any) -> None:
    """Shards the arrays of modules by the active mapping; in a step, it keeps them so."""
    for module in modules:
        nnx.update(module, nym.shard(nnx.state(module)))


@nnx.jit
def train_step(model: Mixer, optimizer: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    def compute_loss(model: Mixer) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    loss, gradients = nnx.value_and_grad(compute_loss)(model)
    optimizer.update(model, gradients)
    shard_states(model, optimizer)
    return loss


@nnx.jit
def read_labels(model: Mixer, images: jax.Array) -> jax.Array:
    return model(images).argmax(-1)


def print_specs(model: Mixer) -> None:
    """Prints how the arrays outside of the layers and in the first one are sharded."""
    table = Table("array", "shape", "spec", "on a device", box=None)
    arrays = jax.tree_util.tree_leaves_with_path(nnx.state(model))
    for path, array in arrays:
        name = jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value")
        if not name.startswith("blocks/") or name.startswith("blocks/0/"):
            part = array.sharding.shard_shape(array.shape)
            table.add_row(name, str(array.shape), str(array.sharding.spec), str(part))
    console.print(table, markup=False)
    held = sum(math.prod(array.sharding.shard_shape(array.shape)) for _, array in arrays)
    whole = sum(array.size for _, array in arrays)
    console.print(f"a device holds {held:,} of {whole:,} elements, {held / whole:.1%}")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="flax_by_rules", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add_mesh_options(parser)
    add("--rule", choices=RULES, default="roles", help="what chooses the spec of an array; default %(default)s")
    add("--steps", type=int, default=200, help="number of steps; default %(default)s")
    add("--batch", type=int, default=64, help="images per step; default %(default)s")
    add("--layers", type=int, default=2, help="blocks; default %(default)s")
    add("--embed", type=int, default=64, help="width of the model; default %(default)s")
    add("--lr", type=float, default=3e-3, help="peak learning rate; default %(default)s")
    add("--seed", type=int, default=0, help="seed of parameters and batches; default %(default)s")
    add("--out", type=Path, default=Path("runs/flax_by_rules"), help="folder for loss.png; default %(default)s")
    args = parser.parse_args(argv)
    check_positive(parser, args, "steps", "batch", "layers", "embed", "devices")
    if args.axis_types == "explicit":
        parser.error("layers of Flax compute on auto axes; for others see docs/rules.md")
    return args


def run(args: argparse.Namespace) -> None:
    digits: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = digits.images[order].astype(np.float32) / 16, digits.target[order]
    count = len(images) - HELD_OUT
    random, losses = np.random.default_rng(args.seed), []
    with nym.axis_mapping({}, fallback=RULES[args.rule]):
        model = Mixer(args.embed, args.layers, rngs=nnx.Rngs(args.seed))
        schedule = optax.cosine_decay_schedule(args.lr, args.steps)
        optimizer = nnx.Optimizer(model, optax.adam(schedule), wrt=nnx.Param)
        shard_states(model, optimizer)
        print_specs(model)
        with show_progress(args.steps, "loss {task.fields[loss]:.3f}") as advance:
            for step in range(1, args.steps + 1):
                indices = random.integers(0, count, args.batch)
                batch = jax.device_put((images[indices], labels[indices]), P("data"))
                loss = check_finite(float(train_step(model, optimizer, *batch)), f"loss of step {step}")
                losses.append((step, loss))
                advance(loss=loss)
        predicted = np.asarray(read_labels(model, jnp.asarray(images[count:])))
    console.print(f"held-out accuracy: {np.mean(predicted == labels[count:]):.1%}")
    plot_curves(args.out / "loss.png", {f"training batch, rule {args.rule}": losses}, "loss")


def main(argv: list[str] | None = None) -> int:
    return run_on_mesh("flax_by_rules", run, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())

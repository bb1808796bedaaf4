"""Trains a small vision transformer on scikit-learn's images of digits.

The model is `models/vit.py`, cut to 8 x 8 pixels in patches of 2 x 2. Parameters and optimizer state are sharded over
mesh axis `data`, heads and hidden units over `model`. The accuracy on images that are held out is shown after each
epoch, and `--out` gets a plot of it with the digits that were misread.
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
from models.vit import Config, ViT
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.datasets import load_digits

import axonym as nym
from axonym import NamedArray


COMPUTE = {"batch": "data", "heads": "model", "mlp": "model"}
PARAMETERS = COMPUTE | {"embed": "data"}  # between steps
HELD_OUT = 384
TEXTS = "loss {task.fields[loss]:.3f}", "held-out accuracy {task.fields[accuracy]:.1%}"


def make_config(embed: int, layers: int) -> Config:
    axes = nym.make_axes(channels=1, rows=4, columns=4, patch_rows=2, patch_columns=2, layers=layers)
    heads = nym.make_axes(embed=embed, heads=4, head_dim=embed // 4, mlp=4 * embed, labels=10)
    return Config(*axes, *heads, eps=1e-6)


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns the images in a random order, with values around 0, and their labels."""
    digits: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return digits.images[order].astype(np.float32) / 8 - 0.6, digits.target[order]


def name_images(images: np.ndarray) -> NamedArray:
    return nym.shard(nym.named(images[:, None], ("batch", "channels", "height", "width")), COMPUTE)


def shift_images(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns the images moved sideways by up to a pixel, so that more of them are different."""
    windows = sliding_window_view(np.pad(images, ((0, 0), (0, 0), (1, 1))), 8, axis=2)
    columns = random.integers(0, 3, len(images))
    return windows[np.arange(len(images)), :, columns]


@nym.named_call
def compute_loss(model: ViT, images: NamedArray, labels: NamedArray) -> jax.Array:
    return nym.nn.cross_entropy_loss(model(images), "labels", labels).scalar()


def make_train_step(optimizer: Any) -> Any:
    @nym.fsdp(PARAMETERS, COMPUTE, donate_args=(True, True))
    def train_step(model: ViT, state: Any, images: NamedArray, labels: NamedArray) -> Any:
        loss, gradients = jax.value_and_grad(compute_loss)(model, images, labels)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    return train_step


@nym.fsdp(PARAMETERS, COMPUTE)
def read_labels(model: ViT, images: NamedArray) -> NamedArray:
    return model(images).argmax("labels")


def plot_results(path: Path, rows: list[dict[str, float]], images: np.ndarray, labels: np.ndarray) -> None:
    """Plots loss and accuracy by epoch, and up to twelve misread images with what was read."""
    figure = plt.figure(figsize=(9, 4), layout="constrained")
    parts: Any = figure.subfigures(1, 2)
    axis = parts[0].subplots()
    epochs = range(1, len(rows) + 1)
    axis.plot(epochs, [row["loss"] for row in rows], "o-", color="tab:blue", label="training loss")
    axis.plot(epochs, [1 - row["accuracy"] for row in rows], "o-", color="tab:orange", label="held-out images misread")
    axis.set(xlabel="epoch", yscale="log")
    axis.grid(alpha=0.3)
    axis.legend()
    parts[1].suptitle("misread" if len(images) else "none is misread")
    for number, axis in enumerate(parts[1].subplots(3, 4).flat):
        axis.axis("off")
        if number < len(images):
            axis.imshow(images[number], cmap="gray_r")
            axis.set_title(str(labels[number]), fontsize=9)
    save_figure(figure, path)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train_vit", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add_mesh_options(parser)
    add("--epochs", type=int, default=20, help="times that all images are seen; default %(default)s")
    add("--batch", type=int, default=64, help="images per step; default %(default)s")
    add("--layers", type=int, default=2, help="blocks; default %(default)s")
    add("--embed", type=int, default=64, help="width of the model; default %(default)s")
    add("--lr", type=float, default=5e-3, help="peak learning rate; default %(default)s")
    add("--seed", type=int, default=0, help="seed of parameters and batches; default %(default)s")
    add("--out", type=Path, default=Path("runs/train_vit"), help="folder for vit.png; default %(default)s")
    args = parser.parse_args(argv)
    check_positive(parser, args, "epochs", "batch", "layers", "embed", "devices")
    return args


def run(args: argparse.Namespace) -> None:
    images, labels = read_digits()
    count = len(images) - HELD_OUT
    steps = count // args.batch
    if not steps:
        raise ValueError(f"a batch of {args.batch} is more than the {count} images to train on; lower --batch")
    schedule = optax.warmup_cosine_decay_schedule(0.0, args.lr, steps, args.epochs * steps + 1)
    optimizer: Any = optax.adamw(schedule, weight_decay=0.1)
    train_step = make_train_step(optimizer)
    with nym.axis_mapping(PARAMETERS):
        model = nym.named_jit(ViT.init)(make_config(args.embed, args.layers), key=jax.random.key(args.seed))
        state = nym.named_jit(optimizer.init)(model)
    held_out, expected = name_images(images[count:]), labels[count:]
    predicted = np.full_like(expected, -1)
    random, rows = np.random.default_rng(args.seed), [{"loss": math.nan, "accuracy": math.nan}]
    with show_progress(args.epochs * steps, *TEXTS) as advance:
        for epoch in range(args.epochs):
            losses = []
            for indices in np.split(random.permutation(count)[: steps * args.batch], steps):
                batch_labels = nym.shard(nym.named(labels[indices], "batch"), COMPUTE)
                batch = name_images(shift_images(images[indices], random))
                model, state, loss = train_step(model, state, batch, batch_labels)
                losses.append(check_finite(float(loss), f"loss of epoch {epoch + 1}"))
                advance(loss=losses[-1], accuracy=rows[-1]["accuracy"])
            predicted = np.asarray(read_labels(model, held_out).array)
            rows.append({"loss": float(np.mean(losses)), "accuracy": float(np.mean(predicted == expected))})
    misread = predicted != expected
    console.print(f"held-out accuracy: {rows[-1]['accuracy']:.1%}, {misread.sum()} of {HELD_OUT} images are misread")
    plot_results(args.out / "vit.png", rows[1:], images[count:][misread], predicted[misread])


def main(argv: list[str] | None = None) -> int:
    return run_on_mesh("train_vit", run, parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())

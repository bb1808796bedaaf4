"""Draws the coordinate check of muP for the docs: `python tools/plot_coordinate_check.py` writes an SVG file.

Perceptrons of several widths take a few steps of Adam at one learning rate. Under the standard parametrization the
activations of wider ones grow faster; under muP they do not. The check is that of Yang et al., 2022, appendix D.1.
"""

import functools
import operator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import axonym as nym


PICTURE = Path(__file__).parents[1] / "docs" / "images" / "coordinate-check.svg"
WIDTHS = (64, 128, 256, 512, 1024, 2048)
STEPS = 4
LEARNING_RATE = 3e-3
BASE_WIDTH = 64
SEEDS = 4
LAYERS = ("input", "hidden", "output")
Batch, Feature, Label = nym.make_axes(batch=32, feature=16, label=10)


def make_model(width: int, parametrization: str, key: jax.Array) -> nym.nn.MLP:
    """Makes a perceptron with an input, a hidden and an output layer: `standard` or `muP`."""
    keys = jax.random.split(key, 3)
    Width, Next = nym.make_axes(width=width, next=width)
    if parametrization == "standard":
        first = nym.nn.Linear.init(Feature, Width, key=keys[0])
        second = nym.nn.Linear.init(Width, Next, key=keys[1])
        third = nym.nn.Linear.init(Next, Label, key=keys[2])
    else:
        first = nym.nn.InputLinear.init(Feature, Width, key=keys[0])
        second = nym.nn.HiddenLinear.init(Width, Next, key=keys[1], base_width=BASE_WIDTH)
        third = nym.nn.OutputLinear.init(Next, Label, key=keys[2], base_width=BASE_WIDTH)
    return nym.nn.MLP((first, second, third), nym.nn.relu)


def apply_layers(model: nym.nn.MLP, x: nym.NamedArray) -> list[nym.NamedArray]:
    """Returns the result of each layer, before its activation."""
    results = []
    for layer in model.layers:
        results.append(layer(x))
        x = model.activation(results[-1])
    return results


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def measure_changes(width: int, parametrization: str, steps: int, key: jax.Array) -> dict[str, jax.Array]:
    """Returns how far the results of each layer are from the first ones after some steps: the mean of their size."""
    x_key, y_key, model_key = jax.random.split(key, 3)
    x = nym.random.normal(x_key, (Batch, Feature))
    y = nym.random.randint(y_key, Batch, 0, Label.size)
    model: Any = make_model(width, parametrization, model_key)
    factors, optimizer = nym.nn.mup_learning_rates(model), optax.adam(LEARNING_RATE)
    first, state = apply_layers(model, x), optimizer.init(model)

    def compute_loss(model: nym.nn.MLP) -> jax.Array:
        return nym.nn.cross_entropy_loss(apply_layers(model, x)[-1], Label, y).scalar()

    def take_step(_: int, carry: tuple[nym.nn.MLP, Any]) -> tuple[nym.nn.MLP, Any]:
        model, state = carry
        updates, state = optimizer.update(jax.grad(compute_loss)(model), state)
        return eqx.apply_updates(model, jax.tree.map(operator.mul, factors, updates)), state

    model, _ = jax.lax.fori_loop(0, steps, take_step, (model, state))
    pairs = zip(LAYERS, apply_layers(model, x), first, strict=True)
    return {name: nym.mean(nym.abs(after - before)).scalar() for name, after, before in pairs}


def main() -> None:
    """Measures all widths and writes the picture."""
    import matplotlib.pyplot as plt  # of the extra `examples`

    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "axonym", "font.size": 9, "font.family": "sans-serif"}
    figure, plots = plt.subplots(1, 2, figsize=(7, 2.8), sharey=True, layout="constrained")
    keys = jax.random.split(jax.random.key(0), SEEDS)
    for plot, parametrization in zip(plots, ("standard", "muP"), strict=True):
        sizes = {name: [] for name in LAYERS}
        for width in WIDTHS:
            found = [measure_changes(width, parametrization, STEPS, key) for key in keys]
            for name in LAYERS:
                sizes[name].append(float(jnp.stack([each[name] for each in found]).mean()))
            print(parametrization, width, *(f"{name} {sizes[name][-1]:.3f}" for name in LAYERS))
        for name, color in zip(LAYERS, ("#0072b2", "#d55e00", "#009e73"), strict=True):
            plot.plot(WIDTHS, sizes[name], "o-", color=color, markersize=3, label=name)
        plot.set(xscale="log", yscale="log", xlabel="width", title=f"{parametrization} parametrization")
        plot.set_xticks(WIDTHS, map(str, WIDTHS))
        plot.minorticks_off()
    plots[0].set_ylabel(f"mean change after {STEPS} steps")
    plots[0].legend(title="result of layer", frameon=False)
    figure.savefig(PICTURE, metadata={"Date": None, "Title": "The coordinate check of muP"})


if __name__ == "__main__":
    main()

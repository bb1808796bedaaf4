"""Compiles train steps of the example for eight TPU v5e devices from their description alone, and saves the texts.

A separate program, because JAX looks for TPUs wherever it finds libtpu. Its argument is the folder for the
texts.
"""

import sys
from pathlib import Path
from typing import Any


sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import equinox as eqx
import jax
import train_lm
from jax.experimental import topologies

import axonym as nym


def make_zero_step(optimizer: Any) -> Any:
    """Returns a ZeRO step: parameters are replicated over `data`, the optimizer state is sharded over it."""

    @nym.named_jit(axis_resources=train_lm.COMPUTE, in_axis_resources=train_lm.COMPUTE, donate_args=(True, True))
    def train_step(model: Any, state: Any, inputs: nym.NamedArray, targets: nym.NamedArray) -> Any:
        loss, gradients = jax.value_and_grad(train_lm.compute_loss)(model, inputs, targets)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    return train_step


def compile_step(what: str, axis_types: str, devices: Any) -> str:
    """Returns the compiled "fsdp" or "zero" step on a mesh of this type."""
    axes = train_lm.make_axes(batch=8, seq=16, embed=512, layers=3)
    optimizer = train_lm.make_optimizer(train_lm.parse_args([]))
    make_step = train_lm.make_train_step
    if what == "zero":
        optimizer, make_step = nym.sharded_optimizer(optimizer, train_lm.PARAMETERS), make_zero_step
    mesh = nym.create_mesh((4, 2), ("data", "model"), axis_types=axis_types, devices=devices)
    with jax.set_mesh(mesh):
        model = jax.eval_shape(lambda: train_lm.Transformer.init(axes, key=jax.random.key(0)))
        batch = jax.eval_shape(lambda: nym.zeros((axes.batch, axes.pos), int))
        lowered = make_step(optimizer).lower(model, jax.eval_shape(optimizer.init, model), batch, batch)
        return lowered.compile().as_text()


def main(folder: str) -> None:
    devices = topologies.get_topology_desc("v5e:2x4", "tpu").devices
    for what, axis_types in (("fsdp", "auto"), ("fsdp", "explicit"), ("zero", "auto")):
        Path(folder, f"{what}-{axis_types}").write_text(compile_step(what, axis_types, devices))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Trains a small network with several processes, one for each host or GPU, that the files beside it launch.

Every process runs this program with the same options. It reads its own rows of each batch, and holds its own shards of
parameters, optimizer state and checkpoints. All processes see the folder of checkpoints. A run that was stopped goes on
from the newest one, with as many processes as there are then. On SIGTERM, with which clusters announce that they take a
machine away, all processes save after their step and exit with code 75, so that the launcher starts them again.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from rich.console import Console
from sklearn.datasets import load_digits

import axonym as nym
from axonym import NamedArray


COMPUTE = {"batch": "data", "mlp": "model"}
PARAMETERS = COMPUTE | {"mlp": ("model", "data")}  # between steps, and in checkpoints
OPTIMIZER: Any = optax.adam(3e-3)
STOPPED = os.EX_TEMPFAIL  # the exit code of a run that is to be started again


def init_state(width: int) -> dict[str, Any]:
    Pixel, Label = nym.make_axes(pixel=64, label=10)
    model = nym.nn.MLP.init(Pixel, Label, width=width, depth=1, key=jax.random.key(0))
    return {"model": model, "moments": OPTIMIZER.init(model), "step": 0}


def compute_loss(model: Any, x: NamedArray, y: NamedArray) -> jax.Array:
    return nym.nn.cross_entropy_loss(model(x), "label", y).scalar()


@nym.fsdp(PARAMETERS, COMPUTE, donate_args=(True, True))
def train_step(model: Any, moments: Any, x: NamedArray, y: NamedArray) -> Any:
    loss, gradients = jax.value_and_grad(compute_loss)(model, x, y)
    updates, moments = OPTIMIZER.update(gradients, moments)
    return eqx.apply_updates(model, updates), moments, loss


class Digits:
    """Batches of scikit-learn's digits, of which a process reads the rows of its devices."""

    def __init__(self, size: int) -> None:
        self.images, self.labels = load_digits(return_X_y=True)
        self.size = size
        self.positions = nym.data.find_local_rows(nym.Axis("batch", size), COMPUTE).positions

    def read(self, step: int) -> tuple[NamedArray, NamedArray]:
        """Returns the batch of a step, which is the same for any number of processes."""
        indices = np.random.default_rng(step).integers(0, len(self.labels), self.size)[self.positions]
        images = NamedArray((self.images[indices] / 16).astype(np.float32), ("batch", "pixel"))
        labels = NamedArray(self.labels[indices].astype(np.int32), ("batch",))
        return nym.host_local_to_global((images, labels), COMPUTE, check=step == 0)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--mesh", default="data:-1,model:1", help="sizes of the mesh axes; default %(default)s")
    add("--steps", type=int, default=100, help="number of steps; default %(default)s")
    add("--batch", type=int, default=128, help="images per step, of all processes; default %(default)s")
    add("--width", type=int, default=128, help="hidden units; default %(default)s")
    add("--save-every", type=int, default=20, help="steps between checkpoints; default %(default)s")
    add("--out", type=Path, default=Path("runs/multi_host"), help="a folder that all hosts see; default %(default)s")
    add("--devices", type=int, default=4, help="virtual CPU devices per process, without GPUs and TPUs; default 4")
    add("--single", action="store_true", help="run as the only process")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Trains on the active mesh, and returns the exit code."""
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    console = Console(highlight=False, quiet=jax.process_index() != 0, width=120)
    digits, loss, is_stopped = Digits(args.batch), float("nan"), False
    with nym.checkpoint.Checkpointer(args.out / "checkpoints", max_to_keep=2) as saves:
        if saves.steps:
            state = saves.restore(eqx.filter_eval_shape(init_state, args.width), mapping=PARAMETERS)
            state = {**state, "step": int(state["step"])}
            console.print(f"goes on from step {state['step']}")
        else:
            state = nym.named_jit(init_state, PARAMETERS)(args.width)
        while state["step"] < args.steps and not is_stopped:
            model, moments, loss = train_step(state["model"], state["moments"], *digits.read(state["step"]))
            state = {"model": model, "moments": moments, "step": state["step"] + 1}
            is_stopped = bool(np.any(multihost_utils.process_allgather(np.array(bool(signals)))))
            if is_stopped or state["step"] in (args.steps, *range(0, args.steps, args.save_every)):
                saves.save(state, state["step"])
                console.print(f"step {state['step']}: loss {float(loss):.4f}, saved")
    nym.barrier_sync(60, "the end")
    if is_stopped and state["step"] < args.steps:
        console.print(f"stopped at step {state['step']} of {args.steps}")
        return STOPPED
    return 0


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    jax.config.update("jax_num_cpu_devices", args.devices)
    if not args.single:
        nym.initialize()
    mesh = nym.parse_mesh_from_string(args.mesh, ("data", "model"))
    nym.assert_same_on_all_hosts((vars(args), mesh), "options and mesh")
    if jax.process_index() == 0:
        sizes = ", ".join(f"{name}: {size}" for name, size in mesh.shape.items())
        print(f"mesh ({sizes}) of {jax.process_count()} processes", flush=True)
    with jax.set_mesh(mesh):
        return run(args)


if __name__ == "__main__":
    sys.exit(main())

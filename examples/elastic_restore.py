"""Kills a program that trains and saves, and goes on from its newest checkpoint on another mesh.

The first process trains the network of `multi_host/train.py` on `--mesh`, and saves its state every few steps. It is
killed without warning. The second one restores the newest complete checkpoint onto `--then`, a mesh of another form and
number of devices: each device reads the parts that it needs. Batches are drawn by the number of the step, so the losses
go on as those of a run that nobody has killed.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from bookkeeping import check_positive, console, open_folder, plot_curves
from multi_host.train import PARAMETERS, Digits, init_state, train_step

import axonym as nym


def train(state: dict[str, Any], steps: int) -> Iterator[tuple[dict[str, Any], float]]:
    """Yields the state after each of the remaining steps, with the loss."""
    digits = Digits(128)
    while state["step"] < steps:
        model, moments, loss = train_step(state["model"], state["moments"], *digits.read(state["step"]))
        state = {"model": model, "moments": moments, "step": state["step"] + 1}
        yield state, float(loss)


def work(args: argparse.Namespace) -> None:
    """Trains from the newest checkpoint, or from the beginning, and prints a line of JSON for each step."""
    count = nym.create_abstract_mesh(args.mesh, ("data", "model")).size
    jax.config.update("jax_num_cpu_devices", count)
    mesh = nym.parse_mesh_from_string(args.mesh, ("data", "model"), devices=jax.devices()[:count])
    with jax.set_mesh(mesh), nym.checkpoint.Checkpointer(args.out / "checkpoints", max_to_keep=2) as saves:
        if saves.steps:
            state = saves.restore(eqx.filter_eval_shape(init_state, args.width), mapping=PARAMETERS)
        else:
            state = nym.named_jit(init_state, PARAMETERS)(args.width)
        weight = state["model"].layers[0].weight
        part = weight.array.sharding.shard_shape(weight.array.shape)
        description = f"{eqx.tree_pformat(weight)}, {part} on each of {count} devices"
        print(json.dumps({"start": int(state["step"]), "weight": description}), flush=True)
        for trained, loss in train({**state, "step": int(state["step"])}, args.steps):
            print(json.dumps({"step": trained["step"], "loss": loss}), flush=True)
            if trained["step"] % args.save_every == 0:
                saves.save(trained, trained["step"])


def run_worker(args: argparse.Namespace, mesh: str, kill_after: int | None) -> list[dict[str, Any]]:
    """Returns what a process of its own printed on this mesh.

    With `kill_after` it is killed after this step, once there is a checkpoint.
    """
    options = {"mesh": mesh, "steps": args.steps, "save-every": args.save_every, "width": args.width, "out": args.out}
    command = [sys.executable, __file__, "--worker", *(f"--{name}={value}" for name, value in options.items())]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        for line in worker.stdout or ():
            rows.append(json.loads(line))
            if kill_after is not None and rows[-1].get("step", 0) >= kill_after and list_saved_steps(args.out):
                worker.kill()
    if worker.returncode and (kill_after is None or worker.returncode > 0):
        raise ValueError(f"the process on {mesh} ended with {worker.returncode}; its error is above")
    return rows


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="elastic_restore", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--mesh", default="data:4,model:2", help="mesh of the process that is killed; default %(default)s")
    add("--then", default="data:1,model:4", help="mesh of the one that goes on; default %(default)s")
    add("--steps", type=int, default=200, help="number of steps; default %(default)s")
    add("--kill-after", type=int, default=90, help="step after which the first process is killed; default %(default)s")
    add("--save-every", type=int, default=20, help="steps between checkpoints; default %(default)s")
    add("--width", type=int, default=64, help="hidden units; default %(default)s")
    add("--out", type=Path, default=Path("runs/elastic_restore"), help="folder of results; default %(default)s")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    check_positive(parser, args, "steps", "kill_after", "save_every", "width")
    return args


def run(args: argparse.Namespace) -> None:
    open_folder(args.out, {"steps": args.steps, "width": args.width}, resume=False)
    killed = run_worker(args, args.mesh, args.kill_after)
    console.print(f"on {args.mesh}: {killed[0]['weight']}", markup=False)
    saved = " and ".join(map(str, list_saved_steps(args.out)))
    console.print(f"killed after step {killed[-1]['step']}, with checkpoints of step {saved}")
    resumed = run_worker(args, args.then, None)
    console.print(f"on {args.then}: {resumed[0]['weight']}", markup=False)
    with jax.set_mesh(nym.create_mesh({"data": 1, "model": 1}, devices=jax.devices()[:1])):
        state = nym.named_jit(init_state, PARAMETERS)(args.width)
        expected = dict(enumerate((loss for _, loss in train(state, args.steps)), 1))
    losses = {row["step"]: row["loss"] for row in (*killed[1:], *resumed[1:])}
    difference = max(abs(losses[step] - expected[step]) for step in expected)
    console.print(
        f"went on from step {resumed[0]['start']} to {resumed[-1]['step']}; all losses are within {difference:.0e} of "
        "those of a run on one device that was not killed"
    )
    curves = {
        "not killed": expected,
        f"{args.mesh}, killed": row_losses(killed),
        f"then {args.then}": row_losses(resumed),
    }
    plot_curves(args.out / "loss.png", {name: list(curve.items()) for name, curve in curves.items()}, "loss")


def list_saved_steps(out: Path) -> list[int]:
    with nym.checkpoint.Checkpointer(out / "checkpoints", read_only=True) as saves:
        return saves.steps


def row_losses(rows: list[dict[str, Any]]) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in rows[1:]}


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        (work if args.worker else run)(args)
    except (ValueError, OSError) as error:
        print(f"elastic_restore: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

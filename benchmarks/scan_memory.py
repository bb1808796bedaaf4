"""What a step of stacked layers keeps in memory under each checkpoint policy, next to the same loop written by hand.

    python -m benchmarks.scan_memory [--tpu] [--layers 12] [--batch 8] [--pos 2048] [--embed 256]

Prints the table of docs/scanning.md. "Saved" is what the forward pass saves for the backward pass besides arguments, as
`jax.ad_checkpoint.print_saved_residuals` lists it; "temporary" is what the compiled gradient needs besides arguments
and results, by `memory_analysis`, for the CPU or, with `--tpu`, for a described TPU v5e. The latter needs libtpu
(`make tpu`, and `PYTHONPATH=.venv/tpu`), but no TPU. Nothing is run.
"""

import argparse
import contextlib
import functools
import io
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import axonym as nym
from axonym import ScanCheckpointPolicy
from axonym.planner._compiler._compiler_process import LIBTPU_ENVIRONMENT


ROOT = Path(__file__).parents[1]
cp = jax.checkpoint_policies
Loop = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Sizes:
    layers: int = 12
    batch: int = 8
    pos: int = 2048
    embed: int = 256

    @property
    def shape(self) -> dict[str, int]:
        return {"batch": self.batch, "pos": self.pos, "embed": self.embed}


@dataclass(frozen=True)
class Memory:
    """Bytes that are saved for the backward pass, and that the compiled gradient needs, on the device and the host."""

    saved: int
    saved_on_host: int
    temporary: int
    temporary_on_host: int


class Block(eqx.Module):
    """Half of a transformer layer: a norm, and two products with a named value between them."""

    norm: nym.nn.RmsNorm
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(embed: nym.Axis, mlp: nym.Axis, *, key: jax.Array) -> "Block":
        make = functools.partial(nym.nn.Linear.init, use_bias=False, out_first=False)
        keys = jax.random.split(key)
        return Block(nym.nn.RmsNorm.init(embed), make(embed, mlp, key=keys[0]), make(mlp, embed, key=keys[1]))

    def __call__(self, x: nym.NamedArray) -> nym.NamedArray:
        hidden = nym.tree_checkpoint_name(self.up(self.norm(x)), "hidden")
        return x + self.down(nym.nn.gelu(hidden))


def apply_by_hand(parameters: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Computes the same as `Block`."""
    scaled = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * parameters["norm"]
    hidden = checkpoint_name(jnp.dot(scaled, parameters["up"]), "hidden")
    return x + jnp.dot(jax.nn.gelu(hidden), parameters["down"])


def scan_by_hand(step: Callable[..., Any], policy: Any = None, *, remat: bool = True, names: str = "") -> Loop:
    """Returns a loop of `jax.lax.scan` whose step has a policy; `names` of its carry and inputs are given if asked."""

    def run_step(x: Any, parameters: Any) -> Any:
        x = checkpoint_name(x, "carry") if "carry" in names else x
        inputs = jax.tree.map(lambda array: checkpoint_name(array, "inputs"), parameters)
        return step(inputs if "inputs" in names else parameters, x), None

    body = jax.checkpoint(run_step, policy=policy, prevent_cse=False) if remat else run_step
    return lambda parameters, x: jax.lax.scan(body, x, parameters)[0]


def nest_by_hand(inner: int, policy: Any = None, names: str = "") -> Loop:
    """Returns nested loops of `jax.lax.scan`, in which the outer one saves its carries."""
    block = scan_by_hand(apply_by_hand)

    def run(parameters: Any, x: Any) -> Any:
        blocks = jax.tree.map(lambda array: array.reshape(-1, inner, *array.shape[1:]), parameters)
        return scan_by_hand(block, policy, names=names)(blocks, x)

    return run


def offload(*names: str) -> Any:
    return cp.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=names, offload_src="device", offload_dst="pinned_host"
    )


# What is passed to `Stacked.init` as `gradient_checkpointing=`, and the same by hand.
POLICIES: dict[str, tuple[Any, Loop]] = {
    "False": (False, scan_by_hand(apply_by_hand, remat=False)),
    "True": (True, scan_by_hand(apply_by_hand)),
    '"full"': ("full", jax.checkpoint(scan_by_hand(apply_by_hand))),
    '"nested"': ("nested", nest_by_hand(4)),
    "Policy(nested=3)": (ScanCheckpointPolicy(nested=3), nest_by_hand(3)),
    '"offload"': ("offload", scan_by_hand(apply_by_hand, offload("carry"), names="carry")),
    'Policy(save_carries="offload", nested=True)': (
        ScanCheckpointPolicy(save_carries="offload", nested=True),
        nest_by_hand(4, offload("carry"), names="carry"),
    ),
    "Policy(save_inputs=True)": (
        ScanCheckpointPolicy(save_inputs=True),
        scan_by_hand(apply_by_hand, cp.save_only_these_names("inputs"), names="inputs"),
    ),
    'Policy(save_inputs="offload")': (
        ScanCheckpointPolicy(save_inputs="offload"),
        scan_by_hand(apply_by_hand, offload("inputs"), names="inputs"),
    ),
    'Policy(save_block_internals=["hidden"])': (
        ScanCheckpointPolicy(save_block_internals=["hidden"]),
        scan_by_hand(apply_by_hand, cp.save_only_these_names("hidden")),
    ),
    'Policy(offload_block_internals=["hidden"])': (
        ScanCheckpointPolicy(offload_block_internals=["hidden"]),
        scan_by_hand(apply_by_hand, offload("hidden")),
    ),
    "jax.checkpoint_policies.dots_saveable": (cp.dots_saveable, scan_by_hand(apply_by_hand, cp.dots_saveable)),
    '"save_all"': ("save_all", scan_by_hand(apply_by_hand, cp.everything_saveable)),
    "Policy(simple=True)": (ScanCheckpointPolicy(simple=True), scan_by_hand(apply_by_hand)),
    "Policy(disable=True)": (ScanCheckpointPolicy(disable=True), scan_by_hand(apply_by_hand, remat=False)),
}


def make_loops(policy: str, sizes: Sizes) -> dict[str, tuple[Callable[..., Any], Any, Any]]:
    """Returns the loop with a policy in both forms: a function of parameters and input, and the shapes of these."""
    remat, by_hand = POLICIES[policy]
    layers, embed, mlp = nym.make_axes(layers=sizes.layers, embed=sizes.embed, mlp=4 * sizes.embed)
    make = functools.partial(nym.nn.Stacked.init(layers, Block), embed, mlp)
    stacked = jax.eval_shape(make, key=jax.random.key(0)).stacked
    x = jax.eval_shape(lambda: nym.zeros(sizes.shape))
    arrays = {name: getattr(stacked, name).weight.array for name in ("norm", "up", "down")}
    return {
        "Axonym": (lambda stacked, x: nym.nn.Stacked(stacked, layers, remat).fold(x).array, stacked, x),
        "JAX": (by_hand, arrays, x.array),
    }


def measure_memory(fn: Callable[..., Any], parameters: Any, x: Any, device: Any = None) -> Memory:
    """Measures a loop, compiled for a device, which may be a described one."""
    if device is not None:
        sharding = NamedSharding(Mesh([device], "device"), PartitionSpec())
        parameters, x = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), (parameters, x)
        )
    loss = lambda parameters, x: jnp.square(fn(parameters, x)).sum()  # noqa: E731
    compiled = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(parameters, x).compile()
    analysis: Any = compiled.memory_analysis()
    listed = io.StringIO()
    with contextlib.redirect_stdout(listed):
        print_saved_residuals(fn, parameters, x)
    saved = {False: 0, True: 0}
    for line in listed.getvalue().splitlines():
        on_host, size = _parse_residual(line)
        saved[on_host] += size
    return Memory(saved[False], saved[True], analysis.temp_size_in_bytes, analysis.host_temp_size_in_bytes)


def _parse_residual(line: str) -> tuple[bool, int]:
    """Returns whether what JAX lists in a line is on the host, and its bytes, none for an argument."""
    found = re.match(r"(?P<dtype>\w+?)(?P<bits>\d+)(?P<host><host>)?\[(?P<shape>[\d,]*)\] (?P<what>.*)", line)
    assert found, line
    if "from the argument" in found["what"]:
        return False, 0
    shape = [int(size) for size in found["shape"].split(",") if size]
    return bool(found["host"]), math.prod(shape) * int(found["bits"]) // 8


def print_table(policies: Sequence[str], sizes: Sizes, device: Any) -> None:
    print("| `gradient_checkpointing=` | saved | saved on the host | temporary | temporary on the host | by hand |")
    print("|---|---|---|---|---|---|", flush=True)
    for policy in policies:
        both = {who: measure_memory(*loop, device=device) for who, loop in make_loops(policy, sizes).items()}
        own, by_hand = both["Axonym"], both["JAX"]
        figures = [own.saved, own.saved_on_host, own.temporary, own.temporary_on_host]
        same = "the same" if own == by_hand else f"temporary {by_hand.temporary / 2**20:,.0f}"
        print(f"| `{policy}` |", *(f"{figure / 2**20:,.0f} |" for figure in figures), f"{same} |", flush=True)


def describe_tpu() -> Any:
    """Returns a TPU v5e from its description."""
    from jax.experimental import topologies

    return topologies.get_topology_desc("v5e:2x4", "tpu").devices[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tpu", action="store_true")
    parser.add_argument("--policy", nargs="*", choices=POLICIES, default=list(POLICIES))
    for name, default in vars(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args())
    tpu, policies = options.pop("tpu"), options.pop("policy")
    os.environ.update(JAX_PLATFORMS="cpu")
    if tpu:
        os.environ.update(LIBTPU_ENVIRONMENT)
    jax.config.update("jax_platforms", "cpu")
    print_table(policies, Sizes(**options), describe_tpu() if tpu else None)


if __name__ == "__main__":
    main()

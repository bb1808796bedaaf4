"""The train step of the example, compiled for TPUs that are described and not there: what it sends between them.

CPUs run an all-reduce and cut its result where TPUs have a reduce-scatter, so only a program for TPUs shows these.
"""

import collections
import os
from typing import Any

import equinox as eqx
import jax
import pytest

import axonym as nym

from ..hlo import Collective, Program


needs_libtpu = pytest.mark.skipif(
    not os.environ.get("AXONYM_LIBTPU"), reason="This needs libtpu: `make tpu` installs it."
)
# The matrices of one layer as each of the 4 x 2 devices keeps them (embed 512, 16 heads of 32, mlp 1536), then both
# tables. Vectors are not among them: XLA sums such small arrays whole.
LAYER = [(8, 32, 128)] * 3 + [(128, 8, 32)] + [(768, 128)] * 2 + [(128, 768)]
TABLES = [(128, 128)] * 2
GATHERED = [(1, 8, 32, 512)] * 3 + [(1, 512, 8, 32)] + [(1, 768, 512)] * 2 + [(1, 512, 768)]


def make_zero_step(train_lm: Any, optimizer: Any) -> Any:
    """Returns a ZeRO step: parameters are replicated over `data`, the optimizer state is sharded over it."""

    @nym.named_jit(axis_resources=train_lm.COMPUTE, in_axis_resources=train_lm.COMPUTE, donate_args=(True, True))
    def train_step(model: Any, state: Any, inputs: nym.NamedArray, targets: nym.NamedArray) -> Any:
        loss, gradients = jax.value_and_grad(train_lm.compute_loss)(model, inputs, targets)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    return train_step


def list_collectives(train_lm: Any, what: str, axis_types: str) -> list[Collective]:
    """Returns what the compiled "fsdp" or "zero" step sends between TPUs on a mesh of this type."""
    axes = train_lm.make_axes(batch=8, seq=16, embed=512, layers=3)
    optimizer = train_lm.make_optimizer(train_lm.parse_args([]))
    if what == "zero":
        optimizer = nym.sharded_optimizer(optimizer, train_lm.PARAMETERS)
        step = make_zero_step(train_lm, optimizer)
    else:
        step = train_lm.make_train_step(optimizer)
    devices = nym.planner.described_devices("v5e:2x4")
    mesh = nym.create_mesh((4, 2), ("data", "model"), axis_types=axis_types, devices=devices)
    with jax.set_mesh(mesh):
        model = jax.eval_shape(lambda: train_lm.Transformer.init(axes, key=jax.random.key(0)))
        batch = jax.eval_shape(lambda: nym.zeros((axes.batch, axes.pos), int))
        arguments = model, jax.eval_shape(optimizer.init, model), batch, batch
        program = nym.planner.compile_for(step, *arguments, cache=False)
    return Program(program.text).collectives()


def shapes(collectives: list[Collective], kind: str, in_loop: bool) -> collections.Counter[tuple[int, ...]]:
    """Returns how often a kind gives an array of each shape."""
    chosen = [one for one in collectives if (one.kind, one.in_loop) == (kind, in_loop)]
    return collections.Counter(array.shape for one in chosen for array in one.results)


def check_gradients(found: list[Collective]) -> None:
    """Checks that each device gets the sum of its own part of each matrix's gradient, and none is summed whole."""
    assert shapes(found, "reduce-scatter", in_loop=True) == collections.Counter(LAYER)
    assert shapes(found, "reduce-scatter", in_loop=False) == collections.Counter(TABLES)
    for in_loop in (True, False):
        assert set(shapes(found, "all-reduce", in_loop)) <= {(2, 16, 512), (2, 16), (512,), ()}


@needs_libtpu
@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_fsdp_gathers_each_layer_and_scatters_its_gradients(axis_types: str, train_lm: Any):
    found = list_collectives(train_lm, "fsdp", axis_types)
    check_gradients(found)
    gathered = shapes(found, "all-gather", in_loop=True)
    assert gathered - collections.Counter({(1, 512): 4}) == collections.Counter(GATHERED * 2)  # forwards, backwards


@needs_libtpu
def test_divided_optimizer_state_scatters_gradients_and_gathers_updates(train_lm: Any):
    found = list_collectives(train_lm, "zero", "auto")
    check_gradients(found)
    assert not shapes(found, "all-gather", in_loop=True), "Parameters that are whole are gathered."
    whole = {(3, *shape[1:]) for shape in GATHERED} | {(128, 512)}
    assert whole <= set(shapes(found, "all-gather", in_loop=False))

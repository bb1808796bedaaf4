"""What pipelines, rings and experts send in programs for described TPUs, against the formulas of the documentation."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as nym
from axonym.nn import Linear, MixtureOfExperts, PipelineSchedule, Stacked
from axonym.planner import communication_report, compile_for

from .test_compile_for import needs_libtpu


pytestmark = needs_libtpu
Layers, Batch, Pos, Embed, Mlp = nym.make_axes(layers=4, batch=16, pos=256, embed=256, mlp=512)


class Block(eqx.Module):
    up: Linear
    down: Linear

    @staticmethod
    def init(*, key: jax.Array) -> "Block":
        up = Linear.init(Embed, Mlp, key=key, use_bias=False, dtype=jnp.bfloat16)
        return Block(up, Linear.init(Mlp, Embed, key=key, use_bias=False, dtype=jnp.bfloat16))

    def __call__(self, x: nym.NamedArray) -> nym.NamedArray:
        return x + self.down(nym.nn.gelu(self.up(x)))


def report_collectives(step: Any, *args: Any, **sizes: int) -> list[Any]:
    """Returns the collectives of a program for a TPU that send more than the sum of a loss does."""
    mesh = {"sizes": tuple(sizes.values()), "names": tuple(sizes)}
    devices = nym.planner.described_devices("v5p:2x2x2")
    described = nym.create_mesh(mesh["sizes"], mesh["names"], devices=devices, axis_types="explicit")
    program = compile_for(step, *args, devices="v5p:2x2x2", mesh=described, cache=False)
    return [collective for collective in communication_report(program).collectives if collective.bytes > 4096]


def select(collectives: list[Any], kind: str, mesh_axis: str) -> list[tuple[int, int]]:
    """Returns how often each collective of a kind over a mesh axis runs, and its bytes in all."""
    return [(x.runs, x.bytes) for x in collectives if x.kind == kind and x.mesh_axes == (mesh_axis,)]


@pytest.mark.parametrize(("stages", "microbatches", "repeats"), [(2, 4, 2), (4, 4, 1)])
def test_a_pipeline_sends_activations_each_turn_and_gradients_once(stages: int, microbatches: int, repeats: int):
    def compute_loss(stack: Any, x: Any) -> Any:
        return nym.mean(stack.fold(x.rename({"inputs": "embed"})).astype(jnp.float32) ** 2).scalar()

    stack = eqx.filter_eval_shape(Stacked.init(Layers, Block, gradient_checkpointing=True), key=jax.random.key(0))
    stack = dataclasses.replace(stack, interleaving=(stages, repeats) if repeats > 1 else (1, 1))
    x = eqx.filter_eval_shape(lambda: nym.zeros((Batch, Pos, Embed.alias("inputs")), dtype=jnp.bfloat16))
    computing, policy = {"batch": "data", "layers": "stage"}, nym.Policy(microbatches={"batch": microbatches})
    step = nym.fsdp(jax.value_and_grad(compute_loss), computing | {"embed": "data"}, computing, policy=policy)
    data = 8 // stages
    collectives = report_collectives(step, stack, x, stage=stages, data=data)

    turns = PipelineSchedule(stages, microbatches, repeats).turns
    carry_bytes = Batch.size // microbatches // data * Pos.size * Embed.size * 2
    assert select(collectives, "collective-permute", "stage") == [(turns, turns * carry_bytes)] * 2
    # What the last stage has computed. The gradient of the input is not asked for.
    assert select(collectives, "all-reduce", "stage") == [(1, microbatches * carry_bytes)]
    weight_bytes = Layers.size // stages * Embed.size * Mlp.size * 2
    assert select(collectives, "all-gather", "data") == [(1, weight_bytes)] * 2
    scatters = select(collectives, "reduce-scatter", "data") + select(collectives, "all-reduce", "data")
    assert [runs for runs, _ in scatters] == [1] * len(scatters)
    assert {x.kind for x in collectives} <= {"collective-permute", "all-reduce", "all-gather", "reduce-scatter"}


@pytest.mark.parametrize("dispatch", ["gather", "all_to_all", "ragged_all_to_all"])
def test_experts_exchange_tokens_alone(dispatch: Any):
    Experts = nym.Axis("experts", 8)
    mapping = {"batch": ("data", "expert"), "experts": "expert"}
    make = MixtureOfExperts.init
    capacity_factor = 1.0 if dispatch == "all_to_all" else None
    options: Any = {"dispatch": dispatch, "capacity_factor": capacity_factor, "capacity_axis": "pos"}
    layer = eqx.filter_eval_shape(lambda: make(Embed, Mlp, Experts, 2, key=jax.random.key(0), **options))
    x = eqx.filter_eval_shape(lambda: nym.zeros((Batch, Pos, Embed)))
    step = nym.named_jit(lambda layer, x: layer(x)[0], mapping, in_axis_resources=mapping)
    collectives = report_collectives(step, layer, x, data=2, expert=4)
    assert {x.mesh_axes for x in collectives} == {("expert",)}
    assert not any("experts" in x.axes and "mlp" in x.axes for x in collectives)

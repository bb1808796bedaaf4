import json

import jax
import jax.numpy as jnp
import pytest

import axonym as nym
from axonym.planner import memory_report
from tests.planner.programs import COMPUTE, STORED, Batch, Block, Embed, Layers, Mlp, make_mesh, update


X = nym.NamedArray(jax.ShapeDtypeStruct((Batch.size, Embed.size), jnp.float32), ("batch", "inputs"))
WEIGHTS = 2 * Layers.size * Embed.size * Mlp.size * 4 // 8  # both are sharded over all devices
ROWS = Layers.size * Batch.size // 2 * 512 * 4  # of each layer and half of the batch, 512 numbers


def report_update(checkpointing, **options):
    make = nym.nn.Stacked.init(Layers, Block, gradient_checkpointing=checkpointing)
    stack = jax.eval_shape(lambda: make(key=jax.random.key(0)))
    with jax.set_mesh(make_mesh("cpu")):
        return memory_report(nym.fsdp(update, STORED, COMPUTE, **options), stack, X)


def test_arguments_and_saved_activations_are_counted():
    report = report_update(True)
    assert report.arguments == {"stack": WEIGHTS, "x": Batch.size // 2 * Embed.size * 4}
    assert [(one.layer, one.operation, one.bytes) for one in report.saved] == [("", "", ROWS)]
    assert report.gradients == WEIGHTS
    assert report.results >= WEIGHTS + 4
    assert report.total == sum(report.arguments.values()) + report.results + report.temporaries + report.program
    assert "saved for the backward pass  256 KiB  f32[4, 32, 512]  input of the layer" in str(report)


def test_saved_activations_follow_the_policy():
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    saved = {one.operation: one.bytes for one in report_update(policy).saved}
    assert saved == {"": ROWS, "dot(embed -> mlp)": ROWS}
    saved = {(one.layer, one.operation): one.bytes for one in report_update(False).saved}
    # Without checkpointing, gathered weights are saved too, which the report shows first.
    assert [*saved.values()][:2] == [Layers.size * Embed.size * Mlp.size // 4 * 4] * 2
    assert {("Stacked/up", "gather(mlp, embed)"), ("Stacked/down", "gather(embed, mlp)")} == {*[*saved][:2]}


def test_donated_arguments_are_counted_once():
    report = report_update(True, donate_args=(True, False))
    assert report.donated == WEIGHTS
    held = sum(report.arguments.values()) + report.results + report.temporaries + report.program
    assert report.total == held - WEIGHTS
    assert "4 MiB in the memory of donated arguments" in str(report)
    assert json.loads(report.to_json())["donated"] == WEIGHTS


def test_other_functions_have_reports_too():
    fn = jax.jit(lambda x, scale: x * scale)
    expected = {"x": 32, "scale": 4}
    assert memory_report(fn, jnp.ones(8), 2.0).arguments == expected
    assert memory_report(fn.lower(jnp.ones(8), 2.0)).arguments == {"0": 32, "1": 4}
    assert memory_report(fn.lower(jnp.ones(8), 2.0).compile()).results == 32
    assert memory_report(lambda **kwargs: kwargs["y"], y=nym.ones({"a": 4})).arguments == {"y": 16}
    with pytest.raises(TypeError, match="it was str"):
        memory_report("text")

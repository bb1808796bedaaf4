"""Layers whose axis is mapped: a pipeline of stages, against the same layers on one device."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.nn import BlockSeq, Linear, PipelineSchedule, RmsNorm, Stacked

from ..refusals import refusal
from .conftest import Draw


Layers, Embed, Mlp, Batch, Pos = nym.make_axes(layers=4, embed=8, mlp=16, batch=8, pos=4)
MAPPING = {"batch": "data", "layers": "stage", "mlp": "model"}
AXES = ("stage", "data", "model")


class Block(eqx.Module):
    up: Linear
    down: Linear
    bias: jax.Array

    @staticmethod
    def init(*, key):
        up_key, down_key, bias_key = jax.random.split(key, 3)
        bias = jax.random.normal(bias_key, (Embed.size,))
        return Block(Linear.init(Embed, Mlp, key=up_key), Linear.init(Mlp, Embed, key=down_key), bias)

    def __call__(self, x, factor, gate):
        change = (self.down(nym.tanh(self.up(x))) + nym.named(self.bias, "embed")) * factor * gate
        return x + change, {"size": (change**2).mean(), "change": change.sum("embed"), "plain": change.mean().array}


DRAW = Draw(0)
BLOCKS = DRAW.layer(Stacked.init(Layers, Block, gradient_checkpointing=True))
X, GATES = DRAW(Batch, Pos, Embed.alias("input")), DRAW(Batch)
FACTORS = DRAW(Layers, Batch)  # of each layer and example


def compute_loss(blocks, x, factors, gates):
    def step(block, carry, factor, *, gate):
        x, total, count = carry
        x, result = block(x, factor, gate)
        return (x, total + result["size"], count + 1), result | {"label": "a block"}

    (x, total, count), results = blocks.scan_via(step)(
        (x.rename({"input": "embed"}), nym.named(0.0, ()), 0), factors, gate=gates
    )
    loss = (x**2).mean() + total / 8 + (results["change"] ** 2).mean()
    return loss.scalar() + results["plain"].mean(), (x.rename({"embed": "input"}), count, results)


def differentiate(*args):
    return eqx.filter_value_and_grad(lambda args: compute_loss(*args), has_aux=True)(args)


differentiate_on_one_device = eqx.filter_jit(differentiate)


def assert_close(results, expected):
    assert jax.tree.structure(results) == jax.tree.structure(expected)
    for result, value in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        if isinstance(value, str):
            assert result == value
            continue
        np.testing.assert_allclose(np.asarray(result), np.asarray(value), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "axis_types", "microbatches", "repeats"),
    [
        pytest.param((2, 2, 2), "auto", 4, 1, marks=pytest.mark.thorough),
        ((2, 2, 2), "explicit", 2, 2),
        pytest.param((4, 2, 1), "explicit", 4, 1, marks=pytest.mark.thorough),
    ],
)
def test_stages_compute_what_one_device_computes(sizes, axis_types, microbatches, repeats):
    expected = differentiate_on_one_device(BLOCKS, X, FACTORS, GATES)
    stored = {**MAPPING, "embed": "data"}
    with jax.set_mesh(nym.create_mesh(sizes, AXES, axis_types=axis_types)):
        policy = nym.Policy(microbatches={"batch": microbatches})
        step = nym.fsdp(differentiate, stored, MAPPING, policy=policy)
        inputs = nym.shard((X, FACTORS, GATES), MAPPING)
        interleaved = nym.shard(BLOCKS.interleave(sizes[0], repeats), stored)
        value, (gradients, *others) = step(interleaved, *inputs)
        assert gradients.interleaving == interleaved.interleaving
        assert "stage" in str(gradients.stacked.up.weight.array.sharding.spec)
        results = value, (gradients.interleave(1, 1), *others)
    assert_close(results, expected)


def test_the_batch_may_be_sharded_over_the_stages_of_a_sequence_outside_of_them():
    def step(bias, x, factor, *, gate):
        change = nym.sin(x + bias) * factor * gate
        return x + change, {"size": (change**2).mean(), "change": change.sum("embed"), "plain": change.mean().array}

    @eqx.filter_value_and_grad(has_aux=True)
    def differentiate(args):
        layers, x, factors, gates = args
        x, results = layers.scan_via(step)(x.rename({"input": "embed"}), factors, gate=gates)
        loss = (x**2).mean() + results["size"].mean() + (results["change"] ** 2).mean()
        return loss.scalar() + results["plain"].mean(), (x, results)

    stack = Stacked(DRAW(Layers, Embed), Layers, True)
    expected = eqx.filter_jit(differentiate)((stack, X, FACTORS, GATES))
    blocks = BlockSeq(stack.unstacked(), Layers, True)
    mesh = nym.create_mesh((2, 2), ("stage", "data"), devices=jax.devices()[:4], axis_types="explicit")
    mapping, policy = {"batch": ("data", "stage"), "layers": "stage"}, nym.Policy(microbatches={"batch": 2})
    with jax.set_mesh(mesh):
        arguments = *nym.shard((blocks, X), mapping), *nym.shard((FACTORS, GATES), {"layers": "stage"})
        compute = nym.named_jit(differentiate, mapping, in_axis_resources={}, out_axis_resources={}, policy=policy)
        value, (gradients, *others) = jax.device_get(compute(arguments))
    gradients = Stacked(gradients.vmap_via(lambda layer: layer)(), Layers, True)
    assert_close((value, (gradients, *others)), expected)


def test_stages_compute_outside_of_jit():
    layers, x = Stacked(DRAW(Layers, Embed), Layers), DRAW(Batch, Embed)

    def run(layers, x):
        return layers.fold_via(lambda layer, x: nym.sin(x + layer))(x)

    expected = run(layers, x)
    mesh = nym.create_mesh((2, 2, 2), AXES, axis_types="explicit")
    with jax.set_mesh(mesh), nym.axis_mapping(MAPPING, policy=nym.Policy(microbatches={"batch": 2})):
        assert_close(run(*nym.shard((layers, x))), expected)


def test_random_keys_differ_between_layers_and_microbatches():
    mesh = nym.create_mesh((2,), ("stage",), devices=jax.devices()[:2])
    blocks = Stacked(nym.zeros(Layers), Layers)

    def draw_noise(key):
        def step(layer, x, *, key):
            return x, nym.random.uniform(key, x.axes) + layer

        return blocks.scan_via(step)(nym.zeros(Batch), key=key)[1]

    policy = nym.Policy(microbatches={"batch": 2})
    with jax.set_mesh(mesh):
        drawn = nym.named_jit(draw_noise, {"layers": "stage"}, policy=policy)(jax.random.key(0))
    assert drawn.names == ("layers", "batch")
    assert len(np.unique(np.asarray(drawn.array))) == Layers.size * Batch.size


def test_interleaved_layers_are_the_same_layers():
    layers = Stacked({"bias": DRAW(Layers, Embed)}, Layers)
    interleaved = layers.interleave(2, 2)
    assert_close(interleaved.get_layer(3), layers.get_layer(3))
    assert_close(interleaved.stacked["bias"]["layers", 1], layers.get_layer(2)["bias"])
    add_bias = lambda layers, x: layers.fold_via(lambda layer, x: (x + layer["bias"]) * 2)(x)  # noqa: E731
    assert_close(add_bias(interleaved, nym.ones(Embed)), add_bias(layers, nym.ones(Embed)))
    add_up = lambda layers: layers.vmap_via(lambda layer: layer["bias"].sum())()  # noqa: E731
    assert_close(add_up(interleaved), add_up(layers))
    state = interleaved.to_state_dict()
    assert_close(state, layers.to_state_dict())
    zeros = jax.tree.map(jnp.zeros_like, interleaved)
    assert_close(zeros.from_state_dict(state), interleaved)
    doubled = interleaved.map_layers(lambda layer, other: jax.tree.map(jnp.add, layer, other), layers)
    assert_close(doubled.interleave(1, 1), jax.tree.map(lambda x: 2 * x, layers))
    with pytest.raises(ValueError, match=r"layers: 4\)? cannot be divided into 3 groups for each of 2 stages; .* is 6"):
        layers.interleave(2, 3)


def test_a_turn_sends_activations_to_the_next_stage_alone():
    with jax.set_mesh(nym.create_mesh((2, 2, 2), AXES, axis_types="explicit")):
        mapping, policy = {"batch": "data", "layers": "stage"}, nym.Policy(microbatches={"batch": 4})
        arguments = nym.shard((BLOCKS, X, FACTORS), mapping)

        def run(blocks, x, factors):
            apply = blocks.fold_via(lambda block, x, factor: block(x, factor, nym.ones(()))[0])
            return apply(x.rename({"input": "embed"}), factors)

        text = nym.named_jit(run, mapping, policy=policy).lower(*arguments).compile().as_text()
        kinds = ["all-gather", "all-reduce", "collective-permute"]
        # In each turn the activations, and at the end those of the last stage; no weights.
        assert [len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in kinds] == [0, 1, 1]


def test_what_are_no_microbatches_is_an_error():
    for wrong in (4, {"batch": 0}, {"batch": 2, "pos": 2}, {"batch": True}):
        with pytest.raises(ValueError, match=r"`microbatches` is the name of an axis and .* as in \{'batch': 8\}, not"):
            nym.Policy(microbatches=wrong)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_types_orders_and_values_that_fail_outside_of_the_batch(axis_types):
    """Booleans and integers, the batch axis last, and a layer whose gradient is infinite where the bubble runs it."""

    def step(layer, carry):
        x, is_large, count = carry
        y = nym.sqrt(x - layer)  # not defined for the values that a stage has in the bubble
        results = {"large": (y > 2).any(), "count": (y > 1.5).sum(), "bits": (y > 1.5).astype("uint8")}
        return (y + layer + 1, is_large | (y > 1.5), count + 1), results

    def compute(stack, x):
        (y, is_large, count), results = stack.scan_via(step)((x, x > 3, jnp.int16(0)))
        return nym.sum(y).scalar(), (y, is_large, count, results)

    compute_gradients = jax.value_and_grad(compute, (0, 1), has_aux=True)
    stack = Stacked(nym.arange(Layers) + 0.5, Layers)
    x = nym.random.uniform(jax.random.key(0), (Embed, Batch), minval=1.0, maxval=4.0)
    expected = jax.jit(compute_gradients)(stack, x)
    mapping, policy = {"layers": "stage", "batch": "data"}, nym.Policy(microbatches={"batch": 4})
    with jax.set_mesh(nym.create_mesh((4, 2), ("stage", "data"), axis_types=axis_types)):
        results = nym.named_jit(compute_gradients, mapping, policy=policy)(*nym.shard((stack, x), mapping))
    assert_close(results, expected)
    dtypes = [[x.dtype for x in jax.tree.leaves(tree)] for tree in (results, expected)]
    assert dtypes[0] == dtypes[1]


def test_layers_keep_their_shards_when_they_are_interleaved(explicit_mesh):
    with jax.set_mesh(explicit_mesh):
        stack = nym.shard(
            Stacked(DRAW(Layers.resize(8), Embed), Layers.resize(8)), {"layers": "data", "embed": "model"}
        )
        assert stack.interleave(4, 2).stacked.sharding == stack.stacked.sharding


def test_weights_that_layers_use_as_plain_arrays():
    """JAX has no rule for some operations on `reduced` arrays, so that these stay as they are."""

    def step(layer, x):
        weight = layer.rename({"mlp": "embed_out"}).array
        return x + nym.named(jnp.tanh(x.array) @ (weight @ weight.T), x.names)

    def compute(stack, x):
        return nym.mean(stack.fold_via(step)(x) ** 2).scalar()

    stack, x = Stacked(DRAW(Layers, Embed, Mlp) / 8, Layers), DRAW(Batch, Embed)
    expected = jax.jit(jax.grad(compute))(stack, x)
    with jax.set_mesh(nym.create_mesh((2, 4), ("stage", "data"), axis_types="explicit")):
        mapping, policy = {"layers": "stage", "batch": "data"}, nym.Policy(microbatches={"batch": 2})
        arguments = nym.shard((stack.interleave(2, 2), x), mapping)
        gradients = nym.named_jit(jax.grad(compute), mapping, policy=policy)(*arguments)
    assert_close(gradients.interleave(1, 1), expected)


def run_wrong(layers=8, microbatches=4, name="batch", interleaving=(1, 1)):
    Wrong = Layers.resize(layers)
    blocks = Stacked(nym.zeros((Wrong, Embed)), Wrong).interleave(*interleaving)
    mesh = nym.create_mesh((4, 2), ("stage", "data"))
    with jax.set_mesh(mesh), nym.axis_mapping(MAPPING, policy=nym.Policy(microbatches={name: microbatches})):
        blocks.fold_via(lambda layer, x: x + layer)(X.rename({"input": "embed"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 6}, r"'layers' of size 6 cannot be divided into 4 stages over .*; use 2, 3, 6 stages or 8 layers"),
        ({"microbatches": 2}, r"4 stages needs as many microbatches or more, not 2; .*=\{'batch': 4\}` fits"),
        ({"microbatches": 8}, r"'batch' of size 8 .* into 8 microbatches for 2 devices each; .*\{'batch': 4\}` fits"),
        ({"name": "examples"}, r"'examples' into microbatches, which no array of the carry has: its axes are 'batch'"),
        ({"interleaving": (2, 2)}, r"interleaved for 2 stages, but the mapping divides .* call `interleave\(4, 2\)`"),
    ],
)
def test_errors_name_what_fits(options, message):
    with pytest.raises(ValueError, match=message):
        run_wrong(**options)


def test_layers_of_several_kinds_and_schedules_that_do_not_exist_are_refused():
    with pytest.raises(
        ValueError, match=r"of 3 stages with 2 groups .* needs a multiple of 3 microbatches, not 4; the next one is 6"
    ):
        PipelineSchedule(3, 4, 2)
    with refusal("takes numbers of stages, microbatches and groups from 1 on, not (0, 4, 1)"):
        PipelineSchedule(0, 4)
    mesh = nym.create_mesh((2,), ("stage",), devices=jax.devices()[:2])
    blocks = BlockSeq((RmsNorm.init(Embed), nym.nn.LayerNorm.init(Embed)), Layers.resize(2))
    with jax.set_mesh(mesh), nym.axis_mapping(MAPPING, policy=nym.Policy(microbatches={"batch": 2})):
        with refusal("which need layers of the same kind and axes; map the layer axis to None"):
            blocks.fold(X.rename({"input": "embed"}))


@pytest.mark.parametrize(("stages", "microbatches", "repeats"), [(2, 4, 1), (4, 8, 1), (4, 8, 3), (3, 6, 2)])
def test_schedules_compute_everything_once_in_order(stages, microbatches, repeats):
    schedule = PipelineSchedule(stages, microbatches, repeats)
    turns = {}  # in which each microbatch passes each group of layers of all stages
    for stage in range(stages):
        for work in range(schedule.works):
            group = schedule.find_group(work) * stages + stage
            turns[schedule.find_microbatch(work), group] = work + stage
    assert len(turns) == microbatches * stages * repeats
    for microbatch in range(microbatches):
        passed = [turns[microbatch, group] for group in range(stages * repeats)]
        assert passed == [*range(passed[0], passed[0] + stages * repeats)]
    assert max(turns.values()) == schedule.turns - 1
    assert schedule.bubble == (stages - 1) / (repeats * microbatches + stages - 1)
    assert str(schedule).count(".") == stages * (stages - 1) + 1  # with the one of the percentage

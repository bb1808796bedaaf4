"""Layers whose axis is mapped: a pipeline of stages, against the same layers on one device."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.nn import BlockSeq, Linear, PipelineSchedule, RmsNorm, Stacked


Layers, Embed, Mlp, Batch, Pos = nym.make_axes(layers=8, embed=8, mlp=16, batch=8, pos=4)
MAPPING = {"batch": "data", "layers": "stage", "mlp": "model"}


class Block(eqx.Module):
    norm: RmsNorm
    up: Linear
    down: Linear
    bias: jax.Array

    @staticmethod
    def init(*, key: jax.Array) -> "Block":
        up_key, down_key, bias_key = jax.random.split(key, 3)
        bias = jax.random.normal(bias_key, (Embed.size,))
        return Block(
            RmsNorm.init(Embed), Linear.init(Embed, Mlp, key=up_key), Linear.init(Mlp, Embed, key=down_key), bias
        )

    def __call__(self, x: nym.NamedArray, factor: nym.NamedArray, gate: nym.NamedArray) -> Any:
        change = self.down(nym.nn.gelu(self.up(self.norm(x)))) + nym.named(self.bias, "embed")
        change = change * factor * gate
        return x + change, {"size": (change**2).mean(), "change": change.sum("embed"), "plain": change.mean().array}


X = nym.random.normal(jax.random.key(1), (Batch, Pos, Embed.alias("input")))
FACTORS = nym.random.normal(jax.random.key(2), (Layers, Batch))  # of each layer and example
GATES = nym.random.normal(jax.random.key(3), (Batch,))  # of each example


def compute_loss(blocks: Any, x: Any, factors: Any, gates: Any) -> Any:
    def step(block: Any, carry: Any, factor: Any, *, gate: Any) -> Any:
        x, total, count = carry
        x, result = block(x, factor, gate)
        return (x, total + result["size"], count + 1), result | {"label": "a block"}

    (x, total, count), results = blocks.scan_via(step)(
        (x.rename({"input": "embed"}), nym.named(0.0, ()), 0), factors, gate=gates
    )
    loss = (x**2).mean() + total / 8 + (results["change"] ** 2).mean()
    return loss.scalar() + results["plain"].mean(), (x.rename({"embed": "input"}), count, results)


def differentiate(*args: Any) -> Any:
    return eqx.filter_value_and_grad(lambda args: compute_loss(*args), has_aux=True)(args)


def make_blocks(container: Any = Stacked, **options: Any) -> Any:
    return container.init(Layers, Block, **options)(key=jax.random.key(0))


def assert_close(results: Any, expected: Any) -> None:
    assert jax.tree.structure(results) == jax.tree.structure(expected)
    for result, value in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        if isinstance(value, str):
            assert result == value
            continue
        np.testing.assert_allclose(np.asarray(result), np.asarray(value), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "axis_types", "microbatches", "repeats"),
    [
        ((2, 2, 2), "auto", 4, 1),
        ((2, 2, 2), "explicit", 2, 2),
        ((4, 2, 1), "explicit", 4, 1),
        pytest.param((4, 1, 2), "auto", 4, 2, marks=pytest.mark.thorough),
        pytest.param((8, 1, 1), "explicit", 8, 1, marks=pytest.mark.thorough),
    ],
)
def test_stages_compute_what_one_device_computes(sizes: Any, axis_types: Any, microbatches: int, repeats: int):
    blocks = make_blocks(gradient_checkpointing=True)
    expected = eqx.filter_jit(differentiate)(blocks, X, FACTORS, GATES)
    stored = {**MAPPING, "embed": "data"}
    with jax.set_mesh(nym.create_mesh(sizes, ("stage", "data", "model"), axis_types=axis_types)):
        mapping = nym.AxisMapping(MAPPING, microbatches={"batch": microbatches})
        step = nym.fsdp(differentiate, stored, mapping)
        inputs = nym.shard((X, FACTORS, GATES), MAPPING)
        interleaved = nym.shard(blocks.interleave(sizes[0], repeats), stored)
        value, (gradients, *others) = step(interleaved, *inputs)
        assert gradients.interleaving == interleaved.interleaving
        assert "stage" in str(gradients.stacked.up.weight.array.sharding.spec)
        results = value, (gradients.interleave(1, 1), *others)
    assert_close(results, expected)


@pytest.mark.parametrize("axis_types", [pytest.param("auto", marks=pytest.mark.thorough), "explicit"])
def test_a_sequence_of_layers_and_eager_calls(axis_types: Any):
    blocks = make_blocks(BlockSeq)
    expected = differentiate(blocks, X, FACTORS, GATES)
    mesh = nym.create_mesh((2, 2, 2), ("stage", "data", "model"), axis_types=axis_types)
    with jax.set_mesh(mesh), nym.axis_mapping(MAPPING, microbatches={"batch": 4}):
        assert_close(differentiate(*nym.shard((blocks, X, FACTORS, GATES))), expected)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_the_batch_may_be_sharded_over_the_stages_outside_of_them(axis_types: Any):
    blocks = make_blocks()
    expected = eqx.filter_jit(differentiate)(blocks, X, FACTORS, GATES)
    mesh = nym.create_mesh((2, 2), ("stage", "data"), devices=jax.devices()[:4], axis_types=axis_types)
    mapping = nym.AxisMapping({"batch": ("data", "stage"), "layers": "stage"}, microbatches={"batch": 2})
    with jax.set_mesh(mesh):
        arguments = *nym.shard((blocks, X), mapping), *nym.shard((FACTORS, GATES), {"layers": "stage"})
        step = nym.named_jit(differentiate, in_axis_resources={}, out_axis_resources={}, axis_resources=mapping)
        assert_close(step(*arguments), expected)


def test_random_keys_differ_between_layers_and_microbatches():
    mesh = nym.create_mesh((2,), ("stage",), devices=jax.devices()[:2])
    blocks = Stacked(nym.zeros(Layers), Layers)

    def draw(key: jax.Array) -> Any:
        def step(layer: Any, x: Any, *, key: jax.Array) -> Any:
            return x, nym.random.uniform(key, x.axes) + layer

        return blocks.scan_via(step)(nym.zeros(Batch), key=key)[1]

    with jax.set_mesh(mesh):
        drawn = nym.named_jit(draw, axis_resources=nym.AxisMapping({"layers": "stage"}, microbatches={"batch": 2}))(
            jax.random.key(0)
        )
    assert drawn.names == ("layers", "batch")
    assert len(np.unique(np.asarray(drawn.array))) == Layers.size * Batch.size


def test_interleaved_layers_are_the_same_layers():
    blocks = make_blocks()
    interleaved = blocks.interleave(2, 2)
    assert interleaved.get_layer(3).bias.tolist() == blocks.get_layer(3).bias.tolist()
    assert interleaved.stacked.bias[2].tolist() == blocks.get_layer(4).bias.tolist()
    inputs = X, FACTORS, GATES
    assert_close(compute_loss(interleaved, *inputs), compute_loss(blocks, *inputs))
    sums = interleaved.vmap_via(lambda block: nym.named(block.bias, "embed").sum())()
    assert_close(sums, blocks.vmap_via(lambda block: nym.named(block.bias, "embed").sum())())
    state = interleaved.to_state_dict()
    assert all(bool((value == state[name]).all()) for name, value in blocks.to_state_dict().items())
    zeros = jax.tree.map(jnp.zeros_like, interleaved)
    assert_close(zeros.from_state_dict(state), interleaved)
    doubled = interleaved.map_layers(lambda layer, other: jax.tree.map(jnp.add, layer, other), blocks)
    assert_close(doubled.interleave(1, 1), jax.tree.map(lambda x: 2 * x, blocks))
    with pytest.raises(
        ValueError, match=r"layers: 8\)? cannot be divided into 3 groups for each of 2 stages; .* is 12"
    ):
        blocks.interleave(2, 3)


COLLECTIVES = ["all-gather", "all-reduce", "collective-permute"]


def test_a_turn_sends_activations_to_the_next_stage_alone():
    with jax.set_mesh(nym.create_mesh((2, 2, 2), ("stage", "data", "model"), axis_types="explicit")):
        mapping = nym.AxisMapping({"batch": "data", "layers": "stage"}, microbatches={"batch": 4})
        blocks, *inputs = nym.shard((make_blocks(), X, FACTORS, GATES), mapping)

        def run(blocks: Any, x: Any, factors: Any, gates: Any) -> Any:
            return blocks.fold_via(lambda block, x, factor: block(x, factor, nym.ones(()))[0])(
                x.rename({"input": "embed"}), factors
            )

        step = nym.named_jit(run, axis_resources=mapping)
        text = step.lower(blocks, *inputs).compile().as_text()
        counts = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES}
        # In each turn the activations, and at the end those of the last stage; no weights.
        assert counts == {"all-gather": 0, "all-reduce": 1, "collective-permute": 1}


def test_mappings_keep_microbatches():
    mapping = nym.AxisMapping(MAPPING, microbatches={"batch": 4})
    assert mapping.microbatches == {"batch": 4}
    assert mapping != nym.AxisMapping(MAPPING)
    assert mapping == eval(repr(mapping), {"AxisMapping": nym.AxisMapping})
    assert mapping.merged({"pos": "model"}).microbatches == {"batch": 4}
    with nym.axis_mapping(mapping), nym.axis_mapping({"pos": "model"}, merge=True):
        current = nym.current_mapping()
        assert current is not None
        assert current.microbatches == {"batch": 4}
    for wrong in (4, {"batch": 0}, {"batch": 2, "pos": 2}, {"batch": True}):
        with pytest.raises(ValueError, match=r"`microbatches` is the name of an axis and .* as in \{'batch': 8\}, not"):
            nym.AxisMapping(MAPPING, microbatches=wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_types_orders_and_values_that_fail_outside_of_the_batch(axis_types: Any):
    """Booleans and integers, the batch axis last, and a layer whose gradient is infinite where the bubble runs it."""

    def step(layer: Any, carry: Any) -> Any:
        x, is_large, count = carry
        y = nym.sqrt(x - layer)  # not defined for the values that a stage has in the bubble
        results = {"large": (y > 2).any(), "count": (y > 1.5).sum(), "bits": (y > 1.5).astype("uint8")}
        return (y + layer + 1, is_large | (y > 1.5), count + 1), results

    def compute(stack: Any, x: Any) -> Any:
        (y, is_large, count), results = stack.scan_via(step)((x, x > 3, jnp.int16(0)))
        return nym.sum(y).scalar(), (y, is_large, count, results)

    stack = Stacked(nym.arange(Layers.resize(4)) + 0.5, Layers.resize(4))
    x = nym.random.uniform(jax.random.key(0), (Embed, Batch), minval=1.0, maxval=4.0)
    expected = jax.value_and_grad(compute, (0, 1), has_aux=True)(stack, x)
    mesh = nym.create_mesh((4, 2), ("stage", "data"), axis_types=axis_types)
    with jax.set_mesh(mesh):
        mapping = nym.AxisMapping({"layers": "stage", "batch": "data"}, microbatches={"batch": 4})
        step_fn = nym.named_jit(jax.value_and_grad(compute, (0, 1), has_aux=True), axis_resources=mapping)
        results = step_fn(*nym.shard((stack, x), mapping))
    assert_close(results, expected)
    dtypes = [[x.dtype for x in jax.tree.leaves(tree)] for tree in (results, expected)]
    assert dtypes[0] == dtypes[1]


def test_layers_keep_their_shards_when_they_are_interleaved():
    with jax.set_mesh(nym.create_mesh((4, 2), ("stage", "data"), axis_types="explicit")):
        stack = nym.shard(make_blocks(), {"layers": "stage", "embed": "data"})
        reordered = stack.interleave(4, 2)
        assert reordered.stacked.up.weight.sharding == stack.stacked.up.weight.sharding


@pytest.mark.parametrize("repeats", [1, 2])
def test_weights_that_layers_use_as_plain_arrays(repeats: int):
    """JAX has no rule for some operations on `reduced` arrays, so that these stay as they are."""

    def step(layer: Any, x: Any) -> Any:
        weight = layer.rename({"mlp": "embed_out"}).array
        return x + nym.named(jnp.tanh(x.array) @ (weight @ weight.T), x.names)

    def compute(stack: Any, x: Any) -> Any:
        return nym.mean(stack.fold_via(step)(x) ** 2).scalar()

    stack = Stacked(nym.random.normal(jax.random.key(0), (Layers, Embed, Mlp)) / 8, Layers)
    x = nym.random.normal(jax.random.key(1), (Batch, Embed))
    expected = jax.grad(compute)(stack, x)
    with jax.set_mesh(nym.create_mesh((2, 4), ("stage", "data"), axis_types="explicit")):
        mapping = nym.AxisMapping({"layers": "stage", "batch": "data"}, microbatches={"batch": 2})
        arguments = nym.shard((stack.interleave(2, repeats), x), mapping)
        gradients = nym.named_jit(jax.grad(compute), axis_resources=mapping)(*arguments)
    assert_close(gradients.interleave(1, 1), expected)


def run_wrong(layers: int = 8, microbatches: Any = 4, name: str = "batch", interleaving: Any = (1, 1)) -> None:
    Wrong = Layers.resize(layers)
    blocks = Stacked(nym.zeros((Wrong, Embed)), Wrong).interleave(*interleaving)
    mesh = nym.create_mesh((4, 2), ("stage", "data"))
    with jax.set_mesh(mesh), nym.axis_mapping(MAPPING, microbatches={name: microbatches}):
        blocks.fold_via(lambda layer, x: x + layer)(X.rename({"input": "embed"}))


def test_errors_name_what_fits():
    with pytest.raises(
        ValueError,
        match=r"axis 'layers' of size 6 cannot be divided into 4 stages over .*; use 2, 3, 6 stages or 8 layers",
    ):
        run_wrong(layers=6)
    with pytest.raises(
        ValueError,
        match=r"a pipeline of 4 stages needs as many microbatches or more, not 2; `microbatches=\{'batch': 4\}` fits",
    ):
        run_wrong(microbatches=2)
    with pytest.raises(
        ValueError,
        match=r"axis 'batch' of size 8 is not divisible into 8 microbatches for 2 devices each; .*\{'batch': 4\}` fits",
    ):
        run_wrong(microbatches=8)
    with pytest.raises(
        ValueError,
        match=r"divides axis 'examples' into microbatches, which no array of the carry has: its axes are 'batch'",
    ):
        run_wrong(name="examples")
    with pytest.raises(
        ValueError, match=r"interleaved for 2 stages, but the mapping divides .* call `interleave\(4, 2\)`"
    ):
        run_wrong(interleaving=(2, 2))
    with pytest.raises(
        ValueError, match=r"of 3 stages with 2 groups .* needs a multiple of 3 microbatches, not 4; the next one is 6"
    ):
        PipelineSchedule(3, 4, 2)
    with pytest.raises(
        ValueError, match=r"takes numbers of stages, microbatches and groups from 1 on, not \(0, 4, 1\)"
    ):
        PipelineSchedule(0, 4)
    with pytest.raises(ValueError, match=r"which need layers of the same kind and axes; map the layer axis to None"):
        mesh = nym.create_mesh((2,), ("stage",), devices=jax.devices()[:2])
        Two = Layers.resize(2)
        blocks = BlockSeq((RmsNorm.init(Embed), nym.nn.LayerNorm.init(Embed)), Two)
        with jax.set_mesh(mesh), nym.axis_mapping(MAPPING, microbatches={"batch": 2}):
            blocks.fold(X.rename({"input": "embed"}))


@pytest.mark.parametrize(("stages", "microbatches", "repeats"), [(2, 4, 1), (4, 8, 1), (4, 8, 3), (3, 6, 2)])
def test_schedules_compute_everything_once_in_order(stages: int, microbatches: int, repeats: int):
    schedule = PipelineSchedule(stages, microbatches, repeats)
    turns: dict[tuple[int, int], int] = {}  # in which each microbatch passes each group of layers of all stages
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

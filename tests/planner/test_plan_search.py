"""`plan`: what is searched, what the screening counts, and what comes out, on described CPUs."""

import collections
import dataclasses
import functools
import itertools
import math
import os
import re
import subprocess
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import axonym as nym
from axonym.nn import Linear, Stacked
from axonym.planner._machine._hardware import get_hardware
from axonym.planner._program._named_program import trace_named_program
from axonym.planner._search import _nearest_fits as nearest_fits
from axonym.planner._search._nearest_fits import choose_larger_devices
from axonym.planner._search._published_flags import PublishedFlags
from axonym.planner._search._screening import Screening, count_saved_bytes
from axonym.planner._search._search_space import list_candidates, parse_fixed
from axonym.planner._search._step_variants import count_model_flops, list_variants
from axonym.planner._step_time._link_model import LinkModel
from tests.refusals import refusal


BATCH, PIXEL, EMBED, MLP, LAYERS = 64, 16, 32, 128, 3
FLOPS = 2 * BATCH * (2 * PIXEL * EMBED + 6 * LAYERS * EMBED * MLP)  # the pixels have no gradient


class Block(eqx.Module):
    up: Linear
    down: Linear

    @staticmethod
    def init(*, key):
        Embed, Mlp = nym.make_axes(embed=EMBED, mlp=MLP)
        keys = jax.random.split(key)
        return Block(Linear.init(Embed, Mlp, key=keys[0]), Linear.init(Mlp, Embed, key=keys[1]))

    def __call__(self, x):
        return x + self.down(nym.nn.relu(self.up(x)))


def make_shape(dtype="float32", **sizes):
    return nym.NamedArray(jax.ShapeDtypeStruct(tuple(sizes.values()), dtype), tuple(sizes))


def init_model(key):
    first, blocks = jax.random.split(key)
    Pixel, Embed, Layers = nym.make_axes(pixel=PIXEL, embed=EMBED, layers=LAYERS)
    return {
        "first": Linear.init(Pixel, Embed, key=first),
        "blocks": Stacked.init(Layers, Block)(key=jax.random.split(blocks, LAYERS)),
    }


def make_model():
    return eqx.filter_eval_shape(init_model, jax.random.key(0))


def compute_loss(model, x):
    return nym.mean(nym.square(model["blocks"].fold(model["first"](x)))).array


@functools.partial(nym.named_jit, donate_args=(True,))
def train_step(model, x):
    loss, gradients = jax.value_and_grad(compute_loss)(model, x)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, model, gradients), loss


X = make_shape(batch=BATCH, pixel=PIXEL)
EMBEDDED = make_shape(batch=BATCH, embed=EMBED)
SQUARE = make_shape(embed=EMBED, mlp=EMBED)
DATA = {"mesh": {"data": 4}, "compute": {"batch": "data"}}
STORED = {**DATA, "parameters": {"embed": "data"}}
BY_BATCH = nym.planner.Candidate({"data": 8}, {"batch": ("data",)}, {"batch": ("data",)})


@pytest.fixture
def make_plan(cache):
    return functools.partial(nym.planner.plan, train_step, make_model(), X, devices="cpu:4", cache=cache)


def screen(fn, *args, devices="cpu:4", **options):
    """Returns a plan of which nothing is compiled."""
    return nym.planner.plan(fn, *args, devices=devices, budget=1e-9, **options)


def list_texts(program, fixed=None, devices=8):
    fixed = parse_fixed(fixed, program.parameter_names + program.data_names, devices)
    return [str(one) for one in list_candidates(program, devices, fixed, collections.Counter())]


@pytest.fixture
def limit_memory(monkeypatch):
    def limit(available):
        small = dataclasses.replace(get_hardware("cpu"), hbm_available=available)
        monkeypatch.setattr("axonym.planner._machine._hardware.HARDWARE", {"cpu": small})

    return limit


def make_screening(devices, fn, *args):
    [variant] = list_variants(fn, args, None, None, collections.Counter())
    described = nym.planner.described_devices(devices)

    def make_link_model(candidate):
        return LinkModel(nym.create_mesh(candidate.mesh, devices=described))

    return variant.named_program, Screening(variant, get_hardware(devices), make_link_model)


def multiply(weight, x):
    return nym.dot(x, weight, axis="embed")


def test_of_branches_the_one_with_the_most_products_is_counted():
    def compute(x, weight, index):
        def expand(x):
            return nym.dot(x, weight, axis="embed")

        def fold_back(x):
            return nym.dot(expand(x), weight, axis="mlp")

        return jax.lax.switch(index, [nym.sin, fold_back, lambda x: nym.sum(expand(x), "mlp") * x], x)

    shapes = make_shape(batch=4, embed=8), make_shape(embed=8, mlp=16), jax.ShapeDtypeStruct((), "int32")
    program = trace_named_program(compute, shapes)
    assert program.flops == 2 * 2 * 4 * 8 * 16
    assert {"batch", "mlp"} in program.arrays


def test_products_of_shards_are_divided_by_the_names_that_they_are_given():
    def compute_loss(weight, x, targets):
        return nym.nn.fused_cross_entropy(x, weight, targets, "embed", "vocab", block_size=128).array

    weight, x = make_shape(vocab=512, embed=EMBED), make_shape(batch=BATCH, embed=EMBED)
    program, screening = make_screening("v5e:4x4", jax.grad(compute_loss), weight, x, make_shape("int32", batch=BATCH))
    assert program.flops == 4 * 2 * 512 * EMBED * BATCH

    def count_seconds(mesh, **compute):
        found = screening.screen(nym.planner.Candidate(mesh, compute, compute)).estimate
        targets = found.memory["inputs"] / (1 + EMBED)  # read beside the products; the gradient is written
        return found.time.compute - (found.memory["parameters"] + targets) / get_hardware("v5e").hbm_bandwidth

    whole = count_seconds({"data": 16})
    assert count_seconds({"data": 16}, batch=("data",)) == pytest.approx(whole / 16)
    assert count_seconds({"data": 4, "model": 4}, batch=("data",), vocab=("model",)) == pytest.approx(whole / 16)


def test_names_that_are_fixed_over_the_last_mesh_axis_are_kept():
    program = trace_named_program(multiply, (make_shape(embed=EMBED, mlp=MLP), EMBEDDED))
    fixed = {"mesh": {"data": 4, "model": 2}, "compute": {"mlp": "model"}}
    texts = list_texts(program, fixed)
    assert texts and all("mlp over model" in text and "embed over model" not in text for text in texts)
    fixed["compute"] |= {"embed": None, "batch": "data"}
    assert list_texts(program, fixed) == texts


def test_screening_counts_what_parameters_and_sums_send():
    weight, x = make_shape(embed=EMBED, mlp=MLP), EMBEDDED
    program, screening = make_screening("v5e:2x4", multiply, weight, x)
    candidates = list_candidates(program, 8, parse_fixed(None, ("embed", "mlp", "batch"), 8), collections.Counter())
    sent = {str(one): screening.screen(one).estimate.sent for one in candidates}
    whole, result = 4 * EMBED * MLP, 4 * BATCH * MLP
    stored = nym.planner.Candidate({"data": 8}, {"batch": ("data",)}, {"batch": ("data",), "mlp": ("data",)})
    assert screening.screen(stored).estimate.sent == {("data",): 7 * whole // 8}
    assert sent["data 8; batch over data"] == {}
    assert sent["model 8; embed over model"] == {("model",): 2 * 7 * result // 8}
    assert sent["data 2 x model 4; batch over data; embed over model"] == {("model",): 2 * 3 * (result // 2) // 4}


def test_products_that_are_added_are_summed_once_over_a_mesh_axis():
    """Also if they sum over further axes, as queries with groups of heads do."""

    def multiply_both(first, second, x):
        return multiply(first, x.sum("group")) + nym.dot(x, second, axis=("embed", "group"))

    first, second = make_shape(embed=EMBED, mlp=MLP), make_shape(embed=EMBED, group=2, mlp=MLP)
    x = make_shape(batch=BATCH, embed=EMBED, group=2)
    program, screening = make_screening("v5e:2x4", multiply_both, first, second, x)
    assert len(program.products) == 2 and [*program.sums.values()] == [1]
    candidate = nym.planner.Candidate({"model": 8}, {"embed": ("model",)}, {"embed": ("model",)})
    assert screening.screen(candidate).estimate.sent == {("model",): 2 * 7 * 4 * BATCH * MLP // 8}


@pytest.mark.parametrize(
    "combine",
    [
        lambda a, b, x: (multiply(a, x) + (y := multiply(b, x)), y + multiply(a, x)),
        lambda a, b, x: (h := multiply(a, x)) + multiply(b, nym.nn.relu(h).rename({"mlp": "embed"})),
        lambda a, b, x: jax.lax.optimization_barrier((nym.nn.relu(multiply(a, x)), multiply(b, x)))[0] + multiply(b, x),
    ],
)
def test_sums_with_other_users_are_not_added(combine):
    program = trace_named_program(combine, (SQUARE, SQUARE, EMBEDDED))
    assert sum(program.sums.values()) == sum(program.products.values()) >= 2


def test_a_sum_that_is_sharded_at_once_is_scattered():
    """As values between layers are under sequence parallelism."""

    def apply_layer(weights, x):
        y = nym.shard(nym.nn.relu(x).rename({"pos": "token"}))
        y = nym.dot(nym.dot(y, weights["up"], axis="embed"), weights["down"], axis="mlp")
        return nym.shard(y.rename({"token": "pos"}))

    weights = {"up": make_shape(embed=EMBED, mlp=MLP), "down": make_shape(mlp=MLP, embed=EMBED)}
    _, screening = make_screening("v5e:2x4", apply_layer, weights, make_shape(pos=BATCH, embed=EMBED))
    compute = {"mlp": ("model",), "pos": ("model",)}
    found = screening.screen(nym.planner.Candidate({"model": 8}, compute, compute)).estimate
    assert found.sent == {("model",): 2 * 7 * 4 * BATCH * EMBED // 8}  # a gather before, a reduce-scatter after


def test_experts_compute_their_own_tokens_and_send_the_mixture():
    Embed, Mlp, Experts = nym.make_axes(embed=EMBED, mlp=MLP, experts=4)
    layer = eqx.filter_eval_shape(nym.nn.MixtureOfExperts.init, Embed, Mlp, Experts, 2, key=jax.random.key(0))
    x = make_shape(batch=BATCH, pos=PIXEL, embed=EMBED)
    expert, router = 2 * BATCH * PIXEL * 2 * EMBED * MLP, 2 * BATCH * PIXEL * EMBED * 4

    def compute_loss(layer, x):
        return nym.mean(layer(x)[0]).array

    program, screening = make_screening("v5e:2x4", compute_loss, layer, x)
    assert program.flops == pytest.approx(3 * expert + router, rel=0.02)  # and each token's average over two experts
    program, _ = make_screening("v5e:2x4", jax.grad(compute_loss), layer, x)
    assert program.flops == pytest.approx(7 * expert + 2 * router, rel=0.02)  # no gradient of `x`
    rows = {operand.sizes[0] for product in program.products for operand in product.operands if product.flops == expert}
    assert rows == {2 * BATCH * PIXEL, 4}  # operands of gradients have all rows, parameters all experts
    compute = {"experts": ("model",)}
    found = screening.screen(nym.planner.Candidate({"data": 2, "model": 4}, compute, compute)).estimate
    assert found.sent[("model",)] == pytest.approx(2 * 3 * 4 * BATCH * PIXEL * EMBED / 4, rel=0.02)


def test_screened_arguments_are_those_of_the_compiler(make_plan):
    _, screening = make_screening("cpu:4", train_step.__wrapped__, make_model(), X)
    found = make_plan(fixed=DATA)
    assert {one.stage for one in found.evaluations} == {"compiled"} and len(found.evaluations) == 3
    for one in found.evaluations:
        arguments = sum(one.memory.get(group, 0) for group in ("parameters", "optimizer state", "inputs"))
        assert arguments == screening.screen(one.candidate).estimate.bytes


def test_a_gathered_operand_of_a_product_is_counted():
    """As keys in attention are, whose positions are needed whole where queries are sharded over them."""

    def attend(query, x):
        key = x.rename({"pos": "key_pos"})
        return nym.dot(query * x, key, axis="embed")

    query, x = make_shape(embed=EMBED), make_shape(pos=BATCH, embed=EMBED)
    program, screening = make_screening("v5e:2x4", attend, query, x)
    [product] = program.products
    assert product.gathered_names == ((), ("pos",)) or product.gathered_names == (("pos",), ())
    candidate = nym.planner.Candidate({"data": 8}, {"pos": ("data",)}, {"pos": ("data",)})
    found = screening.screen(candidate).estimate
    assert found.sent == {("data",): 7 * 4 * BATCH * EMBED // 8} and found.time.waiting[("data",)] > 0


def test_candidates_are_valid():
    program = trace_named_program(train_step.__wrapped__, (make_model(), X))
    pruned = collections.Counter()
    candidates = list_candidates(program, 8, parse_fixed(None, ("embed", "mlp", "batch"), 8), pruned)
    assert len({str(one) for one in candidates}) == len(candidates) > 10 and all(pruned.values())
    for one in candidates:
        assert math.prod(one.mesh.values()) == 8 and "layers" not in one.parameters
        for name, over in one.compute.items():
            assert all(size % math.prod(one.mesh[axis] for axis in over) == 0 for size in program.sizes[name])
        for array in program.arrays:
            used = [axis for name in array for axis in one.compute.get(name, ())]
            assert len(used) == len(set(used))
    texts = {str(one) for one in candidates}
    assert "data 8; batch over data; stored with embed over data" in texts
    assert "replica 2 x data 4; batch over replica and data; stored with embed over data" in texts
    assert "data 2 x model 4; batch over data; mlp over model; stored with embed over data" in texts


def test_parameters_are_stored_over_the_mesh_axis_of_positions_too():
    arguments = make_shape(embed=EMBED, mlp=MLP), make_shape(batch=8, pos=8, embed=EMBED)
    texts = list_texts(trace_named_program(lambda weight, x: nym.mean(multiply(weight, x)).array, arguments))
    assert "data 4 x model 2; batch over data; pos over model; stored with mlp over data and model" in texts
    assert "data 4 x model 2; batch over data; pos over model; stored with mlp over data" in texts
    assert not any("mlp over model" in text and "over data and model" in text for text in texts)


def test_too_many_candidates_are_refused_unless_axes_are_fixed(monkeypatch):
    """Of axes that never meet, those that are fixed in `compute` are stored sharded alike."""
    monkeypatch.setattr("axonym.planner._search._search_space._MOST_CANDIDATES", 100)
    names = [f"mlp{at}" for at in range(8)]
    weights = {name: make_shape(embed=8, **{name: 8}) for name in names}

    def compute(weights, x):
        return sum(nym.sum(nym.dot(x, weight, axis="embed")).scalar() for weight in weights.values())

    arguments = compute, weights, make_shape(batch=8, embed=8)
    with pytest.raises(ValueError, match=r"more than 100 candidates, .* axes embed, mlp0.*'compute': {'\w+': None}"):
        screen(*arguments, devices="cpu:8")
    found = screen(*arguments, devices="cpu:8", fixed={"compute": dict.fromkeys(names)})
    stored = {frozenset(name for name, over in one.candidate.parameters.items() if over) for one in found.evaluations}
    assert stored >= {frozenset(["batch", *names]), frozenset(["batch", "embed"])}


def test_arguments_are_planned_as_they_are():
    scale = jax.ShapeDtypeStruct((), "float32", weak_type=True)
    host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    weights = {"int4": make_shape("int4", embed=512, mlp=1024), "bias": make_shape(mlp=1024)}
    weights["key"] = jax.eval_shape(lambda: jax.random.key(0))
    kept = nym.NamedArray(jax.ShapeDtypeStruct((512,), "float32", sharding=host), "embed")

    def compute(weights, x, scale, kept):
        x, _ = jax.lax.scan(lambda carry, _: (carry * scale, None), x.array, length=2)
        x = nym.NamedArray(x, ("batch", "embed")) + kept.astype("bfloat16")
        noise = jax.random.normal(weights["key"])
        y = nym.dot(x, weights["int4"].astype("bfloat16"), axis="embed") + weights["bias"]
        return nym.sum(y).scalar() + noise

    x = make_shape("bfloat16", batch=64, embed=512)
    fixed = {"mesh": {"data": 4}, "compute": {"batch": "data"}, "parameters": {"embed": None, "mlp": None}}
    found = nym.planner.plan(compute, weights, x, scale, kept, devices="cpu:4", fixed=fixed, cache=False)
    assert found.best.memory["parameters"] == found.screened.memory["parameters"] == 512 * 1024 // 2 + 4 * 1024 + 8
    assert "arguments in the memory of the host are planned in that of the device" in found.notes


def test_axes_that_are_only_summed_are_divisible_too():
    odd = make_shape(embed=31, mlp=MLP), make_shape(batch=BATCH, embed=31)
    with refusal("axis 'embed' has size 31, which is not divisible by mesh axis 'data' of size"):
        screen(multiply, *odd, fixed={"mesh": {"data": 4}, "parameters": {"embed": "data"}})
    found = screen(multiply, *odd)
    assert found.evaluations and not any("embed" in one.candidate.parameters for one in found.evaluations)


def test_a_mesh_axis_of_size_1_shards_nothing(make_plan):
    alone = make_plan(devices="cpu:1", budget=1e-9).evaluations
    assert [str(one.candidate) for one in alone] == ["data 1; computed whole on each device"]
    found = make_plan(fixed={"mesh": {"data": 1, "model": 4}}, budget=1e-9)
    stored = [one.candidate.parameters for one in found.evaluations]
    assert {axis for parameters in stored for over in parameters.values() for axis in over} == {"model"}


def test_a_plan_is_the_same_for_another_order_of_policies(make_plan):
    policies = {"none": False, "layers": True}
    plans = [make_plan(policies=dict(order), budget=1e-9) for order in (policies.items(), reversed(policies.items()))]
    assert [*map(str, plans[0].evaluations)] == [*map(str, plans[1].evaluations)]


def test_choices_that_were_not_compiled_have_their_best_candidate(make_plan, monkeypatch):
    monkeypatch.setattr("axonym.planner._search._best_candidates._MOST_COMPILED", 1)
    found = make_plan()
    compiled = [one for one in found.evaluations if one.stage == "compiled"]
    assert len(compiled) == 1 and len(found.why("data").alternatives) >= 2
    for axis in ("embed", "mlp"):
        assert "not sharded" in {found.why(axis).choice, *(one.choice for one in found.why(axis).alternatives)}


def test_policies_and_options_are_searched(make_plan):
    found = make_plan(policies={"full": True, "none": False}, fixed=STORED, budget=1e-9)
    seconds = {one.candidate.policy: one.time.compute for one in found.evaluations}
    assert seconds["full"] > seconds["none"] and found.policy == "none"

    def scale(weight, x, *, times):
        for _ in range(times):
            x = nym.dot(x, weight, axis="embed").rename({"mlp": "embed"})
        return x

    found = screen(scale, SQUARE, EMBEDDED, fixed=DATA, options={"times": (1, 2)})
    assert {one.candidate.options["times"] for one in found.evaluations} == {1, 2}
    assert found.best.candidate.options == {"times": 1}


def test_each_option_has_the_arrays_of_its_step():
    def add(weight, bias, x, *, is_outer):
        return nym.dot(x, weight, axis="embed") if is_outer else nym.mean(weight, "mlp") + x + bias

    arguments = make_shape(embed=EMBED, mlp=MLP), make_shape(embed=EMBED), EMBEDDED
    variants = list_variants(add, arguments, None, {"is_outer": (False, True)}, collections.Counter())
    is_outer = [{"batch", "mlp"} in variant.named_program.arrays for variant in variants]
    assert is_outer == [False, True]


def test_parameters_are_gathered_in_few_bits_and_gradients_added_up_in_more(make_plan, tmp_path):
    gathers = {
        "exact": nym.Policy(),
        "int8": nym.Policy(gather_dtype="int8"),
        "added in float32": nym.Policy(precision=nym.Precision(computing="bfloat16", reductions="float32")),
    }
    fixed = {**DATA, "compute": {"batch": "data", "embed": None}, "parameters": {"embed": "data"}}
    plan = make_plan(fixed=fixed, gathers=gathers)
    by_gather = {evaluation.candidate.gather: evaluation for evaluation in plan.evaluations if not evaluation.problem}
    assert {*by_gather} == {*gathers} and plan.gather in gathers
    sent = {name: sum(evaluation.sent.values()) for name, evaluation in by_gather.items()}
    assert sent["int8"] < sent["exact"] and sent["added in float32"] < sent["exact"]
    assert {name: evaluation.candidate.axis_types for name, evaluation in by_gather.items()} == {
        "exact": "auto",
        "int8": "auto",
        "added in float32": "explicit",
    }
    assert nym.planner.read_plan(plan.to_json(tmp_path / "plan.json")) == plan
    assert {alternative.choice for alternative in plan.why("gather").alternatives} == {*gathers} - {plan.gather}


def make_adam_step(optimizer):
    def adam_step(model, state, x):
        loss, gradients = jax.value_and_grad(compute_loss)(model, x)
        updates, state = optimizer.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, loss

    return nym.named_jit(adam_step, donate_args=(True, True))


ADAM, ADAM_STATE = optax.adam(1e-3), eqx.filter_eval_shape(optax.adam(1e-3).init, make_model())
plan_offloading = functools.partial(nym.planner.plan, fixed=STORED, offload_state=True)


def split_by_state(plan):
    """Returns the best evaluation with the optimizer state on the device, and with that on the host."""
    by_choice = {evaluation.candidate.has_offloaded_state: evaluation for evaluation in reversed(plan.evaluations)}
    return by_choice[False], by_choice[True]


def test_the_optimizer_state_may_be_on_the_host(cache, tmp_path):
    step = make_adam_step(nym.offloaded_optimizer(ADAM))
    plan = plan_offloading(step, make_model(), ADAM_STATE, X, devices="cpu:4", cache=cache)
    on_device, on_host = split_by_state(plan)
    assert on_device.stage == on_host.stage == "compiled"  # and CPUs count the memory of the host as their own
    assert on_device.memory == on_host.memory
    assert str(on_host.candidate).endswith("; optimizer state on the host")
    assert [alternative.choice for alternative in plan.why("state").alternatives] == ["on the host"]
    assert nym.planner.read_plan(plan.to_json(tmp_path / "plan.json")) == plan
    with refusal("with the optimizer state where it is; wrap all of its optimizer in `off"):
        plan_offloading(make_adam_step(ADAM), make_model(), ADAM_STATE, X, devices="cpu:4")
    with refusal("no argument is optimizer state; pass that of Optax, or leave it out"):
        plan_offloading(train_step, make_model(), X, devices="cpu:4")


@pytest.mark.skipif(not os.environ.get("AXONYM_LIBTPU"), reason="This needs libtpu: `make tpu` installs it.")
def test_tpus_wait_for_an_optimizer_state_on_the_host(cache):
    step = make_adam_step(nym.offloaded_optimizer(ADAM))
    plan = plan_offloading(step, make_model(), ADAM_STATE, X, devices="v5e:2x2", cache=cache)
    on_device, on_host = split_by_state(plan)
    assert on_device.memory["optimizer state"] > 100 * on_host.memory.get("optimizer state", 0)  # the count of steps
    assert on_host.time.host > 0.0 == on_device.time.host


class NamedBlock(Block):
    """A block that needs both values again for the backward pass, of which `out` is the smaller one."""

    def __call__(self, x):
        hidden = nym.tree_checkpoint_name(self.up(x), "hidden")
        return x + nym.nn.tanh(nym.tree_checkpoint_name(self.down(nym.nn.relu(hidden)), "out"))


def init_named_model(key):
    def make_block(*, key):
        block = Block.init(key=key)
        return NamedBlock(block.up, block.down)

    blocks = Stacked.init(nym.Axis("layers", LAYERS), make_block)(key=jax.random.split(key, LAYERS))
    return {**init_model(key), "blocks": blocks}


@pytest.mark.parametrize(
    ("available", "policy", "note"),
    [
        pytest.param(
            4_500_000,
            "save out, hidden",
            "nym.ScanCheckpointPolicy(save_block_internals=['out', 'hidden'])",
            marks=pytest.mark.thorough,
        ),
        (3_500_000, "save out", "nym.ScanCheckpointPolicy(save_block_internals=['out'])"),
        pytest.param(2_800_000, "layers", "True", marks=pytest.mark.thorough),
        (2**30, "none", "False"),
    ],
)
def test_values_with_names_are_saved_as_far_as_memory_is_left(cache, limit_memory, available, policy, note):
    limit_memory(available)
    model = eqx.filter_eval_shape(init_named_model, jax.random.key(0))
    fixed = {**DATA, "parameters": dict.fromkeys(("embed", "mlp", "pixel"))}
    x = make_shape(batch=4096, pixel=PIXEL)
    found = nym.planner.plan(train_step, model, x, devices="cpu:4", policies="auto", fixed=fixed, cache=cache)
    assert found.fits and found.policy == policy
    assert f"policy {policy!r} is `gradient_checkpointing={note}`" in found.notes
    unsaved = "policies that save named values were not compiled, since the step fits without recomputing"
    assert (unsaved in found.notes) is (policy == "none")


class WideBlock(eqx.Module):
    """A block with a wide value that saves most for its bytes, and a narrow one."""

    narrow: Linear
    middle: Linear
    wide: Linear
    down: Linear

    @staticmethod
    def init(*, key):
        keys = jax.random.split(key, 4)
        Embed, Rank, Hidden, Mlp = nym.make_axes(embed=EMBED, rank=8, hidden=512, mlp=2048)
        axes = (Embed, Rank), (Rank, Hidden), (Hidden, Mlp), (Mlp, Embed)
        return WideBlock(*(Linear.init(*pair, key=key) for pair, key in zip(axes, keys, strict=True)))

    def __call__(self, x):
        x = nym.tree_checkpoint_name(x, "useless")
        middle = nym.tree_checkpoint_name(self.middle(nym.nn.tanh(self.narrow(x))), "middle")
        wide = nym.tree_checkpoint_name(self.wide(nym.nn.tanh(middle)), "wide")
        return x + self.down(nym.nn.tanh(wide))


@pytest.mark.parametrize(("available", "first"), [(30_000_000, "middle"), (2**30, "wide")])
def test_a_value_that_does_not_fit_is_saved_last(limit_memory, available, first):
    limit_memory(available)
    blocks = Stacked.init(nym.Axis("layers", LAYERS), WideBlock)
    model = eqx.filter_eval_shape(lambda key: blocks(key=jax.random.split(key, LAYERS)), jax.random.key(0))

    def step(model, x):
        return jax.grad(lambda model: nym.mean(nym.square(model.fold(x))).array)(model)

    plan = screen(step, model, make_shape(batch=4096, embed=EMBED), policies="auto", fixed=DATA)
    policies = {evaluation.candidate.policy for evaluation in plan.evaluations}
    assert policies & {"save middle", "save wide"} == {f"save {first}"}


def test_names_that_save_no_operations_are_not_saved():
    found = screen(train_step, make_model(), X, policies="auto", fixed=DATA)
    assert {one.candidate.policy for one in found.evaluations} == {"none", "layers", "offload"}


def test_sizes_of_the_data_are_ranked_by_the_time_of_a_sample(make_plan, tmp_path):
    found = make_plan(sizes={"batch": (64, 128)}, fixed=STORED)
    seconds = {one.candidate.sizes["batch"]: one.time.total for one in found.evaluations}
    assert seconds[64] < seconds[128] < 2 * seconds[64]  # parameters are read and gathered once a step
    assert found.sizes == {"batch": 128} and found.fits and found.model_flops == 2 * FLOPS
    assert found.mfu(1) > found.mfu(2) == pytest.approx(FLOPS / seconds[64] / 4 / get_hardware("cpu").bf16_flops)
    assert "batch of 128" in str(found)
    assert nym.planner.read_plan(found.to_json(tmp_path / "plan.json")) == found
    alone = make_plan(fixed=STORED)
    assert {one.time.total for one in alone.evaluations} == {seconds[64]}
    (compiled,) = {one.time.compute for one in alone.evaluations if one.stage == "compiled"}  # as long as memory takes
    assert compiled == alone.screened.time.compute > 10 * FLOPS / 4 / get_hardware("cpu").bf16_flops
    reason = found.why("batch=64")
    assert reason.choice == "128 over data" and [one.choice for one in reason.alternatives] == ["64 over data"]
    assert reason.alternatives[0].seconds == pytest.approx(2 * seconds[64] - seconds[128])
    assert "for as many samples as the best candidate has" in str(reason)


def test_a_batch_in_microbatches_is_sharded_with_sizes_that_are_divisible():
    def step(model, x, *, microbatches=4):
        return nym.microbatch(jax.value_and_grad(compute_loss), "batch", microbatches)(model, x)

    for counts in ((2, 1, 3), (1, 2)):
        found = screen(step, make_model(), X, devices="cpu:8", options={"microbatches": counts})
        sharded = [one.candidate.options for one in found.evaluations if "batch" in one.candidate.compute]
        assert {options["microbatches"] for options in sharded} == {1, 2}
        assert not found.fits and "give a longer `budget`" in str(found)
        assert ("has size 64, which is not divisible by 3 microbatches" in str(found.pruned)) is (3 in counts)
    found = screen(step, make_model(), X, devices="cpu:2", sizes={"batch": (10, 16)})
    assert {one.candidate.sizes["batch"] for one in found.evaluations} == {16}
    assert "batch=10: axis 'batch' has size 10, which is not divisible by 4 microbatches" in str(found.pruned)


def test_a_plan_is_the_same_with_another_hash_seed():
    program = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_plan_search import X, make_model, screen, train_step
print(screen(train_step, make_model(), X, devices="cpu:8").evaluations)
"""
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    output = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    evaluations = screen(train_step, make_model(), X, devices="cpu:8").evaluations
    assert output == f"{evaluations}\n" and len(evaluations) > 5


def test_memory_that_loops_collect_is_counted_for_each_array():
    def estimate(policy):
        model = make_model()
        model["blocks"] = dataclasses.replace(model["blocks"], gradient_checkpointing=policy)
        program = trace_named_program(train_step.__wrapped__, (model, X))
        assert sum(program.saved.values()) >= 4  # gradients of four arrays, and what is saved
        return count_saved_bytes(program, BY_BATCH)

    kept = 4 * LAYERS * BATCH // 8 * (EMBED + 2 * MLP)  # at most, beside the input of a layer
    assert 0 < estimate(False) - estimate(True) <= kept
    assert estimate(True) - estimate("offload") == 4 * LAYERS * BATCH // 8 * EMBED  # inputs of layers


@functools.cache
def trace_mixture(policy, capacity):
    Embed, Mlp, Experts = nym.make_axes(embed=EMBED, mlp=MLP, experts=4)
    options = {"capacity_factor": capacity, "capacity_axis": None if capacity is None else "pos"}

    class Mixture(nym.nn.MixtureOfExperts):
        def __call__(self, x):
            return x + super().__call__(x)[0]

    def make_block(*, key):
        return Mixture(**vars(nym.nn.MixtureOfExperts.init(Embed, Mlp, Experts, 2, key=key, **options)))

    saved = policy is True or nym.ScanCheckpointPolicy(save_block_internals=[policy])
    make = Stacked.init(nym.Axis("layers", LAYERS), make_block, gradient_checkpointing=saved)
    stack = eqx.filter_eval_shape(make, key=jax.ShapeDtypeStruct((LAYERS, 2), "uint32"))
    gradient = jax.grad(lambda stack, x: nym.mean(stack.fold(x)).array)
    return trace_named_program(gradient, (stack, make_shape(batch=BATCH, pos=PIXEL, embed=EMBED)))


DOWN = 4 * LAYERS * 2 * BATCH * PIXEL * EMBED  # bytes of `down` for all choices
GATE = DOWN * MLP // EMBED


@pytest.mark.parametrize(
    ("mesh", "compute", "capacity", "down", "gate"),
    [
        ({"data": 8}, {"batch": "data"}, None, DOWN // 8, GATE // 8),
        ({"data": 2, "model": 4}, {"batch": "data", "experts": "model"}, None, DOWN // 2, GATE // 2),
        ({"data": 2, "model": 4}, {"batch": "data", "mlp": "model"}, None, DOWN // 2, GATE // 8),
        ({"data": 4}, {"batch": "data", "experts": "data"}, None, DOWN, GATE),  # each device gathers all tokens
        ({"data": 4}, {"batch": "data", "experts": "data"}, 1.0, DOWN // 4, GATE // 4),
    ],
)
def test_products_of_experts_are_saved_where_their_tokens_are(mesh, compute, capacity, down, gate):
    candidate = nym.planner.Candidate(mesh, {name: (axis,) for name, axis in compute.items()}, {})

    def count_saved(policy):
        program = trace_mixture(policy, capacity)
        assert {*program.checkpoint_names} == {"gate", "up", "down"}
        return count_saved_bytes(program, candidate)

    assert count_saved("down") - count_saved(True) == down
    assert count_saved("gate") - count_saved(True) == gate


def test_what_is_sent_to_the_host_takes_the_time_of_the_memory():
    model = make_model()
    seconds = []
    for policy in (True, "offload"):
        model["blocks"] = dataclasses.replace(model["blocks"], gradient_checkpointing=policy)
        _, screening = make_screening("v5e:2x4", train_step.__wrapped__, model, X)
        seconds.append(screening.screen(BY_BATCH).estimate.time.compute)
    carries = 4 * LAYERS * BATCH // 8 * EMBED
    assert seconds[1] - seconds[0] == pytest.approx(2 * carries / get_hardware("v5e").hbm_bandwidth)


def test_a_mesh_that_is_fixed_keeps_the_roles_of_its_axes(make_plan):
    both = ({"mesh": {"replica": 2, "data": 2}}, {"compute": {"mlp": "model"}}, {"parameters": {"embed": "data"}})
    found = [[str(one.candidate) for one in make_plan(fixed=fixed, budget=1e-9).evaluations] for fixed in both]
    assert "replica 2 x data 2; batch over replica and data; stored with embed over data" in found[0]
    assert found[1] and all(re.search(r"mlp[\w, ]* over model", text) for text in found[1])
    assert found[2] and all("embed over data" in text for text in found[2])


def test_other_decorators_of_a_step_stay():
    step = nym.named_jit(jax.value_and_grad(lambda weight, x: nym.mean(multiply(weight, x)).array))
    assert screen(step, SQUARE, EMBEDDED, fixed=DATA).model_flops == 2 * 2 * BATCH * EMBED * EMBED


def test_tokens_are_whole_numbers_and_other_data_are_samples():
    def step(weight, count, tokens):
        return nym.sum(nym.take(weight, "vocab", tokens)).array + count

    for axes in ({"vocab": BATCH, "embed": EMBED}, {"vocab": BATCH, "pos": 4}):  # parameters may have positions, too
        arguments = make_shape(**axes), make_shape("int32"), make_shape("int32", batch=BATCH, pos=4)
        found = screen(step, *arguments, fixed={"mesh": {"data": 4}})
        assert (found.tokens, found.samples) == (4 * BATCH, BATCH) and "tokens/s" in str(found)

    def classify(weight, images, labels):
        logits = nym.dot(images.astype("float32"), weight, axis=("channel", "height", "width"))
        return nym.mean(nym.nn.cross_entropy_loss(logits, "label", labels)).array

    image, labels = {"channel": 3, "height": 8, "width": 8}, make_shape("int32", batch=BATCH)
    images = make_shape("uint8", batch=BATCH, **image)
    for arguments in ((multiply, SQUARE, EMBEDDED), (classify, make_shape(**image, label=10), images, labels)):
        found = screen(*arguments, fixed=DATA)
        assert (found.tokens, found.samples) == (0, BATCH)
        assert found.samples_per_second() == BATCH / found.best.time.total and "  samples/s  " in str(found)


def test_a_step_with_frozen_parameters_is_planned(cache):
    model = {"embed": make_shape(pixel=PIXEL, embed=EMBED), "head": make_shape(embed=EMBED, mlp=MLP)}
    trained, frozen = eqx.partition(model, {"embed": False, "head": True})

    def step(trained, frozen, x):
        weights = eqx.combine(trained, frozen)
        return nym.mean(nym.dot(nym.dot(x, weights["embed"], axis="pixel"), weights["head"], axis="embed")).array

    plan = nym.planner.plan(step, trained, frozen, X, devices="cpu:4", fixed=STORED, cache=cache)
    assert plan.fits and plan.samples == BATCH


def test_policies_with_which_a_step_cannot_be_traced_are_noted():
    trained, rest = eqx.partition(make_model(), {"first": False, "blocks": True})

    def step(trained, x):
        def compute_trained_loss(trained):
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), rest)
            return compute_loss(eqx.combine(trained, zeros), x)

        return jax.grad(compute_trained_loss)(trained)

    plan = screen(step, trained, X, fixed=DATA, policies={"none": False, "layers": True})
    assert {one.candidate.policy for one in plan.evaluations} == {"none"}
    [note] = [note for note in plan.notes if note.startswith("policy 'layers' was not tried, since the step cannot be")]
    assert note.endswith("so pass the whole model as its first argument")


class ConvolutionBlock(eqx.Module):
    convolution: nym.nn.Conv

    def __call__(self, x):
        return x + self.convolution(x).rename({"out": "embed"})


def test_candidates_that_jax_cannot_trace_are_left_out(cache):
    """Convolutions have no rule for stages on Explicit mesh axes."""
    Layers, Embed = nym.make_axes(layers=4, embed=EMBED)

    def make_block(*, key):
        return ConvolutionBlock(nym.nn.Conv.init("pixel", Embed, Embed.alias("out"), 3, padding="SAME", key=key))

    stack = eqx.filter_eval_shape(Stacked.init(Layers, make_block), key=jax.random.split(jax.random.key(0), 4))

    def step(stack, x):
        return jax.grad(lambda stack: nym.mean(nym.square(stack.fold(x))).array)(stack)

    x = make_shape(batch=8, pixel=PIXEL, embed=EMBED)
    fixed = {"compute": dict.fromkeys(("pixel", "embed", "out", "kernel_pixel")), "parameters": {"embed": None}}
    plan = nym.planner.plan(step, stack, x, devices="cpu:4", fixed=fixed, cache=cache)
    assert plan.fits and not plan.best.candidate.layers
    problems = [evaluation.problem for evaluation in plan.evaluations if evaluation.candidate.layers]
    assert len(problems) == 2 and all("reshape is not supported" in problem for problem in problems)
    assert any(note.startswith("other stages of 'layers' were left out, since two failed") for note in plan.notes)


@pytest.fixture
def fail_at(monkeypatch):
    """Makes compilations raise errors, by their number from 1."""

    def set_errors(errors):
        compile_for, numbers = nym.planner.compile_for, itertools.count(1)

        def compile_or_fail(*args, **kwargs):
            if (error := errors.get(next(numbers))) is not None:
                raise error
            return compile_for(*args, **kwargs)

        monkeypatch.setattr("axonym.planner._search._candidate_compiler.compile_for", compile_or_fail)

    return set_errors


def test_programs_that_are_in_the_cache_whole_rank_as_others_do(make_plan, monkeypatch):
    compile_for = nym.planner.compile_for

    def find_whole(*args, **kwargs):
        program = compile_for(*args, **kwargs)
        text = program.text.replace(", metadata=", ', backend_config={"estimated_cycles":"15"}, metadata=')
        return dataclasses.replace(program, text=text, is_stopped=False)

    monkeypatch.setattr("axonym.planner._search._candidate_compiler.compile_for", find_whole)
    found = make_plan(fixed=DATA)
    assert {one.stage for one in found.evaluations} == {"compiled"} and found.best.time.source == "flops"


def test_the_mapping_of_the_caller_does_not_count(make_plan):
    with nym.axis_mapping(batch="elsewhere"):
        found = make_plan(fixed=DATA)
    assert found.fits and not any(one.problem for one in found.evaluations)


def test_an_error_of_the_disk_ends_the_search_with_what_is_known(make_plan, fail_at):
    late = TimeoutError("compiling for 'cpu:4' took longer than 3600 seconds; raise `timeout`")
    fail_at({2: late, 3: OSError("the disk is full: free some of it")})
    found = make_plan(fixed=DATA)
    assert found.best.stage == "compiled" and "3600 seconds" in found.evaluations[-1].problem
    assert "only screened: the disk is full" in found.notes[0] and found.stopped_by == "error"


def test_published_flags_that_were_not_tried_are_not_listed(make_plan, monkeypatch):
    flags = PublishedFlags("fast", "a paper", ("cpu",), {"xla_fast": True})
    monkeypatch.setattr("axonym.planner._search._published_flags.PUBLISHED_FLAGS", (flags,))
    found = make_plan(fixed=DATA, compiler_options="published", budget=1e-9)
    assert [note for note in found.notes if "fast" in note] == [
        "flags 'fast' were not tried, since no candidate was timed"
    ]


def test_a_candidate_that_cannot_be_compiled_is_replaced_by_the_next(make_plan, fail_at, monkeypatch):
    monkeypatch.setattr("axonym.planner._search._best_candidates._MOST_COMPILED", 2)
    killed = RuntimeError("the compiler for 'cpu:4' was killed by SIGKILL before it had a result")
    fail_at({1: killed})
    found = make_plan(fixed=DATA)
    assert [one.stage for one in found.evaluations].count("compiled") == 3 and found.fits and not found.best.problem
    assert "SIGKILL" in found.evaluations[-1].problem and "1 could not be compiled" in str(found)
    assert "The first that could not be compiled: the compiler" in str(found)
    fail_at({1: killed, 2: RuntimeError("again")})
    assert [bool(one.problem) for one in make_plan(fixed=DATA).evaluations] == [False, True, True]


def test_nothing_compiles_is_the_error_of_the_compiler(make_plan):
    with refusal("refuses an option (given are 'xla_no_such_option'"):
        make_plan(fixed=STORED, compiler_options={"xla_no_such_option": 1})


def test_without_a_fit_the_plan_says_what_would_fit(make_plan, limit_memory, monkeypatch):
    largest = 220_000  # bytes; the step takes 258,716 on four devices, 238,748 with half of the batch
    limit_memory(largest)
    monkeypatch.setattr(nearest_fits, "_MOST_HALVED", 1)  # smaller batches do not fit either
    found = make_plan(fixed=STORED)
    assert not found.fits and found.shortfall == found.best.bytes - largest > 0
    assert any(note.startswith("it would fit on 'cpu:") for note in found.notes), found.notes
    monkeypatch.setattr(nearest_fits, "_CHANGES", {})
    alone = make_plan(devices="cpu:1")
    assert not alone.fits and alone.notes[-1] == "one device cannot shard it; plan for more, such as 'cpu:2'"


def test_what_would_fit_has_sizes_that_the_mesh_divides(cache, limit_memory, monkeypatch):
    """Also where the batch has one sample for each device, and can be neither halved nor divided further."""
    limit_memory(215_000)  # of 238,044 on four devices
    monkeypatch.delitem(nearest_fits._CHANGES, "another policy")
    x = make_shape(batch=4, pixel=PIXEL)
    found = nym.planner.plan(train_step, make_model(), x, devices="cpu:4", fixed=STORED, cache=cache)
    assert not found.fits and not any("divisible" in note for note in found.notes)
    larger = "it would fit on 'cpu:8' with `data` of size 8 and `batch` of size 8, "
    assert any(note.startswith(larger) for note in found.notes), found.notes


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"fixed": {"meshes": {}}}, ValueError, "`fixed` has no 'meshes'.*did you mean 'mesh'"),
        ({"fixed": {"mesh": {"data": 3}}}, ValueError, "has 3 devices, but there are 4"),
        ({"fixed": {"compute": {"bach": "data"}}}, ValueError, "'bach', which no argument has.*'batch'"),
        ({"fixed": {"compute": {"batch": "date"}}}, ValueError, "'batch' over 'date', which is no mesh axis.*'data'"),
        ({"fixed": {"compute": {"mlp": "tensor"}}}, ValueError, "there are stage, .*, model, or those of a `mesh`"),
        ({"fixed": {"mesh": {"data": 4}, "parameters": {"mlp": ("data", "data")}}},
         ValueError, r"`fixed` has 'mlp' over \('data', 'data'\); give each mesh axis once"),
        ({"fixed": {"mesh": {"data": 4}, "parameters": {"mlp": "data", "embed": "data"}}},
         ValueError, r"no sharding of the step is possible on 'cpu:4': `fixed` has 'mlp' and 'embed' over mesh axis "
         r"'data' between steps .*, but both are axes of one array \(layers: 3, mlp: 128, embed: 32\); fix one"),
        ({"fixed": {"compute": {"batch": "model", "mlp": ("data", "model")}}},
         ValueError, r"over mesh axis 'model' while computing, .* array \(batch: 64, mlp: 128\); fix one"),
        ({"fixed": {"parameters": {"layers": "model"}}},
         ValueError, "axis 'layers' has size 3, which is not divisible by mesh axis 'model' of size 2 or 4, as"),
        ({"fixed": {"mesh": {"data": 2, "model": 2}, "compute": {"layers": ("data", "model")}}},
         ValueError, "'layers' has size 3, .* by mesh axes 'data' and 'model' of size 4, .* to None, or change"),
        ({"fixed": {"compute": {"mlp": ("replica", "data", "model")}}},
         ValueError, r"6: a mesh without an axis that is fixed; the axes are \(batch: 64, layers: 3, .* fix less"),
        ({"fixed": {"compute": {nym.Axis("mlp", MLP): "data"}}}, TypeError, "give the name of an axis, such as 'mlp'"),
        ({"fixed": {"mesh": {"data": -1}}}, ValueError, "has -1 devices, .*, with sizes of 1 or more"),
        ({"budget": -3}, ValueError, "`budget` is above 0 seconds, or None for no limit; it was -3"),
        ({"budget": math.nan}, ValueError, "it was nan"),
        ({"devices": jax.devices()}, TypeError, "`devices` is a description such as .* not a sequence of .*Device"),
        ({"fixed": {"compute": {"mlp": 4}}}, TypeError, "`fixed` has 4 for 'mlp'; give a mesh axis"),
        ({"fixed": {3: {}}}, ValueError, "`fixed` has no 3; it takes mesh, compute, parameters, microbatches"),
        ({"fixed": {"mesh": {3: 4}}}, TypeError, "`fixed` has the mesh {3: 4}; names of mesh axes are strings"),
        ({"budget": "60"}, TypeError, "`budget` is a number of seconds"),
        ({"top": "3"}, TypeError, "`top` is how many plans to print"),
        ({"devices": nym.planner.described_devices("cpu:8")[:4]}, ValueError, "are 4 of the 8 devices of 'cpu:8'"),
        ({"fixed": {"compute": "data"}}, TypeError, "`fixed` is a mapping of mappings, such as"),
        ({"compiler_options": "published"}, ValueError, "has no flags for 'cpu', but for v5e, v5p, v6e; give the opt"),
        ({"policies": "full"}, TypeError, "`policies` is 'auto' or a mapping from a name for each policy"),
        ({"policies": {}}, ValueError, "`policies` is empty"),
        ({"options": {"microbatches": 4}}, TypeError, "`options` has 4 for 'microbatches'"),
        ({"gathers": {"int8": "int8"}}, TypeError, "has 'int8' for 'int8'; give a `Policy` without `microbatches`"),
        ({"sizes": ["batch"]}, TypeError, "`sizes` is a mapping from the sizes of axes of the data, such as"),
        ({"sizes": {"batch": 64}}, TypeError, "`sizes` has 64 for 'batch'; give a sequence of sizes to try"),
        ({"sizes": {"batch": (0,)}}, TypeError, r"`sizes` has \(0,\) for 'batch'; give a sequence of sizes to try"),
        ({"sizes": {"embed": (64,)}}, ValueError, "'embed', an axis of the first argument, .*; give axes of the data"),
        ({"sizes": {"bach": (64,)}}, ValueError, "'bach', which no argument has.*'batch'.* of the data are batch"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_said(make_plan, changes, error, message):
    with pytest.raises(error, match=message):
        make_plan(**changes)


def test_the_plan_notes_what_it_does_with_a_step():
    stored = {"batch": "data", "embed": "data"}
    for fn, note in (
        (nym.fsdp(train_step.__wrapped__, stored, {}), "the mappings of the step are replaced by those of the plan"),
        (nym.named_jit(train_step.__wrapped__, in_axis_resources=[None, {"batch": "data"}]), "the mappings of the"),
        (jax.jit(train_step.__wrapped__), "results take memory of their own; donation counts only for functions"),
        (nym.fsdp(train_step.__wrapped__, {}, {}), "the budget"),
    ):
        assert screen(fn, make_model(), X, fixed=DATA).notes[0].startswith(note)
    plain = jax.ShapeDtypeStruct((BATCH, EMBED), "float32")
    found = screen(lambda w, x: x @ w.array, SQUARE, plain)
    assert "no argument but the first has axes of its own, so no batch is sharded" in found.notes[0]
    found = screen(lambda x, w: nym.take(w, "embed", x), make_shape("int32", batch=8), SQUARE)
    assert "the first argument has no floating-point numbers" in found.notes[0]


def test_errors_of_a_step_tell_how_it_is_traced():
    table, tokens = make_shape(vocab=64, embed=EMBED), jax.ShapeDtypeStruct((8, 16), "int32")
    with pytest.raises(Exception, match=r"without names among .* have the shapes \[8, 16\]; name their axes"):
        screen(lambda w, x: w.array[x], table, tokens)

    def step(weight, x):
        with nym.axis_mapping({"batch": "data"}):
            return nym.shard(multiply(weight, x))

    with refusal("leave out `axis_mapping`, `set_mesh` and specs of mesh axes inside"):
        screen(step, SQUARE, EMBEDDED)
    message = r"(?s)argument 'scal'.*called the step with the `options` {'scal': 2}"
    with pytest.raises(TypeError, match=message) as refused:
        screen(multiply, SQUARE, EMBEDDED, options={"scal": (2,)})
    assert refused.value.__notes__


def test_a_method_of_a_model_is_refused():
    block = eqx.filter_eval_shape(Block.init, key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"`fn` is a method of a Block with named arrays, .*: `plan\(Block.__call__"):
        screen(block.__call__, EMBEDDED)
    assert screen(Block.__call__, block, EMBEDDED).parameters


def test_parameters_may_be_stored_over_an_axis_that_computing_leaves():
    fixed = {"mesh": {"data": 2, "model": 2}, "compute": {"batch": "data"}, "parameters": {"embed": "model"}}
    texts = [str(one.candidate) for one in screen(multiply, SQUARE, EMBEDDED, fixed=fixed).evaluations]
    assert any(text.startswith("data 2 x model 2; batch over data; stored with embed over model") for text in texts)


def test_the_next_larger_machine_is_one_that_clouds_have():
    larger = {"v6e:1x1": "v6e:2x2", "v5e:2x4": "v5e:4x4", "v5e:4x4": "v5e:4x8", "v5e:8x4": "v5e:8x8"}
    larger |= {"v6e:16x16": "2 x v6e:16x16", "v5p:16x16x16": "2 x v5p:16x16x16", "cpu:8": "cpu:16"}
    larger |= {"v5p:2x2x1": "v5p:2x2x2", "v5p:4x4x4": "v5p:4x4x8", "v4:4x4x8": "v4:4x8x8"}
    larger |= {"h100:1x1": "h100:2x1", "h100:4x8": "h100:8x8"}
    machines = {name: choose_larger_devices(nym.planner.described_devices(name)) for name in larger}
    assert {name: str(devices[0].topology) for name, devices in machines.items()} == larger


def test_a_policy_is_that_of_layers_in_layers_too():
    class Stage(eqx.Module):
        blocks: Stacked
        dtype: Any = jnp.float32

        @staticmethod
        def init(*, key):
            return Stage(Stacked.init(nym.Axis("layers", LAYERS), Block)(key=jax.random.split(key, LAYERS)))

        def __call__(self, x):
            return self.blocks.fold(x)

    def make_stages(key):
        return Stacked.init(nym.Axis("stages", 2), Stage)(key=jax.random.split(key, 2))

    def compute_loss(stages, x):
        return nym.mean(stages.fold(x)).array

    stages = eqx.filter_eval_shape(make_stages, jax.random.key(0))
    args = stages, make_shape(batch=BATCH, embed=EMBED)
    policies = {"none": False, "full": True, "offload": "offload"}
    found = list_variants(nym.grad(compute_loss), args, policies, None, collections.Counter())
    assert [one.args[0].gradient_checkpointing for one in found] == [*policies.values()]
    assert [one.args[0].stacked.blocks.gradient_checkpointing for one in found] == [*policies.values()]
    assert len({count_model_flops(one) for one in found}) == 1


def test_a_step_without_layers_has_no_policies():
    with refusal("no argument has a `Stacked` or a `BlockSeq`"):
        screen(multiply, make_shape(embed=8, mlp=8), EMBEDDED, policies={"full": True})
    with refusal("no argument has named axes, so there is nothing to shard"):
        screen(lambda x: x, jax.ShapeDtypeStruct((8,), "float32"))
    with refusal("`fn` is a function, not a int", TypeError):
        screen(3, X)

"""Plans with stages, contexts and experts: what is searched, and that such plans run with the losses of one device."""

import collections
import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as nym
from axonym import NamedArray
from axonym.planner import Candidate
from axonym.planner._search._search_space import list_candidates, list_fixed_notes, parse_fixed
from axonym.planner._search._step_variants import list_variants
from examples.models.mixtral import Config, Mixtral
from tests.planner.test_plan_search import make_screening, screen
from tests.refusals import refusal


CONFIG = Config(
    *nym.make_axes(vocab=64, layers=4, embed=32),
    *nym.make_axes(heads=2, group=1, head_dim=8),
    *nym.make_axes(mlp=32, experts=4),
    top_k=4,  # all of them, so that rounding changes no choice
)
OPTIMIZER = optax.sgd(0.1, momentum=0.9)
TOKENS = NamedArray(jax.ShapeDtypeStruct((16, 16), jnp.int32), ("batch", "pos"))


def init_state(key):
    model = Mixtral.init(CONFIG, key=key)
    return model, OPTIMIZER.init(model)


def train_step(model, state, tokens):
    def compute_loss(model):
        return nym.mean(nym.nn.cross_entropy_loss(model(tokens), "vocab", tokens)).scalar()

    loss, gradients = jax.value_and_grad(compute_loss)(model)
    updates, state = OPTIMIZER.update(gradients, state, model)
    return eqx.apply_updates(model, updates), state, loss


@pytest.fixture(scope="module")
def screening():
    return make_screening("cpu:8", train_step, *eqx.filter_eval_shape(init_state, jax.random.key(0)), TOKENS)


def parse(program, fixed):
    return parse_fixed(fixed, program.parameter_names + program.data_names, 8)


def list_all(program, fixed=None):
    return list_candidates(program, 8, parse(program, fixed), collections.Counter())


def trace(fn, *arguments):
    [variant] = list_variants(fn, arguments, None, None, collections.Counter())
    return variant.named_program


def test_a_table_that_is_broadcast_over_the_batch_neither_keeps_it_whole_nor_takes_its_mesh_axis():
    def compute_loss(table, tokens):  # whose gradients in 16 bits are added up in 32
        return nym.nn.Embedding(table, nym.Axis("vocab", 64), (nym.Axis("embed", 8),))(tokens).sum().scalar()

    table = nym.NamedArray(jax.ShapeDtypeStruct((64, 8), jnp.bfloat16), ("vocab", "embed"))
    program = trace(jax.grad(compute_loss), table, TOKENS)
    assert program.sizes == {"vocab": {64}, "embed": {8}, "batch": {16}, "pos": {16}}
    assert not any({"vocab", "pos"} <= names for names in program.arrays)


STAGES = {"mesh": {"stage": 2, "data": 4}}


def test_stages_have_schedules_and_compute_in_the_bubble(screening):
    program, screening = screening
    candidates = list_all(program, STAGES)
    assert {candidate.schedule.microbatches for candidate in candidates} == {2, 4}  # 16 examples on 4 devices
    for candidate in candidates:
        assert candidate.compute["batch"] == ("data", "stage") and candidate.axis_types == "explicit"
        assert candidate.compute["layers"] == candidate.parameters["layers"] == ("stage",)
    by_count = {candidate.schedule.microbatches: screening.screen(candidate).estimate for candidate in candidates}
    # Of 3 and of 5 turns, one is the bubble; what is outside of the layers is computed once.
    assert 1 < by_count[2].time.compute / by_count[4].time.compute < (3 / 2) / (5 / 4)
    whole = screening.screen(Candidate({"data": 8}, {"batch": ("data",)}, {"batch": ("data",), "embed": ("data",)}))
    assert sum(by_count[4].sent.values()) < sum(whole.estimate.sent.values())
    # Parameters of the layers are gathered before the first turn, when nothing is computed.
    assert by_count[4].time.waiting[("stage",)] > 0 and ("data",) not in by_count[4].time.hidden


def test_experts_and_contexts_have_mesh_axes_beside_those_of_the_batch(screening):
    program, _ = screening
    assert program.layer_names == ("layers",) and program.shared_names == ("experts",)
    candidates = list_all(program)
    meshes = {tuple(candidate.mesh) for candidate in candidates}
    assert {("stage", "data", "model"), ("stage", "data", "expert")} <= meshes
    assert {("data", "expert", "model"), ("data", "context", "model")} <= meshes
    for candidate in candidates:
        if "expert" in candidate.mesh:
            assert candidate.compute["experts"] == ("expert",)
            assert any("expert" in candidate.compute.get(name, ()) for name in ("batch", "pos"))
        if "stage" in candidate.mesh:  # attention reads all positions
            assert candidate.compute["batch"][-1] == "stage"
        if "context" in candidate.mesh:
            assert candidate.compute["pos"] == ("context",)
        # The hidden axis of experts and positions meet in the function of shards, where arrays have no names.
        assert not set(candidate.compute.get("mlp", ())) & set(candidate.compute.get("pos", ()))


@pytest.mark.parametrize(
    ("mesh", "sharding"),
    [
        ({"data": 4, "context": 2}, "batch over data; stored with mlp over data"),
        ({"data": 2, "expert": 4}, "batch over data and expert; stored with mlp over data"),
        ({"expert": 8}, "batch over expert; stored with mlp over expert"),
        ({"stage": 8}, "batch over stage; stored with mlp over stage"),
    ],
)
def test_meshes_may_have_axes_that_a_step_has_no_use_for(mesh, sharding):
    assert sharding in list_shardings(lambda weight, x: nym.mean(nym.dot(x, weight, axis="embed")), mesh)


def test_results_are_sharded_as_between_steps():
    shardings = list_shardings(lambda weight, x: nym.dot(x, weight, axis="embed"), {"data": 8})
    assert shardings == ["batch over data"]  # with `mlp` stored over it, too, logits would have `data` twice


def list_shardings(multiply, mesh):
    shapes = {"weight": ((32, 64), ("embed", "mlp")), "x": ((16, 32), ("batch", "embed"))}
    arguments = [NamedArray(jax.ShapeDtypeStruct(shape, jnp.float32), names) for shape, names in shapes.values()]
    candidates = list_all(trace(multiply, *arguments), {"mesh": mesh})
    return [str(candidate).partition("; ")[2] for candidate in candidates]


def test_microbatches_along_which_layers_mix_are_noted(screening):
    program, _ = screening
    notes = list_fixed_notes(program, parse(program, {"microbatches": {"pos": 4}}))
    assert [note.partition(",")[0] for note in notes] == ["layers may mix what is along 'pos'"]
    assert not [*list_fixed_notes(program, parse(program, {"microbatches": {"batch": 4}}))]
    [note] = list_fixed_notes(program, parse(program, {"mesh": {"stages": 2, "data": 4}}))
    assert "did you mean 'stage'" in note and "the last axis is for any axes" in note


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"embed": 4}, "of 'embed', an axis of the parameters; give one of the data, of which there are batch, pos"),
        ({"bach": 4}, "microbatches of 'bach', which no argument has; did you mean 'batch'"),
        ({"batch": 0}, "as microbatches; give an axis and a number, as"),
        ({"pos": 3, "batch": 2}, "as microbatches; give an axis and a number, as"),
        ({"batch": 4}, "no candidate has stages; give the fixed mesh an axis 'stage'"),
    ],
)
def test_microbatches_that_cannot_be_are_said(fixed, message):
    arguments = make_mixers(nym.Axis("layers", 2), nym.nn.relu), make_features()
    with refusal(message):
        screen(compute_gradients, *arguments, devices="cpu:8", fixed={"mesh": {"data": 8}, "microbatches": fixed})


def subtract_mean(x):
    return x - nym.mean(x, "batch")


def attend_linearly(x):
    keys = x.rename({"embed": "key"})
    return nym.dot(keys, nym.dot(keys, x, axis="pos"), axis="key")


def shift(x):
    return x + nym.roll(x, 1, "pos")


def reverse(x):
    return NamedArray(jnp.flip(x.array, x.names.index("pos")), x.names)


class Mixer(eqx.Module):
    linear: nym.nn.Linear
    mix: Callable = eqx.field(static=True)

    @staticmethod
    def init(mix, *, key):
        Embed = nym.Axis("embed", 32)
        return Mixer(nym.nn.Linear.init(Embed, Embed.alias("out"), key=key), mix)

    def __call__(self, x):
        return x + self.linear(self.mix(x)).rename({"out": "embed"})


def make_mixers(Layers, mix):
    init = nym.nn.Stacked.init(Layers, Mixer)
    return eqx.filter_eval_shape(functools.partial(init, mix), key=jax.random.split(jax.random.key(0), Layers.size))


def make_features():
    return NamedArray(jax.ShapeDtypeStruct((16, 16, 32), jnp.float32), ("batch", "pos", "features"))


def compute_gradients(stack, x):
    return jax.grad(lambda stack: nym.mean(stack.fold(x.rename({"features": "embed"}))).scalar())(stack)


def test_layers_of_all_stacks_are_in_stages():
    def compute_all_gradients(stacks, x):
        return jax.grad(lambda stacks: nym.mean(stacks[1].fold(stacks[0].fold(x))).scalar())(stacks)

    stacks = [make_mixers(Layers, nym.nn.relu) for Layers in nym.make_axes(encoder=4, decoder=2)]
    candidates = list_all(trace(compute_all_gradients, stacks, make_features().rename({"features": "embed"})), STAGES)
    assert {candidate.layers for candidate in candidates} == {("encoder", "decoder")}
    assert {candidate.stage_axes for candidate in candidates} == {("stage",)}


@pytest.mark.parametrize(
    ("mix", "names"),
    [
        (nym.nn.relu, {"batch", "pos"}),
        (subtract_mean, {"pos"}),
        (attend_linearly, {"batch"}),
        (shift, {"batch"}),
        (reverse, {"batch"}),
        (functools.partial(nym.cumsum, axis="pos"), {"batch"}),
        (functools.partial(nym.nn.softmax, axis="pos"), {"batch"}),
    ],
)
def test_microbatches_divide_no_axis_along_which_layers_mix(mix, names):
    program = trace(compute_gradients, make_mixers(nym.Axis("layers", 2), mix), make_features())
    candidates = list_all(program, STAGES)
    assert {name for candidate in candidates for name in candidate.microbatches} == names  # layers have no `features`


def run_steps(step, arguments, tokens, count=2):
    losses = []
    for _ in range(count):
        *arguments, loss = step(*arguments, tokens)
        losses.append(float(loss))
    return losses


def test_a_plan_with_stages_contexts_and_experts_has_the_losses_of_one_device(cache, draw, monkeypatch):
    monkeypatch.setattr("axonym.planner._search._best_candidates._MOST_COMPILED", 1)
    fixed = {"mesh": {"stage": 2, "expert": 2, "context": 2}, "microbatches": {"batch": 4}}
    stored = {"heads": "expert", "vocab": "stage", "embed": "context", "mlp": None, "head_dim": None}
    fixed = {**fixed, "parameters": stored}
    shapes = eqx.filter_eval_shape(init_state, jax.random.key(0))
    plan = nym.planner.plan(train_step, *shapes, TOKENS, devices="cpu:8", cache=cache, fixed=fixed)
    best = plan.best.candidate
    assert plan.best.stage == "compiled" and plan.fits
    assert (best.compute["layers"], best.compute["experts"], best.compute["pos"]) == (
        ("stage",),
        ("expert",),
        ("context",),
    )
    assert best.compute["batch"] == ("expert", "stage") and best.schedule.turns == 5
    assert "4 microbatches (bubble 20.0%)" in str(plan)

    random = np.random.default_rng(0)
    state = jax.tree.map(lambda x: random.normal(size=x.shape, scale=0.1).astype(x.dtype), shapes)
    tokens = draw.integers(0, 64, batch=16, pos=16).astype(jnp.int32)
    expected = run_steps(nym.named_jit(train_step), state, tokens)
    policy = nym.Policy(microbatches=plan.microbatches)
    step = nym.fsdp(train_step, plan.parameters, plan.compute, policy=policy)
    with jax.set_mesh(plan.mesh()):
        assert plan.mesh().axis_types[0] == jax.sharding.AxisType.Explicit
        losses = run_steps(step, nym.shard(state, plan.parameters), tokens)
    assert losses[1] < losses[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-4)

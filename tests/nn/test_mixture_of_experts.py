"""The mixture of experts: parity with every token through every expert, sharded over experts, capacity, and errors."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym

from ..hlo import Program
from ..refusals import refusal
from .conftest import arrays, assert_close, results, weighted


Batch, Pos, Embed, Mlp, Experts = nym.make_axes(batch=8, pos=4, embed=8, mlp=22, experts=8)
KEY = jax.random.key(0)
MIXTURE = functools.partial(nym.nn.MixtureOfExperts.init, Embed, Mlp, Experts, 2, key=KEY)
EXPERT = {"experts": "expert", "batch": "data"}
BOTH = {"experts": "expert", "batch": ("data", "expert")}


MESH = {"data": 2, "expert": 4}


def make_mesh(kind, sizes=MESH):
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(getattr(AxisType, kind),) * len(sizes))


@pytest.fixture(params=["Auto", "Explicit"])
def expert_mesh(request, no_mesh):
    """A mesh with an expert axis, not entered: arrays made on an Explicit mesh have it in their types."""
    return make_mesh(request.param)


def mix_by_hand(layer, x):
    """Sends every token through every expert; weights are 0 for experts that it did not choose."""
    weights, experts, logits = layer.router(x)
    chosen = jax.nn.one_hot(experts.array, Experts.size)
    shares = (chosen * weights.array[..., None]).sum(-2)
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (x.array, layer.up.array, layer.down.array))
    hidden = jnp.einsum("bpe,xem->bpxm", *wide[:2])
    if layer.gate is None:
        hidden = layer.activation(hidden)
    else:
        gate = layer.gate.array.astype(jnp.float32)
        hidden = hidden * layer.activation(jnp.einsum("bpe,xem->bpxm", wide[0], gate))
    out = jnp.einsum("bpxm,xme,bpx->bpe", hidden, wide[2], shares)
    share, probabilities = chosen.mean((0, 1, 2)), jax.nn.softmax(logits.array)
    losses = (
        Experts.size * (share * probabilities.mean((0, 1))).sum(),
        (jax.nn.logsumexp(logits.array, -1) ** 2).mean(),
    )
    return nym.named(out.astype(x.dtype) + sum(losses).astype(x.dtype), x.names)


def mix(layer, x):
    """The layer, with its losses added, so that gradients are of all of them."""
    out, metrics = layer(x)
    return (out + (metrics.load_balance_loss + metrics.router_z_loss).astype(x.dtype)).rearrange(x.names)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize": False, "capacity_factor": 8.0},
        {"gated": False, "softmax": "after", "activation": nym.nn.gelu},
    ],
    ids=["mixtral", "switch", "not gated"],
)
def test_mixture_is_that_of_all_experts_with_weights(draw, options):
    layer, x = draw.layer(lambda key: MIXTURE(**options)), draw(Batch, Pos, Embed)
    assert_close(jax.jit(results(mix))(layer, (x,)), jax.jit(results(mix_by_hand))(layer, (x,)), 1e-4)


def results_and_load(layer, x):
    """Returns the result, the metrics, and the gradients for the layer and its input."""

    def loss(layer, x):
        out, metrics = layer(x)
        losses = (metrics.load_balance_loss + metrics.router_z_loss).scalar()
        return ((out.astype(jnp.float32) * jnp.float32(0.1)) ** 2).sum().scalar() + losses, (out, metrics)

    gradients, (out, metrics) = jax.grad(loss, (0, 1), has_aux=True)(layer, x)
    return out, metrics, *gradients


FULL = {"experts": "expert", "mlp": "data"}
FOLDED = {**BOTH, "mlp": "model"}
CASES = [
    ("Auto", {**EXPERT, "embed": "data"}, EXPERT, None, "auto"),
    ("Auto", BOTH, BOTH, 1.0, "auto"),
    ("Explicit", BOTH, BOTH, None, "auto"),
    ("Explicit", {**EXPERT, "embed": "data"}, EXPERT, 1.0, "auto"),
    ("Explicit", FULL, FULL, None, "auto"),
    ("Explicit", BOTH, BOTH, 1.0, "all_to_all"),
    ("Auto", {**BOTH, "embed": "data"}, BOTH, None, "ragged_all_to_all"),
    ("Explicit", BOTH, BOTH, 1.0, "ragged_all_to_all"),
    ("Auto", BOTH, BOTH, 1.0, "gather"),
    ("Auto", FOLDED, FOLDED, None, "gather"),
    ("Auto", FOLDED, FOLDED, 1.0, "ragged_all_to_all"),
    ("Explicit", {**FOLDED, "embed": "data"}, FOLDED, None, "ragged_all_to_all"),
    ("Explicit", FOLDED, FOLDED, 1.0, "all_to_all"),
]


@pytest.mark.parametrize(("kind", "stored", "mapping", "capacity_factor", "dispatch"), CASES)
def test_sharded_mixture_is_the_same(draw, kind, stored, mapping, capacity_factor, dispatch):
    layer = draw.layer(lambda key: MIXTURE(capacity_factor=capacity_factor, capacity_axis="pos", dispatch=dispatch))
    x = draw(Batch, Pos, Embed)
    expected = jax.jit(results_and_load)(layer, x)
    assert (expected[1].dropped_fraction.item() > 0) == (capacity_factor is not None)
    with jax.set_mesh(make_mesh(kind, {"data": 2, "expert": 2, "model": 2} if mapping == FOLDED else MESH)):
        options = {
            "in_axis_resources": (stored, mapping),
            "out_axis_resources": (mapping, mapping, stored, mapping),
        }
        step = nym.fsdp(results_and_load, stored, mapping, **options)
        compiled = step.lower(layer, x).compile()
        result = compiled(nym.shard(layer, stored), nym.shard(x, mapping))
        assert result[0].sharding.is_equivalent_to(nym.sharding_for_axis(x.axes, mapping), 3)
    assert_close(result, expected, 1e-5)
    check_exchanges(compiled.as_text(), stored, mapping, layer)


def check_exchanges(text, stored, mapping, layer):
    """Checks that no weights of experts travel, but those of its own experts that are stored in shards."""
    exchanges = [collective for collective in Program(text).collectives() if "reduce" not in collective.kind]
    shapes = [array.shape for collective in exchanges for array in collective.results]
    hidden = Mlp.size // 2 if mapping == FOLDED else Mlp.size
    weights = [shape for shape in shapes if hidden in shape or Mlp.size in shape]
    assert bool(weights) == (stored != mapping), f"{mapping}: {shapes}"
    local_size = Experts.size // (2 if mapping == FOLDED else 4) * Embed.size * hidden
    assert not [shape for shape in weights if math.prod(shape) > local_size], f"{mapping}: {weights}"
    kinds = {collective.kind for collective in exchanges}
    sends_slots = layer.capacity_factor is not None and layer.dispatch in ("auto", "all_to_all")
    assert ("all-to-all" in kinds) == ("expert" in mapping.get("batch", "") and sends_slots), f"{mapping}: {kinds}"


@pytest.mark.parametrize("dispatch", ["gather", "ragged_all_to_all"])
def test_experts_without_tokens_are_left_alone(draw, dispatch):
    layer, x = draw.layer(lambda key: MIXTURE(dispatch=dispatch)), nym.abs(draw(Batch, Pos, Embed))
    scores = jnp.zeros((Experts.size, Embed.size)).at[5].set(10.0).at[6].set(5.0)  # all on the last devices
    layer = eqx.tree_at(lambda layer: layer.router.weight, layer, nym.named(scores, ("experts", "embed")))
    expected = jax.jit(results_and_load)(layer, x)
    with jax.set_mesh(make_mesh("Explicit")):
        result = nym.named_jit(results_and_load, BOTH)(nym.shard(layer, BOTH), nym.shard(x, BOTH))
    assert_close(result, expected, 1e-4)
    assert result[1].tokens_per_expert.array.tolist() == [0, 0, 0, 0, 0, 32, 32, 0]
    gradient = np.asarray(result[2].up.array)
    assert not gradient[:5].any() and gradient[5].any()


def test_full_experts_drop_the_last_choices(draw):
    layer, x = draw.layer(lambda key: MIXTURE(capacity_factor=0.75)), draw(Batch, Pos, Embed)
    weights, experts, _ = jax.tree.map(np.asarray, layer.router(x))
    capacity = math.ceil(0.75 * Batch.size * Pos.size * 2 / Experts.size)
    counts, is_kept = np.zeros(Experts.size, int), np.zeros((Batch.size, Pos.size, 2), bool)
    for choice, batch, pos in np.ndindex(2, Batch.size, Pos.size):
        expert = experts.array[batch, pos, choice]
        is_kept[batch, pos, choice] = counts[expert] < capacity
        counts[expert] += 1
    down = [layer.down.array[expert] for expert in range(Experts.size)]
    rows = np.einsum("bpe,xem->bpxm", x.array, layer.up.array)
    rows *= np.asarray(jax.nn.silu(np.einsum("bpe,xem->bpxm", x.array, layer.gate.array)))
    rows = np.einsum("bpxm,xme->bpxe", rows, np.asarray(down))
    chosen_rows = np.take_along_axis(rows, experts.array[..., None], 2)
    expected = (chosen_rows * (weights.array * is_kept)[..., None]).sum(2)
    out, metrics = jax.jit(lambda layer, x: layer(x))(layer, x)
    np.testing.assert_allclose(out.array, expected, rtol=1e-4, atol=1e-4)
    assert metrics.tokens_per_expert.array.tolist() == counts.tolist()
    assert metrics.dropped_fraction.item() == pytest.approx(1 - is_kept.mean()) and not is_kept.all()


def test_mixture_in_bfloat16(draw):
    layer, x = jax.tree.map(
        lambda leaf: leaf.astype(jnp.bfloat16), (draw.layer(lambda key: MIXTURE()), draw(Batch, Pos, Embed))
    )
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (layer, x))
    expected = jax.jit(results_and_load)(*wide)
    with jax.set_mesh(make_mesh("Explicit")):
        result = nym.named_jit(results_and_load, BOTH)(nym.shard(layer, BOTH), nym.shard(x, BOTH))
    assert {x.dtype for x in arrays((result[0], *result[2:]))} == {jnp.dtype(jnp.bfloat16)}
    assert result[1].router_z_loss.dtype == jnp.float32
    for actual, target in zip(arrays(result), arrays(expected), strict=True):
        actual, target = np.asarray(actual.array, np.float32), np.asarray(target.array)
        assert np.abs(actual - target).max() <= 0.06 * np.abs(target).max()


def test_layers_may_be_stacked(expert_mesh):
    Layers = nym.Axis("layers", 2)
    make = nym.nn.Stacked.init(Layers, nym.nn.MixtureOfExperts, gradient_checkpointing=True)
    stack, x = make(Embed, Mlp, Experts, 2, key=KEY), nym.random.normal(KEY, (Batch, Pos, Embed))

    def loss(stack, x, run_layers):
        out, metrics = run_layers(stack, x)
        return (out**2).sum().scalar() + metrics.load_balance_loss.sum().scalar(), (out, metrics.tokens_per_expert)

    def run_unrolled(stack, x):
        x, one = stack.get_layer(0)(x)
        x, two = stack.get_layer(1)(x)
        return x, jax.tree.map(lambda *each: nym.stack(Layers, each), one, two, is_leaf=nym.is_named_array)

    run = jax.grad(loss, has_aux=True)
    expected = jax.jit(lambda stack, x: run(stack, x, run_unrolled))(stack, x)
    with jax.set_mesh(expert_mesh):
        step = nym.named_jit(lambda stack, x: run(stack, x, nym.nn.Stacked.scan), EXPERT)
        result = step(nym.shard(stack, EXPERT), nym.shard(x, EXPERT))
    assert_close(result, expected, 1e-3)


STAGES = {"stage": "stage", "experts": "expert", "batch": ("data", "expert")}


def map_stages(layers, x):
    """Results and gradients of the layers of each stage, as in a pipeline."""

    def loss(layers, x):
        out, metrics = nym.vmap(mix_stage, "stage")(layers, x)
        return weighted(out) + metrics.load_balance_loss.sum().scalar(), (out, metrics)

    return jax.grad(loss, (0, 1), has_aux=True)(layers, x)


def mix_stage(layers, x):
    return layers.scan(x)


@pytest.mark.parametrize(
    ("kind", "capacity_factor", "dispatch"),
    [
        ("Auto", None, "gather"),
        ("Auto", None, "ragged_all_to_all"),
        ("Auto", 1.0, "all_to_all"),
        ("Explicit", 1.0, "all_to_all"),
        ("Explicit", None, "gather"),
        ("Explicit", 1.0, "ragged_all_to_all"),
    ],
)
def test_stages_are_mapped_over(draw, kind, capacity_factor, dispatch):
    options = {"capacity_factor": capacity_factor, "capacity_axis": "pos", "dispatch": dispatch}
    make_stage = nym.nn.Stacked.init(nym.Axis("layers", 2), nym.nn.MixtureOfExperts)
    make = nym.nn.Stacked.init(nym.Axis("stage", 2), make_stage)
    layers = draw.layer(lambda key: make(Embed, Mlp, Experts, 2, key=key, **options)).stacked
    x = draw(nym.Axis("stage", 2), Batch, Pos, Embed)
    expected = jax.jit(map_stages)(layers, x)
    with jax.set_mesh(make_mesh(kind, {"stage": 2, "data": 2, "expert": 2})):
        step = nym.named_jit(map_stages, STAGES)
        arguments = nym.shard(layers, STAGES), nym.shard(x, STAGES)
        assert_close(step(*arguments), expected, 1e-4)


def test_other_devices_than_cpus_send_ragged_rows():
    layer, x = MIXTURE(dispatch="ragged_all_to_all"), nym.zeros((Batch, Pos, Embed))
    device = jax.sharding.AbstractDevice("TPU v5", 1, "tpu")
    mesh = jax.sharding.AbstractMesh((2, 4), ("data", "expert"), (AxisType.Auto,) * 2, abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh), nym.axis_mapping(BOTH):
        exchanges = str(jax.make_jaxpr(results_and_load)(layer, x)).count("ragged_all_to_all[")
    assert exchanges == 4  # there and back, forward and backward


def test_calls_outside_of_jit_and_without_a_mapping(draw):
    layer, x = MIXTURE(dispatch="ragged_all_to_all"), draw(Embed)  # a single token, which has no axis
    expected = layer(x)[0]
    with jax.set_mesh(make_mesh("Explicit")):
        assert_close(nym.named_jit(lambda layer, x: layer(x)[0])(layer, x), expected, 1e-5)
        with nym.axis_mapping(EXPERT):
            assert_close(nym.shard(layer)(nym.shard(x))[0], expected, 1e-5)
        with nym.axis_mapping(BOTH):
            x = draw(Batch, Embed)
            assert_close(nym.shard(layer)(nym.shard(x)), layer(x), 1e-5)


@pytest.fixture
def entered(no_mesh):
    with jax.set_mesh(make_mesh("Auto")):
        yield


def test_wrong_arguments_are_refused(entered, draw):
    with refusal("Router (embed: 8 -> experts: 8): `top_k` must be from 1 to the number of experts, it is 9"):
        nym.nn.MixtureOfExperts.init(Embed, Mlp, Experts, 9, key=KEY)
    with refusal("`capacity_factor`, where None drops no token, must be above 0, not 0.0"):
        MIXTURE(capacity_factor=0.0)
    with refusal(
        "MixtureOfExperts: `dispatch` must be 'auto', 'gather', 'all_to_all' or 'ragged_all_to_all', not 'all'"
    ):
        MIXTURE(dispatch="all")
    with refusal(
        "`dispatch` 'all_to_all' sends as many rows as a capacity; give a `capacity_factor`, or take 'gather'"
    ):
        MIXTURE(dispatch="all_to_all")
    layer, x = draw.layer(lambda key: MIXTURE()), draw(Batch, Pos, Embed)
    with refusal("MixtureOfExperts (embed: 8, mlp: 22, experts: 8): no axis 'embed' in (batch: 8, pos: 4)"):
        layer(x["embed", 0])
    with refusal("has the output axis 'mlp' already"):
        layer(x.rename({"pos": "mlp"}))
    with nym.axis_mapping(experts="expert"), refusal("axis 'experts' has size 6, which is not divisible by mesh axis"):
        nym.nn.MixtureOfExperts.init(Embed, Mlp, Experts.resize(6), 2, key=KEY)
    with nym.axis_mapping(batch="data", mlp="data"):
        with refusal("axes 'batch' and 'mlp' are both sharded over mesh axis 'data'; map one of them to another"):
            layer(x)
    layer = MIXTURE(capacity_factor=1.0)
    with nym.axis_mapping(EXPERT):
        with refusal(
            "MixtureOfExperts (embed: 8, mlp: 22, experts: 8): tokens compete for the capacity along axis 'batch', "
            "which is sharded over (data); name other axes of (batch: 8, pos: 4, embed: 8) with `capacity_axis`, or map"
        ):
            layer(x)
    layer = MIXTURE(capacity_factor=1.0, capacity_axis="time")
    with refusal("(capacity): no axis 'time' in (batch: 8, pos: 4, embed: 8)"):
        layer(x)

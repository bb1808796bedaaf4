"""Mixtures of experts, the router and `ragged_dot`: parity with every token through every expert, sharded and not."""

import dataclasses
import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..hlo import Program
from ..refusals import refusal
from .conftest import COMPUTE, arrays, assert_close, results, weighted


Batch, Pos, Embed, Mlp, Experts = nym.make_axes(batch=8, pos=4, embed=8, mlp=22, experts=8)
Token, Copy, Hidden = nym.make_axes(token=16, copy=2, hidden=10)
KEY = jax.random.key(0)
MIXTURE = functools.partial(nym.nn.MixtureOfExperts.init, Embed, Mlp, Experts, 2, key=KEY, capacity_axis="pos")
EXPERT = {"experts": "expert", "batch": "data"}
BOTH = {"experts": "expert", "batch": ("data", "expert")}
FULL = {"experts": "expert", "mlp": "data"}
FOLDED = {**BOTH, "mlp": "model"}


def make_mesh(axis_types, **sizes):
    sizes = sizes or {"data": 2, "expert": 4}
    return nym.create_mesh(tuple(sizes.values()), tuple(sizes), axis_types=axis_types)


def route_by_hand(router, x):
    logits = jnp.einsum("bpe,xe->bpx", x.array.astype(jnp.float32), router.weight.array.astype(jnp.float32))
    if router.softmax == "after":
        chosen, experts = jax.lax.top_k(logits, router.TopK.size)
        return jax.nn.softmax(chosen), experts, logits
    chosen, experts = jax.lax.top_k(jax.nn.softmax(logits), router.TopK.size)
    return chosen / chosen.sum(-1, keepdims=True) if router.normalize else chosen, experts, logits


@pytest.mark.parametrize(("softmax", "normalize"), [("before", True), ("before", False), ("after", False)])
def test_router_chooses_the_largest_scores(draw, softmax, normalize):
    router = draw.layer(nym.nn.Router.init, Embed, Experts, 2, softmax=softmax, normalize=normalize)
    x = draw(Batch, Pos, Embed).astype(jnp.bfloat16)
    routing, (weights, experts, logits) = jax.jit(lambda *args: (args[0](args[1]), route_by_hand(*args)))(router, x)
    assert routing.weights.dtype == jnp.float32  # whatever the element type of the model
    np.testing.assert_allclose(routing.weights.array, weights, rtol=1e-5)
    np.testing.assert_array_equal(routing.experts.array, experts)
    np.testing.assert_allclose(routing.logits.array, logits, rtol=1e-5, atol=1e-6)


def test_router_has_the_gradient_of_its_weights(check, draw):
    router, names = draw.layer(nym.nn.Router.init, Embed, Experts, nym.Axis("choice", 2)), ("batch", "pos", "choice")
    by_hand = lambda router, x: nym.named(route_by_hand(router, x)[0], names)  # noqa: E731
    check(lambda router, x: router(x).weights, by_hand, router, draw(Batch, Pos, Embed))


def test_losses_are_those_of_the_papers(mesh, draw):
    logits = draw(Batch, Experts)
    expected = np.mean(np.log(np.exp(np.asarray(logits.array, float)).sum(-1)) ** 2)
    with nym.axis_mapping(COMPUTE):
        np.testing.assert_allclose(nym.nn.router_z_loss(logits, Experts).array, expected, rtol=1e-5)
    probabilities = nym.softmax(logits, Experts)
    counts = nym.bincount(nym.argmax(probabilities, Experts), Experts)

    def loss(probabilities):
        return nym.nn.load_balance_loss(counts, probabilities.mean(Batch), Experts)

    shares = np.bincount(np.asarray(probabilities.array).argmax(-1), minlength=8) / 8
    result, gradient = jax.jit(results(lambda probabilities: loss(probabilities)))(probabilities, ())
    np.testing.assert_allclose(result.array, 8 * (shares * np.asarray(probabilities.array).mean(0)).sum(), rtol=1e-5)
    np.testing.assert_allclose(jax.tree.leaves(gradient)[0], np.sin(1) * np.tile(shares, (8, 1)), rtol=1e-5)


def test_errors_of_the_router_and_its_losses():
    with refusal("Router (embed: 8 -> experts: 8): `top_k` must be from 1 to the number of experts, it is 9"):
        nym.nn.Router.init(Embed, Experts, 9, key=KEY)
    with refusal("Router: `softmax` must be 'before' or 'after', not 'none'"):
        nym.nn.Router.init(Embed, Experts, 2, key=KEY, softmax="none")


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
    [{}, {"normalize": False, "capacity_factor": 8.0, "gated": False, "activation": nym.nn.gelu}],
    ids=["mixtral", "switch"],
)
def test_mixture_is_that_of_all_experts_with_weights(draw, options):
    layer, x = draw.layer(lambda key: MIXTURE(**options)), draw(Batch, Pos, Embed)
    compute = jax.jit(lambda layer, x: (results(mix)(layer, (x,)), results(mix_by_hand)(layer, (x,))))
    assert_close(*compute(layer, x), 1e-4)


def results_and_load(layer, x):
    """Returns the result, the metrics, and the gradients for the layer and its input."""

    def loss(layer, x):
        out, metrics = layer(x)
        losses = (metrics.load_balance_loss + metrics.router_z_loss).scalar()
        return ((out.astype(jnp.float32) * jnp.float32(0.1)) ** 2).sum().scalar() + losses, (out, metrics)

    gradients, (out, metrics) = jax.grad(loss, (0, 1), has_aux=True)(layer, x)
    return out, metrics, *gradients


compute_on_one_device = jax.jit(results_and_load)


@pytest.mark.parametrize(
    ("axis_types", "stored", "mapping", "capacity_factor", "dispatch"),
    [
        ("auto", {**EXPERT, "embed": "data"}, EXPERT, None, "auto"),
        pytest.param("auto", BOTH, BOTH, 1.0, "auto", marks=pytest.mark.thorough),
        ("explicit", FULL, FULL, None, "auto"),
        ("explicit", {**EXPERT, "embed": "data"}, EXPERT, 1.0, "auto"),
        ("auto", FOLDED, FOLDED, None, "gather"),
        ("explicit", {**FOLDED, "embed": "data"}, FOLDED, None, "ragged_all_to_all"),
        pytest.param("explicit", FOLDED, FOLDED, 1.0, "all_to_all", marks=pytest.mark.thorough),
    ],
)
def test_sharded_mixture_is_the_same(draw, axis_types, stored, mapping, capacity_factor, dispatch):
    layer = draw.layer(lambda key: MIXTURE(capacity_factor=capacity_factor))
    x = draw(Batch, Pos, Embed)
    expected = compute_on_one_device(layer, x)
    assert (expected[1].dropped_fraction.item() > 0) == (capacity_factor is not None)
    layer = dataclasses.replace(layer, dispatch=dispatch)
    sizes = {"data": 2, "expert": 2, "model": 2} if mapping == FOLDED else {}
    with jax.set_mesh(make_mesh(axis_types, **sizes)):
        step = nym.fsdp(
            results_and_load,
            stored,
            mapping,
            in_axis_resources=(stored, mapping),
            out_axis_resources=(mapping, mapping, stored, mapping),
        )
        compiled = step.lower(layer, x).compile()
        result = compiled(nym.shard(layer, stored), nym.shard(x, mapping))
        assert result[0].sharding.is_equivalent_to(nym.sharding_for_axis(x.axes, mapping), 3)
        for gradient in arrays(result[2]):
            assert gradient.sharding.is_equivalent_to(nym.sharding_for_axis(gradient.axes, stored), gradient.ndim)
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


def test_experts_without_tokens_are_left_alone(draw):
    layer, x = draw.layer(lambda key: MIXTURE()), nym.abs(draw(Batch, Pos, Embed))
    scores = np.zeros((Experts.size, Embed.size), np.float32)
    scores[5], scores[6] = 10, 5  # all on the last devices
    layer = eqx.tree_at(lambda layer: layer.router.weight.array, layer, jax.device_put(scores))
    expected = compute_on_one_device(layer, x)
    layer = dataclasses.replace(layer, dispatch="ragged_all_to_all")
    with jax.set_mesh(make_mesh("explicit")):
        result = nym.named_jit(results_and_load, BOTH)(nym.shard(layer, BOTH), nym.shard(x, BOTH))
    assert_close(result, expected, 1e-4)
    assert result[1].tokens_per_expert.array.tolist() == [0, 0, 0, 0, 0, 32, 32, 0]
    gradient = np.asarray(result[2].up.array)
    assert not gradient[:5].any() and gradient[5].any()


def test_full_experts_drop_the_last_choices(draw):
    layer, x = draw.layer(lambda key: MIXTURE(capacity_factor=0.75, capacity_axis=None)), draw(Batch, Pos, Embed)
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
    expected = compute_on_one_device(*wide)
    with jax.set_mesh(make_mesh("explicit")):
        result = nym.named_jit(results_and_load, BOTH)(nym.shard(layer, BOTH), nym.shard(x, BOTH))
    assert {x.dtype for x in arrays((result[0], *result[2:]))} == {jnp.dtype(jnp.bfloat16)}
    assert result[1].router_z_loss.dtype == jnp.float32
    for actual, target in zip(arrays(result), arrays(expected), strict=True):
        actual, target = np.asarray(actual.array, np.float32), np.asarray(target.array)
        assert np.abs(actual - target).max() <= 0.06 * np.abs(target).max()


STAGES = {"stage": "stage", "experts": "expert", "batch": ("data", "expert")}


def test_stages_of_stacked_layers_are_mapped_over(draw):
    """Results and gradients of the layers of each stage, as in a pipeline."""

    def map_stages(layers, x):
        def loss(layers, x):
            out, metrics = nym.vmap(lambda layers, x: layers.scan(x), "stage")(layers, x)
            return weighted(out) + metrics.load_balance_loss.sum().scalar(), (out, metrics)

        return jax.grad(loss, (0, 1), has_aux=True)(layers, x)

    make_stage = nym.nn.Stacked.init(nym.Axis("layers", 2), nym.nn.MixtureOfExperts, gradient_checkpointing=True)
    make = nym.nn.Stacked.init(nym.Axis("stage", 2), make_stage)
    layers = draw.layer(make, Embed, Mlp, Experts, 2, dispatch="ragged_all_to_all", gated=False).stacked
    x = draw(nym.Axis("stage", 2), Batch, Pos, Embed)
    expected = jax.jit(map_stages)(layers, x)
    with jax.set_mesh(make_mesh("auto", stage=2, data=2, expert=2)):
        assert_close(nym.named_jit(map_stages, STAGES)(nym.shard(layers, STAGES), nym.shard(x, STAGES)), expected, 1e-4)


def test_other_devices_than_cpus_send_ragged_rows():
    layer, x = MIXTURE(dispatch="ragged_all_to_all"), nym.zeros((Batch, Pos, Embed))
    device = jax.sharding.AbstractDevice("TPU v5", 1, "tpu")
    mesh = jax.sharding.AbstractMesh(
        (2, 4), ("data", "expert"), (jax.sharding.AxisType.Auto,) * 2, abstract_device=device
    )
    with jax.sharding.use_abstract_mesh(mesh), nym.axis_mapping(BOTH):
        exchanges = str(jax.make_jaxpr(results_and_load)(layer, x)).count("ragged_all_to_all[")
    assert exchanges == 4  # there and back, forward and backward


def test_calls_outside_of_jit_and_without_a_mapping(draw):
    layer = draw.layer(lambda key: MIXTURE(dispatch="ragged_all_to_all", gated=False))
    token = draw(Embed)  # a single token, which has no axis
    tokens = draw(Batch, Embed)
    expected, expected_of_tokens = jax.jit(lambda layer, *inputs: [layer(x) for x in inputs])(layer, token, tokens)

    def compute_with_and_without_a_mapping(layer, x):
        with nym.axis_mapping(EXPERT):
            mapped = layer(x)
        return layer(x), mapped

    with jax.set_mesh(make_mesh("explicit")):
        for result in nym.named_jit(compute_with_and_without_a_mapping)(layer, token):
            assert_close(result, expected, 1e-5)
        with nym.axis_mapping(BOTH):
            assert_close(nym.shard(layer)(nym.shard(tokens)), expected_of_tokens, 1e-5)


def test_errors_of_the_mixture():
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
    layer, x = MIXTURE(), nym.ones((Batch, Pos, Embed))
    with refusal("MixtureOfExperts (embed: 8, mlp: 22, experts: 8): no axis 'embed' in (batch: 8, pos: 4)"):
        layer(x["embed", 0])
    with refusal("(capacity): no axis 'time' in (batch: 8, pos: 4, embed: 8)"):
        MIXTURE(capacity_factor=1.0, capacity_axis="time")(x)


def test_mappings_that_do_not_fit_the_mixture_are_refused(draw):
    x, layer = nym.ones((Batch, Pos, Embed)), draw.layer(lambda key: MIXTURE())
    with jax.set_mesh(make_mesh("auto")):
        with nym.axis_mapping(experts="expert"), refusal("'experts' has size 6, which is not divisible by mesh axis"):
            nym.nn.MixtureOfExperts.init(Embed, Mlp, Experts.resize(6), 2, key=KEY)
        with nym.axis_mapping(batch="data", mlp="data"):
            with refusal("axes 'batch' and 'mlp' are both sharded over mesh axis 'data'; map one of them to another"):
                layer(x)
        layer = draw.layer(lambda key: MIXTURE(capacity_factor=1.0, capacity_axis=None))
        with nym.axis_mapping(EXPERT):
            with refusal(
                "MixtureOfExperts (embed: 8, mlp: 22, experts: 8): tokens compete for the capacity along axis 'batch', "
                "which is sharded over (data); name other axes of (batch: 8, pos: 4, embed: 8) with `capacity_axis`, or"
            ):
                layer(x)


SIZES = (3, 0, 1, 5, 0, 4, 2, 0)  # one row is left over, and three experts have none


def one_hot_of_rows(sizes):
    """Returns for each row a 1 at its expert; rows that are left over have none."""
    ends = jnp.cumsum(sizes.array)
    expert = jnp.searchsorted(ends, jnp.arange(Token.size), side="right")
    return jax.nn.one_hot(expert, sizes.array.size)


def dense_ragged_dot(x, weight, sizes):
    out = jnp.einsum("te,xem,tx->tm", x.array, weight.array, one_hot_of_rows(sizes))
    return nym.named(out, ("token", "hidden"))


def sizes_of_groups():
    return nym.named(jnp.array(SIZES), Experts)


@pytest.mark.parametrize(
    ("axis_types", "mapping"),
    [
        ("explicit", {"experts": "expert", "token": "data"}),
        ("auto", {"token": ("data", "expert")}),
        ("explicit", {"experts": "expert", "hidden": "data"}),
        ("auto", {"experts": "expert", "embed": "data"}),
    ],
)
def test_ragged_dot_multiplies_each_row_with_the_matrix_of_its_group(draw, axis_types, mapping):
    x, weight, sizes = draw(Token, Embed), draw(Experts, Embed, Hidden), sizes_of_groups()
    expected = jax.jit(results(dense_ragged_dot))(x, (weight, sizes))
    assert np.all(np.asarray(expected[0].array)[sum(SIZES) :] == 0)
    multiply = results(lambda x, weight, sizes: nym.nn.ragged_dot(x, weight, sizes, Embed))
    with jax.set_mesh(make_mesh(axis_types)), nym.axis_mapping(mapping):
        compiled = nym.named_jit(multiply).lower(nym.shard(x), (nym.shard(weight), sizes)).compile()
        result = compiled(nym.shard(x), (nym.shard(weight), sizes))
        assert result[0].sharding.is_equivalent_to(nym.sharding_for_axis(result[0].axes), 2)
    assert_close(result, expected, 1e-5)
    gathered = [item for item in Program(compiled.as_text()).collectives() if item.kind == "all-gather"]
    assert not [array for item in gathered for array in item.results if array.shape[-1:] == (Hidden.size,)]


def test_ragged_dot_needs_no_mapping(draw):
    x, weight, sizes = draw(Token, Embed), draw(Experts, Hidden, Embed), sizes_of_groups()
    with jax.set_mesh(make_mesh("explicit")):
        placed = nym.shard(x, {"token": "data"}), nym.shard(weight, {"experts": "expert"})
        result = jax.jit(nym.nn.ragged_dot, static_argnums=3)(*placed, sizes, "embed")
    expected = jax.jit(dense_ragged_dot)(x, weight.rearrange((Experts, Embed, Hidden)), sizes)
    assert_close(result, expected, 1e-5)


def moe_linear_by_hand(layer, x, sizes):
    chosen = one_hot_of_rows(sizes)
    weight = layer.weight.rearrange((Experts, Embed, Copy, Hidden)).array
    out = jnp.einsum("te,xehm,tx->thm", x.array, weight, chosen)
    out = out + jnp.einsum("xhm,tx->thm", layer.bias.array, chosen)
    return nym.named(out.astype(x.dtype), ("token", "copy", "hidden"))


def test_moe_linear_applies_the_map_of_each_expert(check, draw):
    layer = draw.layer(nym.nn.MoELinear.init, Experts, Embed, (Copy, Hidden), out_first=True)
    assert layer.weight.names == ("experts", "copy", "hidden", "embed")
    check(lambda *args: args[0](*args[1:]), moe_linear_by_hand, layer, draw(Token, Embed), sizes_of_groups())


def test_weights_of_experts_are_scaled_by_their_inputs(getkey):
    wide, out = nym.make_axes(embed=256, mlp=32)
    layer = nym.nn.MoELinear.init(Experts, wide, out, key=getkey(), init_scale=2.0)
    assert np.std(layer.weight.array) == pytest.approx(2 / 16, rel=0.05)
    assert layer.bias is not None and layer.bias.names == ("experts", "mlp")


def test_errors_of_ragged_dot_and_its_layer(draw):
    x, weight, sizes = draw(Token, Embed), draw(Experts, Embed, Hidden), sizes_of_groups()
    with refusal("MoELinear (experts: 8, embed: 8 -> embed: 8): axis 'embed' is given twice"):
        nym.nn.MoELinear.init(Experts, Embed, Embed, key=KEY)
    with refusal("(group sizes): no axis 'experts' in (x: 8)"):
        nym.nn.MoELinear.init(Experts, Embed, Hidden, key=KEY)(x, sizes.rename({"experts": "x"}))
    with refusal("the group sizes of `ragged_dot` have one axis, not ()"):
        nym.nn.ragged_dot(x, weight, sizes.sum(), Embed)
    with refusal("integers, not float32", TypeError):
        nym.nn.ragged_dot(x, weight, sizes.astype(float), Embed)
    with refusal("(batch: 2, token: 16, embed: 8) and (experts: 8, embed: 8, hidden: 10) by `ragged_dot`: besides"):
        nym.nn.ragged_dot(draw(nym.Axis("batch", 2), Token, Embed), weight, sizes, Embed)
    with refusal("the group sizes of `ragged_dot` are numbers of rows, at least 0, but one is -1"):
        nym.nn.ragged_dot(x, weight, nym.named([2, -1, 1, 1, 0, 0, 0, 0], Experts), Embed)
    with refusal("the group sizes of `ragged_dot` (experts: 8) add up to 24 rows, more than the axis (token: 16) has"):
        nym.nn.ragged_dot(x, weight, nym.full(Experts, 3), Embed)
    count_rows = lambda sizes: nym.nn.ragged_dot(x, weight, sizes, Embed)  # noqa: E731
    assert jax.eval_shape(count_rows, nym.full(Experts, 3)).shape == {"token": 16, "hidden": 10}
    with refusal("'experts' has size"):
        nym.nn.ragged_dot(x, weight, sizes["experts", 0:4], Embed)
    with jax.set_mesh(make_mesh("explicit")), nym.axis_mapping({"token": "expert", "experts": "expert"}):
        with refusal("axes 'token' and 'experts' are both sharded over mesh axis 'expert'; map one"):
            nym.nn.ragged_dot(x, weight, sizes, Embed)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_products_are_mapped_over_a_mesh_axis(draw, axis_types):
    mapping = {"stage": "data", "experts": "expert"}
    stage = nym.Axis("stage", 2)
    x, weight = draw(stage, Token, Embed), draw(stage, Experts, Embed, Hidden)
    sizes = nym.stack(stage, [sizes_of_groups(), sizes_of_groups()])
    expected = jax.jit(nym.vmap(dense_ragged_dot, "stage"))(x, weight, sizes)
    with jax.set_mesh(make_mesh(axis_types)):
        multiply = nym.named_jit(nym.vmap(lambda *args: nym.nn.ragged_dot(*args, Embed), "stage"), mapping)
        assert_close(multiply(*nym.shard((x, weight, sizes), mapping)), expected, 1e-5)

"""Normalisation: parity with Equinox, element types, statistics of past batches, and what is kept for gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal
from .conftest import keyless


Embed, Channels, Batch, Pos = nym.make_axes(embed=16, mlp=4, batch=8, pos=3)
KINDS = [nym.nn.RmsNorm, nym.nn.LayerNorm]


def copy_parameters(layer, equinox_layer):
    """Returns a layer of Equinox with the parameters of one of ours."""
    for name in ("weight", "bias"):
        if getattr(layer, name) is not None:
            array = getattr(layer, name).array
            equinox_layer = eqx.tree_at(lambda layer, name=name: getattr(layer, name), equinox_layer, array)
    return equinox_layer


@pytest.mark.parametrize(
    ("kind", "equinox_kind"), [(nym.nn.RmsNorm, eqx.nn.RMSNorm), (nym.nn.LayerNorm, eqx.nn.LayerNorm)]
)
def test_it_is_that_of_equinox(check, draw, kind, equinox_kind):
    def reference(layer, x):
        options = {"use_weight": True, "use_bias": layer.bias is not None}
        equinox_layer = copy_parameters(layer, equinox_kind(Embed.size, eps=layer.eps, **options))
        moved = x.rearrange((..., "embed"))
        return nym.named(jax.vmap(jax.vmap(equinox_layer))(moved.array), moved.names).rearrange(x.names)

    layer = draw.layer(keyless(kind.init), Embed, 1e-3, use_bias=True)
    check(lambda layer, x: layer(x), reference, layer, 1 + 2 * draw(Batch, Embed, Pos))


def normalize_groups(layer, x):
    equinox_layer = copy_parameters(layer, eqx.nn.GroupNorm(layer.groups, 8, eps=layer.eps))
    moved = x.rearrange(("batch", "mlp", "pos"))
    with jax.numpy_rank_promotion("allow"):
        return nym.named(jax.vmap(equinox_layer)(moved.array), moved.names).rearrange(x.names)


def test_group_normalisation_is_that_of_equinox(check, draw):
    layer = draw.layer(keyless(nym.nn.GroupNorm.init), Channels.resize(8), 4, "pos", 1e-3)
    x = 1 + 2 * draw(Pos, Channels.resize(8), Batch)
    check(lambda layer, x: layer(x), normalize_groups, layer, x, tolerance=1e-4)


def test_groups_need_not_be_divisible_as_the_channels_are(mesh, draw):
    layer = draw.layer(keyless(nym.nn.GroupNorm.init), Channels.resize(8), 2, "pos")
    x, mapping = draw(Batch, Pos, Channels.resize(8)), {"mlp": ("data", "model")}
    with jax.set_mesh(None):
        expected = normalize_groups(layer, x)
    result = nym.named_jit(lambda layer, x: layer(x), mapping)(layer, nym.shard(x, mapping))
    assert tuple(result.sharding.spec) == (None, None, ("data", "model"))
    assert allclose(jax.device_get(result.array), expected.array, atol=1e-4)


@pytest.mark.parametrize("kind", [nym.nn.RmsNorm, nym.nn.LayerNorm, nym.nn.GroupNorm])
def test_low_precision_is_kept_and_statistics_are_not_in_it(draw, kind):
    layer = draw.layer(keyless(kind.init), Embed, *((2, "pos") if kind is nym.nn.GroupNorm else ()))
    x = (10 + draw(Batch, Pos, Embed)).astype(jnp.bfloat16)
    result = layer(x)
    assert result.dtype == jnp.bfloat16
    assert (result == layer(x.astype(jnp.float32)).astype(jnp.bfloat16)).all()


def test_dtype_to_compute_in_can_be_chosen(draw):
    x = (10 + draw(Batch, Pos, Embed)).astype(jnp.bfloat16)
    low = nym.nn.LayerNorm.init(Embed, use_weight=False, use_bias=False, compute_dtype=jnp.bfloat16)
    centred = x - x.mean("embed")
    expected = centred * nym.rsqrt((centred * centred).mean("embed") + 1e-5)
    assert allclose(low(x).array, expected.array, rtol=0.03, atol=0.03)
    assert low(x.astype(jnp.float32)).dtype == jnp.float32
    assert not np.array_equal(low(x).array, nym.nn.LayerNorm.init(Embed)(x).array)


def test_axes_are_merged_for_export_and_split_again(draw):
    layer = draw.layer(keyless(nym.nn.LayerNorm.init), (Pos, Embed))
    flat = layer.flatten_for_export()
    assert flat.weight.shape == flat.bias.shape == {"__OUT": 48} and flat.axis == (nym.Axis("__OUT", 48),)
    assert eqx.tree_equal(flat.unflatten_from_export(layer), layer)
    single = nym.nn.RmsNorm.init(Embed)
    assert eqx.tree_equal(single.flatten_for_export(), single)


def test_several_axes_are_normalised_together(draw):
    x = draw(Pos, Batch, Embed)
    for kind in (nym.nn.RmsNorm, nym.nn.LayerNorm):
        result = kind.init((Embed, Pos), 0.0, use_weight=False)(x)
        assert result.names == x.names
        assert allclose((result * result).mean(("pos", "embed")).array, 1, atol=1e-5)


def test_which_parameters_there_are():
    rms, layer = nym.nn.RmsNorm.init(Embed), nym.nn.LayerNorm.init(Embed, dtype=jnp.bfloat16)
    assert rms.bias is None and (rms.weight == 1).all()
    assert (layer.weight == 1).all() and (layer.bias == 0).all()
    assert layer.weight.dtype == layer.bias.dtype == jnp.bfloat16
    bare = nym.nn.LayerNorm.init(Embed, use_weight=False, use_bias=False)
    assert bare.weight is None and bare.bias is None
    groups = nym.nn.GroupNorm.init(Channels, np.int64(2), dtype=jnp.bfloat16)
    assert groups.weight.dtype == groups.bias.dtype == jnp.bfloat16 and groups.groups == 2


@pytest.mark.parametrize("kind", KINDS)
def test_as_much_is_kept_for_the_backward_pass_as_by_hand(kind):
    layer = kind.init(Embed)

    def by_hand(weight, x):
        centred = x - jnp.mean(x, 1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.mean(centred * centred, 1, keepdims=True) + 1e-5) * weight[None]

    def list_kept(fn, *args):
        """The shapes of the arrays of full size that the backward pass needs."""
        backward = jax.eval_shape(lambda *args: jax.vjp(fn, *args)[1], *args)
        return [leaf.shape for leaf in jax.tree.leaves(backward) if leaf.size >= Batch.size * Embed.size]

    own = lambda weight, x: kind(weight, layer.bias, layer.axis, layer.eps)(x)  # noqa: E731
    weight, x = nym.ones(Embed), nym.ones((Batch, Embed))
    assert list_kept(own, weight, x) == list_kept(by_hand, weight.array, x.array)


def make_batch_norm(draw, **options):
    layer, state = eqx.nn.make_with_state(nym.nn.BatchNorm.init)(Channels, momentum=0.7, **options)
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (draw(Channels), draw(Channels))), state


def make_equinox(layer):
    equinox_layer, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", momentum=0.7, mode=layer.mode)
    return copy_parameters(layer, equinox_layer), state


def call_equinox(layer, x, state):
    moved = x.rearrange(("batch", "mlp", "pos"))
    with jax.numpy_rank_promotion("allow"):
        y, state = jax.vmap(layer, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(moved.array, state)
    return nym.named(y, moved.names).rearrange(x.names), state


def train(call, layer, batches, state):
    """Returns what two batches in sequence give, the gradients of a loss of both, and the state after them."""

    def loss(layer, batches, state):
        outs = []
        for batch in batches:
            out, state = call(layer, batch, state)
            outs.append(out)
        return sum((nym.sin(out) * out).sum().scalar() for out in outs), (outs, state)

    (_, (outs, state)), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(layer, batches, state)
    return outs, gradients, state


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_batch_normalisation_is_that_of_equinox_on_every_mesh(auto_mesh, explicit_mesh, draw, mode):
    layer, state = make_batch_norm(draw, mode=mode)
    batches = [1 + 2 * draw(Pos, Channels, Batch), draw(Pos, Channels, Batch) - 3]
    arrays, static = eqx.partition(layer, eqx.is_inexact_array)
    call = lambda arrays, x, state: eqx.combine(arrays, static)(x, state)  # noqa: E731
    call_reference = lambda arrays, *args: call_equinox(make_equinox(eqx.combine(arrays, static))[0], *args)  # noqa: E731
    step = lambda *args: train(call, *args)  # noqa: E731
    outs, gradients, final = jax.jit(lambda *args: train(call_reference, *args))(
        arrays, batches, make_equinox(layer)[1]
    )
    results = [jax.jit(step)(arrays, batches, make_batch_norm(draw, mode=mode)[1])] if mode == "ema" else []
    mapping = {"batch": "data", "mlp": "model"}
    with jax.set_mesh(auto_mesh if mode == "batch" else explicit_mesh):
        result = nym.named_jit(step, mapping)(*nym.shard((arrays, batches), mapping), state)
        assert tuple(result[2].get(layer.statistics).mean.sharding.spec) == ("model",)
        results.append(result)
    running = [array for array in jax.tree.leaves(final) if array.ndim == 1]
    for result in results:
        statistics = jax.device_get(result[2].get(layer.statistics))
        assert statistics.batches == 2
        pairs = [(result[:2], (outs, gradients)), (statistics.mean.array, running[0])]
        if mode == "ema":  # in the other mode, the variance of Equinox begins at 1 instead of 0
            pairs.append((statistics.variance.array, running[1]))
        for actual, expected in pairs:
            for leaf, target in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(jax.device_get(leaf), target, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_inference_uses_the_weighted_mean_of_past_batches(draw, mode):
    layer, state = make_batch_norm(draw, mode=mode)
    batches = [1 + 2 * draw(Batch, Channels), draw(Batch, Channels) - 3]
    for batch in batches:
        _, state = layer(batch, state)
    arrays = [np.asarray(batch.array) for batch in batches]
    weights = np.array([0.7, 0.3]) if mode == "ema" else np.array([0.7 * 0.3, 0.3]) / (1 - 0.7**2)
    mean = sum(weight * array.mean(0) for weight, array in zip(weights, arrays, strict=True))
    variance = sum(weight * array.var(0) for weight, array in zip(weights, arrays, strict=True))
    x = draw(Channels, Batch)
    result, after = eqx.nn.inference_mode(layer)(x, state)
    weight, bias, values = (np.asarray(array) for array in (layer.weight.array, layer.bias.array, x.array.T))
    expected = (values - mean) / np.sqrt(variance + 1e-5) * weight + bias
    assert allclose(result.array.T, expected, rtol=1e-4, atol=1e-4)
    assert eqx.tree_equal(after, state)
    again, _ = layer(x, state, inference=True)
    assert (again == result).all()


def test_inference_before_training_changes_nothing_but_scale(draw):
    layer, state = eqx.nn.make_with_state(nym.nn.BatchNorm.init)(Channels, inference=True)
    x = draw(Batch, Channels)
    assert allclose(layer(x, state)[0].array, x.array, atol=1e-4)


def test_low_precision_is_kept_and_statistics_of_batches_are_not_in_it(draw):
    layer, state = make_batch_norm(draw)
    x = (10 + draw(Batch, Channels)).astype(jnp.bfloat16)
    exact, _ = layer(x.astype(jnp.float32), make_batch_norm(draw)[1])
    result, state = layer(x, state)
    assert result.dtype == jnp.bfloat16 and (result == exact.astype(jnp.bfloat16)).all()
    assert state.get(layer.statistics).mean.dtype == jnp.float32


def test_standardize_is_that_of_jax(check, draw):
    def reference(_, x):
        return nym.named(jax.nn.standardize(x.array, (0, 2), epsilon=1e-3), x.names)

    fn = lambda _, x: nym.nn.standardize(x, ("pos", "embed"), epsilon=1e-3)  # noqa: E731
    check(fn, reference, None, 1 + 2 * draw(Embed, Batch, Pos), tolerance=1e-4)


def test_variances_may_be_too_large_for_float16_and_inputs_may_be_integers():
    x = nym.arange(nym.Axis("i", 1000))
    expected = jax.nn.standardize(x.array.astype(jnp.float32))
    assert allclose(nym.nn.standardize(x, "i").array, expected, atol=1e-5)
    result = nym.nn.standardize(x.astype(jnp.float16), "i")
    assert result.dtype == jnp.float16 and allclose(result.array, expected, atol=1e-3)


def test_mean_variance_and_mask_can_be_given(draw):
    x = draw(Batch, Pos, Embed)
    where = nym.arange(Embed) < 5
    result = nym.nn.standardize(x, "embed", where=where)
    mask = np.tile(np.arange(16) < 5, (8, 3, 1))
    assert allclose(result.array, jax.nn.standardize(x.array, 2, where=mask), atol=1e-4)
    mean, variance = x.mean("embed"), x.var("embed")
    assert allclose(
        nym.nn.standardize(x, "embed", mean=mean, variance=variance).array, nym.nn.standardize(x, "embed").array
    )
    assert allclose(nym.nn.standardize(x, mean=0.0, variance=3.0, epsilon=1.0).array, x.array / 2, atol=1e-6)
    assert nym.nn.standardize(x.astype(jnp.bfloat16), "embed").dtype == jnp.bfloat16


def test_errors_name_the_layer_and_the_axes(draw):
    with refusal("RmsNorm (embed: 16): no axis 'embed' in (batch: 8, embde: 16); did you mean 'embde'?"):
        nym.nn.RmsNorm.init(Embed)(nym.ones({"batch": 8, "embde": 16}))
    with refusal(
        "RmsNorm (embed: 16): the input must be a named array, not RmsNorm; Optax calls labels that", TypeError
    ):
        layer = nym.nn.RmsNorm.init(Embed)
        optax.multi_transform({"slow": optax.sgd(0.1)}, jax.tree.map(lambda x: "slow", layer)).init(layer)
    with refusal("LayerNorm: `eps` must be at least 0, not nan"):
        nym.nn.LayerNorm.init(Embed, float("nan"))
    with refusal("LayerNorm: there is no axis to normalise over; give one, such as `Axis('embed', 512)`"):
        nym.nn.LayerNorm.init(())
    with refusal("`eps` must be a number that is known when the function is traced", TypeError):
        jax.eval_shape(lambda eps: nym.nn.RmsNorm.init(Embed, eps), 1e-5)
    with refusal("GroupNorm (embed: 16): the number of channels is not divisible by 3 groups"):
        nym.nn.GroupNorm.init(Embed, 3)
    with refusal("GroupNorm: `Channels` is an `Axis`, not 'mlp'", TypeError):
        nym.nn.GroupNorm.init("mlp", 2)
    with refusal("axis 'mlp' is given more than once in (mlp, mlp)"):
        nym.nn.GroupNorm.init(Channels, 2, "mlp")
    with refusal("A named array is needed", TypeError):
        nym.nn.standardize(jnp.ones(16), 0)


def test_errors_of_batch_normalisation(draw):
    layer, state = make_batch_norm(draw)
    with refusal("BatchNorm (mlp: 4): the input (mlp: 4) has no other axis to compute statistics over"):
        layer(nym.ones(Channels), state)
    with refusal(
        "BatchNorm (mlp: 4): `state` must be the `equinox.nn.State` that `equinox.nn.make_with_state`", TypeError
    ):
        layer(nym.ones((Batch, Channels)), None)
    with refusal("BatchNorm: `mode` is 'batch' or 'ema', not 'legacy'"):
        nym.nn.BatchNorm.init(Channels, mode="legacy")
    with refusal("BatchNorm: `momentum` must be at least 0 and at most 1, not 2.0"):
        nym.nn.BatchNorm.init(Channels, momentum=2.0)


def test_numbers_of_numpy_and_jax_become_those_of_python():
    layer = nym.nn.LayerNorm.init(Embed, np.float32(0.5))
    assert (type(layer.eps), layer.eps) == (float, 0.5)
    assert hash(jax.tree.structure(nym.nn.LayerNorm.init(Embed, jnp.asarray(0.5)))) == hash(jax.tree.structure(layer))

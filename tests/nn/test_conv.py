"""Convolutions: parity with Equinox in value and gradient, sharding, and what they refuse."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as nym

from ..comparing import allclose
from ..hlo import Program
from ..refusals import refusal
from .conftest import assert_close, assert_leaves_close, results


Embed, Mlp, Batch, Height, Width = nym.make_axes(embed=4, mlp=8, batch=8, height=6, width=5)
KEY = jax.random.key(0)
CONV, TRANSPOSED = nym.nn.Conv, nym.nn.ConvTranspose
CASES = {
    "depthwise": (CONV, dict(padding="VALID", groups=4)),
    "same": (CONV, dict(padding="same", stride={"width": 1, "height": 2}, dilation=(1, 2))),
    "lower": (CONV, dict(padding="SAME_LOWER", kernel_size={"width": 4, "height": 2}, groups=2)),
    "pairs": (CONV, dict(padding=((1, 0), 2), stride=2, use_bias=False)),
    "circular": (CONV, dict(padding="SAME", padding_mode="circular", dilation=2)),
    "reflect": (CONV, dict(padding=1, padding_mode="reflect")),
    "replicate": (CONV, dict(padding={"width": (0, 1), "height": 2}, padding_mode="replicate")),
    "transposed": (TRANSPOSED, dict(padding="VALID", stride=2, output_padding=(1, 0))),
    "transposed same": (TRANSPOSED, dict(padding="SAME", stride=(2, 3), output_padding=1, kernel_size=2)),
    "transposed pairs": (TRANSPOSED, dict(padding=((1, 0), 2), stride=2, dilation=2, groups=2)),
    "transposed circular": (TRANSPOSED, dict(padding="SAME_LOWER", padding_mode="circular", stride=2, use_bias=False)),
}


def make(draw, kind, options):
    return draw.layer(kind.init, ("height", "width"), Embed, Mlp, **{"kernel_size": 3, **options})


def equinox_layer(layer):
    """The layer of Equinox with the same options and parameters."""
    names = ["kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
    names += ["output_padding"] if isinstance(layer, nym.nn.ConvTranspose) else []
    options = {name: getattr(layer, name) for name in names}
    kind = getattr(eqx.nn, type(layer).__name__)
    options["padding_mode"] = layer.padding_mode.upper()
    own = kind(2, 4, 8, **options, use_bias=layer.bias is not None, key=KEY)
    own = eqx.tree_at(lambda layer: layer.weight, own, layer.weight.array)
    if layer.bias is None:
        return own
    return eqx.tree_at(lambda layer: layer.bias, own, layer.bias.array[:, None, None])


def reference(layer, x):
    moved = x.rearrange(("batch", "embed", "height", "width")).array
    with jax.numpy_rank_promotion("allow"):
        result = jax.vmap(equinox_layer(layer))(moved)
    return nym.named(result, ("batch", "mlp", "height", "width")).rearrange(("height", "batch", "width", "mlp"))


@pytest.mark.parametrize("case", CASES)
def test_layer_is_that_of_equinox(draw, case):
    layer, x = make(draw, *CASES[case]), draw(Height, Batch, Width, Embed)
    own = results(lambda layer, x: layer(x))
    result, expected = jax.jit(lambda *args: (own(*args), results(reference)(*args)))(layer, (x,))
    assert_close(result, expected, 1e-4)


LONG = nym.Axis("height", 16)
BORDERS = dict(padding="SAME", dilation=2)


@pytest.mark.parametrize(
    ("axis_types", "options", "kinds", "mapping"),
    [
        ("auto", BORDERS, {"collective-permute"}, {"batch": "model", "height": "data"}),
        ("explicit", BORDERS, {"collective-permute"}, {"batch": "model", "height": "data"}),
        ("explicit", dict(padding=5, kernel_size=11), {"all-gather"}, {"height": "data"}),
        ("auto", dict(padding=1, groups=2), set(), {"batch": "data"}),
        ("explicit", dict(padding=1, groups=4), set(), {"embed": "model", "mlp": "model", "batch": "data"}),
        ("auto", dict(padding=1), {"all-reduce"}, {"embed": "data"}),
        ("explicit", dict(padding=1, groups=2), {"all-gather"}, {"embed": "data"}),
    ],
    ids=["borders", "typed borders", "far borders", "batch", "groups", "input channels", "unlike groups"],
)
def test_devices_exchange_what_they_need_alone(request, draw, axis_types, options, kinds, mapping):
    layer = draw.layer(nym.nn.Conv.init, "height", Embed, Mlp, **{"kernel_size": 3, **options})
    x = draw(Batch, LONG, Embed)

    def compute(layer, x):
        loss = lambda layer, x: (nym.sin(layer(x)) ** 2).sum().scalar()  # noqa: E731
        return jax.grad(loss, (0, 1))(layer, x)

    expected = jax.jit(lambda *args: (args[0](args[1]), compute(*args)))(layer, x)
    with jax.set_mesh(request.getfixturevalue(f"{axis_types}_mesh")):
        layer, x = nym.shard((layer, x), mapping)
        call = nym.named_jit(lambda layer, x: layer(x), mapping).lower(layer, x).compile()
        assert {collective.kind for collective in Program(call.as_text()).collectives()} == kinds
        sharded = call(layer, x), nym.named_jit(compute, mapping)(layer, x)
    assert_leaves_close(sharded, expected, 1e-3)


def test_gradients_without_a_mapping(auto_mesh, draw):
    compute_gradients = jax.jit(jax.grad(lambda layer, x: (nym.sin(layer(x)) ** 2).sum().scalar(), (0, 1)))
    for groups, mapping in ((2, {"batch": "data"}), (1, {"height": "model", "mlp": "data"})):
        layer = draw.layer(nym.nn.Conv.init, "height", Embed, Mlp, 3, padding=1, groups=groups)
        x = draw(Batch, LONG, Embed)
        expected = compute_gradients(layer, x)
        assert_leaves_close(compute_gradients(*nym.shard((layer, x), mapping, auto_mesh)), expected, 1e-3)


def test_channels_and_spatial_axes_can_be_sharded(mesh, draw):
    layer, x = make(draw, nym.nn.Conv, dict(padding=1, padding_mode="circular")), draw(Height, Batch, Width, Embed)
    with jax.set_mesh(None):
        expected = reference(layer, x)
    with nym.axis_mapping({"height": "model", "mlp": "data"}):
        result = nym.named_jit(lambda layer, x: layer(x))(nym.shard(layer), nym.shard(x))
        assert result.sharding.is_equivalent_to(nym.sharding_for_axis(result.axes), 4)
    assert allclose(jax.device_get(result.array), expected.array, atol=1e-4)


def test_result_without_a_mapping_is_sharded_as_its_input(explicit_mesh, draw):
    layer, x = make(draw, nym.nn.Conv, dict(padding=1)), draw(Batch, Height, Width, Embed)
    expected = layer(x)
    with jax.set_mesh(explicit_mesh):
        x = nym.shard(x, {"batch": "data", "embed": "model"})
        result = jax.jit(lambda layer, x: layer(x))(layer, x)
    assert tuple(result.sharding.spec)[:1] == ("data",)
    assert allclose(jax.device_get(result.array), expected.array, atol=1e-4)


def test_any_number_of_batch_and_spatial_axes_anywhere(draw):
    layer, x = make(draw, nym.nn.Conv, dict(padding=1)), draw(Width, Batch, Embed, nym.Axis("pos", 3), Height)
    result = jax.jit(lambda x: layer(x))(x)
    assert result.shape == {"width": 5, "batch": 8, "mlp": 8, "pos": 3, "height": 6}
    single = layer(x["batch", 2, "pos", 1])
    assert single.names == ("width", "mlp", "height")
    assert allclose(result["batch", 2, "pos", 1].array, single.array, atol=1e-5)
    line = draw.layer(nym.nn.Conv.init, "height", Embed, Mlp, 6)
    product = nym.dot(x, line.weight.rename({"kernel_height": "height"}), axis=("height", "embed")) + line.bias
    assert allclose(line(x)["height", 0].rearrange(product.names).array, product.array, atol=1e-4)


def test_parameters_are_drawn_as_those_of_equinox(getkey):
    layer = nym.nn.Conv.init(("height", "width"), Embed, Mlp, (3, 2), groups=2, key=getkey())
    assert 0.25 < abs(layer.weight).max().item() <= 12**-0.5 and 0 < abs(layer.bias).max().item() <= 12**-0.5
    ones = jax.nn.initializers.ones
    options = {"initializer": ones, "bias_initializer": ones, "dtype": jnp.bfloat16}
    layer = nym.nn.Conv.init("height", Embed, Mlp, 3, key=KEY, **options)
    assert jax.eval_shape(layer, nym.ones((Height, Embed))).dtype == jnp.float32
    assert (layer.weight == 1).all() and (layer.bias == 1).all()
    assert layer.weight.dtype == layer.bias.dtype == jnp.bfloat16


def test_errors_name_the_layer_and_the_axes(draw):
    layer = make(draw, nym.nn.Conv, {})
    with refusal("Conv (embed: 4 -> mlp: 8): axis 'height' of size 2, padded to 2, is shorter than the window of 3"):
        layer(nym.ones((Height.resize(2), Width, Embed)))
    for options, message in {
        (("groups", 3),): "both numbers of channels must be divisible by `groups`, which is 3",
        (("padding", "FULL"),): "`padding` is one of VALID, SAME, SAME_LOWER or numbers, not 'FULL'",
        (("padding", ((1, 2, 3), 1)),): "`padding` along an axis is a number or two of them, not (1, 2, 3)",
        (("stride", (1, 2, 3)),): "`stride` has 3 entries for the 2 axes (height, width)",
        (("padding_mode", "mirror"),): "`padding_mode` must be 'zeros', 'circular', 'reflect' or",
        (("padding", -1),): "`padding` along axis 'height' must be at least 0, not -1",
    }.items():
        with refusal(f"Conv (embed: 4 -> mlp: 8): {message}"):
            make(draw, nym.nn.Conv, dict(options))
    with refusal("`dilation` is given for (heigth, width), not for (height, width)"):
        make(draw, nym.nn.Conv, dict(dilation={"heigth": 1, "width": 2}))
    with refusal("Conv (embed: 4 -> mlp: 8): there is no spatial axis; name at least one, or use `Linear`"):
        nym.nn.Conv.init((), Embed, Mlp, 3, key=KEY)
    with refusal("ConvTranspose (embed: 4 -> mlp: 8): `output_padding` must be less than `stride` along each axis"):
        make(draw, nym.nn.ConvTranspose, dict(output_padding=1))
    with refusal("circular padding needs `padding='SAME'` or 'SAME_LOWER', and no `output_padding`"):
        make(draw, nym.nn.ConvTranspose, dict(padding_mode="circular"))
    with refusal("Conv (embed: 4 -> embed: 4): axis 'embed' is both input and output; give one of them another name"):
        nym.nn.Conv.init("height", Embed, Embed, 3, key=KEY)
    with refusal("Conv (embed: 4 -> mlp: 8): axis 'mlp' is both spatial and channels"):
        nym.nn.Conv.init(("height", "mlp"), Embed, Mlp, 3, key=KEY)
    with refusal("Conv: the channels are an `Axis` each, not 'embed'", TypeError):
        nym.nn.Conv.init("height", "embed", Mlp, 3, key=KEY)

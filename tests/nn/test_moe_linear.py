"""`ragged_dot` and `MoELinear`: parity with products of every row and every expert, sharded in each way, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as nym

from ..comparing import allclose
from ..hlo import Program
from ..refusals import refusal
from .conftest import arrays, assert_close, results


Token, Experts, Embed, Copy, Mlp = nym.make_axes(token=16, experts=8, embed=8, copy=2, mlp=10)
SIZES = (3, 0, 1, 5, 0, 4, 2, 0)  # one row is left over, and three experts have none
KEY = jax.random.key(0)


def make_mesh(kind):
    return jax.make_mesh((2, 4), ("data", "expert"), axis_types=(getattr(AxisType, kind),) * 2)


@pytest.fixture
def expert_mesh(no_mesh):
    with jax.set_mesh(make_mesh("Explicit")) as mesh:
        yield mesh


def one_hot_of_rows(sizes):
    """Returns for each row a 1 at its expert; rows that are left over have none."""
    ends = jnp.cumsum(sizes.array)
    expert = jnp.searchsorted(ends, jnp.arange(Token.size), side="right")
    return jax.nn.one_hot(expert, sizes.array.size)


def dense_ragged_dot(x, weight, sizes):
    out = jnp.einsum("te,xem,tx->tm", x.array, weight.array, one_hot_of_rows(sizes))
    return nym.named(out, ("token", "mlp"))


def sizes_of_groups():
    return nym.named(jnp.array(SIZES), Experts)


CASES = [
    ("Auto", {"experts": "expert", "token": "data"}),
    ("Explicit", {"experts": "expert", "token": "data"}),
    ("Auto", {"token": ("data", "expert")}),
    ("Explicit", {"experts": "expert", "mlp": "data"}),
    ("Auto", {"experts": "expert", "embed": "data"}),
]


@pytest.mark.parametrize(("kind", "mapping"), CASES)
def test_ragged_dot_multiplies_each_row_with_the_matrix_of_its_group(draw, kind, mapping):
    x, weight, sizes = draw(Token, Embed), draw(Experts, Embed, Mlp), sizes_of_groups()
    expected = jax.jit(results(dense_ragged_dot))(x, (weight, sizes))
    assert np.all(np.asarray(expected[0].array)[sum(SIZES) :] == 0)
    multiply = results(lambda x, weight, sizes: nym.nn.ragged_dot(x, weight, sizes, Embed))
    with jax.set_mesh(make_mesh(kind)), nym.axis_mapping(mapping):
        compiled = nym.named_jit(multiply).lower(nym.shard(x), (nym.shard(weight), sizes)).compile()
        result = compiled(nym.shard(x), (nym.shard(weight), sizes))
        assert result[0].sharding.is_equivalent_to(nym.sharding_for_axis(result[0].axes), 2)
    assert_close(result, expected, 1e-5)
    gathered = [
        collective for collective in Program(compiled.as_text()).collectives() if collective.kind == "all-gather"
    ]
    assert not [
        collective for collective in gathered if any(array.shape[-1:] == (Mlp.size,) for array in collective.results)
    ]


def test_ragged_dot_needs_no_mapping(expert_mesh, draw):
    x, weight, sizes = draw(Token, Embed), draw(Experts, Mlp, Embed), sizes_of_groups()
    expected = dense_ragged_dot(x, weight.rearrange((Experts, Embed, Mlp)), sizes)
    placed = nym.shard(x, {"token": "data"}), nym.shard(weight, {"experts": "expert"})
    assert_close(jax.jit(nym.nn.ragged_dot, static_argnums=3)(*placed, sizes, "embed"), expected, 1e-5)


def moe_linear_by_hand(layer, x, sizes):
    chosen = one_hot_of_rows(sizes)
    weight = layer.weight.rearrange((Experts, Embed, Copy, Mlp)).array
    out = jnp.einsum("te,xehm,tx->thm", x.array, weight, chosen)
    out = out + jnp.einsum("xhm,tx->thm", layer.bias.array, chosen)
    return nym.named(out.astype(x.dtype), ("token", "copy", "mlp"))


def test_moe_linear_applies_the_map_of_each_expert(check, draw):
    layer = draw.layer(nym.nn.MoELinear.init, Experts, Embed, (Copy, Mlp), out_first=True)
    assert layer.weight.names == ("experts", "copy", "mlp", "embed")
    check(lambda *args: args[0](*args[1:]), moe_linear_by_hand, layer, draw(Token, Embed), sizes_of_groups())


def test_moe_linear_in_bfloat16(draw):
    layer = draw.layer(nym.nn.MoELinear.init, Experts, Embed, (Copy, Mlp))
    low = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (layer, draw(Token, Embed)))
    layer, x = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), low)
    result = jax.jit(results(lambda layer, *args: layer(*args)))(low[0], (low[1], sizes_of_groups()))
    expected = jax.jit(results(moe_linear_by_hand))(layer, (x, sizes_of_groups()))
    for actual, target in zip(arrays(result), arrays(expected), strict=True):
        assert actual.dtype == jnp.bfloat16
        np.testing.assert_allclose(actual.array.astype(jnp.float32), target.array, rtol=0.05, atol=0.05)


def test_weights_of_experts_are_scaled_by_their_inputs(getkey):
    wide, out = nym.make_axes(embed=256, mlp=32)
    layer = nym.nn.MoELinear.init(Experts, wide, out, key=getkey(), init_scale=2.0)
    assert allclose(layer.weight.array.std(), 2 / 16, rtol=0.05)
    assert layer.bias is not None and layer.bias.names == ("experts", "mlp")


def test_wrong_input_is_refused(draw):
    x, weight, sizes = draw(Token, Embed), draw(Experts, Embed, Mlp), sizes_of_groups()
    with refusal("MoELinear (experts: 8, embed: 8 -> embed: 8): axis 'embed' is given twice"):
        nym.nn.MoELinear.init(Experts, Embed, Embed, key=KEY)
    layer = nym.nn.MoELinear.init(Experts, Embed, Mlp, key=KEY)
    with refusal("MoELinear (experts: 8, embed: 8 -> mlp: 10): no axis 'embed' in (token: 16)"):
        layer(x["embed", 0], sizes)
    with refusal("(group sizes): no axis 'experts' in (x: 8)"):
        layer(x, sizes.rename({"experts": "x"}))
    with refusal("the group sizes of `ragged_dot` have one axis, not ()"):
        nym.nn.ragged_dot(x, weight, sizes.sum(), Embed)
    with refusal("integers, not float32", TypeError):
        nym.nn.ragged_dot(x, weight, sizes.astype(float), Embed)
    with refusal("(batch: 2, token: 16, embed: 8) and (experts: 8, embed: 8, mlp: 10) by `ragged_dot`: besides"):
        nym.nn.ragged_dot(draw(nym.Axis("batch", 2), Token, Embed), weight, sizes, Embed)
    with refusal("'experts' has size"):
        nym.nn.ragged_dot(x, weight, sizes["experts", 0:4], Embed)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_products_are_mapped_over_a_mesh_axis(draw, kind):
    mapping = {"stage": "data", "experts": "expert"}
    stage = nym.Axis("stage", 2)
    x, weight = draw(stage, Token, Embed), draw(stage, Experts, Embed, Mlp)
    sizes = nym.stack(stage, [sizes_of_groups(), sizes_of_groups()])
    expected = nym.stack(
        stage, [dense_ragged_dot(x["stage", i], weight["stage", i], sizes["stage", i]) for i in (0, 1)]
    )
    with jax.set_mesh(make_mesh(kind)):
        multiply = nym.named_jit(nym.vmap(lambda *args: nym.nn.ragged_dot(*args, Embed), "stage"), mapping)
        arrays = [nym.shard(array, mapping) for array in (x, weight, sizes)]
        assert_close(multiply(*arrays), expected, 1e-5)


def test_rows_and_groups_need_mesh_axes_of_their_own(expert_mesh, draw):
    x, weight, sizes = draw(Token, Embed), draw(Experts, Embed, Mlp), sizes_of_groups()
    with nym.axis_mapping({"token": "expert", "experts": "expert"}):
        with refusal("axes 'token' and 'experts' are both sharded over mesh axis 'expert'; map one"):
            nym.nn.ragged_dot(x, weight, sizes, Embed)

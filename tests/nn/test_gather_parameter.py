"""Where layers shard what they use and what they return: parameters before their use, results wherever inputs are."""

import re

import jax
import pytest

import axonym as nym


Batch, Embed, Mlp, Vocab = nym.make_axes(batch=8, embed=16, mlp=6, vocab=10)
COMPUTE = {"batch": "data", "mlp": "model", "vocab": "model"}
PARAMETERS = {**COMPUTE, "embed": "data"}
KEY = jax.random.key(0)


def keyless(init):
    return lambda *args, key: init(*args)


LAYERS = {
    "Linear": (nym.nn.Linear.init, (Embed, Mlp), lambda layer, x: layer(x)),
    "RmsNorm": (keyless(nym.nn.RmsNorm.init), (Embed,), lambda layer, x: layer(x)),
    "LayerNorm": (keyless(nym.nn.LayerNorm.init), (Embed,), lambda layer, x: layer(x)),
    "unembed": (nym.nn.Embedding.init, (Vocab, Embed), lambda layer, x: layer.unembed(x)),
    "Embedding": (nym.nn.Embedding.init, (Vocab, Embed), lambda layer, x: layer(nym.zeros_like(x.sum("embed"), int))),
    "Dropout": (keyless(nym.nn.Dropout), (0.5, "batch"), lambda layer, x: layer(x, key=KEY)),
    "attention": (
        keyless(lambda: None),
        (),
        lambda _, x: nym.nn.dot_product_attention("pos", "embed", x, y := x.broadcast_axis({"pos": 3}), y),
    ),
}


@pytest.mark.parametrize("case", LAYERS)
def test_the_result_is_sharded_wherever_the_input_is(mesh, draw, case):
    init, args, fn = LAYERS[case]
    layer, x = draw.layer(init, *args), draw(Batch, Embed)
    names = []

    def applied(layer, x):
        out = fn(layer, x)
        names[:] = out.names
        return out.array

    result = nym.named_jit(applied, COMPUTE)(layer, x)
    expected = nym.sharding_for_axis(tuple(names), COMPUTE)
    assert result.sharding.is_equivalent_to(expected, result.ndim)


@pytest.mark.parametrize("case", ["Linear", "RmsNorm", "LayerNorm", "unembed", "Embedding"])
def test_a_parameter_is_gathered_before_it_is_used(mesh, draw, case):
    init, args, fn = LAYERS[case]
    layer, x = nym.shard(draw.layer(init, *args), PARAMETERS), nym.shard(draw(Batch, Embed), COMPUTE)
    with nym.axis_mapping(COMPUTE):
        program = str(jax.make_jaxpr(fn)(layer, x))
    shape = ",".join(rf"{size}(@\w+)?" for size in layer.weight.array.shape)
    assert re.search(rf":f32\[{shape}\] = (sharding_constraint|reshard)\b", program)

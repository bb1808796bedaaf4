"""Arguments that do not fit are refused where they are given, by a sentence with their name and value."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as nym
from axonym import nn


Embed, Mlp, Experts, Heads, Pos, KeyPos = nym.make_axes(embed=4, mlp=8, experts=4, heads=2, pos=3, key_pos=3)
KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 3)
LOGITS, TARGETS = nym.ones((Pos, Embed)), nym.zeros(Pos, int)
QUERY, KEYS_OF = nym.ones((Pos, Embed)), nym.ones((KeyPos, Embed))


def attention(query=QUERY, key=KEYS_OF, value=KEYS_OF, **options):
    return nn.dot_product_attention(KeyPos, Embed, query, key, value, **options)


def fused(**options):
    return nn.fused_cross_entropy(LOGITS, nym.ones((Mlp, Embed)), TARGETS, Embed, Mlp, **options)


def rotary(x=QUERY, **options):
    return nn.rotary_embedding(x, Pos, Embed, **options)


def mixture(**options):
    return nn.MixtureOfExperts.init(Embed, Mlp, Experts, 2, key=KEY, **options)


def ragged(*sizes):
    return nn.ragged_dot(QUERY, nym.ones((Experts, Embed)), nym.named(list(sizes), Experts), Embed)


def conv(**options):
    return nn.Conv.init("pos", Embed, Mlp, **{"kernel_size": 3, **options}, key=KEY)


def label_parameters():
    layer = nn.RmsNorm.init(Embed)
    return optax.multi_transform({"slow": optax.sgd(0.1)}, jax.tree.map(lambda x: "slow", layer)).init(layer)


MISTAKES = {
    "labels that are a model": (
        label_parameters,
        TypeError,
        "RmsNorm (embed: 4): the input must be a named array, not RmsNorm; Optax calls labels that are a model, so "
        "pass it `lambda _: labels`.",
    ),
    "Dropout, above 1": (
        lambda: nn.Dropout(1.5),
        ValueError,
        "Dropout: `pdrop` must be at least 0 and at most 1, not 1.5",
    ),
    "Dropout, text": (lambda: nn.Dropout("0.5"), TypeError, "Dropout: `pdrop` must be a number, not '0.5'."),
    "BatchNorm, momentum": (
        lambda: nn.BatchNorm.init(Embed, momentum=2.0),
        ValueError,
        "BatchNorm: `momentum` must be at least 0 and at most 1, not 2.0",
    ),
    "BatchNorm, eps": (
        lambda: nn.BatchNorm.init(Embed, eps=-1e-5),
        ValueError,
        "BatchNorm: `eps` must be at least 0, not -1e-05",
    ),
    "BatchNorm, no state": (
        lambda: eqx.nn.make_with_state(nn.BatchNorm.init)(Embed)[0](QUERY, None),
        TypeError,
        "BatchNorm (embed: 4): `state` must be the `equinox.nn.State` that `equinox.nn.make_with_state` made with the "
        "layer, not None.",
    ),
    "LayerNorm, eps is NaN": (
        lambda: nn.LayerNorm.init(Embed, float("nan")),
        ValueError,
        "LayerNorm: `eps` must be at least 0, not nan",
    ),
    "LayerNorm, no axis": (
        lambda: nn.LayerNorm.init(()),
        ValueError,
        "LayerNorm: there is no axis to normalise over; give one, such as `Axis('embed', 512)`",
    ),
    "RmsNorm, dtype": (
        lambda: nn.RmsNorm.init(Embed, compute_dtype="fp8"),
        TypeError,
        "RmsNorm: `compute_dtype` must be an element type such as `jnp.float32` or 'bfloat16', not 'fp8'.",
    ),
    "RmsNorm, swapped": (
        lambda: nn.RmsNorm.init(1e-5, Embed),
        TypeError,
        "A new axis is given by an `Axis`, with a name and a size, not by 1e-05.",
    ),
    "GroupNorm, groups": (
        lambda: nn.GroupNorm.init(Embed, 2.0),
        TypeError,
        "GroupNorm: `groups` must be an integer, not 2.0.",
    ),
    "GroupNorm, no groups": (
        lambda: nn.GroupNorm.init(Embed, 0),
        ValueError,
        "GroupNorm: `groups` must be at least 1, not 0",
    ),
    "GroupNorm, indivisible": (
        lambda: nn.GroupNorm.init(Embed, 3),
        ValueError,
        "GroupNorm (embed: 4): the number of channels is not divisible by 3 groups",
    ),
    "Linear, several keys": (
        lambda: nn.Linear.init(Embed, Mlp, key=KEYS),
        ValueError,
        "one key is needed, not an array of keys of shape (3,); take one of them, as in `keys[0]`, or use `jax.vmap`",
    ),
    "Linear, a seed": (
        lambda: nn.Linear.init(Embed, Mlp, key=0),
        TypeError,
        "A random key such as `jax.random.key(0)` is needed, not 0.",
    ),
    "Linear, a seed in an array": (
        lambda: nn.Linear.init(Embed, Mlp, key=jnp.zeros((), int)),
        TypeError,
        "A random key such as `jax.random.key(0)` is needed, not int32 of shape ().",
    ),
    "Linear, dtype": (
        lambda: nn.Linear.init(Embed, Mlp, key=KEY, dtype="fp8"),
        TypeError,
        "`dtype` must be an element type such as `jnp.float32` or 'bfloat16', not 'fp8'.",
    ),
    "Linear, scale": (
        lambda: nn.Linear.init(Embed, Mlp, key=KEY, init_scale="0.02"),
        TypeError,
        "`init_scale` must be a number, not '0.02'.",
    ),
    "Linear, dot_general": (
        lambda: nn.Linear.init(Embed, Mlp, key=KEY, dot_general="int8"),
        TypeError,
        "A `dot_general` must be a function or a module such as `axonym.quantization.Int8DotGeneral()`, not 'int8'.",
    ),
    "Linear, class as dot_general": (
        lambda: nn.Linear.init(Embed, Mlp, key=KEY, dot_general=nym.quantization.Int8DotGeneral),
        TypeError,
        "not `Int8DotGeneral`; make an instance of it.",
    ),
    "initialize_weight, dtype": (
        lambda: nn.initialize_weight(jax.nn.initializers.ones, KEY, Embed, Mlp, dtype="fp8"),
        TypeError,
        "`dtype` must be an element type such as `jnp.float32` or 'bfloat16', not 'fp8'.",
    ),
    "HiddenLinear, base width": (
        lambda: nn.HiddenLinear.init(Embed, Mlp, key=KEY, base_width=2.5),
        TypeError,
        "HiddenLinear: `base_width` must be an integer, not 2.5.",
    ),
    "OutputLinear, scale": (
        lambda: nn.OutputLinear.init(Embed, Mlp, key=KEY, init_scale=None),
        TypeError,
        "`init_scale` must be a number, not None.",
    ),
    "MLP, name of an activation": (
        lambda: nn.MLP.init(Embed, Mlp, 8, 1, "relu", key=KEY),
        TypeError,
        "MLP: `activation` must be a function such as `axonym.nn.relu`, not 'relu'.",
    ),
    "MLP, no width": (
        lambda: nn.MLP.init(Embed, Mlp, 0, 1, key=KEY),
        ValueError,
        "MLP: `width` must be at least 1, not 0",
    ),
    "MLP, boolean depth": (
        lambda: nn.MLP.init(Embed, Mlp, 8, True, key=KEY),
        TypeError,
        "MLP: `depth` must be an integer, not True.",
    ),
    "Embedding, name of an axis": (
        lambda: nn.Embedding.init("vocab", Embed, key=KEY),
        TypeError,
        "A new axis needs a size: give `Axis('vocab', size)` instead of 'vocab'.",
    ),
    "Conv, groups": (
        lambda: conv(groups=True),
        TypeError,
        "Conv (embed: 4 -> mlp: 8): `groups` must be an integer, not True.",
    ),
    "Conv, no spatial axis": (
        lambda: nn.Conv.init((), Embed, Mlp, 3, key=KEY),
        ValueError,
        "Conv (embed: 4 -> mlp: 8): there is no spatial axis; name at least one, or use `Linear`",
    ),
    "Conv, stride": (
        lambda: conv(stride=1.5),
        TypeError,
        "Conv (embed: 4 -> mlp: 8): `stride` along axis 'pos' must be an integer, not 1.5.",
    ),
    "Conv, padding": (
        lambda: conv(padding=-1),
        ValueError,
        "Conv (embed: 4 -> mlp: 8): `padding` along axis 'pos' must be at least 0, not -1",
    ),
    "Conv, a list as padding mode": (
        lambda: conv(padding_mode=["zeros"]),
        ValueError,
        "`padding_mode` must be 'zeros', 'circular', 'reflect' or 'replicate', not a list of length 1",
    ),
    "max_pool, padding": (
        lambda: nn.max_pool(Pos.resize(2), QUERY, padding=2),
        ValueError,
        "max_pool: `padding` along axis 'pos' must be less than the window of 2, not 2",
    ),
    "KVCache, name of an axis": (
        lambda: nn.KVCache.init("key_pos", Embed),
        TypeError,
        "A new axis needs a size: give `Axis('key_pos', size)` instead of 'key_pos'.",
    ),
    "KVCache, float padding": (
        lambda: nn.KVCache.init(KeyPos, (Heads, Embed), padding=nym.ones(Heads)),
        TypeError,
        "KVCache: `padding` is a number of positions, an integer, not float32.",
    ),
    "KVCache, window as a number": (
        lambda: nn.KVCache.init(KeyPos, Embed, sliding_window=512),
        TypeError,
        "KVCache: `sliding_window` must be True or False, not 512.",
    ),
    "KVCache, integers": (
        lambda: nn.KVCache.init(KeyPos, Embed, jnp.int8),
        ValueError,
        "KVCache: `dtype` must be a float, which keys and values are, not int8",
    ),
    "attention, float mask": (
        lambda: attention(mask=nym.zeros((Pos, KeyPos))),
        TypeError,
        "`mask` must be boolean, not float32; make it so with `mask > 0`, or add numbers to the scores with `bias`.",
    ),
    "attention, size of the mask": (
        lambda: attention(mask=nym.ones(KeyPos.resize(2), bool), implementation="blocked"),
        ValueError,
        "axis 'key_pos' has size 3 and size 2 in (pos: 3, embed: 4) and (key_pos: 3, embed: 4) and (key_pos: 2)",
    ),
    "attention, size of the bias": (
        lambda: attention(bias=nym.ones(Pos.resize(4)), implementation="blocked"),
        ValueError,
        "axis 'pos' has size 3 and size 4 in (pos: 3, embed: 4) and (key_pos: 3, embed: 4) and (pos: 4)",
    ),
    "attention, number of values": (
        lambda: attention(value=nym.ones((KeyPos.resize(4), Embed))),
        ValueError,
        "axis 'key_pos' has size 4 here, 3 was asked for",
    ),
    "attention, boolean bias": (
        lambda: attention(bias=nym.ones((Pos, KeyPos), bool)),
        TypeError,
        "dot_product_attention: `bias` is added to the scores; give booleans as `mask`.",
    ),
    "attention, integers": (
        lambda: attention(query=QUERY.astype(int)),
        TypeError,
        "dot_product_attention (query): the array must have floats, not int32; use `astype`.",
    ),
    "attention, dtype": (
        lambda: attention(attention_dtype=int),
        TypeError,
        "dot_product_attention: `attention_dtype` must be a float, not int",
    ),
    "attention, soft cap": (
        lambda: attention(soft_cap="50"),
        TypeError,
        "dot_product_attention: `soft_cap` must be a number, not '50'.",
    ),
    "attention, dropout": (
        lambda: attention(dropout=-0.1, dropout_key=KEY),
        ValueError,
        "dot_product_attention: `dropout` must be at least 0 and below 1, not -0.1",
    ),
    "attention, several keys": (
        lambda: attention(dropout=0.5, dropout_key=KEYS),
        ValueError,
        "one key is needed, not an array of keys of shape (3,)",
    ),
    "attention, block size": (
        lambda: attention(block_size=128.0),
        TypeError,
        "dot_product_attention: `block_size` must be an integer, not 128.0.",
    ),
    "attention, implementation": (
        lambda: attention(implementation="flash"),
        ValueError,
        "dot_product_attention: `implementation` must be 'auto', 'splash', 'jax', 'blocked' or 'plain', not 'flash'",
    ),
    "attention, swapped query and axis": (
        lambda: nn.dot_product_attention(QUERY, Embed, KeyPos, KEYS_OF, KEYS_OF),
        TypeError,
        "dot_product_attention (query): the input must be a named array, not Axis",
    ),
    "rotary, integers": (
        lambda: rotary(QUERY.astype(int)),
        TypeError,
        "rotary_embedding: the input is of floating-point numbers, not int32; convert it first.",
    ),
    "rotary, theta": (lambda: rotary(theta=0), ValueError, "rotary_embedding: `theta` must be above 0, not 0"),
    "rotary, size": (
        lambda: rotary(rotary_size=2.0),
        TypeError,
        "rotary_embedding: `rotary_size` must be an integer, not 2.0.",
    ),
    "scaling, factor": (
        lambda: nn.LinearRotaryScaling("2"),
        TypeError,
        "LinearRotaryScaling: `factor`, the length over the one trained on, must be a number, not '2'.",
    ),
    "scaling, positions": (
        lambda: nn.DynamicRotaryScaling(2.0, 0),
        ValueError,
        "DynamicRotaryScaling: `original_positions` must be at least 1, not 0",
    ),
    "scaling, beta": (
        lambda: nn.YarnRotaryScaling(2.0, 8, beta_slow=0),
        ValueError,
        "YarnRotaryScaling: `beta_slow` must be above 0, not 0",
    ),
    "alibi, no heads": (
        lambda: nn.alibi_slopes(Heads.resize(0)),
        ValueError,
        "alibi_slopes: there are no heads in (heads: 0)",
    ),
    "loss, label smoothing": (
        lambda: nn.cross_entropy_loss(LOGITS, Embed, TARGETS, label_smoothing=10),
        ValueError,
        "cross_entropy_loss: `label_smoothing` must be at least 0 and at most 1, not 10",
    ),
    "loss, z loss": (
        lambda: nn.cross_entropy_loss(LOGITS, Embed, TARGETS, z_loss=-1e-4),
        ValueError,
        "cross_entropy_loss: `z_loss` must be at least 0, not -0.0001",
    ),
    "loss, name of a reduction": (
        lambda: nn.mean_squared_error(LOGITS, LOGITS, "mean"),
        TypeError,
        "reduce_loss: `reduction` must be a function such as `axonym.mean`, not 'mean'.",
    ),
    "fused loss, block size": (
        lambda: fused(block_size=2.5),
        TypeError,
        "fused_cross_entropy: `block_size` must be an integer, not 2.5.",
    ),
    "fused loss, soft cap": (
        lambda: fused(logit_soft_cap=-1.0),
        ValueError,
        "fused_cross_entropy: `logit_soft_cap` must be above 0, not -1.0",
    ),
    "mixture, capacity": (
        lambda: mixture(capacity_factor=0),
        ValueError,
        "MixtureOfExperts: `capacity_factor`, where None drops no token, must be above 0, not 0",
    ),
    "mixture, name of an activation": (
        lambda: mixture(activation="silu"),
        TypeError,
        "MixtureOfExperts: `activation` must be a function such as `axonym.nn.silu`, not 'silu'.",
    ),
    "mixture, number of experts": (
        lambda: nn.MixtureOfExperts.init(Embed, Mlp, 4, 2, key=KEY),
        TypeError,
        "A new axis is given by an `Axis`, with a name and a size, not by 4.",
    ),
    "Router, several keys": (
        lambda: nn.Router.init(Embed, Experts, 2, key=KEYS),
        ValueError,
        "one key is needed, not an array of keys of shape (3,)",
    ),
    "MoELinear, number of experts": (
        lambda: nn.MoELinear.init(4, Embed, Mlp, key=KEY),
        TypeError,
        "A new axis is given by an `Axis`, with a name and a size, not by 4.",
    ),
    "ragged_dot, negative size": (
        lambda: ragged(2, -1, 1, 1),
        ValueError,
        "the group sizes of `ragged_dot` are numbers of rows, at least 0, but one is -1",
    ),
    "ragged_dot, too many rows": (
        lambda: ragged(1, 1, 1, 1),
        ValueError,
        "the group sizes of `ragged_dot` (experts: 4) add up to 4 rows, more than the axis (pos: 3) has",
    ),
    "load balance, no axis": (
        lambda: nn.load_balance_loss(nym.ones(Experts), nym.ones(Experts), ()),
        TypeError,
        "An axis is given by an `Axis` or by its name, not by ()",
    ),
    "BlockSeq, number of layers": (
        lambda: nn.BlockSeq((nn.RmsNorm.init(Embed),), 1),
        TypeError,
        "`BlockSeq` takes layers and the layer axis, as in `BlockSeq((first, second), Axis('layers', 2))`, not",
    ),
    "BlockSeq, policy": (
        lambda: nn.BlockSeq((nn.RmsNorm.init(Embed),), nym.Axis("layers", 1), "everything"),
        ValueError,
        "'everything'",
    ),
    "Stacked, number of a layer": (
        lambda: nn.Stacked.init(nym.Axis("layers", 2), nn.RmsNorm)(Embed).get_layer(0.5),
        TypeError,
        "the number of a layer must be an integer, not 0.5.",
    ),
    "standardize, epsilon": (
        lambda: nn.standardize(QUERY, Embed, epsilon=-1.0),
        ValueError,
        "standardize: `epsilon` must be at least 0, not -1.0",
    ),
    "standardize, variance": (
        lambda: nn.standardize(QUERY, Embed, variance="1"),
        TypeError,
        "An operand is a named array or a number, not '1'.",
    ),
    "gelu, text": (
        lambda: nn.gelu(QUERY, approximate="none"),
        TypeError,
        "gelu: `approximate` must be True or False, not 'none'.",
    ),
    "geglu, text": (
        lambda: nn.geglu(QUERY, Embed, approximate="none"),
        TypeError,
        "geglu: `approximate` must be True or False, not 'none'.",
    ),
    "relu of a layer": (
        lambda: nn.relu(nn.RmsNorm.init(Embed)),
        TypeError,
        "An operand is a named array or a number, not RmsNorm(",
    ),
    "one_hot, dtype": (
        lambda: nn.one_hot(TARGETS, Mlp, dtype="fp8"),
        TypeError,
        "`dtype` must be an element type such as `jnp.float32` or 'bfloat16', not 'fp8'.",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_has_the_name_and_the_value(mistake):
    call, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_numbers_of_numpy_and_jax_become_those_of_python():
    layer = nn.LayerNorm.init(Embed, np.float32(0.5))
    assert (type(layer.eps), layer.eps) == (float, 0.5)
    assert hash(jax.tree.structure(nn.LayerNorm.init(Embed, jnp.asarray(0.5)))) == hash(jax.tree.structure(layer))
    assert nn.GroupNorm.init(Embed, np.int64(2)).groups == 2
    assert nn.Dropout(np.float64(0.25)).pdrop == 0.25


def test_a_number_that_is_traced_is_refused_by_name():
    with pytest.raises(TypeError, match="`eps` must be a number that is known when the function is traced"):
        jax.eval_shape(lambda eps: nn.RmsNorm.init(Embed, eps), 1e-5)


def test_each_layer_may_have_a_scale_of_its_own():
    layers = nym.Axis("layers", 2)
    stack = nn.Stacked.init(layers, nn.Linear)(
        Embed, Mlp, key=KEY, init_scale=nym.named([0.0, 1.0], layers), initializer=jax.nn.initializers.ones
    )
    assert stack.stacked.weight.sum((Embed, Mlp)).array.tolist() == [0, 32]


def test_group_sizes_within_a_compiled_function_are_not_checked():
    assert jax.eval_shape(lambda sizes: ragged(*sizes), [1, 1, 1, 1]).shape == {"pos": 3}

"""The layers, losses and other functions of `axonym.nn` and `axonym.quantization`, each as cases."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

import axonym as nym
from axonym import nn
from axonym.quantization import Float8DotGeneral, Int8DotGeneral, quantize_linear_layers

from .cases import Case, axis
from .operations import POSITIONS


Embed, Mlp, Vocab, Experts, Pos, KPos, Heads, HeadDim, Batch = map(
    axis, "embed mlp vocab experts pos key_pos heads head_dim batch".split()
)
KEY = jax.random.key


def call(layer: Any, *arrays: Any) -> Any:
    return layer(*arrays)


def make(init: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    """Returns a function of a key that makes a layer."""
    return lambda key: init(*args, **options, key=key)


def make_keyless(init: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    return lambda key: init(*args, **options)


GATES = nn.glu, nn.geglu, nn.reglu, nn.swiglu
LINEAR = [
    Case("nn.Linear nn.HiddenLinear", call, (make(nn.HiddenLinear.init, Embed, Mlp), "batch pos embed")),
    Case("nn.InputLinear", call, (make(nn.InputLinear.init, Embed, Mlp), "batch embed"), is_thorough=True),
    Case("nn.OutputLinear", call, (make(nn.OutputLinear.init, (Heads, HeadDim), Mlp), "batch heads head_dim")),
    Case("nn.MLP", call, (make(nn.MLP.init, Embed, Mlp.alias("out"), 8, 2), "batch embed"), is_thorough=True),
    Case(
        "nn.Embedding nn.MupEmbedding",
        lambda layer: layer(nym.named(POSITIONS, "batch")),
        (make(nn.MupEmbedding.init, Vocab, Embed),),
    ),
    Case("nn.Embedding", nn.Embedding.unembed, (make(nn.Embedding.init, Vocab, Embed), "batch embed"), "unembed"),
    Case("nn.RmsNorm", call, (make_keyless(nn.RmsNorm.init, Embed), "batch embed")),
    Case("nn.LayerNorm", call, (make_keyless(nn.LayerNorm.init, (Embed, Pos)), "batch pos embed"), is_thorough=True),
    Case("nn.GroupNorm", call, (make_keyless(nn.GroupNorm.init, Mlp, 2, "pos"), "batch pos mlp"), is_thorough=True),
    Case("nn.standardize", lambda x: nn.standardize(x, "b"), ("a b",)),
    Case("nn.Dropout", lambda x: nn.Dropout(0.5)(x, key=KEY(0)), ("batch embed",)),
    Case("nn.glu nn.geglu nn.reglu nn.swiglu", lambda x: [fn(x, "b") for fn in GATES], ("a b",)),
]


def normalize_batch(x: Any, weight: Any, bias: Any) -> Any:
    layer, state = eqx.nn.make_with_state(nn.BatchNorm.init)(Mlp)
    layer = eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (weight, bias))
    return layer(x, state)[0]


class Block(nn.Linear):
    """A layer whose result has the axes of its input."""

    @staticmethod
    def init(*, key: Any) -> Any:
        return nn.Linear.init(Embed, Embed.alias("other"), key=key)


def make_layers(kind: Any) -> Callable[..., Any]:
    return lambda key: kind.init(axis("layers"), Block)(key=jax.random.split(key, 2))


def fold(stack: Any, x: Any) -> Any:
    return stack.fold_via(lambda layer, x: nym.tanh(layer(x)).rename({"other": "embed"}))(x)


def attend(**options: Any) -> Callable[..., Any]:
    def run(query: Any, key: Any, value: Any, *sinks: Any) -> Any:
        more = {"sinks": sinks[0]} if sinks else {}
        return nn.dot_product_attention("key_pos", "head_dim", query, key, value, **options, **more)

    return run


def extend_cache(key: Any, value: Any) -> Any:
    cache = nn.KVCache.init(nym.Axis("key_pos", 8), (Batch, HeadDim))
    parts = [(key["pos", slice_], value["pos", slice_]) for slice_ in (slice(0, 2), slice(2, 6))]
    cache = cache.update(*parts[0], "pos")
    keys, values, _ = cache.extend(*parts[1], "pos")
    cache = cache.update(*parts[1], "pos")
    return [keys, values, cache.key, cache.value]


STATEFUL = [
    Case("nn.BatchNorm", normalize_batch, ("batch pos mlp", "mlp", "mlp")),
    Case("nn.Stacked", fold, (make_layers(nn.Stacked), "batch embed")),
    Case("nn.BlockSeq nn.LayerStack", fold, (make_layers(nn.BlockSeq), "batch embed"), is_thorough=True),
    Case("nn.KVCache", extend_cache, ("batch pos head_dim", "batch pos head_dim")),
]
QUERY, KEYS = "batch pos heads group head_dim", "batch key_pos heads head_dim"
ATTENTION = [
    Case("nn.dot_product_attention", attend(), (QUERY, KEYS, KEYS, "heads"), "grouped with sinks"),
    Case(
        "nn.dot_product_attention nn.AttentionMask",
        attend(implementation="blocked", block_size=4, mask=nn.AttentionMask.causal(), QPos="pos"),
        (QUERY, KEYS, KEYS, "heads"),
        "blocked with sinks",
        is_thorough=True,
    ),
    Case(
        "nn.rotary_embedding",
        lambda x: [nn.rotary_embedding(x, "pos", "head_dim", interleaved=way) for way in (True, False)],
        ("batch pos head_dim",),
    ),
]


def choose(name: str) -> Any:
    return nym.named([0, 3, 2, 2], name)


LOSSES = [
    Case(
        "nn.cross_entropy_loss",
        lambda x: nn.cross_entropy_loss(x, "vocab", choose("batch"), label_smoothing=0.1),
        ("batch vocab",),
    ),
    Case(
        "nn.cross_entropy_loss_and_log_normalizers",
        lambda x: nn.cross_entropy_loss_and_log_normalizers(x, "vocab", choose("batch")),
        ("batch vocab",),
        is_thorough=True,
    ),
    Case(
        "nn.fused_cross_entropy",
        lambda x, w: nn.fused_cross_entropy(x, w, choose("batch"), "embed", "vocab", block_size=4),
        ("batch embed", "vocab embed"),
    ),
    Case("nn.binary_cross_entropy_loss", nn.binary_cross_entropy_loss, ("batch pos", "batch pos")),
    Case(
        "nn.mean_squared_error nn.reduce_loss",
        lambda x, y, w: nn.mean_squared_error(x, y, weight=w),
        ("batch pos", "batch pos", "batch"),
    ),
]


def mix_sequences(layer: Any, x: Any) -> Any:
    return layer(nym.stack("pos", [x, 2 * x, -x]))  # tokens compete along an axis that must not be sharded


EXPERTS = [
    Case(
        "nn.Router nn.Routing nn.router_z_loss",
        lambda layer, x: [(routing := layer(x)).weights, nn.router_z_loss(routing.logits, "experts")],
        (make(nn.Router.init, Embed, Experts, 2), "batch embed"),
    ),
    Case(
        "nn.load_balance_loss",
        lambda x: nn.load_balance_loss(nym.arange(Experts), nn.softmax(x, "experts"), "experts"),
        ("experts",),
    ),
    Case(
        "nn.MoELinear nn.ragged_dot",
        lambda layer, x: layer(x, nym.named([3, 0, 4, 1], "experts")),
        (make(nn.MoELinear.init, Experts, Embed, Mlp), "token embed"),
    ),
    Case(
        "nn.MixtureOfExperts nn.MixtureMetrics",
        call,
        (make(nn.MixtureOfExperts.init, Embed, Mlp, Experts, 2), "batch embed"),
        is_thorough=True,
    ),
    Case(
        "nn.MixtureOfExperts",
        mix_sequences,
        (
            make(
                nn.MixtureOfExperts.init, Embed, Mlp, Experts, 2, gated=False, capacity_factor=1.0, capacity_axis="pos"
            ),
            "batch embed",
        ),
        "with a capacity",
        is_thorough=True,
    ),
]
WINDOWS = [
    Case(
        "nn.max_pool nn.min_pool",
        lambda x: [fn(nym.Axis("height", 3), x, stride=2, padding="SAME") for fn in (nn.max_pool, nn.min_pool)],
        ("batch height mlp",),
    ),
    Case(
        "nn.mean_pool",
        lambda x: nn.mean_pool(nym.make_axes(height=2, width=2), x, stride=2),
        ("batch height width mlp",),
    ),
    Case(
        "nn.Conv",
        lambda layer, x: nym.vmap(layer, "batch")(x),
        (make(nn.Conv.init, "height", Embed, Mlp, 3, padding=1, groups=2), "batch height embed"),
        "in vmap",
    ),
    Case(
        "nn.max_pool",
        lambda x: nym.vmap(lambda x: nn.max_pool(nym.Axis("height", 3), x, padding=1), "batch")(x),
        ("batch height mlp",),
        "in vmap",
    ),
]
CONVOLUTIONS = [
    (nn.Conv, dict(padding=(2, 1), stride=(1, 2), kernel_size=(5, 3), groups=2), False),
    (nn.ConvTranspose, dict(padding=1, stride=(2, 1), output_padding=(1, 0), groups=2, dilation=(1, 2)), False),
    (nn.Conv, dict(padding="SAME", groups=4), True),
    (nn.Conv, dict(padding="VALID", dilation=2, kernel_size=(3, 2)), True),
    (nn.Conv, dict(padding=1, padding_mode="circular", groups=2), True),
]
for kind, options, is_thorough in CONVOLUTIONS:
    layer = make(kind.init, ("height", "width"), Embed, Mlp, **{"kernel_size": 3, **options})
    arguments = layer, "batch height width embed"
    WINDOWS.append(Case(f"nn.{kind.__name__}", call, arguments, str(options), is_thorough))
QUANTIZATION = [
    Case(
        "quantization.Int8DotGeneral quantization.quantize_linear_layers",
        call,
        (lambda key: quantize_linear_layers(nn.Linear.init(Embed, Mlp, key=key), Int8DotGeneral()), "batch embed"),
    ),
    Case(
        "quantization.Float8DotGeneral quantization.OverwriteWithGradient",
        lambda layer, x: quantize_linear_layers(layer, Float8DotGeneral.init(4))(x),
        (make(nn.Linear.init, Embed, Mlp), "batch embed"),
    ),
]
GROUPS = {
    "linear": LINEAR,
    "stateful": STATEFUL,
    "attention": ATTENTION,
    "losses": LOSSES,
    "experts": EXPERTS,
    "windows": WINDOWS,
    "quantization": QUANTIZATION,
}

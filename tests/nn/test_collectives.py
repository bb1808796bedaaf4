"""Layers under FSDP and tensor parallelism send nothing between devices that hand-written JAX does not send."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym

from ..examples.handwritten import at, product, rms_norm, rows
from ..hlo import Program, merge_scatters, table, totals


COMPUTE = {"batch": "data", "mlp": "model", "vocab": "model"}
STORED = {**COMPUTE, "embed": "data"}
Batch, Pos, Embed, Mlp, Vocab = nym.make_axes(batch=8, pos=4, embed=16, mlp=8, vocab=32)
HIDDEN = P("data", None, "model")


def linear(weight, bias, x):
    return nym.nn.Linear(weight, bias, (Embed,), (Mlp,))(x)


def hand_linear(weight, bias, x):
    return product("bpe,me->bpm", x, at(weight, P("model")), HIDDEN) + at(bias, P("model"))[None, None]


def product_by_name(weight, x):
    return nym.dot(x, nym.auto_sharded(weight), axis=Embed)


def loss_of(logits, targets):
    return nym.nn.cross_entropy_loss(logits, Vocab, targets)


def hand_loss_of(logits, targets):
    chosen = jnp.where(jnp.arange(Vocab.size)[None, None] == targets[..., None], logits, 0)
    return (jax.nn.logsumexp(logits, -1) - chosen.sum(-1)).mean()


def fused_loss_of(weight, x):
    return nym.nn.fused_cross_entropy(x, weight, label_numbers(), Embed, Vocab, block_size=8)


def hand_fused_loss_of(weight, x):
    logits = product("bpe,ve->bpv", x, at(weight, P("model")), HIDDEN)
    return hand_loss_of(logits, label_numbers().array)


def label_numbers():
    return nym.arange(Batch) + nym.zeros((Batch, Pos), int)


IDS = (Batch, Pos), P("data")
X = (Batch, Pos, Embed.alias("given")), P("data")
TABLE = (Vocab, Embed), P("model", "data")
WEIGHT, SCALE = ((Mlp, Embed), P("model", "data")), ((Embed,), P("data"))
CASES = {
    "dot": (product_by_name, lambda w, x: product("bpe,me->bpm", x, at(w, P("model")), HIDDEN), WEIGHT, X),
    "Linear": (linear, hand_linear, WEIGHT, ((Mlp,), P("model")), X),
    "Embedding": (
        lambda weight, ids: nym.nn.Embedding(weight, Vocab, (Embed,))(ids),
        lambda weight, ids: rows(at(weight, P("model")), ids, P("data")),
        TABLE,
        IDS,
    ),
    "Embedding.unembed": (
        lambda weight, x: nym.nn.Embedding(weight, Vocab, (Embed,)).unembed(x),
        lambda weight, x: product("bpe,ve->bpv", x, at(weight, P("model")), HIDDEN),
        TABLE,
        X,
    ),
    "RmsNorm": (
        lambda weight, x: nym.nn.RmsNorm(weight, None, (Embed,), 1e-5)(x),
        lambda weight, x: rms_norm(at(weight, P()), x),
        SCALE,
        X,
    ),
    "fused_cross_entropy": (fused_loss_of, hand_fused_loss_of, TABLE, X),
    "cross_entropy_loss": (loss_of, hand_loss_of, ((Batch, Pos, Vocab), HIDDEN), IDS),
}


def drawn(seed, axes):
    shape = [axis.size for axis in axes]
    random = np.random.default_rng(seed)
    return random.integers(0, 32, shape).astype(np.int32) if axes == IDS[0] else random.normal(size=shape)


@pytest.mark.parametrize("case", CASES)
def test_no_more_is_sent_than_by_hand(mesh, case):
    own, by_hand, *arguments = CASES[case]
    arrays = [jnp.asarray(drawn(seed, axes)) for seed, (axes, _) in enumerate(arguments)]
    shardings = tuple(NamedSharding(mesh, spec) for _, spec in arguments)

    def ours(*args):
        *parameters, x = args
        x = x.rename({"given": "embed"}) if x.has_axis("given") else x

        def loss(*parameters):
            return nym.mean(nym.square(own(*parameters, x))).scalar()

        return jax.value_and_grad(loss, tuple(range(len(parameters))))(*parameters)

    def theirs(*args):
        *parameters, x = args

        def loss(*parameters):
            return jnp.mean(jnp.square(by_hand(*parameters, x)))

        value, grads = jax.value_and_grad(loss, tuple(range(len(parameters))))(*parameters)
        return value, tuple(at(grad, sharding.spec) for grad, sharding in zip(grads, shardings, strict=False))

    named = [nym.named(array, axes) for array, (axes, _) in zip(arrays, arguments, strict=True)]
    placed = jax.device_put(arrays, list(shardings))
    compiled = nym.fsdp(ours, STORED, COMPUTE).lower(*named).compile()
    expected = jax.jit(theirs, in_shardings=shardings).lower(*placed).compile()
    result, limits = (totals(Program(program.as_text()).collectives()) for program in (compiled, expected))
    tables = "\n".join([table("Axonym", result), table("hand-written", limits)])
    assert limits, "Nothing is sent."
    result = merge_scatters(result)
    assert result.keys() <= limits.keys(), tables
    for key, total in result.items():
        assert all(a <= b for a, b in zip(total, limits[key], strict=True)), f"{key}\n{tables}"
    value, gradients = compiled(*(nym.shard(x, STORED) for x in named))
    target, target_gradients = expected(*placed)
    np.testing.assert_allclose(value, target, rtol=1e-5)
    for gradient, target in zip(gradients, target_gradients, strict=True):
        np.testing.assert_allclose(np.asarray(gradient.array), np.asarray(target), rtol=1e-4, atol=1e-6)

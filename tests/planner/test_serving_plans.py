"""`plan` for steps that serve a model: they decode with a cache of keys and values, or read prompts."""

import collections
import functools
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as nym
from axonym.nn import Embedding, KVCache, Linear, Stacked
from axonym.planner._machine._hardware import get_hardware
from axonym.planner._search._screening import Screening
from axonym.planner._search._step_variants import list_variants
from axonym.planner._step_time._link_model import LinkModel


Vocab, Layers, Embed, Heads, HeadDim, Mlp = nym.make_axes(
    vocab=1024, layers=2, embed=512, heads=8, head_dim=64, mlp=2048
)
BATCH, CONTEXT = 16, 128


class Block(eqx.Module):
    query: Linear
    key: Linear
    value: Linear
    out: Linear
    up: Linear
    down: Linear

    @staticmethod
    def init(*, key):
        keys = iter(jax.random.split(key, 6))

        def linear(In, Out):
            return Linear.init(In, Out, key=next(keys), use_bias=False)

        projections = [linear(Embed, (Heads, HeadDim)) for _ in range(3)]
        return Block(*projections, linear((Heads, HeadDim), Embed), linear(Embed, Mlp), linear(Mlp, Embed))

    def __call__(self, x, cache):
        key, value = self.key(x), self.value(x)
        keys, values, mask = cache.extend(key, value, "pos")
        attended = nym.nn.dot_product_attention("key_pos", "head_dim", self.query(x), keys, values, mask, QPos="pos")
        x = x + self.out(attended)
        return x + self.down(nym.nn.relu(self.up(x))), (key, value)


def init_model(key):
    keys = jax.random.split(key, 3)
    return {
        "embedding": Embedding.init(Vocab, Embed, key=keys[0]),
        "blocks": Stacked.init(Layers, Block)(key=jax.random.split(keys[1], Layers.size)),
        "head": Linear.init(Embed, Vocab, key=keys[2], use_bias=False),
    }


def make_model():
    model = eqx.filter_eval_shape(init_model, jax.random.key(0))
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, "bfloat16"), model)


def make_inputs(batch=BATCH, context=CONTEXT, length=1):
    KPos, axes = nym.Axis("key_pos", context), (Layers, nym.Axis("batch", batch), Heads, HeadDim)
    cache = eqx.filter_eval_shape(lambda: KVCache.init(KPos, axes, "bfloat16"))
    return cache, nym.NamedArray(jax.ShapeDtypeStruct((batch, length), "int32"), ("batch", "pos"))


@functools.partial(nym.named_jit, donate_args=(False, True, False))
def decode_step(model, cache, tokens):
    x, new = model["blocks"].scan(model["embedding"](tokens), cache)
    following = model["head"](x["pos", -1]).argmax("vocab").astype(jnp.int32)
    return cache.update(*new, Pos="pos"), following.broadcast_axis(nym.Axis("pos", 1)).rearrange(("batch", "pos"))


TENSOR = {"heads": ("model",), "mlp": ("model",), "vocab": ("model",)}
READ = 2 * Embed.size * (Layers.size * (4 * Heads.size * HeadDim.size + 2 * Mlp.size) + Vocab.size)  # not the embedding
CACHE = 2 * 2 * Layers.size * BATCH * Heads.size * CONTEXT * HeadDim.size


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The compiled programs of all workers of a run, of which each would otherwise compile the same ones."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "planned"


def test_decoding_takes_as_long_as_memory_needs_for_parameters_and_cache():
    """They are read once, and the cache is updated in place; of the embedding a few rows are read."""
    [variant] = list_variants(
        decode_step.__wrapped__, (make_model(), *make_inputs()), None, None, collections.Counter()
    )
    described, v5e = nym.planner.described_devices("v5e:2x4"), get_hardware("v5e")
    screening = Screening(variant, v5e, lambda candidate: LinkModel(nym.create_mesh(candidate.mesh, devices=described)))
    found = screening.screen(nym.planner.Candidate({"model": 8}, TENSOR, TENSOR)).estimate
    least = (READ + CACHE) / 8 / v5e.hbm_bandwidth
    assert least < found.time.compute < 1.15 * least  # activations, too
    gathered = screening.screen(nym.planner.Candidate({"data": 8}, {"batch": ("data",)}, {"embed": ("data",)})).estimate
    assert gathered.cost > 4 * found.cost and gathered.sent[("data",)] >= 7 * READ // 8

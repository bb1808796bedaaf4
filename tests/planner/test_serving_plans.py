"""`plan` for steps that serve a model: they decode with a cache of keys and values, or read prompts."""

import dataclasses
import functools
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as nym
from axonym.nn import Embedding, KVCache, Linear, Stacked
from axonym.planner._machine._hardware import get_hardware
from tests.planner.test_plan_search import make_screening


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


def test_decoding_takes_as_long_as_memory_needs_for_parameters_and_cache():
    """They are read once, and the cache is updated in place; of the embedding a few rows are read."""
    _, screening = make_screening("v5e:2x4", decode_step.__wrapped__, make_model(), *make_inputs())
    found = screening.screen(nym.planner.Candidate({"model": 8}, TENSOR, TENSOR)).estimate
    least = (READ + CACHE) / 8 / get_hardware("v5e").hbm_bandwidth
    assert least < found.time.compute < 1.15 * least  # activations, too
    gathered = screening.screen(nym.planner.Candidate({"data": 8}, {"batch": ("data",)}, {"embed": ("data",)})).estimate
    assert gathered.cost > 4 * found.cost and gathered.sent[("data",)] >= 7 * READ // 8


TENSOR_PARALLEL = {"mesh": {"model": 8}, "compute": TENSOR}


@pytest.fixture
def make_plan(cache):
    arguments = {"devices": "cpu:8", "serve": "batch", "fixed": TENSOR_PARALLEL, "cache": cache}
    return functools.partial(nym.planner.plan, decode_step, make_model(), **arguments)


def test_each_context_has_the_batch_that_fits(make_plan, monkeypatch):
    small = dataclasses.replace(get_hardware("cpu"), hbm_available=24_000_000)
    monkeypatch.setattr("axonym.planner._machine._hardware.HARDWARE", {"cpu": small})
    found = make_plan(*make_inputs(), sizes={"batch": (16, 64), "key_pos": (CONTEXT, 4 * CONTEXT)})
    by_sizes = {(*one.candidate.sizes.values(),): one for one in found.evaluations}
    assert {sizes: one.fits for sizes, one in by_sizes.items()} == {
        (16, CONTEXT): True,
        (64, CONTEXT): True,
        (16, 4 * CONTEXT): True,
        (64, 4 * CONTEXT): False,
    }
    assert found.sizes == {"batch": 64, "key_pos": CONTEXT}  # which makes most tokens a second
    assert found.tokens_per_second() == pytest.approx(64 / found.best.time.total)
    assert found.evaluations[-1] is by_sizes[64, 4 * CONTEXT] and " MiB over" in str(found)
    assert 0 <= found.best.memory["cache"] - CACHE // 2 < 100 and not found.notes
    text = str(found)
    assert "model 8, batch of 64, key_pos of 128 is best" in text and "a token, " in text and "MFU" not in text
    rows = text[text.index("Best of each size") :].splitlines()
    assert [line.split()[:2] for line in rows[3:11:2]] == [["128", "16"], ["128", "64"], ["512", "16"], ["512", "64"]]
    room = int(rows[5].split()[-1])
    parameters, grown = found.best.memory["parameters"], found.best.bytes - found.best.memory["parameters"]
    assert parameters + grown * room / 64 <= 24_000_000 < parameters + grown * (room + 1) / 64
    [reason] = found.why("batch=16").alternatives
    assert reason.choice == "16 not sharded"
    assert reason.seconds == pytest.approx(4 * reason.evaluation.time.total - found.best.time.total)


def test_prompts_are_read_with_the_mapping_for_decoding(make_plan):
    decode = make_plan(*make_inputs())
    fixed = {"mesh": decode.best.candidate.mesh, "compute": decode.compute, "parameters": decode.parameters}
    prefill = make_plan(*make_inputs(length=64), fixed=fixed)
    assert prefill.parameters == decode.parameters and prefill.fits
    assert prefill.tokens_per_second() == pytest.approx(64 * BATCH / prefill.best.time.total)
    assert "a step, " in str(prefill) and "Best of each size" not in str(prefill)


def test_a_cache_that_is_not_donated_is_noted(make_plan, cache):
    plain = nym.named_jit(decode_step.__wrapped__)
    found = nym.planner.plan(
        plain, make_model(), *make_inputs(), devices="cpu:8", serve="batch", fixed=TENSOR_PARALLEL, cache=cache
    )
    assert found.notes == ("results take 1 MiB beside the cache; donate the cache that they replace",)


@pytest.mark.parametrize(
    ("serve", "error", "message"),
    [
        ("bach", ValueError, "`serve` is 'bach', which is no axis of the data.*'batch'.*: batch, key_pos, pos"),
        ("embed", ValueError, "`serve` is 'embed', which is no axis of the data; these are axes that only arguments"),
        (nym.Axis("batch", 4), TypeError, "`serve` is the name of the axis of sequences, such as 'batch', not Axis"),
    ],
)
def test_a_wrong_axis_of_sequences_is_said(make_plan, serve, error, message):
    with pytest.raises(error, match=message):
        make_plan(*make_inputs(), serve=serve)


@pytest.mark.skipif(not os.environ.get("AXONYM_LIBTPU"), reason="This needs libtpu: `make tpu` installs it.")
def test_decoding_on_tpus_reads_a_long_cache_without_a_copy(make_plan):
    """With copies of the keys and values of each layer, it takes 13 times as long as the memory needs, not 5 times."""
    found = make_plan(*make_inputs(context=32 * CONTEXT), devices="v5e:2x4")
    assert found.best.stage == "timed"
    least = (READ + 32 * CACHE) / 8 / get_hardware("v5e").hbm_bandwidth
    assert least < found.best.time.compute < 8 * least


@pytest.mark.skipif(not os.environ.get("AXONYM_GPU_PLUGINS"), reason="This needs XLA for GPUs: `make gpu-plugins`.")
def test_decoding_on_gpus_counts_reading_the_cache_in_attention(cache):
    program = nym.planner.compile_for(
        decode_step,
        make_model(),
        *make_inputs(context=32 * CONTEXT),
        devices="h100:1x8",
        mesh={"model": 8},
        mapping=TENSOR,
        cache=cache,
    )
    least = 32 * CACHE / 8 / get_hardware("h100").hbm_bandwidth
    assert nym.planner.estimate_step_time(program).attention > least

"""Models of the examples train in each form of parallelism, and programs in several processes, as on one device."""

import functools
from types import MappingProxyType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

import axonym as nym
from examples.models import llama, mixtral
from tests.processes import run


STEPS = 6
# All experts of each token and small steps, or rounding would be seen: tokens choose others after a few steps.
CONFIG = {
    "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 4, "intermediate_size": 32, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu",
    "tie_word_embeddings": False, "num_local_experts": 4, "num_experts_per_tok": 4, "max_position_embeddings": 16,
}  # fmt: skip
MODELS: dict[str, Any] = {"llama": (llama.Config, llama.Llama), "mixtral": (mixtral.Config, mixtral.Mixtral)}
TOKENS = nym.named(np.random.default_rng(0).integers(0, 32, (STEPS, 16, 16)), ("step", "batch", "pos"))
OPTIMIZER = optax.sgd(1.0, momentum=0.5)


def compute_loss(model: Any, tokens: Any) -> Any:
    Pos = tokens.resolve_axis("pos")
    logits, metrics = model(tokens), 0.0
    if isinstance(model, mixtral.Mixtral):
        logits, (_, found) = model.run_blocks(tokens, None)
        metrics = 1e-2 * found.router_z_loss.mean().scalar()
    targets = nym.nn.one_hot(nym.roll(tokens, -1, Pos), model.config.vocab)
    return nym.nn.cross_entropy_loss(logits, model.config.vocab, targets).mean().scalar() + metrics


def train(model: Any, state: Any, tokens: Any) -> Any:
    """Returns the losses of all steps."""

    def step(carry: Any, tokens: Any) -> Any:
        model, state = carry
        loss, gradients = eqx.filter_value_and_grad(compute_loss)(model, tokens)
        updates, state = OPTIMIZER.update(gradients, state)
        return (eqx.apply_updates(model, updates), state), loss

    return nym.scan(step, "step")((model, state), tokens)[1]


def make_model(family: str, **options: Any) -> Any:
    config, model = MODELS[family]
    config = config.from_hf(CONFIG)._replace(**options)
    shapes = eqx.filter_eval_shape(model.init, config, key=jax.random.key(0))
    random = np.random.default_rng(0)
    return jax.tree.map(lambda x: random.normal(scale=0.3, size=x.shape).astype(x.dtype), shapes)


def init_state(model: Any) -> Any:
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), eqx.filter_eval_shape(OPTIMIZER.init, model))


@functools.cache
def train_on_one_device(family: str) -> np.ndarray:
    model = make_model(family)
    losses = np.asarray(eqx.filter_jit(train)(model, init_state(model), TOKENS))
    assert losses[-1] < losses[0]
    return losses


class Case(NamedTuple):
    """A form of parallelism: a model, the mesh, the mapping, and options of the model and of the mapping."""

    family: str
    mesh: dict[str, int]
    mapping: dict[str, Any]
    options: Any = MappingProxyType({})
    microbatches: int | None = None
    repeats: int = 1


TENSOR = {"mlp": "model", "heads": "model", "vocab": "model"}
CONTEXT = {"batch": "data", "pos": "context", "mlp": "model", "vocab": "model"}
EXPERTS = {"batch": ("data", "expert"), "experts": "expert", **TENSOR}
STAGES = {"batch": "data", "layers": "stage", **TENSOR}
BOUNDED = {"dispatch": "all_to_all", "capacity_factor": 2.0}  # so that no token is dropped
CUBE = {"data": 2, "context": 2, "model": 2}
STAGE_CUBE = {"stage": 2, "data": 2, "context": 2}
CASES = {
    "experts, all_to_all": Case("mixtral", {"data": 2, "expert": 2, "model": 2}, EXPERTS, BOUNDED),
    "stages and a ring": Case("llama", STAGE_CUBE, {**CONTEXT, "layers": "stage"}, {"context": "ring"}, 4, 2),
    "ring": Case("llama", CUBE, CONTEXT, {"context": "ring"}),
    "mixed": Case(
        "llama", {"data": 2, "ring": 2, "swap": 2}, {"batch": "data", "pos": ("ring", "swap")}, {"context": "mixed"}
    ),
    "experts, ragged": Case("mixtral", {"data": 2, "expert": 4}, EXPERTS, {"dispatch": "ragged_all_to_all"}),
    "2 stages": Case("llama", {"stage": 2, "data": 2, "model": 2}, STAGES, {}, 8, 2),
    "stages and experts": Case(
        "mixtral", {"stage": 2, "data": 2, "expert": 2}, {**EXPERTS, "layers": "stage"}, {"dispatch": "gather"}, 4, 2
    ),
}


def train_case(name: str, axis_types: Any) -> np.ndarray:
    family, sizes, entries, options, microbatches, repeats = CASES[name]
    entries = {key: [axis for axis in np.atleast_1d(axes).tolist() if axis in sizes] for key, axes in entries.items()}
    policy = nym.Policy(microbatches={"batch": microbatches} if microbatches else None)
    stored = {**entries, "batch": None, "pos": None, "embed": "data" if "data" in sizes else None}
    model = make_model(family, **options)
    blocks = model.blocks.interleave(sizes.get("stage", 1), repeats)
    model = jax.tree.map(np.asarray, eqx.tree_at(lambda model: model.blocks, model, blocks))
    with jax.set_mesh(nym.create_mesh(tuple(sizes.values()), tuple(sizes), axis_types=axis_types)):
        model, state = nym.shard((model, init_state(model)), stored)
        losses = nym.fsdp(train, stored, entries, policy=policy)(model, state, nym.shard(TOKENS, entries))
    return np.asarray(losses)


BY_DAY = {"experts, all_to_all": "explicit"}  # of the others, other tests have the parts


@pytest.mark.parametrize(
    ("name", "axis_types"),
    [
        pytest.param(name, axis_types, marks=() if BY_DAY.get(name) == axis_types else pytest.mark.thorough)
        for name in CASES
        for axis_types in ("auto", "explicit")
    ],
)
def test_training_has_the_losses_of_one_device(name: str, axis_types: Any):
    np.testing.assert_allclose(train_case(name, axis_types), train_on_one_device(CASES[name].family), rtol=1e-4)


PROGRAM = """
import warnings
import numpy as np
import jax.numpy as jnp
from jax.experimental import multihost_utils

start()
COMPUTE = {"batch": "data", "mlp": "model"}
PARAMETERS = {**COMPUTE, "embed": "data"}
Batch, Pixel, Embed, Mlp = nym.make_axes(batch=8, pixel=2, embed=4, mlp=6)

def drawn(seed, *axes):
    values = np.random.default_rng(seed).normal(size=[axis.size for axis in axes]).astype(np.float32)
    return nym.NamedArray(values, [axis.name for axis in axes])

def loss_of(model, x):
    hidden = nym.dot(nym.auto_sharded(model["in"]), x, axis="pixel")
    hidden = nym.tanh(nym.dot(nym.auto_sharded(model["up"]), hidden, axis="embed"))
    y = nym.dot(nym.auto_sharded(model["down"]), hidden, axis="mlp") - x
    return nym.mean(y * y).array

def step(model, moments, x):
    loss, grads = nym.microbatch(jax.value_and_grad(loss_of), "batch", 2)(model, x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - 0.5 * m, model, moments), moments, loss

def trained(step, model, moments, batches):
    losses = []
    for x in batches:
        model, moments, loss = step(model, moments, x)
        losses.append(float(loss))
    return model, moments, losses

model = {"in": drawn(0, Pixel, Embed), "up": drawn(1, Embed, Mlp), "down": drawn(2, Mlp, Pixel)}
moments = jax.tree.map(np.zeros_like, model)
batches = [drawn(seed, Batch, Pixel) for seed in (3, 4, 5)]
# In this process alone, on one device.
wanted, _, losses = trained(jax.jit(step), *jax.tree.map(jnp.asarray, (model, moments)), batches)
assert len({*losses}) == 3

def gathered(x):
    return multihost_utils.process_allgather(x.array, tiled=True)

def draw(keys):
    return nym.NamedArray(jax.vmap(jax.random.bits)(keys.array), keys.names)

def same(x, y):
    np.testing.assert_allclose(gathered(x), np.asarray(y.array), rtol=2e-5, atol=1e-6)

rows = jax.device_count() // 2
keys = nym.named(jax.random.split(jax.random.key(7), 8), "batch")
differing, differing_keys = nym.arange(Batch) + PROCESS, nym.random.split(jax.random.key(PROCESS), Batch)
committed = nym.named(jax.device_put(differing.array, jax.local_devices()[0]), "batch")
# NaN is the same in all processes if its bits are; NumPy's array is moved like JAX's.
values = np.where(np.arange(8) % 3, np.arange(8), np.nan).astype(np.float32)
holes = [nym.named(values, "batch").astype("bfloat16"), nym.NamedArray(values, ("batch",))]
# Processes along `data`, and along `model`.
orders = [("data", "model"), ("model", "data")]
for kind, names in zip(("auto", "explicit"), orders if PROCESSES == 2 else orders[::-1], strict=True):
    mesh = nym.create_mesh((rows, 2) if names[0] == "data" else (2, rows), names, axis_types=kind)
    with jax.set_mesh(mesh):
        nym.assert_same_on_all_hosts((mesh, PARAMETERS), "set-up", timeout=60)
        placed, slots = nym.shard((model, moments), PARAMETERS)
        assert not placed["up"].array.is_fully_addressable
        assert placed["up"].sharding.spec == jax.P("data", "model")
        same(placed["up"], model["up"])
        xs = [nym.shard(x, COMPUTE) for x in batches]
        if names[0] == "data" and PROCESSES == 2:  # each process hands in its half
            half = slice(4 * PROCESS, 4 * PROCESS + 4)
            mine = [nym.NamedArray(x.array[half], x.names) for x in batches]
            xs = nym.host_local_to_global(mine, COMPUTE, check=True, timeout=60)
        after, after_slots, found = trained(nym.fsdp(step, PARAMETERS, COMPUTE), placed, slots, xs)
        np.testing.assert_allclose(found, losses, rtol=2e-5)
        for name in model:
            same(after[name], wanted[name])
            assert after[name].sharding.spec == placed[name].sharding.spec == after_slots[name].sharding.spec

        explained = str(nym.explain(placed, PARAMETERS))
        has(explained, "embed", "'data'" if "'data'" in explained else "data")
        nym.assert_same_on_all_hosts(explained, "explanation", timeout=60)

        # Errors come in every process, before anything is sent: the next call works.
        with nym.axis_mapping(batch="dta"):
            has(raised(ValueError, nym.shard, batches[0]), "axis 'batch' is mapped to mesh axis 'dta', which")
        odd = drawn(6, nym.Axis("batch", 2 * rows + 1))
        text = f"axis 'batch' has size {2 * rows + 1}, which is not divisible by mesh axis 'data' of size {rows}"
        has(raised(ValueError, nym.shard, odd, COMPUTE), text)
        has(raised(ValueError, nym.named_jit(lambda x: x, COMPUTE), odd), text)
        same(nym.shard(odd, nym.AxisMapping(COMPUTE, uneven="replicate")), odd)

        # Random keys, made before the mesh was active or after.
        split = nym.random.split(jax.random.key(7), Batch)
        for placed_keys in (nym.shard({"keys": keys}, COMPUTE)["keys"], nym.shard(split, COMPUTE)):
            assert placed_keys.sharding.spec == jax.P("data")
            data = nym.named(jax.random.key_data(placed_keys.array), ("batch", "word"))
            same(data, nym.named(jax.random.key_data(keys.array), ("batch", "word")))
            assert nym.shard(placed_keys, {}).sharding.spec in (jax.P(), jax.P(None))
        with nym.axis_mapping(COMPUTE):
            assert nym.random.split(jax.random.key(7), Batch).sharding.spec == jax.P("data")
        same(nym.shard_map(draw, mapping=COMPUTE)(keys), draw(keys))
        for leaf in holes:
            same(nym.shard(leaf, COMPUTE), leaf)
        for leaf in (differing, differing_keys, committed):
            text = raised(ValueError, nym.shard, {"x": leaf}, COMPUTE)
            has(text, "['x']: an array of shape (8,) differs between processes; pass the same one in all of them, or")

# Sets are ordered by hashes, which differ from process to process; specs and errors are the same.
mesh = jax.sharding.AbstractMesh((2, 2, 2), ("a", "b", "c"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
axes = nym.make_axes(x=8, y=8, z=8)
said = [raised(ValueError, nym.sharding_for_axis, axes, dict.fromkeys("xyz", ("a", "b", "c")), mesh)]
for mapping in ({"x": ("c", "a"), "y": "b"}, {"y": ["a"], "x": ["b"]}, {"x": None, "z": "c"}):
    mapping = nym.AxisMapping(mapping)
    said.append(f"{mapping} {nym.sharding_for_axis(axes, mapping, mesh).spec}")
nym.assert_same_on_all_hosts(said, "specs", timeout=60)
nym.barrier_sync(60)
print("done", PROCESS)
"""


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), pytest.param(4, 1, marks=pytest.mark.thorough)])
def test_programs_give_the_same_in_several_processes(processes: int, devices: int):
    """Values, gradients, and errors."""
    seeds = [{"PYTHONHASHSEED": str(process + 1)} for process in range(processes)]
    outputs = run(PROGRAM, processes, devices, timeout=240, environment=seeds)
    assert [f"done {process}" in output for process, output in enumerate(outputs)] == [True] * processes

"""Programs that are sharded by name give the same in one process and in several real ones, errors included."""

import pytest

from tests.processes import run


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
    loss, grads = jax.value_and_grad(loss_of)(model, x)
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

        # Results and arguments by mappings of their own; what comes in lies nowhere yet.
        double = nym.named_jit(
            lambda x: nym.auto_sharded(x) * 2, COMPUTE, in_axis_resources={"batch": "model"},
            out_axis_resources={"pixel": "model"},
        )
        got = double(batches[0])
        assert got.sharding.spec == jax.P(None, "model")
        same(got, nym.NamedArray(2 * batches[0].array, batches[0].names))
        explained = str(nym.explain(placed, PARAMETERS))
        has(explained, "embed", "'data'" if "'data'" in explained else "data")
        nym.assert_same_on_all_hosts(explained, "explanation", timeout=60)

        # Errors come in every process, before anything is sent: the next call works.
        with nym.axis_mapping(batch="dta"):
            has(raised(ValueError, nym.shard, batches[0]), "axis 'batch' is mapped to mesh axis 'dta', which",
                "did you mean 'data'?")
        with nym.axis_mapping(batch="data", pixel="data"):
            has(raised(ValueError, nym.shard, {"x": batches[0]}), "['x']: axes 'batch' and 'pixel'", "both mapped")
        odd = drawn(6, nym.Axis("batch", 2 * rows + 1))
        text = raised(ValueError, nym.shard, odd, COMPUTE)
        has(text, f"axis 'batch' has size {2 * rows + 1}, which is not divisible by mesh axis 'data' of size {rows}")
        has(raised(ValueError, nym.named_jit(lambda x: x, COMPUTE), odd), f"'batch' has size {2 * rows + 1}")
        whole = nym.shard(odd, nym.AxisMapping(COMPUTE, uneven="replicate"))
        assert whole.sharding.spec == jax.P(None)
        same(whole, odd)

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


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)])
def test_programs_give_the_same_in_several_processes(processes, devices):
    seeds = [{"PYTHONHASHSEED": str(process + 1)} for process in range(processes)]
    outputs = run(PROGRAM, processes, devices, timeout=240, environment=seeds)
    assert [f"done {process}" in output for process, output in enumerate(outputs)] == [True] * processes


TYPED = """
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

start()
Embed, Mlp, Layers = nym.make_axes(embed=8, mlp=16, layers=2)

class Block(eqx.Module):
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(key):
        return Block(nym.nn.Linear.init(Embed, Mlp, key=key), nym.nn.Linear.init(Mlp, Embed, key=key))

    def __call__(self, x):
        return x + self.down(nym.nn.tanh(self.up(x)))

def compute_loss(stack, x):
    return nym.mean(stack.fold(x.rename({"inputs": "embed"})) ** 2).scalar()

def step(stack, x):
    return nym.microbatch(jax.value_and_grad(compute_loss), "batch", 2)(stack, x)

stack = nym.nn.Stacked.init(Layers, Block)(jax.random.split(jax.random.key(0), 2))
x = nym.random.normal(jax.random.key(1), {"batch": 16, "inputs": 8})
stack, x = jax.tree.map(np.asarray, (stack, x))
expected = jax.tree.leaves(jax.jit(step)(*jax.tree.map(jnp.asarray, (stack, x))))
computing = {"batch": ("replica", "data")}
stored = {**computing, "embed": "data"}
for names in (("replica", "data"), ("data", "replica")):
    with jax.set_mesh(nym.create_mesh((2, 2), names, axis_types="explicit")):
        results = nym.fsdp(step, stored, computing)(*nym.shard((stack, x), stored))
        for result, value in zip(jax.tree.leaves(results), expected, strict=True):
            np.testing.assert_allclose(
                multihost_utils.process_allgather(result, tiled=True), np.asarray(value), rtol=2e-5, atol=1e-6
            )
print("done", PROCESS)
"""


def test_typed_gradients_are_those_of_one_process():
    """Processes along `replica`, and along `data`."""
    outputs = run(TYPED, timeout=240)
    assert [f"done {process}" in output for process, output in enumerate(outputs)] == [True] * 2


CONTEXT = """
import itertools

import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

start()
axes = nym.make_axes(batch=2, pos=16, heads=4, dim=4)
query, key, value = (nym.random.normal(jax.random.key(seed), axes) for seed in range(3))
positions = nym.nn.zigzag_positions(axes[1], 4)

def compute_loss(query, key, value, positions, **options):
    key, value = (x.rename({"pos": "key_pos"}) for x in (key, value))
    mask = nym.nn.AttentionMask.causal()
    out = nym.nn.dot_product_attention(
        "key_pos", "dim", query, key, value, mask, positions=positions, QPos="pos", **options
    )
    return nym.sum(out**2).scalar()

expected = jax.jit(jax.value_and_grad(compute_loss, (0, 1, 2)))(query, key, value, None)
expected = jax.tree.map(np.asarray, (expected[0], [x["pos", positions] for x in expected[1]]))
placed = [x["pos", positions] for x in (query, key, value)]
mapping = {"pos": ("ring", "heads")}
for axis_types, context in itertools.product(("auto", "explicit"), ("ring", "all_to_all", "mixed")):
    with jax.set_mesh(nym.create_mesh((2, 2), ("ring", "heads"), axis_types=axis_types)):
        step = nym.named_jit(
            lambda *operands: jax.value_and_grad(compute_loss, (0, 1, 2))(*operands, context=context), mapping
        )
        loss, gradients = step(*nym.shard((*placed, positions), mapping))
        np.testing.assert_allclose(float(loss), expected[0], rtol=1e-5)
        for gradient, array in zip(gradients, jax.tree.leaves(expected[1]), strict=True):
            whole = multihost_utils.process_allgather(gradient.array, tiled=True)
            np.testing.assert_allclose(whole, array, rtol=1e-4, atol=1e-5)
print("done", PROCESS)
"""


def test_positions_that_processes_share():
    """Keys that go from one process to the other, and heads in exchange for positions."""
    assert [f"done {process}" in output for process, output in enumerate(run(CONTEXT, 2, 2, timeout=240))] == [True] * 2


PARALLELISM = """
import numpy as np

start()
from tests.partitioning.test_parallelism import CASES, train_case, train_on_one_device

names = ["ring", "experts, ragged", "2 stages, 8, interleaved", "stages and experts"]
for name, axis_types in zip(names, ("explicit", "auto", "explicit", "auto"), strict=True):
    np.testing.assert_allclose(train_case(name, axis_types), train_on_one_device(CASES[name].family), rtol=1e-4)
print("done", PROCESS)
"""


def test_forms_of_parallelism_in_several_processes():
    outputs = run(PARALLELISM, 2, 4, timeout=240)
    assert [f"done {process}" in output for process, output in enumerate(outputs)] == [True] * 2

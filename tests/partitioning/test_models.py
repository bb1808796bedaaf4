"""Models of plain arrays, sharded by a fallback rule alone: they train as on one device, and stay divided."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import axonym as nym


# Adam divides gradients by their size: with the usual `eps`, those that are nearly zero would show rounding enlarged.
ADAM = optax.adam(1e-2, eps=1e-3)
VOCAB, EMBED, HIDDEN = 32, 16, 32


class Case(NamedTuple):
    """A model, what it loses on a batch, and the batch: inputs and targets in NumPy, which lie nowhere yet."""

    model: Any
    loss_of: Callable[[Any, Any, Any], jax.Array]
    batch: tuple[np.ndarray, np.ndarray]


class Transformer(eqx.Module):
    """One block between an embedding and its transpose, of Equinox's own layers."""

    embedding: eqx.nn.Embedding
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.embedding = eqx.nn.Embedding(VOCAB, EMBED, key=keys[0])
        self.norm = eqx.nn.LayerNorm(EMBED)
        self.attention = eqx.nn.MultiheadAttention(2, EMBED, key=keys[1])
        self.mlp = eqx.nn.MLP(EMBED, EMBED, HIDDEN, depth=1, key=keys[2])

    def __call__(self, tokens):
        x = jax.vmap(self.embedding)(tokens)
        y = jax.vmap(self.norm)(x)
        x = x + self.attention(y, y, y, mask=np.tri(len(tokens), dtype=bool))
        return (x + jax.vmap(self.mlp)(x)) @ self.embedding.weight.T


class Features(nnx.Module):
    """Two layers of Flax around a norm."""

    def __init__(self, rngs):
        self.up = nnx.Linear(EMBED, HIDDEN, rngs=rngs)
        self.norm = nnx.LayerNorm(HIDDEN, rngs=rngs)
        self.down = nnx.Linear(HIDDEN, EMBED, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.gelu(self.norm(self.up(x))))


def of_numbers(seed):
    x, y = np.random.default_rng(seed).normal(size=(2, 8, EMBED)).astype(np.float32)
    return x, y


def of_tokens(seed):
    tokens = np.random.default_rng(seed).integers(0, VOCAB, size=(8, 5))
    return tokens[:, :-1], tokens[:, 1:]


def mlp():
    def loss_of(model, x, y):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    return Case(eqx.nn.MLP(EMBED, EMBED, HIDDEN, depth=2, key=jax.random.key(0)), loss_of, of_numbers(1))


def transformer():
    def loss_of(model, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()

    return Case(Transformer(jax.random.key(2)), loss_of, of_tokens(3))


def flax():
    graph, state = nnx.split(Features(nnx.Rngs(4)))

    def loss_of(state, x, y):
        return jnp.mean((nnx.merge(graph, state)(x) - y) ** 2)

    return Case(state, loss_of, of_numbers(5))


def plain():
    draw = np.random.default_rng(6).normal
    params = {
        "layers": [{"up": draw(size=(EMBED, HIDDEN)), "down": draw(size=(HIDDEN, EMBED))} for _ in range(2)],
        "scale": np.ones(EMBED),
    }

    def loss_of(params, x, y):
        for layer in params["layers"]:
            x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
        return jnp.mean((x * params["scale"][None] - y) ** 2)

    return Case(jax.tree.map(jnp.float32, params), loss_of, of_numbers(7))


CASES = {"equinox MLP": mlp, "equinox transformer": transformer, "flax": flax, "dict": plain}


def arrays_of(model):
    return eqx.filter(model, eqx.is_inexact_array)


def step_with(loss_of, wrapped=lambda loss: loss):
    """A step of training as one writes it for one device; the loss alone may be wrapped."""

    def step(model, state, x, y):
        params, static = eqx.partition(model, eqx.is_inexact_array)
        loss = wrapped(lambda params, x, y: loss_of(eqx.combine(params, static), x, y))
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        updates, state = ADAM.update(gradients, state, params)
        return eqx.apply_updates(model, updates), state, value

    return step


@pytest.fixture(scope="module")
def expected():
    """For each case the model and the loss after two steps on one device, computed once."""
    found: dict[str, tuple[Any, Any]] = {}

    def after_two_steps(name):
        if name not in found:
            case = CASES[name]()
            step = eqx.filter_jit(step_with(case.loss_of))
            with jax.set_mesh(None):
                model, state, _ = step(case.model, ADAM.init(arrays_of(case.model)), *case.batch)
                model, _, value = step(model, state, *case.batch)
            found[name] = model, value
        return found[name]

    return after_two_steps


def alike(tree, other):
    one, two = jax.tree.leaves(arrays_of(tree)), jax.tree.leaves(arrays_of(other))
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5)


def arrays(tree):
    return jax.tree.leaves(arrays_of(tree))


def bytes_per_device(tree):
    """What each device really holds; the arrays here are divided evenly."""
    held = {sum(leaf.addressable_shards[at].data.nbytes for leaf in arrays(tree)) for at in range(8)}
    assert len(held) == 1
    return held.pop()


def total(tree):
    return sum(leaf.nbytes for leaf in arrays(tree))


def lie_alike(tree, other):
    assert len(arrays(tree)) == len(arrays(other))
    for a, b in zip(arrays(tree), arrays(other), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim), (a.sharding, b.sharding)


def divided_batch(case):
    return jax.device_put(case.batch, P("data"))


def by_the_compiler(loss):
    """On an Explicit mesh, plain layers are left to the compiler; the gradients are where the parameters are."""
    return jax.sharding.auto_axes(loss, out_sharding=P())


def train(case, mesh):
    """Shards a model by the mapping in force, and trains it for two steps."""
    explicit = jax.sharding.AxisType.Explicit in mesh.axis_types
    step = nym.named_jit(step_with(case.loss_of, by_the_compiler) if explicit else step_with(case.loss_of))
    model = nym.shard(case.model)
    state = nym.named_jit(ADAM.init)(arrays_of(model))
    trained, after, _ = step(model, state, *divided_batch(case))
    trained, after, value = step(trained, after, *divided_batch(case))
    return (model, state), (trained, after), value


@pytest.mark.parametrize("name", CASES)
def test_a_model_trains_by_auto_sharding_as_on_one_device(name, mesh, expected):
    case = CASES[name]()
    with nym.axis_mapping({}, fallback=nym.AutoShardingRule()):
        (model, state), (trained, after), value = train(case, mesh)
    alike(trained, expected(name)[0])
    np.testing.assert_allclose(value, expected(name)[1], rtol=1e-5)
    lie_alike((model, state), (trained, after))
    assert total(model) == 8 * bytes_per_device(model) == 8 * bytes_per_device(trained)
    lie_alike(state[0].mu, arrays_of(model))


@pytest.mark.parametrize("name", ["equinox transformer", "flax", "dict"])
def test_a_model_trains_by_roles_as_on_one_device(name, mesh, expected):
    case = CASES[name]()
    with nym.axis_mapping({}, fallback=nym.RoleShardingRule()):
        (model, state), (trained, after), value = train(case, mesh)
    alike(trained, expected(name)[0])
    np.testing.assert_allclose(value, expected(name)[1], rtol=1e-5)
    lie_alike((model, state), (trained, after))
    assert total(model) > 4 * bytes_per_device(model)
    lie_alike(state[0].mu, arrays_of(model))


@pytest.mark.parametrize("name", ["equinox MLP", "dict"])
def test_a_model_that_the_helper_divides_trains_under_jit(name, auto_mesh, expected):
    case = CASES[name]()
    with jax.set_mesh(auto_mesh):
        model = nym.MeshPartitionHelper(auto_mesh).auto_shard_pytree(case.model, min_shard_size=64)
        step = eqx.filter_jit(step_with(case.loss_of))
        trained, state, _ = step(model, ADAM.init(arrays_of(model)), *divided_batch(case))
        trained, _, value = step(trained, state, *divided_batch(case))
    alike(trained, expected(name)[0])
    np.testing.assert_allclose(value, expected(name)[1], rtol=1e-5)
    assert all(leaf.is_fully_replicated == (leaf.size < 64) for leaf in arrays(model))
    assert total(model) > 4 * bytes_per_device(model)


def test_a_model_made_in_a_compiled_function_is_divided_from_the_start(mesh):
    make = nym.named_jit(lambda key: eqx.nn.MLP(EMBED, EMBED, HIDDEN, depth=1, key=key))
    with nym.axis_mapping({}, fallback=nym.AutoShardingRule()):
        model = make(jax.random.key(8))
    alike(model, eqx.nn.MLP(EMBED, EMBED, HIDDEN, depth=1, key=jax.random.key(8)))
    assert total(model) == 8 * bytes_per_device(model)
    assert model.activation is jax.nn.relu


def shard_states(*modules):
    for module in modules:
        nnx.update(module, nym.shard(nnx.state(module)))


@pytest.mark.parametrize("keeps", [True, False])
def test_a_flax_module_that_is_sharded_in_each_step_compiles_once(auto_mesh, keeps):
    """The recipe of `docs/rules.md`; without its last line, the compiler's own shardings compile a second step."""

    @nnx.jit
    def step(model, optimizer, x, y):
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, gradients)
        if keeps:
            shard_states(model, optimizer)
        return loss

    def note(event, seconds, **_):
        compiled.append(event) if event == "/jax/core/compile/backend_compile_duration" else None

    with jax.set_mesh(auto_mesh), nym.axis_mapping({}, fallback=nym.RoleShardingRule()):
        model = Features(nnx.Rngs(4))
        optimizer = nnx.Optimizer(model, ADAM, wrt=nnx.Param)
        shard_states(model, optimizer)
        before = jax.tree.map(lambda leaf: leaf.sharding, nnx.state((model, optimizer)))
        batch = jax.device_put((jnp.ones((8, EMBED)), jnp.zeros((8, EMBED))), P("data"))
        compiled, counts = [], []
        jax.monitoring.register_event_duration_secs_listener(note)
        try:
            for _ in range(4):
                step(model, optimizer, *batch)
                counts.append(len(compiled))
        finally:
            jax.monitoring.unregister_event_duration_listener(note)
        after = jax.tree.map(lambda leaf: leaf.sharding, nnx.state((model, optimizer)))
    assert counts == ([1, 1, 1, 1] if keeps else [1, 2, 2, 2])
    assert (before == after) == keeps


def test_random_states_of_flax_go_through_a_rule(mesh):
    _, state = nnx.split(nnx.Dropout(0.5, rngs=nnx.Rngs(9)))
    placed = nym.shard(state, nym.AxisMapping(fallback=nym.AutoShardingRule()))
    for leaf, before in zip(jax.tree.leaves(placed), jax.tree.leaves(state), strict=True):
        assert leaf.is_fully_replicated and len(leaf.sharding.device_set) == 8
        assert leaf.dtype == before.dtype and bool(jnp.all(leaf == before))


def test_what_the_analyzer_counts_is_what_the_devices_hold(auto_mesh):
    model = transformer().model
    rule, analyzer = nym.AutoShardingRule(auto_mesh), nym.ShardingAnalyzer(auto_mesh)
    usage = analyzer.estimate_memory_usage(model, rule.apply(model))
    placed = nym.shard(model, nym.AxisMapping(fallback=rule), auto_mesh)
    assert usage == {"total_size": total(model), "size_per_device": bytes_per_device(placed)}

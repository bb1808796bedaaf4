"""`diloco`: replicas that train on their own and exchange parameters every few steps."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import axonym as nym
from axonym.planner import communication_report
from tests.partitioning.arrays import assert_close
from tests.refusals import refusal


Batch, Embed, Mlp, Layers = nym.make_axes(batch=16, embed=8, mlp=12, layers=2)
COMPUTE = {"replica": "replica", "batch": "data", "mlp": "model"}
STORED = {**COMPUTE, "embed": "data"}
# With the usual `eps` gradients that are nearly zero would show rounding enlarged.
ADAM = optax.adam(1e-2, eps=1e-3)
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


class Block(eqx.Module):
    up: nym.nn.Linear
    down: nym.nn.Linear
    scale: jax.Array  # a plain array beside named ones

    @staticmethod
    def init(key: Any) -> "Block":
        up = nym.nn.Linear.init(Embed, Mlp, key=key)
        return Block(up, nym.nn.Linear.init(Mlp, Embed, key=key, use_bias=False), jnp.ones(()))

    def __call__(self, x: Any) -> Any:
        return x + self.down(nym.nn.silu(self.up(x))) * self.scale


@jax.jit
def make_model() -> Any:
    return nym.nn.Stacked.init(Layers, Block)(key=jax.random.split(jax.random.key(0), Layers.size))


def draw_batch(step: int) -> nym.NamedArray:
    values = np.random.default_rng(step).normal(size=(16, 8)).astype(np.float32)
    return nym.named(jax.device_put(values), (Batch, Embed.alias("inputs")))


def compute_loss(model: Any, x: Any) -> Any:
    return nym.mean((model.fold(x.rename({"inputs": "embed"})) - 1) ** 2).scalar()


def train_by_adam(model: Any, state: Any, x: Any) -> Any:
    loss, gradients = jax.value_and_grad(compute_loss)(model, x)
    updates, state = ADAM.update(gradients, state, model)
    return eqx.apply_updates(model, updates), state, loss


def train_by_descent(weight: Any, state: Any, x: Any) -> Any:
    def compute_loss(weight: Any) -> Any:
        return nym.mean((nym.dot(x.rename({"inputs": "embed"}), weight, axis="embed") - 1) ** 2).scalar()

    loss, gradient = jax.value_and_grad(compute_loss)(weight)
    return weight - 0.1 * gradient, state, loss


REPLICAS, EVERY, STEPS = 2, 2, 3


@functools.cache
def train_replicas_in_a_loop() -> Any:
    """Returns models, an anchor and losses of replicas on one device, whose exchange is written out."""
    model = make_model()
    models = [model] * REPLICAS
    states = [jax.jit(ADAM.init)(model)] * REPLICAS
    anchor, momentum = jax.tree.map(np.asarray, model), jax.tree.map(np.zeros_like, model)
    losses: list[list[Any]] = []
    train = jax.jit(train_by_adam)
    for step in range(STEPS):
        parts = [draw_batch(step)["batch", part::REPLICAS] for part in range(REPLICAS)]
        trained = [train(*arguments) for arguments in zip(models, states, parts, strict=True)]
        models, states, step_losses = ([*values] for values in zip(*jax.tree.map(np.asarray, trained), strict=True))
        losses.append(step_losses)
        if (step + 1) % EVERY == 0:
            gradient = jax.tree.map(lambda x, *copies: x - sum(copies) / REPLICAS, anchor, *models)
            momentum = jax.tree.map(lambda total, term: 0.9 * total + term, momentum, gradient)
            anchor = jax.tree.map(lambda x, g, m: x - 0.7 * (g + 0.9 * m), anchor, gradient, momentum)
            models = [anchor] * REPLICAS
    return models, anchor, losses


@pytest.mark.parametrize("axis_types", ["auto", pytest.param("explicit", marks=pytest.mark.thorough)])
def test_replicas_train_on_their_own_and_exchange_what_they_changed(axis_types: Any):
    """And only the exchange sends over replicas."""
    models, anchor, losses = train_replicas_in_a_loop()
    train_step = nym.diloco(train_by_adam, every=EVERY)
    with jax.set_mesh(nym.create_mesh((2, 2, 2), ("replica", "data", "model"), axis_types=axis_types)):
        state = nym.named_jit(lambda model: train_step.init(model, ADAM.init(model)), STORED)(make_model())
        run = nym.fsdp(train_step, STORED, COMPUTE, donate_args=(True,)).lower(state, draw_batch(0)).compile()
        results = []
        for step in range(STEPS):
            state, step_losses = run(state, draw_batch(step))
            results.append(np.asarray(step_losses))
    assert state.model.stacked.up.weight.sharding.spec[0] == "replica"
    assert int(state.count) == STEPS
    np.testing.assert_allclose(results, losses, rtol=2e-5)
    assert_close(state.anchor, anchor, 2e-5, 2e-6)
    assert_close(state.model, jax.tree.map(lambda *copies: np.stack(copies), *models), 2e-5, 2e-6)
    sent = [each for each in communication_report(run).collectives if "replica" in each.mesh_axes]
    down, scale = Layers.size * Mlp.size * Embed.size * 4, Layers.size * 4
    up = down + Layers.size * Mlp.size * 4 * 2  # with a bias, which is not sharded over `data`
    assert {each.kind for each in sent} == {"all-reduce"} and {each.runs for each in sent} == {1}
    assert sum(each.bytes for each in sent) == (up + down) / 4 + scale


def test_means_of_each_step_are_gradient_descent(draw: Any):
    weight = draw(embed=8)
    expected, _, _ = jax.jit(train_by_descent)(weight, None, draw_batch(0))
    train_step = nym.diloco(train_by_descent, every=1, learning_rate=1.0, momentum=0.0)
    with jax.set_mesh(nym.create_mesh((4, 2), ("replica", "data"), axis_types="explicit")):
        state = nym.named_jit(lambda weight: train_step.init(weight, None), STORED)(weight)
        state, _ = nym.fsdp(train_step, STORED, COMPUTE)(state, draw_batch(0))
    assert_close(state.anchor, expected, 2e-5, 2e-6)


def test_leaves_that_are_no_arrays_stay_and_integers_are_those_of_each_replica():
    def step(model: Any, state: Any, x: Any) -> Any:
        return {**model, "weight": model["weight"] + model["function"](x), "count": model["count"] + 1}, state, None

    train_step = nym.diloco(step, every=1, learning_rate=1.0, momentum=0.0, replicas=2)
    state = train_step.init({"weight": nym.zeros(()), "function": nym.sum, "count": jnp.zeros((), int)}, None)
    state, _ = train_step(state, nym.arange({"batch": 4}))
    assert state.model["function"] is nym.sum
    np.testing.assert_array_equal(state.model["count"], [1, 1])
    assert state.anchor["count"] == 1
    np.testing.assert_array_equal(np.asarray(state.model["weight"].array), [3, 3])  # the mean of 0 + 2 and 1 + 3


def test_optimizers_may_mask_named_arrays_and_models_lack_them():
    """As Muon and a partition of a model into trained and frozen parameters do: a named array has no array then."""
    optimizer = optax.masked(ADAM, lambda model: jax.tree.map(lambda x: x.ndim > 1, model))

    def train_by_masked_adam(model: Any, state: Any, x: Any) -> Any:
        updates, state = optimizer.update(jax.tree.map(lambda weight: weight * x.sum().array, model), state, model)
        return eqx.apply_updates(model, updates), state, None

    parameters = {"weight": nym.ones((Embed, Mlp)), "bias": nym.ones(Mlp), "frozen": nym.ones(Embed)}
    model = eqx.filter(parameters, {"weight": True, "bias": True, "frozen": False})
    x = nym.arange(Batch) / Batch.size
    expected = train_by_masked_adam(model, optimizer.init(model), x["batch", ::2])
    train_step = nym.diloco(train_by_masked_adam, every=2, replicas=2)
    state, _ = train_step(train_step.init(model, optimizer.init(model)), x)
    assert_close(jax.tree.map(lambda copies: copies[0], (state.model, state.state)), expected[:2])
    state, _ = train_step(state, x)
    assert_close(jax.tree.map(lambda copies: copies[1], state.model), state.anchor)


def step_with_draws(model: Any, state: Any, x: Any, key: Any) -> Any:
    next_key, state_key = jax.random.split(state["key"])
    keys = {"state": state_key, "layers": state["layers"][1], "batch": key}
    draws = {**jax.tree.map(jax.random.uniform, keys), "heads": state["heads"]["heads", 2]}
    return model, {**state, "key": next_key}, draws


@functools.cache
@jax.jit
def draw_by_hand() -> Any:
    """Returns what each replica draws in each of two steps."""

    def draw(number: int, replica: int) -> Any:
        key = jax.random.fold_in(jax.random.key(0), replica)
        for _ in range(number):
            key, _ = jax.random.split(key)
        layer, head = (jax.random.fold_in(jax.random.split(jax.random.key(0), 3)[i], replica) for i in (1, 2))
        batch = jax.random.fold_in(jax.random.key(1), replica)
        keys = {"state": jax.random.split(key)[1], "layers": layer, "batch": batch}
        return {**jax.tree.map(jax.random.uniform, keys), "heads": jax.random.key_data(head)[0]}

    return [jax.tree.map(lambda *x: jnp.stack(x), draw(number, 0), draw(number, 1)) for number in range(2)]


@pytest.mark.parametrize("axis_types", [(AUTO, AUTO), (EXPLICIT, EXPLICIT), (AUTO, EXPLICIT)])
def test_replicas_draw_numbers_of_their_own(axis_types: Any):
    key = jax.random.key(0)
    keys = {"key": key, "layers": jax.random.split(key, 3), "heads": nym.random.split(key, nym.Axis("heads", 3))}
    train_step = nym.diloco(step_with_draws)
    draws: list[Any] = []
    mesh = nym.create_mesh((2, 4), ("replica", "data"), axis_types=axis_types)
    with jax.set_mesh(mesh), nym.axis_mapping(replica="replica", batch="data"):
        state = nym.named_jit(lambda: train_step.init(nym.zeros(Embed), keys))()
        run = nym.named_jit(train_step)
        for number in range(2):
            state, results = run(state, draw_batch(number), jax.random.key(1))
            draws.append({**results, "heads": jax.random.key_data(results["heads"].array)[:, 0]})
    assert_close(draws, draw_by_hand(), 2e-5)


@pytest.mark.parametrize("data_type", [AUTO, EXPLICIT])
def test_gradients_are_not_reduced_once_where_replicas_are_auto(data_type: Any):
    def step(model: Any, state: Any, x: Any) -> Any:
        gradient = jax.grad(lambda weight: (weight * x).mean().scalar())
        return model, state, nym.microbatch(gradient, "batch", 1, reduce_once=True)(model, x)

    train_step = nym.diloco(step)
    mesh = nym.create_mesh((2, 4), ("replica", "data"), axis_types=(AUTO, data_type))
    with jax.set_mesh(mesh), nym.axis_mapping(replica="replica", batch="data"):
        state = train_step.init(nym.ones(Embed), None)
        for run in (train_step, nym.named_jit(train_step)):
            with pytest.raises(ValueError, match=r"within a `vmap` over an Auto mesh axis, .* make this mesh axis E"):
                run(state, draw_batch(0))


def test_what_does_not_fit_is_an_error():
    model, x = nym.zeros(Embed), draw_batch(0)
    with refusal("cannot tell whether state['key'], a plain uint32 array of shape (2,), is a", TypeError):
        nym.diloco(train_by_descent, replicas=2).init(model, {"key": jax.random.PRNGKey(0)})
    train_step = nym.diloco(train_by_descent)
    with refusal("number of replicas from mesh axis 'replica', and no mesh is active"):
        train_step.init(model, None)
    with jax.set_mesh(nym.create_mesh((4, 2), ("replica", "data"))):
        for mapping, name in (({"batch": ("replica", "data")}, "'batch'"), ({"batch": "data"}, "none")):
            text = f"gives it to {name}; map {{'replica': 'replica'}}, and the batch"
            with nym.axis_mapping(mapping), refusal(text):
                train_step.init(model, None)
        with refusal("and the mesh has 'replica', 'data'; set a mesh with this axis"):
            nym.diloco(train_by_descent, "pod").init(model, None)
        state = train_step.init(model, None)
        with refusal("divides axis 'batch' of size 6 between 4 replicas"):
            train_step(state, x["batch", :6])
        with refusal("an array of shape (16, 8) is not named, use `named`", TypeError):
            train_step(state, x.array)
        with refusal("takes a `LocalState`, which its method `init` makes, and a batch, not", TypeError):
            train_step(model, x)
        with refusal("returns a model, a state and any results, None if there are none, not", TypeError):
            nym.diloco(lambda model, state, x: (model, state))(state, x)
    with refusal("`every`"):
        nym.diloco(train_by_descent, every=0)

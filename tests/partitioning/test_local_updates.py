"""`diloco`: replicas that train on their own and exchange parameters every few steps."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as nym
from axonym.planner import communication_report


Batch, Embed, Mlp, Layers = nym.make_axes(batch=16, embed=8, mlp=12, layers=2)
COMPUTE = {"replica": "replica", "batch": "data", "mlp": "model"}
STORED = {**COMPUTE, "embed": "data"}
ADAM = optax.adam(1e-2)


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


def make_model() -> Any:
    return nym.nn.Stacked.init(Layers, Block)(key=jax.random.split(jax.random.key(0), Layers.size))


def draw_batch(step: int) -> nym.NamedArray:
    return nym.random.normal(jax.random.key(step), (Batch, Embed.alias("inputs")))


def compute_loss(model: Any, x: Any) -> Any:
    return nym.mean((model.fold(x.rename({"inputs": "embed"})) - 1) ** 2).scalar()


def train_by_adam(model: Any, state: Any, x: Any) -> Any:
    loss, gradients = jax.value_and_grad(compute_loss)(model, x)
    updates, state = ADAM.update(gradients, state, model)
    return eqx.apply_updates(model, updates), state, loss


def train_by_descent(model: Any, state: Any, x: Any) -> Any:
    loss, gradients = jax.value_and_grad(compute_loss)(model, x)
    return jax.tree.map(lambda x, gradient: x - 0.1 * gradient, model, gradients), state, loss


def get_arrays(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(results: Any, expected: Any) -> None:
    for result, value in zip(get_arrays(results), get_arrays(expected), strict=True):
        np.testing.assert_allclose(result, value, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_replicas_train_on_their_own_and_exchange_what_they_changed(axis_types: Any):
    """Against a loop over replicas, whose exchange is written out."""
    replicas, every, steps = 2, 3, 7
    models = [make_model()] * replicas
    states = [ADAM.init(models[0])] * replicas
    anchor, momentum = models[0], jax.tree.map(jnp.zeros_like, models[0])
    losses: list[list[Any]] = []
    train = jax.jit(train_by_adam)
    for step in range(steps):
        parts = [draw_batch(step)["batch", part::replicas] for part in range(replicas)]
        trained = [train(*arguments) for arguments in zip(models, states, parts, strict=True)]
        models, states, step_losses = ([*values] for values in zip(*trained, strict=True))
        losses.append(step_losses)
        if (step + 1) % every == 0:
            gradient = jax.tree.map(lambda x, *copies: x - sum(copies) / replicas, anchor, *models)
            momentum = jax.tree.map(lambda total, term: 0.9 * total + term, momentum, gradient)
            anchor = jax.tree.map(lambda x, g, m: x - 0.7 * (g + 0.9 * m), anchor, gradient, momentum)
            models = [anchor] * replicas

    train_step = nym.diloco(train_by_adam, every=every)
    run = nym.fsdp(train_step, STORED, COMPUTE, donate_args=(True,))
    with jax.set_mesh(nym.create_mesh((2, 2, 2), ("replica", "data", "model"), axis_types=axis_types)):
        init = nym.named_jit(lambda model: train_step.init(model, ADAM.init(model)), STORED)
        state = init(make_model())
        results = []
        for step in range(steps):
            state, step_losses = run(state, draw_batch(step))
            results.append(np.asarray(step_losses))
        weight = state.model.stacked.up.weight
        assert weight.sharding.spec[0] == "replica"
        assert int(state.count) == steps
    np.testing.assert_allclose(results, losses, rtol=2e-5)
    assert_same(state.anchor, anchor)
    stacked = jax.tree.map(lambda *copies: np.stack([np.asarray(x) for x in copies]), *models)
    assert_same(state.model, stacked)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_means_of_each_step_are_gradient_descent(axis_types: Any):
    model = make_model()
    expected, _, _ = train_by_descent(model, None, draw_batch(0))
    train_step = nym.diloco(train_by_descent, every=1, learning_rate=1.0, momentum=0.0)
    with jax.set_mesh(nym.create_mesh((4, 2, 1), ("replica", "data", "model"), axis_types=axis_types)):
        state = nym.named_jit(lambda model: train_step.init(model, None), STORED)(model)
        state, _ = nym.fsdp(train_step, STORED, COMPUTE)(state, draw_batch(0))
    assert_same(state.anchor, expected)


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_only_the_exchange_sends_over_replicas(axis_types: Any):
    train_step = nym.diloco(train_by_adam, every=10)
    with jax.set_mesh(nym.create_mesh((2, 4, 1), ("replica", "data", "model"), axis_types=axis_types)):
        state = jax.eval_shape(lambda: train_step.init(make_model(), ADAM.init(make_model())))
        report = communication_report(nym.fsdp(train_step, STORED, COMPUTE), state, draw_batch(0))
    sent = [collective for collective in report.collectives if "replica" in collective.mesh_axes]
    parameter_bytes = sum(array.nbytes for array in get_arrays(make_model()))
    biases_and_scale = Layers.size * (Mlp.size + 1) * 4  # which are not sharded over `data`
    assert {collective.kind for collective in sent} == {"all-reduce"}
    assert sum(collective.bytes for collective in sent) == (parameter_bytes - biases_and_scale) / 4 + biases_and_scale
    assert {collective.runs for collective in sent} == {1}


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
    assert_same(jax.tree.map(lambda copies: copies[0], (state.model, state.state)), expected[:2])
    state, _ = train_step(state, x)
    assert_same(jax.tree.map(lambda copies: copies[1], state.model), state.anchor)


AUTO, EXPLICIT = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit


@pytest.mark.parametrize("axis_types", [None, "auto", "explicit", (EXPLICIT, AUTO), (AUTO, EXPLICIT)])
def test_replicas_draw_numbers_of_their_own(axis_types: Any):
    def step(model: Any, state: Any, x: Any, key: Any) -> Any:
        next_key, state_key = jax.random.split(state["key"])
        keys = {"state": state_key, "layers": state["layers"][1], "batch": key}
        draws = {**jax.tree.map(jax.random.uniform, keys), "heads": state["heads"]["heads", 2]}
        return model, {**state, "key": next_key}, draws

    def take_steps() -> list[Any]:
        key = jax.random.key(0)
        keys = {"key": key, "layers": jax.random.split(key, 3), "heads": nym.random.split(key, nym.Axis("heads", 3))}
        train_step = nym.diloco(step, replicas=2)
        state = nym.named_jit(lambda: train_step.init(nym.zeros(Embed), keys))()
        draws: list[Any] = []
        for number in range(2):
            state, results = nym.named_jit(train_step)(state, draw_batch(number), jax.random.key(1))
            draws.append({**results, "heads": jax.random.key_data(results["heads"].array)[:, 0]})
        return draws

    def draw(number: int, replica: int) -> Any:
        key = jax.random.fold_in(jax.random.key(0), replica)
        for _ in range(number):
            key, _ = jax.random.split(key)
        layer, head = (jax.random.fold_in(jax.random.split(jax.random.key(0), 3)[i], replica) for i in (1, 2))
        keys = {
            "state": jax.random.split(key)[1],
            "layers": layer,
            "batch": jax.random.fold_in(jax.random.key(1), replica),
        }
        return {**jax.tree.map(jax.random.uniform, keys), "heads": jax.random.key_data(head)[0]}

    if axis_types is None:
        draws = take_steps()
    else:
        mesh = nym.create_mesh((2, 4), ("replica", "data"), axis_types=axis_types)
        with jax.set_mesh(mesh), nym.axis_mapping(replica="replica", batch="data"):
            draws = take_steps()
    expected = [jax.tree.map(lambda *x: np.stack(x), draw(number, 0), draw(number, 1)) for number in range(2)]
    assert_same(draws, expected)


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
    with pytest.raises(
        TypeError, match=r"cannot tell whether state\['key'\], a plain uint32 array of shape \(2,\), is a"
    ):
        nym.diloco(train_by_descent, replicas=2).init(make_model(), {"key": jax.random.PRNGKey(0)})
    train_step = nym.diloco(train_by_descent)
    with pytest.raises(ValueError, match="number of replicas from mesh axis 'replica', and no mesh is active"):
        train_step.init(make_model(), None)
    with jax.set_mesh(nym.create_mesh((4, 2), ("replica", "data"))):
        for mapping, name in (({"batch": ("replica", "data")}, "'batch'"), ({"batch": "data"}, "none")):
            with (
                nym.axis_mapping(mapping),
                pytest.raises(ValueError, match=rf"gives it to {name}; map \{{'replica': 'replica'\}}, and the batch"),
            ):
                train_step.init(make_model(), None)
        with pytest.raises(ValueError, match="and the mesh has 'replica', 'data'; set a mesh with this axis"):
            nym.diloco(train_by_descent, "pod").init(make_model(), None)
        state = train_step.init(make_model(), None)
        with pytest.raises(ValueError, match="divides axis 'batch' of size 6 between 4 replicas"):
            train_step(state, draw_batch(0)["batch", :6])
        with pytest.raises(TypeError, match=r"an array of shape \(16, 8\) is not named, use `named`"):
            train_step(state, draw_batch(0).array)
        with pytest.raises(TypeError, match="takes a `LocalState`, which its method `init` makes, and a batch, not"):
            train_step(make_model(), draw_batch(0))
        with pytest.raises(TypeError, match="returns a model, a state and any results, None if there are none, not"):
            nym.diloco(lambda model, state, x: (model, state))(state, draw_batch(0))
    with pytest.raises(ValueError, match="`every`"):
        nym.diloco(train_by_descent, every=0)

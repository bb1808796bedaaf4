"""`sharded_optimizer`: the optimizer's state by a mapping of its own, and what the compiled step does about it."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym


COMPUTE = {"batch": "data", "mlp": "model"}
STATE = {**COMPUTE, "embed": "data"}
Batch, Embed, Mlp = nym.make_axes(batch=8, embed=32, mlp=64)
ADAM = optax.adam(1e-2)


def drawn(seed, *axes):
    """Returns a NumPy array, which lies nowhere yet."""
    values = np.random.default_rng(seed).normal(size=[axis.size for axis in axes]).astype(np.float32)
    return nym.NamedArray(values, [axis.name for axis in axes])


def model():
    up = nym.nn.Linear(drawn(1, Mlp, Embed), drawn(2, Mlp), (Embed,), (Mlp,))
    return [up, nym.nn.Linear(drawn(3, Embed, Mlp), None, (Mlp,), (Embed,))]


def step_with(optimizer):
    def loss_of(model, x):
        up, down = model
        y = down(nym.nn.gelu(up(x)))
        return nym.mean(y * y).scalar()

    def step(model, state, x):
        loss, gradients = jax.value_and_grad(loss_of)(model, x)
        updates, state = optimizer.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, loss

    return step


@pytest.fixture(scope="module")
def expected():
    """Model, state and loss after two steps on one device."""
    with jax.set_mesh(None):
        step, now = jax.jit(step_with(ADAM)), (model(), ADAM.init(model()))
        for _ in range(2):
            *now, loss = step(*now, drawn(0, Batch, Embed))
        return *now, loss


def lies(tree, mapping, mesh):
    """Tells whether all named arrays of a tree are sharded as the mapping says."""
    arrays = [leaf for leaf in jax.tree.leaves(tree, is_leaf=nym.is_named_array) if nym.is_named_array(leaf)]
    return bool(arrays) and all(
        x.sharding.is_equivalent_to(NamedSharding(mesh, nym.pspec_for_axis(x.axes, mapping)), x.ndim) for x in arrays
    )


def assert_close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6)


def local_bytes(tree):
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("compiled", [jax.jit, nym.named_jit], ids=["jit", "named_jit"])
def test_a_step_gives_the_same_with_a_quarter_of_the_state(mesh, compiled, expected):
    optimizer = nym.sharded_optimizer(ADAM, STATE)
    with nym.axis_mapping(COMPUTE):
        params = nym.shard(model())
        state, step = compiled(optimizer.init)(params), compiled(step_with(optimizer))
        whole = nym.named_jit(ADAM.init)(params)
        now, x = (params, state), nym.shard(drawn(0, Batch, Embed))
        for _ in range(2):
            *now, loss = step(*now, x)
            assert lies(now[1], STATE, mesh)
            assert lies(now[0], COMPUTE, mesh)
    assert_close((*now, loss), expected)
    bias = 2 * 4 * Mlp.size // 2  # it has no axis on the data axis
    assert local_bytes(now[1]) == (local_bytes(whole) - bias - 4) // 4 + bias + 4


@pytest.mark.parametrize("said", [None, STATE], ids=["by itself", "said"])
def test_inside_fsdp_the_updates_go_where_the_parameters_are(mesh, expected, said):
    optimizer = nym.sharded_optimizer(ADAM, STATE, said)
    now = (model(), optimizer.init(nym.shard(model(), STATE)))
    inner = step_with(optimizer)
    step = nym.fsdp(lambda model, state, x: inner(model, state, x.tree), STATE, COMPUTE)
    x = nym.ShardedBy(drawn(0, Batch, Embed), COMPUTE)  # both its axes are mapped to the data axis by `STATE`
    for _ in range(2):
        *now, loss = step(*now, x)
        assert lies(now[:2], STATE, mesh)
    assert_close((*now, loss), expected)
    text = step.lower(*now, x).compile().as_text()
    assert len(re.findall(r" all-gather(?:-start)?\(", text)) == 2  # of the weights, where they are used


def test_the_state_keeps_its_sharding_under_any_mapping(mesh):
    optimizer = nym.sharded_optimizer(ADAM, STATE)
    state = optimizer.init(nym.shard(model(), COMPUTE))
    for mapping in (COMPUTE, {"embed": "model"}):
        passed = nym.named_jit(lambda state: state, mapping, in_axis_resources=mapping)(state)
        assert lies(passed, STATE, mesh)


def programs(optimizer, mapping):
    with nym.axis_mapping(mapping):
        params = nym.shard(model())
        state = nym.named_jit(optimizer.init)(params)
        return nym.named_jit(step_with(optimizer)).lower(params, state, nym.shard(drawn(0, Batch, Embed))).compile()


def test_the_compiled_step_updates_parts_and_gathers_each_update_once(mesh):
    """On CPU a reduce-scatter stays an all-reduce, of which each device takes its slice."""
    plain, divided = (programs(each, COMPUTE) for each in (ADAM, nym.sharded_optimizer(ADAM, STATE)))
    texts = [each.as_text() for each in (plain, divided)]
    gathers = [len(re.findall(r" all-gather(?:-start)?\(", text)) for text in texts]
    assert gathers == [0, 2]  # of two weights; the bias has no axis on the data axis
    roots = [set(re.findall(r"= f32\[([\d,]*)\]\S* sqrt\(", text)) for text in texts]
    assert roots == [{"32,32", "32"}, {"32,8", "8,32", "32"}]
    saved = [each.memory_analysis().argument_size_in_bytes for each in (plain, divided)]
    assert saved[0] - saved[1] == 2 * 2 * 4 * 32 * 32 * 3 // 4


def test_shapes_of_the_state_get_its_mapping(mesh):
    optimizer = nym.sharded_optimizer(ADAM, STATE)
    shapes = nym.shard(jax.eval_shape(optimizer.init, model()), COMPUTE)
    assert lies(shapes, STATE, mesh)
    assert shapes.tree[0].count.sharding == NamedSharding(mesh, P())


def test_an_axis_that_does_not_divide(mesh):
    params = nym.shard({"w": nym.ones({"embed": 6, "mlp": 4})}, COMPUTE)
    with pytest.raises(ValueError, match=r"\['w'\]: axis 'embed' has size 6, which mesh axis 'data' of size 4 d"):
        nym.sharded_optimizer(ADAM, STATE).init(params)
    lenient = nym.sharded_optimizer(ADAM, nym.AxisMapping(STATE, uneven="replicate"))
    with nym.axis_mapping(COMPUTE):
        updates, state = nym.named_jit(lenient.update)(params, lenient.init(params), params)
    assert lies((updates, state), COMPUTE, mesh)


class FirstAxis:
    def apply(self, array):
        return P("data") if array.ndim else None


def test_plain_arrays_go_by_the_fallback_rule_of_the_mapping(mesh):
    optimizer = nym.sharded_optimizer(ADAM, nym.AxisMapping({}, fallback=FirstAxis()))
    params = {"w": jnp.ones((8, 4))}
    state = nym.named_jit(optimizer.init)(params)
    updates, state = nym.named_jit(optimizer.update)(params, state, params)
    assert state.tree[0].mu["w"].sharding.shard_shape((8, 4)) == (2, 4)
    assert updates["w"].shape == (8, 4)


def test_more_arguments_of_update_are_passed_on(mesh):
    plateau = optax.chain(optax.sgd(1.0), optax.contrib.reduce_on_plateau(patience=1, factor=0.5))
    optimizer = nym.sharded_optimizer(plateau, STATE)
    assert type(optimizer) is type(plateau)
    with nym.axis_mapping(COMPUTE):
        params = {"w": nym.ones(Embed)}
        state = optimizer.init(params)
        for _ in range(3):
            updates, state = jax.jit(optimizer.update)(params, state, params, value=1.0)
    np.testing.assert_allclose(np.asarray(updates["w"]), -0.25)  # halved for each value that is no better


class Descent:
    """An optimizer of another library: methods, and no tuple."""

    def init(self, params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(self, updates, state, params=None):
        state = jax.tree.map(lambda s, g: 0.9 * s + g, state, updates)
        return jax.tree.map(lambda s: -0.1 * s, state), state


class OwnPair(NamedTuple):
    init: object
    update: object
    name: str = "own"


@pytest.mark.parametrize("kind", [lambda one: one, lambda one: OwnPair(one.init, one.update)], ids=["object", "tuple"])
def test_optimizers_of_other_libraries(mesh, kind):
    optimizer = nym.sharded_optimizer(kind(Descent()), STATE)
    assert type(optimizer) in (nym.partitioning.Optimizer, OwnPair)
    params = nym.shard({"w": drawn(0, Embed, Mlp)}, COMPUTE)
    with nym.axis_mapping(COMPUTE):
        updates, state = nym.named_jit(optimizer.update)(params, optimizer.init(params))
    assert lies(state, STATE, mesh)
    assert lies(updates, COMPUTE, mesh)
    np.testing.assert_allclose(np.asarray(updates["w"]), -0.1 * np.asarray(params["w"]), rtol=1e-6)


def test_without_a_mesh_nothing_is_sharded():
    optimizer = nym.sharded_optimizer(Descent(), STATE)
    params = {"w": nym.ones(Embed)}
    updates, state = optimizer.update(params, optimizer.init(params), params)
    assert isinstance(state, nym.ShardedBy)
    np.testing.assert_allclose(np.asarray(updates["w"]), -0.1, rtol=1e-6)


def test_what_is_no_optimizer_no_mapping_or_no_state_is_an_error():
    with pytest.raises(TypeError, match=r"`sharded_optimizer` takes something with `init` and `update`, not 'adam'\."):
        nym.sharded_optimizer("adam", STATE)
    with pytest.raises(TypeError, match=r"A mapping from names to mesh axes is needed, as .* is, not None"):
        nym.sharded_optimizer(ADAM, None)
    with pytest.raises(TypeError, match="updates the state that its own `init` made, a `ShardedBy`, not a tuple"):
        nym.sharded_optimizer(ADAM, STATE).update({}, ADAM.init({}), {})

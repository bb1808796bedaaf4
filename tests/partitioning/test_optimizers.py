"""Optax's optimizers on trees of named arrays: their state has the shardings of the parameters, by name."""

import contextlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym


MAPPING = {"batch": "data", "mlp": "model"}
STATE = {**MAPPING, "embed": "data"}
Embed, Mlp = nym.make_axes(embed=8, mlp=4)


class Model(eqx.Module):
    weight: nym.NamedArray
    bias: nym.NamedArray
    scale: jax.Array = nym.field(axis_names="embed")


def model(scale=1.0):
    """A model in NumPy, which lies nowhere yet."""
    weight, bias, gain = (np.random.default_rng(i).normal(size=s) * scale for i, s in enumerate([(8, 4), (4,), (8,)]))
    named = nym.NamedArray(weight.astype(np.float32), ("embed", "mlp"))
    return Model(named, nym.NamedArray(bias.astype(np.float32), ("mlp",)), gain.astype(np.float32))


def of_matrices(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def of_named_matrices(params):
    """The same with one answer for each named array, in place of one inside each."""
    return jax.tree.map(lambda p: p.ndim > 1, params, is_leaf=nym.is_named_array)


def kinds(params):
    return jax.tree.map(lambda p: "matrix" if p.ndim > 1 else "vector", params)


SCHEDULE = optax.warmup_cosine_decay_schedule(1e-3, 1e-2, 2, 10)
OPTIMIZERS = {
    "momentum": optax.sgd(1e-2, momentum=0.9),
    "adamw": optax.adamw(SCHEDULE, mask=of_matrices),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "lion, clipped": optax.chain(optax.clip_by_global_norm(0.5), optax.lion(1e-2)),
    "masked": optax.masked(optax.adam(1e-2), of_named_matrices),
    "partition": optax.partition({"matrix": optax.adam(1e-2), "vector": optax.sgd(1e-2)}, kinds),
    "MultiSteps": optax.MultiSteps(optax.adam(1e-2), 2).gradient_transformation(),
    "inject_hyperparams": optax.inject_hyperparams(optax.sgd)(SCHEDULE),
    "ema": optax.chain(optax.ema(0.9), optax.scale(-1e-2)),
    "lookahead": optax.lookahead(optax.sgd(1e-2), 2, 0.5),
}


def wrapped(name, params):
    return optax.LookaheadParams.init_synced(params) if name == "lookahead" else params


def init(params, optimizers=OPTIMIZERS):
    return {name: optimizers[name].init(wrapped(name, params)) for name in optimizers}


def update(gradients, states, params, optimizers=OPTIMIZERS):
    pairs = {name: one.update(gradients, states[name], wrapped(name, params)) for name, one in optimizers.items()}
    return {name: updates for name, (updates, _) in pairs.items()}, {name: state for name, (_, state) in pairs.items()}


def two_steps(gradients, states, params, optimizers=OPTIMIZERS, compiled=nym.named_jit):
    """Updates twice, so that `MultiSteps` emits and schedules move."""
    step = compiled(lambda *args: update(*args, optimizers))
    return step(gradients, step(gradients, states, params)[1], params)


@pytest.fixture(scope="module")
def expected():
    """States, and updates and states after two steps, of plain arrays on one device."""
    with jax.set_mesh(None):
        states = jax.jit(init)(model())
        return states, *two_steps(model(0.1), states, model(), compiled=jax.jit)


def assert_close(one, other):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        text = jax.tree_util.keystr(path)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=1e-6, err_msg=text)


def misplaced(tree, mapping, mesh):
    """Returns where a tree has arrays that are not sharded as their names say, and scalars that are not replicated."""
    found = []
    for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=nym.is_named_array):
        declared = getattr(path[-1], "name", "") == "scale"
        names = node.names if nym.is_named_array(node) else ("embed",) if declared else ()
        for array in jax.tree.leaves(node):
            if array.ndim != len(names) or array.shape == (1,):
                continue  # Adafactor's: a sum over one axis of the parameter, or one element in its place
            sharding = NamedSharding(mesh, nym.pspec_for_axis(names, mapping) if names else P())
            if not array.sharding.is_equivalent_to(sharding, array.ndim):
                found.append(jax.tree_util.keystr(path))
    return found


def local_bytes(tree):
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


def test_states_and_updates_have_the_shardings_of_their_names(mesh, expected):
    with nym.axis_mapping(STATE):
        params, gradients = nym.shard(model()), nym.shard(model(0.1))
        states = nym.named_jit(init)(params)
        assert_close(states, expected[0])
        updates, new = two_steps(gradients, states, params)
    assert_close((updates, new), expected[1:])
    assert misplaced((states, updates, new), STATE, mesh) == []
    assert local_bytes(states["adamw"]) == 2 * local_bytes(params) + 4 + 4


def test_shapes_of_a_state_get_the_shardings_to_restore_a_checkpoint(mesh):
    with nym.axis_mapping(STATE):
        shapes = nym.shard(jax.eval_shape(init, model()))
        states = nym.named_jit(init)(model())
    assert jax.tree.structure(shapes) == jax.tree.structure(states)
    assert misplaced(shapes, STATE, mesh) == []


def test_outside_jit(mesh, expected):
    chosen = {"momentum": OPTIMIZERS["momentum"]}
    with nym.axis_mapping(STATE):
        params, gradients = nym.shard(model()), nym.shard(model(0.1))
        states = nym.shard(init(params, chosen))
        updates, new = two_steps(gradients, states, params, chosen, compiled=lambda fn: fn)
    assert misplaced((states, updates, new), STATE, mesh) == []
    assert_close((updates["momentum"], new["momentum"]), (expected[1]["momentum"], expected[2]["momentum"]))


def test_the_moments_are_divided_where_plain_jit_replicates_them(auto_mesh):
    with jax.set_mesh(auto_mesh), nym.axis_mapping(STATE):
        params = nym.shard(model())
        plain, named = jax.jit(optax.adam(1e-2).init)(params), nym.named_jit(optax.adam(1e-2).init)(params)
    assert plain[0].mu.weight.sharding.is_fully_replicated
    assert named[0].mu.weight.sharding.shard_shape((8, 4)) == (2, 2)


def test_what_adafactor_keeps_of_a_matrix_is_whole_and_small(mesh):
    with nym.axis_mapping(STATE):
        state = nym.named_jit(OPTIMIZERS["adafactor"].init)(model())[0]
    assert state.v.weight.array.shape == state.v_row.bias.array.shape == (1,)
    assert {state.v_row.weight.array.shape, state.v_col.weight.array.shape} == {(4,), (8,)}
    assert state.v.bias.sharding.shard_shape((4,)) == (2,)


def test_averages_of_parameters_go_by_their_names(mesh):
    @nym.named_jit
    def step(average, params):
        return optax.incremental_update(params, average, 0.1)

    with nym.axis_mapping(STATE):
        params = nym.shard(model())
        average = step(params, jax.tree.map(jnp.zeros_like, params))
        again = optax.incremental_update(params, average, 0.1)
    assert misplaced((average, again), STATE, mesh) == []
    np.testing.assert_allclose(np.asarray(average.weight), model().weight.array * 0.9, rtol=1e-6)


# The same with a state that has a mapping of its own; the parameters go by `MAPPING`.


def sharded(optimizers=OPTIMIZERS):
    return {name: nym.sharded_optimizer(one, STATE) for name, one in optimizers.items()}


def test_sharded_optimizers_compute_the_same_with_less_memory(mesh, expected):
    optimizers = sharded()
    with nym.axis_mapping(MAPPING):
        params, gradients = nym.shard(model()), nym.shard(model(0.1))
        states = nym.named_jit(lambda params: init(params, optimizers))(params)
        assert_close(states, expected[0])
        updates, new = two_steps(gradients, states, params, optimizers)
    assert_close((updates, new), expected[1:])
    assert misplaced((states, new), STATE, mesh) == []
    assert misplaced(updates, MAPPING, mesh) == []
    assert local_bytes(new["adamw"]) == 2 * local_bytes(nym.shard(model(), STATE)) + 4 + 4


def test_sharded_optimizers_outside_jit(mesh, expected):
    chosen = sharded({"momentum": OPTIMIZERS["momentum"]})
    params, gradients = nym.shard((model(), model(0.1)), MAPPING)
    states = init(params, chosen)
    for context in (nym.axis_mapping(MAPPING), contextlib.nullcontext()):
        with context:
            updates, new = two_steps(gradients, states, params, chosen, compiled=lambda fn: fn)
        assert misplaced((states, new), STATE, mesh) == []
        assert misplaced(updates, MAPPING, mesh) == []
        assert_close((updates["momentum"], new["momentum"]), (expected[1]["momentum"], expected[2]["momentum"]))


def test_multi_steps_around_and_inside(mesh, expected):
    around = optax.MultiSteps(nym.sharded_optimizer(optax.adam(1e-2), STATE), 2)
    inside = nym.sharded_optimizer(optax.MultiSteps(optax.adam(1e-2), 2), STATE)
    optimizers = {"around": around, "inside": inside}
    with nym.axis_mapping(MAPPING):
        params, gradients = nym.shard(model()), nym.shard(model(0.1))
        states = nym.named_jit(lambda params: init(params, optimizers))(params)
        updates, new = two_steps(gradients, states, params, optimizers)
    for name in optimizers:
        assert_close(updates[name], expected[1]["MultiSteps"])
    assert misplaced((new["around"].inner_opt_state, new["inside"]), STATE, mesh) == []
    assert misplaced((updates, new["around"].acc_grads), MAPPING, mesh) == []


def test_optimizers_of_optimizers(mesh, expected):
    adam = nym.sharded_optimizer(optax.adam(1e-2), STATE)
    optimizers = {
        "masked": optax.masked(adam, of_matrices),  # with a boolean inside each named array
        "partition": optax.partition({"matrix": adam, "vector": optax.sgd(1e-2)}, kinds),
    }
    with nym.axis_mapping(MAPPING):
        params, gradients = nym.shard(model()), nym.shard(model(0.1))
        states = nym.named_jit(lambda params: init(params, optimizers))(params)
        updates, new = two_steps(gradients, states, params, optimizers)
    for name in optimizers:
        assert_close((updates[name], new[name]), (expected[1][name], expected[2][name]))
    moments = new["masked"].inner_state.tree[0]
    assert misplaced(moments, STATE, mesh) == []
    assert misplaced(updates, MAPPING, mesh) == []

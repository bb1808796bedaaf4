"""`offloaded_optimizer`: the optimizer's state in the memory of the host between updates."""

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym


COMPUTE = {"batch": "data", "mlp": "model"}
STORED = {**COMPUTE, "embed": "data"}
ADAM = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
OFFLOADED = nym.offloaded_optimizer(ADAM)


def make_weight():
    return nym.random.normal(jax.random.key(0), {"pixel": 3, "embed": 8, "mlp": 4})


@nym.fsdp(STORED, COMPUTE, donate_args=(True, True, False))
def train_step(weight, state, x):
    def compute_loss(weight):
        return nym.mean(nym.dot(x, weight, axis="pixel") ** 2).scalar()

    loss, gradient = jax.value_and_grad(compute_loss)(weight)
    updates, state = OFFLOADED.update(gradient, state, weight)
    return optax.apply_updates(weight, updates), state, loss


def train(init):
    """Returns the losses of three steps and the moments, with the state that `init` makes."""
    weight = nym.shard(make_weight(), STORED)
    state = nym.named_jit(init, STORED)(weight)
    x = nym.random.normal(jax.random.key(1), {"batch": 8, "pixel": 3})
    losses = []
    for _ in range(3):
        weight, state, loss = train_step(weight, state, x)
        losses.append(float(loss))
    return losses, state[1][0]


def test_steps_are_the_same_with_the_state_on_the_host(mesh):
    with jax.set_mesh(mesh):
        expected, on_device = train(ADAM.init)
        losses, on_host = train(OFFLOADED.init)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    for moments, memory in ((on_device, "device"), (on_host, "pinned_host")):
        assert {array.array.sharding.memory_kind for array in (moments.mu, moments.nu)} == {memory}
        assert moments.mu.sharding.spec == P(None, "data", "model")
        assert moments.count.sharding.memory_kind == "device"
    np.testing.assert_allclose(on_host.nu.array, on_device.nu.array, rtol=1e-6)


def test_mappings_leave_arrays_in_the_memory_of_the_host(mesh):
    weight = make_weight()
    state = OFFLOADED.init(weight)[1][0]
    shapes = jax.eval_shape(lambda x: x, state.mu)
    on_host = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    shapes = jax.tree.map(lambda leaf: leaf.update(sharding=on_host), shapes)
    with jax.set_mesh(mesh):
        placed = nym.shard(state.mu, STORED)
        described = nym.shard(shapes, STORED)
        assert nym.shard(placed, STORED) is placed
    for array in (placed, described):
        assert array.sharding.memory_kind == "pinned_host"
        assert array.sharding.spec == P(None, "data", "model")


def test_updates_outside_jit_and_of_sharded_optimizers_keep_the_memory(mesh):
    with jax.set_mesh(mesh):
        weight = nym.shard(make_weight(), STORED)
        optimizer = nym.offloaded_optimizer(nym.sharded_optimizer(ADAM, STORED))
        updates, state = optimizer.update(weight, optimizer.init(weight), weight)
        expected, _ = ADAM.update(weight, ADAM.init(weight), weight)
    assert state.tree[1][0].mu.array.sharding.memory_kind == "pinned_host"
    np.testing.assert_allclose(updates.array, expected.array, rtol=1e-6)


def test_what_is_no_optimizer_is_an_error():
    with pytest.raises(TypeError, match=r"`offloaded_optimizer` takes something with `init` and `update`, not 3\."):
        nym.offloaded_optimizer(3)

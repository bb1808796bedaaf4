"""What sharding costs without a clock: moves, the Python that runs for each array, what is traced, and memory."""

import functools
import gc
import weakref

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

import axonym as nym
from benchmarks.performance import memory
from tests.counting import all_calls, own_calls, own_calls_per_array, primitives


MAPPING = {"embed": "data", "mlp": "model"}
SIZES = (8, 4)
FEW, MANY = 2, 22


class Model(eqx.Module):
    weights: list[nym.NamedArray]


@pytest.fixture(autouse=True)
def mapping():
    with nym.axis_mapping(MAPPING):
        yield


@pytest.fixture
def sharding(mesh):
    return NamedSharding(mesh, jax.P(*MAPPING.values()))


def raw():
    """An array on one device."""
    return jax.device_put(np.ones(SIZES, np.float32), jax.devices()[0])


def model(leaves):
    return Model([nym.named(raw(), tuple(MAPPING)) for _ in range(leaves)])


def test_a_tree_is_moved_at_once_and_what_is_in_place_not_at_all(mesh, sharding, asked):
    given = model(5)
    asked.clear()
    there = nym.shard(given)
    assert asked == [5]
    assert all(leaf.sharding == sharding for leaf in jax.tree.leaves(there))
    assert nym.shard(there) is there
    assert nym.auto_sharded(there.weights[0]) is there.weights[0]
    elsewhere = model(2)
    asked.clear()
    both = nym.shard((there, elsewhere))
    assert asked == [2]
    assert all(one.array is other.array for one, other in zip(both[0].weights, there.weights, strict=True))


def test_a_move_that_fails_is_not_tried_again(mesh, asked, monkeypatch):
    given, count = model(2), jax.device_put

    def fail(x, *args):
        count(x, *args)
        raise ValueError("out of memory")

    asked.clear()
    monkeypatch.setattr(jax, "device_put", fail)
    with pytest.raises(ValueError, match="out of memory"):
        nym.shard(given)
    assert asked == [2]


def test_few_functions_are_entered_for_each_array_that_is_moved_and_one_for_each_in_place(mesh, sharding):
    def call(leaves, is_in_place):
        given = nym.shard(model(leaves)) if is_in_place else model(leaves)
        return lambda: nym.shard(given)

    assert own_calls_per_array(lambda leaves: call(leaves, False)) <= 5 and own_calls(call(1, False)) <= 20
    assert own_calls_per_array(lambda leaves: call(leaves, True)) == 1 and own_calls(call(1, True)) <= 16
    there = jax.tree.leaves(nym.shard(model(MANY)))
    assert all_calls(call(MANY, True)) <= 0.15 * all_calls(lambda: jax.device_put(there, [sharding] * MANY))


def added(times, said):
    return lambda x: functools.reduce(lambda x, _: said(x + 1), range(times), x)


def test_an_addition_has_one_constraint_on_auto_axes_and_none_on_explicit(mesh):
    x = nym.shard(model(1)).weights[0]
    each = ["add", "sharding_constraint"] if AxisType.Auto in mesh.axis_types else ["add"]
    assert primitives(added(3, nym.auto_sharded), x) == 3 * each
    assert primitives(added(3, nym.shard), x) == 3 * each
    if AxisType.Explicit in mesh.axis_types:  # a type with another sharding is resharded once
        assert primitives(added(3, nym.auto_sharded), nym.shard(x, {})) == ["add", "reshard", "add", "add"]


def test_on_a_mesh_of_both_kinds_each_is_said_once():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with jax.set_mesh(mesh):
        x = nym.shard(model(1), {}).weights[0]
        again = ["add", "jit", "sharding_constraint"]  # compiled alone: docs/known-faults.md
        assert primitives(added(2, nym.shard), x) == ["add", "reshard", *again[1:], *again]


def test_tracing_sharded_additions_enters_few_more_functions_than_by_hand(mesh, sharding):
    x = nym.shard(model(1)).weights[0]
    stated = jax.lax.with_sharding_constraint if AxisType.Auto in mesh.axis_types else jax.reshard

    def traced(said, x):
        def call(times):
            return lambda: jax.make_jaxpr(lambda x: added(times, said)(x))(x)

        return all_calls(call(MANY)) - all_calls(call(FEW))

    by_hand = traced(lambda x: stated(x, sharding), x.array)
    assert traced(nym.auto_sharded, x) <= 1.2 * by_hand


def test_a_traced_tree_has_one_constraint_for_each_array_and_few_functions_are_entered(mesh):
    def call(leaves):
        given = model(leaves)
        return lambda: jax.make_jaxpr(lambda tree: nym.shard(tree))(given)

    kind = "sharding_constraint" if AxisType.Auto in mesh.axis_types else "reshard"
    assert primitives(nym.shard, nym.shard(model(3), {})) == [kind] * 3
    # Taken apart and put together by JAX, as an argument and as the result.
    assert own_calls_per_array(call) <= 8


def test_what_is_traced_is_not_asked_whether_it_is(mesh, monkeypatch):
    """JAX says by an error that it traces, which is slow."""
    asked, real = [], jax.sharding.get_mesh
    monkeypatch.setattr(jax.sharding, "get_mesh", lambda: asked.append(None) or real())
    x = nym.shard(model(1)).weights[0]
    asked.clear()
    jax.make_jaxpr(added(3, nym.auto_sharded))(x)
    assert not asked
    with pytest.raises(ValueError, match="`host_local_to_global`"):  # which has to ask
        jax.eval_shape(lambda x: nym.host_local_to_global(x, MAPPING), x)
    assert asked


def test_a_mapped_function_is_traced_once_and_inlined(mesh):
    traced = []

    @nym.shard_map
    def doubled(x):
        traced.append(x.array.shape)
        return x + x

    x = nym.shard(model(1)).weights[0]
    for _ in range(3):
        doubled(x)
    assert traced == [(2, 2)] * 3
    found = primitives(lambda x: doubled(x), x)
    assert [one for one in found if one not in ("sharding_constraint", "reshard")] == ["shard_map", "add"]


def test_no_array_is_kept_and_a_rule_goes_with_its_mapping(mesh):
    given = model(2)
    there = nym.shard(given)
    jax.make_jaxpr(nym.shard)(given)
    nym.shard_map(lambda x: x + x)(there.weights[0])
    kept = [weakref.ref(leaf) for tree in (given, there) for leaf in jax.tree.leaves(tree)]
    del given, there
    gc.collect()
    assert [one() for one in kept] == [None] * len(kept)


def test_what_is_known_of_old_mappings_is_forgotten(auto_mesh):
    class Rule:
        def apply(self, array):
            return jax.P(None, None)

    with jax.set_mesh(auto_mesh):
        x, rule = nym.shard(model(1)).weights[0], Rule()
        nym.shard(x, nym.AxisMapping(MAPPING, fallback=rule))
        first = weakref.ref(rule)
        del rule
        for other in range(2**14 + 1):
            nym.shard(x, {**MAPPING, f"other{other}": "data"})
    gc.collect()
    assert first() is None


def test_a_model_made_sharded_needs_no_more_memory_than_by_hand(auto_mesh, monkeypatch):
    monkeypatch.setattr(memory, "LEAVES", 2)
    key, sizes = jax.random.key(0), (128, 64)
    by_hand = jax.jit(
        lambda key: memory.by_hand(key, sizes), out_shardings=[NamedSharding(auto_mesh, jax.P("data", "model"))] * 2
    )
    named = nym.named_jit(lambda key: memory.named(key, sizes), out_axis_resources=MAPPING)
    with jax.set_mesh(auto_mesh):
        expected, needed = (fn.lower(key).compile().memory_analysis() for fn in (by_hand, named))
    for what in ("temp_size_in_bytes", "output_size_in_bytes", "peak_memory_in_bytes"):
        assert 0 < getattr(needed, what) <= getattr(expected, what)

"""What a call of a compiled function costs on a mesh with a mapping in force, without a clock."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import axonym as nym
from tests.counting import own_calls


MAPPING = {"embed": "data"}


class Model(eqx.Module):
    weights: list[nym.NamedArray]


def model(leaves):
    with nym.axis_mapping(MAPPING):
        return nym.auto_sharded(Model([nym.ones({"embed": 8}) for _ in range(leaves)]))


def loss(tree):
    return sum((leaf.sum() for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


@pytest.mark.parametrize("options", [{}, {"axis_resources": MAPPING}], ids=["in force", "its own"])
def test_a_mesh_and_a_mapping_add_nothing_to_a_call(mesh, options):
    fn, given = nym.named_jit(loss, **options), model(3)
    with nym.axis_mapping(MAPPING):
        assert own_calls(lambda: fn(given)) == 3 + 3
        assert fn.trace_count == 1


def test_arguments_in_place_are_not_looked_at_one_by_one_and_not_moved(mesh, asked):
    found = []
    for leaves in (1, 20):
        fn, given = nym.named_jit(loss, in_axis_resources=MAPPING), model(leaves)
        asked.clear()
        found.append(own_calls(lambda: fn(given)) - leaves)  # noqa: B023
        assert not asked
    assert found[0] == found[1] <= 14


def test_a_misplaced_argument_is_moved_after_calls_with_placed_ones(mesh, asked):
    fn, given = nym.named_jit(lambda x: x, in_axis_resources=MAPPING), model(1).weights[0]
    elsewhere = nym.named(jnp.arange(8.0), "embed")
    fn(given)
    assert not asked
    for _ in range(2):
        assert fn(elsewhere).sharding.spec == jax.P("data")
    assert sum(asked) == 2
    with pytest.raises(ValueError, match="'embed' has size 7"):
        fn(nym.ones({"embed": 7}))
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"), axis_types=mesh.axis_types)):
        assert fn(given).sharding.mesh.shape["data"] == 2
    assert sum(asked) == 3


def test_a_fallback_rule_is_asked_at_every_call(mesh):
    asked = []

    class Rule:
        def apply(self, array):
            asked.append(array.shape)
            return jax.P("data")

    fn = nym.named_jit(lambda x: x, in_axis_resources=nym.AxisMapping(MAPPING, fallback=Rule()))
    given = fn(jnp.ones(8))
    asked.clear()
    for count in (1, 2):
        assert fn(given).sharding.spec == jax.P("data")
        assert len(asked) >= count


@pytest.mark.parametrize(
    "fn", [nym.named_jit(lambda x: x, in_axis_resources=MAPPING), nym.pspec_for], ids=["named_jit", "pspec_for"]
)
def test_traced_arrays_are_not_asked_where_they_lie(mesh, fn, monkeypatch):
    asked, real = [], jax.core.Tracer.__getattr__

    def recorded(self, name):
        asked.append(name)
        return real(self, name)

    given = model(1).weights[0]
    with nym.axis_mapping(MAPPING):
        jax.jit(lambda x: (fn(x), x)[1])(given)  # each class of tracers is asked once
        monkeypatch.setattr(jax.core.Tracer, "__getattr__", recorded)
        jax.jit(lambda x: (fn(x), x * 2)[1])(given)
        with pytest.raises(AttributeError, match="sharding"):
            jax.jit(lambda x: x.sharding)(given.array)
    assert asked.count("sharding") == 1

"""`AutoShardingRule`: what it divides and what it leaves whole, on all kinds of meshes and trees."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import axonym as nym


MESH = AbstractMesh((4, 2), ("data", "model"))
BOTH = P(("data", "model"))


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_every_kind_of_array_gets_a_spec_and_other_leaves_an_empty_one():
    tree = {
        "array": jnp.ones((8, 16)),
        "numpy": np.ones((8, 16)),
        "shape": struct(8, 16),
        "named": nym.ones({"a": 8, "b": 16}),
        "keys": jax.random.split(jax.random.key(0), 8),
        "scalar": jnp.ones(()),
        "static": ("name", 1.5, jnp.tanh, np.array(["text"] * 8)),
        "none": None,
    }
    divided = P("model", "data")
    assert nym.AutoShardingRule(MESH).apply(tree) == {
        "array": divided,
        "numpy": divided,
        "shape": divided,
        "named": divided,
        "keys": BOTH,
        "scalar": P(),
        "static": (P(), P(), P(), P()),
        "none": None,
    }


def test_the_largest_dimension_comes_first_or_last():
    rule, reverse = (nym.AutoShardingRule(MESH, ["data"], reverse=reverse) for reverse in (False, True))
    assert rule.apply(struct(4, 8)) == P(None, "data")
    assert reverse.apply(struct(4, 8)) == P("data", None)


def test_stacked_layers_are_sharded_only_if_that_gives_more_parts():
    rule = nym.AutoShardingRule(MESH)
    assert rule.apply(struct(8, 64, 32)) == P(None, "data", "model")
    assert rule.apply(struct(8, 33, 65)) == P(("data", "model"), None, None)


def test_arrays_with_fewer_elements_than_devices_stay_whole():
    rule = nym.AutoShardingRule(MESH)
    assert rule.apply([struct(4), struct(2, 3), struct(8)]) == [P(), P(), BOTH]


@pytest.mark.parametrize(("least", "spec"), [(0, P("data")), (1, P("data")), (4, P("data")), (5, P()), (None, P())])
def test_arrays_with_fewer_elements_than_the_least_stay_whole(least, spec):
    assert nym.AutoShardingRule(MESH, min_shard_size=least).apply(struct(4)) == spec


def test_only_the_mesh_axes_named_are_used_whatever_their_order():
    assert nym.AutoShardingRule(MESH, ["model"]).apply(struct(8, 16)) == P(None, "model")
    one, other = nym.AutoShardingRule(MESH, ["data", "model"]), nym.AutoShardingRule(MESH, ("model", "data"))
    assert one.apply(struct(8, 16)) == other.apply(struct(8, 16)) == P("model", "data")


def test_mesh_axes_of_size_one_divide_nothing():
    mesh = AbstractMesh((1, 4, 1, 2, 1), ("dp", "fsdp", "ep", "tp", "sp"))
    assert nym.AutoShardingRule(mesh).apply(struct(4096, 14336)) == P("tp", "fsdp")
    assert nym.AutoShardingRule(mesh, ["dp", "ep", "sp"]).apply(struct(4096, 14336)) == P()


def test_manual_mesh_axes_divide_nothing(mesh):
    given, in_force = nym.AutoShardingRule(mesh), nym.AutoShardingRule()
    found = []

    def look(x):
        found.extend([given.apply(x), in_force.apply(x)])
        return x

    x = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("data")))
    jax.jit(jax.shard_map(look, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}))(x)
    assert found == [P(None, "model")] * 2


def test_the_mesh_in_force_counts_where_none_is_given(mesh):
    rule, seen = nym.AutoShardingRule(), []
    jax.jit(lambda x: seen.append(rule.apply(x)))(jnp.ones((8, 16)))
    assert seen == [rule.apply(jnp.ones((8, 16)))] == [P("model", "data")]


def test_no_mesh_is_an_error():
    with pytest.raises(ValueError, match=r"^`AutoShardingRule` needs a mesh; set one with `jax.set_mesh"):
        nym.AutoShardingRule().apply(jnp.ones(8))


def test_the_mesh_in_force_must_have_the_axes(auto_mesh):
    rule = nym.AutoShardingRule(axis_names=["fsdp"])
    with jax.set_mesh(auto_mesh), pytest.raises(ValueError, match=r"no mesh axis 'fsdp' in \(data: 4, model: 2\)"):
        rule.apply(jnp.ones(8))


def test_plain_arrays_of_a_mapping_go_by_it(mesh):
    arrays = nym.ones({"batch": 8, "embed": 4}), jnp.ones((8, 16))
    named, plain = nym.shard(arrays, nym.AxisMapping({"batch": "data"}, fallback=nym.AutoShardingRule()))
    assert named.sharding.spec == P("data", None)
    assert plain.sharding.spec == P("model", "data")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"mesh": (4, 2)}, TypeError, r"`mesh` is a mesh, such as `axonym.create_mesh` returns, not \(4, 2\)"),
        ({"axis_names": "data"}, TypeError, r"a list of names of mesh axes, not one name; write \['data'\]"),
        ({"axis_names": [("data", "model")]}, TypeError, "a list of names of mesh axes; .* is not a name"),
        ({"axis_names": 3}, TypeError, "a list of names of mesh axes; 3 is not a name"),
        ({"axis_names": ["modle"]}, ValueError, r"no mesh axis 'modle' in \(data: 4, model: 2\); did you mean 'model'"),
        ({"axis_names": ["data", "data"]}, ValueError, "which names a mesh axis twice"),
        ({"min_shard_size": -1}, ValueError, "`min_shard_size` is an integer of at least 0, not -1"),
        ({"min_shard_size": 1.5}, ValueError, "`min_shard_size` is an integer of at least 0, not 1.5"),
        ({"min_shard_size": float("nan")}, ValueError, "`min_shard_size` is an integer of at least 0, not nan"),
        ({"min_shard_size": True}, TypeError, "`min_shard_size` is an integer of at least 0, not True"),
        ({"min_shard_size": "8"}, TypeError, "`min_shard_size` is an integer of at least 0, not '8'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_options_are_checked_when_the_rule_is_made(options, error, text):
    with pytest.raises(error, match=text):
        nym.AutoShardingRule(**{"mesh": MESH, **options})


def test_options_are_kept_as_they_were_given():
    rule = nym.AutoShardingRule(MESH, ["data", "model"], np.int64(16), reverse=True)
    assert (rule.mesh, rule.axis_names, rule.min_shard_size, rule.reverse) == (MESH, ("data", "model"), 16, True)
    assert isinstance(rule.min_shard_size, int)


def test_rules_that_say_the_same_are_equal():
    assert nym.AutoShardingRule(MESH, ["data"]) == nym.AutoShardingRule(MESH, ("data",))
    assert hash(nym.AutoShardingRule(MESH, ["data"])) == hash(nym.AutoShardingRule(MESH, ("data",)))
    assert nym.AutoShardingRule() != nym.AutoShardingRule(reverse=True)


def test_a_rule_never_changes():
    with pytest.raises(AttributeError, match="reverse"):
        nym.AutoShardingRule().reverse = True  # pyright: ignore[reportAttributeAccessIssue]


def test_the_repr_has_what_differs_from_the_defaults():
    assert repr(nym.AutoShardingRule()) == "AutoShardingRule()"
    assert repr(nym.AutoShardingRule(axis_names=["tp"], reverse=True)) == (
        "AutoShardingRule(axis_names=('tp',), reverse=True)"
    )


@pytest.mark.parametrize("kind", ["none", "abstract", "auto", "explicit"])
def test_a_rule_can_be_pickled_and_copied_with_its_mesh(kind, auto_mesh, explicit_mesh):
    mesh = {"none": None, "abstract": MESH, "auto": auto_mesh, "explicit": explicit_mesh}[kind]
    rule = nym.AutoShardingRule(mesh, ["data"], 16)
    assert pickle.loads(pickle.dumps(rule)) == copy.deepcopy(rule) == rule
    assert pickle.loads(pickle.dumps(rule)).mesh == mesh


def test_a_pickle_with_devices_that_are_not_here_is_an_error(auto_mesh):
    text = pickle.dumps(nym.AutoShardingRule(auto_mesh), protocol=0).decode()
    other = text.replace("Vcpu\n", "Vtpu\n")
    assert other != text
    with pytest.raises(ValueError, match="this pickle has a mesh with device 0 of platform 'tpu', which is not here"):
        pickle.loads(other.encode())

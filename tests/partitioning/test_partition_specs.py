"""Specs and shardings of whole trees: the same places and errors as `shard`, as JAX's own functions take them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as nym


ABSTRACT = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
MAPPING = {"embed": "data", "mlp": "model"}


class Model(eqx.Module):
    weight: nym.NamedArray
    scale: Any = nym.field(axis_names=("embed",))
    table: Any
    step: Any
    size: int = eqx.field(static=True)


class Rows:
    """A rule that divides the first axis of matrices."""

    def apply(self, array: Any) -> P | None:
        return P("data") if len(array.shape) == 2 else None


def model() -> Model:
    return Model(nym.ones({"embed": 8, "mlp": 4}), jnp.ones(8), jnp.ones((2, 3)), np.int32(0), 3)


def structs() -> Model:
    return jax.eval_shape(model)


def test_each_array_has_a_spec_with_an_entry_for_each_axis():
    for tree in (model(), structs()):
        specs = nym.pspec_for(tree, MAPPING)
        assert type(specs) is Model
        assert specs.weight == P("data", "model")  # in the place of the named array
        assert specs.scale == P("data")
        assert specs.table == P(None, None)
        assert specs.step == P()


def test_the_active_mapping_is_taken_and_without_one_nothing_is_sharded(mesh):
    with nym.axis_mapping(MAPPING):
        assert nym.pspec_for(nym.ones({"embed": 8})) == P("data")
    tree = {"w": nym.ones({"embed": 8}), "part": nym.ShardedBy(nym.ones({"embed": 8}), {"embed": "model"}), "n": 1}
    assert nym.pspec_for(tree) == {"w": P(None), "part": nym.ShardedBy(P("model"), {"embed": "model"}), "n": P()}
    assert nym.infer_resource_partitions(tree)["w"] == NamedSharding(mesh, P(None))


def test_leaves_that_are_not_arrays_have_no_spec_and_numbers_an_empty_one():
    assert nym.pspec_for({"a": "text", "b": None, "c": 1.5, "d": True}, {}) == {
        "a": None,
        "b": None,
        "c": P(),
        "d": P(),
    }


def test_a_rule_decides_about_plain_arrays_with_and_without_a_mesh(mesh):
    tree, mapping = [np.ones((8, 3)), np.ones(8)], nym.AxisMapping(fallback=Rows())
    assert nym.pspec_for(tree, mapping) == [P("data", None), P(None)]
    with jax.set_mesh(None):
        assert nym.pspec_for(tree, mapping) == [P("data", None), P(None)]
    assert nym.infer_resource_partitions(tree, mapping)[0] == NamedSharding(mesh, P("data", None))


def test_a_part_with_a_mapping_of_its_own_goes_by_that():
    x = nym.ones({"embed": 8})
    specs = nym.pspec_for((x, nym.ShardedBy(x, {"embed": "model"})), MAPPING)
    assert (specs[0], specs[1].tree) == (P("data"), P("model"))


def test_without_a_mesh_only_what_needs_none_is_checked():
    assert nym.pspec_for(nym.ones({"embed": 6}), MAPPING) == P("data")
    with pytest.raises(ValueError, match=r"\['a'\]: axes 'embed' and 'pos' .* are both mapped to mesh axis 'data'"):
        nym.pspec_for({"a": nym.ones({"embed": 8, "pos": 8})}, {"embed": "data", "pos": "data"})


REFUSED = [
    ({"a": nym.named(jax.ShapeDtypeStruct((6,), jnp.float32), "embed")}, r"\['a'\]: axis 'embed' has size 6"),
    ({"a": nym.named(jax.ShapeDtypeStruct((8,), jnp.float32), "pos")}, r"\['a'\]: axis 'pos' is mapped to .* 'rows'"),
]


@pytest.mark.parametrize(("tree", "match"), REFUSED, ids=["uneven", "unknown"])
def test_errors_are_those_of_shard_and_name_the_leaf(mesh, tree, match):
    mapping = {**MAPPING, "pos": "rows"}
    for refuses in (nym.shard, nym.pspec_for, nym.infer_resource_partitions):
        with pytest.raises(ValueError, match=match):
            refuses(tree, mapping)


def test_what_is_divided_over_the_mesh_keeps_its_sharding_if_asked(mesh):
    tree = nym.shard(model(), {"embed": "model"})
    kept = nym.infer_resource_partitions(tree, MAPPING)
    assert kept.weight == NamedSharding(mesh, P("model", None))
    assert kept.scale is tree.scale.sharding
    assert nym.pspec_for(tree, MAPPING).weight == P("model", None)
    changed = nym.infer_resource_partitions(tree, MAPPING, preserve_existing_shardings=False)
    assert (changed.weight.spec, changed.scale.spec) == (P("data", "model"), P("data"))
    assert nym.pspec_for(tree, MAPPING, False).weight == P("data", "model")


def test_what_lies_whole_or_over_another_mesh_goes_by_the_mapping(mesh):
    other = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(None):
        one_device = nym.ones({"embed": 8})
        elsewhere = nym.named(jax.device_put(np.ones(8), NamedSharding(other, P("x"))), "embed")
    on_each = nym.shard(one_device, {})
    for array in (one_device, on_each, elsewhere):
        assert nym.infer_resource_partitions(array, MAPPING) == NamedSharding(mesh, P("data"))
        assert nym.pspec_for(array, MAPPING) == P("data")


def test_shardings_are_inferred_for_shapes_on_an_abstract_mesh():
    shardings = nym.infer_resource_partitions(structs(), MAPPING, mesh=ABSTRACT)
    assert shardings.weight == NamedSharding(ABSTRACT, P("data", "model"))
    planned = nym.shard(structs(), {"embed": "model"}, ABSTRACT)
    assert nym.infer_resource_partitions(planned, MAPPING, mesh=ABSTRACT).weight.spec == P("model", None)


def test_a_sharding_planned_on_the_abstract_mesh_is_kept_on_its_devices(auto_mesh):
    planned = nym.shard(structs(), {"embed": "model"}, ABSTRACT)
    found = nym.infer_resource_partitions(planned, MAPPING, mesh=auto_mesh)
    assert found.weight == NamedSharding(auto_mesh, P("model", None))


def test_shardings_need_a_mesh():
    with pytest.raises(ValueError, match="`infer_resource_partitions` needs a mesh; set one"):
        nym.infer_resource_partitions(structs(), MAPPING)


def test_jit_and_device_put_take_what_is_inferred(mesh):
    tree = {"model": eqx.filter(model(), eqx.is_array), "count": 2.0, "none": None}
    shardings = nym.infer_resource_partitions(tree, MAPPING)
    for result in (
        jax.device_put(tree, shardings),
        jax.jit(lambda tree: tree, out_shardings=shardings)(tree),
        jax.jit(lambda tree: tree, in_shardings=(shardings,), out_shardings=shardings)(jax.device_put(tree, shardings)),
    ):
        assert result["model"].weight.array.sharding == NamedSharding(mesh, P("data", "model"))
        assert result["model"].scale.sharding == NamedSharding(mesh, P("data"))


def test_jit_takes_specs_where_a_mesh_is_set(mesh):
    tree = nym.ones({"embed": 8, "mlp": 4})
    placed = jax.jit(lambda x: x, out_shardings=nym.pspec_for(tree, MAPPING))(tree)
    assert placed.sharding.spec == P("data", "model")


def test_traced_arrays_have_specs_and_shardings(mesh):
    seen = []

    @jax.jit
    def f(x):
        seen.extend([nym.pspec_for(x, MAPPING), nym.infer_resource_partitions(x, MAPPING)])
        return x

    f(nym.ones({"embed": 8}))
    assert seen == [P("data"), NamedSharding(mesh.abstract_mesh, P("data"))]


def test_a_traced_array_on_an_explicit_mesh_keeps_its_sharding(explicit_mesh):
    with jax.set_mesh(explicit_mesh):
        seen = []
        jax.jit(lambda x: seen.append(nym.pspec_for(x, MAPPING)))(nym.shard(nym.ones({"embed": 8}), {"embed": "model"}))
    assert seen == [P("model")]


def test_a_named_array_that_holds_no_array_stays_in_the_tree():
    empty = jax.tree.map(lambda _: None, nym.ones({"embed": 8}))
    several = jax.tree.map(lambda x: (x, x), nym.ones({"embed": 8}))
    assert jax.tree.leaves(nym.pspec_for(empty, MAPPING)) == []
    assert nym.pspec_for(several, MAPPING).array == (P("data"), P("data"))

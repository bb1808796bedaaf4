"""Specs, shardings and mesh axes of single axes, and the errors that everything raises that shards by name."""

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as nym


ABSTRACT = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def test_a_spec_has_one_entry_for_each_axis():
    mapping = {"batch": "data", "mlp": ["model"], "vocab": ["data", "model"]}
    assert nym.pspec_for_axis("batch", mapping) == P("data")
    assert nym.pspec_for_axis(("pos", "mlp", "batch"), mapping) == P(None, "model", "data")
    assert nym.pspec_for_axis(nym.make_axes(vocab=16, pos=3), mapping) == P(("data", "model"), None)
    assert nym.pspec_for_axis({"batch": 8, "pos": None}, mapping) == P("data", None)
    assert nym.pspec_for_axis((), mapping) == P()
    with nym.axis_mapping(mapping):
        assert nym.pspec_for_axis(("batch", "pos")) == P("data", None)


def test_a_spec_is_checked_where_a_mesh_and_sizes_are_known(mesh):
    assert nym.pspec_for_axis("batch", {"batch": "data"}) == P("data")
    assert nym.pspec_for_axis(nym.Axis("batch", 8), {"batch": "data"}) == P("data")
    with pytest.raises(ValueError, match="axis 'batch' has size 6"):
        nym.pspec_for_axis(nym.Axis("batch", 6), {"batch": "data"})
    with pytest.raises(ValueError, match="'dta', which the mesh"):
        nym.pspec_for_axis("batch", {"batch": "dta"})


def test_without_a_mesh_only_what_needs_none_is_checked():
    assert nym.pspec_for_axis(nym.Axis("batch", 6), {"batch": "dta"}) == P("dta")
    with pytest.raises(
        ValueError, match=r"axes 'batch' and 'pos' of \(batch, pos\) are both mapped to mesh axis 'data'"
    ):
        nym.pspec_for_axis(("batch", "pos"), {"batch": "data", "pos": "data"})


def test_a_sharding_is_over_the_mesh_given_or_in_force(auto_mesh, explicit_mesh):
    axes, mapping = nym.make_axes(batch=8, embed=6), {"batch": "data", "embed": "model"}
    for mesh in (auto_mesh, explicit_mesh, ABSTRACT):
        assert nym.sharding_for_axis(axes, mapping, mesh) == NamedSharding(mesh, P("data", "model"))
    with jax.set_mesh(explicit_mesh), nym.axis_mapping(mapping):
        assert nym.sharding_for_axis(axes) == NamedSharding(explicit_mesh, P("data", "model"))
        assert nym.sharding_for_axis(axes, {}, auto_mesh) == NamedSharding(auto_mesh, P(None, None))
    with jax.sharding.use_abstract_mesh(ABSTRACT):
        assert nym.sharding_for_axis(axes, mapping) == NamedSharding(ABSTRACT, P("data", "model"))


def test_a_sharding_has_devices_and_can_be_used_after_the_mesh(mesh):
    sharding = nym.sharding_for_axis("batch", {"batch": "data"})
    with jax.set_mesh(None):
        assert jax.device_put(np.ones(8), sharding).sharding.shard_shape((8,)) == (2,)


def test_the_mesh_axes_of_an_axis(mesh):
    mapping = {"batch": ("data", "model"), "mlp": ["model"], "pos": None}
    assert nym.physical_axis_name("batch", mapping) == ("data", "model")
    assert nym.physical_axis_name(nym.Axis("mlp", 3), mapping) == "model"
    assert nym.physical_axis_size("batch", mapping) == 8
    assert nym.physical_axis_size(nym.Axis("mlp", 3), mapping) == 2
    for unmapped in ("pos", "embed"):
        assert nym.physical_axis_name(unmapped, mapping) is None
        assert nym.physical_axis_size(unmapped, mapping) is None
    assert nym.physical_axis_name("batch") is None
    assert nym.physical_axis_size("batch") is None
    with nym.axis_mapping(mapping):
        assert nym.physical_axis_name("mlp") == "model"
        assert nym.physical_axis_size("mlp") == 2


def test_sizes_are_rounded_up_to_what_fits(mesh):
    mapping = {"vocab": "data", "batch": ("data", "model")}
    axis = nym.Axis("vocab", 12)
    assert nym.round_axis_for_partitioning(axis, mapping) is axis
    assert nym.round_axis_for_partitioning(axis.resize(10), mapping) == axis
    assert nym.round_axis_for_partitioning(nym.Axis("batch", 1), mapping) == nym.Axis("batch", 8)
    assert nym.round_axis_for_partitioning(nym.Axis("batch", 0), mapping) == nym.Axis("batch", 0)
    assert nym.round_axis_for_partitioning(nym.Axis("pos", 7), mapping) == nym.Axis("pos", 7)
    with nym.axis_mapping(mapping):
        assert nym.round_axis_for_partitioning(axis.resize(13)) == nym.Axis("vocab", 16)


def test_queries_work_on_an_abstract_mesh():
    with jax.sharding.use_abstract_mesh(ABSTRACT), nym.axis_mapping({"vocab": "data"}):
        assert nym.pspec_for_axis(nym.Axis("vocab", 8)) == P("data")
        assert nym.physical_axis_size("vocab") == 4
        assert nym.round_axis_for_partitioning(nym.Axis("vocab", 10)) == nym.Axis("vocab", 12)
        with pytest.raises(
            ValueError, match="axis 'vocab' has size 10, which is not divisible by mesh axis 'data' of size 4"
        ):
            nym.pspec_for_axis(nym.Axis("vocab", 10))


def test_queries_go_by_the_mesh_given(mesh):
    mapping = {"vocab": ("data", "model")}
    other = AbstractMesh((3, 5), ("data", "model"), axis_types=ABSTRACT.axis_types)
    assert nym.physical_axis_size("vocab", mapping) == 8
    for given, size in ((ABSTRACT, 8), (other, 15)):
        with jax.set_mesh(None):
            assert nym.physical_axis_size("vocab", mapping, given) == size
        assert nym.physical_axis_size("vocab", mapping, mesh=given) == size
        assert nym.round_axis_for_partitioning(nym.Axis("vocab", size + 1), mapping, given).size == 2 * size


def test_queries_work_inside_jit(mesh):
    @jax.jit
    def f(x):
        assert nym.physical_axis_size("batch") == 4
        assert nym.sharding_for_axis("batch").spec == P("data")
        return x

    with nym.axis_mapping(batch="data"):
        jax.eval_shape(f, 1.0)


def test_without_a_mapping_nothing_is_sharded():
    assert nym.pspec_for_axis("batch") == P(None) and nym.pspec_for_axis(("batch", "embed")) == P(None, None)
    assert nym.sharding_for_axis(nym.Axis("batch", 3), mesh=ABSTRACT) == NamedSharding(ABSTRACT, P(None))
    assert nym.physical_axis_name("batch") is None and nym.physical_axis_size("batch") is None
    assert nym.round_axis_for_partitioning(nym.Axis("batch", 3)).size == 3


def test_an_axis_of_size_1_is_replicated(mesh):
    mapping, one = {"kv_heads": "model", "heads": "model"}, nym.Axis("kv_heads", 1)
    assert nym.pspec_for_axis(one, mapping) == P(None) and nym.pspec_for_axis("kv_heads", mapping) == P("model")
    assert nym.pspec_for_axis((one, "heads"), mapping) == P(None, "model")
    assert nym.sharding_for_axis(one, mapping).spec == P(None)
    with jax.set_mesh(None):
        assert nym.pspec_for_axis((one, "heads"), mapping) == P(None, "model")
    alone = nym.create_mesh((8, 1), ("data", "model"))
    assert nym.sharding_for_axis(one, mapping, alone).spec == P("model")
    with pytest.raises(ValueError, match="axis 'kv_heads' has size 3, which is not divisible by mesh axis 'model'"):
        nym.pspec_for_axis(nym.Axis("kv_heads", 3), mapping)


def test_a_query_without_a_mesh_is_an_error():
    mapping = {"batch": "data"}
    text = r"`physical_axis_size` needs a mesh; set one with `jax.set_mesh\(mesh\)` or pass `mesh=`$"
    with pytest.raises(ValueError, match=text):
        nym.physical_axis_size("batch", mapping)
    with pytest.raises(ValueError, match=text):
        nym.round_axis_for_partitioning(nym.Axis("batch", 8), mapping)
    with pytest.raises(ValueError, match=r"`sharding_for_axis` needs a mesh; set one .* or pass `mesh=`$"):
        nym.sharding_for_axis("batch", mapping)


def test_a_query_for_a_mesh_axis_that_is_not_there_is_an_error(mesh):
    mapping = {"batch": ("data", "modle")}
    text = (
        r"axis 'batch' is mapped to mesh axis 'modle', which the mesh \(data: 4, model: 2\) does not have; "
        "did you mean 'model'"
    )
    for query in (nym.pspec_for_axis, nym.sharding_for_axis, nym.physical_axis_size, nym.round_axis_for_partitioning):
        with pytest.raises(ValueError, match=text):
            query(nym.Axis("batch", 8), mapping)
    assert nym.physical_axis_name("batch", mapping) == ("data", "modle")


def test_an_axis_that_is_no_axis_is_an_error():
    with pytest.raises(TypeError, match="An axis is given by an `Axis` or by its name, not by 3"):
        nym.pspec_for_axis((3,), {})


def test_mesh_axes_of_size_one_divide_everything_but_only_once():
    mesh = AbstractMesh((8, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    axes = nym.make_axes(batch=8, mlp=7)
    assert nym.sharding_for_axis(axes, {"batch": "data", "mlp": "model"}, mesh).shard_shape((8, 7)) == (1, 7)
    assert nym.sharding_for_axis(axes, {"batch": ("data", "model")}, mesh).shard_shape((8, 7)) == (1, 7)
    with pytest.raises(ValueError, match="are both mapped to mesh axis 'model'"):
        nym.sharding_for_axis(axes, {"batch": "model", "mlp": "model"}, mesh)


def test_uneven_axes_stay_whole_on_request():
    mapping = nym.AxisMapping({"batch": ("data", "model"), "mlp": "model"}, uneven="replicate")
    fits, uneven = nym.make_axes(batch=16, mlp=6), nym.make_axes(batch=12, mlp=6)
    assert nym.sharding_for_axis(fits[0], mapping, ABSTRACT).spec == P(("data", "model"))
    assert nym.sharding_for_axis(uneven, mapping, ABSTRACT).spec == P(None, "model")
    with pytest.raises(ValueError, match="'dta', which the mesh"):
        nym.sharding_for_axis(uneven, mapping.merged({"batch": "dta"}), ABSTRACT)
    with pytest.raises(ValueError, match="are both mapped to mesh axis 'model'"):
        nym.sharding_for_axis(fits, mapping, ABSTRACT)


def test_a_near_miss_warns_where_arrays_are_sharded(auto_mesh):
    x = nym.ones({"exampel": 8})
    with pytest.warns(RuntimeWarning, match="the mapping has no 'exampel', but has 'example'") as caught:
        nym.shard(x, {"example": "data"}, auto_mesh)
    assert caught[0].filename == __file__


def test_a_near_miss_that_is_mapped_to_none_is_meant():
    assert nym.pspec_for_axis("heasd", {"heads": "model", "heasd": None}) == P(None)
    with nym.axis_mapping({"paeg": None}), nym.axis_mapping(page="data", merge=True):
        assert nym.pspec_for_axis("paeg") == P(None)
        assert nym.pspec_for_axis("paeg", nym.current_mapping()) == P(None)


def test_what_is_manual_is_left_out(mesh):
    mapping = {"batch": "data", "embed": "model"}
    x = nym.shard(nym.ones({"batch": 8, "embed": 4}), mapping).array

    def body(x):
        array = nym.named(x, ("batch", "embed"))
        seen.append((nym.pspec_for_axis(array.axes), array.shape))
        return nym.auto_sharded(array * 2).array

    with nym.axis_mapping(mapping):
        seen = []
        whole = jax.shard_map(body, in_specs=P("data", "model"), out_specs=P("data", "model"))
        np.testing.assert_array_equal(jax.jit(whole)(x), np.full((8, 4), 2.0))
        assert seen == [(P(None, None), (2, 2))]
        seen = []
        part = jax.shard_map(body, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
        y = jax.jit(part)(jax.device_put(x, NamedSharding(mesh, P("data", "model"))))
        np.testing.assert_array_equal(y, np.full((8, 4), 2.0))
        assert y.sharding.spec == P("data", "model")
        assert seen == [(P(None, "model"), (2, 4))]

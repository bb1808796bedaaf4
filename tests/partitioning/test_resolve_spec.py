"""Specs and shardings of single axes and of whole trees, and the errors that everything raises that shards by name."""

import collections
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

import axonym as nym
from tests.partitioning.arrays import on_auto
from tests.refusals import refusal


ABSTRACT = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
MAPPING = {"embed": "data", "mlp": "model"}


# Single axes.


def test_a_spec_has_one_entry_for_each_axis():
    mapping = {"batch": "data", "mlp": ["model"], "vocab": ["data", "model"]}
    assert nym.pspec_for_axis("batch", mapping) == P("data")
    assert nym.pspec_for_axis(("pos", "mlp", "batch"), mapping) == P(None, "model", "data")
    assert nym.pspec_for_axis(nym.make_axes(vocab=16, pos=3), mapping) == P(("data", "model"), None)
    assert nym.pspec_for_axis({"batch": 8, "pos": None}, mapping) == P("data", None)
    assert nym.pspec_for_axis((), mapping) == P()
    with nym.axis_mapping(mapping):
        assert nym.pspec_for_axis(("batch", "pos")) == P("data", None)


def test_without_a_mesh_only_what_needs_none_is_checked():
    assert nym.pspec_for_axis(nym.Axis("batch", 6), {"batch": "dta"}) == P("dta")
    mapping = {"embed": "data", "pos": "data"}
    with refusal("axes 'embed' and 'pos' of (embed, pos) are both mapped to mesh axis 'data'"):
        nym.pspec_for_axis(("embed", "pos"), mapping)
    assert nym.pspec_for(nym.ones({"embed": 6}), mapping) == P("data")
    with refusal("['a']: axes 'embed' and 'pos' of (embed: 8, pos: 8) are both mapped to mesh axis 'data'"):
        nym.pspec_for({"a": nym.ones({"embed": 8, "pos": 8})}, mapping)


def test_a_sharding_is_over_the_mesh_given_or_in_force(auto_mesh, explicit_mesh):
    axes, mapping = nym.make_axes(batch=8, embed=6), {"batch": "data", "embed": "model"}
    for mesh in (auto_mesh, explicit_mesh, ABSTRACT):
        assert nym.sharding_for_axis(axes, mapping, mesh) == NamedSharding(mesh, P("data", "model"))
    with jax.set_mesh(explicit_mesh), nym.axis_mapping(mapping):
        assert nym.sharding_for_axis(axes) == NamedSharding(explicit_mesh, P("data", "model"))
        assert nym.sharding_for_axis(axes, {}, auto_mesh) == NamedSharding(auto_mesh, P(None, None))
    assert nym.sharding_for_axis(axes, mesh=ABSTRACT) == NamedSharding(ABSTRACT, P(None, None))
    with jax.sharding.use_abstract_mesh(ABSTRACT):
        assert nym.sharding_for_axis(axes, mapping) == NamedSharding(ABSTRACT, P("data", "model"))
        assert nym.physical_axis_size("batch", mapping) == 4
        with refusal("axis 'batch' has size 10, which is not divisible by mesh axis 'data' of size 4"):
            nym.pspec_for_axis(nym.Axis("batch", 10), mapping)


@pytest.mark.parametrize(
    "query", [nym.pspec_for_axis, nym.sharding_for_axis, nym.physical_axis_size, nym.round_axis_for_partitioning]
)
def test_a_query_needs_a_mesh_with_the_mesh_axes_of_the_mapping(query):
    axis, mapping = nym.Axis("batch", 8), {"batch": ("data", "modle")}
    text = "axis 'batch' is mapped to mesh axis 'modle', which the mesh (data: 4, model: 2) does not have; "
    with jax.sharding.use_abstract_mesh(ABSTRACT), refusal(text):
        query(axis, mapping)
    assert nym.physical_axis_name("batch", mapping) == ("data", "modle")
    if query is not nym.pspec_for_axis:
        with refusal("` needs a mesh; set one with `jax.set_mesh(mesh)` or pass `mesh=`"):
            query(axis, mapping)


@on_auto
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


@on_auto
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


@on_auto
def test_queries_go_by_the_mesh_given(mesh):
    mapping = {"vocab": ("data", "model")}
    other = AbstractMesh((3, 5), ("data", "model"), axis_types=ABSTRACT.axis_types)
    assert nym.physical_axis_size("vocab", mapping) == 8
    for chosen, size in ((ABSTRACT, 8), (other, 15)):
        with jax.set_mesh(None):
            assert nym.physical_axis_size("vocab", mapping, chosen) == size
        assert nym.physical_axis_size("vocab", mapping, mesh=chosen) == size
        assert nym.round_axis_for_partitioning(nym.Axis("vocab", size + 1), mapping, chosen).size == 2 * size


@on_auto
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


def test_wrong_types_are_errors():
    with refusal("An axis is given by an `Axis` or by its name, not by 3", TypeError):
        nym.pspec_for_axis((3,), {})
    with refusal("`mesh` is a mesh, such as `axonym.create_mesh` returns, not 3.", TypeError):
        nym.sharding_for_axis("batch", {}, 3)
    text = "`round_axis_for_partitioning` needs a size: give `Axis('batch', size)` instead of 'batch'."
    with refusal(text, TypeError):
        nym.round_axis_for_partitioning("batch", {"batch": "data"}, ABSTRACT)


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


# Trees: the same places and errors as `shard`, as JAX's own functions take them.


class Model(eqx.Module):
    weight: nym.NamedArray
    scale: Any = nym.field(axis_names=("embed",))
    table: Any
    step: Any
    size: int = eqx.field(static=True)


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


@on_auto
def test_the_active_mapping_is_taken_and_without_one_nothing_is_sharded(mesh):
    """What is no array has no spec, and numbers have an empty one."""
    with nym.axis_mapping(MAPPING):
        assert nym.pspec_for(nym.ones({"embed": 8})) == P("data")
    part = nym.ShardedBy(nym.ones({"embed": 8}), {"embed": "model"})
    tree = {"w": nym.ones({"embed": 8}), "part": part, "n": 1, "text": "text", "none": None}
    whole = {"w": P(None), "part": nym.ShardedBy(P("model"), part.mapping), "n": P(), "text": None, "none": None}
    assert nym.pspec_for(tree) == whole
    assert nym.infer_resource_partitions(tree)["w"] == NamedSharding(mesh, P(None))
    with jax.set_mesh(None), refusal("`infer_resource_partitions` needs a mesh; set one"):
        nym.infer_resource_partitions(tree, MAPPING)


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


def test_shardings_are_inferred_for_shapes_on_an_abstract_mesh(auto_mesh):
    shardings = nym.infer_resource_partitions(structs(), MAPPING, mesh=ABSTRACT)
    assert shardings.weight == NamedSharding(ABSTRACT, P("data", "model"))
    planned = nym.shard(structs(), {"embed": "model"}, ABSTRACT)
    assert nym.infer_resource_partitions(planned, MAPPING, mesh=ABSTRACT).weight.spec == P("model", None)
    on_devices = nym.infer_resource_partitions(planned, MAPPING, mesh=auto_mesh)
    assert on_devices.weight == NamedSharding(auto_mesh, P("model", None))


def test_traced_arrays_have_specs_and_shardings_and_keep_those_in_their_types(mesh):
    seen = []

    def note(x):
        seen.extend([nym.pspec_for(x, MAPPING), nym.infer_resource_partitions(x, MAPPING)])

    x = nym.ones({"embed": 8})
    for array in (x, nym.shard(x, {"embed": "model"})):
        jax.eval_shape(lambda x: note(x), array)
    kept = P("model") if AxisType.Explicit in mesh.axis_types else P("data")
    shardings = [NamedSharding(mesh.abstract_mesh, spec) for spec in (P("data"), kept)]
    assert seen == [P("data"), shardings[0], kept, shardings[1]]


def test_a_named_array_that_holds_no_array_stays_in_the_tree():
    empty = jax.tree.map(lambda _: None, nym.ones({"embed": 8}))
    several = jax.tree.map(lambda x: (x, x), nym.ones({"embed": 8}))
    assert jax.tree.leaves(nym.pspec_for(empty, MAPPING)) == []
    assert nym.pspec_for(several, MAPPING).array == (P("data"), P("data"))


# What cannot be sharded as the mapping says is the same error wherever it is found, and names the leaf.


Mlp, Embed = nym.make_axes(mlp=8, embed=6)


FAULTS = pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (
            {"mlp": "dta"},
            "axis 'mlp' is mapped to mesh axis 'dta', which the mesh (data: 4, model: 2) does not have; the array is "
            "(mlp: 8, embed: 6); did you mean 'data'?",
        ),
        (
            {"mlp": "model", "embed": "model"},
            "axes 'mlp' and 'embed' of (mlp: 8, embed: 6) are both mapped to mesh axis 'model'; map one of them to "
            "another mesh axis or to None",
        ),
        (
            {"embed": ("data", "model")},
            "axis 'embed' has size 6, which is not divisible by mesh axis 'data' of size 4 x 'model' of size 2; the "
            "next size that fits is 8 (`round_axis_for_partitioning`), or replicate the axis with "
            "`uneven='replicate'`; the array is (mlp: 8, embed: 6)",
        ),
    ],
    ids=["unknown mesh axis", "mesh axis used twice", "uneven size"],
)


def make_weight():
    """Returns a NumPy array, which no mapping has seen."""
    return nym.NamedArray(np.ones((8, 6), np.float32), ("mlp", "embed"))


def make_layer():
    return nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))


def get_error(fn, *args) -> str:
    with pytest.raises(ValueError, match="axis") as caught:
        fn(*args)
    return str(caught.value)


@FAULTS
def test_what_shards_a_tree_names_the_leaf(mesh, mapping, text):
    tree, text = {"layers": [make_weight()]}, "['layers'][0]: " + text
    for shard in (lambda x: nym.shard(x, mapping), nym.axis_mapping(mapping)(nym.auto_sharded)):
        assert get_error(shard, tree) == text
        assert get_error(jax.jit(shard), tree) == text
        assert get_error(shard, jax.eval_shape(lambda: tree)) == text
        assert get_error(jax.vmap(lambda _: shard(tree)), np.ones(2)) == text  # noqa: B023


@FAULTS
@on_auto
def test_a_compiled_function_names_the_argument_or_the_leaf_of_the_result(mesh, mapping, text):
    tree = {"layers": [make_weight()]}
    by_position = nym.named_jit(lambda model: model, in_axis_resources=mapping)
    assert get_error(by_position, tree) == "model['layers'][0]: " + text
    assert get_error(lambda: by_position(model=tree)) == "model['layers'][0]: " + text
    for fn in (
        nym.named_jit(lambda x: x, mapping),
        nym.named_jit(lambda x: x, out_axis_resources=mapping),
        nym.axis_mapping(mapping)(nym.named_jit(lambda x: x)),
    ):
        assert get_error(fn, tree) == "['layers'][0]: " + text


@FAULTS
@on_auto
def test_what_makes_one_array_or_uses_a_layer_says_the_same(mesh, mapping, text):
    model, x = nym.nn.Linear(make_weight(), None, (Embed,), (Mlp,)), nym.ones({"batch": 2, "embed": 6})
    makes = [
        lambda: nym.zeros((Mlp, Embed)),
        lambda: nym.random.normal(jax.random.key(0), (Mlp, Embed)),
        make_layer,
        lambda: model(x),
    ]
    with nym.axis_mapping(mapping):
        for make in makes:
            assert get_error(make) == get_error(jax.eval_shape, make) == get_error(nym.named_jit(make)) == text
        assert get_error(nym.pspec_for_axis, (Mlp, Embed)) == get_error(nym.sharding_for_axis, (Mlp, Embed)) == text


def test_uneven_axes_stay_whole_on_request_everywhere(mesh):
    mapping = nym.AxisMapping({"embed": ("model", "data"), "mlp": "model"}, uneven="replicate")
    fn = nym.named_jit(lambda x: x * 2, in_axis_resources=mapping, out_axis_resources=mapping)
    with nym.axis_mapping(mapping):
        x = nym.zeros((Mlp, Embed))
        arrays = [
            nym.shard(make_weight()),
            x,
            nym.named_jit(lambda x: x * 2)(x),
            make_layer().weight,
            fn(make_weight()),
        ]
    assert all(array.sharding.is_equivalent_to(NamedSharding(mesh, P("model", None)), 2) for array in arrays)


# Arrays, mappings and meshes by chance: each has a spec as the definition says, or one of the documented errors.


CHANCE_NAMES, MESH_AXES = ("alpha", "bravo", "charlie", "delta"), ("x", "y", "z")
ERRORS = {
    "unknown": "which the mesh",
    "twice": "are both mapped to mesh axis",
    "uneven": "which is not divisible by mesh axis",
    "repeated": "which names a mesh axis twice",
    "mixed": "a mix that JAX does not keep",
}
SHAPES = [(8,), (4, 2), (2, 2, 2), (1, 8), (4, 1, 2), (1,), (3,), (2, 3)]
ABSTRACT_SHAPES = [*SHAPES, (64,), (8, 8), (4, 16), (16, 2), (2, 3, 4), (5, 3, 4)]


@st.composite
def meshes(draw):
    is_abstract = draw(st.integers(0, 4)) == 0
    sizes = draw(st.sampled_from(ABSTRACT_SHAPES if is_abstract else SHAPES))
    names = MESH_AXES[: len(sizes)]
    kinds = tuple(draw(st.sampled_from((AxisType.Auto, AxisType.Explicit))) for _ in sizes)
    if is_abstract:
        return AbstractMesh(sizes, names, axis_types=kinds)
    devices = np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes)
    return Mesh(devices, names, axis_types=kinds)


@st.composite
def arrays(draw):
    names = draw(st.permutations(CHANCE_NAMES))[: draw(st.sampled_from([2, 1, 3, 0, 4]))]
    sizes = tuple(draw(st.sampled_from([16, 8, 1, 0, 2, 3, 4, 6, 16, 48])) for _ in names)
    return nym.NamedArray(np.arange(math.prod(sizes), dtype=np.float32).reshape(sizes) % 7, names)


several = st.permutations(MESH_AXES).map(lambda axes: axes[:2])
by_chance = st.lists(st.sampled_from([*MESH_AXES, "w"]), max_size=3)
values = st.sampled_from([None, *MESH_AXES, several, several.map(tuple), by_chance]).flatmap(
    lambda value: value if isinstance(value, st.SearchStrategy) else st.just(value)
)


def define_parts(x, mapping, mesh):
    """Returns the shape of one part by the definition, and the errors of which one is right."""
    used, parts, wrong = collections.Counter(), [], set()
    for name, size in x.shape.items():
        axes = mapping.mesh_axes(name)
        if not set(axes) <= set(mesh.axis_names):
            wrong.add("unknown")
            continue
        number = math.prod(mesh.shape[axis] for axis in axes)
        if len({mesh.axis_types[mesh.axis_names.index(axis)] for axis in axes}) > 1:
            wrong.add("mixed")
        if size % number:
            wrong |= {"uneven"} if mapping.uneven == "error" and size != 1 else set()
            axes, number = (), 1
        used.update(axes)
        parts.append(size // number)
    if max(used.values(), default=0) > 1:
        wrong.add("twice")
    return tuple(parts), wrong


@given(
    x=arrays(),
    entries=st.fixed_dictionaries(dict.fromkeys(CHANCE_NAMES[:3], values)),
    uneven=st.sampled_from(["error", "replicate"]),
    mesh=meshes(),
)
@settings(max_examples=300)
def test_an_array_has_the_spec_of_the_definition_or_an_error_and_keeps_its_values(x, entries, uneven, mesh):
    wrong = {"repeated"}
    try:
        mapping = nym.AxisMapping(entries, uneven=uneven)
        parts, wrong = define_parts(x, mapping, mesh)
        sharding = nym.sharding_for_axis(x.axes, mapping, mesh)
    except ValueError as error:
        assert [kind for kind in wrong if ERRORS[kind] in str(error)]
        if "repeated" not in wrong:
            with refusal(str(error)):
                nym.shard(x, mapping, mesh)
        return
    assert not wrong
    assert sharding == NamedSharding(mesh, sharding.spec) and len(sharding.spec) == x.ndim
    assert sharding.shard_shape(tuple(x.shape)) == parts
    if isinstance(mesh, AbstractMesh):
        assert nym.shard(jax.eval_shape(lambda: x), mapping, mesh).array.sharding == sharding
        return
    sharded = nym.shard(x, mapping, mesh)
    assert sharded.array.sharding == sharding and np.array_equal(sharded.array, x.array)

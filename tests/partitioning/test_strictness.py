"""What cannot be sharded as the mapping says is the same error wherever it is found, and names the leaf."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as nym


Mlp, Embed = nym.make_axes(mlp=8, embed=6)


class Fault(NamedTuple):
    mapping: dict
    text: str


FAULTS = {
    "unknown mesh axis": Fault(
        {"mlp": "dta"},
        "axis 'mlp' is mapped to mesh axis 'dta', which the mesh (data: 4, model: 2) does not have; did you mean "
        "'data'?",
    ),
    "mesh axis used twice": Fault(
        {"mlp": "model", "embed": "model"},
        "axes 'mlp' and 'embed' of (mlp: 8, embed: 6) are both mapped to mesh axis 'model'; map one of them to another "
        "mesh axis or to None",
    ),
    "uneven size": Fault(
        {"embed": "data"},
        "axis 'embed' has size 6, which mesh axis 'data' of size 4 does not divide; the next size that fits is 8 "
        "(`round_axis_for_partitioning`), or leave the axis whole with `uneven='replicate'`",
    ),
    "uneven size over two": Fault(
        {"embed": ("data", "model")},
        "axis 'embed' has size 6, which mesh axis 'data' of size 4 x 'model' of size 2 does not divide; the next size "
        "that fits is 8 (`round_axis_for_partitioning`), or leave the axis whole with `uneven='replicate'`",
    ),
}


@pytest.fixture(params=FAULTS)
def fault(request) -> Fault:
    return FAULTS[request.param]


def layer():
    return nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))


def plain_layer():
    """Returns a layer of NumPy arrays, which no mapping has seen."""
    weight = nym.NamedArray(np.ones((8, 6), np.float32), ("mlp", "embed"))
    return nym.nn.Linear(weight, None, (Embed,), (Mlp,))


def error(fn, *args) -> str:
    with pytest.raises(ValueError, match="axis") as caught:
        fn(*args)
    return str(caught.value)


def test_what_shards_a_tree_names_the_leaf(mesh, fault):
    mapping, text = fault
    tree = {"layers": [plain_layer()]}
    where = "['layers'][0].weight: "
    assert error(nym.shard, tree, mapping) == where + text
    assert error(jax.jit(lambda x: nym.shard(x, mapping)), tree) == where + text
    assert error(jax.vmap(lambda _: nym.shard(tree, mapping)), jnp.ones(2)) == where + text
    assert error(nym.shard, jax.eval_shape(lambda: tree), mapping) == where + text
    with nym.axis_mapping(mapping):
        assert error(nym.auto_sharded, tree) == where + text
        assert error(jax.jit(nym.auto_sharded), tree) == where + text


def test_a_compiled_function_names_the_argument_or_the_leaf_of_the_result(mesh, fault):
    mapping, text = fault
    tree = {"layers": [plain_layer()]}
    by_position = nym.named_jit(lambda model: model, in_axis_resources=mapping)
    assert error(by_position, tree) == "['args'][0]['layers'][0].weight: " + text
    assert error(lambda: by_position(model=tree)) == "['kwargs']['model']['layers'][0].weight: " + text
    for fn in (
        nym.named_jit(lambda x: x, mapping),
        nym.named_jit(lambda x: x, out_axis_resources=mapping),
        nym.axis_mapping(mapping)(nym.named_jit(lambda x: x)),
    ):
        assert error(fn, tree) == "['layers'][0].weight: " + text


def test_what_makes_one_array_says_the_same(mesh, fault):
    mapping, text = fault
    made = [
        lambda: nym.zeros((Mlp, Embed)),
        lambda: nym.random.normal(jax.random.key(0), (Mlp, Embed)),
        layer,
        lambda: nym.pspec_for_axis((Mlp, Embed)),
        lambda: nym.sharding_for_axis((Mlp, Embed)),
    ]
    with nym.axis_mapping(mapping):
        for make in made:
            assert error(make) == text
        for make in made[:3]:
            assert error(jax.eval_shape, make) == text
            assert error(nym.named_jit(make)) == text


def test_a_layer_in_use_says_the_same(mesh, fault):
    mapping, text = fault
    model, x = plain_layer(), nym.ones({"batch": 2, "embed": 6})
    with nym.axis_mapping(mapping):
        assert error(model, x) == text
        assert error(jax.eval_shape, model, x) == text


def test_the_same_on_an_abstract_mesh(mesh, fault):
    mapping, text = fault
    x = jax.eval_shape(plain_layer).weight
    assert error(nym.shard, x, mapping, mesh.abstract_mesh) == text
    with jax.set_mesh(None), jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        assert error(nym.shard, x, mapping) == text
        assert error(nym.named_jit(lambda x: x, mapping).eval_shape, x) == text
        assert error(nym.named_jit(lambda x: x, in_axis_resources=mapping).trace, x) == "['args'][0]: " + text


def test_uneven_axes_stay_whole_on_request_everywhere(mesh):
    mapping = nym.AxisMapping({"embed": "data", "mlp": "model"}, uneven="replicate")
    model = plain_layer()
    assert nym.shard(model, mapping).weight.sharding.spec == P("model", None)
    with nym.axis_mapping(mapping):
        x = nym.zeros((Mlp, Embed))
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, P("model", None)), 2)
        assert nym.named_jit(lambda x: x * 2)(x).sharding.is_equivalent_to(x.sharding, 2)
        assert layer().weight.sharding.is_equivalent_to(x.sharding, 2)
    fn = nym.named_jit(lambda model: model.weight * 2, in_axis_resources=mapping, out_axis_resources=mapping)
    assert fn(model).sharding.is_equivalent_to(x.sharding, 2)


NAMES = ("alpha", "bravo", "charlie", "delta")
MESH_AXES = ("x", "y", "z")
KNOWN = ("is mapped to mesh axis", "are both mapped to mesh axis", "does not divide; the next size that fits is")


@st.composite
def meshes(draw):
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    kinds = draw(st.lists(st.sampled_from([AxisType.Auto, AxisType.Explicit]), min_size=3, max_size=3))
    return AbstractMesh(tuple(sizes), MESH_AXES[: len(sizes)], axis_types=tuple(kinds[: len(sizes)]))


@st.composite
def arrays(draw):
    names = draw(st.permutations(NAMES))[: draw(st.integers(0, 4))]
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 4, 6, 8, 12, 24]), min_size=len(names), max_size=len(names)))
    return nym.NamedArray(jax.ShapeDtypeStruct(tuple(sizes), np.float32), names)


spec_values = st.none() | st.sampled_from([*MESH_AXES, "w"]) | st.lists(st.sampled_from(MESH_AXES), unique=True)
mappings = st.builds(
    nym.AxisMapping,
    st.dictionaries(st.sampled_from(NAMES), spec_values),
    uneven=st.sampled_from(["error", "replicate"]),
)


def expected(x, mapping, mesh) -> bool:
    """Tells whether the array can be sharded as the mapping says, by the definition."""
    used = []
    for name, size in x.shape.items():
        axes = mapping.mesh_axes(name)
        if not set(axes) <= set(mesh.axis_names):
            return False
        even = size % int(np.prod([mesh.shape[axis] for axis in axes], initial=1)) == 0
        if not even and mapping.uneven == "error":
            return False
        used += axes if even else ()
    return len(used) == len(set(used))


@given(x=arrays(), mapping=mappings, mesh=meshes())
@settings(max_examples=200)
def test_a_spec_is_valid_or_one_of_the_errors(x, mapping, mesh):
    try:
        sharding = nym.sharding_for_axis(x.axes, mapping, mesh)
    except ValueError as found:
        assert any(text in str(found) for text in KNOWN)
        assert error(nym.shard, x, mapping, mesh) == str(found)
        assert not expected(x, mapping, mesh)
        return
    assert expected(x, mapping, mesh)
    assert nym.shard(x, mapping, mesh).array.sharding == sharding == NamedSharding(mesh, sharding.spec)
    assert len(sharding.spec) == x.ndim
    for size, part, name in zip(x.shape, sharding.shard_shape(tuple(x.shape)), x.names, strict=True):
        parts = int(np.prod([mesh.shape[axis] for axis in mapping.mesh_axes(name)], initial=1))
        assert part == (size if size % parts else size // parts)

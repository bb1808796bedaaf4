"""What `validate_partition_specs` finds: what JAX refuses, all of it, each with its path, and nothing else."""

from typing import Any

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as nym


def problems(tree: Any, specs: Any) -> list[str]:
    """What is wrong with specs on the mesh in force."""
    return nym.ShardingAnalyzer().validate_partition_specs(tree, specs)


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        P(),
        P("data"),
        P(None, "model"),
        P(("data", "model")),
        P(("model",), ("data",)),
        P((), None),
        NamedSharding(AbstractMesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2), P("model")),
    ],
    ids=str,
)
def test_what_jax_takes_has_no_problems(auto_mesh, spec):
    with jax.set_mesh(auto_mesh):
        assert problems({"weight": shape(8, 4)}, {"weight": spec}) == []


ONE_ARRAY = [
    (P("data", None, "model"), "P('data', None, 'model') has 3 entries, the array (8, 6) has 2 dimensions; "),
    (P(None, None, None), "has 3 entries, the array (8, 6) has 2 dimensions; leave out the last"),
    (P("modle"), "dimension 0: no mesh axis 'modle' in (data: 4, model: 2); did you mean 'model'?"),
    (P("model", "model"), "mesh axis 'model' shards both dimension 0 and dimension 1; leave it out of one"),
    (P(("model", "model")), "mesh axis 'model' shards dimension 0 twice; leave it out of one"),
    (
        P(None, "data"),
        "dimension 1 has size 6, which is not divisible by mesh axis 'data' of size 4; the next size",
    ),
    (P(None, ("data", "model")), "not divisible by mesh axis 'data' of size 4 x 'model' of size 2; the next size"),
    (P(3), "dimension 0: an entry is a name of a mesh axis, a tuple of names, or None, not 3"),
    (P(("data", None)), "dimension 0: an entry is a name of a mesh axis, a tuple of names, or None, not None"),
    (P(unreduced={"stage"}), "unreduced: no mesh axis 'stage' in (data: 4, model: 2)"),
    ("data", "a string is not a spec; write P('data')"),
    (("data", None), "`tuple` is not a spec; write P('data', None)"),
    (["data"], "`list` is not a spec; write P('data')"),
    (3, "`int` is not a spec; give a `PartitionSpec`, or None to replicate it"),
    ({"a": P()}, "`dict` is not a spec; give a `PartitionSpec`"),
    (np.ones(2), "`ndarray` is not a spec"),
    (jax.ShapeDtypeStruct((), "int32"), "`ShapeDtypeStruct` is not a spec"),
]


@pytest.mark.parametrize(("spec", "message"), ONE_ARRAY, ids=[str(number) for number in range(len(ONE_ARRAY))])
def test_each_problem_is_said_with_its_path(mesh, spec, message):
    (problem,) = problems({"head": {"weight": shape(8, 6)}}, {"head": {"weight": spec}})
    assert problem.startswith("['head']['weight']: ")
    assert message in problem


def test_the_next_size_that_fits_is_named(mesh):
    assert problems(shape(6), P("data")) == [
        "dimension 0 has size 6, which is not divisible by mesh axis 'data' of size 4; the next size that fits is 8"
    ]


def test_all_problems_of_one_spec_are_said(mesh):
    result = problems(shape(7, 6), P("modle", "data", 5))
    message = ("3 entries", "'modle'", "size 6", "not 5")
    assert [part in problem for part, problem in zip(message, result, strict=True)] == [True] * 4


def test_a_mesh_axis_that_is_there_three_times_is_said_once(mesh):
    assert len(problems(shape(8), P(("model", "model", "model")))) == 1


def test_two_bad_layers_give_two_strings(mesh):
    layer = {"weight": shape(7, 6)}
    result = problems([layer, layer], [{"weight": P("data")}, {"weight": P("data")}])
    assert [problem.split(":")[0] for problem in result] == ["[0]['weight']", "[1]['weight']"]


def test_axes_with_names_are_called_by_them(mesh):
    x = nym.ones({"batch": 8, "embed": 6})
    (problem,) = problems({"x": x}, {"x": P("model", "model")})
    pair = "both axis 'batch' and axis 'embed'"
    assert problem == f"['x']: mesh axis 'model' shards {pair}; leave it out of one of the entries"


def test_a_named_array_takes_one_spec_or_one_in_its_place(mesh):
    x = nym.ones({"batch": 8, "embed": 6})
    assert problems([x, x], [P("data"), jax.tree.map(lambda _: P("data"), x)]) == []
    assert len(problems([x, x], [P(None, "data"), jax.tree.map(lambda _: P(None, "data"), x)])) == 2


def test_the_axes_of_a_declared_field_are_called_by_their_names(mesh):
    class Layer(eqx.Module):
        weight: jax.Array = nym.field(axis_names=("embed", "mlp"))

    (problem,) = problems(Layer(jnp.ones((8, 6))), P(None, "data"))
    assert problem.startswith(".weight: axis 'mlp' has size 6")


def test_one_spec_stands_for_all_below_it(mesh):
    tree = {"a": [shape(8), shape(6)], "b": (shape(4), None, "relu")}
    result = problems(tree, {"a": P("data"), "b": P("data")})
    assert [problem.split(":")[0] for problem in result] == ["['a'][1]"]
    assert len(problems(tree, P("data"))) == 1
    assert problems(tree, None) == []


def test_leaves_that_are_no_arrays_need_no_spec(mesh):
    tree = {"x": shape(8), "fn": len, "name": "relu", "rate": 0.1, "none": None, "key": jax.random.key(0)}
    assert problems(tree, {**tree, "x": P("data"), "key": P()}) == []
    assert problems(tree, {"x": P("data"), "key": None}) == []
    assert problems(tree, jax.tree.map(lambda _: P(), tree)) == []


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"a": P()}, ["['b']: no spec is given for it; add one, or None to replicate it"]),
        ({"a": P(), "b": {}}, ["['b']['w']: no spec is given for it; add one, or None to replicate it"]),
        ({"a": P(), "b": P(), "bb": P()}, ["['bb']: a spec is given for it, and the tree has no such part; did you"]),
        ({"a": P(), "b": [P()]}, ["['b']: the specs have a list where the tree has a dict; use the same, or one spec"]),
        ([P(), P()], ["the specs have a list where the tree has a dict; use the same, or one spec for all arrays in"]),
        ("data", ["a string is not a spec; write P('data')"]),
        (("data", None), ["`tuple` is not a spec; write P('data', None)"]),
        ({"a": {"w": P()}, "b": P()}, ["['a']: `dict` is not a spec; give a `PartitionSpec`, or None"]),
        ({"a": P(), "b": P(), 3: P()}, ["JAX cannot flatten the tree of specs: "]),
    ],
    ids=["missing", "missing below", "extra", "list", "list at the top", "string", "tuple", "too deep", "keys"],
)
def test_specs_of_another_structure_are_said_where_they_differ(mesh, specs, message):
    result = problems({"a": shape(8), "b": {"w": shape(8)}}, specs)
    assert [problem.startswith(part) for problem, part in zip(result, message, strict=True)] == [True]


def test_a_sharding_on_another_mesh_is_a_problem(mesh):
    second = nym.create_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    (problem,) = problems(shape(8), NamedSharding(second, P("data")))
    meshes = "(data: 2, model: 2), not on (data: 4, model: 2)"
    assert problem == f"its sharding is on the mesh {meshes}; give its `PartitionSpec`"
    assert problems(shape(8), NamedSharding(mesh, P("data"))) == []
    reordered = nym.create_mesh((4, 2), ("data", "model"), devices=jax.devices()[::-1])
    (problem,) = problems(shape(8), NamedSharding(reordered, P("data")))
    assert "is on the mesh (data: 4, model: 2), of other devices or types of mesh axes; give its" in problem
    (problem,) = problems(shape(8), jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    assert problem == "`SingleDeviceSharding` is not on a mesh; give its `PartitionSpec`"


def test_what_is_left_to_the_compiler_needs_auto_axes(auto_mesh, explicit_mesh):
    spec = P(P.UNCONSTRAINED, "model")
    assert nym.ShardingAnalyzer(auto_mesh).validate_partition_specs(shape(8, 4), spec) == []
    (problem,) = nym.ShardingAnalyzer(explicit_mesh).validate_partition_specs(shape(8, 4), spec)
    assert problem == "dimension 0 is left to the compiler, which only Auto mesh axes allow, and the mesh has none"


def test_sums_that_are_still_to_be_made_need_explicit_axes(auto_mesh, explicit_mesh):
    for kind in ("unreduced", "reduced"):
        spec = P("data", **{kind: {"model"}})
        assert nym.ShardingAnalyzer(explicit_mesh).validate_partition_specs(shape(8), spec) == []
        (problem,) = nym.ShardingAnalyzer(auto_mesh).validate_partition_specs(shape(8), spec)
        assert problem == f"{kind}: mesh axis 'model' is not Explicit, and an array can be {kind} over such alone"


def test_manual_mesh_axes_are_in_no_spec(auto_mesh):
    result = []

    def inside(x):
        result.append([problems(x, P("data")), problems(x, P(None, "model"))])
        return x

    with jax.set_mesh(auto_mesh):
        part = P("data")
        jax.jit(jax.shard_map(inside, in_specs=part, out_specs=part, axis_names={"data"}))(jnp.ones((8, 4)))
    assert result[0] == [["dimension 0: mesh axis 'data' is Manual here, where no spec can name it; leave it out"], []]


def test_traced_arrays_are_checked(mesh):
    result = []
    jax.jit(lambda x: result.append(problems({"x": x}, {"x": P(None, "data")})) or x)(jnp.ones((8, 6)))
    assert [problem.startswith("['x']: dimension 1 has size 6") for problem in result[0]] == [True]


AXES = st.sampled_from(["data", "model", "one", "modle", None, 3])
ENTRIES = st.one_of(AXES, st.lists(AXES, max_size=3).map(tuple), st.just(P.UNCONSTRAINED))
SPECS = st.lists(ENTRIES, max_size=4).map(lambda entries: P(*entries))
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 16]), max_size=3).map(tuple)
TYPES = st.sampled_from([AxisType.Auto, AxisType.Explicit])


@settings(max_examples=400)
@given(SHAPES, SPECS, st.tuples(TYPES, TYPES, TYPES))
def test_an_array_has_a_problem_if_and_only_if_jax_refuses_its_spec(sizes, spec, types):
    mesh = AbstractMesh((4, 2, 1), ("data", "model", "one"), axis_types=types)
    try:
        sharding = NamedSharding(mesh, spec)
        sharding.check_compatible_aval(sizes)
        sharding.shard_shape(sizes)
        refused = False
    except Exception:
        refused = True
    tree = {"weight": jax.ShapeDtypeStruct(sizes, jnp.float32)}
    result = nym.ShardingAnalyzer(mesh).validate_partition_specs(tree, {"weight": spec})
    assert bool(result) == refused
    assert all(problem.startswith("['weight']: ") and "JAX refuses" not in problem for problem in result)


NONSENSE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), SPECS, st.just(np.ones(2))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.sampled_from("abc"), st.integers(0, 2)), inner, max_size=3),
    ),
    max_leaves=6,
)
TREES = st.recursive(
    st.one_of(SHAPES.map(lambda sizes: shape(*sizes)), st.none(), st.just("relu")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(TREES, NONSENSE)
def test_no_specs_whatever_raise_an_error(tree, specs):
    mesh = AbstractMesh((4, 2, 1), ("data", "model", "one"))
    analyzer = nym.ShardingAnalyzer(mesh)
    result = analyzer.validate_partition_specs(tree, specs)
    assert len(set(result)) == len(result)
    if specs is not None:
        report = analyzer.sharding_report(tree, specs)
        assert list(report.problems) == result
        assert len(report.leaves) == len([leaf for leaf in jax.tree.leaves(tree) if leaf != "relu"])
        assert str(report)


class Module(eqx.Module):
    w: Any
    f: str = eqx.field(static=True)


def test_specs_in_a_module_with_other_static_parts_are_a_problem(auto_mesh):
    tree = Module(jax.ShapeDtypeStruct((8,), "float32"), "relu")
    analyzer = nym.ShardingAnalyzer(auto_mesh)
    assert analyzer.validate_partition_specs(tree, Module(P("data"), "relu")) == []
    (problem,) = analyzer.validate_partition_specs(tree, Module(P("data"), "gelu"))
    assert "the specs have a `Module` whose static fields differ from the tree's; use the same" in problem

"""What cannot be sharded as the mapping says is the same error wherever it is found, and names the leaf."""

import dataclasses
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym


Mlp, Embed = nym.make_axes(mlp=8, embed=6)


class Fault(NamedTuple):
    mapping: dict
    text: str


FAULTS = {
    "unknown mesh axis": Fault(
        {"mlp": "dta"},
        "axis 'mlp' is mapped to mesh axis 'dta', which the mesh (data: 4, model: 2) does not have; the array is "
        "(mlp: 8, embed: 6); did you mean 'data'?",
    ),
    "mesh axis used twice": Fault(
        {"mlp": "model", "embed": "model"},
        "axes 'mlp' and 'embed' of (mlp: 8, embed: 6) are both mapped to mesh axis 'model'; map one of them to another "
        "mesh axis or to None",
    ),
    "uneven size": Fault(
        {"embed": "data"},
        "axis 'embed' has size 6, which mesh axis 'data' of size 4 does not divide; the next size that fits is 8 "
        "(`round_axis_for_partitioning`), or leave the axis whole with `uneven='replicate'`; the array is "
        "(mlp: 8, embed: 6)",
    ),
    "uneven size over two": Fault(
        {"embed": ("data", "model")},
        "axis 'embed' has size 6, which mesh axis 'data' of size 4 x 'model' of size 2 does not divide; the next size "
        "that fits is 8 (`round_axis_for_partitioning`), or leave the axis whole with `uneven='replicate'`; the array "
        "is (mlp: 8, embed: 6)",
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
    assert error(by_position, tree) == "model['layers'][0].weight: " + text
    assert error(lambda: by_position(model=tree)) == "model['layers'][0].weight: " + text
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
        assert error(nym.named_jit(lambda x: x, in_axis_resources=mapping).trace, x) == "x: " + text


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


@dataclasses.dataclass(frozen=True)
class Rule:
    """A fallback rule that gives every array the same spec."""

    spec: P

    def apply(self, array):
        return self.spec


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (P("dta"), "dimension 0: no mesh axis 'dta' in (data: 4, model: 2); did you mean 'data'?"),
        (P("model", "model"), "mesh axis 'model' divides both dimension 0 and dimension 1; leave it out of one of the"),
        (
            P(None, "data"),
            "dimension 1 has size 6, which mesh axis 'data' of size 4 does not divide; the next size that",
        ),
        (P(None, None, "data"), "P(None, None, 'data') has 3 entries, the array (8, 6) has 2 dimensions; leave out"),
    ],
    ids=str,
)
def test_the_spec_of_a_fallback_rule_is_checked(mesh, spec, text):
    mapping, array = nym.AxisMapping({}, fallback=Rule(spec)), np.ones((8, 6))
    for shard in (nym.shard, lambda x, mapping: jax.eval_shape(lambda x: nym.shard(x, mapping), x)):
        with pytest.raises(ValueError, match=re.escape(text)) as caught:
            shard({"a": array}, mapping)
        assert str(caught.value).startswith("['a']: the fallback rule")


@pytest.mark.parametrize(
    ("spec", "wanted"), [(P("model", "data"), P("model", None)), (P("data"), P("data")), (P(("data", "model")),) * 2]
)
def test_a_fallback_rule_leaves_uneven_axes_whole_on_request(mesh, spec, wanted):
    mapping = nym.AxisMapping({}, fallback=Rule(spec), uneven="replicate")
    assert nym.shard(np.ones((8, 6)), mapping).sharding.is_equivalent_to(NamedSharding(mesh, wanted), 2)


def test_a_fallback_rule_may_leave_axes_to_the_compiler(auto_mesh):
    mapping = nym.AxisMapping({}, fallback=Rule(P(P.UNCONSTRAINED, "model")))
    with jax.set_mesh(auto_mesh), nym.axis_mapping(mapping):
        assert '[{?}, {"model"}]' in jax.jit(nym.shard).lower(np.ones((8, 6))).as_text()


def test_what_a_fallback_rule_says_of_manual_mesh_axes_is_left_out(mesh):
    spec = P("data", "model")
    with nym.axis_mapping({}, fallback=Rule(spec)):
        both = jax.shard_map(nym.shard, in_specs=spec, out_specs=spec)
        np.testing.assert_array_equal(jax.jit(both)(nym.shard(np.ones((8, 6)))), np.ones((8, 6)))

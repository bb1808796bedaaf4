"""The fallback rule of a mapping: asked once for all plain arrays of a tree, by whatever shards."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P
from jax.tree_util import keystr

import axonym as nym
from tests.partitioning.arrays import NAMES, VALUES, Fails, Given, lies, on_auto
from tests.refusals import refusal


@dataclasses.dataclass(frozen=True)
class Rows(nym.ShardingRule):
    """Divides the first axis of all arrays."""

    axis: str = "data"

    def apply(self, pytree):
        return jax.tree.map(lambda _: P(self.axis), pytree)


class Seen(nym.ShardingRule):
    """Keeps each tree that it is applied to as pairs of path and shape, and the mesh in force."""

    def __init__(self, spec=None):
        self.spec, self.calls, self.meshes = spec, [], []

    def apply(self, pytree):
        pairs, _ = jax.tree_util.tree_flatten_with_path(pytree)
        self.calls.append([(keystr(path), leaf.shape, leaf.dtype.name) for path, leaf in pairs])
        self.meshes.append(jax.sharding.get_abstract_mesh())
        return jax.tree.map(lambda _: self.spec, pytree)


def parts(array):
    return array.sharding.shard_shape(array.shape)


PATHS = nym.PathShardingRule([("attn/weight$", P("data", "model")), ("weight$", P(None, "model")), ("norm", P())])


def layers():
    weights = {"weight": jnp.ones((8, 4)), "norm": jnp.ones(8)}
    return [{"attn": dict(weights), "mlp": dict(weights)}] * 2


@pytest.mark.parametrize(("mesh", "compiled"), [("auto", True), ("explicit", False)], indirect=["mesh"])
def test_a_rule_by_path_knows_where_each_array_is(mesh, compiled):
    tree = {"layers": layers(), "name": "model", "embed": nym.ones({"vocab": 4})}
    shard = nym.named_jit(nym.shard) if compiled else nym.shard
    with nym.axis_mapping({"vocab": "data"}, fallback=PATHS):
        result = shard(tree)
    for layer in result["layers"]:
        assert [parts(layer[name]["weight"]) for name in ("attn", "mlp")] == [(2, 2), (8, 2)]
        assert layer["attn"]["norm"].sharding.is_fully_replicated
    assert (result["name"], parts(result["embed"].array)) == ("model", (1,))


class Module(eqx.Module):
    named: nym.NamedArray
    declared: jax.Array = nym.field(axis_names=("embed",))
    plain: jax.Array
    act: object = eqx.field(static=True)
    size: int


@on_auto
def test_a_rule_is_asked_once_for_all_plain_arrays_of_a_tree(mesh):
    rule = Seen()
    mapping = nym.AxisMapping({}, fallback=rule)
    tree = {"b": [Module(nym.ones({"a": 4}), jnp.ones(8), jnp.ones((2, 3)), jnp.tanh, 3)], "a": np.ones(5, np.float32)}
    nym.shard(tree, mapping)
    nym.named_jit(lambda tree: nym.shard(tree).get("no"), mapping)(tree)
    nym.named_jit(lambda state, x: x, in_axis_resources=mapping)(tree, jnp.ones(2))
    leaves = [("['a']", (5,), "float32"), ("['b'][0].plain", (2, 3), "float32")]
    of_arguments = [(f"state{path}", *rest) for path, *rest in leaves]
    assert rule.calls == [leaves, leaves, [*of_arguments, ("x", (2,), "float32")]]


@on_auto
def test_a_custom_rule_is_asked_each_time_and_a_library_rule_once(mesh):
    rule, tree = Seen(P("data")), {"a": jnp.ones(8)}
    mapping = nym.AxisMapping({}, fallback=rule)
    first = nym.shard(tree, mapping)
    assert nym.shard(first, mapping) is first
    assert len(rule.calls) == 2
    known = nym.AxisMapping({}, fallback=nym.PathShardingRule([("a", P("model"))]))
    first = nym.shard(tree, known)
    assert nym.shard(first, known) is first
    assert [parts(nym.shard({"a": jnp.ones(size)}, known)["a"]) for size in (8, 4)] == [(4,), (2,)]


@pytest.mark.parametrize("shard", [nym.shard, nym.infer_resource_partitions, nym.explain], ids=lambda fn: fn.__name__)
def test_the_mesh_of_the_call_is_in_force_for_the_rule(shard):
    rule, mesh = Seen(P("x")), nym.create_mesh((8,), ("x",))
    with jax.set_mesh(nym.create_mesh((4, 2), ("data", "model"))):
        outside = jax.sharding.get_abstract_mesh()
        shard({"a": np.ones(8)}, nym.AxisMapping({}, fallback=rule), mesh=mesh)
        assert jax.sharding.get_abstract_mesh() == outside
    assert rule.meshes == [mesh.abstract_mesh]


@on_auto
def test_a_part_with_a_mapping_of_its_own_goes_by_the_rule_of_that(mesh):
    inner, outer = Seen(P("model")), Seen(P("data"))
    part = nym.ShardedBy({"x": jnp.ones(8)}, nym.AxisMapping({}, fallback=inner))
    tree = {"a": jnp.ones(8), "b": part, "c": jnp.ones(8), "d": nym.ShardedBy(jnp.ones(8), {"x": "data"})}
    result = nym.shard(tree, nym.AxisMapping({}, fallback=outer))
    paths = [[path for path, _, _ in call] for call in outer.calls + inner.calls]
    assert paths == [["['a']", "['c']"], ["['b'].tree['x']"]]
    assert (parts(result["a"]), parts(result["b"].tree["x"])) == ((2,), (4,))
    assert result["d"].tree is tree["d"].tree
    seen = nym.infer_resource_partitions(tree, {}, mesh=mesh)
    assert (seen["a"].spec, seen["b"].tree["x"].spec) == (P(None), P("model"))


def test_no_spec_leaves_an_array_and_an_empty_spec_replicates_it(mesh):
    array = jnp.ones(8)
    assert nym.shard(array, nym.AxisMapping({}, fallback=Seen(None))) is array
    for rule in (Seen(P()), nym.PathShardingRule([]), nym.CompositeShardingRule(Seen(None))):
        placed = nym.shard(array, nym.AxisMapping({}, fallback=rule))
        assert len(placed.sharding.device_set) == 8
        assert placed.sharding.is_fully_replicated


@pytest.mark.parametrize(
    ("mesh", "by"),
    [("auto", "in_axis_resources"), ("explicit", "out_axis_resources"), ("auto", "axis_resources")],
    indirect=["mesh"],
)
def test_a_compiled_function_shards_arguments_and_results_by_the_rule(mesh, by):
    rule = nym.PathShardingRule([("w$", P("data")), ("b$", P("model"))])
    step = nym.named_jit(lambda state, name: state, **{by: nym.AxisMapping({}, fallback=rule)})
    result = step({"w": jnp.ones((8, 2)), "b": jnp.ones(4), "none": None}, "text")
    assert (parts(result["w"]), parts(result["b"])) == ((2, 2), (2,))


@on_auto
def test_equal_rules_do_not_retrace_and_others_do(mesh):
    step, x = nym.named_jit(lambda x: x * 2), jnp.ones(8)
    for axis in ("data", "data", "model", "data"):
        with nym.axis_mapping({}, fallback=nym.CompositeShardingRule(Rows(axis), nym.PathShardingRule([("a", P())]))):
            assert parts(step(x)) == ((2,) if axis == "data" else (4,))
    assert step.trace_count == 2


@on_auto
def test_specs_shardings_and_explanation_say_what_shard_does(mesh):
    tree = {"attn": {"weight": np.ones((8, 4))}, "norm": np.ones(3), "other": [np.ones(4)], "x": nym.ones({"e": 4})}
    mapping = nym.AxisMapping({"e": "model"}, fallback=nym.CompositeShardingRule(PATHS, Rows()))
    specs = nym.pspec_for(tree, mapping)
    assert specs == {"attn": {"weight": P("data", "model")}, "norm": P(None), "other": [P("data")], "x": P("model")}
    shardings = nym.infer_resource_partitions(tree, mapping)
    assert shardings == jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    for placed, sharding in zip(*map(jax.tree.leaves, (nym.shard(tree, mapping), shardings)), strict=True):
        assert placed.sharding.is_equivalent_to(sharding, placed.ndim)
    explained = {leaf.path: leaf.spec for leaf in nym.explain(tree, mapping).leaves}
    assert [*explained] == ["['attn']['weight']", "['norm']", "['other'][0]", "['x']"]
    assert [*explained.values()] == jax.tree.leaves(specs)


@on_auto
def test_an_explanation_says_what_decided(mesh):
    rule = nym.CompositeShardingRule(PATHS, Rows())
    tree = {"attn": {"weight": jnp.ones((8, 4))}, "other": jnp.ones(8)}
    attn, other = nym.explain(tree, nym.AxisMapping({}, fallback=rule)).leaves
    pattern = "the pattern 'attn/weight$' of a `PathShardingRule`"
    assert [axis.why for axis in attn.axes] == [f"{pattern}: 'data'", f"{pattern}: 'model'"]
    assert [axis.why for axis in other.axes] == ["the rule `Rows`: 'data'"]
    (alone,) = nym.explain(tree["other"], nym.AxisMapping({}, fallback=Rows())).leaves
    assert (alone.axes[0].decision, alone.axes[0].why) == ("rule", "the rule `Rows`: 'data'")
    (nothing,) = nym.explain(tree["other"], nym.AxisMapping({}, fallback=PATHS)).leaves
    assert nothing.spec == P(None)
    assert nothing.axes[0].why.startswith("the rule `PathShardingRule` has no spec for it: replicated; ")


def test_without_a_mesh_specs_are_what_the_rule_says():
    tree = {"w": jnp.ones((8, 4))}
    by_path = nym.AxisMapping({}, fallback=nym.PathShardingRule([("w", P("x"))]))
    assert nym.pspec_for(tree, by_path) == {"w": P("x", None)}
    with refusal("['w']: the fallback rule `Given` gives P('x', 'y') for shape (8,): P('x', 'y') has 2"):
        nym.pspec_for({"w": jnp.ones(8)}, nym.AxisMapping({}, fallback=Given(P("x", "y"))))


CALLS = [nym.shard, nym.pspec_for, nym.infer_resource_partitions, nym.named_jit(nym.shard)]


@on_auto
@pytest.mark.parametrize("call", CALLS, ids=["shard", "pspec_for", "infer", "jit"])
def test_errors_of_a_rule_name_the_rule_and_those_about_one_array_that(mesh, call):
    tree = {"a": jnp.ones(8), "b": jnp.ones(6)}
    with nym.axis_mapping({}, fallback=Fails(ValueError("the limit is 5 bytes"))):
        with refusal("the fallback rule `Fails`: the limit is 5 bytes"):
            call(tree)
    with pytest.raises(KeyError, match="missing") as caught, nym.axis_mapping({}, fallback=Fails(KeyError("missing"))):
        call(tree)
    assert "The fallback rule `Fails` raises this." in caught.value.__notes__
    text = "['b']: the pattern 'b' of a `PathShardingRule` gives P('data',) for shape (6,): dimension 0 has size 6"
    with nym.axis_mapping({}, fallback=nym.PathShardingRule([("b", P("data"))])):
        for _ in range(2):
            with refusal(text):
                call(tree)


@on_auto
def test_uneven_axes_stay_whole_where_mapping_or_rule_says_so(mesh):
    spec, x = P("data", "model"), jax.ShapeDtypeStruct((6, 8), jnp.float32)
    for by_mapping, by_rule in (("replicate", "error"), ("error", "replicate")):
        rule = nym.ShapeBasedShardingRule({(None, None): spec}, uneven=by_rule)
        assert nym.shard(x, nym.AxisMapping({}, fallback=rule, uneven=by_mapping)).sharding.spec == P(None, "model")


@on_auto
def test_an_explanation_lists_an_error_of_a_rule_once(mesh):
    tree, mapping = {"a": jnp.ones(8), "b": jnp.ones(6)}, nym.AxisMapping({}, fallback=Fails(ValueError("no")))
    explanation = nym.explain(tree, mapping)
    assert [leaf.error for leaf in explanation.problems] == ["the fallback rule `Fails`: no"] * 2
    assert str(explanation).count("the fallback rule `Fails`: no") == 1


@on_auto
def test_an_answer_that_does_not_fit_the_tree_is_an_error(mesh):
    tree = [jnp.ones(8), jnp.ones(8)]
    text = (
        "the fallback rule `Given`: the rule `Given` returns a tree of another structure than that of the tree it is "
    )
    with refusal(text):
        nym.shard(tree, nym.AxisMapping({}, fallback=Given(P("data"), for_tree=True)))
    with refusal("A fallback rule gives a `PartitionSpec` or None; `Given` gives 'data'.", TypeError):
        nym.shard(tree, nym.AxisMapping({}, fallback=Given("data")))


def test_inside_shard_map_manual_mesh_axes_are_left_out(mesh):
    seen = []

    def inner(x):
        seen.append(
            nym.pspec_for({"a": x}, nym.AxisMapping({}, fallback=nym.PathShardingRule([("a", P(("data", "model")))])))
        )
        return nym.shard({"a": x}, nym.AxisMapping({}, fallback=nym.AutoShardingRule()))["a"]

    x = jax.device_put(jnp.ones((16, 2)), NamedSharding(mesh, P("data")))
    jax.jit(jax.shard_map(inner, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}))(x)
    assert seen == [{"a": P("model", None)}]


@on_auto
def test_a_rule_uses_the_mesh_given_rather_than_the_active_one(mesh):
    large = AbstractMesh((16, 16), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    tree = {"attn": {"w": jax.ShapeDtypeStruct((256, 256), "float32")}}
    rules = [nym.PathShardingRule({"attn/w$": P("data", "model")})]
    for own in (None, large):
        rules += [nym.AutoShardingRule(own), nym.CompositeShardingRule(nym.RoleShardingRule(own))]
    for rule in rules:
        sharded = nym.shard(tree, nym.AxisMapping({}, fallback=rule), large)
        assert sharded["attn"]["w"].sharding == NamedSharding(large, P("data", "model"))
    uneven = nym.PathShardingRule({"w": P("data", "model")}, uneven="replicate")
    narrow = {"w": jax.ShapeDtypeStruct((256, 8), "float32")}
    sharded = nym.shard(narrow, nym.AxisMapping({}, fallback=uneven), large)
    assert sharded["w"].sharding.spec == P("data", None)


@on_auto
@pytest.mark.parametrize(("sizes", "shown"), [((8,), "data: 8"), ((2, 4), "data: 2, model: 4")], ids=str)
def test_a_rule_made_for_another_mesh_is_an_error_that_names_both(mesh, sizes, shown):
    rule = nym.AutoShardingRule(nym.create_mesh(sizes, ("data", "model")[: len(sizes)]))
    text = f"the rule `AutoShardingRule` was made for mesh ({shown}), the mesh here is (data: 4, model: 2); leave out"
    for each in (rule, nym.CompositeShardingRule(rule)):
        with refusal(text):
            nym.shard({"w": jnp.ones((8, 8))}, nym.AxisMapping({}, fallback=each))


@on_auto
def test_what_jax_holds_no_arrays_of_is_left_alone(mesh):
    dtypes = {
        "text": "U1",
        "objects": object,
        "dates": "M8[D]",
        "records": [("a", "f4")],
        "no gradient": jax.dtypes.float0,
    }
    others = {name: np.zeros(8, dtype) for name, dtype in dtypes.items()}
    others |= {"one text": np.str_("a"), "long": np.ones(8, np.longdouble)}
    arrays = {name: np.ones(8, name) for name in ("float32", "bool")} | {"int4": np.ones(8, jnp.int4)}
    mapping = nym.AxisMapping({}, fallback=nym.AutoShardingRule())
    placed = nym.shard(arrays | others, mapping)
    assert all(placed[key] is other for key, other in others.items())
    assert all(placed[key].sharding.spec == P(("data", "model")) for key in arrays)
    assert [leaf.path for leaf in nym.explain(arrays | others, mapping).leaves] == [
        f"['{key}']" for key in sorted(arrays)
    ]
    assert nym.MeshPartitionHelper(mesh).analyze_pytree(arrays | others) == {(8,): [("data", "model")]}


@on_auto
def test_a_rule_warns_each_time(mesh):
    mapping = nym.AxisMapping({}, fallback=nym.MemoryConstrainedShardingRule(1, on_excess="warn"))
    for _ in range(3):
        with pytest.warns(RuntimeWarning, match="sharded as far as the mesh allows") as caught:
            nym.shard(np.ones((8, 4), np.float32), mapping)
        assert [warning.filename for warning in caught] == [__file__]


def test_unconstrained_dimensions_stay_as_they_are_outside_jit(auto_mesh):
    spec = P(P.UNCONSTRAINED, "data")
    mapping = nym.AxisMapping({}, fallback=nym.PathShardingRule({"w": spec}))
    whole = {"w": jnp.ones((8, 8))}
    divided = {"w": jax.device_put(whole["w"], NamedSharding(auto_mesh, P(("model", "data"), None)))}
    with jax.set_mesh(auto_mesh):
        for tree, wanted in ((whole, P(None, "data")), (divided, P("model", "data"))):
            assert nym.shard(tree, mapping)["w"].sharding.spec == wanted
            assert nym.explain(tree, mapping).leaves[0].spec == wanted
            assert nym.infer_resource_partitions(tree, mapping, False)["w"].spec == wanted
            assert nym.MeshPartitionHelper(auto_mesh).shard_array(tree["w"], spec).sharding.spec == wanted
        placed = nym.shard(whole, mapping)
        assert nym.shard(placed, mapping)["w"] is placed["w"]
        assert nym.shard(jax.eval_shape(lambda: whole), mapping)["w"].sharding.shard_shape((8, 8)) == (8, 2)


class Unlike(nym.AutoShardingRule):
    """Decides by something else than its base: the values."""

    def apply(self, pytree):
        return jax.tree.map(lambda x: P("data") if np.asarray(x)[0] else P(), pytree)


@on_auto
def test_a_subclass_of_a_library_rule_is_asked_each_time(mesh):
    mapping = nym.AxisMapping({}, fallback=Unlike())
    found = nym.shard([np.ones(8), np.zeros(8)], mapping), nym.shard([np.zeros(8), np.ones(8)], mapping)
    assert [[x.sharding.spec for x in one] for one in found] == [[P("data"), P()], [P(), P("data")]]


class Otherwise(nym.RoleShardingRule):
    """Decides in another way, so that the roles are not its reasons."""

    def apply(self, pytree):
        return jax.tree.map(lambda _: P("model"), pytree)


@on_auto
def test_a_rule_explains_which_part_of_it_decides(mesh):
    def why(rule):
        tree = {"q_proj": jnp.ones((8, 8)), "table": jnp.ones((8, 8))}
        leaves = nym.explain(tree, nym.AxisMapping({}, fallback=rule)).leaves
        return [leaf.axes[0].why.partition(":")[0] for leaf in leaves]

    column = "`RoleShardingRule`, the role 'column'"
    assert why(nym.RoleShardingRule())[0] == column
    assert why(nym.CompositeShardingRule(nym.RoleShardingRule(), Rows()))[0] == column
    assert why(Otherwise()) == ["the rule `Otherwise`"] * 2


# Rules of one method, which are asked for each array.


@dataclasses.dataclass(frozen=True)
class EachArray:
    """Gives every array the same spec."""

    spec: P

    def apply(self, array):
        return self.spec


class FirstAxis:
    """Divides the first axis of what has one, and keeps the shapes that it was asked for."""

    def __init__(self):
        self.seen = []

    def apply(self, array):
        self.seen.append(array.shape)
        return P("data") if array.shape else None


class Declared(eqx.Module):
    weight: jax.Array = nym.field(axis_names=("batch", "embed"))
    other: jax.Array


@pytest.mark.parametrize(("mesh", "compiled"), [("auto", True), ("explicit", False)], indirect=["mesh"])
def test_the_fallback_rule_places_plain_arrays(mesh, compiled):
    rule = FirstAxis()
    mapping = nym.AxisMapping({"batch": "model"}, fallback=rule)
    tree = {"a": jnp.ones((4, 3)), "b": jnp.ones(()), "named": nym.named(VALUES, NAMES)}
    tree["declared"] = Declared(jnp.asarray(VALUES), jnp.ones(8))
    shard = jax.jit(lambda x: nym.shard(x, mapping)) if compiled else lambda x: nym.shard(x, mapping)
    result = shard(tree)
    assert lies(result["a"], "data", None)
    assert lies(result["named"], "model", None)
    assert lies(result["declared"].weight, "model", None)
    assert lies(result["declared"].other, "data")
    assert sorted(rule.seen) == [(), (4, 3), (8,)]


@on_auto
def test_the_spec_of_a_fallback_rule_is_checked_by_dimension(mesh):
    mapping, tree = nym.AxisMapping({}, fallback=EachArray(P(None, "data"))), {"a": np.ones((8, 6))}
    text = r"^\['a'\]: the fallback rule .*: dimension 1 has size 6, which is not divisible by mesh axis 'data'"
    for shard in (nym.shard, lambda tree, mapping: jax.eval_shape(lambda tree: nym.shard(tree, mapping), tree)):
        with pytest.raises(ValueError, match=text):
            shard(tree, mapping)


def test_a_fallback_rule_may_leave_axes_to_the_compiler(auto_mesh):
    mapping = nym.AxisMapping({}, fallback=EachArray(P(P.UNCONSTRAINED, "model")))
    with jax.set_mesh(auto_mesh), nym.axis_mapping(mapping):
        assert '[{?}, {"model"}]' in jax.jit(nym.shard).lower(np.ones((8, 6))).as_text()


EMBED, HIDDEN = 16, 32


class Features(nnx.Module):
    """Two layers of Flax around a norm."""

    def __init__(self, rngs):
        self.up = nnx.Linear(EMBED, HIDDEN, rngs=rngs)
        self.norm = nnx.LayerNorm(HIDDEN, rngs=rngs)
        self.down = nnx.Linear(HIDDEN, EMBED, rngs=rngs)

    def __call__(self, x):
        return self.down(nnx.gelu(self.norm(self.up(x))))


def shard_states(*modules):
    for module in modules:
        nnx.update(module, nym.shard(nnx.state(module)))


def test_a_flax_module_that_is_sharded_in_each_step_compiles_once(auto_mesh):
    """The recipe of `docs/rules.md`; without its last line, the compiler's own shardings compile a second step."""

    @nnx.jit
    def step(model, optimizer, x, y):
        loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
        optimizer.update(model, gradients)
        shard_states(model, optimizer)
        return loss

    def note(event, seconds, **_):
        compiled.append(event) if event == "/jax/core/compile/backend_compile_duration" else None

    with jax.set_mesh(auto_mesh), nym.axis_mapping({}, fallback=nym.RoleShardingRule()):
        model = Features(nnx.Rngs(4))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        shard_states(model, optimizer)
        before = jax.tree.map(lambda leaf: leaf.sharding, nnx.state((model, optimizer)))
        batch = jax.device_put((np.ones((8, EMBED), np.float32), np.zeros((8, EMBED), np.float32)), P("data"))
        compiled, counts = [], []
        jax.monitoring.register_event_duration_secs_listener(note)
        try:
            for _ in range(3):
                step(model, optimizer, *batch)
                counts.append(len(compiled))
        finally:
            jax.monitoring.unregister_event_duration_listener(note)
        after = jax.tree.map(lambda leaf: leaf.sharding, nnx.state((model, optimizer)))
    assert counts == [1, 1, 1]
    assert before == after

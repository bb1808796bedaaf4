"""`shard`: one call for concrete and traced arrays, shapes and whole trees, which moves only what has to move.

What a mapping asks for is done, is an error, or is warned of. It is never left out without a word.
"""

import copy
import dataclasses
import math
import pickle
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as nym
from tests.partitioning.arrays import NAMES, VALUES, array, assert_close, on_auto, on_explicit
from tests.refusals import refusal


MAPPING = {"batch": "data", "embed": "model"}
DATA, MODEL = {"batch": "data"}, {"embed": "model"}
Batch, Embed = nym.make_axes(batch=8, embed=4)
SHAPE = nym.NamedArray(jax.ShapeDtypeStruct((8, 4), np.float32), NAMES)


@pytest.fixture
def device_puts(monkeypatch):
    """The arguments of each call of `jax.device_put`."""
    calls, real = [], jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda *args, **kwargs: calls.append(args) or real(*args, **kwargs))
    return calls


def lies(array, mesh, *spec) -> bool:
    return array.sharding.is_equivalent_to(NamedSharding(mesh, P(*spec)), array.ndim)


@pytest.fixture(params=["outside", "inside"])
def run(request):
    """Calls a function as it is, or compiled by `jax.jit`."""
    return (lambda fn, *args: fn(*args)) if request.param == "outside" else lambda fn, *args: jax.jit(fn)(*args)


@pytest.mark.parametrize(
    "make",
    [
        lambda: jnp.asarray(VALUES),
        lambda: VALUES,
        lambda: jax.device_put(VALUES, jax.devices()[3]),
        lambda: jax.device_put(VALUES, NamedSharding(nym.create_mesh((2, 4), ("x", "y")), P("y"))),
    ],
    ids=["uncommitted", "NumPy", "committed to another device", "on another mesh"],
)
def test_concrete_arrays_are_moved(mesh, make):
    x = nym.NamedArray(make(), NAMES)
    for y in (nym.shard(x, MAPPING), nym.shard_with_axis_mapping(x, MAPPING), nym.shard(x, MAPPING, mesh)):
        assert y.sharding == NamedSharding(mesh, P("data", "model"))
        assert y.names == NAMES
        np.testing.assert_array_equal(np.asarray(y), VALUES)


@on_auto
def test_mapping_and_mesh_are_those_given_or_in_force(mesh):
    x = array()
    with nym.axis_mapping(MAPPING):
        assert nym.shard(x).sharding.spec == nym.auto_sharded(x).sharding.spec == P("data", "model")
        assert nym.shard(x, {"embed": "data"}).sharding.spec == P(None, "data")
        assert nym.shard(nym.shard(x), {}).sharding.is_fully_replicated
        with jax.set_mesh(None):
            assert nym.shard(x, mesh=mesh).sharding == NamedSharding(mesh, P("data", "model"))
            assert nym.auto_sharded(x, mesh).sharding == NamedSharding(mesh, P("data", "model"))


def test_traced_arrays_and_constants_are_constrained(mesh, device_puts):
    x, constant = nym.named(VALUES, NAMES), nym.NamedArray(VALUES, NAMES)

    @jax.jit
    def f(x):
        return nym.shard(x * 2, MAPPING), nym.shard(constant, {"batch": "data"}), nym.shard(constant, MAPPING, mesh)

    one, two, three = f(x)
    assert lies(one, mesh, "data", "model")
    assert lies(two, mesh, "data", None)
    assert lies(three, mesh, "data", "model")
    assert not device_puts


def test_a_constant_that_is_in_place_outside_is_constrained_inside(mesh):
    x = nym.shard(nym.NamedArray(VALUES, NAMES), MAPPING)
    for given in (None, mesh):
        assert lies(jax.jit(lambda given=given: nym.shard(x, MAPPING, given))(), mesh, "data", "model")


@pytest.mark.parametrize(("mesh", "compiled"), [("auto", True), ("explicit", False)], indirect=["mesh"])
def test_under_vmap_the_names_still_mean_their_own_axes(mesh, compiled):
    def f(row):
        row = nym.named(row, "batch")
        return nym.shard(row * 2, {"batch": "data"}).array

    f = jax.vmap(f, in_axes=1)
    y = (jax.jit(f) if compiled else f)(jnp.asarray(VALUES))
    assert lies(y, mesh, None, "data")
    np.testing.assert_array_equal(y, 2 * VALUES.T)


def test_a_named_vmap_keeps_its_own_axis_sharded(mesh):
    with nym.axis_mapping(MAPPING):
        x = nym.shard(nym.NamedArray(VALUES, NAMES))
        y = nym.vmap(lambda row: nym.shard(row * 2), "batch")(x)
    assert y.names == NAMES
    assert lies(y, mesh, "data", "model")


@on_explicit
def test_shapes_get_the_sharding(mesh, device_puts):
    x = nym.NamedArray(jax.ShapeDtypeStruct((8, 4), np.float32), NAMES)
    inside = []
    jax.jit(lambda: inside.append(nym.shard(x, MAPPING)))()
    for y in (nym.shard(x, MAPPING), nym.shard(x, MAPPING, mesh)):
        assert y.array == jax.ShapeDtypeStruct((8, 4), np.float32, sharding=NamedSharding(mesh, P("data", "model")))
    assert inside[0].array.sharding.spec == P("data", "model")
    again = nym.shard(y, {"batch": "model"})
    assert again.array.sharding == NamedSharding(mesh, P("model", None))
    assert not device_puts


@dataclasses.dataclass(frozen=True)
class Unregistered:
    weight: jax.Array = nym.field(axis_names=("batch", "embed"))  # noqa: RUF009


@on_auto
def test_other_leaves_are_left_alone(mesh):
    """Plain arrays, what is no array, and a dataclass that is no tree."""
    rest = [jnp.ones((8, 4)), VALUES, SHAPE.array, Unregistered(VALUES), 1, 2.0, "text", jnp.sin, np.dtype("float32")]
    result = nym.shard({"rest": rest, "named": array(), "none": None}, MAPPING)
    assert all(one is other for one, other in zip(result["rest"], rest, strict=True))
    assert result["named"].sharding.spec == P("data", "model")


@on_auto
def test_what_trees_of_named_arrays_hold_besides_arrays_is_left_alone(mesh):
    x = nym.NamedArray(VALUES, NAMES)
    for part in (None, True, 3, "frozen"):
        assert nym.shard(jax.tree.map(lambda _, part=part: part, x), MAPPING).array is part
    pair = nym.shard(jax.tree.map(lambda a: (a, a + 1, 2), x), MAPPING).array
    assert lies(pair[0], mesh, "data", "model")
    assert lies(pair[1], mesh, "data", "model")
    assert pair[2] == 2


def test_random_keys_are_sharded(mesh):
    keys = nym.random.split(jax.random.key(0), nym.Axis("batch", 8))
    for sharded in (nym.shard(keys, MAPPING), jax.jit(lambda x: nym.shard(x, MAPPING))(keys)):
        assert sharded.sharding.shard_shape((8,)) == (2,)


# Without a mapping, without a mesh, and on a mesh without devices.


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (None, "`shard` has no axis mapping, so nothing is sharded; use `axis_mapping`"),
        (DATA, "`shard` has no mesh, so nothing is sharded; use `jax.set_mesh`"),
    ],
    ids=["mapping", "mesh"],
)
def test_without_a_mapping_or_a_mesh_shard_warns_and_others_do_nothing(mapping, text, run):
    x = nym.NamedArray(jax.device_put(VALUES), NAMES)
    with pytest.warns(RuntimeWarning, match=re.escape(text)):
        arrays = [run(lambda x: nym.shard(x, mapping), x)]
    with nym.axis_mapping(mapping or {}):
        arrays += [run(nym.auto_sharded, x), run(lambda: nym.zeros((Batch,)))]
    assert all(len(array.sharding.device_set) == 1 for array in arrays)
    assert all(np.array_equal(array.array, VALUES) for array in arrays[:2])


def test_a_mesh_that_is_entered_without_set_mesh_is_not_active(auto_mesh):
    with pytest.warns(DeprecationWarning, match="`with mesh:`"), auto_mesh:
        with pytest.warns(RuntimeWarning, match="`shard` has no mesh"):
            assert nym.shard(array(), DATA).array is VALUES
        with refusal("needs a mesh; set one with `jax.set_mesh(mesh)`"):
            nym.named_jit(lambda x: x, DATA)(array())


@on_auto
def test_without_a_mapping_or_a_mesh_auto_sharded_does_nothing(mesh):
    x = {"x": nym.named(VALUES, NAMES)}
    assert nym.auto_sharded(x) is x
    assert nym.auto_sharded(x, mesh) is x
    with jax.set_mesh(None), nym.axis_mapping(MAPPING):
        assert nym.auto_sharded(x) is x
    for mapping in ({}, MAPPING):
        with pytest.raises(
            TypeError, match=r"`auto_sharded` shards by the active mapping and takes no other; use `shard"
        ):
            nym.auto_sharded(x, mapping)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("kind", "run"), [(AxisType.Auto, jax.eval_shape), (AxisType.Explicit, lambda fn: fn())])
def test_a_mesh_without_devices_shards_shapes(kind, run):
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    seen = []
    run(lambda: seen.append(nym.shard(SHAPE, {"batch": "data"}, mesh).array.sharding))
    with jax.sharding.use_abstract_mesh(mesh), nym.axis_mapping(batch="data"):
        run(lambda: seen.append(nym.shard(SHAPE).array.sharding))
        run(lambda: seen.append(nym.auto_sharded({"x": SHAPE})["x"].array.sharding))
        run(lambda: seen.append(nym.sharding_for_axis(SHAPE.axes)))
    assert seen == [NamedSharding(mesh, P("data", None))] * 4


def test_a_mesh_without_devices_takes_no_arrays_but_lowers_constraints(auto_mesh):
    with jax.sharding.use_abstract_mesh(auto_mesh.abstract_mesh), nym.axis_mapping(DATA):
        for make in (lambda: nym.zeros((Batch,)), lambda: nym.shard(array())):
            with refusal("arrays can only be placed on a mesh with devices; on an abstract one, shard their shapes"):
                make()
        for fn in (jax.jit(lambda x: nym.shard(x * 2)), nym.named_jit(lambda x: x * 2)):
            assert '{"data"}, {}' in fn.lower(SHAPE).as_text()


# What is done before a mesh is set, and in transformations.


def test_under_vmap_and_grad_an_array_from_before_the_mesh_is_moved_to_it(mesh, run):
    with jax.set_mesh(None):
        x = nym.NamedArray(jax.device_put(VALUES), NAMES)

    def scaled(factor):
        return nym.shard(x, {"batch": "data"}).array * factor

    result = run(jax.vmap(scaled), jnp.ones(3))
    np.testing.assert_array_equal(result, np.stack([VALUES] * 3))
    assert run(jax.grad(lambda factor: scaled(factor).sum()), 2.0) == VALUES.sum()


@pytest.mark.parametrize(
    ("mesh", "transform"),
    [
        ("auto", jax.grad),
        ("explicit", jax.grad),
        ("auto", jax.checkpoint),
        ("explicit", lambda loss: lambda *x: jax.jvp(loss, x, x)[1]),
        ("explicit", lambda loss: jax.jit(jax.grad(loss))),
    ],
    indirect=["mesh"],
    ids=["grad", "grad", "checkpoint", "jvp", "jit"],
)
def test_a_layer_from_before_the_mesh_is_differentiated_outside_jit(mesh, transform):
    def loss(weight, x):
        return (nym.nn.Linear(weight, None, (Embed,), (weight.axes[0],))(x) ** 2).mean().scalar()

    with jax.set_mesh(None):
        weight, x = nym.ones({"mlp": 8, "embed": Embed.size}), nym.ones((Batch, Embed))
        expected = transform(loss)(weight, x)
    with nym.axis_mapping(batch="data", mlp="model"):
        results = transform(loss)(weight, x)
    assert_close(results, expected)


def test_a_mapping_the_wrong_way_round_gets_a_warning(auto_mesh):
    x = nym.NamedArray(np.ones((8, 4), np.float32), ("batch", "width"))
    text = (
        r"axis 'data' is mapped to mesh axis 'batch', which the mesh \(data: 4, model: 2\) does not have, but it has "
        r"'data'; a mapping goes from names to mesh axes: should 'batch' be sharded over 'data'\?"
    )
    with jax.set_mesh(auto_mesh), pytest.warns(RuntimeWarning, match=text):
        assert nym.shard(x, {"data": "batch"}).sharding.is_fully_replicated


# Fields whose names are declared.


class Scale(eqx.Module):
    weight: jax.Array = nym.field(axis_names=("batch", "embed"))
    bias: jax.Array | None = nym.field(axis_names="embed", default=None)
    other: jax.Array | None = None


class Outer(Scale):
    scales: list = dataclasses.field(default_factory=list)
    inner: Scale | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Plain:
    weight: jax.Array = nym.field(axis_names=("batch", "embed"))  # noqa: RUF009


def declared_model():
    def scale():
        return Scale(VALUES, VALUES[0], VALUES)

    return Outer(VALUES, None, VALUES, [scale(), scale()], scale()), {"plain": Plain(VALUES)}


@pytest.mark.parametrize(("mesh", "compiled"), [("auto", True), ("explicit", False)], indirect=["mesh"])
def test_fields_are_sharded_by_the_names_declared(mesh, compiled):
    shard = jax.jit(lambda x: nym.shard(x, MAPPING)) if compiled else lambda x: nym.shard(x, MAPPING)
    model, tree = shard(declared_model())
    for part in (model, *model.scales, model.inner, tree["plain"]):
        assert lies(part.weight, mesh, "data", "model")
    for part in (*model.scales, model.inner):
        assert lies(part.bias, mesh, "model")
        assert compiled or part.other is VALUES
    assert model.bias is None


@on_auto
def test_declared_names_hold_for_the_arrays_in_a_container_but_not_for_named_ones(mesh):
    model = nym.shard(Scale([VALUES, {"a": VALUES}], (VALUES[0],)), MAPPING)
    assert lies(model.weight[0], mesh, "data", "model")
    assert lies(model.weight[1]["a"], mesh, "data", "model")
    assert lies(model.bias[0], mesh, "model")
    named = Scale(nym.NamedArray(VALUES, ("embed", "pos")))
    assert nym.shard(named, MAPPING).weight.sharding.spec == P("model", None)


@on_auto
def test_a_declared_field_of_another_rank_is_an_error(mesh):
    model, _ = declared_model()
    model = eqx.tree_at(lambda model: model.scales[1].bias, model, VALUES)
    text = r"\['m'\]\.scales\[1\]\.bias: an array of shape \(8, 4\) has 2 axes, \(embed\) are declared"
    with pytest.raises(ValueError, match=text):
        nym.shard({"m": model}, MAPPING)
    with pytest.raises(ValueError, match=text):
        jax.eval_shape(lambda x: nym.shard(x, MAPPING), {"m": model})
    with pytest.raises(ValueError, match=r"x\.scales\[1\]\.bias: an array of shape"):
        nym.named_jit(lambda x: x, in_axis_resources=MAPPING)(model)


def test_arrays_that_a_tree_map_made_smaller_are_left_alone(mesh):
    """What Adafactor keeps for a parameter: sums over one of its axes, or one element in its place."""
    smaller = jax.tree.map(lambda a: a.sum(0), array())
    assert nym.shard(smaller, MAPPING).array is smaller.array
    fn = nym.named_jit(lambda x: jax.tree.map(lambda a: a.sum(0), x), MAPPING)
    np.testing.assert_array_equal(fn(array()).array, VALUES.sum(0))
    model = Scale(VALUES.sum(0), np.ones(1, np.float32), VALUES)
    assert nym.shard(model, {"embed": "data"}).weight is model.weight
    tree = {"model": model, "bias": nym.named(np.ones(1, np.float32), "embed")}
    for sharded in (nym.shard(tree, {"embed": "data"}), nym.shard(jax.eval_shape(lambda: tree), {"embed": "data"})):
        for bias in (sharded["model"].bias, sharded["bias"].array):
            assert bias.sharding.is_equivalent_to(NamedSharding(mesh, P()), 1)


class Layer(eqx.Module):
    """A layer with plain arrays whose axes are declared, one in a module of its own."""

    scale: Scale
    gain: jax.Array = nym.field(axis_names="embed")
    free: jax.Array

    @staticmethod
    def init(size, *, key):
        return Layer(Scale(jnp.ones((8, size)), None, None), jnp.ones(size), jax.random.normal(key, (size,)))


@pytest.mark.parametrize(("mesh", "compiled"), [("auto", True), ("explicit", False)], indirect=["mesh"])
def test_declared_arrays_of_stacked_layers_have_the_layer_axis_in_front(mesh, compiled):
    def shard(tree, mapping):
        return jax.jit(lambda x: nym.shard(x, mapping))(tree) if compiled else nym.shard(tree, mapping)

    Block, Outer = nym.make_axes(block=2, outer=4)
    stack = nym.nn.Stacked.init(Block, Layer)(4, key=jax.random.key(0))
    for mapping, front in ((MAPPING, None), ({"embed": "data", "block": "model"}, "model")):
        for part in (shard({"a": stack}, mapping)["a"], shard(jax.tree.map(jnp.zeros_like, stack), mapping)):
            embed = "model" if front is None else "data"
            assert lies(part.stacked.gain, mesh, front, embed)
            assert lies(part.stacked.scale.weight, mesh, front, "data" if front is None else None, embed)
    twice = nym.nn.Stacked(jax.tree.map(lambda a: jnp.stack([a] * 4), stack), Outer, False)
    assert lies(shard(twice, {"outer": "data", "embed": "model"}).stacked.stacked.gain, mesh, "data", None, "model")


@on_auto
def test_a_declared_array_of_stacked_layers_with_another_rank_is_an_error(mesh):
    stack = nym.nn.Stacked(Layer(Scale(VALUES), np.ones((2, 3, 4)), VALUES), nym.Axis("block", 2), False)
    with refusal(".stacked.gain: an array of shape (2, 3, 4) has 3 axes, (embed) or (block, embed) are declared"):
        nym.shard(stack, MAPPING)


@on_auto
def test_tree_and_mapping_swapped(mesh):
    text = "`shard` takes the tree first and the mapping second; here the mapping is first"
    given = ((MAPPING, [VALUES]), ({"batch": ("data", "model"), "embed": None}, VALUES), (nym.AxisMapping(MAPPING), {}))
    for arguments in given:
        with refusal(text, TypeError):
            nym.shard(*arguments)
    with nym.axis_mapping(MAPPING), refusal(text, TypeError):
        nym.shard(nym.current_mapping())


@on_auto
def test_a_declared_field_that_cannot_be_sharded_names_the_leaf(mesh):
    text = r"\.inner\.bias: axis 'embed' has size 4, which is not divisible by mesh axis 'data' of size 4 x 'model' of"
    model = eqx.tree_at(lambda model: model.inner.weight, declared_model()[0], np.ones((8, 8)))
    model = eqx.tree_at(lambda model: (model.weight, model.scales), model, (np.ones((8, 8)), []))
    with pytest.raises(ValueError, match=text):
        nym.shard(model, {"embed": ("data", "model")})


# What is in place is not touched.


@on_auto
def test_only_what_has_to_move_is_moved(mesh, device_puts):
    placed = nym.shard({"x": array(), "s": Scale(VALUES, VALUES[0]), "plain": jnp.ones(3)}, MAPPING)
    assert [len(moved) for moved, _ in device_puts] == [3]
    with nym.axis_mapping(MAPPING):
        assert nym.shard(placed, MAPPING) is nym.shard(placed) is nym.auto_sharded(placed) is placed
    assert len(device_puts) == 1
    result = nym.shard({**placed, "z": array()}, MAPPING)
    assert [len(moved) for moved, _ in device_puts] == [3, 1] and device_puts[1][0][0] is VALUES
    assert result["x"].array is placed["x"].array
    spelt_otherwise = jax.device_put(VALUES, NamedSharding(mesh, P(("data",))))
    assert nym.shard(nym.named(spelt_otherwise, NAMES), DATA).array is spelt_otherwise


def test_an_array_moves_between_meshes_of_two_kinds(auto_mesh, explicit_mesh):
    """The parts lie where they lay, but on an Explicit mesh the sharding is part of the type."""
    with nym.axis_mapping(MAPPING):
        for before, after in ((auto_mesh, explicit_mesh), (explicit_mesh, auto_mesh)):
            with jax.set_mesh(before):
                x = nym.shard(nym.NamedArray(VALUES, NAMES))
            with jax.set_mesh(after):
                y = nym.shard(x)
                assert y.sharding == NamedSharding(after, P("data", "model"))
                np.testing.assert_array_equal(np.asarray(y + nym.ones_like(y)), VALUES + 1)


def test_an_array_moves_from_an_explicit_mesh_to_one_device(mesh, explicit_mesh):
    with jax.set_mesh(None):
        x = nym.shard(nym.NamedArray(VALUES, NAMES), MAPPING, explicit_mesh)
        one_device = nym.create_mesh((1,), ("data",), axis_types=mesh.axis_types[0], devices=jax.devices()[:1])
        y = nym.shard(x, {"batch": "data"}, one_device)
        np.testing.assert_array_equal(np.asarray(y + 1), VALUES + 1)


def test_nothing_is_stated_twice_on_an_explicit_mesh(explicit_mesh):
    with jax.set_mesh(explicit_mesh), nym.axis_mapping(MAPPING):
        x = nym.shard(nym.NamedArray(VALUES, NAMES))
        assert "reshard" not in str(jax.make_jaxpr(lambda x: nym.shard(x * 2))(x))
        assert "reshard" in str(jax.make_jaxpr(lambda x: nym.shard(x * 2, {}))(x))


# Meshes of both kinds: each array axis is sharded over mesh axes of one type.


@pytest.fixture(scope="module")
def mixed_mesh():
    types = AxisType.Auto, AxisType.Explicit, AxisType.Auto
    return jax.make_mesh((2, 2, 2), ("x", "model", "y"), axis_types=types)


@pytest.mark.parametrize(
    "call",
    [
        lambda: nym.shard(array()),
        lambda: nym.ones((Batch, Embed)),
        lambda: nym.named_jit(lambda: array() * 2)(),
        lambda: jax.eval_shape(lambda: nym.shard(array())),
        lambda: nym.vmap(lambda row: row * 2, "batch")(array()),
        lambda: nym.pspec_for_axis(NAMES),
    ],
    ids=["shard", "create", "named_jit", "traced", "vmap", "spec"],
)
def test_an_axis_over_auto_and_explicit_mesh_axes_is_an_error(mixed_mesh, call):
    text = (
        "axis 'batch' is sharded over mesh axes 'x' (Auto) and 'model' (Explicit), a mix that JAX does not keep in "
        "compiled functions; use mesh axes of one type for it, or make both of the same type by `axis_types`"
    )
    with jax.set_mesh(mixed_mesh):
        with nym.axis_mapping({"batch": ("x", "model")}), refusal(text):
            call()
        with nym.axis_mapping({"batch": ("model", "x")}), refusal("'model' (Explicit) and 'x' (Auto), a mix that"):
            call()


@pytest.mark.parametrize(("batch", "embed"), [("x", "model"), ("model", "y"), (("x", "y"), "model"), (None, "y")])
def test_results_keep_the_spec_of_their_names(mixed_mesh, batch, embed):
    sharding = NamedSharding(mixed_mesh, P(batch, embed))
    with jax.set_mesh(mixed_mesh), nym.axis_mapping({"batch": batch, "embed": embed}):
        x = nym.shard(array())
        assert x.sharding == sharding
        results = nym.named_jit(lambda x: (x * 2, nym.vmap(lambda row: row + 1, "batch")(x), x.sum("embed")))(x)
    assert [result.sharding.is_equivalent_to(sharding, 2) for result in results[:2]] == [True, True]
    assert results[2].sharding.is_equivalent_to(NamedSharding(mixed_mesh, P(batch)), 1)


@pytest.mark.parametrize("rule", [nym.AutoShardingRule(), nym.ShapeBasedShardingRule({(8,): P(("x", "model"))})])
def test_a_rule_that_mixes_types_raises_where_the_mix_would_be_lost(mixed_mesh, rule):
    with (
        jax.set_mesh(mixed_mesh),
        nym.axis_mapping(fallback=rule),
        refusal("dimension 0 is sharded over mesh axes 'x'"),
    ):
        nym.named_jit(lambda: jnp.arange(8.0))()


@pytest.mark.parametrize("size", [3, 4])
def test_auto_sharded_has_gradients_outside_of_jit(size):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Explicit))
    with jax.set_mesh(mesh), nym.axis_mapping(nym.AxisMapping({"d": "y", "e": "x"}, uneven="replicate")):
        x = nym.shard(nym.ones({"d": size, "e": 2}))
        gradient = nym.grad(lambda x: (nym.auto_sharded(nym.concatenate("d", [x, x])) ** 2).sum())
        for compute in (gradient, nym.named_jit(gradient)):
            assert compute(x).array.tolist() == [[4.0] * 2] * size


class Deep(eqx.Module):
    layers: list

    @staticmethod
    def init(key):
        Wide, Deeper = nym.make_axes(embed=1024, mlp=2048)
        up, down = jax.random.split(key)
        return Deep([nym.nn.Linear.init(Wide, Deeper, key=up), nym.nn.Linear.init(Deeper, Wide, key=down)])


@on_auto
def test_a_model_larger_than_a_device_is_made_in_parts(mesh):
    """No buffer of a device holds a whole weight, neither a result nor anything on the way to it."""
    mapping = {"embed": "data", "mlp": "model"}
    compiled = nym.named_jit(Deep.init, mapping).lower(jax.random.key(0)).compile()
    largest = max(math.prod(map(int, dims.split(","))) for dims in re.findall(r"\[(\d[\d,]*)\]", compiled.as_text()))
    assert largest <= 1024 * 2048 // 8
    memory = compiled.memory_analysis()
    whole = 4 * 1024 * 2048
    assert memory.output_size_in_bytes < 2 * whole // 8 + 2 * 4 * 2048
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes < whole


# Axes of size 1, as the one key head of multi-query attention: replicated wherever others would be sharded.


SIZE_ONE = {"batch": "data", "heads": "model", "kv_heads": "model", "page": ("data", "model")}


def test_all_ways_to_shard_agree(mesh):
    x = nym.ones({"kv_heads": 1, "embed": 4})
    shardings = [
        nym.shard(x, SIZE_ONE).sharding,
        nym.infer_resource_partitions(x, SIZE_ONE),
        nym.named_jit(lambda: x, out_axis_resources=SIZE_ONE)().sharding,
        nym.named_jit(lambda x: x, in_axis_resources=SIZE_ONE, out_axis_resources=SIZE_ONE)(x).sharding,
        jax.jit(lambda x: nym.shard(x, SIZE_ONE))(x).sharding,
    ]
    assert all(one.is_equivalent_to(NamedSharding(mesh, P()), 2) for one in shardings)
    assert nym.pspec_for(x, SIZE_ONE) == P(None, None)
    assert nym.shard(jax.eval_shape(lambda: x), SIZE_ONE).array.sharding.spec == P(None, None)


@on_auto
def test_explain_says_why_and_reports_have_no_problem(mesh):
    x = nym.ones({"page": 1, "kv_heads": 1, "batch": 8})
    axes = nym.explain(x, SIZE_ONE).leaves[0].axes
    assert [axis.decision for axis in axes] == ["size 1", "size 1", "mapping"]
    assert axes[0].why == "'page': ('data', 'model'), but an axis of size 1 is replicated"
    assert (axes[1].mesh_axes, axes[1].parts) == ((), 1)
    rule = nym.AxisMapping(fallback=nym.PathShardingRule({".*": P("model", "data")}))
    plain = nym.explain(np.ones((1, 8), np.float32), rule).leaves[0]
    assert plain.spec == P(None, "data")
    assert plain.axes[0].decision == "size 1" and plain.axes[0].why.endswith("but an axis of size 1 is replicated")
    with nym.axis_mapping(SIZE_ONE):
        assert nym.ShardingAnalyzer(mesh).sharding_report({"x": nym.shard(x)}).problems == ()


# `ShardedBy`: parts of a tree that go by a mapping of their own.


def specs(tree):
    return [tuple(x.sharding.spec) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize(
    ("mesh", "shard"),
    [
        ("auto", lambda tree: nym.shard(tree, DATA)),
        ("explicit", lambda tree: nym.shard(tree, DATA)),
        ("auto", jax.jit(lambda tree: nym.shard(tree, DATA))),
        ("explicit", nym.named_jit(lambda tree: tree, DATA)),
        ("auto", nym.named_jit(lambda tree: tree, in_axis_resources=DATA)),
        ("explicit", lambda tree: nym.shard(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree)), DATA)),
    ],
    indirect=["mesh"],
    ids=["shard", "shard", "inside jit", "result", "argument", "shapes"],
)
def test_a_part_goes_by_its_own_mapping(mesh, shard):
    tree = [array(), nym.ShardedBy({"x": array(), "deeper": nym.ShardedBy((array(),), DATA)}, MODEL), array()]
    result = shard(tree)
    assert [[entry or None for entry in spec + (None,) * (2 - len(spec))] for spec in specs(result)] == [
        ["data", None],
        ["data", None],  # `deeper`
        [None, "model"],
        ["data", None],
    ]
    assert result[1].mapping == nym.AxisMapping(MODEL)


def test_it_is_a_tree_of_its_part(auto_mesh):
    part = nym.ShardedBy({"x": array()}, {"embed": ["model"]})
    assert jax.tree.structure(part) == jax.tree.structure(nym.ShardedBy({"x": array()}, MODEL))
    assert jax.tree.structure(part) != jax.tree.structure(nym.ShardedBy({"x": array()}, DATA))
    doubled = jax.tree.map(lambda x: 2 * x, part)
    np.testing.assert_array_equal(doubled.tree["x"].array, 2 * VALUES)
    assert doubled.mapping == part.mapping
    for other in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert jax.tree.structure(other) == jax.tree.structure(part)
    for wrong, text in ((None, "A mapping from names to mesh axes"), (3, "A mapping goes from names to mesh axes")):
        with refusal(text, TypeError):
            nym.ShardedBy(array(), wrong)
    with refusal("[0].tree['x']: axis 'embed' has size 4, which is not divisible by mesh axis 'data' of"):
        nym.shard([nym.ShardedBy({"x": array()}, {"embed": ("data", "model")})], DATA, auto_mesh)


@on_auto
def test_a_part_with_a_mapping_needs_no_other(mesh):
    """The rest stays where it is, and a warning would be wrong."""
    x = nym.NamedArray(np.ones((8, 4), np.float32), ("batch", "embed"))
    for sharded in (nym.shard, nym.auto_sharded, nym.named_jit(lambda tree: tree)):
        part, rest = sharded((nym.ShardedBy(x, {"batch": "data"}), x))
        assert part.tree.sharding.spec[0] == "data" and part.mapping == {"batch": "data"}
        assert rest.array is x.array or not any(rest.sharding.spec)

"""`shard`: one call for concrete and traced arrays, shapes and whole trees, which moves only what has to move."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import axonym as nym


MAPPING = {"batch": "data", "embed": "model"}
NAMES = ("batch", "embed")
VALUES = np.arange(32.0, dtype=np.float32).reshape(8, 4)


@pytest.fixture
def device_puts(monkeypatch):
    """The arguments of each call of `jax.device_put`."""
    calls, real = [], jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda *args, **kwargs: calls.append(args) or real(*args, **kwargs))
    return calls


def lies(array, mesh, *spec) -> bool:
    return array.sharding.is_equivalent_to(NamedSharding(mesh, P(*spec)), array.ndim)


@pytest.mark.parametrize(
    "array",
    [
        lambda: jnp.asarray(VALUES),
        lambda: VALUES,
        lambda: jax.device_put(VALUES, jax.devices()[3]),
        lambda: jax.device_put(VALUES, NamedSharding(nym.create_mesh((2, 4), ("x", "y")), P("y"))),
    ],
    ids=["uncommitted", "NumPy", "committed to another device", "on another mesh"],
)
def test_concrete_arrays_are_moved(mesh, array):
    x = nym.NamedArray(array(), NAMES)
    for y in (nym.shard(x, MAPPING), nym.shard_with_axis_mapping(x, MAPPING), nym.shard(x, MAPPING, mesh)):
        assert y.sharding == NamedSharding(mesh, P("data", "model"))
        assert y.names == NAMES
        np.testing.assert_array_equal(np.asarray(y), VALUES)


def test_the_mapping_in_force_is_the_default(mesh):
    x = nym.NamedArray(VALUES, NAMES)
    with nym.axis_mapping(MAPPING):
        assert nym.shard(x).sharding.spec == P("data", "model")
        assert nym.auto_sharded(x).sharding.spec == P("data", "model")
        assert nym.shard(x, {"embed": "data"}).sharding.spec == P(None, "data")


def test_a_mesh_can_be_given(mesh):
    x = nym.NamedArray(VALUES, NAMES)
    with jax.set_mesh(None), nym.axis_mapping(MAPPING):
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


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
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


def test_under_grad(mesh):
    x = nym.named(VALUES, NAMES)
    grads = jax.grad(lambda x: nym.shard(x * x, MAPPING).sum().array)(x)
    np.testing.assert_array_equal(np.asarray(grads), 2 * VALUES)


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


def test_other_leaves_are_left_alone(mesh):
    array, shape = jnp.ones((8, 4)), jax.ShapeDtypeStruct((8,), np.float32)
    tree = {
        "plain": array,
        "numpy": VALUES,
        "shape": shape,
        "rest": [1, 2.0, "text", None, jnp.sin, np.dtype("float32")],
        "named": nym.NamedArray(VALUES, NAMES),
    }
    result = nym.shard(tree, MAPPING)
    assert result["plain"] is array
    assert result["numpy"] is VALUES
    assert result["shape"] is shape
    assert result["rest"] == tree["rest"]
    assert result["named"].sharding.spec == P("data", "model")


def test_what_trees_of_named_arrays_hold_besides_arrays_is_left_alone(mesh):
    x = nym.NamedArray(VALUES, NAMES)
    for part in (None, True, 3, "frozen"):
        assert nym.shard(jax.tree.map(lambda _, part=part: part, x), MAPPING).array is part
    pair = nym.shard(jax.tree.map(lambda a: (a, a + 1, 2), x), MAPPING).array
    assert lies(pair[0], mesh, "data", "model")
    assert lies(pair[1], mesh, "data", "model")
    assert pair[2] == 2


def test_arrays_that_a_tree_map_made_smaller_are_left_alone(mesh):
    """Adafactor keeps such: the names are those of the parameter, the array is a sum over one of its axes."""
    x = nym.named(VALUES, NAMES)
    smaller = jax.tree.map(lambda a: a.sum(0), x)
    assert nym.shard(smaller, MAPPING).array is smaller.array
    fn = nym.named_jit(lambda x: jax.tree.map(lambda a: a.sum(0), x), MAPPING)
    np.testing.assert_array_equal(fn(x).array, VALUES.sum(0))


def test_random_keys_are_sharded(mesh):
    keys = nym.random.split(jax.random.key(0), nym.Axis("batch", 8))
    for sharded in (nym.shard(keys, MAPPING), jax.jit(lambda x: nym.shard(x, MAPPING))(keys)):
        assert sharded.sharding.shard_shape((8,)) == (2,)


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


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_fields_are_sharded_by_the_names_declared(mesh, compiled):
    shard = jax.jit(lambda x: nym.shard(x, MAPPING)) if compiled else lambda x: nym.shard(x, MAPPING)
    model, tree = shard(declared_model())
    for part in (model, *model.scales, model.inner, tree["plain"]):
        assert lies(part.weight, mesh, "data", "model")
    for part in (*model.scales, model.inner):
        assert lies(part.bias, mesh, "model")
        assert compiled or part.other is VALUES
    assert model.bias is None


@dataclasses.dataclass(frozen=True)
class Unregistered:
    weight: jax.Array = nym.field(axis_names=("batch", "embed"))  # noqa: RUF009


def test_a_dataclass_that_is_no_tree_is_left_alone(mesh):
    tree = {"x": nym.NamedArray(VALUES, NAMES), "leaf": Unregistered(VALUES)}
    assert nym.shard(tree, MAPPING)["leaf"] is tree["leaf"]
    assert nym.shard(tree["leaf"], MAPPING) is tree["leaf"]


def test_a_named_array_in_a_declared_field_goes_by_its_own_names(mesh):
    x = nym.NamedArray(VALUES, ("embed", "pos"))
    assert nym.shard(Scale(x), MAPPING).weight.sharding.spec == P("model", None)


def test_declared_names_hold_for_the_arrays_in_a_container(mesh):
    model = nym.shard(Scale([VALUES, {"a": VALUES}], (VALUES[0],)), MAPPING)
    assert lies(model.weight[0], mesh, "data", "model")
    assert lies(model.weight[1]["a"], mesh, "data", "model")
    assert lies(model.bias[0], mesh, "model")


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


def test_declared_arrays_that_a_tree_map_made_smaller_are_left_alone(mesh):
    """What Adafactor keeps for a parameter: sums over one of its axes, or one element in its place."""
    model = Scale(VALUES.sum(0), np.ones(1, np.float32), VALUES)
    assert nym.shard(model, {"embed": "data"}).weight is model.weight
    tree = {"model": model, "bias": nym.named(np.ones(1, np.float32), "embed")}
    for found in (nym.shard(tree, {"embed": "data"}), nym.shard(jax.eval_shape(lambda: tree), {"embed": "data"})):
        for one in (found["model"].bias, found["bias"].array):
            assert one.sharding.is_equivalent_to(NamedSharding(mesh, P()), 1)


class Layer(eqx.Module):
    """A layer with plain arrays whose axes are declared, one in a module of its own."""

    scale: Scale
    gain: jax.Array = nym.field(axis_names="embed")
    free: jax.Array

    @staticmethod
    def init(size, *, key):
        return Layer(Scale(jnp.ones((8, size)), None, None), jnp.ones(size), jax.random.normal(key, (size,)))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
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


def test_a_declared_array_of_stacked_layers_with_another_rank_is_an_error(mesh):
    stack = nym.nn.Stacked.init(nym.Axis("block", 2), Layer)(4, key=jax.random.key(0))
    stack = eqx.tree_at(lambda stack: stack.stacked.gain, stack, jnp.ones((2, 3, 4)))
    text = r"\.stacked\.gain: an array of shape \(2, 3, 4\) has 3 axes, \(embed\) or \(block, embed\) are declared"
    with pytest.raises(ValueError, match=text):
        nym.shard(stack, MAPPING)


@pytest.mark.parametrize(
    "tree", [{"a": VALUES}, {}, [VALUES], VALUES, {"a": [VALUES]}], ids=["dict", "empty", "list", "array", "nested"]
)
def test_tree_and_mapping_swapped(mesh, tree):
    text = "`shard` takes the tree first and the mapping second; here the mapping is first"
    for mapping in (MAPPING, nym.AxisMapping(MAPPING), {"batch": ("data", "model"), "embed": None}):
        if len(tree) or isinstance(mapping, nym.AxisMapping):
            with pytest.raises(TypeError, match=text):
                nym.shard(mapping, tree)
    with nym.axis_mapping(MAPPING), pytest.raises(TypeError, match=text):
        nym.shard(nym.current_mapping())


def test_a_declared_field_that_cannot_be_sharded_names_the_leaf(mesh):
    text = r"\.inner\.bias: axis 'embed' has size 4, which is not divisible by mesh axis 'data' of size 4 x 'model' of"
    model = eqx.tree_at(lambda model: model.inner.weight, declared_model()[0], np.ones((8, 8)))
    model = eqx.tree_at(lambda model: (model.weight, model.scales), model, (np.ones((8, 8)), []))
    with pytest.raises(ValueError, match=text):
        nym.shard(model, {"embed": ("data", "model")})


class FirstAxis:
    """Divides the first axis of what has one over a mesh axis."""

    def __init__(self, axis="data"):
        self.axis = axis
        self.seen = []

    def apply(self, array):
        self.seen.append(array.shape)
        return P(self.axis) if array.shape else None


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_the_fallback_rule_places_plain_arrays(mesh, compiled):
    rule = FirstAxis()
    mapping = nym.AxisMapping({"batch": "model"}, fallback=rule)
    tree = {"a": jnp.ones((4, 3)), "b": jnp.ones(()), "named": nym.named(VALUES, NAMES)}
    tree["declared"] = Scale(jnp.asarray(VALUES), jnp.ones(4), jnp.ones(8))
    shard = jax.jit(lambda x: nym.shard(x, mapping)) if compiled else lambda x: nym.shard(x, mapping)
    result = shard(tree)
    assert lies(result["a"], mesh, "data", None)
    assert lies(result["named"], mesh, "model", None)
    assert lies(result["declared"].weight, mesh, "model", None)
    assert lies(result["declared"].other, mesh, "data")
    assert sorted(rule.seen) == [(), (4, 3), (8,)]


def test_the_fallback_rule_sees_shapes_and_nothing_that_is_no_array(mesh):
    rule = FirstAxis()
    tree = {"a": jax.ShapeDtypeStruct((4, 3), np.float32), "rest": ["text", 3, np.dtype("int8"), jnp.sin]}
    result = nym.shard(tree, nym.AxisMapping({}, fallback=rule))
    assert result["a"].sharding == NamedSharding(mesh, P("data"))
    assert result["rest"] == tree["rest"]
    assert rule.seen == [(4, 3)]


def test_a_fallback_rule_that_gives_no_spec_is_an_error(mesh):
    class Wrong:
        def apply(self, array):
            return "data"

    with pytest.raises(TypeError, match=r"A fallback rule gives a `PartitionSpec` or None; `Wrong` gives 'data'\."):
        nym.shard(jnp.ones(8), nym.AxisMapping({}, fallback=Wrong()))


def test_what_is_in_place_is_not_touched(mesh, device_puts):
    tree = {"x": nym.NamedArray(VALUES, NAMES), "s": Scale(VALUES, VALUES[0]), "plain": jnp.ones(3)}
    placed = nym.shard(tree, MAPPING)
    assert len(device_puts) == 1
    assert len(device_puts[0][0]) == 3
    assert nym.shard(placed, MAPPING) is placed
    with nym.axis_mapping(MAPPING):
        assert nym.shard(placed) is placed
        assert nym.auto_sharded(placed) is placed
    assert len(device_puts) == 1


def test_only_what_has_to_move_is_moved(mesh, device_puts):
    placed = nym.shard({"x": nym.NamedArray(VALUES, NAMES), "y": nym.NamedArray(VALUES, NAMES)}, MAPPING)
    device_puts.clear()
    result = nym.shard({**placed, "z": nym.NamedArray(VALUES, NAMES)}, MAPPING)
    ((moved, shardings),) = device_puts
    assert len(moved) == len(shardings) == 1
    assert moved[0] is VALUES
    assert result["x"].array is placed["x"].array
    assert result["y"].array is placed["y"].array


def test_a_sharding_spelt_otherwise_is_in_place(auto_mesh, device_puts):
    array = jax.device_put(VALUES, NamedSharding(auto_mesh, P(("data",))))
    device_puts.clear()
    assert nym.shard(nym.named(array, NAMES), {"batch": "data"}, auto_mesh).array is array
    assert not device_puts


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


@pytest.mark.parametrize("kinds", [(AxisType.Explicit, AxisType.Auto), (AxisType.Auto, AxisType.Explicit)])
def test_on_a_mesh_of_both_kinds(kinds):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=kinds)
    with jax.set_mesh(mesh), nym.axis_mapping(MAPPING):
        x = nym.shard(nym.NamedArray(VALUES, NAMES))
        assert x.sharding == NamedSharding(mesh, P("data", "model"))
        y = jax.jit(lambda x: nym.shard(x * 2))(x)
        assert lies(y, mesh, "data", "model")
        flipped = jax.jit(lambda x: nym.shard(x * 2, {"batch": "model", "embed": "data"}))(x)
        assert lies(flipped, mesh, "model", "data")
        np.testing.assert_array_equal(np.asarray(flipped), np.asarray(y))


def test_nothing_is_stated_twice_on_an_explicit_mesh(explicit_mesh):
    with jax.set_mesh(explicit_mesh), nym.axis_mapping(MAPPING):
        x = nym.shard(nym.NamedArray(VALUES, NAMES))
        assert "reshard" not in str(jax.make_jaxpr(lambda x: nym.shard(x * 2))(x))
        assert "reshard" in str(jax.make_jaxpr(lambda x: nym.shard(x * 2, {}))(x))


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

"""What happens where something is missing, wrong or unusual: one section for each situation, outside jit and inside.

What a mapping asks for is done, is an error, or is warned of. It is never left out without a word.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as nym


Batch, Embed, Mlp = nym.make_axes(batch=8, embed=4, mlp=6)
VALUES = np.arange(32, dtype=np.float32).reshape(8, 4)
SHAPE = nym.NamedArray(jax.ShapeDtypeStruct((8, 4), np.float32), ("batch", "embed"))
NO_MAPPING = "`shard` has no axis mapping, so nothing is sharded; use `axis_mapping`"
NO_MESH = "`shard` has no mesh, so nothing is sharded; use `jax.set_mesh`"


@pytest.fixture(params=["outside", "inside"])
def run(request):
    """Calls a function as it is, or compiled by `jax.jit`."""
    return (lambda fn, *args: fn(*args)) if request.param == "outside" else lambda fn, *args: jax.jit(fn)(*args)


@pytest.fixture
def word(request) -> str:
    """A word for each case: what is warned of is warned of once."""
    return request.node.callspec.id.replace("-", "_")


@pytest.fixture
def x() -> nym.NamedArray:
    return nym.NamedArray(jnp.asarray(VALUES), ("batch", "embed"))


def placed(x, mesh, *spec) -> bool:
    return x.sharding.is_equivalent_to(NamedSharding(mesh, P(*spec)), x.ndim) and np.array_equal(x.array, VALUES)


def on_one_device(x) -> bool:
    return len(x.sharding.device_set) == 1 and np.array_equal(x.array, VALUES)


# No mapping.


def test_without_a_mapping_shard_warns(x, run):
    with pytest.warns(RuntimeWarning, match=NO_MAPPING):
        assert on_one_device(run(nym.shard, x))


def test_without_a_mapping_auto_sharded_does_nothing(mesh, x, run):
    seen = run(lambda x: nym.auto_sharded(x) * 1, x)
    assert np.array_equal(seen.array, VALUES) and seen.sharding.is_fully_replicated


# A mapping, no mesh.


def test_without_a_mesh_shard_warns(x, run):
    with pytest.warns(RuntimeWarning, match=NO_MESH):
        assert on_one_device(run(lambda x: nym.shard(x, {"batch": "data"}), x))


@nym.axis_mapping(batch="data")
def test_without_a_mesh_auto_sharded_and_creation_do_nothing(x, run):
    assert on_one_device(run(nym.auto_sharded, x))
    assert len(run(lambda: nym.zeros((Batch,))).sharding.device_set) == 1


# A name that the mapping does not have.


def test_a_name_that_is_not_mapped_is_not_divided(mesh, x, run):
    assert placed(run(lambda x: nym.shard(x, {"mlp": "data", "embed": "model"}), x), mesh, None, "model")


def test_a_name_that_is_nearly_mapped_warns_once(mesh, run, word):
    array = nym.NamedArray(VALUES, (f"tokne_{word}", "embed"))
    text = f"axis 'tokne_{word}' is replicated: the mapping has no 'tokne_{word}', but has 'token_{word}'; correct"
    with pytest.warns(RuntimeWarning, match=text) as caught:
        for _ in range(2):
            assert placed(run(lambda array: nym.shard(array, {f"token_{word}": "data"}), array), mesh)
    assert len(caught) == 1


# What the mesh cannot do.


def test_a_slip_in_a_mesh_axis_warns_at_the_first_use_of_the_mapping(mesh, x, run, word):
    text = rf"axis '{word}' is mapped to mesh axis 'modle', which the mesh \(data: 4, model: 2\) does not have; did you"
    with pytest.warns(RuntimeWarning, match=text) as caught:
        assert placed(run(lambda x: nym.shard(x, {"batch": "data", word: "modle"}), x), mesh, "data")
        assert placed(run(lambda x: nym.shard(x, {"embed": "model", word: "modle"}), x), mesh, None, "model")
    assert len(caught) == 1


def test_one_mapping_may_serve_several_meshes(mesh, x, run):
    for other in ("pipeline", "replica", "data2", "fsdp", "models", "DP"):
        assert placed(run(lambda x, other=other: nym.shard(x, {"batch": "data", "mlp": other}), x), mesh, "data")


# The old way to set a mesh.


def test_a_mesh_entered_the_old_way_is_not_looked_at(auto_mesh, x, run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        auto_mesh.__enter__()
    try:
        with pytest.warns(RuntimeWarning, match=NO_MESH):
            assert on_one_device(run(lambda x: nym.shard(x, {"batch": "data"}), x))
    finally:
        auto_mesh.__exit__(None, None, None)


# A mesh without devices.


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("run", [lambda fn: fn(), jax.eval_shape], ids=["outside", "inside"])
def test_a_mesh_without_devices_shards_shapes(kind, run):
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)
    seen = []
    run(lambda: seen.append(nym.shard(SHAPE, {"batch": "data"}, mesh).array.sharding))
    with jax.sharding.use_abstract_mesh(mesh), nym.axis_mapping(batch="data"):
        run(lambda: seen.append(nym.shard(SHAPE).array.sharding))
        run(lambda: seen.append(nym.auto_sharded({"x": SHAPE})["x"].array.sharding))
        run(lambda: seen.append(nym.sharding_for_axis(SHAPE.axes)))
    assert seen == [NamedSharding(mesh, P("data", None))] * 4


def test_a_mesh_without_devices_takes_no_arrays_outside(auto_mesh, x):
    text = "arrays can only be placed on a mesh with devices; on an abstract one, shard their shapes"
    with pytest.raises(ValueError, match=text):
        nym.shard(x, {"batch": "data"}, auto_mesh.abstract_mesh)
    with jax.sharding.use_abstract_mesh(auto_mesh.abstract_mesh), nym.axis_mapping(batch="data"):
        for make in (lambda: nym.zeros((Batch,)), lambda: nym.shard(x)):
            with pytest.raises(ValueError, match=text):
                make()


def test_a_mesh_without_devices_is_enough_to_lower_a_constraint(auto_mesh):
    with jax.sharding.use_abstract_mesh(auto_mesh.abstract_mesh), nym.axis_mapping(batch="data"):
        for fn in (jax.jit(lambda x: nym.shard(x * 2)), nym.named_jit(lambda x: x * 2)):
            assert '{"data"}, {}' in fn.lower(SHAPE).as_text()


# Explicit mesh axes, which `jax.make_mesh` makes by default.


def test_explicit_mesh_axes_have_the_sharding_in_their_types(x, run):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    seen = []

    def fn(x):
        y = nym.shard(x)
        seen.append(jax.typeof(y.array).sharding.spec)
        return y

    with jax.set_mesh(mesh), nym.axis_mapping(batch="data", embed="model"):
        assert placed(run(fn, x), mesh, "data", "model")
    assert seen == [P("data", "model")]


def test_a_model_on_a_mesh_with_explicit_axes_runs_as_it_is(run):
    mapping = {"batch": "data", "embed": "data", "mlp": "model"}
    tokens = nym.named(np.arange(8) % 5, "batch")

    def loss(model, tokens):
        embedding, layer = model
        with nym.axis_mapping(embed=None, merge=True):
            return nym.square(layer(embedding(tokens))).sum().scalar()

    def made():
        keys = jax.random.split(jax.random.key(0))
        embedding = nym.nn.Embedding.init(nym.Axis("vocab", 5), Embed, key=keys[0])
        return embedding, nym.nn.Linear.init(Embed, Mlp, key=keys[1])

    wanted = jax.grad(loss)(made(), tokens)[1].weight.array
    with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"))), nym.axis_mapping(mapping):
        weight = run(jax.grad(loss), made(), tokens)[1].weight
        assert weight.sharding.spec == P("model", "data")
    np.testing.assert_allclose(weight.array, wanted, rtol=1e-5)


# Inside vmap without jit, as in `Stacked.init`.


def test_under_vmap_and_grad_an_array_from_before_the_mesh_is_moved_to_it(mesh, run):
    with jax.set_mesh(None):
        x = nym.NamedArray(jnp.asarray(VALUES), ("batch", "embed"))

    def scaled(factor):
        return nym.shard(x, {"batch": "data"}).array * factor

    result = run(jax.vmap(scaled), jnp.ones(3))
    np.testing.assert_array_equal(result, np.stack([VALUES] * 3))
    assert run(jax.grad(lambda factor: scaled(factor).sum()), 2.0) == VALUES.sum()


@pytest.mark.parametrize(
    "transformed",
    [jax.grad, jax.checkpoint, lambda loss: lambda *x: jax.jvp(loss, x, x)[1], lambda loss: jax.jit(jax.grad(loss))],
    ids=["grad", "checkpoint", "jvp", "jit"],
)
def test_a_layer_from_before_the_mesh_is_differentiated_outside_jit(mesh, transformed):
    def loss(weight, x):
        return (nym.nn.Linear(weight, None, (Embed,), (weight.axes[0],))(x) ** 2).mean().scalar()

    with jax.set_mesh(None):
        weight, x = nym.ones({"mlp": 8, "embed": Embed.size}), nym.ones((Batch, Embed))
        expected = transformed(loss)(weight, x)
    with nym.axis_mapping(batch="data", mlp="model"):
        found = transformed(loss)(weight, x)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6)


def test_a_mapping_the_wrong_way_round_gets_a_warning(auto_mesh):
    x = nym.NamedArray(np.ones((8, 4), np.float32), ("batch", "width"))
    text = (
        r"axis 'data' is mapped to mesh axis 'batch', which the mesh \(data: 4, model: 2\) does not have, but it has "
        r"'data'; a mapping goes from names to mesh axes: should 'batch' be sharded over 'data'\?"
    )
    with jax.set_mesh(auto_mesh), pytest.warns(RuntimeWarning, match=text):
        assert nym.shard(x, {"data": "batch"}).sharding.is_fully_replicated


def test_stacked_layers_are_divided_along_their_own_axes(mesh, run):
    def made():
        stack = nym.nn.Stacked.init(nym.Axis("layers", 3), nym.nn.Linear)
        return stack(Embed, nym.Axis("mlp", 8), key=jax.random.split(jax.random.key(0), 3)).stacked.weight

    with nym.axis_mapping(embed="data", mlp="model"):
        weight = run(made)
    assert weight.names[0] == "layers" and set(weight.names) == {"layers", "mlp", "embed"}
    spec = P(*({"embed": "data", "mlp": "model"}.get(name) for name in weight.names))
    assert weight.sharding.is_equivalent_to(NamedSharding(mesh, spec), 3)


# Constraints.


def test_nothing_mapped_is_whole_everywhere(mesh, x, run):
    divided = nym.shard(x, {"batch": "data", "embed": "model"})
    assert placed(run(lambda x: nym.shard(x, {}), divided), mesh)


def test_a_mapping_that_is_not_entered_changes_nothing():
    nym.axis_mapping(batch="data")
    assert nym.current_mapping() is None

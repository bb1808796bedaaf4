"""What programs written for Haliax do with `axonym.haliax` beyond the values of single functions."""

import dataclasses
import pickle
import unittest
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
import axonym.haliax as hax

from ..comparing import allclose
from ..refusals import refusal


Batch, Pos, Embed, Mlp = hax.make_axes(batch=8, pos=4, embed=6, mlp=10)
MAPPING = {"batch": "data", "mlp": "model"}


class Block(eqx.Module):
    norm: hax.nn.RmsNorm
    up: hax.nn.Linear
    down: hax.nn.Linear
    dropout: hax.nn.Dropout

    @staticmethod
    def init(Embed: Any, Mlp: Any, *, key: Any) -> "Block":
        first, second = hax.jax_utils.maybe_rng_split(key, 2)
        up, down = hax.nn.Linear.init(Embed, Mlp, key=first), hax.nn.Linear.init(Mlp, Embed, key=second)
        return Block(hax.nn.RmsNorm.init(Embed), up, down, hax.nn.Dropout(0.0))

    @hax.jax_utils.named_call
    def __call__(self, x: Any) -> Any:
        return x + self.dropout(self.down(hax.nn.relu(a=self.up(self.norm(x)))))


def is_ours(tree: Any) -> bool:
    arrays = [one for one in jax.tree.leaves(tree, is_leaf=nym.is_named_array) if nym.is_named_array(one)]
    return bool(arrays) and all(isinstance(one, hax.NamedArray) for one in arrays)


def test_model_trains_on_a_mesh(mesh, getkey):
    with jax.set_mesh(mesh), hax.axis_mapping(MAPPING):

        @hax.named_jit(axis_resources=MAPPING)
        def init(key, data_key):
            stacked = hax.nn.Stacked.init(hax.Axis("layers", 2), Block, gradient_checkpointing=True)
            blocks = stacked(Embed, Mlp, key=hax.jax_utils.shaped_rng_split(key, 2))
            return blocks, hax.random.normal(data_key, (Batch, Pos, Embed))

        blocks, x = init(getkey(), getkey())

        @hax.named_jit(axis_resources=MAPPING)
        def step(blocks, x):
            def compute_loss(blocks):
                out = blocks.fold(x)
                return hax.mean(array=out**2).scalar(), out

            (loss, out), grads = eqx.filter_value_and_grad(compute_loss, has_aux=True)(blocks)
            return eqx.apply_updates(blocks, jax.tree.map(lambda g: -0.1 * g, grads)), loss, out

        new, loss, out = step(blocks, x)
        assert is_ours(new) and is_ours(out)
        assert new.stacked.up.weight.array.sharding.spec[1] == "model"
        assert float(step(new, x)[1]) < float(loss)


def test_layers_are_named_by_their_fields():
    block, x = Block.init(Embed, Mlp, key=jax.random.key(0)), hax.ones(Embed)
    text = jax.make_jaxpr(block)(x).pretty_print(name_stack=True)
    assert all(path in text for path in ("Block/norm/", "Block/up/Linear/dot(embed -> mlp)", "Block/down/Linear/dot("))


def test_operations_keep_the_class_of_arrays():
    x = hax.random.normal(jax.random.key(0), (Batch, Embed))
    results = [x + 1, 1 - x, -x, x.sum("batch"), x["batch", 0], x.rename({"batch": "b"}), hax.exp(x), x > 0]
    results += [hax.where(x > 0, x, 0), hax.stack("z", [x, x]), hax.vmap(lambda row: row, "batch")(x), x.astype(int)]
    results += [jax.jit(lambda x: x)(x), jax.grad(lambda x: x.sum().scalar())(x), pickle.loads(pickle.dumps(x))]
    results += [hax.nn.dropout(x, 0.5, inference=False, key=jax.random.key(1)), hax.nn.one_hot(hax.arange(Batch), Mlp)]
    assert [is_ours(result) for result in results] == [True] * len(results)


def test_dataclasses_replace_gives_an_array_other_names():
    assert dataclasses.replace(hax.ones((Batch, Embed)), axes=("one", "two")).axis_names == ("one", "two")


def test_unknown_names_are_errors():
    for module in (hax, hax.core, hax.random):
        with pytest.raises(AttributeError, match=rf"module '{module.__name__}' has no attribute 'softmacks'"):
            module.softmacks  # noqa: B018


def test_modules_and_functions_of_one_name():
    from axonym.haliax.fft import fft
    from axonym.haliax.field import field
    from axonym.haliax.nn.ragged_dot import ragged_dot
    from axonym.haliax.poly import poly

    assert (fft, field, poly, ragged_dot) == (hax.fft, hax.field, hax.poly, hax.nn.ragged_dot)


def test_decorators_skip_tests():
    with pytest.raises(unittest.SkipTest, match=r"Not enough devices \(9 needed\)"):
        hax.testing.skip_if_not_enough_devices(9)(lambda: None)()
    assert hax.testing.skip_if_not_enough_devices(8)(lambda: "ran")() == "ran"


def test_parametrizations_scale_weights_and_products():
    """The scales that Haliax gives these layers."""
    mup, key = hax.nn.mup, jax.random.key(0)
    assert hax.nn.Linear.init(Embed, Mlp, key=key).reparam == mup.LinearStandardParam(Embed, Mlp)
    assert hax.nn.Linear.hidden_reparam() is mup.HiddenLinearMup
    assert hax.nn.Linear.input_reparam(False) is hax.nn.Linear.output_reparam(False) is mup.LinearStandardParam
    In = hax.Axis("in", 64)
    cases = ((mup.LinearStandardParam, 1 / 8, 1, 1), (mup.InputLinearMup, 1, 1, 1))
    cases += ((mup.HiddenLinearMup, 1 / 8, 1, 1 / 64), (mup.OutputLinearMup, 1, 1 / 64, 1))
    for kind, scale, active, rate in cases:
        layer = hax.nn.Linear.init(In, hax.Axis("out", 64), key=key, use_bias=False, reparam_cls=kind)
        assert isinstance(layer.reparam, kind) and isinstance(layer, mup.ReparamEnabled)
        assert (layer.reparam.active_scale, layer.reparam.lr_scale) == (active, rate)
        assert hax.std(layer.weight).item() == pytest.approx(scale, rel=0.05)
        product = hax.dot(hax.ones(In), layer.weight, axis=In) * active
        assert jax.numpy.allclose(layer(hax.ones(In)).array, product.array, rtol=1e-5, atol=1e-5)
    table = hax.nn.Embedding.init(hax.Axis("vocab", 64), In, key=key, reparam_cls=mup.EmbeddingMup)
    assert hax.std(table.weight).item() == pytest.approx(1, rel=0.05)
    assert mup.EmbeddingStandardParam.init_scale(hax.Axis("vocab", 8), In) == 1 / 64
    scores = hax.dot(hax.ones(In), table.weight, axis=In) / 64
    assert allclose(table.unembed(hax.ones(In)).array, scores.array, atol=1e-5)


@pytest.mark.parametrize("kind", [hax.nn.Stacked, hax.nn.BlockSeq])
def test_containers_of_layers_have_the_methods_of_haliax(kind):
    keys = jax.random.split(jax.random.key(0), 3)
    init = kind.init(hax.Axis("layers", 3), hax.nn.Linear, gradient_checkpointing="nested", prevent_cse=True)
    layers: hax.nn.scan.BlockFoldable = init(Embed, Mlp, key=keys)
    assert type(layers) is kind and layers.Layers == layers.Block and is_ours(layers.get_layer(0))
    assert layers.gradient_checkpointing.nested and layers.gradient_checkpointing.prevent_cse
    x, each = hax.ones(Embed), hax.arange(layers.Block, dtype=float)
    expected = hax.stack("layers", [layer(x) for layer in layers.unstacked()])
    assert bool(hax.allclose(layers.vmap(x), expected)) and is_ours(layers.vmap(x))
    found = layers.vmap_via(lambda layer, x, each: layer(x) * each)(x, each)
    assert bool(hax.allclose(found, expected * each))

    def step(layer, x, scale):
        out = x + scale * layer(x).sum(Mlp)
        return out, {"plain": out.array, "named": out}

    carry, results = layers.scan_via(step, unroll=None)(x, 0.1)
    assert results["plain"].shape == (3, 6) and is_ours(results["named"]) and results["named"].axes[0] == layers.Block
    assert bool(hax.allclose(results["named"]["layers", -1], carry))
    assert bool(hax.allclose(layers.fold_via(lambda *args: step(*args)[0])(x, 0.1), carry))


def test_checkpoint_policies_by_name_and_by_options():
    policy = hax.ScanCheckpointPolicy.from_bool_or_str
    assert policy(False).disable and policy("nested").nested and not policy("full").save_carries
    assert policy("save_all").checkpoint("carry", "input", jnp.sin)(0.0) == 0.0
    nested = hax.ScanCheckpointPolicy(simple=True, save_carries=False, nested=2)
    assert not nested.simple and nested.save_carries and nested.nested == 2
    assert hax.ScanCheckpointPolicy(simple=True, save_carries=False).simple
    assert hax.ScanCheckpointPolicy(save_carries=False, save_block_internals=["hidden"]).save_carries
    assert not hax.ScanCheckpointPolicy(save_carries=False).save_carries


def test_einsum_spreads_other_axes_over_several_ellipses():
    x, y = hax.ones({"a": 2, "b": 3, "c": 4}), hax.ones({"c": 4, "b": 3, "d": 5})
    expected = {"{b} -> ... b ...": "a b c d", "{c} -> ... d ... a": "b c d a", "-> d ... k ...": "d a b c"}
    for equation, names in expected.items():
        product = hax.einsum(equation, x, y, **({"k": "c"} if "k" in equation else {}))
        assert [axis.name for axis in product.axes] == names.split()


def test_einsum_takes_the_sharding_of_its_result():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x, y = hax.ones({"a": 2, "b": 3}), hax.ones({"b": 3, "c": 4})
        product = hax.einsum("a b, b c -> a c", x, y, out_sharding=jax.P(None, "data"))
    assert product.array.sharding.spec == jax.P(None, "data") and product.sum().item() == 24


def test_rearrange_accepts_what_haliax_does():
    x = hax.arange((hax.Axis("i", 2), hax.Axis("j", 3), hax.Axis("k", 4)))
    orders = {"i j k -> j ... (m: k)": "j i m", "h w c -> ... c ... h": "j k i", "{i, k} -> k ... i": "k j i"}
    for expression, names in orders.items():
        result = hax.rearrange(x, expression)
        assert [axis.name for axis in result.axes] == names.split()
        assert sorted(result.array.ravel().tolist()) == list(range(24))
    assert hax.rearrange(x, "(i: a b) j k -> b ... k", a=2).shape == {"b": 1, "a": 2, "j": 3, "k": 4}


def test_the_covariance_of_a_fit_has_two_axes():
    x = hax.arange(hax.Axis("x", 5)).astype(float)
    fit, covariance = hax.polyfit(x, x * x, 1, cov=True)
    assert fit.shape == {"x": 2} and covariance.shape == {"x": 2, "x_cov": 2}
    assert allclose(covariance.array, jnp.polyfit(x.array, x.array**2, 1, cov=True)[1], rtol=1e-4)


@pytest.mark.parametrize("as_argument", [lambda x: x, lambda x: x.array], ids=["named", "plain"])
def test_specs_of_shard_map_may_be_axes(mesh, as_argument):
    Batch = hax.Axis("batch", 8)
    x = hax.arange(Batch)
    with jax.set_mesh(mesh), hax.axis_mapping(MAPPING):
        for in_specs in (Batch, (Batch,), [x]):
            double = hax.shard_map(lambda x: 2 * x, in_specs=in_specs, out_specs=Batch)
            result = double(as_argument(x))
            assert getattr(result, "array", result).tolist() == [*range(0, 16, 2)]
            assert result.sharding.spec == jax.sharding.PartitionSpec("data")
    with jax.set_mesh(mesh):
        double = hax.shard_map(lambda x: 2 * x, axis_mapping=MAPPING, check_rep=False)
        assert double(x).array.tolist() == [*range(0, 16, 2)]


def test_specs_of_other_axes_than_the_array_are_errors(mesh):
    x = hax.ones((Mlp, Batch))
    with jax.set_mesh(mesh), hax.axis_mapping(MAPPING):
        with pytest.raises(ValueError, match=r"axes batch as the spec of a named argument with the axes mlp, b"):
            hax.shard_map(lambda x: x, in_specs=Batch)(x)
        with pytest.raises(ValueError, match=r"axes batch as the spec of a named result with the axes mlp, b"):
            hax.shard_map(lambda x: x, out_specs=Batch)(x)
    with pytest.raises(TypeError, match="takes a function first, not 3"):
        hax.shard_map(3, in_specs=Batch)


def test_specs_are_bare(mesh):
    with jax.set_mesh(mesh), hax.axis_mapping(MAPPING):
        tree = {"x": hax.ones((Batch, Mlp))}
        spec = hax.partitioning.pspec_for(tree, resource_mapping=MAPPING)
        assert spec == {"x": jax.sharding.PartitionSpec("data", "model")}
        sharding = hax.partitioning.infer_resource_partitions(tree, MAPPING, mesh)
        assert sharding["x"].spec == spec["x"]
        assert hax.partitioning._get_mesh().axis_names == mesh.axis_names


def test_views_of_a_mutable_array():
    ref = hax.new_ref(hax.zeros({"layer": 2, "pos": 3}))
    view = ref.slice({"layer": 1})
    view[...] = 1.0
    view["pos", 0] = 5.0
    assert ref.value().array.tolist() == [[0, 0, 0], [5, 1, 1]]
    assert view.named_shape == {"pos": 3} and view.unsliced().shape == {"layer": 2, "pos": 3}


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (slice(1, 9, 2), slice(1, 3)),
        (slice(1, 9, 2), -1),
        (hax.ds(2, 5), [0, -1]),
        (hax.ds(2, 5), jnp.array([0, 3])),
        (slice(None, None, -1), slice(7, None)),
        (hax.ds(jnp.array(2), 5), slice(0, 5, 2)),
        (hax.ds(jnp.array(2), 5), hax.ds(jnp.array(1), 2)),
    ],
    ids=str,
)
def test_views_of_views(outer: Any, inner: Any):
    ref = hax.new_ref(hax.arange({"pos": 10, "head": 2}))
    view = ref.slice({"pos": outer}).slice({"pos": inner})
    expected = ref.value()["pos", outer]["pos", inner]
    assert view.axes == expected.axes and view.value().array.tolist() == expected.array.tolist()
    view[...] = -1
    changed = ref.value()["pos", outer]["pos", inner]
    assert (changed.array == -1).all() and int((ref.value().array == -1).sum()) == changed.size


def test_views_are_arguments_of_compiled_functions():
    ref = hax.new_ref(hax.zeros({"pos": 10}))

    @jax.jit
    def write(view, i):
        view["pos", i] = 4.0
        return view.slice({"pos": hax.ds(i, 2)}).value()["pos", 0]

    assert write(ref.slice({"pos": slice(2, 8, 2)}), 1).item() == 4.0
    assert ref.value()["pos", 4].item() == 4.0


def test_arrays_that_fields_share_are_found():
    layer = hax.nn.Linear.init(Embed, Embed.alias("out"), key=jax.random.key(0))
    shared = eqx.tree_at(lambda layer: layer.weight, layer, layer.bias)
    with pytest.raises(hax.debug.ModuleProblems, match=r"the fields .weight.*, .bias.* share an array"):
        hax.debug.diagnose_common_issues(shared)


def test_annotations_describe_axes():
    x = hax.ones((Batch, Embed))
    assert x.matches_axes(hax.haxtyping.f32["batch embed"]) and not x.matches_axes(hax.haxtyping.Int["batch embed"])
    assert x.matches_axes(hax.NamedArray["batch ..."]) and not x.matches_axes("embed batch")


def test_inner_mapping_yields_to_the_outer_one_when_merged():
    with hax.axis_mapping({"a": "x"}), hax.axis_mapping({"a": "y", "b": "y"}, merge=True, c="z"):
        assert hax.partitioning.current_thread_local_mapping() == {"a": "x", "b": "y", "c": "z"}


def test_products_of_groups_take_plain_arrays():
    x, weight, sizes = jnp.arange(6.0).reshape(3, 2), jnp.arange(8.0).reshape(2, 2, 2), jnp.array([1, 2])
    expected = jnp.stack([x[0] @ weight[0], x[1] @ weight[1], x[2] @ weight[1]])
    assert np.array_equal(hax.nn.ragged_dot(x, weight, sizes, ar=True), expected)
    assert np.array_equal(hax.nn.linear.gmm_sharded(x, weight, sizes), expected)


attend, reduce = hax.nn.attention.dot_product_attention, hax.wrap_reduction_call
X = hax.named(np.ones((8, 6), np.float32), (Batch, Embed))
QUERY, KEYS = (hax.named(np.ones((2, 4), np.float32), (name, "head_dim")) for name in ("pos", "key_pos"))
FIRST_AXIS = "is the query, a named array, not 'head_dim'; older versions of Haliax took the axis of the queries first"


def take_views(*slices: Any) -> Any:
    """Returns a view of a view of 10 positions and so on."""
    view = hax.new_ref(hax.named(np.zeros(10, np.float32), "pos"))
    for selected in slices:
        view = view.slice({"pos": selected})
    return view


REFUSED = [
    (lambda: hax.nn.Dropout(1.5), "`pdrop` must be at least 0 and at most 1, not 1.5"),
    (lambda: hax.ScanCheckpointPolicy.from_bool_or_str("now"), "a checkpoint policy is a boolean or one of offload"),
    (lambda: dataclasses.replace(X, array=X.array[0]), "has 1 axes, 2 are named"),
    (lambda: X.matches_axes("... embed ..."), "with at most one"),
    (lambda: take_views().slice({"head": 0}), "no axis 'head' in"),
    (lambda: reduce(jnp.argmax, X, ("batch", "embed"), single_axis_only=True), "`argmax` takes one axis, 2 were given"),
    (lambda: reduce(jnp.argmax, X, "batch", X > 0, supports_where=False), "takes no `where`; select the elements bef"),
    (
        lambda: hax.nn.Stacked.init(hax.Axis("layers", 2), hax.nn.RmsNorm)(Embed).scan(hax.ones(Embed)),
        "a layer applied by `scan` must return a pair",
    ),
    (lambda: hax.updated_slice(X, {"batch": 7}, hax.ones({"batch": 3})), "3 elements at 7 runs over the end of axis"),
    (
        lambda: hax.updated_slice(X, {"batch": hax.named([0, 1], "embed")}, hax.ones({"embed": 2, "new": 2})),
        "the update has the axes new that are not in the original array with shape",
    ),
    (lambda: attend("pos", "head_dim", QUERY, KEYS, KEYS), "axis 'pos' is not found in the keys (key_pos, head_dim)"),
    (lambda: attend("key_pos", "head_dim", KEYS, KEYS, KEYS), "axes of queries and keys must be distinct, 'key_pos'"),
    (lambda: hax.axis.resolve_axis((Batch,), "head"), "no axis 'head' among batch"),
    (lambda: hax.rearrange(X, ("batch",)), "the order (batch) leaves out (embed); add"),
    (lambda: hax.axis.rearrange_for_partial_order(("pos", "pos", ...), ("pos",)), "the order lists 'pos' more than"),
    (lambda: hax.axis.rearrange_for_partial_order((..., "head", ...), (Batch,)), "the order lists 'head'"),
]
REFUSED_OTHERWISE = [
    (lambda: take_views(3, 0), NotImplementedError, "axis 'pos' of this view is indexed already"),
    (lambda: take_views(slice(2, 4), 4), IndexError, "index 4 is out of range for axis 'pos' of size 2"),
    (lambda: take_views(slice(2, 4), hax.ds(1, 3)), IndexError, "a `dslice` of 3 elements from 1 runs over the end, 2"),
    (lambda: attend("pos", "key_pos", "head_dim", QUERY, KEYS, KEYS), TypeError, FIRST_AXIS),
]


@pytest.mark.parametrize(
    ("call", "error", "message"), [*((call, ValueError, message) for call, message in REFUSED), *REFUSED_OTHERWISE]
)
def test_what_does_not_fit_is_refused(call: Any, error: type[Exception], message: str):
    with refusal(message, error):
        call()

"""`shard_map`: functions of the parts of named arrays, with specs that follow from names."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym
from tests.partitioning.arrays import on_auto, on_explicit
from tests.refusals import refusal


MAPPING = {"batch": "data", "embed": "model"}


def made(**sizes):
    values = np.random.default_rng(0).normal(size=tuple(sizes.values())).astype(np.float32)
    return nym.named(jax.device_put(values), tuple(sizes))


def same(x, array, names):
    return x.names == names and np.allclose(x.array, array, rtol=1e-4, atol=1e-4)


def placed(x, mesh, *spec):
    return x.sharding.is_equivalent_to(jax.NamedSharding(mesh, P(*spec)), x.ndim)


x = made(pos=2, batch=8, embed=4)


@pytest.mark.parametrize(
    ("mesh", "inside", "sharded"),
    [("auto", True, True), ("explicit", False, True), ("explicit", True, False), ("auto", False, False)],
    indirect=["mesh"],
)
def test_each_device_has_its_part_under_the_same_names(mesh, inside, sharded):
    seen = []

    @nym.shard_map
    def fn(x, w, *, key):
        seen.append((x.shape, w.shape, key.shape))
        total = jax.lax.psum(x.sum("batch"), "data")
        return {"twice": x * 2, "total": total, "all": jax.lax.psum(total.sum(), "model").array, "w": w}

    with nym.axis_mapping(MAPPING):
        y = nym.shard(x) if sharded else x
        result = (jax.jit(fn) if inside else fn)(y, jnp.arange(3.0), key=made(embed=4))
    assert seen[0] == ({"pos": 2, "batch": 2, "embed": 2}, (3,), {"embed": 2})
    assert same(result["twice"], x.array * 2, x.names) and placed(result["twice"], mesh, None, "data", "model")
    assert same(result["total"], x.array.sum(1), ("pos", "embed")) and placed(result["total"], mesh, None, "model")
    assert np.allclose(result["all"], x.array.sum(), atol=1e-4) and np.array_equal(result["w"], [0, 1, 2])


def test_names_decide_where_results_belong(mesh):
    with nym.axis_mapping(MAPPING):
        turned = nym.shard_map(lambda x: x.rearrange(("embed", "pos", "batch")))(x)
        other = nym.shard_map(lambda x: x.rename({"embed": "mlp"}))
        with pytest.raises(ValueError, match=r"\(pos: 2, batch: 2, mlp: 2\) may differ .* mesh axis 'model'"):
            other(x)
        with nym.axis_mapping({"mlp": "model"}, merge=True):
            renamed = other(x)
    assert same(turned, jnp.transpose(x.array, (2, 0, 1)), ("embed", "pos", "batch"))
    assert placed(turned, mesh, "model", None, "data")
    assert same(renamed, x.array, ("pos", "batch", "mlp")) and placed(renamed, mesh, None, "data", "model")


@on_explicit
def test_the_mapping_and_the_mesh_may_be_given(mesh):
    def fn(x):
        assert nym.physical_axis_name("pos") == "model" and x.shape == {"pos": 1, "batch": 8, "embed": 4}
        return x + 1

    result = nym.shard_map(fn, mapping={"pos": "model"})(x)
    assert same(result, x.array + 1, x.names) and placed(result, mesh, "model")
    with jax.set_mesh(None):
        alone = nym.shard_map(fn, mapping={"pos": "model"}, mesh=mesh)(x)
    assert same(alone, x.array + 1, x.names)


@on_explicit
def test_specs_may_be_given(mesh):
    plain = jnp.arange(16.0).reshape(8, 2)

    def fn(x, tree, w):
        assert x.shape["batch"] == 2 and tree["cut"].shape == (2, 2) and tree["whole"].shape == (8, 2)
        return x, (tree["cut"] * 2, w)

    run = nym.shard_map(fn, in_specs=(None, {"cut": P("data"), "whole": None}), out_specs=(None, (P("data"), None)))
    with nym.axis_mapping(MAPPING):
        with pytest.raises(ValueError, match="the `in_specs` of `shard_map` do not fit its positional arguments"):
            run(x, {"cut": plain, "whole": plain}, 3)
        run = nym.shard_map(
            fn, in_specs=[None, {"cut": P("data"), "whole": None}, None], out_specs=(None, (P("data"), None))
        )
        same_x, (twice, number) = run(x, {"cut": plain, "whole": plain}, 3)
        assert same(same_x, x.array, x.names) and np.array_equal(twice, plain * 2) and number == 3
        others = nym.shard_map(lambda x, how, fn: (fn(x), how, None, {"n": 1}))(x, "text", nym.exp)
        wrong = nym.shard_map(lambda x: (x, x), out_specs=(None, None, None))
        with pytest.raises(ValueError, match="the `out_specs` of `shard_map` do not fit what the function returned"):
            wrong(x)
        whole = nym.shard_map(lambda x: x * 2, in_specs=(P(),), out_specs=P())(x)
    assert same(whole, x.array * 2, x.names)
    assert same(others[0], jnp.exp(x.array), x.names) and others[1:] == ("text", None, {"n": 1})


def test_gradients_go_through(mesh):
    def loss(x):
        return jax.lax.psum((x * x).sum(), ("data", "model")).scalar()

    with nym.axis_mapping(MAPPING):
        for run in (lambda f: f, jax.jit):
            gradient = run(jax.grad(nym.shard_map(loss)))(nym.shard(x))
            assert same(gradient, 2 * x.array, x.names) and placed(gradient, mesh, None, "data", "model")


@on_explicit
def test_gradients_through_an_order_that_differs_between_devices(mesh):
    def pick(x, weights):
        return (weights["k", x.argsort("batch")] * x).sum()

    x, weights = nym.named(np.random.default_rng(0).normal(size=8), "batch"), nym.arange(nym.Axis("k", 2)) * 1.0
    parts = [x["batch", 2 * at : 2 * at + 2] for at in range(4)]
    expected = sum(jax.grad(lambda weights, x=x: pick(x, weights).scalar())(weights).array for x in parts)
    with jax.set_mesh(mesh), nym.axis_mapping({"batch": "data"}):

        @jax.grad
        def compute_gradient(weights):
            def add_parts(x, weights):
                return jax.lax.psum(pick(x, weights).scalar(), "data")

            return nym.shard_map(add_parts, in_specs=(P("data"), P()), out_specs=P())(nym.shard(x), weights)

        assert np.allclose(compute_gradient(weights).array, expected)


@on_explicit
def test_constraints_and_transformations_work_inside(mesh):
    def fn(x):
        x = nym.auto_sharded(nym.vmap(lambda row: nym.softmax(row, "pos"), "batch")(x))
        return nym.fold(lambda carry, row: carry + row, "pos")(x["pos", 0] * 0, x)

    with nym.axis_mapping(MAPPING):
        assert same(nym.shard_map(fn)(x), np.ones((8, 4)), ("batch", "embed"))


@on_auto
def test_it_is_a_decorator_that_takes_options_and_traces_once_a_call(mesh):
    traced = []

    @nym.shard_map(mapping=MAPPING, check_vma=False)
    def fn(x):
        """Sums."""
        traced.append(1)
        return x.sum("embed")

    assert fn.__name__ == "fn" and fn.__doc__ == "Sums."
    for count in range(1, 4):
        fn(x)
        assert len(traced) == count
    compiled = jax.jit(fn)
    for _ in range(3):
        compiled(x)
    assert len(traced) == 4
    for other in (functools.partial(lambda x, *, by: x * by, by=2), jnp.negative):
        assert nym.shard_map(other, mapping=MAPPING, in_specs=(None,))(jnp.ones(3)).shape == (3,)


def test_what_is_needed():
    with refusal("`shard_map` takes a function first, not {'batch': 'data', 'embed': 'model'}.", TypeError):
        nym.shard_map(MAPPING)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with refusal("`shard_map` needs a mapping; use `with axis_mapping"):
        nym.shard_map(lambda x: x)(x)
    with pytest.raises(ValueError, match=r"`shard_map` needs a mesh; .* `jax.set_mesh\(mesh\)` or pass `mesh=`"):
        nym.shard_map(lambda x: x, mapping=MAPPING)(x)


MAY_DIFFER = "may differ from device to device along"
NOT_ITS_OWN = "over (data) here and leaves mesh axis 'model' as it is; leave"


@on_auto
@pytest.mark.parametrize(
    ("fn", "options", "text"),
    [
        (lambda x: x.sum("batch"), {}, "the result (pos: 2, embed: 2) " + MAY_DIFFER),
        (lambda x: x.sum().array, {}, "a plain array of shape () " + MAY_DIFFER),
        (
            lambda x: jax.lax.all_gather(x, "data"),
            {},
            "with axes (pos, batch, embed) is an array of shape (4, 2, 2, 2)",
        ),
        (lambda x: x, {"axis_names": {"dta"}}, "'dta' is in the `axis_names` of "),
        (lambda x: x, {"axis_names": ()}, "`axis_names` of `shard_map` are mesh axes of (data: 4, model: 2), at"),
        (lambda x: x, {"axis_names": {"data"}, "in_specs": (P("model"),)}, NOT_ITS_OWN),
        (lambda x: x, {"axis_names": {"data"}, "out_specs": P("model")}, NOT_ITS_OWN),
    ],
)
def test_results_that_differ_and_wrong_mesh_axes_are_errors(mesh, fn, options, text):
    with nym.axis_mapping(MAPPING), refusal(text):
        nym.shard_map(fn, **options)(x)


@on_auto
@pytest.mark.parametrize("uneven", ["error", "replicate"])
def test_mapped_axes_must_be_divisible_whatever_uneven_is(mesh, uneven):
    """A sum over the mesh axis would count a replicated axis several times."""
    text = (
        "axis 'batch' has size 6, which is not divisible.*; `shard_map` shards every mapped axis whatever `uneven` is"
    )
    with nym.axis_mapping(MAPPING, uneven=uneven), pytest.raises(ValueError, match=text):
        nym.shard_map(lambda x: jax.lax.psum(x.sum("batch"), "data"))(made(batch=6, embed=4))


@pytest.mark.parametrize(
    ("mesh", "run", "axis_names"),
    [("auto", jax.jit, {"data"}), ("explicit", lambda fn: fn, "data"), ("explicit", jax.jit, ("data",))],
    indirect=["mesh"],
)
def test_over_some_mesh_axes_only_the_others_divide_as_outside(mesh, run, axis_names):
    plain = jax.device_put(np.ones((6, 2), np.float32), jax.NamedSharding(mesh, P(None, "model")))

    def fn(x, w):
        assert x.shape == {"pos": 2, "batch": 2, "embed": 4} and w.shape == (6, 2)
        return {"twice": nym.auto_sharded(x * 2), "total": jax.lax.psum(x.sum("batch"), "data"), "w": w + 1}

    with nym.axis_mapping(MAPPING):
        result = run(nym.shard_map(fn, axis_names=axis_names))(x, plain)
        by_spec = nym.shard_map(lambda x: x * 2, in_specs=(P(None, "data"),), axis_names=axis_names)(nym.shard(x))
    assert placed(by_spec, mesh, None, "data", "model")  # a spec says nothing of the others
    assert same(result["twice"], x.array * 2, x.names) and placed(result["twice"], mesh, None, "data", "model")
    assert same(result["total"], x.array.sum(1), ("pos", "embed")) and placed(result["total"], mesh, None, "model")
    assert np.array_equal(result["w"], plain + 1) and placed(result["w"], mesh, None, "model")


def test_over_some_mesh_axes_only_the_compiler_shards_what_jax_cannot(mesh):
    values = jnp.arange(32.0).reshape(2, 8, 2)[:, ::-1]
    rows = nym.shard(nym.named(values, ("pos", "batch", "embed")), MAPPING, mesh)

    def fn(x):
        return nym.sort(x, "pos"), nym.argsort(x, "pos"), nym.prod(x, "pos"), nym.median(x, "pos")

    with nym.axis_mapping(MAPPING):
        results = jax.jit(nym.shard_map(fn, axis_names="data"))(rows)
    for result, expected in zip(results, fn(nym.named(values, rows.names)), strict=True):
        np.testing.assert_allclose(result.array, expected.array, rtol=1e-6)


@pytest.mark.parametrize(
    ("mesh", "inner_axes"), [("auto", {"model"}), ("explicit", None)], indirect=["mesh"], ids=["named", "all left"]
)
def test_one_inside_another_is_over_mesh_axes_that_are_left(mesh, inner_axes):
    seen = []

    def inner(x):
        seen.append(x.shape)
        return x * 3

    with nym.axis_mapping(MAPPING):
        outer = nym.shard_map(lambda x: nym.shard_map(inner, axis_names=inner_axes)(x), axis_names={"data"})
        result = outer(x)
    assert seen == [{"pos": 2, "batch": 2, "embed": 2}]
    assert same(result, x.array * 3, x.names) and placed(result, mesh, None, "data", "model")


def test_a_function_may_use_what_is_traced_around_it(mesh):
    def loss(factor):
        return nym.shard_map(lambda x: jax.lax.psum((x * factor).sum(), ("data", "model")))(x).scalar()

    with nym.axis_mapping(MAPPING):
        for run in (lambda f: f, jax.jit):
            assert np.allclose(run(jax.grad(loss))(2.0), x.array.sum(), atol=1e-4)


scale = 2.0


@on_auto
def test_a_later_call_sees_changed_python_values(mesh, monkeypatch):
    fn = nym.shard_map(lambda x: x * scale, mapping=MAPPING)
    assert same(fn(x), 2 * x.array, x.names)
    monkeypatch.setitem(globals(), "scale", 3.0)
    assert same(fn(x), 3 * x.array, x.names)


weight = made(embed=4, mlp=8)  # on no mesh: JAX refuses to close over an array on an Explicit mesh


@pytest.mark.parametrize(
    ("mesh", "run"), [("auto", lambda fn: fn), ("explicit", nym.named_jit)], indirect=["mesh"], ids=["eager", "jit"]
)
def test_an_axis_of_full_size_is_not_taken_for_a_shard(mesh, run):
    x, w = made(batch=8, embed=4), weight

    def refuse(fn, text):
        with pytest.raises(ValueError, match=text):
            run(nym.shard_map(fn))(x)

    with nym.axis_mapping({"batch": "data", "mlp": "model"}):
        text = r"the result \(batch: 2, mlp: 8\) of .* axis 'model', so its axis 'mlp' .* to size 16; give the array"
        refuse(lambda x: nym.dot(x, w, axis="embed"), text)
        refuse(lambda x: x["embed", 0] * nym.ones({"batch": 2, "mlp": 8}), text)
        refuse(lambda x: nym.arange(nym.Axis("batch", 8)), r"the result \(batch: 8\) of .* joined to size 32")
        run_shards = nym.shard_map(lambda x, w: (nym.dot(x, w, axis="embed"), nym.zeros(x.axes), nym.ones({"pos": 3})))
        product, zeros, ones = run(run_shards)(x, w)
        unmapped = run(nym.shard_map(lambda x: nym.dot(x, w, axis="embed"), mapping={"batch": "data"}))(x)
    assert same(product, np.asarray(x.array) @ np.asarray(w.array), ("batch", "mlp"))
    assert same(unmapped, product.array, product.names)
    assert zeros.shape == {"batch": 8, "embed": 4} and ones.shape == {"pos": 3}


def test_replicated_axes_of_size_1(mesh):
    x, single = nym.ones({"batch": 8, "heads": 2}), nym.ones({"batch": 8, "kv_heads": 1})

    @nym.shard_map
    def run(x, single):
        assert x.shape == {"batch": 2, "heads": 1} and single.shape == {"batch": 2, "kv_heads": 1}
        return x * single.squeeze(), single * 2

    with nym.axis_mapping({"batch": "data", "heads": "model", "kv_heads": "model"}):
        product, doubled = run(x, single)
        assert product.shape == x.shape and doubled.shape == single.shape
        with refusal("axis 'heads' has size 1 in one argument of `shard_map` and is sharded in another; `rename` it"):
            nym.shard_map(lambda x, y: x * y.squeeze())(x, nym.ones({"heads": 1}))

"""Stacked layers: a loop over single layers, compiled as one scan; how they are made, called and taken apart."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..comparing import allclose
from ..refusals import refusal


Layers, Embed, Mlp, Batch = nym.make_axes(layers=3, embed=8, mlp=6, batch=8)
POLICY = jax.checkpoint_policies.dots_saveable
KEY = jax.random.key(0)


class Block(eqx.Module):
    norm: nym.nn.RmsNorm
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(Embed, Mlp, *, key):
        k_up, k_down = jax.random.split(key)
        up = nym.nn.Linear.init(Embed, Mlp, key=k_up)
        return Block(nym.nn.RmsNorm.init(Embed), up, nym.nn.Linear.init(Mlp, Embed, key=k_down))

    def __call__(self, x):
        return x + self.down(nym.tanh(self.up(self.norm(x))))


class Shift(eqx.Module):
    """A layer with little to compile."""

    weight: nym.NamedArray
    rate: float = 0.5

    @staticmethod
    def init(Embed, *, key=None, start=0.0):
        if key is None:
            return Shift(start + nym.ones(Embed))
        first, _ = jax.random.split(key)  # as JAX and Equinox do, who know nothing of names
        return Shift(start + nym.random.uniform(first, Embed))

    def __call__(self, x, add=0.0, *, scale=1.0):
        return (x + self.weight + add) * scale


@pytest.fixture
def stack(draw):
    return draw.layer(nym.nn.Stacked.init(Layers, Shift), Embed)


def blocks(draw, remat):
    return draw.layer(nym.nn.Stacked.init(Layers, Block, gradient_checkpointing=remat), Embed, Mlp)


def one_by_one(stack, x):
    for layer in stack.unstacked():
        x = layer(x)
    return x


def test_layers_are_applied_one_after_another(check, draw):
    check(lambda stack, x: stack.fold(x), one_by_one, blocks(draw, True), draw(Batch, Embed), tolerance=1e-4)


def gradient(stack, x):
    return jax.grad(lambda stack: stack.fold(x).sum().scalar())(stack)


def test_gradients_do_not_depend_on_what_is_computed_again(draw):
    x, stack = draw(Batch, Embed), blocks(draw, False).stacked
    first, *others = (jax.jit(gradient)(nym.nn.Stacked(stack, Layers, remat), x) for remat in (False, True, POLICY))
    for expected in others:
        pairs = zip(jax.tree.leaves(first), jax.tree.leaves(expected), strict=True)
        assert all(allclose(one, two, rtol=1e-4, atol=1e-5) for one, two in pairs)


def counted(draw, remat):
    """A stack of layers of a kind of their own, and the calls of a layer as it is traced."""
    traces = []

    class Counted(Shift):
        def __call__(self, x):
            traces.append(None)
            return super().__call__(x)

    init = nym.nn.Stacked.init(Layers, lambda Embed, *, key: Counted(nym.ones(Embed)), gradient_checkpointing=remat)
    return draw.layer(init, Embed), traces


@pytest.mark.parametrize("remat", [True, False, POLICY], ids=["remat", "plain", "policy"])
def test_a_layer_is_traced_once_in_one_scan(draw, remat):
    stack, traces = counted(draw, remat)
    x = draw(Batch, Embed)
    program = str(jax.make_jaxpr(lambda stack, x: gradient(stack, x))(stack, x))
    assert len(traces) == 1
    assert program.count(" = scan[") == 2  # forward and backward
    assert ("checkpoint[" in program or "remat" in program) == (remat is not False)
    assert ("policy=None" in program) == (remat is True)


def test_an_eager_call_traces_a_layer_once(draw):
    stack, traces = counted(draw, False)
    for run in (stack.fold, stack.fold_via(lambda layer, x: layer(x))):
        run(draw(Batch, Embed))
    assert len(traces) == 2


def kept(stack, x):
    """How many elements the backward pass needs besides the parameters."""
    _, backward = jax.vjp(lambda x: stack.fold(x), x)
    return sum(leaf.size for leaf in jax.tree.leaves(backward))


def test_less_is_kept_where_layers_are_computed_again(draw):
    x, stack = draw(Batch, Embed), blocks(draw, False)
    every_layer, by_policy, nothing = (
        kept(nym.nn.Stacked(stack.stacked, Layers, remat), x) for remat in (True, POLICY, False)
    )
    assert every_layer < by_policy < nothing


@pytest.mark.parametrize(
    "keys",
    [
        KEY,
        nym.named(KEY, ()),
        nym.random.split(KEY, Layers),
        jax.random.split(KEY, 3),
        jax.random.PRNGKey(0),
        np.asarray(jax.random.PRNGKey(0)),
        jax.random.split(jax.random.PRNGKey(0), 3),
    ],
    ids=["one", "one named", "named", "plain", "old", "old numpy", "old plain"],
)
@pytest.mark.parametrize("module", [Shift, Shift.init], ids=["module", "function"])
def test_every_layer_has_a_key_of_its_own(keys, module):
    stack = nym.nn.Stacked.init(Layers, module)(Embed, key=keys)
    expected = [Shift.init(Embed, key=key) for key in jax.random.split(KEY, 3)]
    assert len({float(layer.weight.sum()) for layer in expected}) == 3
    for layer, target in zip(stack.unstacked(), expected, strict=True):
        assert np.array_equal(layer.weight.array, target.weight.array)


@pytest.mark.parametrize("kind", [nym.nn.Stacked, nym.nn.BlockSeq])
def test_every_layer_has_a_key_of_its_own_wherever_it_is(kind):
    make = kind.init(Layers, lambda keys: Shift.init(Embed, key=keys["shift"]))
    for number, layer in enumerate(make({"shift": KEY}).unstacked()):
        assert np.array_equal(layer.weight.array, Shift.init(Embed, key=jax.random.fold_in(KEY, number)).weight.array)
    with refusal(f"`{kind.__name__}.init` cannot tell whether args[0]['shift'], a plain uint32 array", TypeError):
        make({"shift": jax.random.PRNGKey(0)})


def test_other_arguments_are_cut_if_they_have_the_layer_axis():
    start = nym.arange(Layers, start=1.0)
    made = nym.nn.Stacked.init(Layers, Shift)
    assert np.array_equal(made(Embed, start=start).stacked.weight.array[:, 0], jnp.array([2.0, 3.0, 4.0]))
    assert (made(Embed, start=nym.ones(Embed)).stacked.weight == 2).all()
    assert np.array_equal(made(Embed, start=jnp.arange(3.0)).stacked.weight.array[:, 0], jnp.array([1.0, 2.0, 3.0]))
    with refusal("`vmap` over axis 'layers' of size 3 got a plain array of shape (4,), which has size 4 there"):
        made(Embed, key=jax.random.split(KEY, 4))
    with refusal("Stacked (key): no axis 'layers' in (heads: 3)"):
        made(Embed, key=nym.random.split(KEY, nym.Axis("heads", 3)))


def test_extra_arguments_are_cut_if_they_have_the_layer_axis(stack, draw):
    x, each, same, numbers = draw(Embed), draw(Embed, Layers), draw(Embed), draw.array((3,))
    layers = stack.unstacked()

    def looped(add, scale):
        out = x
        for i, layer in enumerate(layers):
            out = layer(out, add(i), scale=scale(i))
        return out.array

    result = stack.fold(x, each, scale=numbers)
    assert allclose(result.array, looped(lambda i: each["layers", i], lambda i: numbers[i]), atol=1e-6)
    result = stack.fold(x, same, scale=2.0)
    assert allclose(result.array, looped(lambda i: same, lambda i: 2.0), atol=1e-6)


def test_any_function_of_a_layer_may_be_applied(stack, draw):
    x = draw(Embed)
    doubled = stack.fold_via(lambda block, x, add, *, layer: block(2 * x) + add + layer)
    out = x
    for i, layer in enumerate(stack.unstacked()):
        out = layer(2 * out) + 1.0 + i
    assert allclose(doubled(x, 1.0, layer=nym.arange(Layers)).array, out.array, atol=1e-5)


class Both(Shift):
    """A layer that returns a result beside what goes on."""

    def __call__(self, x, add=0.0, *, scale=1.0):
        out = super().__call__(x, add, scale=scale)
        return out, {"named": out.sum("embed"), "plain": out.array[:2], "static": "kind", "none": None}


@pytest.mark.parametrize("unroll", [1, 3, True])
def test_results_of_all_layers_have_the_layer_axis_in_front(draw, unroll):
    stack = draw.layer(nym.nn.Stacked.init(Layers, lambda Embed, *, key: Both(nym.random.uniform(key, Embed))), Embed)
    x = draw(Batch, Embed)
    last, results = stack.scan(x, scale=0.5, unroll=unroll)
    out = x
    for i, layer in enumerate(stack.unstacked()):
        out, result = layer(out, scale=0.5)
        assert allclose(results["named"]["layers", i].array, result["named"].array, atol=1e-5)
        assert allclose(results["plain"][i], result["plain"], atol=1e-5)
    assert allclose(last.array, out.array, atol=1e-5)
    assert results["named"].names == ("layers", "batch") and results["plain"].shape == (3, 2, 8)
    assert results["static"] == "kind" and results["none"] is None
    _, sums = stack.scan_via(lambda layer, x: (layer(x)[0], layer.weight.sum()), unroll=unroll)(x)
    assert sums.names == ("layers",) and allclose(sums.array, stack.stacked.weight.sum("embed").array, atol=1e-5)


def test_layers_can_be_applied_to_the_same_input(stack, draw):
    x, add, scale = draw(Batch, Embed), draw(Layers, Embed), draw.array((3,))
    result = stack.vmap(x, add, scale=scale)
    assert result.names == ("layers", "batch", "embed")
    for i, layer in enumerate(stack.unstacked()):
        expected = layer(x, add["layers", i], scale=scale[i])
        assert allclose(result["layers", i].array, expected.array, atol=1e-5)
    pairs = stack.vmap_via(lambda layer, x: (layer.weight, (x * layer.weight).sum("embed")))(x)
    assert pairs[0].names == ("layers", "embed") and pairs[1].names == ("layers", "batch")


def test_every_way_to_apply_layers_can_be_unrolled(stack, draw):
    fold = lambda layer, x: layer(x)  # noqa: E731
    scan = lambda layer, x: (layer(x), None)  # noqa: E731
    for apply in (
        lambda stack, x: stack.fold(x, unroll=2),
        lambda stack, x: stack.fold_via(fold, unroll=2)(x),
        lambda stack, x: stack.scan_via(scan, unroll=2)(x),
    ):
        assert "unroll=2" in str(jax.make_jaxpr(apply)(stack, draw(Embed)))
    x = draw(Embed)
    assert allclose(stack.fold(x, unroll=True).array, stack.fold(x).array, atol=1e-6)


def test_single_layers_can_be_taken_out(stack):
    layers = stack.unstacked()
    assert len(layers) == 3 and all(type(layer) is Shift for layer in layers)
    assert layers[1].weight.names == ("embed",) and layers[1].rate == 0.5
    for i in (0, 2, -1, -3):
        assert np.array_equal(stack.get_layer(i).weight.array, stack.stacked.weight.array[i])
    for i in (3, -4):
        with refusal(f"there is no layer {i} in layers: 3", IndexError):
            stack.get_layer(i)
    from_disk = jax.tree.map(np.asarray, nym.nn.Stacked({"plain": jnp.arange(6).reshape(3, 2)}, Layers, False))
    assert from_disk.get_layer(1)["plain"].tolist() == [2, 3]


class Grid(eqx.Module):
    """A layer of one parameter that has two axes to divide, and one that is the same in each layer."""

    weight: nym.NamedArray
    bias: nym.NamedArray

    @staticmethod
    def init(Embed, Mlp, *, key):
        return Grid(nym.random.uniform(key, (Mlp, Embed)), nym.zeros(Mlp))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_layers_are_sharded_as_they_are_made(mesh, compiled):
    mapping = {"mlp": "model", "embed": "data"}

    def make(key):
        return nym.nn.Stacked.init(Layers, Grid)(Embed, Mlp, key=key)

    with jax.set_mesh(None):
        expected = jax.jit(make)(KEY)
    with nym.axis_mapping(mapping):
        stack = nym.named_jit(make)(KEY) if compiled else make(KEY)
    for result, target in zip(*(jax.tree.leaves(tree, is_leaf=is_named) for tree in (stack, expected)), strict=True):
        expected_sharding = nym.sharding_for_axis(result.axes, mapping)
        assert expected_sharding.spec[0] is None
        assert result.array.sharding.is_equivalent_to(expected_sharding, result.ndim), result
        assert allclose(jax.device_get(result.array), jax.device_get(target.array), atol=1e-6)
    assert tuple(stack.stacked.weight.sharding.spec) == (None, "model", "data")


def is_named(x):
    return isinstance(x, nym.NamedArray)


def test_what_the_first_layer_takes_need_not_be_sharded(mesh, draw):
    stack, x = draw.layer(nym.nn.Stacked.init(Layers, Shift), Embed), draw(Batch, Embed)
    with jax.set_mesh(None):
        expected = stack.fold(x)
    with nym.axis_mapping({"batch": "data", "embed": "model"}):
        stack = nym.shard(stack)
        for result in (stack.fold(x), nym.named_jit(lambda stack, x: stack.fold(x))(stack, x)):
            assert allclose(jax.device_get(result.array), expected.array, atol=1e-6)
        scanned, _ = stack.scan_via(lambda layer, x: (layer(x), None))(x)
    assert allclose(jax.device_get(scanned.array), expected.array, atol=1e-6)


@pytest.mark.parametrize("compile_init", [lambda fn: fn, nym.named_jit], ids=["eager", "compiled"])
@pytest.mark.parametrize("key", [KEY, None], ids=["random", "constant"])
def test_the_layer_axis_may_be_divided_itself(mesh, draw, compile_init, key):
    four = nym.Axis("layers", 4)
    with nym.axis_mapping({"layers": "data", "embed": "model"}):
        stack = compile_init(lambda key: nym.nn.Stacked.init(four, Shift)(Embed, key=key))(key)
        result = nym.named_jit(lambda stack, x: stack.fold(x))(stack, nym.shard(draw(Embed)))
    assert tuple(stack.stacked.weight.sharding.spec) == ("data", "model")
    assert tuple(result.sharding.spec) == ("model",)


def test_stacks_can_be_stacked(draw):
    outer = nym.Axis("outer", 2)

    def init(*args, key):
        return nym.nn.Stacked.init(Layers, Shift)(*args, key=key)

    stack = draw.layer(nym.nn.Stacked.init(outer, init), Embed)
    assert stack.stacked.stacked.weight.shape == {"outer": 2, "layers": 3, "embed": 8}
    x = draw(Embed)
    result = stack.fold_via(lambda inner, x: inner.fold(x))(x)
    assert allclose(result.array, (x + stack.stacked.stacked.weight.sum(("outer", "layers"))).array, atol=1e-5)


FACTOR = 2.0


class ScaleByGlobal(Shift):
    def __call__(self, x):
        return x * self.weight * FACTOR


def scan_layer(layer, x):
    return layer(x), layer(x)


def map_layer(layer):
    return Shift(layer(nym.ones(Embed)))


def make_layer():
    return Shift(FACTOR * nym.ones(Embed))


@pytest.mark.parametrize(
    "apply",
    [
        lambda stack, x: stack.fold(x),
        lambda stack, x: stack.fold_via(ScaleByGlobal.__call__)(x),
        lambda stack, x: stack.scan_via(scan_layer)(x)[1],
        lambda stack, x: stack.map_layers(map_layer).stacked.weight,
        lambda stack, x: nym.nn.Stacked.init(Layers, make_layer)().stacked.weight,
    ],
    ids=["fold", "fold_via", "scan_via", "map_layers", "init"],
)
def test_a_changed_global_is_seen_by_the_next_call(apply, monkeypatch):
    stack, x = nym.nn.Stacked(ScaleByGlobal(nym.ones((Layers, Embed))), Layers, False), nym.ones(Embed)
    assert apply(stack, x).array.all()
    monkeypatch.setitem(globals(), "FACTOR", 0.0)
    assert not apply(stack, x).array.any()

"""Stacks of layers, in one array or in a sequence: how they are made, applied, recomputed, sharded and taken apart."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import ScanCheckpointPolicy
from axonym.nn import BlockSeq, Stacked

from ..comparing import allclose
from ..refusals import refusal
from .conftest import assert_leaves_close


Layers, Embed, Mlp, Batch = nym.make_axes(layers=4, embed=8, mlp=6, batch=8)
KEY = jax.random.key(0)
KINDS = [Stacked, BlockSeq]
POLICIES = {
    "none": False,
    "steps": True,
    "simple": ScanCheckpointPolicy(simple=True),
    "nothing": "full",
    "nested": "nested",
    "a name": ScanCheckpointPolicy(save_block_internals=["hidden"]),
    "JAX": jax.checkpoint_policies.dots_saveable,
    "inputs": ScanCheckpointPolicy(save_inputs=True),
    "host": ScanCheckpointPolicy(save_carries="offload"),
    "host nested": ScanCheckpointPolicy(save_carries="offload", nested=3),
}


class Block(eqx.Module):
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(Embed, Mlp, *, key):
        k_up, k_down = jax.random.split(key)
        return Block(nym.nn.Linear.init(Embed, Mlp, key=k_up), nym.nn.Linear.init(Mlp, Embed, key=k_down))

    def __call__(self, x):
        hidden = nym.tree_checkpoint_name(nym.tanh(self.up(x)), "hidden")
        return x + 0.5 * self.down(nym.sin(hidden))


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


class Both(Shift):
    """A layer that returns a result beside what goes on."""

    def __call__(self, x, add=0.0, *, scale=1.0):
        out = super().__call__(x, add, scale=scale)
        return out, {"named": out.sum("embed"), "plain": out.array[:2], "static": "kind", "none": None}


X = nym.named(np.sin(np.arange(64.0, dtype=np.float32)).reshape(8, 8), (Batch, Embed))
NUMBERS = nym.named(np.arange(4.0, dtype=np.float32), Layers)


@pytest.fixture
def stack(draw):
    return draw.layer(Stacked.init(Layers, Shift), Embed)


def make_both(stack):
    """Returns the stack and the same layers in a sequence."""
    return stack, BlockSeq(stack.unstacked(), Layers, stack.gradient_checkpointing)


def apply_in_turn(layers, x, *args):
    for layer, *values in zip(layers.unstacked(), *args, strict=True):
        x = layer(x, *values)
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_applied_one_after_another(check, draw, kind):
    make = kind.init(Layers.resize(2), Block, gradient_checkpointing=kind is Stacked)
    layers = draw.layer(make, Embed, Mlp)
    check(lambda layers, x: layers.fold(x), apply_in_turn, layers, draw(Batch, Embed), tolerance=1e-4)


def test_a_sequence_is_made_with_the_parameters_of_stacked_layers():
    stacked, layers = (kind.init(Layers, Shift)(Embed, key=KEY, start=NUMBERS) for kind in KINDS)
    assert type(layers) is BlockSeq and all(type(layer) is Shift for layer in layers.blocks)
    assert_leaves_close(stacked.unstacked(), layers.unstacked(), 0)
    assert layers.get_layer(-1) is layers.blocks[3] and layers.gradient_checkpointing is False
    assert_leaves_close(Stacked(layers.vmap_via(lambda layer: layer)(), Layers), stacked, 0)
    doubled = layers.map_layers(lambda a, b: jax.tree.map(jnp.add, a, b), layers)
    assert_leaves_close(doubled.blocks[1].weight, 2 * layers.blocks[1].weight)


def count_saved(layers, remat):
    """How many carries and hidden values are saved, and how many of all are on the host."""
    _, backward = jax.vjp(BlockSeq(layers, Layers, remat).fold, X)
    arrays = [leaf for leaf in jax.tree.leaves(backward) if getattr(leaf, "shape", None) in ((8, 8), (8, 6))]
    hosts = sum(array.sharding.memory_kind == "pinned_host" for array in arrays)
    parameters = {id(leaf) for leaf in jax.tree.leaves(layers)}
    return len([array for array in arrays if id(array) not in parameters]), hosts


def test_a_policy_saves_what_it_says(draw):
    layers = draw.layer(BlockSeq.init(Layers, Block), Embed, Mlp).blocks
    result = {name: count_saved(layers, remat) for name, remat in POLICIES.items()}
    assert result["nothing"][0] < result["nested"][0] < result["steps"][0] < result["a name"][0] <= result["none"][0]
    assert result["simple"] == result["steps"] == result["inputs"]
    assert [name for name, (_, hosts) in result.items() if hosts] == ["host", "host nested"]
    assert result["host"][1] > result["host nested"][1]


def count_traces(draw, remat):
    """A stack of layers of a kind of their own, and the calls of a layer as it is traced."""
    traces = []

    class Counted(Shift):
        def __call__(self, x):
            traces.append(None)
            return super().__call__(x)

    init = Stacked.init(Layers, lambda Embed, *, key: Counted(nym.ones(Embed)), gradient_checkpointing=remat)
    return draw.layer(init, Embed), traces


@pytest.mark.parametrize("remat", ["steps", "none", "JAX"])
def test_a_layer_is_traced_once_in_one_scan(draw, remat):
    stack, traces = count_traces(draw, POLICIES[remat])
    x = draw(Batch, Embed)
    program = str(
        jax.make_jaxpr(lambda stack, x: jax.grad(lambda stack: stack.fold(x).sum().scalar())(stack))(stack, x)
    )
    assert len(traces) == 1
    assert program.count(" = scan[") == 2  # forward and backward
    assert ("checkpoint[" in program or "remat" in program) == (remat != "none")
    assert ("policy=None" in program) == (remat == "steps")


def test_an_eager_call_traces_a_layer_once(draw):
    stack, traces = count_traces(draw, False)
    for run in (stack.fold, stack.fold_via(lambda layer, x: layer(x))):
        run(draw(Batch, Embed))
    assert len(traces) == 2


def test_every_layer_has_a_key_of_its_own():
    expected = [Shift.init(Embed, key=key).weight.array for key in jax.random.split(KEY, 4)]
    assert len({float(weight.sum()) for weight in expected}) == 4
    old = jax.random.PRNGKey(0)
    for keys in (KEY, nym.named(KEY, ()), nym.random.split(KEY, Layers), np.asarray(old), jax.random.split(old, 4)):
        stack = Stacked.init(Layers, Shift.init if keys is KEY else Shift)(Embed, key=keys)
        assert np.array_equal(stack.stacked.weight.array, np.stack(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_has_a_key_of_its_own_wherever_it_is(kind):
    make = kind.init(Layers, lambda keys: Shift.init(Embed, key=keys["shift"]))
    for number, layer in enumerate(make({"shift": KEY}).unstacked()):
        assert np.array_equal(layer.weight.array, Shift.init(Embed, key=jax.random.fold_in(KEY, number)).weight.array)
    with refusal(f"`{kind.__name__}.init` cannot tell whether args[0]['shift'], a plain uint32 array", TypeError):
        make({"shift": jax.random.PRNGKey(0)})


def test_other_arguments_are_cut_if_they_have_the_layer_axis():
    make = Stacked.init(Layers, Shift)
    assert make(Embed, start=NUMBERS).stacked.weight.array[:, 0].tolist() == [1, 2, 3, 4]
    assert (make(Embed, start=nym.ones(Embed)).stacked.weight == 2).all()
    assert make(Embed, start=jnp.arange(4.0)).stacked.weight.array[:, 0].tolist() == [1, 2, 3, 4]
    with refusal("`vmap` over axis 'layers' of size 4 got a plain array of shape (5,), which has size 5 there"):
        make(Embed, key=jax.random.split(KEY, 5))
    with refusal("Stacked (key): no axis 'layers' in (heads: 4)"):
        make(Embed, key=nym.random.split(KEY, nym.Axis("heads", 4)))


def test_results_and_arguments_are_those_of_each_layer_in_both_kinds(draw):
    """Arguments that have the layer axis are cut, others are the same for each layer."""
    stack = Stacked(Both(draw(Layers, Embed)), Layers)
    x, add, same, plain = draw(Batch, Embed), draw(Embed, Layers), draw(Embed), draw.array((4,))

    def apply(layers):
        shift = lambda layer, x, *args, **options: layer(x, *args, **options)[0]  # noqa: E731
        return (
            layers.scan(x, scale=0.5),
            layers.fold_via(shift)(x, add, scale=plain),
            layers.fold_via(lambda layer, x, y, *, layer_number: shift(layer, 2 * x) + y + layer_number)(
                x, same, layer_number=nym.arange(Layers)
            ),
            layers.vmap(x, add, scale=plain),
            layers.scan_via(lambda layer, x, y: (shift(layer, x) + y, y))(x, NUMBERS),
            layers.vmap_via(lambda layer, y, *, x: (layer.weight, shift(layer, x) * y))(NUMBERS, x=x),
        )

    def apply_by_hand(layers):
        scanned, cut, other, summed = x, x, x, x
        results, mapped, pairs = [], [], []
        for i, layer in enumerate(layers):
            scanned, result = layer(scanned, scale=0.5)
            cut = layer(cut, add["layers", i], scale=plain[i])[0]
            other = layer(2 * other)[0] + same + i
            summed = layer(summed)[0] + i
            results.append(result)
            mapped.append(layer(x, add["layers", i], scale=plain[i]))
            pairs.append((layer.weight, layer(x)[0] * i))
        stack = lambda trees: jax.tree.map(  # noqa: E731
            lambda *leaves: nym.stack("layers", leaves) if nym.is_named_array(leaves[0]) else jnp.stack(leaves),
            *(eqx.filter(tree, eqx.is_array) for tree in trees),
            is_leaf=nym.is_named_array,
        )
        return (scanned, stack(results)), cut, other, stack(mapped), (summed, NUMBERS), stack(pairs)

    both = make_both(stack)
    expected = jax.jit(lambda layers: apply_by_hand(layers))(stack.unstacked())
    for layers in both:
        results = eqx.filter_jit(apply)(layers)
        assert_leaves_close(eqx.filter(results, eqx.is_array), expected, 1e-5)
        _, metrics = results[0]
        assert metrics["named"].names == ("layers", "batch") and metrics["plain"].shape == (4, 2, 8)
        assert metrics["static"] == "kind" and metrics["none"] is None


def test_every_way_to_apply_layers_can_be_unrolled(stack, draw):
    x = draw(Embed)
    for apply in (
        lambda stack, x, unroll: stack.fold(x, unroll=unroll),
        lambda stack, x, unroll: stack.fold_via(lambda layer, x: layer(x), unroll=unroll)(x),
        lambda stack, x, unroll: stack.scan_via(lambda layer, x: (layer(x), None), unroll=unroll)(x)[0],
    ):
        assert "unroll=2" in str(jax.make_jaxpr(apply, static_argnums=2)(stack, x, 2))
        assert allclose(jax.jit(apply, static_argnums=2)(stack, x, True).array, stack.fold(x).array, atol=1e-6)
    assert "unroll=2" in str(
        jax.make_jaxpr(lambda x: Stacked(Both(stack.stacked.weight), Layers).scan(x, unroll=2)[0])(x)
    )


def test_single_layers_can_be_taken_out(stack):
    layers = stack.unstacked()
    assert len(layers) == 4 and all(type(layer) is Shift for layer in layers)
    assert layers[1].weight.names == ("embed",) and layers[1].rate == 0.5
    for i in (0, 2, -1, -4):
        assert np.array_equal(stack.get_layer(i).weight.array, stack.stacked.weight.array[i])
    for i in (4, -5):
        with refusal(f"there is no layer {i} in layers: 4", IndexError):
            stack.get_layer(i)
    from_disk = jax.tree.map(np.asarray, Stacked({"plain": np.arange(8).reshape(4, 2)}, Layers, False))
    assert from_disk.get_layer(1)["plain"].tolist() == [2, 3]


def test_layers_of_different_kinds_may_change_the_carry():
    linear = nym.nn.Linear.init(Embed, Mlp, key=KEY)
    layers = BlockSeq([nym.nn.RmsNorm.init(Embed), linear], nym.Axis("layers", 2), True)
    gradient = jax.grad(lambda layers: layers.fold(X).sum().scalar())(layers)
    expected = jax.grad(lambda pair: pair[1](pair[0](X)).sum().scalar())(layers.blocks)
    assert_leaves_close(gradient.blocks, expected, 1e-5)


class Noisy(eqx.Module):
    """A layer that drops elements; the gradient with respect to its input is its result divided by the input."""

    weight: nym.NamedArray

    def __call__(self, x, key):
        return nym.nn.Dropout(0.3)(nym.tree_checkpoint_name(x * self.weight, "hidden"), key=key)


def make_noisy(remat=False):
    return make_both(Stacked(Noisy(nym.arange(Layers, start=1.0).broadcast_axis(Embed)), Layers, remat))


FOLDED_KEYS = [jax.random.fold_in(KEY, index) for index in range(4)]
SPLIT_KEYS = jax.random.split(jax.random.key(1), 4)
HEAD_KEYS = nym.random.split(KEY, nym.Axis("heads", 2))
KEY_CALLS = {
    "named": lambda layers, x: layers.fold(x, key=nym.named(KEY, ())),
    "in a tree": lambda layers, x: layers.fold_via(lambda layer, x, keys: layer(x, keys["drop"]))(x, {"drop": KEY}),
    "scanned": lambda layers, x: layers.scan_via(lambda layer, x, key: (layer(x, key), x.sum()))(x, key=KEY)[0],
    "with another axis": lambda layers, x: layers.fold_via(lambda layer, x, keys: layer(x, keys["heads", 1]))(
        x, HEAD_KEYS
    ),
    "of each layer": lambda layers, x: layers.fold(x, SPLIT_KEYS),
}


def test_each_layer_drops_other_elements():
    head_keys = [jax.random.fold_in(HEAD_KEYS["heads", 1].array, index) for index in range(4)]
    layer_keys = {"with another axis": head_keys, "of each layer": [*SPLIT_KEYS]}
    stacked, layers = make_noisy()

    @jax.jit
    def compute(stacked, layers):
        expected = {name: apply_in_turn(stacked, X, layer_keys.get(name, FOLDED_KEYS)) for name in KEY_CALLS}
        return *({name: call(kind, X) for name, call in KEY_CALLS.items()} for kind in (stacked, layers)), expected

    *results, expected = compute(stacked, layers)
    for result in results:
        assert_leaves_close(result, expected)


def test_layers_that_get_the_same_input_drop_other_elements(mesh):
    masks = np.stack([nym.nn.Dropout(0.3)(nym.ones(X.axes), key=key).array != 0 for key in FOLDED_KEYS])
    assert len({mask.tobytes() for mask in masks}) == 4

    @nym.named_jit(axis_resources={"layers": "data"})
    def run(both, x, key):
        return [layers.vmap(x, key=key) for layers in both]

    for result in run(make_noisy(), nym.ones(X.axes), KEY):
        assert np.array_equal(np.asarray(result.array) != 0, masks)


def test_stacks_in_stacks_drop_other_elements():
    def compute(layers):
        outer = BlockSeq([layers, layers], nym.Axis("stages", 2))
        expected = X
        for stage in range(2):
            key = jax.random.fold_in(KEY, stage)
            expected = apply_in_turn(layers, expected, [jax.random.fold_in(key, index) for index in range(4)])
        return outer.fold_via(lambda stage, x, key: stage.fold(x, key=key))(X, KEY), expected

    for layers in make_noisy():
        assert_leaves_close(*jax.jit(compute)(layers))


@pytest.mark.parametrize(
    "policies_of_sequences", [["a name", "host nested"], pytest.param([*POLICIES], marks=pytest.mark.thorough)]
)
def test_a_policy_changes_no_gradient_and_drops_the_same_elements(policies_of_sequences):
    @jax.jit
    def compute(x):
        expected = apply_in_turn(make_noisy()[0], x, FOLDED_KEYS)
        every = [make_noisy(policy)[0] for policy in POLICIES.values()]
        every += [make_noisy(POLICIES[name])[1] for name in policies_of_sequences]
        fold = nym.value_and_grad(lambda x, layers: layers.fold(x, key=KEY).sum())
        return [fold(x, layers) for layers in every], (expected.sum(), expected / x)

    results, expected = compute(X + 2.0)
    for result in results:
        assert_leaves_close(result, expected, 1e-4)


def test_recomputed_layers_keep_the_type_of_their_inputs_with_64_bits():
    with jax.enable_x64(True):
        for dtype in ("float32", "float64"):
            weight, x = nym.ones((Layers, Embed), dtype), nym.ones((Batch, Embed), dtype)
            for layers in make_both(Stacked(Noisy(weight), Layers, "nested")):
                loss = lambda layers, x: layers.fold(x, key=KEY).sum().scalar()  # noqa: E731
                shapes = jax.eval_shape(jax.value_and_grad(loss, (0, 1)), layers, x)
                assert {leaf.dtype.name for leaf in jax.tree.leaves(shapes)} == {dtype}


def test_a_legacy_key_is_an_error():
    one, numbers = jax.random.PRNGKey(0), jnp.zeros(2, jnp.uint32)
    text = (
        "cannot tell whether key, a plain uint32 array of shape (2,), is a legacy random key or data; pass a typed "
        "key, from `jax.random.key(seed)` or `jax.random.wrap_key_data(array)`, or data as a named array"
    )
    for kind, layers in zip(("Stacked", "BlockSeq"), make_noisy(), strict=True):
        for key in (one, np.asarray(one), numbers):
            for call in (layers.fold, layers.scan, layers.vmap):
                with refusal(f"`{kind}` {text}", TypeError):
                    call(X, key=key)
        with refusal(f"`{kind}` cannot tell whether args[0]['drop'], a plain uint32", TypeError):
            layers.fold(X, {"drop": one})
        assert_leaves_close(layers.fold(X, jax.random.wrap_key_data(one)), layers.fold(X, KEY))
        assert_leaves_close(layers.fold(X, jax.random.split(one, 4)), layers.fold(X, jax.random.split(KEY, 4)))
        add = layers.fold_via(lambda layer, x, numbers: x + numbers.sum().astype(float))
        assert_leaves_close(add(X, nym.named(numbers, "pair")), X)


def test_operations_have_the_paths_of_their_layers(draw):
    class Model(eqx.Module):
        blocks: nym.nn.LayerStack

        @nym.named_call
        def __call__(self, x):
            return self.blocks.fold(x)

    layers = draw.layer(BlockSeq.init(Layers, Block), Embed, Mlp).blocks
    for remat, path in ((False, "Model/blocks/blocks[1]/up/dot"), (True, "[blocks[1]/up/dot")):  # JAX adds the rest
        model = Model(BlockSeq(layers, Layers, remat))
        program = jax.make_jaxpr(lambda model, x: model(x))(model, X)
        assert path in program.pretty_print(name_stack=True)


@pytest.mark.parametrize(
    ("axis_types", "kind", "compiled"),
    [
        ("auto", Stacked, False),
        ("auto", BlockSeq, True),
        ("explicit", Stacked, True),
        ("explicit", BlockSeq, False),
    ],
)
def test_layers_are_sharded_as_they_are_made(request, axis_types, kind, compiled):
    mapping = {"mlp": "model", "embed": "data"}

    def make(key):
        return kind.init(Layers, nym.nn.Linear)(Embed, Mlp, key=key)

    expected = jax.jit(make)(KEY)
    mesh = request.getfixturevalue(f"{axis_types}_mesh")
    with jax.set_mesh(mesh), nym.axis_mapping(mapping):
        layers = nym.named_jit(make)(KEY) if compiled else make(KEY)
        leaves = jax.tree.leaves(layers, is_leaf=nym.is_named_array)
        for result in leaves:
            assert result.array.sharding.is_equivalent_to(nym.sharding_for_axis(result.axes), result.ndim), result
    assert tuple(leaves[0].sharding.spec)[-2:] == ("model", "data")
    assert_leaves_close(layers, expected)


def test_layers_take_arguments_and_inputs_that_are_not_sharded(mesh, draw):
    stack, x = draw.layer(Stacked.init(Layers, Shift), Embed), draw(Batch, Embed)
    with jax.set_mesh(None):
        expected = stack.fold(x, NUMBERS)
    with nym.axis_mapping({"batch": "data", "embed": "model"}):
        stack = nym.shard(stack)
        for result in (stack.fold(x, NUMBERS), nym.named_jit(lambda stack, x: stack.fold(x, NUMBERS))(stack, x)):
            assert_leaves_close(result, expected)
        scanned, _ = stack.scan_via(lambda layer, x, add: (layer(x, add), None))(x, NUMBERS)
    assert_leaves_close(scanned, expected)
    layers = make_both(jax.device_get(stack))[1]
    with nym.axis_mapping({"layers": "data"}):  # the arguments of each layer are not sharded along it
        result = nym.named_jit(lambda layers, x, add: layers.fold(x, add))(layers, x, nym.shard(NUMBERS))
    assert_leaves_close(result, expected)


@pytest.mark.parametrize(
    ("axis_types", "compile_init", "key"),
    [("auto", nym.named_jit, None), ("explicit", nym.named_jit, KEY), ("explicit", lambda fn: fn, None)],
)
def test_the_layer_axis_may_be_divided_itself(request, draw, axis_types, compile_init, key):
    mesh = request.getfixturevalue(f"{axis_types}_mesh")
    with jax.set_mesh(mesh), nym.axis_mapping({"layers": "data", "embed": "model"}):
        stack = compile_init(lambda key: Stacked.init(Layers, Shift)(Embed, key=key))(key)
        result = nym.named_jit(lambda stack, x: stack.fold(x))(stack, nym.shard(draw(Embed)))
    assert tuple(stack.stacked.weight.sharding.spec) == ("data", "model")
    assert tuple(result.sharding.spec) == ("model",)


FACTOR = 2.0


class ScaleByGlobal(Shift):
    def __call__(self, x):
        return x * self.weight * FACTOR


def scan_layer(layer, x):
    return layer(x), layer(x)


def make_layer(layer=None):
    return Shift(FACTOR * nym.ones(Embed))


def test_a_changed_global_is_seen_by_the_next_call(monkeypatch):
    stack, x = Stacked(ScaleByGlobal(nym.ones((Layers, Embed))), Layers, False), nym.ones(Embed)
    for factor in (2.0, 0.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        for result in (
            stack.fold(x),
            stack.fold_via(ScaleByGlobal.__call__)(x),
            stack.scan_via(scan_layer)(x)[1],
            stack.map_layers(make_layer).stacked.weight,
            Stacked.init(Layers, make_layer)().stacked.weight,
        ):
            assert (result.array != 0).all() == (factor != 0)


def test_errors_of_stacks():
    stacked, layers = make_both(Stacked(Shift(nym.ones((Layers, Embed))), Layers))
    with refusal("`BlockSeq` along layers: 4 was given 2 layers; give as many as the axis has"):
        BlockSeq(layers.blocks[:2], Layers)
    with refusal("`BlockSeq` over axis 'layers' of size 4 got a plain array of shape (3,), which has size 3 there"):
        layers.fold(X, jnp.ones(3))
    with refusal("layers along layers: 4 return different values that are not arrays; return arrays"):
        layers.vmap_via(lambda layer: str(id(layer)))()
    with refusal("The function given to `scan` must return a pair", TypeError):
        layers.scan(X)
    with refusal("layers along layers: 4 return results of 2 structures; only one can be stacked"):
        layers.vmap_via(lambda layer: layer if layer is layers.blocks[0] else None)()
    with refusal("Layers along layers: 4 need another `BlockSeq`, not", TypeError):
        layers.map_layers(lambda a, b: a, stacked)
    with refusal("layers along layers: 4 do not match layers along depth: 4"):
        layers.map_layers(lambda a, b: a, BlockSeq(layers.blocks, nym.Axis("depth", 4)))
    with refusal("what a loop recomputes is one of 'full', 'nested', 'offload'"):
        BlockSeq.init(Layers, Block, gradient_checkpointing="nestd")
    with refusal("BlockSeq.init` takes the layer axis and the class of a layer", TypeError):
        BlockSeq.init("layers", Block)  # pyright: ignore[reportArgumentType]
    with refusal(
        "`BlockSeq` takes layers and the layer axis, as in `BlockSeq((first, second), Axis('layers', 2))`", TypeError
    ):
        BlockSeq(layers.blocks, 4)
    with refusal("the number of a layer must be an integer, not 0.5.", TypeError):
        stacked.get_layer(0.5)

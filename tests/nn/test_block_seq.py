"""Layers in a Python sequence: they do what stacked ones do, and may differ from each other."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import ScanCheckpointPolicy

from ..refusals import refusal


Layers, Embed, Mlp, Batch = nym.make_axes(layers=4, embed=8, mlp=6, batch=8)
KEY = jax.random.key(0)
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
    rate: float = eqx.field(static=True, default=0.5)

    @classmethod
    def init(cls, Embed, Mlp, *, key, start=0.0):
        k_up, k_down = jax.random.split(key)
        down = nym.nn.Linear.init(Mlp, Embed, key=k_down)
        return cls(nym.nn.Linear.init(Embed, Mlp, key=k_up), eqx.tree_at(lambda x: x.bias, down, down.bias + start))

    def __call__(self, x, add=0.0):
        hidden = nym.tree_checkpoint_name(nym.tanh(self.up(x)), "hidden")
        return x + self.rate * self.down(nym.sin(hidden)) + add


class Pair(Block):
    def __call__(self, x, add=0.0):
        out = super().__call__(x, add)
        return out, {"named": out.sum("embed"), "plain": out.array[:2], "static": "kind", "none": None}


def both(module, remat=False, **kwargs):
    kinds = (nym.nn.Stacked, nym.nn.BlockSeq)
    return [kind.init(Layers, module, gradient_checkpointing=remat)(Embed, Mlp, key=KEY, **kwargs) for kind in kinds]


def assert_equal(one, other, tolerance=1e-6):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(jax.device_get(x), jax.device_get(y), rtol=tolerance, atol=tolerance)


def test_layers_are_made_with_the_parameters_of_stacked_ones():
    stacked, layers = both(Block, start=nym.arange(Layers, dtype=float))
    assert type(layers) is nym.nn.BlockSeq and all(type(block) is Block for block in layers.blocks)
    assert_equal(stacked.unstacked(), layers.unstacked(), 0)
    assert layers.get_layer(-1) is layers.blocks[3] and layers.gradient_checkpointing is False
    joined = nym.nn.Stacked(layers.vmap_via(lambda layer: layer)(), Layers)
    assert_equal(joined, stacked, 0)
    doubled = layers.map_layers(lambda a, b: jax.tree.map(jnp.add, a, b), layers)
    assert_equal(doubled.blocks[1].up.weight, 2 * layers.blocks[1].up.weight)


def one_by_one(layers, x):
    for layer in layers.unstacked():
        x = layer(x)
    return x


@pytest.mark.parametrize("remat", [False, "nested"])
def test_layers_are_applied_one_after_another(check, draw, remat):
    layers = draw.layer(nym.nn.BlockSeq.init(Layers, Block, gradient_checkpointing=remat), Embed, Mlp)
    check(lambda layers, x: layers.fold(x), one_by_one, layers, draw(Batch, Embed), tolerance=1e-4)


@pytest.fixture(scope="module")
def expected():
    stacked, _ = both(Block)
    gradient = jax.jit(jax.grad(lambda stacked, x: (stacked.fold(x) ** 2).sum().scalar()))(stacked, input_of())
    return gradient.unstacked()


def input_of():
    return nym.named(jnp.sin(jnp.arange(64.0)).reshape(8, 8), (Batch, Embed))


@pytest.mark.parametrize("remat", POLICIES.values(), ids=POLICIES)
def test_a_policy_changes_no_gradient(remat, expected):
    _, layers = both(Block, remat)
    gradient = jax.jit(jax.grad(lambda layers, x: (layers.fold(x) ** 2).sum().scalar()))(layers, input_of())
    assert_equal(list(gradient.blocks), expected, 1e-4)


def count_saved(remat):
    """How many carries and hidden values are saved, and how many of all are on the host."""
    _, layers = both(Block, remat)
    _, backward = jax.vjp(layers.fold, input_of())
    arrays = [leaf for leaf in jax.tree.leaves(backward) if getattr(leaf, "shape", None) in ((8, 8), (8, 6))]
    hosts = sum(array.sharding.memory_kind == "pinned_host" for array in arrays)
    parameters = {id(leaf) for leaf in jax.tree.leaves(layers)}
    own = [array for array in arrays if id(array) not in parameters]
    return len(own), hosts


def test_a_policy_saves_what_it_says():
    result = {name: count_saved(remat) for name, remat in POLICIES.items()}
    assert result["nothing"][0] < result["nested"][0] < result["steps"][0] < result["a name"][0] <= result["none"][0]
    assert result["simple"] == result["steps"] == result["inputs"]
    assert [name for name, (_, hosts) in result.items() if hosts] == ["host", "host nested"]
    assert result["host"][1] > result["host nested"][1]


def test_results_and_arguments_are_those_of_stacked_layers():
    stacked, layers = both(Pair)
    x, add = input_of(), nym.arange(Layers, dtype=float)
    for apply in (
        lambda kind: kind.scan(x),
        lambda kind: kind.scan(x, add),
        lambda kind: kind.scan(x, add=jnp.arange(4.0)),
        lambda kind: kind.vmap(x, add),
        lambda kind: kind.scan_via(lambda layer, x, y: (layer(x)[0] + y, y))(x, add),
        lambda kind: kind.vmap_via(lambda layer, y, *, x: layer(x)[0] * y)(add, x=x),
        lambda kind: kind.fold_via(lambda layer, x, y: layer(x, y)[0])(x, add),
    ):
        result, expected = apply(stacked), apply(layers)
        assert_equal(eqx.filter(expected, eqx.is_array), eqx.filter(result, eqx.is_array), 1e-5)
    _, results = layers.scan(x)
    assert results["named"].names == ("layers", "batch") and results["static"] == "kind" and results["none"] is None


def test_layers_of_different_kinds_may_change_the_carry():
    linear = nym.nn.Linear.init(Embed, Mlp, key=KEY)
    layers = nym.nn.BlockSeq([nym.nn.RmsNorm.init(Embed), linear], nym.Axis("layers", 2), True)
    x = input_of()
    gradient = jax.grad(lambda layers: layers.fold(x).sum().scalar())(layers)
    expected = jax.grad(lambda pair: pair[1](pair[0](x)).sum().scalar())(layers.blocks)
    assert_equal(gradient.blocks, expected, 1e-5)


class Noisy(eqx.Module):
    """A layer that drops elements; the gradient with respect to its input is its result divided by the input."""

    weight: nym.NamedArray

    def __call__(self, x, key):
        return nym.nn.Dropout(0.3)(x * self.weight, key=key)


def both_noisy(remat=False):
    weight = nym.arange(Layers, start=1.0).broadcast_axis(Embed)
    blocks = [Noisy(weight["layers", index]) for index in range(4)]
    return nym.nn.Stacked(Noisy(weight), Layers, remat), nym.nn.BlockSeq(blocks, Layers, remat)


def apply_noisy(layers, x, keys):
    for layer, key in zip(layers.unstacked(), keys, strict=True):
        x = layer(x, key)
    return x


FOLDED_KEYS = [jax.random.fold_in(KEY, index) for index in range(4)]
SPLIT_KEYS = jax.random.split(jax.random.key(1), 4)
HEAD_KEYS = nym.random.split(KEY, nym.Axis("heads", 2))
KEY_CALLS = {
    "by name": lambda layers, x: layers.fold(x, key=KEY),
    "by position": lambda layers, x: layers.fold(x, KEY),
    "named": lambda layers, x: layers.fold(x, nym.named(KEY, ())),
    "in a tree": lambda layers, x: layers.fold_via(lambda layer, x, keys: layer(x, keys["drop"]))(x, {"drop": KEY}),
    "scanned": lambda layers, x: layers.scan_via(lambda layer, x, key: (layer(x, key), x.sum()))(x, key=KEY)[0],
    "with another axis": lambda layers, x: layers.fold_via(lambda layer, x, keys: layer(x, keys["heads", 1]))(
        x, HEAD_KEYS
    ),
    "of each layer": lambda layers, x: layers.fold(x, SPLIT_KEYS),
    "of each layer, named": lambda layers, x: layers.fold(x, nym.named(SPLIT_KEYS, Layers)),
}


@pytest.mark.parametrize("call", KEY_CALLS)
def test_each_layer_drops_other_elements(call):
    x, keys = input_of(), FOLDED_KEYS
    if call.startswith("of each layer"):
        keys = SPLIT_KEYS
    elif call == "with another axis":
        keys = [jax.random.fold_in(HEAD_KEYS["heads", 1].array, index) for index in range(4)]
    for layers in both_noisy():
        expected = apply_noisy(layers, x, keys)
        assert_equal(jax.jit(KEY_CALLS[call])(layers, x), expected)


def test_layers_that_get_the_same_input_drop_other_elements(mesh):
    x = nym.ones((Batch, Embed))
    masks = jnp.stack([nym.nn.Dropout(0.3)(x, key=key).array != 0 for key in FOLDED_KEYS])
    assert len({mask.tobytes() for mask in np.asarray(masks)}) == 4
    for mapping in ({}, {"layers": "data"}):
        for layers in both_noisy():
            run = nym.named_jit(lambda layers, x, key: layers.vmap(x, key=key), mapping)
            assert np.array_equal(run(layers, x, KEY).array != 0, masks)


def test_stacks_in_stacks_drop_other_elements():
    x = input_of()
    for layers in both_noisy():
        outer = nym.nn.BlockSeq([layers, layers], nym.Axis("stages", 2))
        result = outer.fold_via(lambda stage, x, key: stage.fold(x, key=key))(x, KEY)
        expected = x
        for stage in range(2):
            key = jax.random.fold_in(KEY, stage)
            expected = apply_noisy(layers, expected, [jax.random.fold_in(key, index) for index in range(4)])
        assert_equal(result, expected)


@pytest.mark.parametrize("policy", ["none", "steps", "nothing", "nested", "inputs", "host nested"])
def test_what_is_recomputed_drops_the_same_elements(policy):
    x = input_of() + 2.0
    compute = jax.jit(nym.value_and_grad(lambda x, layers: layers.fold(x, key=KEY).sum()))
    for layers in both_noisy(POLICIES[policy]):
        expected = apply_noisy(layers, x, FOLDED_KEYS)
        total, gradient = compute(x, layers)
        assert_equal(total, expected.sum(), 1e-4)
        assert_equal(gradient, expected / x, 1e-5)


def test_a_legacy_key_is_an_error():
    one, numbers = jax.random.PRNGKey(0), jnp.zeros(2, jnp.uint32)
    text = (
        "cannot tell whether key, a plain uint32 array of shape (2,), is a legacy random key or data; pass a typed "
        "key, from `jax.random.key(seed)` or `jax.random.wrap_key_data(array)`, or data as a named array"
    )
    for kind, layers in zip(("Stacked", "BlockSeq"), both_noisy(), strict=True):
        for key in (one, np.asarray(one), numbers):
            for call in (layers.fold, layers.scan, layers.vmap):
                with refusal(f"`{kind}` {text}", TypeError):
                    call(input_of(), key=key)
        with refusal(f"`{kind}` cannot tell whether args[0]['drop'], a plain uint32", TypeError):
            layers.fold(input_of(), {"drop": one})
        assert_equal(layers.fold(input_of(), jax.random.wrap_key_data(one)), layers.fold(input_of(), KEY))
        assert_equal(
            layers.fold(input_of(), jax.random.split(one, 4)), layers.fold(input_of(), jax.random.split(KEY, 4))
        )
        add = layers.fold_via(lambda layer, x, numbers: x + numbers.sum().astype(float))
        assert_equal(add(input_of(), nym.named(numbers, "pair")), input_of())


def test_operations_have_the_paths_of_their_layers():
    class Model(eqx.Module):
        blocks: nym.nn.LayerStack

        @nym.named_call
        def __call__(self, x):
            return self.blocks.fold(x)

    for remat, path in ((False, "Model/blocks/blocks[1]/up/dot"), (True, "[blocks[1]/up/dot")):  # JAX adds the rest
        model = Model(both(Block, remat)[1])
        program = jax.make_jaxpr(lambda model, x: model(x))(model, input_of())
        assert path in program.pretty_print(name_stack=True)


def test_layers_are_sharded_as_they_are_made(mesh):
    with nym.axis_mapping({"mlp": "model", "embed": "data"}):
        layers = nym.nn.BlockSeq.init(Layers, Block)(Embed, Mlp, key=KEY)
        assert all(tuple(block.up.weight.sharding.spec) == ("model", "data") for block in layers.blocks)
    with nym.axis_mapping({"layers": "data"}):  # the arguments of each layer are not sharded along it
        add = nym.shard(nym.arange(Layers, dtype=float))
        result = nym.named_jit(lambda layers, x, add: layers.fold(x, add))(layers, input_of(), add)
    with jax.set_mesh(None):
        expected = both(Block)[0].fold(input_of(), nym.arange(Layers, dtype=float))
    assert_equal(result.array, expected.array, 1e-5)


def test_errors():
    _, layers = both(Block)
    with refusal("`BlockSeq` along layers: 4 was given 2 layers; give as many as the axis has"):
        nym.nn.BlockSeq(layers.blocks[:2], Layers)
    with refusal("there is no layer 4 in layers: 4", IndexError):
        layers.get_layer(4)
    with refusal("`BlockSeq` over axis 'layers' of size 4 got a plain array of shape (3,), which has size 3 there"):
        layers.fold(input_of(), jnp.ones(3))
    with refusal("layers along layers: 4 return different values that are not arrays; return arrays"):
        layers.vmap_via(lambda layer: str(id(layer)))()
    with refusal("The function given to `scan` must return a pair", TypeError):
        layers.scan(input_of())
    with refusal("layers along layers: 4 return results of 2 structures; only one can be stacked"):
        layers.vmap_via(lambda layer: layer if layer is layers.blocks[0] else None)()
    with refusal("Layers along layers: 4 need another `BlockSeq`, not", TypeError):
        layers.map_layers(lambda a, b: a, both(Block)[0])
    with refusal("layers along layers: 4 do not match layers along depth: 4"):
        layers.map_layers(lambda a, b: a, nym.nn.BlockSeq(layers.blocks, nym.Axis("depth", 4)))
    for kind in (nym.nn.Stacked, nym.nn.BlockSeq):
        with refusal("what a loop recomputes is one of 'full', 'nested', 'offload'"):
            kind.init(Layers, Block, gradient_checkpointing="nestd")
    with refusal("BlockSeq.init` takes the layer axis and the class of a layer", TypeError):
        nym.nn.BlockSeq.init("layers", Block)  # pyright: ignore[reportArgumentType]

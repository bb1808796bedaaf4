"""A small training step gives the same values on an Auto mesh, on an Explicit one and on one device."""

import equinox as eqx
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import axonym as nym


Embed, Mlp = nym.make_axes(embed=4, mlp=8)
MAPPING = {"batch": "data", "mlp": "model"}


class Block(eqx.Module):
    norm: nym.nn.RmsNorm
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(key):
        up, down = jax.random.split(key)
        return Block(
            nym.nn.RmsNorm.init(Embed),
            nym.nn.Linear.init(Embed, Mlp, key=up),
            nym.nn.Linear.init(Mlp, Embed, key=down, out_first=False),
        )

    def __call__(self, x):
        return x + self.down(nym.nn.gelu(self.up(self.norm(x))))


def step(blocks, x):
    def loss(blocks):
        y = x
        for block in blocks:
            y = block(y)
        return nym.mean(nym.square(y)).array

    value, grads = jax.value_and_grad(loss)(blocks)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, blocks, grads)


def accumulated_step(blocks, x):
    """The same step, with gradients summed over two halves of the batch, one after the other."""
    halves = x.unflatten_axis("batch", nym.make_axes(halves=2, batch=4))

    def loss(blocks, half):
        y = half
        for block in blocks:
            y = block(y)
        return nym.mean(nym.square(y)).array

    def add(total, half):
        return jax.tree.map(jax.numpy.add, total, jax.value_and_grad(loss)(blocks, half))

    nothing = jax.tree.map(jax.numpy.zeros_like, (jax.numpy.float32(0), blocks))
    value, grads = nym.fold(add, "halves")(nothing, halves)
    return value / 2, jax.tree.map(lambda p, g: p - 0.1 * g / 2, blocks, grads)


class Grouped(eqx.Module):
    """Attention in which several query heads share the keys and values of one."""

    query: nym.nn.Linear
    key: nym.nn.Linear
    value: nym.nn.Linear
    out: nym.nn.Linear

    @staticmethod
    def init(key):
        kv_heads, group, head_dim = nym.make_axes(kv_heads=2, group=2, head_dim=4)
        keys = iter(jax.random.split(key, 4))
        shared, all_heads = (kv_heads, head_dim), (kv_heads, group, head_dim)
        query, key, value = (nym.nn.Linear.init(Embed, Out, key=next(keys)) for Out in (all_heads, shared, shared))
        return Grouped(query, key, value, nym.nn.Linear.init(all_heads, Embed, key=next(keys)))

    def __call__(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        key, value = (y.rename({"pos": "key_pos"}) for y in (key, value))
        mask = nym.nn.causal_mask(x.resolve_axis("pos"), nym.Axis("key_pos", x.axis_size("pos")))
        return x + self.out(nym.nn.dot_product_attention("key_pos", "head_dim", query, key, value, mask)).rearrange(
            x.names
        )


def run(compiled, step=step, make=Block.init, **sizes):
    """Returns the value and the new parameters of a step from a fixed start, under the mesh and mapping in force."""
    names = ("batch", *sizes, "embed")
    values = np.random.default_rng(0).normal(size=(8, *sizes.values(), 4)).astype(np.float32)
    blocks = [make(key) for key in jax.random.split(jax.random.key(0))]
    return compiled(step)(blocks, nym.auto_sharded(nym.NamedArray(values, names)))


def check_equal(one, other):
    for leaf, expected in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(leaf), np.asarray(expected), rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def reference():
    with jax.set_mesh(None):
        return run(jax.jit)


@pytest.mark.parametrize("compiled", [jax.jit, nym.named_jit], ids=["jit", "named_jit"])
def test_values_do_not_depend_on_the_mesh(mesh, compiled, reference):
    with nym.axis_mapping(MAPPING):
        value, blocks = run(compiled)
    assert blocks[0].up.weight.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, P("model", None)), 2)
    np.testing.assert_allclose(value, reference[0], rtol=1e-5)
    check_equal(blocks, reference[1])


@pytest.mark.parametrize(
    ("mapping", "spec"),
    [
        ({"batch": ("data", "model")}, P()),
        ({"batch": ["model"], "mlp": ["data"]}, P("data")),
        ({"batch": None, "mlp": ("model", "data")}, P(("model", "data"))),
        ({"batch": "model", "embed": "data"}, P(None, "data")),
    ],
    ids=["batch over both", "batch over model", "mlp over both", "embed over data"],
)
def test_values_do_not_depend_on_the_mapping(mesh, mapping, spec, reference):
    with nym.axis_mapping(mapping):
        value, blocks = run(nym.named_jit)
    assert blocks[0].up.weight.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, spec), 2)
    check_equal((value, blocks), reference)


def test_accumulated_gradients_are_those_of_the_whole_batch(mesh, reference):
    def compiled(step):
        return nym.fsdp(step, {"mlp": "model", "embed": "data"}, MAPPING)

    with nym.axis_mapping({"batch": "data"}):
        value, blocks = run(compiled, accumulated_step)
    assert blocks[0].up.weight.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, P("model", "data")), 2)
    check_equal((value, blocks), reference)


@pytest.fixture(scope="module")
def grouped_reference():
    with jax.set_mesh(None):
        return run(jax.jit, make=Grouped.init, pos=3)


def test_query_heads_that_share_keys_are_divided_with_them(mesh, grouped_reference):
    with nym.axis_mapping({"batch": "data", "kv_heads": "model"}):
        value, blocks = run(nym.named_jit, make=Grouped.init, pos=3)
    assert blocks[0].query.weight.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, P("model")), 4)
    assert blocks[0].key.weight.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, P("model")), 3)
    check_equal((value, blocks), grouped_reference)


def test_named_jit_makes_a_sharded_model(mesh, reference):
    with nym.axis_mapping(MAPPING):
        block = nym.named_jit(Block.init)(jax.random.key(0))
    assert block.up.weight.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, P("model", None)), 2)
    assert block.down.weight.names == ("mlp", "embed")
    with jax.set_mesh(None):
        alone = Block.init(jax.random.key(0))
    for one, other in zip(jax.tree.leaves(block), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6)

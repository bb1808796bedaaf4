"""Trees of named arrays, plain arrays of Equinox and dicts as Flax makes them, sharded in one call."""

import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import axonym as nym


class LargestAxis:
    """A rule for plain arrays: the largest axis that the mesh axis divides goes over it."""

    def __init__(self, axis="data", size=4):
        self.axis, self.size = axis, size

    def apply(self, array):
        fitting = [dim for dim, size in enumerate(array.shape) if size % self.size == 0]
        if not fitting:
            return None
        chosen = max(fitting, key=lambda dim: array.shape[dim])
        return P(*(self.axis if dim == chosen else None for dim in range(array.ndim)))


RULE = LargestAxis()
MAPPING = nym.AxisMapping({"embed": "model"}, fallback=RULE)


class Declared(eqx.Module):
    gain: jax.Array = nym.field(axis_names="embed")
    free: jax.Array


KEYS = np.arange(16, dtype=np.uint32).reshape(8, 2)


def ones(*shape):
    return jax.device_put(np.ones(shape, np.float32))


def made(init, *args):
    """Returns a module of Equinox with ones for all its arrays."""
    shapes = eqx.filter_eval_shape(lambda: init(*args, key=jax.random.wrap_key_data(KEYS[0])))
    return jax.tree.map(lambda x: ones(*x.shape) if isinstance(x, jax.ShapeDtypeStruct) else x, shapes)


def arrays():
    """Parameters of three kinds."""
    return {
        "named": nym.NamedArray(ones(8, 4), ("batch", "embed")),
        "equinox": eqx.filter(made(eqx.nn.MLP, 4, 2, 8, 1), eqx.is_array),
        "flax": {"params": {"Dense_0": {"kernel": ones(8, 6), "bias": ones(6)}}},
        "declared": Declared(ones(4), ones(12)),
    }


def everything():
    others = {
        "linear": made(eqx.nn.Linear, 4, 8),  # with static fields
        "key": jax.random.wrap_key_data(KEYS[0]),
        "keys": jax.random.wrap_key_data(KEYS),
        "rest": [None, 3, 0.5, "text", jnp.tanh],
        "scalar": ones(),
        "numpy": np.ones((4, 3), np.float32),
    }
    return {**arrays(), **others}


def misplaced(tree, mesh, mapping=MAPPING):
    """Returns where arrays lie elsewhere than names, declared names and the rule say."""
    found = []
    for path, node in jax.tree_util.tree_leaves_with_path(tree, is_leaf=nym.is_named_array):
        if nym.is_named_array(node):
            spec, node = nym.pspec_for_axis(node.axes, mapping), node.array
        elif not isinstance(node, jax.Array | jax.ShapeDtypeStruct):
            continue
        else:
            spec = P("model") if getattr(path[-1], "name", "") == "gain" else RULE.apply(node)
        if spec is not None and not node.sharding.is_equivalent_to(NamedSharding(mesh, spec), node.ndim):
            found.append(jax.tree_util.keystr(path))
    return found


@pytest.mark.parametrize(
    "shard",
    [
        nym.shard,
        lambda tree: eqx.filter_jit(nym.shard)(tree),
        lambda tree: nym.named_jit(lambda tree: tree)(tree),
        lambda tree: nym.shard(eqx.filter_eval_shape(lambda: tree)),
    ],
    ids=["outside jit", "inside jit", "results", "shapes"],
)
def test_one_call_shards_everything(mesh, shard):
    tree = everything()
    with nym.axis_mapping(MAPPING):
        result = shard(tree)
    assert jax.tree.structure(result) == jax.tree.structure(tree)
    if "numpy" in result and isinstance(result["numpy"], jax.Array):
        assert result["numpy"].sharding.shard_shape((4, 3)) == (1, 3)
    assert misplaced(result, mesh) == []
    assert result["rest"] == tree["rest"]
    assert result["keys"].sharding.shard_shape((8,)) == (2,)
    assert result["flax"]["params"]["Dense_0"]["kernel"].sharding.shard_shape((8, 6)) == (2, 6)


def test_the_state_of_an_optimizer_follows_the_rule(mesh):
    optimizer = optax.sgd(1e-2, momentum=0.9)

    @nym.named_jit
    def step(params, state):
        updates, state = optimizer.update(params, state, params)
        return optax.apply_updates(params, updates), state

    with nym.axis_mapping(MAPPING):
        params = nym.shard(arrays())
        state = nym.named_jit(optimizer.init)(params)
        assert misplaced((params, state), mesh) == []
        assert misplaced(step(params, state), mesh) == []
        assert misplaced(nym.shard(jax.eval_shape(optimizer.init, arrays())), mesh) == []


class Deep(eqx.Module):
    layers: list

    @staticmethod
    def init(key):
        Wide, Deeper = nym.make_axes(embed=1024, mlp=2048)
        up, down = jax.random.split(key)
        return Deep([nym.nn.Linear.init(Wide, Deeper, key=up), nym.nn.Linear.init(Deeper, Wide, key=down)])


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

"""`MemoryConstrainedShardingRule`: a limit for the whole tree, held or refused."""

import math
import pickle
import random
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import axonym as nym


MESH = AbstractMesh((4, 2), ("data", "model"))
BOTH = P(("data", "model"))
SIZES = (1, 3, 4, 6, 8, 10, 16, 24, 50)


def struct(*shape: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def held(tree, specs, mesh=MESH) -> int:
    """Returns the bytes that each device holds, from what JAX says of the parts."""
    shapes = jax.tree.map(lambda x, spec: NamedSharding(mesh, spec).shard_shape(x.shape), tree, specs)
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(shapes, is_leaf=lambda x: isinstance(x, tuple)), strict=True)
    return sum(math.prod(shape) * x.dtype.itemsize for x, shape in pairs)


def test_what_fits_stays_whole():
    params = {"a": struct(8, 16), "b": struct(16)}
    assert nym.MemoryConstrainedShardingRule(576, MESH).apply(params) == {"a": P(), "b": P()}
    assert nym.MemoryConstrainedShardingRule(575, MESH).apply(params) != {"a": P(), "b": P()}


def test_the_limit_is_for_the_whole_tree():
    params = [struct(1024, 1024)] * 64  # 4 MiB each
    specs = nym.MemoryConstrainedShardingRule(2**26, MESH).apply(params)
    assert held(params, [P()] * 64) == 2**28
    assert 0 < held(params, specs) <= 2**26


def test_arrays_that_save_most_are_sharded_first_and_only_as_needed():
    params = {"small": struct(8, 8), "large": struct(64, 64), "odd": struct(127, 127), "medium": struct(32, 32)}
    sizes = {name: 4 * math.prod(x.shape) for name, x in params.items()}
    limit = sum(sizes.values()) - sizes["large"] * 7 // 8 - sizes["medium"] // 2
    specs = nym.MemoryConstrainedShardingRule(limit, MESH).apply(params)
    assert specs == {"small": P(), "large": P("data", "model"), "odd": P(), "medium": P("model", None)}
    assert held(params, specs) == limit


def test_a_limit_is_held_exactly_where_it_can_be():
    draw, mesh = random.Random(0), AbstractMesh((4, 2, 3), ("data", "model", "three"))
    for _ in range(200):
        shapes = [tuple(draw.choice(SIZES) for _ in range(draw.randint(0, 3))) for _ in range(draw.randint(1, 6))]
        params = [struct(*shape, dtype=draw.choice((jnp.float32, jnp.int8))) for shape in shapes]
        whole = held(params, [P()] * len(params))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rule = nym.MemoryConstrainedShardingRule(1, mesh, on_excess="warn")
            least = held(params, rule.apply(params), mesh)
        limit = draw.randint(least, whole)
        assert held(params, nym.MemoryConstrainedShardingRule(limit, mesh).apply(params), mesh) <= limit
        if least > 1:
            with pytest.raises(ValueError, match=rf"the arrays need {least:,} bytes on each device, 1 more than the"):
                nym.MemoryConstrainedShardingRule(least - 1, mesh).apply(params)


def test_the_error_has_the_largest_parts_and_what_to_do():
    params = {"table": struct(51, 8), "bias": struct(3), "weight": struct(16, 16), "name": "mlp"}
    with pytest.raises(ValueError, match="sharded as far as the mesh allows") as caught:
        nym.MemoryConstrainedShardingRule(300, MESH).apply(params)
    assert str(caught.value) == (
        "sharded as far as the mesh allows, the arrays need 344 bytes on each device, 44 more than the 300 of "
        "`max_memory_per_device`; the largest shards are ['table'] of shape (51, 8) with 204 bytes, ['weight'] of "
        "shape (16, 16) with 128 bytes, ['bias'] of shape (3,) with 12 bytes; use more devices or mesh axes, give "
        "arrays sizes that are divisible by the mesh axes, raise the limit, or accept this with `on_excess='warn'`"
    )


def test_only_the_largest_of_many_arrays_are_shown():
    rule = nym.MemoryConstrainedShardingRule(1, AbstractMesh((41,), ("x",)))
    with pytest.raises(ValueError, match=r"shards are \[39\] of .*, \[35\] of shape \(1, 36\) with 144 bytes; use"):
        rule.apply([struct(1, 1 + at) for at in range(40)])


def test_one_array_has_no_path():
    with pytest.raises(ValueError, match=r"the largest shards are the array of shape \(3,\) with 12 bytes"):
        nym.MemoryConstrainedShardingRule(1, MESH).apply(struct(3))


def test_with_a_warning_the_best_division_is_taken():
    rule = nym.MemoryConstrainedShardingRule(1, MESH, on_excess="warn")
    with pytest.warns(RuntimeWarning, match="the arrays need 76 bytes on each device, 75 more than the 1 of") as caught:
        assert rule.apply([struct(8, 16), struct(3)]) == [P("data", "model"), P()]
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize(("mebibytes", "parts"), [(64, 1), (63, 2), (32, 2), (31, 4), (16, 4), (15, 8), (8, 8)])
def test_several_mesh_axes_divide_one_dimension(mebibytes, parts):
    spec = nym.MemoryConstrainedShardingRule(mebibytes * 2**20, MESH).apply(struct(2**24))
    assert NamedSharding(MESH, spec).shard_shape((2**24,)) == (2**24 // parts,)


@pytest.mark.parametrize(
    ("leaf", "size"),
    [
        (jax.ShapeDtypeStruct((3, 5), jnp.int4), 8),
        (jax.ShapeDtypeStruct((15,), jnp.bfloat16), 30),
        (np.ones((3, 5), np.float64), 120),
        (np.float32(1), 4),
        (nym.ones({"a": 3, "b": 5}), 60),
        (jax.random.split(jax.random.key(0), 3), 24),
        ((jnp.ones(3),) * 2, 24),
        (("text", None, 2.5), 0),
    ],
    ids=["int4", "bfloat16", "numpy", "scalar", "named", "keys", "one array twice", "no arrays"],
)
def test_bytes_are_those_of_the_data(leaf, size):
    mesh = AbstractMesh((7,), ("x",))  # divides none of these
    nym.MemoryConstrainedShardingRule(max(size, 1), mesh).apply(leaf)
    if size:
        with pytest.raises(ValueError, match=rf"the arrays need {size} bytes on each device, 1 more than"):
            nym.MemoryConstrainedShardingRule(size - 1, mesh).apply(leaf)


def test_a_named_array_has_one_spec_and_no_array_an_empty_one():
    tree = {"named": nym.ones({"a": 8, "b": 16}), "name": "mlp", "none": None, "empty": jnp.ones((0, 8))}
    specs = nym.MemoryConstrainedShardingRule(64, MESH).apply(tree)
    assert specs == {"named": P("data", "model"), "name": P(), "none": None, "empty": P()}


def test_only_the_mesh_axes_named_are_used():
    rule = nym.MemoryConstrainedShardingRule(128, MESH, ["data"])
    assert rule.apply(struct(8, 16)) == P(None, "data")


def test_the_mesh_in_force_counts_where_none_is_given(mesh):
    rule, seen = nym.MemoryConstrainedShardingRule(64), []
    jax.jit(lambda x: seen.append(rule.apply(x)))(jnp.ones((8, 16)))
    assert seen == [rule.apply(jnp.ones((8, 16)))] == [P("data", "model")]


def test_no_mesh_is_an_error():
    with pytest.raises(ValueError, match=r"^`MemoryConstrainedShardingRule` needs a mesh"):
        nym.MemoryConstrainedShardingRule(64).apply(jnp.ones(8))


def test_the_plain_arrays_of_a_mapping_share_the_limit(mesh):
    arrays = {"a": jnp.ones((8, 16)), "b": jnp.ones((8, 16)), "named": nym.ones({"embed": 64, "mlp": 64})}
    mapping = nym.AxisMapping({"mlp": "model"}, fallback=nym.MemoryConstrainedShardingRule(576))
    parts = jax.tree.map(
        lambda x: x.sharding.shard_shape(x.shape), nym.shard(arrays, mapping), is_leaf=nym.is_named_array
    )
    assert parts == {"a": (2, 8), "b": (8, 16), "named": (64, 32)}


@pytest.mark.parametrize(
    "limit", [1000, 1e3, np.int32(1000), np.float64(1000)], ids=["int", "float", "int32", "float64"]
)
def test_a_limit_may_be_any_number_that_is_whole(limit):
    rule = nym.MemoryConstrainedShardingRule(limit, MESH)
    assert rule == nym.MemoryConstrainedShardingRule(1000, MESH)
    assert type(rule.max_memory_per_device) is int


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"max_memory_per_device": 0}, ValueError, "`max_memory_per_device` is an integer of at least 1, not 0"),
        ({"max_memory_per_device": -8}, ValueError, "`max_memory_per_device` is an integer of at least 1, not -8"),
        ({"max_memory_per_device": 1.5}, ValueError, "`max_memory_per_device` is an integer of at least 1, not 1.5"),
        ({"max_memory_per_device": math.inf}, ValueError, "`max_memory_per_device` is an integer .* not inf"),
        ({"max_memory_per_device": math.nan}, ValueError, "`max_memory_per_device` is an integer .* not nan"),
        ({"max_memory_per_device": True}, TypeError, "`max_memory_per_device` is an integer .* not True"),
        ({"max_memory_per_device": "8GB"}, TypeError, "`max_memory_per_device` is an integer .* not '8GB'"),
        ({"max_memory_per_device": None}, TypeError, "`max_memory_per_device` is an integer .* not None"),
        ({"mesh": 8}, TypeError, "`mesh` is a mesh, such as `axonym.create_mesh` returns, not 8"),
        ({"axis_names": "data"}, TypeError, r"a list of names of mesh axes, not one name; write \['data'\]"),
        ({"axis_names": ["modle"]}, ValueError, r"no mesh axis 'modle' in \(data: 4, model: 2\); did you mean 'model'"),
        ({"on_excess": "raise"}, ValueError, "`on_excess` is 'error' or 'warn', not 'raise'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_options_are_checked_when_the_rule_is_made(options, error, text):
    with pytest.raises(error, match=text):
        nym.MemoryConstrainedShardingRule(**{"max_memory_per_device": 8, "mesh": MESH, **options})


def test_a_rule_is_a_value(auto_mesh):
    rule = nym.MemoryConstrainedShardingRule(8, auto_mesh, ["data"], on_excess="warn")
    same = nym.MemoryConstrainedShardingRule(8.0, auto_mesh, ("data",), on_excess="warn")
    assert rule == same == pickle.loads(pickle.dumps(rule))
    assert hash(rule) == hash(same)
    assert rule != nym.MemoryConstrainedShardingRule(8, auto_mesh, ["data"])
    assert repr(nym.MemoryConstrainedShardingRule(1024)) == "MemoryConstrainedShardingRule(max_memory_per_device=1024)"
    with pytest.raises(AttributeError, match="max_memory_per_device"):
        rule.max_memory_per_device = 9  # pyright: ignore[reportAttributeAccessIssue]

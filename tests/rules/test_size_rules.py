"""Rules that go by sizes: the best of all ways to divide an array, and a limit of memory for the whole tree."""

import copy
import itertools
import math
import pickle
import random
import time
import warnings
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import axonym as nym

from ..refusals import refusal


Shape = tuple[int, ...]
MESH = AbstractMesh((4, 2), ("data", "model"))
BOTH = P(("data", "model"))
SIZES = (1, 2, 3, 4, 6, 7, 8, 9, 12, 16, 24, 30)
DRAW = random.Random(0)
CASES = [
    (
        tuple(DRAW.choice(SIZES) for _ in range(DRAW.randint(0, 4))),
        tuple(DRAW.choice((1, 2, 2, 3, 4, 4, 6)) for _ in range(DRAW.randint(1, 4))),
    )
    for _ in range(150)
]


def struct(*shape: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def mesh_of(*sizes: int) -> AbstractMesh:
    return AbstractMesh(sizes, tuple(f"m{number}" for number in range(len(sizes))))


def all_ways(shape: Shape, sizes: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Yields all ways to put mesh axes on dimensions, or nowhere, that divide the sizes, and the parts of each."""
    for places in itertools.product(range(len(shape) + 1), repeat=len(sizes)):
        parts = [1] * (len(shape) + 1)
        for size, place in zip(sizes, places, strict=True):
            parts[place] *= size
        idle = [size == 1 for size, place in zip(sizes, places, strict=True) if place < len(shape)]
        if not any(idle) and all(size % count == 0 for size, count in zip(shape, parts[:-1], strict=True)):
            yield places, tuple(parts[:-1])


def best_by_trial(shape: Shape, sizes: Shape, order: Shape | None, most: float = math.inf) -> P:
    """Returns the best of all ways by what is documented, found by trying all."""
    position = order or tuple(range(len(shape)))
    larger_first = order or tuple(sorted(position, key=lambda at: (-shape[at], at)))
    stack = len(shape) > 2 and shape[0] < min(shape[1:])

    def worth(way: tuple[Shape, Shape]) -> tuple:
        places, parts = way
        divided = [at for at, count in enumerate(parts) if count > 1]
        ranks = [position.index(place) if place < len(shape) else len(shape) for place in places]
        preferred = sorted(larger_first.index(at) for at in divided)
        return -math.prod(parts), stack and 0 in divided, -len(divided), preferred, ranks

    if 0 in shape:
        return P()
    places, parts = min((way for way in all_ways(shape, sizes) if math.prod(way[1]) <= most), key=worth)
    axes = [tuple(f"m{number}" for number, place in enumerate(places) if place == at) for at in range(len(shape))]
    return P(*(names or None for names in axes)) if math.prod(parts) > 1 else P()


def test_specs_are_the_best_of_all_ways():
    """Those of the automatic rule, the largest or the smallest dimension first, and of the helper; some with limits."""
    for shape, sizes in CASES:
        mesh, leaf = mesh_of(*sizes), struct(*shape)
        for reverse in (False, True):
            order = tuple(sorted(range(len(shape)), key=lambda at: (shape[at] if reverse else -shape[at], at)))
            rule = nym.AutoShardingRule(mesh, min_shard_size=0, reverse=reverse)
            assert rule.apply(leaf) == best_by_trial(shape, sizes, order), (shape, sizes, reverse)
        helper = nym.MeshPartitionHelper(mesh)
        assert helper.partition_specs(leaf, 0) == best_by_trial(shape, sizes, None), (shape, sizes)
        spec = helper.create_partition_spec(shape, [(name,) for name in helper.axis_sizes], min_shard_size=10)
        assert spec == best_by_trial(shape, sizes, None, most=max(math.prod(shape) // 10, 1)), (shape, sizes)


def test_one_array_over_its_limit_has_the_fewest_parts_that_are_enough():
    for shape, sizes in CASES[::2]:
        mesh, elements = mesh_of(*sizes), math.prod(shape)
        counts = sorted({math.prod(parts) for _, parts in all_ways(shape, sizes)})
        for fewer, count in itertools.pairwise(counts):
            limit = 4 * elements // fewer - 1  # a byte too few for the next division that is less
            spec = nym.MemoryConstrainedShardingRule(limit, mesh).apply(struct(*shape))
            assert math.prod(NamedSharding(mesh, spec).shard_shape(shape)) == elements // count, (shape, sizes, limit)


def test_many_mesh_axes_dimensions_and_arrays_take_a_moment():
    start = time.perf_counter()
    for sizes in [(2,) * 8, (2, 4, 8, 2, 4, 16, 2, 2), (2, 3, 4, 5, 6, 7, 8, 9)]:
        mesh, leaf = mesh_of(*sizes), struct(*[720720 * 64] * 6)
        spec = nym.AutoShardingRule(mesh).apply(leaf)
        assert math.prod(leaf.shape) // math.prod(NamedSharding(mesh, spec).shard_shape(leaf.shape)) == mesh.size
    layer = {"norm": struct(8192), "q": struct(8192, 8192), "k": struct(8192, 1024), "up": struct(8192, 28672)}
    model, mesh = [layer] * 180, AbstractMesh((2, 16, 1, 8, 1), ("dp", "fsdp", "ep", "tp", "sp"))
    specs = nym.AutoShardingRule(mesh).apply(model), nym.MeshPartitionHelper(mesh).partition_specs(model)
    assert time.perf_counter() - start < 10
    assert specs[0][0]["up"] == P("tp", ("dp", "fsdp"))
    assert specs[1][179]["up"] == P(("dp", "fsdp"), "tp")


def test_every_kind_of_array_gets_a_spec_and_other_leaves_an_empty_one():
    tree = {
        "array": jax.device_put(np.ones((8, 16))),
        "numpy": np.ones((8, 16)),
        "shape": struct(8, 16),
        "named": nym.named(struct(8, 16), ("a", "b")),
        "keys": jax.random.split(jax.random.key(0), 8),
        "others": (np.ones(()), np.ones((0, 8)), "name", 1.5, jnp.tanh, np.array(["text"] * 8)),
        "none": None,
    }
    divided = dict.fromkeys(("array", "numpy", "shape", "named"), P("model", "data"))
    rest = {"keys": BOTH, "others": (P(),) * 6, "none": None}
    assert nym.AutoShardingRule(MESH).apply(tree) == divided | rest
    specs = nym.MemoryConstrainedShardingRule(1, MESH, on_excess="warn")
    with pytest.warns(RuntimeWarning, match="more than the 1 of"):
        assert specs.apply(tree) == dict.fromkeys(divided, P("data", "model")) | rest


def test_arrays_with_fewer_elements_than_devices_or_the_least_stay_whole():
    assert nym.AutoShardingRule(MESH).apply([struct(4), struct(2, 3), struct(8)]) == [P(), P(), BOTH]
    for least, spec in [(0, P("data")), (4, P("data")), (5, P()), (None, P())]:
        assert nym.AutoShardingRule(MESH, min_shard_size=least).apply(struct(4)) == spec


def test_only_the_mesh_axes_named_are_used_whatever_their_order_and_none_of_size_one():
    assert nym.AutoShardingRule(MESH, ["model"]).apply(struct(8, 16)) == P(None, "model")
    assert nym.MemoryConstrainedShardingRule(128, MESH, ["data"]).apply(struct(8, 16)) == P(None, "data")
    for names in (["data", "model"], ("model", "data")):
        assert nym.AutoShardingRule(MESH, names).apply(struct(8, 16)) == P("model", "data")
    mesh = AbstractMesh((1, 4, 1, 2, 1), ("dp", "fsdp", "ep", "tp", "sp"))
    assert nym.AutoShardingRule(mesh).apply(struct(4096, 14336)) == P("tp", "fsdp")
    assert nym.AutoShardingRule(mesh, ["dp", "ep", "sp"]).apply(struct(4096, 14336)) == P()


def test_manual_mesh_axes_divide_nothing(mesh):
    given, in_force = nym.AutoShardingRule(mesh), nym.AutoShardingRule()
    specs = []

    def look(x):
        specs.extend([given.apply(x), in_force.apply(x)])
        return x

    x = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("data")))
    jax.jit(jax.shard_map(look, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}))(x)
    assert specs == [P(None, "model")] * 2


@pytest.mark.parametrize(
    "rule", [nym.AutoShardingRule(), nym.MemoryConstrainedShardingRule(128), nym.RoleShardingRule()], ids=type
)
def test_the_mesh_in_force_counts_where_none_is_given(mesh, rule):
    seen, tree = [], {"up_proj": jnp.ones((16, 8)), "down_proj": jnp.ones((8, 16))}
    jax.jit(lambda x: seen.append(rule.apply(x)))(tree)
    assert seen == [rule.apply(tree)]
    assert seen[0]["up_proj"] != P()
    with jax.set_mesh(None), refusal(f"`{type(rule).__name__}` needs a mesh; set one with `jax.set_mesh"):
        rule.apply(jnp.ones(8))
    with refusal("no mesh axis 'fsdp' in (data: 4, model: 2)"):
        nym.AutoShardingRule(axis_names=["fsdp"]).apply(jnp.ones(8))


def test_options_are_kept_as_they_were_given_never_change_and_are_shown():
    rule = nym.AutoShardingRule(MESH, ["data", "model"], np.int64(16), reverse=True)
    assert (rule.mesh, rule.axis_names, rule.min_shard_size, rule.reverse) == (MESH, ("data", "model"), 16, True)
    assert isinstance(rule.min_shard_size, int)
    with pytest.raises(AttributeError, match="reverse"):
        rule.reverse = False  # pyright: ignore[reportAttributeAccessIssue]
    for limit in (1e3, np.int32(1000), np.float64(1000)):
        rule = nym.MemoryConstrainedShardingRule(limit, MESH)
        assert rule == nym.MemoryConstrainedShardingRule(1000, MESH)
        assert type(rule.max_memory_per_device) is int
    shown = "AutoShardingRule(axis_names=('tp',), reverse=True)"
    assert repr(nym.AutoShardingRule(axis_names=["tp"], reverse=True)) == shown
    assert repr(nym.MemoryConstrainedShardingRule(1024)) == "MemoryConstrainedShardingRule(max_memory_per_device=1024)"


@pytest.mark.parametrize("kind", ["none", "abstract", "auto", "explicit"])
def test_rules_are_values_that_can_be_pickled_and_copied_with_their_mesh(kind, auto_mesh, explicit_mesh):
    mesh = {"none": None, "abstract": MESH, "auto": auto_mesh, "explicit": explicit_mesh}[kind]
    for make in (nym.AutoShardingRule, lambda *args: nym.MemoryConstrainedShardingRule(8, *args, on_excess="warn")):
        rule, same = make(mesh, ["data"]), make(mesh, ("data",))
        assert pickle.loads(pickle.dumps(rule)) == copy.deepcopy(rule) == rule == same
        assert hash(rule) == hash(same)
        assert rule != make(mesh)
        assert pickle.loads(pickle.dumps(rule)).mesh == mesh


def test_a_pickle_with_devices_that_are_not_here_is_an_error(auto_mesh):
    text = pickle.dumps(nym.AutoShardingRule(auto_mesh), protocol=0).decode()
    other = text.replace("Vcpu\n", "Vtpu\n")
    assert other != text
    with pytest.raises(ValueError, match="this pickle has a mesh with device 0 of platform 'tpu', which is not here"):
        pickle.loads(other.encode())


# The limit of memory


def held(tree, specs, mesh=MESH) -> int:
    """Returns the bytes that each device holds, from what JAX says of the parts."""
    shapes = jax.tree.map(lambda x, spec: NamedSharding(mesh, spec).shard_shape(x.shape), tree, specs)
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(shapes, is_leaf=lambda x: isinstance(x, tuple)), strict=True)
    return sum(math.prod(shape) * x.dtype.itemsize for x, shape in pairs)


def test_arrays_that_save_most_are_sharded_first_and_only_as_needed():
    params = {"small": struct(8, 8), "large": struct(64, 64), "odd": struct(127, 127), "medium": struct(32, 32)}
    sizes = {name: 4 * math.prod(x.shape) for name, x in params.items()}
    limit = sum(sizes.values()) - sizes["large"] * 7 // 8 - sizes["medium"] // 2
    specs = nym.MemoryConstrainedShardingRule(limit, MESH).apply(params)
    assert specs == {"small": P(), "large": P("data", "model"), "odd": P(), "medium": P("model", None)}
    assert held(params, specs) == limit


def test_a_limit_is_held_exactly_where_it_can_be():
    draw, mesh = random.Random(0), AbstractMesh((4, 2, 3), ("data", "model", "three"))
    sizes = (1, 3, 4, 6, 8, 10, 16, 24, 50)
    for _ in range(100):
        shapes = [tuple(draw.choice(sizes) for _ in range(draw.randint(0, 3))) for _ in range(draw.randint(1, 6))]
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


def test_only_the_largest_of_many_arrays_are_shown_and_one_array_has_no_path():
    rule = nym.MemoryConstrainedShardingRule(1, AbstractMesh((41,), ("x",)))
    with pytest.raises(ValueError, match=r"shards are \[39\] of .*, \[35\] of shape \(1, 36\) with 144 bytes; use"):
        rule.apply([struct(1, 1 + at) for at in range(40)])
    with refusal("the largest shards are the array of shape (3,) with 12 bytes"):
        rule.apply(struct(3))


def test_the_plain_arrays_of_a_mapping_share_the_limit(mesh):
    arrays = {"a": jnp.ones((8, 16)), "b": jnp.ones((8, 16)), "named": nym.ones({"embed": 64, "mlp": 64})}
    mapping = nym.AxisMapping({"mlp": "model"}, fallback=nym.MemoryConstrainedShardingRule(576))
    parts = jax.tree.map(
        lambda x: x.sharding.shard_shape(x.shape), nym.shard(arrays, mapping), is_leaf=nym.is_named_array
    )
    assert parts == {"a": (2, 8), "b": (8, 16), "named": (64, 32)}
    too_small = nym.AxisMapping(fallback=nym.MemoryConstrainedShardingRule(100))
    with refusal("the fallback rule `MemoryConstrainedShardingRule`: sharded as far as the mesh allows"):
        nym.shard(arrays, too_small)


LEAST = "`min_shard_size` is an integer of at least 0, not "
LIMIT = "`max_memory_per_device` is an integer of at least 1, not "


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"mesh": (4, 2)}, TypeError, "`mesh` is a mesh, such as `axonym.create_mesh` returns, not (4, 2)"),
        ({"axis_names": "data"}, TypeError, "a list of names of mesh axes, not one name; write ['data']"),
        ({"axis_names": [("data", "model")]}, TypeError, "of mesh axes; ('data', 'model') is not a name"),
        ({"min_shard_size": -1}, ValueError, f"{LEAST}-1"),
        ({"min_shard_size": "8"}, TypeError, f"{LEAST}'8'"),
        ({"max_memory_per_device": 0}, ValueError, f"{LIMIT}0"),
        ({"max_memory_per_device": None}, TypeError, f"{LIMIT}None"),
        ({"max_memory_per_device": 8, "on_excess": "raise"}, ValueError, "is 'error' or 'warn', not 'raise'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_options_are_checked_when_the_rule_is_made(options, error, text):
    kind = nym.MemoryConstrainedShardingRule if "max_memory_per_device" in options else nym.AutoShardingRule
    with refusal(text, error):
        kind(**{"mesh": MESH, **options})

"""That rules find the best of all ways to divide an array, and among equal ones that which is documented."""

import itertools
import math
import random
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import axonym as nym


Shape = tuple[int, ...]
SIZES = (1, 2, 3, 4, 6, 7, 8, 9, 12, 16, 24, 30)
DRAW = random.Random(0)
CASES = [
    (
        tuple(DRAW.choice(SIZES) for _ in range(DRAW.randint(0, 4))),
        tuple(DRAW.choice((1, 2, 2, 3, 4, 4, 6)) for _ in range(DRAW.randint(1, 4))),
    )
    for _ in range(400)
]


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


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
    return P(*(one or None for one in axes)) if math.prod(parts) > 1 else P()


def test_automatic_specs_are_those_found_by_trying_all_ways():
    for shape, sizes in CASES:
        for reverse in (False, True):
            order = tuple(sorted(range(len(shape)), key=lambda at: (shape[at] if reverse else -shape[at], at)))
            rule = nym.AutoShardingRule(mesh_of(*sizes), min_shard_size=0, reverse=reverse)
            assert rule.apply(struct(*shape)) == best_by_trial(shape, sizes, order), (shape, sizes, reverse)


def test_specs_of_the_helper_are_those_found_by_trying_all_ways():
    for shape, sizes in CASES:
        helper = nym.MeshPartitionHelper(mesh_of(*sizes))
        assert helper.partition_specs(struct(*shape), 0) == best_by_trial(shape, sizes, None), (shape, sizes)


def test_specs_with_limited_parts_match_an_exhaustive_search():
    for shape, sizes in CASES:
        helper = nym.MeshPartitionHelper(mesh_of(*sizes))
        methods = [(name,) for name in helper.axis_sizes]
        spec = helper.create_partition_spec(shape, methods, min_shard_size=10)
        assert spec == best_by_trial(shape, sizes, None, most=max(math.prod(shape) // 10, 1)), (shape, sizes)


def test_one_array_over_its_limit_has_the_fewest_parts_that_are_enough():
    for shape, sizes in CASES:
        mesh, elements = mesh_of(*sizes), math.prod(shape)
        counts = sorted({math.prod(parts) for _, parts in all_ways(shape, sizes)})
        for fewer, count in itertools.pairwise(counts):
            limit = 4 * elements // fewer - 1  # a byte too few for the next division that is less
            spec = nym.MemoryConstrainedShardingRule(limit, mesh).apply(struct(*shape))
            assert math.prod(NamedSharding(mesh, spec).shard_shape(shape)) == elements // count, (shape, sizes, limit)


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((64,), P(("data", "model"))),
        ((6,), P("model")),
        ((12,), P("data")),
        ((12, 5), P("data", None)),
        ((4, 6), P("data", "model")),
        ((2, 4), P("model", "data")),
        ((50257, 768), P(None, ("data", "model"))),
        ((3, 3, 64, 128), P(None, None, "data", "model")),
        ((5, 7), P()),
        ((), P()),
        ((0, 8), P()),
    ],
    ids=str,
)
def test_several_mesh_axes_or_some_of_them_divide_a_dimension(shape, spec):
    mesh = AbstractMesh((4, 2), ("data", "model"))
    assert nym.MeshPartitionHelper(mesh).partition_specs(struct(*shape), 0) == spec


@pytest.mark.parametrize("sizes", [(2,) * 8, (2, 4, 8, 2, 4, 16, 2, 2), (2, 3, 4, 5, 6, 7, 8, 9)], ids=str)
def test_eight_mesh_axes_and_six_dimensions_take_a_moment(sizes):
    mesh, leaf = mesh_of(*sizes), struct(*[720720 * 64] * 6)
    start = time.perf_counter()
    spec = nym.AutoShardingRule(mesh).apply(leaf)
    assert time.perf_counter() - start < 10
    assert math.prod(leaf.shape) // math.prod(NamedSharding(mesh, spec).shard_shape(leaf.shape)) == math.prod(sizes)


def test_a_model_of_many_arrays_takes_a_moment():
    layer = {"norm": struct(8192), "q": struct(8192, 8192), "k": struct(8192, 1024), "up": struct(8192, 28672)}
    model, mesh = [layer] * 180, AbstractMesh((2, 16, 1, 8, 1), ("dp", "fsdp", "ep", "tp", "sp"))
    start = time.perf_counter()
    specs = nym.AutoShardingRule(mesh).apply(model), nym.MeshPartitionHelper(mesh).partition_specs(model)
    assert time.perf_counter() - start < 2
    assert specs[0][0]["up"] == P("tp", ("dp", "fsdp"))
    assert specs[1][179]["up"] == P(("dp", "fsdp"), "tp")

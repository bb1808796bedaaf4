"""The mapping in force: `axis_mapping` nests, is used again, keeps threads apart and is part of every jit cache key."""

import copy
import functools
import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import axonym as nym
from axonym.named._cache import CACHE_SIZE


def test_holds_inside_only():
    assert nym.current_mapping() is None
    with nym.axis_mapping({"batch": "data"}):
        assert nym.current_mapping() == nym.AxisMapping({"batch": "data"})
    assert nym.current_mapping() is None


def test_entries_come_from_a_mapping_keywords_or_both():
    with nym.axis_mapping(batch="data"):
        assert nym.current_mapping() == {"batch": "data"}
    with nym.axis_mapping({"batch": "data", "mlp": "data"}, mlp="model"):
        assert nym.current_mapping() == {"batch": "data", "mlp": "model"}
    with nym.axis_mapping({"batch": "data", "mlp": "data"}, mlp=None):
        assert nym.current_mapping() == {"batch": "data"}


def test_the_inner_mapping_replaces_the_outer_one():
    with nym.axis_mapping({"batch": "data", "mlp": "model"}):
        with nym.axis_mapping({"embed": "model"}):
            assert nym.current_mapping() == {"embed": "model"}
        assert nym.current_mapping() == {"batch": "data", "mlp": "model"}


def test_merged_the_inner_entries_win_and_none_unmaps():
    with nym.axis_mapping({"batch": "data", "embed": "model", "mlp": "model"}):
        with nym.axis_mapping({"embed": "data", "mlp": None}, merge=True):
            assert nym.current_mapping() == {"batch": "data", "embed": "data"}
            with nym.axis_mapping(mlp="data", batch=None, merge=True):
                assert nym.current_mapping() == {"embed": "data", "mlp": "data"}
    with nym.axis_mapping({"batch": "data"}, merge=True):
        assert nym.current_mapping() == {"batch": "data"}


class Rule:
    def apply(self, array):
        return None


def test_merged_the_outer_options_stay_where_the_inner_one_says_nothing():
    rule, other = Rule(), Rule()
    with nym.axis_mapping({"batch": "data"}, fallback=rule, uneven="replicate"):
        with nym.axis_mapping(mlp="model", merge=True):
            assert nym.current_mapping() == nym.AxisMapping(
                {"batch": "data", "mlp": "model"}, fallback=rule, uneven="replicate"
            )
        with nym.axis_mapping(merge=True, fallback=other, uneven="error"):
            assert nym.current_mapping() == nym.AxisMapping({"batch": "data"}, fallback=other)
        with nym.axis_mapping(mlp="model"):
            assert nym.current_mapping() == nym.AxisMapping({"mlp": "model"})


def test_an_axis_mapping_brings_its_options_along():
    rule = Rule()
    given = nym.AxisMapping({"batch": "data"}, fallback=rule, uneven="replicate")
    with nym.axis_mapping(given):
        assert nym.current_mapping() == given
    with nym.axis_mapping(given, uneven="error", mlp="model"):
        assert nym.current_mapping() == nym.AxisMapping({"batch": "data", "mlp": "model"}, fallback=rule)
    with nym.axis_mapping(batch="model", uneven="replicate"), nym.axis_mapping(nym.AxisMapping(), merge=True):
        assert nym.current_mapping() == nym.AxisMapping({"batch": "model"}, uneven="error")


def test_one_object_can_be_entered_again_and_within_itself():
    mapping = nym.axis_mapping({"batch": "data"})
    for _ in range(2):
        with mapping as entered:
            assert entered is mapping
            with nym.axis_mapping({"mlp": "model"}), mapping:
                assert nym.current_mapping() == {"batch": "data"}
            assert nym.current_mapping() == {"batch": "data"}
        assert nym.current_mapping() is None


def test_a_merging_object_looks_at_what_is_outside_each_time():
    merging = nym.axis_mapping({"mlp": "model"}, merge=True)
    with nym.axis_mapping({"batch": "data"}), merging:
        assert nym.current_mapping() == {"batch": "data", "mlp": "model"}
    with nym.axis_mapping({"embed": "data"}), merging:
        assert nym.current_mapping() == {"embed": "data", "mlp": "model"}


def test_decorates_a_function():
    @nym.axis_mapping({"batch": "data"})
    def depth(n):
        """Counts."""
        assert nym.current_mapping() == {"batch": "data"}
        return 1 + depth(n - 1) if n else 0

    assert depth(3) == 3
    assert depth.__doc__ == "Counts."
    assert nym.current_mapping() is None


def generate():
    yield nym.current_mapping()


async def wait():
    return nym.current_mapping()


async def generate_and_wait():
    yield nym.current_mapping()


class Layer:
    def generate(self):
        yield self


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (generate, r"`generate`: the body of generator functions .* `with axis_mapping\(\.\.\.\):` .* without `yield`"),
        (Layer.generate, r"`generate`: the body of generator functions runs after the call"),
        (functools.partial(generate), "the body of generator functions runs after the call, when the mapping is not"),
        (wait, r"`axis_mapping\(\.\.\.\)` cannot decorate `wait`: the body of async functions .* without `await`"),
        (generate_and_wait, "the body of async generator functions .* around code without `await` or `yield`"),
    ],
    ids=["generator", "method", "partial", "async", "async generator"],
)
def test_a_function_whose_body_runs_after_the_call_cannot_be_decorated(fn, text):
    with pytest.raises(TypeError, match=text):
        nym.axis_mapping({"batch": "data"})(fn)


def test_the_name_of_an_option_is_not_taken_for_an_axis():
    with pytest.raises(
        TypeError, match=r"`merge` .* is True or False, not 'data'; to map an axis named 'merge', put it"
    ):
        nym.axis_mapping(merge="data")
    with nym.axis_mapping({"merge": "data"}, self="model"):
        assert nym.current_mapping() == {"merge": "data", "self": "model"}


@pytest.mark.parametrize("rebuild", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_pickled_and_copied_with_its_options_but_not_entered(rebuild):
    with nym.axis_mapping(mlp="model", merge=True) as entered:
        other = rebuild(entered)
    with nym.axis_mapping({"batch": "data"}, uneven="replicate"):
        with other, other:
            assert nym.current_mapping() == nym.AxisMapping({"batch": "data", "mlp": "model"}, uneven="replicate")
        assert nym.current_mapping() == nym.AxisMapping({"batch": "data"}, uneven="replicate")
    assert nym.current_mapping() is None


def test_an_exception_restores_the_outer_mapping():
    @nym.axis_mapping({"embed": "model"})
    def failing():
        raise KeyError("embed")

    with nym.axis_mapping({"batch": "data"}):
        with pytest.raises(KeyError, match="embed"):
            failing()
        with pytest.raises(KeyError, match="embed"), nym.axis_mapping({"mlp": "model"}):
            failing()
        assert nym.current_mapping() == {"batch": "data"}
    with pytest.raises(ValueError, match="not divisible"), nym.axis_mapping({"batch": "data"}):
        nym.sharding_for_axis(nym.Axis("batch", 3), mesh=jax.sharding.AbstractMesh((4,), ("data",)))
    assert nym.current_mapping() is None


def test_a_new_thread_has_no_mapping():
    with nym.axis_mapping({"batch": "data"}), ThreadPoolExecutor(1) as pool:
        assert pool.submit(nym.current_mapping).result() is None


@pytest.mark.parametrize("compiled", [jax.jit, nym.named_jit])
def test_a_changed_mapping_is_traced_once_and_an_equal_one_found_again(mesh, compiled):
    seen = []

    @compiled
    def total(x):  # a scalar result, so that only the mapping can make a difference
        seen.append(nym.current_mapping())
        return nym.auto_sharded(x).sum().array

    x = nym.ones({"batch": 8, "embed": 4})
    one = [
        {"batch": "data"},
        {"batch": ("data",)},
        {"batch": "data", "embed": None},
        nym.AxisMapping({"batch": "data"}),
    ]
    other = [{"batch": "data", "embed": "model"}, {"embed": "model", "batch": "data"}]
    for mapping in [*one, *other, *one, *other]:
        with nym.axis_mapping(mapping):
            assert total(x) == 32
    for _ in range(2):
        assert total(x) == 32
    for _ in range(2):
        with nym.axis_mapping({"batch": "data"}, uneven="replicate"):
            assert total(x) == 32
    assert seen == [
        nym.AxisMapping({"batch": "data"}),
        nym.AxisMapping({"batch": "data", "embed": "model"}),
        None,
        nym.AxisMapping({"batch": "data"}, uneven="replicate"),
    ]


def test_a_mapping_is_found_again_whatever_caches_forget(mesh):
    traced = []
    compiled = jax.jit(lambda x: nym.auto_sharded(traced.append(x.shape) or x))
    for number in (0, *range(CACHE_SIZE + 1), 0):
        with nym.axis_mapping({f"axis {number}": "data"}):
            if number == 0:
                compiled(nym.ones({"axis 0": 8}))
    assert traced == [(8,)]


@pytest.mark.parametrize("compiled", [jax.jit, nym.named_jit])
def test_a_changed_mapping_changes_what_is_compiled(mesh, compiled):
    @compiled
    def double(x):
        return nym.auto_sharded(x * 2)

    x = nym.ones({"batch": 8, "embed": 4})
    for mapping, spec in [
        ({"batch": "data"}, P("data", None)),
        ({"embed": "data"}, P(None, "data")),
        ({"batch": "data"}, P("data", None)),
    ]:
        with nym.axis_mapping(mapping):
            assert double(x).sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, spec), 2)


@pytest.mark.parametrize("compiled", [jax.jit, nym.named_jit])
def test_a_changed_mesh_is_traced_once(compiled):
    meshes = [
        jax.make_mesh(shape, ("data", "model"), axis_types=(kind,) * 2)
        for shape, kind in [((4, 2), AxisType.Auto), ((2, 4), AxisType.Auto), ((4, 2), AxisType.Explicit)]
    ]
    seen = []

    @compiled
    def double(x):
        seen.append(jax.sharding.get_abstract_mesh())
        return nym.auto_sharded(nym.named(x * 2, "batch"))

    with nym.axis_mapping({"batch": "data"}):
        for mesh in [*meshes, *meshes]:
            with jax.set_mesh(mesh):
                assert double(np.ones(8)).sharding.shard_shape((8,)) == (8 // mesh.shape["data"],)
    assert seen == [mesh.abstract_mesh for mesh in meshes]


def test_functions_of_jax_itself_see_the_mapping(mesh):
    x = nym.ones({"batch": 8, "embed": 4})

    def seen_in(transform):
        seen = []

        def total(x):
            seen.append(nym.current_mapping())
            return nym.auto_sharded(x).sum().array

        transform(total)
        return seen[-1]

    with nym.axis_mapping({"batch": "data"}):
        for transform in [
            lambda f: jax.grad(f)(x),
            lambda f: jax.eval_shape(jax.checkpoint(f), x),
            lambda f: jax.eval_shape(lambda x: jax.lax.scan(lambda c, _: (c + f(x), None), 0.0, None, 2), x),
            lambda f: jax.eval_shape(jax.vmap(lambda a: f(nym.named(a, "embed"))), x.array),
            lambda f: jax.linearize(f, x),
        ]:
            assert seen_in(transform) == {"batch": "data"}


def test_creation_and_layers_ask_the_mapping_in_force(mesh):
    with nym.axis_mapping({"batch": "data", "mlp": "model"}):
        assert nym.zeros({"batch": 8, "embed": 4}).sharding.is_equivalent_to(NamedSharding(mesh, P("data", None)), 2)
        layer = nym.nn.Linear.init(nym.Axis("embed", 4), nym.Axis("mlp", 8), key=jax.random.key(0))
        assert layer.weight.sharding.is_equivalent_to(NamedSharding(mesh, P("model", None)), 2)
        y = layer(nym.ones({"batch": 8, "embed": 4}))
        assert y.sharding.spec == P("data", "model")


def test_vmap_leaves_explicit_mesh_axes_to_jax():
    """The axis that is mapped over is not sharded here, whatever the mapping says; its gradient has its type."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with jax.set_mesh(mesh), nym.axis_mapping({"batch": "data", "embed": "model"}):
        x = nym.named(np.ones((8, 4), np.float32), ("batch", "embed"))
        grads = jax.grad(lambda x: nym.vmap(lambda row: nym.shard(row * row), "batch")(x).sum().array)(x)
    np.testing.assert_array_equal(np.asarray(grads), np.full((8, 4), 2.0))

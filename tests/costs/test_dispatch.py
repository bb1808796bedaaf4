"""What a call of a compiled function costs without a clock: one flattening, one trace, nothing kept; also on meshes."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.counting import own_calls, python_calls


LEAVES = (1, 20)


class Model(eqx.Module):
    weights: list[nym.NamedArray]
    act: Callable[[Any], Any] = eqx.field(static=True, default=nym.tanh)


def model(leaves: int) -> Model:
    return Model([nym.NamedArray(jax.device_put(np.ones(2, np.float32)), "embed") for _ in range(leaves)])


def loss(tree: Any, *_: Any) -> jax.Array:
    return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def doubled(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * 2, tree)


def test_a_call_enters_three_functions_and_looks_at_each_array_once():
    for fn, static, own in ((loss, (), 1), (loss, ("train",), 1), (doubled, (), 2)):  # a result is put together once
        for leaves in LEAVES:
            compiled, given = nym.named_jit(fn), model(leaves)
            assert own_calls(lambda: compiled(given, *static)) == 3 + own * leaves  # noqa: B023
    compiled, given = nym.named_jit(loss), model(5)
    for static in ("train", 1, 0.5, nym.tanh):
        compiled(given, static)
        compiled(given, [static])
    assert own_calls(lambda: compiled(given)) == 3 + 5  # no more after static arguments


def test_a_call_enters_few_python_functions_more_than_one_of_jax():
    given = model(5)
    plain, named = jax.jit(doubled), nym.named_jit(doubled)
    counts = [sum(python_calls(lambda fn=fn: fn(given)).values()) for fn in (plain, named)]
    assert counts[1] - counts[0] <= 7  # three of ours, and the hash and comparison of the static argument


def test_a_donating_call_does_the_same_whatever_the_number_of_leaves():
    def call(leaves: int) -> Callable[[], Any]:
        fn = nym.named_jit(doubled, donate_args=(True,))
        held = [model(leaves)]

        def run() -> None:
            held[0] = fn(held[0])

        return run

    found = [own_calls(call(leaves)) for leaves in LEAVES]
    assert found[1] - found[0] == 2 * (LEAVES[1] - LEAVES[0])  # each array taken apart once, and made once
    assert found[0] <= 12


def test_one_trace_per_signature_before_and_after_a_static_argument():
    fn, small, large = nym.named_jit(loss), model(1), model(2)
    weak, strong = jnp.asarray(1.0), jnp.float32(1.0)
    assert weak.weak_type
    for _ in range(2):
        for args in ((small,), (large,), (small, "train"), (small, 1.0), (small, True), (strong,), (weak,), (1.0,)):
            fn(*args)
    assert fn.trace_count == 8
    fn.lower(small)
    assert fn.trace_count == 8  # stages share the trace of a call with arrays only


def test_a_number_is_static_also_where_an_array_of_its_type_came_first():
    for numbers, arrays in (
        ((1, 2), (jnp.asarray(1), jnp.int32(1))),
        ((0.5, 1.5), (jnp.asarray(0.5), np.float32(0.5))),
        ((True, False), (jnp.asarray(True), np.bool_(False))),
        ((2**40,), (np.int32(3),)),
    ):
        seen = []
        fn = nym.named_jit(lambda x: seen.append(x) or jnp.zeros(()))  # noqa: B023
        for value in (*arrays, *numbers, *arrays, *numbers):
            fn(value)
        static = [value for value in seen if not isinstance(value, jax.Array)]
        assert [(type(value), value) for value in static] == [(type(value), value) for value in numbers]


def test_the_function_runs_once_for_a_static_argument_and_raises_as_is():
    calls = []

    def fails(x: Any, kind: Any = None) -> Any:
        calls.append(kind)
        raise TypeError(f"no {kind} here")

    fn = nym.named_jit(fails)
    for kind in ("rows", None):
        with pytest.raises(TypeError, match=f"no {kind} here") as caught:
            fn(nym.ones({"i": 2}), *([kind] if kind else []))
        assert caught.value.__context__ is None
    assert calls == ["rows", None]


@pytest.mark.parametrize("shape", [(), (2,)], ids=["scalar", "vector"])
def test_an_object_with_a_dtype_is_static_and_passed_as_it_is(shape):
    config = type("Config", (), {"dtype": np.dtype("float32"), "shape": shape})()
    seen = []
    fn = nym.named_jit(lambda x: seen.append(x) or jnp.zeros(()))
    for value in (config, np.float32(1), config, config):
        fn(value)
    assert [value for value in seen if not isinstance(value, jax.Array)] == [config]
    assert len(seen) == fn.trace_count == 2


@pytest.mark.parametrize("weak", [False, True], ids=["strong", "weak"])
def test_a_compiled_function_takes_scalars_of_weak_and_of_strong_type(weak):
    shape, tree = jax.ShapeDtypeStruct((), jnp.float32, weak_type=weak), {"a": model(1).weights[0]}
    compiled = nym.named_jit(lambda tree, rate: tree["a"] * rate).lower(tree, shape).compile()
    for kind in (jnp.float32, jnp.asarray, np.float32):
        np.testing.assert_array_equal(compiled(tree, kind(3.0)).array, [3.0, 3.0])


def test_a_function_keeps_nothing_for_each_shape_or_value():
    fn = nym.named_jit(loss)

    def count_kept() -> list[int]:
        return [kept.cache_info().currsize for kept in vars(fn).values() if hasattr(kept, "cache_info")]

    for static in ([], [0]):
        fn(nym.ones({"embed": 1}), *static)
        before = count_kept()
        for other in (2, 3):
            fn(nym.ones({"embed": other}), *static)
            fn(nym.ones({"embed": 1}), *(value + other for value in static))
        assert count_kept() == before != []


@pytest.mark.parametrize("static", [(), ("train",)], ids=["arrays only", "static"])
def test_arrays_are_not_kept_and_a_function_goes_with_its_closure(static):
    class Held:
        pass

    held = Held()
    given = nym.ones({"embed": 2})
    fn = nym.named_jit(lambda x, *_: x + 0 * bool(held))
    fn(given, *static)
    array, closure = weakref.ref(given.array), weakref.ref(held)
    del given
    gc.collect()
    assert array() is None
    del fn, held
    gc.collect()
    assert closure() is None


MAPPING = {"embed": "data"}


def sharded_model(leaves: int) -> Model:
    with nym.axis_mapping(MAPPING):
        return nym.auto_sharded(Model([nym.ones({"embed": 8}) for _ in range(leaves)]))


@pytest.mark.parametrize("options", [{}, {"axis_resources": MAPPING}], ids=["in force", "its own"])
def test_a_mesh_and_a_mapping_add_nothing_to_a_call(mesh, options):
    fn, given = nym.named_jit(loss, **options), sharded_model(3)
    with nym.axis_mapping(MAPPING):
        assert own_calls(lambda: fn(given)) == 3 + 3
        assert fn.trace_count == 1


def test_arguments_in_place_are_not_looked_at_one_by_one_and_not_moved(mesh, asked):
    found = []
    for leaves in (1, 20):
        fn, given = nym.named_jit(loss, in_axis_resources=MAPPING), sharded_model(leaves)
        asked.clear()
        found.append(own_calls(lambda: fn(given)) - leaves)  # noqa: B023
        assert not asked
    assert found[0] == found[1] <= 14


def test_a_misplaced_argument_is_moved_after_calls_with_placed_ones(mesh, asked):
    fn, given = nym.named_jit(lambda x: x, in_axis_resources=MAPPING), sharded_model(1).weights[0]
    elsewhere = nym.named(jnp.arange(8.0), "embed")
    fn(given)
    assert not asked
    for _ in range(2):
        assert fn(elsewhere).sharding.spec == jax.P("data")
    assert sum(asked) == 2
    with pytest.raises(ValueError, match="'embed' has size 7"):
        fn(nym.ones({"embed": 7}))
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"), axis_types=mesh.axis_types)):
        assert fn(given).sharding.mesh.shape["data"] == 2
    assert sum(asked) == 3


def test_a_fallback_rule_is_asked_at_every_call(mesh):
    asked = []

    class Rule:
        def apply(self, array):
            asked.append(array.shape)
            return jax.P("data")

    fn = nym.named_jit(lambda x: x, in_axis_resources=nym.AxisMapping(MAPPING, fallback=Rule()))
    given = fn(jnp.ones(8))
    asked.clear()
    for count in (1, 2):
        assert fn(given).sharding.spec == jax.P("data")
        assert len(asked) >= count


@pytest.mark.parametrize(
    "fn",
    [
        nym.named_jit(lambda x: x, in_axis_resources=MAPPING),
        nym.pspec_for,
        lambda x: (x + nym.arange(x.axes)).sharding,
    ],
    ids=["named_jit", "pspec_for", "arange"],
)
def test_traced_arrays_are_not_asked_where_they_lie(mesh, fn, monkeypatch):
    """JAX answers that with an error, for which some versions search all equations so far."""
    asked, real = [], jax.core.Tracer.__getattr__

    def recorded(self, name):
        asked.append(name)
        return real(self, name)

    given = sharded_model(1).weights[0]
    with nym.axis_mapping(MAPPING):
        jax.jit(lambda x: (fn(x), x)[1])(given)  # each class of tracers is asked once
        monkeypatch.setattr(jax.core.Tracer, "__getattr__", recorded)
        jax.jit(lambda x: (fn(x), x * 2)[1])(given)
        with pytest.raises(AttributeError, match="sharding"):
            jax.jit(lambda x: x.sharding)(given.array)
    assert asked.count("sharding") == 1

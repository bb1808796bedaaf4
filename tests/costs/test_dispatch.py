"""What a call of a compiled function costs without a clock: one flattening, one trace, and nothing kept."""

import gc
import json
import os
import subprocess
import sys
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
    return Model([nym.ones({"embed": 2}) for _ in range(leaves)])


def loss(tree: Any, *_: Any) -> jax.Array:
    return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def doubled(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * 2, tree)


@pytest.mark.parametrize("static", [(), ("train",)], ids=["arrays only", "static"])
@pytest.mark.parametrize("leaves", LEAVES)
def test_a_call_enters_three_functions_and_looks_at_each_array_once(leaves, static):
    fn, given = nym.named_jit(loss), model(leaves)
    assert own_calls(lambda: fn(given, *static)) == 3 + leaves


@pytest.mark.parametrize("leaves", LEAVES)
def test_a_model_as_the_result_is_put_together_once(leaves):
    fn, given = nym.named_jit(doubled), model(leaves)
    assert own_calls(lambda: fn(given)) == 3 + 2 * leaves


AUDITED = """
import json
import sys

import equinox as eqx
import axonym as nym

class Model(eqx.Module):
    weights: list[nym.NamedArray]

given = Model([nym.ones({"embed": 2}) for _ in range(3)])
fn = nym.named_jit(lambda model: Model([weight * 2 for weight in model.weights]))
result = fn(fn(given))
events = []
sys.addaudithook(lambda event, args: events.append(event))
events.clear()
result = fn(given)
found = {"call": list(events)}
events.clear()
object.__setattr__(result.weights[0], "__class__", nym.NamedArray)
found["change of class"] = list(events)
print(json.dumps(found))
"""


def test_a_model_as_the_result_raises_no_audit_event_for_its_arrays():
    """A change of class raises one, and each is slow where something listens; a hook cannot be removed again."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    found = json.loads(subprocess.check_output([sys.executable, "-c", AUDITED], env=environment, text=True))
    assert "object.__setattr__" in found["change of class"]
    assert "object.__setattr__" not in found["call"]


def test_a_call_enters_few_python_functions_more_than_one_of_jax():
    given = model(5)
    plain, named = jax.jit(doubled), nym.named_jit(doubled)
    counts = [sum(python_calls(lambda fn=fn: fn(given)).values()) for fn in (plain, named)]
    assert counts[1] - counts[0] <= 7  # three of ours, and the hash and comparison of the static argument


def test_a_static_argument_costs_the_same_for_any_number_of_leaves():
    fn = nym.named_jit(loss)
    few, many = (own_calls(lambda given=given: fn(given, "train")) for given in map(model, (2, 20)))
    assert many - few == 20 - 2  # each array is looked at once
    assert few <= 10 + 2 + 2


def test_a_call_with_arrays_only_costs_no_more_after_static_ones():
    fn, given = nym.named_jit(loss), model(5)
    for static in ("train", 1, 0.5, nym.tanh):
        fn(given, static)
        fn(given, [static])
    assert own_calls(lambda: fn(given)) == 3 + 5


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


@pytest.mark.parametrize(
    ("numbers", "arrays"),
    [
        ((1, 2), (jnp.asarray(1), jnp.int32(1))),
        ((0.5, 1.5), (jnp.asarray(0.5), np.float32(0.5))),
        ((True, False), (jnp.asarray(True), np.bool_(False))),
        ((2**40,), (np.int32(3),)),
    ],
    ids=["int", "float", "bool", "large"],
)
def test_a_number_is_static_also_where_an_array_of_its_type_came_first(numbers, arrays):
    seen = []
    fn = nym.named_jit(lambda x: seen.append(x) or jnp.zeros(()))
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


def test_stages_share_the_trace_of_a_call_with_arrays_only():
    fn, given = nym.named_jit(doubled), model(2)
    fn(given)
    compiled = fn.lower(given).compile()
    assert fn.trace_count == 1
    np.testing.assert_array_equal(compiled(given).weights[0].array, [2.0, 2.0])


@pytest.mark.parametrize("before", [(), (jnp.float32(1),)], ids=["first", "after an array"])
@pytest.mark.parametrize("shape", [(), (2,)], ids=["scalar", "vector"])
def test_an_object_with_a_dtype_is_static_and_passed_as_it_is(shape, before):
    config = type("Config", (), {"dtype": np.dtype("float32"), "shape": shape})()
    seen = []
    fn = nym.named_jit(lambda x: seen.append(x) or jnp.zeros(()))
    for value in (*before, config, config):
        fn(value)
    assert [value for value in seen if not isinstance(value, jax.Array)] == [config]
    assert len(seen) == fn.trace_count == len(before) + 1


@pytest.mark.parametrize("kind", [jnp.float32, jnp.asarray, np.float32], ids=["strong", "weak", "numpy"])
@pytest.mark.parametrize("weak", [False, True], ids=["for strong", "for weak"])
def test_a_compiled_function_takes_scalars_of_weak_and_of_strong_type(weak, kind):
    shape = jax.ShapeDtypeStruct((), jnp.float32, weak_type=weak)
    compiled = nym.named_jit(lambda tree, rate: tree["a"] * rate).lower({"a": nym.ones({"i": 2})}, shape).compile()
    np.testing.assert_array_equal(compiled({"a": nym.ones({"i": 2})}, kind(3.0)).array, [3.0, 3.0])


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

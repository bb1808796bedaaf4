"""Eager elementwise operations and reductions: what runs in Python for each, and what is kept of their operands."""

import functools
import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.counting import all_calls, own, own_calls, python_calls


SIZES = {"batch": 4, "pos": 3, "embed": 2}


def operand(*names: str, start: float = 1.0) -> nym.NamedArray:
    sizes = [SIZES[name] for name in names]
    return nym.named(start + jnp.arange(float(np.prod(sizes))).reshape(sizes), names)


def operands() -> dict[str, Any]:
    a, mask = operand("batch", "pos", "embed"), operand("pos", "embed") > 3
    return {"a": a, "b": -a, "v": operand("embed"), "t": operand("embed", "batch"), "mask": mask}


# For each operation: how many functions of Axonym a call enters at most, and the call.
OPERATIONS = {
    "add": (4, lambda a, b, **_: a + b),
    "add_a_number": (5, lambda a, **_: a + 1.0),
    "number_minus": (6, lambda a, **_: 2.0 - a),
    "broadcast": (4, lambda a, v, **_: a * v),
    "transpose_and_broadcast": (4, lambda a, t, **_: a + t),
    "power": (4, lambda a, **_: a**2),
    "less": (4, lambda a, b, **_: a < b),
    "equal": (5, lambda a, b, **_: a == b),
    "negative": (4, lambda a, **_: -a),
    "exp": (4, lambda a, **_: nym.exp(a)),
    "maximum": (4, lambda a, b, **_: nym.maximum(a, b)),
    "where": (3, lambda a, b, mask, **_: nym.where(mask, a, b)),
    "sum": (5, lambda a, **_: nym.sum(a, "embed")),
    "sum_of_all": (5, lambda a, **_: a.sum()),
    "mean": (5, lambda a, **_: a.mean("embed")),
    "max": (5, lambda a, **_: a.max("embed")),
    "var": (5, lambda a, **_: a.var("embed")),
    "argmax": (5, lambda a, **_: a.argmax("embed")),
    "cumsum": (5, lambda a, **_: a.cumsum("embed")),
    "sort": (5, lambda a, **_: nym.sort(a, "embed")),
    "diff": (4, lambda a, **_: nym.diff(a, "embed")),
    "clip": (5, lambda a, **_: nym.clip(a, 0.5, 1.5)),
    "masked_sum": (10, lambda a, mask, **_: a.sum(("pos", "embed"), where=mask)),
    "roll": (12, lambda a, **_: nym.roll(a, 1, "embed")),
    "tril": (9, lambda a, **_: nym.tril(a, "pos", "embed")),
    "quantile": (11, lambda a, **_: nym.quantile(a, 0.5, "embed")),
}


def called(name: str, given: dict[str, Any]) -> Any:
    return functools.partial(OPERATIONS[name][1], **given)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_enters_few_functions_of_axonym(name):
    entered = own(called(name, operands()))
    assert 0 < sum(entered.values()) <= OPERATIONS[name][0], entered


@pytest.mark.parametrize("name", OPERATIONS)
def test_of_jax_an_operation_calls_only_what_is_compiled(name):
    """JAX's own functions in Python are those that read a shape, one for each operand."""
    found = python_calls(called(name, operands()))
    assert {key for key in found if not key.startswith(("axonym:", "other:"))} <= {"jax:shape"}
    assert found["jax:shape"] <= 3


# For each operation: how many more functions run in Python than by hand at most, and what is written by hand. Where
# that is compiled as it stands, next to nothing of it runs in Python, and the functions of Axonym come on top.
BY_HAND = {
    "add": (0, lambda a, b, **_: a + b),
    "add_a_number": (0, lambda a, **_: a + 1.0),
    "number_minus": (0, lambda a, **_: 2.0 - a),
    "broadcast": (0, lambda a, v, **_: a * v),
    "transpose_and_broadcast": (0, lambda a, t, **_: a + jnp.transpose(t)[:, None]),
    "power": (0, lambda a, **_: a**2),
    "less": (4, lambda a, b, **_: a < b),
    "equal": (6, lambda a, b, **_: a == b),
    "negative": (5, lambda a, **_: -a),
    "exp": (5, lambda a, **_: jnp.exp(a)),
    "maximum": (0, lambda a, b, **_: jnp.maximum(a, b)),
    "where": (0, lambda a, b, mask, **_: jnp.where(mask, a, b)),
    "sum": (2, lambda a, **_: jnp.sum(a, axis=-1)),
    "sum_of_all": (1, lambda a, **_: a.sum()),
    "mean": (1, lambda a, **_: a.mean(-1)),
    "max": (1, lambda a, **_: a.max(-1)),
    "var": (0, lambda a, **_: a.var(-1)),
    "argmax": (0, lambda a, **_: a.argmax(-1)),
    "cumsum": (5, lambda a, **_: a.cumsum(-1)),
    "sort": (6, lambda a, **_: jnp.sort(a, axis=-1)),
    "diff": (5, lambda a, **_: jnp.diff(a, axis=-1)),
    "clip": (6, lambda a, **_: jnp.clip(a, 0.5, 1.5)),
    "masked_sum": (6, lambda a, mask, **_: jnp.sum(a, axis=(1, 2), where=mask)),
    "roll": (0, lambda a, **_: jnp.roll(a, 1, -1)),
    "tril": (11, lambda a, **_: jnp.tril(a)),
    "quantile": (15, lambda a, **_: jnp.quantile(a, 0.5, axis=-1)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_little_more_runs_in_python_than_by_hand(name):
    given, (more, by_hand) = operands(), BY_HAND[name]
    with jax.numpy_rank_promotion("allow"):
        plain = {key: x.array for key, x in given.items()}
        assert all_calls(called(name, given)) <= all_calls(functools.partial(by_hand, **plain)) + more


@pytest.mark.parametrize("name", OPERATIONS)
def test_other_arrays_with_the_same_axes_are_not_planned_again(name):
    warm, other = operands(), {key: +x for key, x in operands().items() if key != "mask"}
    other["mask"] = ~warm["mask"]
    expected = python_calls(called(name, warm))
    assert python_calls(called(name, other), warm=0) == expected


@pytest.mark.parametrize("name", ["add", "broadcast", "transpose_and_broadcast", "where", "sum", "masked_sum"])
def test_on_a_mesh_as_much_runs_as_on_one_device(name, mesh):
    with nym.axis_mapping({"batch": "data", "embed": "model"}):
        given = {key: nym.shard(x) for key, x in operands().items()}
        assert 0 < own_calls(called(name, given)) <= OPERATIONS[name][0]
        assert {key for key in python_calls(called(name, given)) if key.startswith("jax:")} <= {"jax:shape"}


def equations(fn: Any, *args: Any) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Returns the name of each equation of a traced function and the shapes of its results."""
    jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
    return [(one.primitive.name, [tuple(out.aval.shape) for out in one.outvars]) for one in jaxpr.eqns]


def test_what_is_traced_has_nothing_but_the_operation():
    a, v, t, mask = (operands()[key] for key in ("a", "v", "t", "mask"))
    whole = a.array.shape
    assert equations(lambda a: a + a, a) == equations(lambda a: a + 1.0, a) == [("add", [whole])]
    assert equations(lambda a: a**2, a) == equations(lambda a: a.array**2, a)
    assert equations(nym.exp, a) == [("exp", [whole])]
    assert equations(lambda a: a.sum("embed"), a) == [("reduce_sum", [whole[:2]])]
    assert equations(lambda a, v: a * v, a, v) == [("broadcast_in_dim", [(1, 1, 2)]), ("mul", [whole])]
    transposing = [("transpose", [(4, 2)]), ("broadcast_in_dim", [(4, 1, 2)]), ("add", [whole])]
    assert equations(lambda a, t: a + t, a, t) == transposing
    chosen = equations(lambda mask, a: nym.where(mask, a, a), mask, a)
    with jax.numpy_rank_promotion("allow"):
        by_hand = equations(lambda mask, a: jnp.where(mask[None], a, a), mask.array, a.array)
    assert chosen == by_hand


def test_no_operand_outlives_its_array():
    """Everything that is compiled or planned is found again by names, sizes and options alone."""
    given = operands()
    kept = [weakref.ref(x.array) for x in given.values()]
    for name in OPERATIONS:
        called(name, given)()
    q = nym.named(jnp.array([0.25, 0.75]), "q")
    kept.append(weakref.ref(q.array))
    nym.quantile(given["a"], q, "embed")
    nym.diff(given["a"], "embed", prepend=given["v"])
    nym.roll(given["a"], given["v"]["embed", 0].astype(int), "embed")
    nym.max(given["a"], "embed", where=given["mask"], initial=q.array[0])
    del given, q
    gc.collect()
    assert [one() for one in kept] == [None] * len(kept)


def test_a_lifted_function_is_traced_once_per_call_and_not_kept():
    traced, held = [], np.ones(2)

    def function(x: Any) -> Any:
        traced.append(x.shape)
        return x * held

    lifted, a = nym.lift(function, "embed"), operand("batch", "embed")
    for x in (a, -a, a + 1.0):
        lifted(x)
    assert traced == [(2,)] * 3
    gone = weakref.ref(function), weakref.ref(held)
    del function, held, lifted
    gc.collect()
    assert [one() for one in gone] == [None, None]

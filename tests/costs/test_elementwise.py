"""Eager elementwise operations and reductions: what runs in Python for each, and what is kept of their operands."""

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.counting import all_calls, own, own_calls, python_calls


SIZES = {"batch": 4, "pos": 3, "embed": 2}


def operand(*names: str, start: float = 1.0) -> nym.NamedArray:
    sizes = [SIZES[name] for name in names]
    values = start + np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    return nym.named(jax.device_put(values), names)


def operands() -> dict[str, Any]:
    a, mask = operand("batch", "pos", "embed"), np.asarray(operand("pos", "embed").array) > 3
    return {
        **{"a": a, "b": operand("batch", "pos", "embed", start=-20.0), "v": operand("embed")},
        **{"t": operand("embed", "batch"), "mask": nym.named(jax.device_put(mask), ("pos", "embed"))},
    }


class Operation(NamedTuple):
    """An operation, and the same by hand.

    Attributes:
        own: How many functions of Axonym a call enters at most.
        more: How many more functions run in Python than by hand at most. Where that is compiled as it stands, next to
            nothing of it runs in Python, and the functions of Axonym come on top.
    """

    own: int
    more: int
    call: Callable[..., Any]
    by_hand: Callable[..., Any]


OPERATIONS = {
    "add": Operation(4, 0, lambda a, b, **_: a + b, lambda a, b, **_: a + b),
    "add_a_number": Operation(5, 0, lambda a, **_: a + 1.0, lambda a, **_: a + 1.0),
    "number_minus": Operation(6, 0, lambda a, **_: 2.0 - a, lambda a, **_: 2.0 - a),
    "broadcast": Operation(4, 0, lambda a, v, **_: a * v, lambda a, v, **_: a * v),
    "transpose_and_broadcast": Operation(
        4, 0, lambda a, t, **_: a + t, lambda a, t, **_: a + jnp.transpose(t)[:, None]
    ),
    "power": Operation(4, 0, lambda a, **_: a**2, lambda a, **_: a**2),
    "equal": Operation(5, 6, lambda a, b, **_: a == b, lambda a, b, **_: a == b),
    "exp": Operation(4, 5, lambda a, **_: nym.exp(a), lambda a, **_: jnp.exp(a)),
    "maximum": Operation(4, 0, lambda a, b, **_: nym.maximum(a, b), lambda a, b, **_: jnp.maximum(a, b)),
    "where": Operation(
        3, 0, lambda a, b, mask, **_: nym.where(mask, a, b), lambda a, b, mask, **_: jnp.where(mask, a, b)
    ),
    "sum": Operation(5, 2, lambda a, **_: nym.sum(a, "embed"), lambda a, **_: jnp.sum(a, axis=-1)),
    "sum_of_all": Operation(5, 1, lambda a, **_: a.sum(), lambda a, **_: a.sum()),
    "var": Operation(5, 0, lambda a, **_: a.var("embed"), lambda a, **_: a.var(-1)),
    "argmax": Operation(5, 0, lambda a, **_: a.argmax("embed"), lambda a, **_: a.argmax(-1)),
    "cumsum": Operation(5, 5, lambda a, **_: a.cumsum("embed"), lambda a, **_: a.cumsum(-1)),
    "diff": Operation(4, 5, lambda a, **_: nym.diff(a, "embed"), lambda a, **_: jnp.diff(a, axis=-1)),
    "clip": Operation(5, 6, lambda a, **_: nym.clip(a, 0.5, 1.5), lambda a, **_: jnp.clip(a, 0.5, 1.5)),
    "masked_sum": Operation(
        *(10, 6, lambda a, mask, **_: a.sum(("pos", "embed"), where=mask)),
        by_hand=lambda a, mask, **_: jnp.sum(a, axis=(1, 2), where=mask),
    ),
    "roll": Operation(12, 0, lambda a, **_: nym.roll(a, 1, "embed"), lambda a, **_: jnp.roll(a, 1, -1)),
    "tril": Operation(9, 11, lambda a, **_: nym.tril(a, "pos", "embed"), lambda a, **_: jnp.tril(a)),
    "quantile": Operation(
        11, 15, lambda a, **_: nym.quantile(a, 0.5, "embed"), lambda a, **_: jnp.quantile(a, 0.5, axis=-1)
    ),
}


def called(name: str, given: dict[str, Any]) -> Any:
    return functools.partial(OPERATIONS[name].call, **given)


@pytest.mark.parametrize("name", OPERATIONS)
def test_little_more_runs_in_python_than_by_hand(name):
    given, operation = operands(), OPERATIONS[name]
    entered = own(called(name, given))
    assert 0 < sum(entered.values()) <= operation.own, entered
    # JAX's own functions in Python are those that read a shape, one for each operand.
    calls = python_calls(called(name, given))
    assert {key for key in calls if not key.startswith(("axonym:", "other:"))} <= {"jax:shape"}
    assert calls["jax:shape"] <= 3
    # Other arrays with the same axes are not planned again.
    others = {key: nym.NamedArray(jax.device_put(np.asarray(x.array)), x.names) for key, x in given.items()}
    assert python_calls(called(name, others), warm=0) == calls
    with jax.numpy_rank_promotion("allow"):
        plain = {key: x.array for key, x in given.items()}
        by_hand = all_calls(functools.partial(operation.by_hand, **plain))
    assert all_calls(called(name, given)) <= by_hand + operation.more


@pytest.mark.parametrize("name", ["transpose_and_broadcast", "where", "masked_sum"])
def test_on_a_mesh_as_much_runs_as_on_one_device(name, mesh):
    with nym.axis_mapping({"batch": "data", "embed": "model"}):
        given = {key: nym.shard(x) for key, x in operands().items()}
        assert 0 < own_calls(called(name, given)) <= OPERATIONS[name].own
        assert {key for key in python_calls(called(name, given)) if key.startswith("jax:")} <= {"jax:shape"}


def equations(fn: Any, *args: Any) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Returns the name of each equation of a traced function and the shapes of its results."""
    jaxpr = jax.make_jaxpr(fn)(*args)
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

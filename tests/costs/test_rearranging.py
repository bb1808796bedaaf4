"""What eager contractions, changes of axes, indices and the like may cost, read without a clock.

Python functions are counted in a call like one before.
"""

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.counting import all_calls, own, primitives


A = jnp.arange(24.0).reshape(2, 3, 4)
W = jnp.ones((4, 5))
TOKENS = jnp.asarray([0, 2])
X = nym.named(A, ("batch", "pos", "embed"))
WEIGHT = nym.named(W, ("embed", "mlp"))
NAMED_TOKENS = nym.named(TOKENS, "token")
HALVES = nym.make_axes(left=2, right=2)

# Name, the operation, what JAX does the same with, and how many functions of Axonym the operation enters at most.
OPERATIONS: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {
    "dot": (lambda: nym.dot(X, WEIGHT, axis="embed"), lambda: jnp.einsum("bpe,em->bpm", A, W), 4),
    "einsum": (lambda: nym.einsum("b p e, e m -> b p m", X, WEIGHT), lambda: jnp.einsum("bpe,em->bpm", A, W), 6),
    "rearrange": (lambda: nym.rearrange(X, ("embed", "batch", "pos")), lambda: jnp.transpose(A, (2, 0, 1)), 3),
    "expression": (lambda: nym.rearrange(X, "b p e -> (token: b p) e"), lambda: jnp.reshape(A, (6, 4)), 5),
    "flatten_axes": (lambda: nym.flatten_axes(X, ("batch", "pos"), "token"), lambda: jnp.reshape(A, (6, 4)), 8),
    "integer": (lambda: X["pos", 1], lambda: A[:, 1], 12),
    "slice": (lambda: X["pos", 1:3], lambda: A[:, 1:3], 12),
    "named-array": (lambda: X["pos", NAMED_TOKENS], lambda: A[:, TOKENS], 13),
    "take": (lambda: nym.take(X, "pos", NAMED_TOKENS), lambda: jnp.take(A, TOKENS, axis=1), 12),
    "set": (lambda: X.at["pos", 1].set(0.0), lambda: A.at[:, 1].set(0.0), 22),
    "softmax": (lambda: nym.nn.softmax(X, "embed"), lambda: jax.nn.softmax(A, axis=-1), 5),
    "logsumexp": (lambda: nym.nn.logsumexp(X, "embed"), lambda: jax.nn.logsumexp(A, axis=-1), 5),
    "split": (lambda: nym.split(X, "embed", HALVES), lambda: jnp.split(A, 2, axis=2), 5),
    "stack": (lambda: nym.stack("copy", [X, X]), lambda: jnp.stack([A, A]), 6),
    "concatenate": (lambda: nym.concatenate("batch", [X, X]), lambda: jnp.concatenate([A, A]), 6),
}
COMPILED_BY_HAND = ("take",)  # next to nothing of it runs in Python


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_enters_few_functions(name):
    operation, by_hand, most = OPERATIONS[name]
    entered = own(operation)
    assert 0 < sum(entered.values()) <= most, entered
    if name in COMPILED_BY_HAND:
        # What Axonym enters of others: two shapes, an element type, a check of a class and a named tuple; a
        # comprehension before 3.12.
        assert all_calls(operation) <= all_calls(by_hand) + most + 5
    else:
        assert all_calls(operation) < all_calls(by_hand)


def _calls(index: Callable[[int], Any], integers: Iterable[int]) -> int:
    """Returns how many Python functions are entered by the last of several calls, each with the next integer."""
    supply = iter(integers)
    return all_calls(lambda: index(next(supply)))


@pytest.mark.parametrize(
    "index",
    [
        lambda i: X["pos", i],
        lambda i: nym.take(X, "pos", i),
        lambda i: X.at["pos", i].set(0.0),
        lambda i: X["pos", nym.ds(i, 1)],
    ],
    ids=["index", "take", "set", "dslice"],
)
def test_another_integer_is_no_other_program(index):
    assert _calls(index, [0, 2, 1, -3]) == _calls(index, [1, 1, 1, 1])


def test_a_product_is_one_dot_general_without_a_transpose():
    for out_axes in (None, ("batch", "pos", "mlp"), ("mlp", ...)):
        options = {"axis": "embed", "out_axes": out_axes}
        assert primitives(lambda x, w: nym.dot(x, w, **options), X, WEIGHT) == ["dot_general"]  # noqa: B023
    assert primitives(lambda x, w: nym.einsum("b p e, e m -> b p m", x, w), X, WEIGHT) == ["dot_general"]


def test_an_operation_emits_what_it_needs():
    for operation, *expected in (
        (lambda x: x["pos", 1], "slice", "squeeze"),
        (lambda x: x["pos", 1:3], "slice"),
        (lambda x: x["pos", ::2], "slice"),
        (lambda x: nym.rearrange(x, ("embed", ...)), "transpose"),
        (lambda x: nym.rearrange(x, "b p e -> e (token: b p)"), "transpose", "reshape"),
        (lambda x: nym.flatten_axes(x, ("batch", "pos"), "token"), "reshape"),
        (lambda x: nym.flatten_axes(x, ("pos", "batch"), "token"), "transpose", "reshape"),
        (lambda x: nym.unflatten_axis(x, "embed", {"heads": 2, "head_dim": 2}), "reshape"),
        (lambda x: nym.split(x, "embed", HALVES), "split"),
        (lambda x: nym.concatenate("pos", [x, x]), "concatenate"),
    ):
        assert primitives(operation, X) == expected


def test_a_named_array_index_is_one_gather():
    emitted = primitives(lambda x, tokens: x["pos", tokens], X, NAMED_TOKENS)
    assert [one for one in emitted if "gather" in one or "slice" in one or "transpose" in one] == ["gather"]
    assert emitted == primitives(lambda a, tokens: a[:, tokens], A, TOKENS)


def test_an_order_that_is_there_already_costs_nothing():
    for order in (("batch", "pos", "embed"), (..., "embed"), "b p e -> b p e"):
        assert nym.rearrange(X, order) is X
        assert primitives(lambda x: nym.rearrange(x, order), X) == []  # noqa: B023


def test_plans_keep_no_array_and_no_function_alive():
    def product(*operands: Any, **options: Any) -> Any:
        return jax.lax.dot_general(*operands, **options)

    def halved(array: Any) -> Any:
        return array / 2

    x, weight, tokens = (nym.named(one.array + 0, one.names) for one in (X, WEIGHT, NAMED_TOKENS))
    nym.dot(x, weight, axis="embed")
    nym.dot(x, weight, axis="embed", dot_general=product)
    nym.einsum("{embed} -> ...", x, weight)
    nym.nn.softmax(nym.rearrange(x, ("embed", ...)), "embed")
    nym.concatenate("pos", [x, nym.flatten_axes(x, ("pos",), "pos"), x.at["pos", tokens].set(1.0)])
    nym.split(x["pos", tokens], "embed", HALVES)
    x.at["pos", 1].apply(halved)
    watched = [weakref.ref(one) for one in (x.array, weight.array, tokens.array, product, halved)]
    del x, weight, tokens, product, halved
    gc.collect()
    assert [one() for one in watched] == [None] * 5


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: nym.dot(x, WEIGHT, axis="embed"),
        lambda x: nym.rearrange(x, ("pos", "batch", "embed")),
        lambda x: nym.nn.softmax(x, "embed"),
        lambda x: x.at["embed", 1].set(0.0),
        lambda x: x["embed", nym.named([1, 0], "token")],
    ],
    ids=["dot", "rearrange", "softmax", "set", "index"],
)
def test_a_plan_is_not_shared_between_meshes_and_mappings(operation, explicit_mesh):
    def spec_of_batch() -> Any:
        x = nym.shard(nym.named(np.ones((8, 3, 4), np.float32), X.names))
        result = operation(x)
        return result.sharding.spec[result.names.index("batch")]

    plain = operation(nym.named(jnp.ones((8, 3, 4)), X.names))
    with jax.set_mesh(explicit_mesh):
        for axis in ("data", None):
            with nym.axis_mapping({"batch": axis}):
                assert spec_of_batch() == axis
    assert len(plain.sharding.device_set) == 1
    assert operation(nym.named(jnp.ones((8, 3, 4)), X.names)).sharding == plain.sharding

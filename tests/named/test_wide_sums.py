"""Sums of many 16-bit floats: gathers, scatters, their gradients and those of loops, compared with float64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


TERMS, STEPS = 50_000, 4096
Vocab, Embed = nym.make_axes(vocab=4, embed=2)
ZERO = nym.NamedArray(np.zeros((), np.float32), ())
LIMITS = {jnp.bfloat16: 1e-2, jnp.float16: 1e-3}


def differentiate(look_up: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Returns the gradient for a table of what is looked up in it, times weights."""

    def compute_loss(table: Any, ids: Any, weights: Any) -> Any:
        return (look_up(table, ids) * weights).astype(jnp.float32).sum().scalar()

    return jax.grad(compute_loss)


def add_product(total: Any, weight: Any, index: Any, table: Any) -> Any:
    return total + (table["vocab", index] * weight).astype(jnp.float32).sum()


def fold_closed_over(table: Any, ids: Any, weights: Any) -> Any:
    return nym.fold(lambda total, *step: add_product(total, *step, table), "batch")(ZERO, weights, ids).scalar()


def fold_argument(table: Any, ids: Any, weights: Any) -> Any:
    return nym.fold(add_product, "batch")(ZERO, weights, ids, table).scalar()


def scan_closed_over(table: Any, ids: Any, weights: Any) -> Any:
    run = nym.scan(lambda total, *step: (add_product(total, *step, table), None), "batch", remat="nested")
    return run(ZERO, weights, ids)[0].scalar()


def take_along_axis(table: Any, ids: Any) -> Any:
    return nym.take_along_axis(table, ids.rename({"batch": "vocab"}), "vocab").rename({"vocab": "batch"})


def repeat(table: Any, ids: Any) -> Any:
    counts = nym.bincount(ids, Vocab)
    return nym.repeat(table, counts, "vocab", total_repeat_length=STEPS).rename({"vocab": "batch"})


def interpolate(table: Any, ids: Any) -> Any:
    positions = nym.arange(Vocab).astype(table.dtype)
    return nym.interp(ids.astype(table.dtype), positions, table["embed", 0])


def map_indices(table: Any, ids: Any) -> Any:
    return nym.vmap(lambda index: table["vocab", index], "batch")(nym.shard(ids, {"batch": None}))


def map_slices(table: Any, ids: Any) -> Any:
    ids = nym.shard(ids, {"batch": None})
    return nym.vmap(lambda index: table["vocab", nym.dslice(index, 1)], "batch")(ids)["vocab", 0]


def compute_histogram(_: Any, ids: Any, weights: Any) -> Any:
    return nym.histogram(ids.astype(weights.dtype), Vocab, (-0.5, 3.5), weights=weights)[0]


# Each returns the sum of the weights of each id. The ids are sorted.
SUMS: dict[str, Callable[..., Any]] = {
    "index": differentiate(lambda table, ids: table["vocab", ids]),
    "take": differentiate(lambda table, ids: nym.take(table, "vocab", ids, mode="fill")),
    "embedding": differentiate(lambda table, ids: nym.nn.Embedding(table, Vocab, (Embed,))(ids)),
    "take_along_axis": differentiate(take_along_axis),
    "interp": differentiate(interpolate),
    "index in vmap": differentiate(map_indices),
    "slice in vmap": differentiate(map_slices),
    "add": lambda table, ids, weights: nym.zeros_like(table).at["vocab", ids].add(weights),
    "subtract": lambda table, ids, weights: -nym.zeros_like(table).at["vocab", ids].subtract(weights),
    "bincount": lambda _, ids, weights: nym.bincount(ids, Vocab, weights=weights),
    "histogram": compute_histogram,
}
SHORT_SUMS: dict[str, Callable[..., Any]] = {
    "repeat": differentiate(repeat),
    "map": differentiate(lambda table, ids: nym.map(lambda index: table["vocab", index], "batch")(ids)),
    "fold": jax.grad(fold_closed_over),
    "fold, argument": jax.grad(fold_argument),
    "scan": jax.grad(scan_closed_over),
}


def plain_sums(table: Any, ids: Any, weights: Any) -> Any:
    return jax.grad(lambda table: (table[ids] * weights[:, None]).sum())(table)


def plain_loop(table: Any, ids: Any, weights: Any) -> Any:
    def add_up(table: Any) -> Any:
        return jax.lax.scan(lambda total, step: (total + (table[step[0]] * step[1]).sum(), None), 0.0, (ids, weights))[
            0
        ]

    return jax.grad(add_up)(table)


def compute_error(sums: Any, ids: np.ndarray, weights: np.ndarray) -> float:
    """Returns the largest error of sums, as a share of the sum of magnitudes."""
    expected = np.zeros(Vocab.size)
    np.add.at(expected, ids, weights.astype(np.float64))
    result = np.asarray(jax.device_get(sums), np.float64).reshape(Vocab.size, -1)
    return float(np.max(np.abs(result[:, 0] - expected) / expected))


@pytest.mark.parametrize(
    ("dtype", "mesh"), [(jnp.bfloat16, "auto"), (jnp.float16, "explicit"), (jnp.float32, "auto")], indirect=["mesh"]
)
def test_sums_of_many_terms_are_those_in_float64(mapped: Any, dtype: Any) -> None:
    random, table = np.random.default_rng(0), nym.ones((Vocab, Embed), dtype)
    too_large: dict[str, float] = {}
    for cases, count, plain in ((SUMS, TERMS, plain_sums), (SHORT_SUMS, STEPS, plain_loop)):
        ids = np.sort(random.zipf(1.5, count) % Vocab.size)
        weights = random.uniform(0.25, 1.5, count).astype(dtype)
        sharded = nym.shard((table, nym.named(ids, "batch"), nym.named(weights, "batch")))
        results = jax.jit(lambda *args, cases=cases: {name: fn(*args).array for name, fn in cases.items()})(*sharded)
        if dtype == jnp.float32:
            with jax.set_mesh(None):  # no worse than plain JAX, up to another order of the terms
                limit = compute_error(jax.jit(plain)(np.ones((4, 2), dtype), ids, weights), ids, weights) + 2e-6
        else:
            limit = LIMITS[dtype]
        for name, result in results.items():
            error = compute_error(result, ids, weights)
            if not error <= limit or result.dtype != dtype:
                too_large[name] = error
    assert too_large == {}


def test_nested_loops_trace_their_step_once():
    traces = 0

    def add(total: Any, x: Any, weight: Any) -> Any:
        nonlocal traces
        traces += 1
        return total + (x * weight).astype(jnp.float32)

    def compute_loss(weight: Any, x: Any) -> Any:
        return nym.fold(lambda total, x: add(total, x, weight), ("a", "b", "c"))(ZERO, x).scalar()

    weight, x = nym.named(jnp.bfloat16(2), ()), nym.ones({"a": 2, "b": 2, "c": 2}, jnp.bfloat16)
    assert jax.jit(jax.grad(compute_loss))(weight, x).item() == 8
    assert traces == 1

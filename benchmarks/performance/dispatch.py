"""What a call of a compiled function costs: models of Equinox modules with named leaves, and a single named array."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import axonym as nym

from .contenders import agree, haliax
from .measure import Effort, Row, timed


DEVICES = 1
AXIS, SIZE = "embed", 4
SIZES = (10, 100, 300)
SAME_TREE = "JAX, same tree"


class Block(eqx.Module):
    """Five parameters, and what layers have beside them."""

    query: Any
    key: Any
    value: Any
    output: Any
    scale: Any
    eps: float = eqx.field(static=True, default=1e-5)
    name: str = eqx.field(static=True, default="block")
    act: Callable[[Any], Any] = eqx.field(static=True, default=jax.nn.gelu)


class Model(eqx.Module):
    blocks: list[Block]


def model(leaves: int, make: Callable[[], Any]) -> Model:
    return Model([Block(*(make() for _ in range(5))) for _ in range(leaves // 5)])


def loss(tree: Any) -> Any:
    return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def updated(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * 0.9, tree)


def raw() -> jax.Array:
    return jnp.ones(SIZE)


def named() -> nym.NamedArray:
    return nym.named(raw(), AXIS)


def of_haliax() -> Any:
    return haliax.named(raw(), AXIS)


def trees(
    leaves: int, raw: Callable[[], Any], named: Callable[[], Any], of_haliax: Callable[[], Any]
) -> dict[str, Any]:
    """Returns as many arrays for each contender: a flat list for JAX, a model for the others, and a single one bare."""
    if leaves == 1:
        found = {"JAX": raw(), "Equinox": raw(), "Axonym": named()}
        return found if haliax is None else {**found, "Haliax": of_haliax()}
    found = {"JAX": [raw() for _ in range(leaves)], SAME_TREE: model(leaves, raw), "Axonym": model(leaves, named)}
    found["Equinox"] = found[SAME_TREE]
    return found if haliax is None else {**found, "Haliax": model(leaves, of_haliax)}


def calls(compiled: dict[str, Callable[[Any], Any]], trees: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Returns for each contender a call of its compiled function with its tree, after seeing that they agree."""
    found = {who: functools.partial(fn, trees[who]) for who, fn in compiled.items() if who in trees}
    agree({who: call() for who, call in found.items()})
    return found


def compiled(fn: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """Returns a function compiled each contender's way."""
    found = {"JAX": jax.jit(fn), SAME_TREE: jax.jit(fn), "Equinox": eqx.filter_jit(fn), "Axonym": nym.named_jit(fn)}
    return found if haliax is None else {**found, "Haliax": haliax.named_jit(fn)}


def rows(effort: Effort) -> Iterator[Row]:
    against = "`jax.jit` on a flat list of raw arrays"
    one = trees(1, raw, named, of_haliax)
    yield timed("`named_jit`, one named array", against, 1.8, calls(compiled(lambda x: x * 0.9), one), effort)
    for leaves in SIZES[:1] if effort.smoke else SIZES:
        of = trees(leaves, raw, named, of_haliax)
        what = f"`named_jit`, a model of {leaves} leaves"
        scalar, whole = (2.2, None) if leaves == 10 else (2.2, 1.8)
        yield timed(f"{what}, scalar result", against, scalar, calls(compiled(loss), of), effort)
        yield timed(f"{what}, the model as the result", against, whole, calls(compiled(updated), of), effort)

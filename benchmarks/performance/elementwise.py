"""What eager operations on named arrays cost: elementwise ones, reductions, and others that users meet first."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym
import axonym.linalg

from .contenders import agree, haliax
from .measure import Effort, Row, timed


DEVICES = 1
SIZES = {"batch": 4, "pos": 8, "embed": 16, "key_pos": 8}
FULL = ("batch", "pos", "embed")


class Operands(NamedTuple):
    """Arrays of one contender: two alike, one that lacks leading axes, one in another order, matrices, and a mask."""

    a: Any
    b: Any
    v: Any
    t: Any
    square: Any
    mask: Any


class Case(NamedTuple):
    """One operation: the bar, or None, and how a user of each library writes it; None for Haliax if it has none."""

    what: str
    bar: float | None
    jax: Callable[[Operands], Any]
    axonym: Callable[[Operands], Any]
    haliax: Callable[[Operands], Any] | None


def operands(make: Callable[[jax.Array, tuple[str, ...]], Any]) -> Operands:
    draw = np.random.default_rng(0).uniform
    found = []
    for names in (FULL, FULL, ("embed",), ("embed", "batch"), ("batch", "pos", "key_pos"), ("pos", "embed")):
        found.append((jnp.asarray(draw(0.5, 2.0, [SIZES[name] for name in names]), jnp.float32), names))
    *others, (mask, names) = found
    a, b, v, t, square = (make(*one) for one in others)
    return Operands(a, b, v, t, square, make(mask > 1, names))


BARRED = (
    Case("`a + b`, same axes", 1.25, lambda o: o.a + o.b, lambda o: o.a + o.b, lambda o: o.a + o.b),
    Case("`a + 1.0`", 1.25, lambda o: o.a + 1.0, lambda o: o.a + 1.0, lambda o: o.a + 1.0),
    Case("`a * v`, a trailing axis broadcast", 1.3, lambda o: o.a * o.v, lambda o: o.a * o.v, lambda o: o.a * o.v),
    Case(
        "`a + t`, transposed and broadcast",
        0.3,
        lambda o: o.a + o.t.T[:, None],
        lambda o: o.a + o.t,
        lambda o: o.a + o.t,
    ),
    Case("`exp`", 1.25, lambda o: jnp.exp(o.a), lambda o: nym.exp(o.a), lambda o: haliax.exp(o.a)),
    Case(
        "`sum` over an axis",
        1.4,
        lambda o: jnp.sum(o.a, axis=-1),
        lambda o: nym.sum(o.a, "embed"),
        lambda o: haliax.sum(o.a, "embed"),
    ),
    Case(
        "`where`",
        1.5,
        lambda o: jnp.where(o.mask, o.a, o.b),
        lambda o: nym.where(o.mask, o.a, o.b),
        lambda o: haliax.where(o.mask, o.a, o.b),
    ),
    Case(
        "`concatenate`",
        1.3,
        lambda o: jnp.concatenate([o.a, o.b], axis=1),
        lambda o: nym.concatenate("pos", [o.a, o.b]),
        lambda o: haliax.concatenate("pos", [o.a, o.b]),
    ),
)

OTHERS = (
    Case(
        "`a + t`, the same with `jnp.expand_dims`",
        None,
        lambda o: o.a + jnp.expand_dims(jnp.transpose(o.t), 1),
        lambda o: o.a + o.t,
        None,
    ),
    Case("`2.0 - a`", None, lambda o: 2.0 - o.a, lambda o: 2.0 - o.a, lambda o: 2.0 - o.a),
    Case("`-a`", None, lambda o: -o.a, lambda o: -o.a, lambda o: -o.a),
    Case("`a > b`", None, lambda o: o.a > o.b, lambda o: o.a > o.b, lambda o: o.a > o.b),
    Case("`a == b`", None, lambda o: o.a == o.b, lambda o: o.a == o.b, lambda o: o.a == o.b),
    Case("`a ** 2`", None, lambda o: o.a**2, lambda o: o.a**2, lambda o: o.a**2),
    Case("`sqrt`", None, lambda o: jnp.sqrt(o.a), lambda o: nym.sqrt(o.a), lambda o: haliax.sqrt(o.a)),
    Case(
        "`maximum`",
        None,
        lambda o: jnp.maximum(o.a, o.b),
        lambda o: nym.maximum(o.a, o.b),
        lambda o: haliax.maximum(o.a, o.b),
    ),
    Case(
        "`clip`",
        None,
        lambda o: jnp.clip(o.a, 0.5, 1.5),
        lambda o: nym.clip(o.a, 0.5, 1.5),
        lambda o: haliax.clip(o.a, 0.5, 1.5),
    ),
    Case(
        "`astype`",
        None,
        lambda o: o.a.astype(jnp.bfloat16),
        lambda o: o.a.astype(jnp.bfloat16),
        lambda o: o.a.astype(jnp.bfloat16),
    ),
    Case("`mean`", None, lambda o: o.a.mean(axis=-1), lambda o: o.a.mean("embed"), lambda o: o.a.mean("embed")),
    Case("`max`", None, lambda o: o.a.max(axis=-1), lambda o: o.a.max("embed"), lambda o: o.a.max("embed")),
    Case("`var`", None, lambda o: o.a.var(axis=-1), lambda o: o.a.var("embed"), lambda o: o.a.var("embed")),
    Case("`sum` of all", None, lambda o: o.a.sum(), lambda o: o.a.sum(), lambda o: o.a.sum()),
    Case(
        "`sum` with a mask",
        None,
        lambda o: jnp.sum(o.a, axis=(1, 2), where=o.mask),
        lambda o: nym.sum(o.a, ("pos", "embed"), where=o.mask),
        lambda o: haliax.sum(o.a, ("pos", "embed"), where=o.mask),
    ),
    Case("`argmax`", None, lambda o: o.a.argmax(-1), lambda o: o.a.argmax("embed"), lambda o: o.a.argmax("embed")),
    Case("`cumsum`", None, lambda o: o.a.cumsum(-1), lambda o: o.a.cumsum("embed"), lambda o: o.a.cumsum("embed")),
    Case(
        "`sort`",
        None,
        lambda o: jnp.sort(o.a, axis=-1),
        lambda o: nym.sort(o.a, "embed"),
        lambda o: haliax.sort(o.a, "embed"),
    ),
    Case("`diff`", None, lambda o: jnp.diff(o.a), lambda o: nym.diff(o.a, "embed"), None),
    Case(
        "`quantile`",
        None,
        lambda o: jnp.quantile(o.a, 0.5, axis=-1),
        lambda o: nym.quantile(o.a, 0.5, "embed"),
        None,
    ),
    Case(
        "`tril`",
        None,
        lambda o: jnp.tril(o.a),
        lambda o: nym.tril(o.a, "pos", "embed"),
        lambda o: haliax.tril(o.a, "pos", "embed"),
    ),
    Case(
        "`roll`",
        None,
        lambda o: jnp.roll(o.a, 2, axis=-1),
        lambda o: nym.roll(o.a, 2, "embed"),
        lambda o: haliax.roll(o.a, 2, "embed"),
    ),
)


def calls(case: Case, given: dict[str, Operands]) -> dict[str, Callable[[], Any]]:
    """Returns the call of each contender, after seeing that they agree."""
    written = {"JAX": case.jax, "Axonym": case.axonym, "Haliax": case.haliax}
    found = {who: functools.partial(fn, given[who]) for who, fn in written.items() if fn is not None and who in given}
    agree({who: call() for who, call in found.items()}, 1e-4)
    return found


def rows(effort: Effort) -> Iterator[Row]:
    given = {"JAX": operands(lambda array, _: array), "Axonym": operands(nym.named)}
    if haliax is not None:
        given["Haliax"] = operands(haliax.named)
    for case in BARRED if effort.smoke else BARRED + OTHERS:
        yield timed(case.what, "jnp", case.bar, calls(case, given), effort)

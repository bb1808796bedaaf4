"""What `fold`, `scan`, `map` and `vmap` cost beside `jax.lax.scan` and `jax.vmap`, as they are traced and eagerly.

A row "machinery alone" has a body that returns what it is given, so that tracing the body takes no time and nearly all
that is left is what goes on around it: arrays are found, cut, and put together.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym

from .contenders import haliax
from .measure import Effort, Row, timed


DEVICES = 1
STEPS, SIZE = 8, 4
LAYERS, EMBED = "layers", "embed"
SCAN, VMAP = "`jax.lax.scan`", "`jax.vmap`"


Body: TypeAlias = Callable[[Any, Any], Any]


class Leaves(NamedTuple):
    """What each contender runs over: a carry, and arrays with the layer axis, one or many."""

    carry: Any
    stacked: Any


def leaves(make: Callable[[jax.Array, tuple[str, ...]], Any], count: int) -> Leaves:
    return Leaves(
        make(jnp.zeros(SIZE), (EMBED,)), [make(jnp.ones((STEPS, SIZE)), (LAYERS, EMBED)) for _ in range(count)]
    )


def of_haliax(array: jax.Array, names: tuple[str, ...]) -> Any:
    return haliax.named(array, tuple(map(haliax.Axis, names, array.shape)))


def contenders(count: int) -> dict[str, Leaves]:
    found = {"JAX": leaves(lambda array, _: array, count), "Axonym": leaves(nym.named, count)}
    return found if haliax is None else {**found, "Haliax": leaves(of_haliax, count)}


def rows(effort: Effort) -> Iterator[Row]:
    for count in (1, 100) if effort.smoke else (1, 10, 100):
        of = contenders(count)
        body = "a one-op body" if count == 1 else f"{count} leaves"
        for what in ("fold", "scan", "map", "vmap") if count == 1 else ("fold", "scan", "vmap"):
            check(what, of)
            yield _trace_row(f"trace of `{what}`, {body}", what, added, of, None, effort)
    of = contenders(100)
    for what in ("fold", "scan", "vmap"):
        yield _trace_row(f"trace of `{what}`, 100 leaves, machinery alone", what, kept, of, 1.3, effort)
    yield from eager_rows(effort)
    yield stacked_row(effort)


def added(carry: Any, layer: list[Any]) -> Any:
    for one in layer:
        carry = carry + one
    return carry


def kept(carry: Any, layer: list[Any]) -> Any:
    return carry


def _trace_row(what: str, transform: str, body: Body, of: dict[str, Leaves], bar: float | None, effort: Effort) -> Row:
    """Measures traces of a body that no one has seen, as one that is defined where it is used."""

    def traced(apply: Callable[[Body, Leaves], Any], x: Leaves) -> Callable[[], None]:
        def call() -> None:
            jax.make_jaxpr(lambda x: apply(lambda carry, layer: body(carry, layer), x))(x)

        return call

    calls = {who: traced(apply, of[who]) for who, apply in TRANSFORMS[transform].items() if who in of}
    return timed(what, VMAP if transform == "vmap" else SCAN, bar, calls, effort)


def _alone(body: Body) -> Body:
    return lambda carry, layer: (body(carry, layer), None)


def _twice(body: Body) -> Body:
    def both(carry: Any, layer: Any) -> tuple[Any, Any]:
        carry = body(carry, layer)
        return carry, carry

    return both


hax: Any = haliax
AXIS: Any = None if haliax is None else haliax.Axis(LAYERS, STEPS)

TRANSFORMS: dict[str, dict[str, Callable[[Body, Leaves], Any]]] = {
    "fold": {
        "JAX": lambda body, x: jax.lax.scan(_alone(body), x.carry, x.stacked)[0],
        "Axonym": lambda body, x: nym.fold(body, LAYERS)(x.carry, x.stacked),
        "Haliax": lambda body, x: hax.fold(body, AXIS)(x.carry, x.stacked),
    },
    "scan": {
        "JAX": lambda body, x: jax.lax.scan(_twice(body), x.carry, x.stacked),
        "Axonym": lambda body, x: nym.scan(_twice(body), LAYERS)(x.carry, x.stacked),
        "Haliax": lambda body, x: hax.scan(_twice(body), AXIS)(x.carry, x.stacked),
    },
    "map": {
        "JAX": lambda body, x: jax.lax.map(lambda layer: body(x.carry, layer), x.stacked),
        "Axonym": lambda body, x: nym.map(lambda layer: body(x.carry, layer), LAYERS)(x.stacked),
        "Haliax": lambda body, x: hax.map(lambda layer: body(x.carry, layer), AXIS)(x.stacked),
    },
    "vmap": {
        "JAX": lambda body, x: jax.vmap(body, in_axes=(None, 0))(x.carry, x.stacked),
        "Axonym": lambda body, x: nym.vmap(body, LAYERS)(x.carry, x.stacked),
        "Haliax": lambda body, x: hax.vmap(body, AXIS)(x.carry, x.stacked),
    },
}


def check(what: str, of: dict[str, Leaves]) -> None:
    results = {who: jax.tree.leaves(TRANSFORMS[what][who](added, x)) for who, x in of.items()}
    for one in results.values():
        for found, expected in zip(one, results["JAX"], strict=True):
            np.testing.assert_allclose(found, expected)


def eager_rows(effort: Effort) -> Iterator[Row]:
    """Measures calls outside of jit whose body is one function, which JAX finds again."""
    of = contenders(1)
    calls = {who: _call(apply, of[who]) for who, apply in TRANSFORMS["vmap"].items() if who in of}
    yield timed("eager `vmap`, warm", VMAP, None, calls, effort)
    with_none = _alone(added)
    calls = {who: _call(apply, of[who]) for who, apply in TRANSFORMS["fold"].items() if who in of}
    calls["JAX"] = lambda: jax.lax.scan(with_none, of["JAX"].carry, of["JAX"].stacked)
    yield timed("eager `fold`, warm", SCAN, 1.5, calls, effort)


def _call(apply: Callable[[Body, Leaves], Any], x: Leaves) -> Callable[[], Any]:
    return lambda: apply(added, x)


class Scale(eqx.Module):
    weight: Any

    @staticmethod
    def init(weight: Any) -> "Scale":
        return Scale(weight)

    def __call__(self, carry: Any) -> Any:
        return carry * self.weight


def stacked_row(effort: Effort) -> Row:
    """Measures the trace of stacked layers that are applied one after another."""
    weight, carry = jnp.ones((STEPS, SIZE)), jnp.ones(SIZE)
    stack = nym.nn.Stacked.init(nym.Axis(LAYERS, STEPS), Scale)(nym.named(weight, (LAYERS, EMBED)))
    calls = {
        "JAX": _traced_pair(
            lambda weight, carry: jax.lax.scan(lambda carry, w: (carry * w, None), carry, weight)[0], weight, carry
        ),
        "Axonym": _traced_pair(lambda stack, carry: stack.fold(carry), stack, nym.named(carry, EMBED)),
    }
    if haliax is not None:
        layers, embed = haliax.Axis(LAYERS, STEPS), haliax.Axis(EMBED, SIZE)
        other: Any = haliax.nn.Stacked.init(layers, Scale)(haliax.named(weight, (layers, embed)))
        calls["Haliax"] = _traced_pair(lambda stack, carry: stack.fold(carry), other, haliax.named(carry, embed))
    return timed("trace of `Stacked.fold`, one-op layers", SCAN, None, calls, effort)


def _traced_pair(fn: Callable[[Any, Any], Any], first: Any, second: Any) -> Callable[[], None]:
    def call() -> None:
        jax.make_jaxpr(lambda first, second: fn(first, second))(first, second)

    return call

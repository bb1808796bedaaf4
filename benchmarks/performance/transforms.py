"""What `fold`, `scan`, `map` and `vmap` cost beside `jax.lax.scan` and `jax.vmap`, as they are traced and eagerly.

A row "machinery alone" has a body that returns what it is given, so that tracing the body takes no time. What is left
is what goes on around it, arrays are found, cut, and put together, and what JAX takes to trace so many arguments.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp

import axonym as nym

from .contenders import agree, haliax
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


def contenders(count: int) -> dict[str, Leaves]:
    found = {"JAX": leaves(lambda array, _: array, count), "Axonym": leaves(nym.named, count)}
    return found if haliax is None else {**found, "Haliax": leaves(haliax.named, count)}


def rows(effort: Effort) -> Iterator[Row]:
    for count in (1, 100) if effort.smoke else (1, 10, 100):
        of = contenders(count)
        body = "a one-op body" if count == 1 else f"{count} leaves"
        for what in ("fold", "scan", "map", "vmap") if count == 1 else ("fold", "scan", "vmap"):
            check(what, of)
            yield _trace_row(f"trace of `{what}`, {body}", what, added, of, None, effort)
    of = contenders(100)
    # A loop is traced to find the 16-bit arrays whose gradients have to add up in float32, and then evaluated.
    for what, bar in (("fold", 1.7), ("scan", 1.7), ("vmap", 1.3)):
        yield _trace_row(f"trace of `{what}`, 100 leaves, machinery alone", what, kept, of, bar, effort)
    yield from eager_rows(effort)
    yield from stacked_rows(effort)


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


AXIS: Any = None if haliax is None else haliax.Axis(LAYERS, STEPS)

TRANSFORMS: dict[str, dict[str, Callable[[Body, Leaves], Any]]] = {
    "fold": {
        "JAX": lambda body, x: jax.lax.scan(_alone(body), x.carry, x.stacked)[0],
        "Axonym": lambda body, x: nym.fold(body, LAYERS)(x.carry, x.stacked),
        "Haliax": lambda body, x: haliax.fold(body, AXIS)(x.carry, x.stacked),
    },
    "scan": {
        "JAX": lambda body, x: jax.lax.scan(_twice(body), x.carry, x.stacked),
        "Axonym": lambda body, x: nym.scan(_twice(body), LAYERS)(x.carry, x.stacked),
        "Haliax": lambda body, x: haliax.scan(_twice(body), AXIS)(x.carry, x.stacked),
    },
    "map": {
        "JAX": lambda body, x: jax.lax.map(lambda layer: body(x.carry, layer), x.stacked),
        "Axonym": lambda body, x: nym.map(lambda layer: body(x.carry, layer), LAYERS)(x.stacked),
        "Haliax": lambda body, x: haliax.map(lambda layer: body(x.carry, layer), AXIS)(x.stacked),
    },
    "vmap": {
        "JAX": lambda body, x: jax.vmap(body, in_axes=(None, 0))(x.carry, x.stacked),
        "Axonym": lambda body, x: nym.vmap(body, LAYERS)(x.carry, x.stacked),
        "Haliax": lambda body, x: haliax.vmap(body, AXIS)(x.carry, x.stacked),
    },
}


def check(what: str, of: dict[str, Leaves]) -> None:
    agree({who: TRANSFORMS[what][who](added, x) for who, x in of.items()})


def eager_rows(effort: Effort) -> Iterator[Row]:
    """Measures calls outside of jit.

    `jax.lax.scan` keeps what it compiled for a function, with the values of globals as they were; `fold` does not. So
    the row with a bar has a function that is new at each call.
    """
    of = contenders(1)
    calls = {who: functools.partial(TRANSFORMS["vmap"][who], added, x) for who, x in of.items()}
    yield timed("eager `vmap`, warm", VMAP, None, calls, effort)
    calls = {who: functools.partial(TRANSFORMS["fold"][who], added, x) for who, x in of.items()}
    yield timed("eager `fold`, a new function", SCAN, 1.5, calls, effort)
    with_none = _alone(added)
    folds = {who: functools.partial(TRANSFORMS["fold"][who], added) for who in of}
    folds["JAX"] = lambda x: jax.lax.scan(with_none, x.carry, x.stacked)
    calls = {who: functools.partial(folds[who], x) for who, x in of.items()}
    yield timed("eager `fold`, the same function", SCAN, None, calls, effort)
    compilers = {"JAX": jax.jit, "Axonym": nym.named_jit}
    if haliax is not None:
        compilers["Haliax"] = haliax.named_jit
    calls = {who: functools.partial(compilers[who](folds[who]), x) for who, x in of.items()}
    yield timed("the same in `jit`", f"{SCAN} in `jax.jit`", None, calls, effort)


class Scale(eqx.Module):
    weight: Any

    @staticmethod
    def init(weight: Any) -> "Scale":
        return Scale(weight)

    def __call__(self, carry: Any) -> Any:
        return carry * self.weight


def scaled(carry: Any, weight: Any) -> tuple[Any, None]:
    return carry * weight, None


def stacked_rows(effort: Effort) -> Iterator[Row]:
    """Measures traces of stacked layers that are applied in turn, by a function that JAX has seen and by a new one."""
    weight, carry = jnp.ones((STEPS, SIZE)), jnp.ones(SIZE)
    stack = nym.nn.Stacked.init(nym.Axis(LAYERS, STEPS), Scale)(nym.named(weight, (LAYERS, EMBED)))
    of = {"JAX": (weight, carry), "Axonym": (stack, nym.named(carry, EMBED))}
    if haliax is not None:
        other: Any = haliax.nn.Stacked.init(AXIS, Scale)(haliax.named(weight, (LAYERS, EMBED)))
        of["Haliax"] = (other, haliax.named(carry, EMBED))
    by_method = {who: lambda stack, carry: stack.fold(carry) for who in of}
    by_method["JAX"] = lambda weight, carry: jax.lax.scan(scaled, carry, weight)[0]
    by_function = {who: lambda stack, carry: stack.fold_via(lambda layer, x: layer(x))(carry) for who in of}
    by_function["JAX"] = lambda weight, carry: jax.lax.scan(lambda x, w: scaled(x, w), carry, weight)[0]
    for what, ways in (("`Stacked.fold`", by_method), ("`Stacked.fold_via` of a new function", by_function)):
        agree({who: way(*of[who]) for who, way in ways.items()})
        calls = {who: _traced_pair(way, *of[who]) for who, way in ways.items()}
        yield timed(f"trace of {what}, one-op layers", SCAN, None, calls, effort)


def _traced_pair(fn: Callable[[Any, Any], Any], first: Any, second: Any) -> Callable[[], None]:
    def call() -> None:
        jax.make_jaxpr(lambda first, second: fn(first, second))(first, second)

    return call

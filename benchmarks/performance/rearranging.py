"""What eager contractions, changes of axes, indices and the like cost: one call each on a small array."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym

from .contenders import agree, haliax
from .measure import Effort, Row, timed


DEVICES = 1
NAMES, SIZES, MLP = ("batch", "pos", "embed"), (4, 8, 16), 32
EPS = 1e-5

Case = tuple[str, str, float | None, dict[str, Callable[[], Any]]]


class Inputs:
    """The same arrays for each contender: plain ones, and `axonym` and `haliax` ones with names."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.x = jnp.asarray(draw.normal(size=SIZES), jnp.float32)
        self.weight = jnp.asarray(draw.normal(size=(SIZES[2], MLP)), jnp.float32)
        self.square = jnp.asarray(draw.normal(size=(SIZES[0], MLP, MLP)) + 8 * np.eye(MLP), jnp.float32)
        self.tokens = jnp.asarray([5, 0, 3], jnp.int32)
        self.own = self.named(nym.named)

    def named(self, make: Callable[[Any, Any], Any]) -> dict[str, Any]:
        return {
            "x": make(self.x, NAMES),
            "weight": make(self.weight, ("embed", "mlp")),
            "square": make(self.square, ("batch", "mlp", "column")),
            "tokens": make(self.tokens, ("token",)),
        }

    def of_haliax(self) -> dict[str, Any]:
        return {} if haliax is None else self.named(haliax.named)


def contenders(raw: Callable[[], Any], own: Callable[[], Any], peer: Callable[[], Any] | None = None) -> dict[str, Any]:
    found = {"JAX": raw, "Axonym": own}
    return found if haliax is None or peer is None else {**found, "Haliax": peer}


def contractions(inputs: Inputs) -> Iterator[Case]:
    a, w, (x, weight) = inputs.x, inputs.weight, (inputs.own["x"], inputs.own["weight"])
    of = inputs.of_haliax()
    dims = (((2,), (0,)), ((), ()))

    def own() -> Any:
        return nym.dot(x, weight, axis="embed")

    def peer() -> Any:
        return haliax.dot(of["x"], of["weight"], axis="embed")

    yield "`dot`", "`jnp.einsum`", 0.15, contenders(lambda: jnp.einsum("bpe,em->bpm", a, w), own, peer)
    yield "`dot`", "`lax.dot_general`", None, contenders(lambda: jax.lax.dot_general(a, w, dims), own, peer)
    yield "`dot`", "`a @ b`", None, contenders(lambda: a @ w, own, peer)
    yield (
        "`einsum`",
        "`jnp.einsum`",
        None,
        contenders(
            lambda: jnp.einsum("bpe,em->bpm", a, w),
            lambda: nym.einsum("b p e, e m -> b p m", x, weight),
            lambda: haliax.einsum("b p e, e m -> b p m", of["x"], of["weight"]),
        ),
    )


def orders(inputs: Inputs) -> Iterator[Case]:
    a, x, of = inputs.x, inputs.own["x"], inputs.of_haliax()
    yield (
        "`rearrange`, a sequence of axes",
        "`jnp.transpose`",
        0.5,
        contenders(
            lambda: jnp.transpose(a, (2, 0, 1)),
            lambda: nym.rearrange(x, ("embed", "batch", "pos")),
            lambda: haliax.rearrange(of["x"], ("embed", "batch", "pos")),
        ),
    )
    yield (
        "`rearrange`, an expression",
        "`jnp.transpose` and `jnp.reshape`",
        0.5,
        contenders(
            lambda: jnp.reshape(jnp.transpose(a, (2, 0, 1)), (16, 32)),
            lambda: nym.rearrange(x, "b p e -> e (token: b p)"),
            lambda: haliax.rearrange(of["x"], "b p e -> e (token: b p)"),
        ),
    )
    yield (
        "`flatten_axes`",
        "`jnp.reshape`",
        None,
        contenders(
            lambda: jnp.reshape(a, (32, 16)),
            lambda: nym.flatten_axes(x, ("batch", "pos"), "token"),
            lambda: haliax.flatten_axes(of["x"], ("batch", "pos"), "token"),
        ),
    )
    heads = {"heads": 4, "head_dim": 4}
    yield (
        "`unflatten_axis`",
        "`jnp.reshape`",
        None,
        contenders(
            lambda: jnp.reshape(a, (4, 8, 4, 4)),
            lambda: nym.unflatten_axis(x, "embed", heads),
            lambda: haliax.unflatten_axis(of["x"], "embed", heads),
        ),
    )


def indices(inputs: Inputs) -> Iterator[Case]:
    a, tokens, (x, named_tokens) = inputs.x, inputs.tokens, (inputs.own["x"], inputs.own["tokens"])
    of = inputs.of_haliax()
    for what, item in (("('pos', 3)", ("pos", 3)), ("{'pos': 3}", {"pos": 3})):
        yield (
            f"integer index, {what}",
            "`a[:, 3]`",
            0.25,
            contenders(lambda: a[:, 3], lambda item=item: x[item], lambda item=item: of["x"][item]),
        )
    yield (
        "slice",
        "`a[:, 2:5]`",
        None,
        contenders(lambda: a[:, 2:5], lambda: x["pos", 2:5], lambda: of["x"]["pos", 2:5]),
    )
    yield (
        "named-array index",
        "`a[:, tokens]`",
        0.5,
        contenders(lambda: a[:, tokens], lambda: x["pos", named_tokens], lambda: of["x"]["pos", of["tokens"]]),
    )
    yield (
        "`take`",
        "`jnp.take`",
        None,
        contenders(
            lambda: jnp.take(a, tokens, axis=1),
            lambda: nym.take(x, "pos", named_tokens),
            lambda: haliax.take(of["x"], "pos", of["tokens"]),
        ),
    )
    yield (
        "`at[...].set`",
        "`a.at[:, 3].set(0.0)`",
        None,
        contenders(
            lambda: a.at[:, 3].set(0.0),
            lambda: x.at["pos", 3].set(0.0),
            lambda: of["x"].at["pos", 3].set(0.0),
        ),
    )


def normalisations(inputs: Inputs) -> Iterator[Case]:
    a, x, of = inputs.x, inputs.own["x"], inputs.of_haliax()
    yield (
        "`softmax`",
        "`jax.nn.softmax`",
        0.35,
        contenders(
            lambda: jax.nn.softmax(a, axis=-1),
            lambda: nym.nn.softmax(x, "embed"),
            lambda: haliax.nn.softmax(of["x"], "embed"),
        ),
    )
    yield (
        "`logsumexp`",
        "`jax.nn.logsumexp`",
        None,
        contenders(
            lambda: jax.nn.logsumexp(a, axis=-1),
            lambda: nym.nn.logsumexp(x, "embed"),
            lambda: haliax.nn.logsumexp(of["x"], "embed"),
        ),
    )
    layer = nym.nn.LayerNorm.init(nym.Axis("embed", 16))
    peer: Any = None if haliax is None else haliax.nn.LayerNorm.init(haliax.Axis("embed", 16))
    scale, bias = jnp.ones(16), jnp.zeros(16)

    def by_hand(a: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        mean = jnp.mean(a, axis=-1, keepdims=True)
        variance = jnp.var(a, axis=-1, keepdims=True)
        return (a - mean) * jax.lax.rsqrt(variance + EPS) * scale + bias

    steps, compiled = (functools.partial(fn, a, scale, bias) for fn in (by_hand, jax.jit(by_hand)))
    yield "`LayerNorm`", "jnp, a call for each step", None, contenders(steps, lambda: layer(x), lambda: peer(of["x"]))
    yield "`LayerNorm`", "the same in `jax.jit`", None, contenders(compiled, lambda: layer(x))
    softmax = functools.partial(jax.jit(functools.partial(jax.nn.softmax, axis=-1)), a)
    yield "`softmax`", "the same in `jax.jit`", None, contenders(softmax, lambda: nym.nn.softmax(x, "embed"))


def pieces(inputs: Inputs) -> Iterator[Case]:
    a, x, of = inputs.x, inputs.own["x"], inputs.of_haliax()
    halves = nym.make_axes(left=8, right=8)
    theirs = () if haliax is None else haliax.make_axes(left=8, right=8)
    yield (
        "`split`",
        "`jnp.split`",
        None,
        contenders(
            lambda: jnp.split(a, 2, axis=2),
            lambda: nym.split(x, "embed", halves),
            lambda: haliax.split(of["x"], "embed", theirs),
        ),
    )
    yield (
        "`unbind`",
        "`jnp.unstack`",
        None,
        contenders(
            lambda: jnp.unstack(a, axis=0), lambda: nym.unbind(x, "batch"), lambda: haliax.unbind(of["x"], "batch")
        ),
    )
    yield (
        "`stack`",
        "`jnp.stack`",
        None,
        contenders(
            lambda: jnp.stack([a, a]), lambda: nym.stack("copy", [x, x]), lambda: haliax.stack("copy", [of["x"]] * 2)
        ),
    )
    square, matrices = inputs.square, inputs.own["square"]
    yield (
        "`linalg.inv`",
        "`jnp.linalg.inv`",
        None,
        contenders(lambda: jnp.linalg.inv(square), lambda: nym.linalg.inv(matrices, "mlp", "column")),
    )


def rows(effort: Effort) -> Iterator[Row]:
    inputs = Inputs()
    for group in (contractions, orders, indices, normalisations, pieces):
        for what, against, bar, case in group(inputs):
            agree({who: call() for who, call in case.items()}, 1e-4)
            yield timed(what, against, bar, case, effort)
            if effort.smoke:
                break

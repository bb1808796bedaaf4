"""Steps of training of a stack of Llama's blocks, on one device and on all that there are, with the batch divided.

Value and gradient of a squared error and plain SGD, in hand-written JAX and with named arrays; blocks are scanned, and
parameters are donated. Named arrays compute attention as by hand does, or as Axonym chooses: by cuDNN's kernel on GPUs.
For GPUs; on CPUs the sizes are tiny, and what counts is that it runs and that all agree.
"""

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import axonym as nym

from .measure import Effort, Row, row, timed


DEVICES = 2
EPS, THETA, RATE = 1e-5, 10000.0, 1e-3


@dataclass(frozen=True)
class Sizes:
    layers: int = 8
    embed: int = 1024
    heads: int = 16
    kv: int = 8
    mlp: int = 2816
    pos: int = 1024
    batch: int = 4  # on each device
    dtype: Any = jnp.bfloat16

    @property
    def features(self) -> int:
        return self.embed // self.heads


TINY = Sizes(layers=2, embed=16, heads=4, kv=2, mlp=24, pos=8, batch=2, dtype=jnp.float32)


def parameters(sizes: Sizes) -> dict[str, jax.Array]:
    """Returns the parameters of all blocks, stacked, in the order of the fields of `Block`."""
    random = np.random.default_rng(0)
    embed, kv, group, features, mlp = sizes.embed, sizes.kv, sizes.heads // sizes.kv, sizes.features, sizes.mlp
    shapes = {
        "attention_norm": (embed,),
        "down": (mlp, embed),
        "gate": (embed, mlp),
        "key": (embed, kv, features),
        "mlp_norm": (embed,),
        "output": (kv, group, features, embed),
        "query": (embed, kv, group, features),
        "up": (embed, mlp),
        "value": (embed, kv, features),
    }
    return {name: _drawn(random, (sizes.layers, *shape), sizes) for name, shape in shapes.items()}


def _drawn(random: np.random.Generator, shape: tuple[int, ...], sizes: Sizes) -> jax.Array:
    return jnp.asarray(random.standard_normal(shape, np.float32) / math.sqrt(sizes.embed), sizes.dtype)


# By hand


def _norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + EPS)).astype(x.dtype) * weight


def _turned(x: jax.Array) -> jax.Array:
    """Rotates queries or keys, of shape (batch, pos, ..., features)."""
    half = x.shape[-1] // 2
    frequencies = THETA ** (jnp.arange(half, dtype=jnp.float32) * (-1 / half))
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
    angles = angles.reshape(x.shape[1], *(1,) * (x.ndim - 3), half)
    cosine, sine = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate((first * cosine - second * sine, second * cosine + first * sine), axis=-1)


def _attention(x: jax.Array, block: dict[str, jax.Array], mask: jax.Array) -> jax.Array:
    query = _turned(jnp.einsum("bse,ekgd->bskgd", x, block["query"]))
    key = _turned(jnp.einsum("bse,ekd->bskd", x, block["key"]))
    value = jnp.einsum("bse,ekd->bskd", x, block["value"])
    scores = jnp.einsum("bqkgd,bskd->bkgqs", query / math.sqrt(query.shape[-1]), key)
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
    return jnp.einsum("bskgd,kgde->bse", jnp.einsum("bkgqs,bskd->bqkgd", weights, value), block["output"])


def _raw_block(x: jax.Array, block: dict[str, jax.Array], mask: jax.Array) -> jax.Array:
    x = x + _attention(_norm(x, block["attention_norm"]), block, mask)
    y = _norm(x, block["mlp_norm"])
    hidden = jax.nn.silu(jnp.einsum("bse,em->bsm", y, block["gate"])) * jnp.einsum("bse,em->bsm", y, block["up"])
    return x + jnp.einsum("bsm,me->bse", hidden, block["down"])


def raw_loss(blocks: dict[str, jax.Array], x: jax.Array, target: jax.Array) -> jax.Array:
    places = jnp.arange(x.shape[1])
    mask = places[:, None] >= places
    out, _ = lax.scan(lambda x, block: (_raw_block(x, block, mask), None), x, blocks)
    return jnp.mean((out - target).astype(jnp.float32) ** 2)


# With named arrays


class Block(eqx.Module):
    implementation: str = eqx.field(static=True)  # of attention
    attention_norm: nym.nn.RmsNorm
    down: nym.nn.Linear
    gate: nym.nn.Linear
    key: nym.nn.Linear
    mlp_norm: nym.nn.RmsNorm
    output: nym.nn.Linear
    query: nym.nn.Linear
    up: nym.nn.Linear
    value: nym.nn.Linear

    @staticmethod
    def init(sizes: Sizes, implementation: str, *, key: jax.Array) -> "Block":
        embed, mlp = nym.make_axes(embed=sizes.embed, mlp=sizes.mlp)
        kv, group, features = nym.make_axes(kv=sizes.kv, group=sizes.heads // sizes.kv, features=sizes.features)

        def norm() -> nym.nn.RmsNorm:
            return nym.nn.RmsNorm.init(embed, EPS)

        def linear(inputs: Any, outputs: Any) -> nym.nn.Linear:
            return nym.nn.Linear.init(inputs, outputs, key=key, use_bias=False, out_first=False)

        return Block(
            implementation=implementation,
            attention_norm=norm(),
            down=linear(mlp, embed),
            gate=linear(embed, mlp),
            key=linear(embed, (kv, features)),
            mlp_norm=norm(),
            output=linear((kv, group, features), embed),
            query=linear(embed, (kv, group, features)),
            up=linear(embed, mlp),
            value=linear(embed, (kv, features)),
        )

    def __call__(self, x: nym.NamedArray, mask: nym.NamedArray) -> nym.NamedArray:
        x = x + self._attention(self.attention_norm(x), mask)
        y = self.mlp_norm(x)
        return x + self.down(nym.nn.silu(self.gate(y)) * self.up(y))

    def _attention(self, x: nym.NamedArray, mask: nym.NamedArray) -> nym.NamedArray:
        query = nym.nn.rotary_embedding(self.query(x), "pos", "features", theta=THETA)
        key = nym.nn.rotary_embedding(self.key(x), "pos", "features", theta=THETA).rename({"pos": "key_pos"})
        value = self.value(x).rename({"pos": "key_pos"})
        attended = nym.nn.dot_product_attention(
            "key_pos", "features", query, key, value, mask=mask, QPos="pos", implementation=self.implementation
        )
        return self.output(attended)


def named_loss(blocks: nym.nn.Stacked[Block], x: nym.NamedArray, target: nym.NamedArray) -> jax.Array:
    pos = x.resolve_axis("pos")
    out = blocks.fold(x, nym.nn.causal_mask(pos, pos.alias("key_pos")))
    return nym.mean(nym.square((out - target).astype(jnp.float32))).scalar()


@dataclass(frozen=True)
class Form:
    """One way to write the step: its loss, how it is compiled, its parameters, and its inputs and targets."""

    loss: Callable[..., Any]
    compiled: Callable[[Callable[..., Any]], Any]
    blocks: Any
    data: tuple[Any, Any]

    def step(self) -> Any:
        """Returns the compiled step, as a function that JAX has not seen before."""

        def step(blocks: Any, x: Any, target: Any) -> tuple[Any, Any]:
            loss, gradients = jax.value_and_grad(self.loss)(blocks, x, target)
            return jax.tree.map(lambda own, gradient: own - RATE * gradient, blocks, gradients), loss

        return self.compiled(step)

    def running(self) -> Callable[[], Any]:
        """Returns a call of one step, which goes on from the last one and is over when it returns."""
        step, blocks = self.step(), jax.tree.map(jnp.copy, self.blocks)  # the first step donates them

        def call() -> Any:
            nonlocal blocks
            blocks, loss = step(blocks, *self.data)
            return jax.block_until_ready((blocks, loss))

        return call


def forms(sizes: Sizes, mesh: Mesh) -> dict[str, Form]:
    """Returns the step in both forms, with the same arrays, replicated or divided along the batch."""
    whole, divided = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    raw = jax.device_put(parameters(sizes), whole)
    random = np.random.default_rng(1)
    shape = (sizes.batch * mesh.size, sizes.pos, sizes.embed)
    x, target = (jax.device_put(_drawn(random, shape, sizes), divided) for _ in range(2))

    named_x, named_target = (nym.named(one, ("batch", "pos", "embed")) for one in (x, target))

    def make_blocks(implementation: str) -> Any:
        stacked = nym.nn.Stacked.init(nym.Axis("layers", sizes.layers), Block)
        keys = jax.random.split(jax.random.key(0), sizes.layers)
        made = jax.eval_shape(lambda keys: stacked(sizes, implementation, key=keys), keys)
        leaves = jax.tree.leaves(raw)
        assert [leaf.shape for leaf in leaves] == [leaf.shape for leaf in jax.tree.leaves(made)]
        return jax.tree.unflatten(jax.tree.structure(made), leaves)

    def by_name(step: Callable[..., Any]) -> Any:
        return nym.named_jit(step, {"batch": "data"}, donate_args=(True, False, False))

    return {
        "JAX": Form(raw_loss, lambda step: jax.jit(step, donate_argnums=0), raw, (x, target)),
        "Axonym": Form(named_loss, by_name, make_blocks("plain"), (named_x, named_target)),
        "Axonym, cuDNN": Form(named_loss, by_name, make_blocks("auto"), (named_x, named_target)),
    }


def check_agreement(found: dict[str, Form]) -> None:
    """Raises an error if loss or gradients differ."""
    results = {}
    with jax.default_matmul_precision("highest"):
        for who, form in found.items():
            results[who] = jax.tree.leaves(jax.jit(jax.value_and_grad(form.loss))(form.blocks, *form.data))
    for own, other in zip(results["Axonym"], results["JAX"], strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


def rows(effort: Effort) -> Iterator[Row]:
    devices = jax.devices()
    for count in (len(devices),) if effort.smoke else dict.fromkeys((1, len(devices))):
        mesh = jax.make_mesh((count,), ("data",), axis_types=(AxisType.Auto,), devices=devices[:count])
        where = "one device" if count == 1 else f"{count} devices"
        with jax.set_mesh(mesh):
            check_agreement(forms(TINY, mesh))
            found = forms(TINY if effort.smoke else Sizes(), mesh)
            calls = {who: form.running() for who, form in found.items()}
            against = "the same by hand, `jax.jit`"
            yield timed(f"a step of training, {where}", against, 1.02, calls, effort, unit="ms")
            yield from _first_steps(found, where, against, replace(effort, rounds=1 if effort.smoke else 5))


def _first_steps(found: dict[str, Form], where: str, against: str, effort: Effort) -> Iterator[Row]:
    """Yields what tracing, lowering and compiling take, and all three with the first step.

    What JAX keeps is cleared each time. What Axonym keeps about names is warm.
    """
    taken: dict[str, dict[str, list[float]]] = {}
    order, shuffle = list(found), random.Random(0).shuffle
    for _ in range(effort.rounds):
        shuffle(order)
        for who in order:
            for part, seconds in _first_step(found[who]).items():
                taken.setdefault(part, {}).setdefault(who, []).append(seconds)
    for part, samples in taken.items():
        yield row(f"{part}, {where}", "s", against, 1.05 if part.startswith("all") else None, samples)


def _first_step(form: Form) -> dict[str, float]:
    jax.clear_caches()
    blocks = jax.block_until_ready(jax.tree.map(jnp.copy, form.blocks))
    step = form.step()
    start = time.perf_counter()
    traced = step.trace(blocks, *form.data)
    after_trace = time.perf_counter()
    lowered = traced.lower()
    after_lower = time.perf_counter()
    compiled = lowered.compile()
    after_compile = time.perf_counter()
    jax.block_until_ready(compiled(blocks, *form.data))
    return {
        "trace a step": after_trace - start,
        "lower it": after_lower - after_trace,
        "compile it": after_compile - after_lower,
        "all three and the first step": time.perf_counter() - start,
    }

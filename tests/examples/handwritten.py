"""The model and train step of `examples/` in plain JAX: what its compiled program is compared with.

The arrays have no names, so each sharding is written out: parameters are divided over `data` and `model` between steps,
each layer gathers its own over `data` when its turn in the scan comes, activations are divided by batch, and heads,
hidden units and vocabulary by `model`.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P


COMPUTE = {
    "embedding": P("model"),
    "blocks": {
        "attention_norm": P(),
        "query": P("model"),
        "key": P("model"),
        "value": P("model"),
        "out": P(None, "model"),
        "mlp_norm": P(),
        "gate": P("model"),
        "up": P("model"),
        "down": P(None, "model"),
    },
    "norm": P(),
    "head": P("model"),
}
STORED = {
    "embedding": P("model", "data"),
    "blocks": {
        "attention_norm": P(None, "data"),
        "query": P(None, "model", None, "data"),
        "key": P(None, "model", None, "data"),
        "value": P(None, "model", None, "data"),
        "out": P(None, "data", "model"),
        "mlp_norm": P(None, "data"),
        "gate": P(None, "model", "data"),
        "up": P(None, "model", "data"),
        "down": P(None, "data", "model"),
    },
    "norm": P("data"),
    "head": P("model", "data"),
}


at = jax.lax.with_sharding_constraint


def product(equation: str, x: jax.Array, y: jax.Array, spec: P) -> jax.Array:
    """Returns an einsum with a sharding."""
    return at(jnp.einsum(equation, x, y), spec)


def rms_norm(weight: jax.Array, x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight[None, None]


def rotary(x: jax.Array) -> jax.Array:
    _, length, _, size = x.shape
    frequencies = 10000.0 ** (jnp.arange(size // 2, dtype=jnp.float32) * (-2 / size))
    angles = jnp.arange(length)[:, None] * frequencies[None]
    cosine, sine = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def attention(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    heads = P("data", None, "model")
    query, key, value = (product("bpe,hde->bphd", x, weights[name], heads) for name in ("query", "key", "value"))
    query, key = rotary(query) / math.sqrt(query.shape[-1]), rotary(key)
    scores = product("bqhd,bkhd->bhqk", query, key, P("data", "model"))
    seen = jnp.tril(jnp.ones(scores.shape[2:], bool))[None, None]
    scores = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(scores.dtype).min))
    return product("bphd,ehd->bpe", product("bhqk,bkhd->bqhd", scores, value, heads), weights["out"], P("data"))


def block(x: jax.Array, weights: dict[str, jax.Array]) -> tuple[jax.Array, None]:
    weights = jax.tree.map(at, weights, COMPUTE["blocks"])  # gathered over `data`
    x = x + attention(weights, rms_norm(weights["attention_norm"], x))
    y = rms_norm(weights["mlp_norm"], x)
    hidden = P("data", None, "model")
    gate, up = (product("bpe,me->bpm", y, weights[name], hidden) for name in ("gate", "up"))
    return x + product("bpm,em->bpe", jax.nn.silu(gate) * up, weights["down"], P("data")), None


def loss_of(parameters: dict[str, Any], inputs: jax.Array, targets: jax.Array) -> jax.Array:
    embedding, norm, head = (at(parameters[name], COMPUTE[name]) for name in ("embedding", "norm", "head"))
    x = at(embedding[inputs], P("data"))
    x, _ = jax.lax.scan(jax.checkpoint(block, prevent_cse=False), x, parameters["blocks"])
    logits = product("bpe,ve->bpv", rms_norm(norm, x), head, P("data", None, "model"))
    # Not `take_along_axis`, which would gather the scores of the whole vocabulary.
    chosen = jnp.where(jnp.arange(head.shape[0])[None, None] == targets[..., None], logits, 0)
    return (jax.nn.logsumexp(logits, -1) - chosen.sum(-1)).mean()


def train_step(optimizer: Any, parameters: Any, state: Any, inputs: jax.Array, targets: jax.Array) -> Any:
    loss, gradients = jax.value_and_grad(loss_of)(parameters, inputs, targets)
    gradients = jax.tree.map(at, gradients, STORED)  # each device sums and keeps its part
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, loss


def make_train_step(mesh: Mesh, optimizer: Any, parameters: Any) -> Any:
    """Returns the compiled step and where parameters, optimizer state and batch belong."""
    stored = jax.tree.map(lambda spec: NamedSharding(mesh, spec), STORED)
    whole, batch = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    state = optax.tree.map_params(
        optimizer,
        lambda _, sharding: sharding,
        jax.eval_shape(optimizer.init, parameters),
        stored,
        transform_non_params=lambda _: whole,
    )
    step = jax.jit(
        functools.partial(train_step, optimizer),
        in_shardings=(stored, state, batch, batch),
        out_shardings=(stored, state, whole),
        donate_argnums=(0, 1),
    )
    return step, (stored, state, batch)

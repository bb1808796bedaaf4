"""What sharding rules cost between devices: train steps of two Llama and two GPT-2 blocks, compiled for 64 devices.

`python -m benchmarks.blocks` compiles each step (value and gradient of the loss, and plain SGD) once for each way to
choose the specs of the parameters, and runs none. It counts what collectives give on each device in one step, read from
the compiled program; the bytes of parameters on each device, against the fewest that any specs could leave; and the
temporary bytes. The models constrain what users constrain: the residual stream is divided along the batch. The compiler
is that of the CPU; it has no reduce-scatter, so each is an all-reduce there and counts in full. All rules are counted
alike. Rules of eformer take part where it can be imported; specs of theirs that JAX refuses are left out and counted.

The specs by hand are those that users write: columns and rows, and tables divided by the tensor axis along the
vocabulary and by FSDP along the width (GPT-2's 50257 tokens by both along the width). They lose to roles in the tables
alone: roles put the FSDP axis on Llama's vocabulary, so that what is looked up need not change places with the batch,
and the tensor axis first on GPT-2's width, so that gathering over the FSDP axis leaves what the tensor axis divides.
Tuned by hand in the same way, they do the same.
"""

import argparse
import dataclasses
import importlib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P
from jax.tree_util import keystr

import axonym as nym
from tests.hlo import Program


Tree = Any
MeshLike = Mesh | AbstractMesh
BATCH_AXIS, TENSOR_AXIS = "fsdp", "tp"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a model and of its batch; those of the benchmark by default."""

    embed: int
    mlp: int
    heads: int
    kv_heads: int
    vocab: int
    layers: int = 2
    batch: int = 16
    length: int = 512

    @property
    def features(self) -> int:
        """The features of one attention head."""
        return self.embed // self.heads


LLAMA = Sizes(embed=1024, mlp=3584, heads=16, kv_heads=8, vocab=8192)
GPT2 = Sizes(embed=768, mlp=3072, heads=12, kv_heads=12, vocab=50257)


def _shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def llama_parameters(sizes: Sizes) -> Tree:
    """The parameters of a Llama model, kernels as (in, out)."""
    embed, mlp, kv = sizes.embed, sizes.mlp, sizes.kv_heads * sizes.features
    block = {
        "input_norm": {"scale": _shape(embed)},
        "attention": {
            "q_proj": {"kernel": _shape(embed, embed)},
            "k_proj": {"kernel": _shape(embed, kv)},
            "v_proj": {"kernel": _shape(embed, kv)},
            "o_proj": {"kernel": _shape(embed, embed)},
        },
        "mlp_norm": {"scale": _shape(embed)},
        "mlp": {
            "gate_proj": {"kernel": _shape(embed, mlp)},
            "up_proj": {"kernel": _shape(embed, mlp)},
            "down_proj": {"kernel": _shape(mlp, embed)},
        },
    }
    return {
        "embed_tokens": {"embedding": _shape(sizes.vocab, embed)},
        "layers": [block] * sizes.layers,
        "norm": {"scale": _shape(embed)},
        "lm_head": {"kernel": _shape(embed, sizes.vocab)},
    }


def gpt2_parameters(sizes: Sizes) -> Tree:
    """The parameters of GPT-2, named and stored as those that are published: `weight` of a layer is (in, out)."""

    def layer(inputs: int, outputs: int) -> Tree:
        return {"weight": _shape(inputs, outputs), "bias": _shape(outputs)}

    embed, mlp = sizes.embed, sizes.mlp
    norm = {"weight": _shape(embed), "bias": _shape(embed)}
    block = {
        "ln_1": norm,
        "attn": {"c_attn": layer(embed, 3 * embed), "c_proj": layer(embed, embed)},
        "ln_2": norm,
        "mlp": {"c_fc": layer(embed, mlp), "c_proj": layer(mlp, embed)},
    }
    return {
        "wte": {"weight": _shape(sizes.vocab, embed)},
        "wpe": {"weight": _shape(2 * sizes.length, embed)},
        "h": [block] * sizes.layers,
        "ln_f": norm,
    }


def _attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention of (batch, length, heads, features), with several query heads to a key."""
    *_, length, heads, features = query.shape
    query = query.reshape(*query.shape[:2], key.shape[2], heads // key.shape[2], features)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", query, key) / math.sqrt(features)
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhgqk,bkhd->bqhgd", weights, value)
    return mixed.reshape(*mixed.shape[:2], heads * features)


def _loss_of(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """The mean cross entropy of the next tokens."""
    logits, following = logits[:, :-1], tokens[:, 1:]
    picked = jnp.take_along_axis(logits, following[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def llama_loss(parameters: Tree, tokens: jax.Array, sizes: Sizes, keep: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The loss of a Llama model; `keep` divides the residual stream."""

    def norm(x: jax.Array, parameters: Tree) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * parameters["scale"]

    def heads(x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], -1, sizes.features)

    def block(x: jax.Array, parameters: Tree) -> jax.Array:
        kernel = {name: layer["kernel"] for name, layer in {**parameters["attention"], **parameters["mlp"]}.items()}
        h = norm(x, parameters["input_norm"])
        query, key, value = (heads(h @ kernel[f"{name}_proj"]) for name in "qkv")
        x = keep(x + _attend(query, key, value) @ kernel["o_proj"])
        h = norm(x, parameters["mlp_norm"])
        return keep(x + (jax.nn.silu(h @ kernel["gate_proj"]) * (h @ kernel["up_proj"])) @ kernel["down_proj"])

    x = keep(parameters["embed_tokens"]["embedding"][tokens])
    for layer in parameters["layers"]:
        x = block(x, layer)
    return _loss_of(norm(x, parameters["norm"]) @ parameters["lm_head"]["kernel"], tokens)


def gpt2_loss(parameters: Tree, tokens: jax.Array, sizes: Sizes, keep: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The loss of GPT-2, whose head is its table of tokens; `keep` divides the residual stream."""

    def norm(x: jax.Array, parameters: Tree) -> jax.Array:
        centred = x - jnp.mean(x, -1, keepdims=True)
        scaled = centred * jax.lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5)
        return scaled * parameters["weight"] + parameters["bias"]

    def layer(x: jax.Array, parameters: Tree) -> jax.Array:
        return x @ parameters["weight"] + parameters["bias"]

    def heads(x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], sizes.heads, sizes.features)

    def block(x: jax.Array, parameters: Tree) -> jax.Array:
        together = layer(norm(x, parameters["ln_1"]), parameters["attn"]["c_attn"])
        mixed = _attend(*map(heads, jnp.split(together, 3, axis=-1)))
        x = keep(x + layer(mixed, parameters["attn"]["c_proj"]))
        wide = jax.nn.gelu(layer(norm(x, parameters["ln_2"]), parameters["mlp"]["c_fc"]))
        return keep(x + layer(wide, parameters["mlp"]["c_proj"]))

    table = parameters["wte"]["weight"]
    x = keep(table[tokens] + parameters["wpe"]["weight"][: tokens.shape[1]])
    for one in parameters["h"]:
        x = block(x, one)
    return _loss_of(norm(x, parameters["ln_f"]) @ table.T, tokens)


class Model(NamedTuple):
    """A model: its parameters, its loss, and the specs that a user would write for it, first match first.

    The tuned ones come before those; they are what is best of all places for the tables, found by compiling each.
    """

    parameters: Callable[[Sizes], Tree]
    loss: Callable[..., jax.Array]
    by_hand: tuple[tuple[str, P], ...]
    tuned: tuple[tuple[str, P], ...]


BOTH = (BATCH_AXIS, TENSOR_AXIS)
MODELS = {
    "Llama": Model(
        llama_parameters,
        llama_loss,
        (
            (r"embed_tokens", P(TENSOR_AXIS, BATCH_AXIS)),
            (r"lm_head|[qkv]_proj|gate_proj|up_proj", P(BATCH_AXIS, TENSOR_AXIS)),
            (r"o_proj|down_proj", P(TENSOR_AXIS, BATCH_AXIS)),
            (r"norm", P(None)),
        ),
        ((r"embed_tokens", P(BATCH_AXIS, TENSOR_AXIS)),),
    ),
    "GPT-2": Model(
        gpt2_parameters,
        gpt2_loss,
        (
            (r"wte|wpe", P(None, BOTH)),  # no mesh axis divides 50257
            (r"(c_attn|c_fc)/weight", P(BATCH_AXIS, TENSOR_AXIS)),
            (r"(c_attn|c_fc)/bias", P(TENSOR_AXIS)),
            (r"c_proj/weight", P(TENSOR_AXIS, BATCH_AXIS)),
            (r"c_proj/bias|ln_", P(None)),
        ),
        ((r"wte|wpe", P(None, (TENSOR_AXIS, BATCH_AXIS))),),
    ),
}


def by_hand(model: Model, parameters: Tree) -> Tree:
    """The specs that a user would write."""

    def spec(path: Sequence[Any], _: Any) -> P:
        name = keystr(tuple(path), simple=True, separator="/")
        return next(spec for pattern, spec in model.by_hand if re.search(pattern, name))

    return jax.tree.map_with_path(spec, parameters)


def _peers(mesh: Mesh) -> dict[str, Callable[[Tree], Tree]]:
    """The rules of eformer, if it is there."""
    try:
        escale = importlib.import_module("eformer.escale.helpers.base")
        helpers = importlib.import_module("eformer.escale.mesh.mesh_helpers")
    except ImportError:
        return {}
    helper = helpers.MeshPartitionHelper(mesh)

    def suggested(parameters: Tree) -> Tree:
        methods = helper.analyze_pytree(parameters)
        return jax.tree.map(lambda one: helper.create_partition_spec(one.shape, methods[one.shape]), parameters)

    return {
        "eformer MeshPartitionHelper": suggested,
        "eformer AutoShardingRule": escale.AutoShardingRule(mesh=mesh, min_shard_size=mesh.size).apply,
    }


def strategies(model: Model, mesh: Mesh) -> dict[str, Callable[[Tree], Tree]]:
    """The ways to choose specs, by name."""
    return {
        "by hand": lambda parameters: by_hand(model, parameters),
        "by hand, tuned": lambda parameters: by_hand(model._replace(by_hand=model.tuned + model.by_hand), parameters),
        "RoleShardingRule": nym.RoleShardingRule(mesh).apply,
        "AutoShardingRule": nym.AutoShardingRule(mesh).apply,
        "MeshPartitionHelper": nym.MeshPartitionHelper(mesh).partition_specs,
        **_peers(mesh),
    }


class Cost(NamedTuple):
    """What one step costs on each device with the specs of one strategy.

    Args:
        collectives: The bytes that collectives give.
        by_kind: The same for each kind of collective.
        parameters: The bytes of the parameters.
        optimum: The fewest bytes that the parameters could take: all of them over the number of devices.
        temporary: The bytes that the step needs beside its arguments and results.
        refused: How many specs JAX refuses; these parameters are whole.
    """

    collectives: int
    by_kind: dict[str, int]
    parameters: int
    optimum: float
    temporary: int
    refused: int


def _is_spec(x: Any) -> bool:
    return isinstance(x, P)


def cost(model: Model, sizes: Sizes, mesh: Mesh, specs: Tree) -> Cost:
    """Compiles a train step with these specs for its parameters, and tells what it costs."""
    shapes = model.parameters(sizes)
    kept, refused = accepted(shapes, specs, mesh)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), kept, is_leaf=_is_spec)
    batch = NamedSharding(mesh, P(BATCH_AXIS))

    def keep(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, batch)

    def step(parameters: Tree, tokens: jax.Array) -> tuple[Tree, jax.Array]:
        loss, gradient = jax.value_and_grad(model.loss)(parameters, tokens, sizes, keep)
        return jax.tree.map(lambda one, by: one - 1e-3 * by, parameters, gradient), loss

    tokens = jax.ShapeDtypeStruct((sizes.batch, sizes.length), jnp.int32, sharding=batch)
    arguments = jax.tree.map(lambda one, to: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=to), shapes, shardings)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, P())))
    with jax.numpy_rank_promotion("allow"):  # plain JAX lines axes up by position
        compiled = jitted.lower(arguments, tokens).compile()
    by_kind: dict[str, int] = {}
    for one in Program(compiled.as_text() or "").collectives():
        by_kind[one.kind] = by_kind.get(one.kind, 0) + one.times * sum(array.bytes for array in one.results)
    total = sum(one.size * one.dtype.itemsize for one in jax.tree.leaves(shapes))
    per_device = sum(
        math.prod(one.sharding.shard_shape(one.shape)) * one.dtype.itemsize for one in jax.tree.leaves(arguments)
    )
    memory: Any = compiled.memory_analysis()
    return Cost(sum(by_kind.values()), by_kind, per_device, total / mesh.size, memory.temp_size_in_bytes, refused)


def accepted(shapes: Tree, specs: Tree, mesh: MeshLike) -> tuple[Tree, int]:
    """Returns the specs with `P()` for those that JAX refuses, and how many these are."""
    fits = jax.tree.map(lambda one, spec: _fits(one, spec, mesh), shapes, specs)
    kept = jax.tree.map(lambda fit, spec: spec if fit else P(), fits, specs)
    return kept, sum(not fit for fit in jax.tree.leaves(fits))


def _fits(one: jax.ShapeDtypeStruct, spec: P, mesh: MeshLike) -> bool:
    try:
        NamedSharding(mesh, spec).shard_shape(one.shape)
    except ValueError:
        return False
    return True


def costs(name: str, sizes: Sizes, mesh: Mesh, only: Sequence[str] | None = None) -> dict[str, Cost]:
    """Compiles the step of a model once for each strategy, and returns what each costs.

    Args:
        name: The model, one of `MODELS`.
        sizes: Its sizes.
        mesh: The mesh, with the axes `fsdp` and `tp`.
        only: The strategies to compare, all if None.
    """
    model = MODELS[name]
    chosen = {key: choose for key, choose in strategies(model, mesh).items() if only is None or key in only}
    shapes = model.parameters(sizes)
    return {key: cost(model, sizes, mesh, choose(shapes)) for key, choose in chosen.items()}


def table(found: dict[str, Cost]) -> str:
    """Shows costs, one line for each strategy."""
    kinds = sorted({kind for one in found.values() for kind in one.by_kind})
    head = ["", "collectives", "parameters", "of optimum", "temporary", *kinds, "refused"]
    rows = [
        [
            key,
            *(f"{size / 2**20:.2f}" for size in (one.collectives, one.parameters)),
            f"{one.parameters / one.optimum:.3f}",
            f"{one.temporary / 2**20:.1f}",
            *(f"{one.by_kind.get(kind, 0) / 2**20:.2f}" for kind in kinds),
            str(one.refused),
        ]
        for key, one in found.items()
    ]
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in [head, *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)


def full_mesh(fsdp: int = 8, tensor: int = 8) -> Mesh:
    """The mesh of the benchmark."""
    return jax.make_mesh((fsdp, tensor), BOTH, axis_types=(AxisType.Auto, AxisType.Auto))


def main() -> None:
    """Prints the table of each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", help="the strategies to compare, all if not given")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 64)
    mesh = full_mesh()
    for name, sizes in (("Llama", LLAMA), ("GPT-2", GPT2)):
        print(f"two {name} blocks on (fsdp: 8, tp: 8), MiB on each device and step")
        print(table(costs(name, sizes, mesh, options.only)), flush=True)
        print()


if __name__ == "__main__":
    main()

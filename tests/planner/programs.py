"""Small programs with collectives that can be counted by hand, for a mesh of eight devices: data of 2, model of 4.

`python -m tests.planner.programs PLATFORM FILE` compiles them for described TPUs or GPUs, and writes their optimized
text to a file, which the tests read where there is no compiler for the platform. For CPUs the tests compile them.
"""

import functools
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P

import axonym as nym


SIZES = {"data": 2, "model": 4}
RECORDED = Path(__file__).with_name("recorded")
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def make_mesh(platform: str) -> Mesh:
    """Returns a mesh of virtual CPU devices, or of described TPUs or GPUs."""
    from jax.experimental import mesh_utils, topologies

    if platform == "cpu":
        return nym.create_mesh(tuple(SIZES.values()), tuple(SIZES))
    if platform == "tpu":
        devices = topologies.get_topology_desc("v5e:2x4", "tpu").devices
    else:
        target = Path(__file__).parents[2].joinpath("benchmarks/h100.txtpb").read_text()
        devices = topologies.get_topology_desc("h100", "cuda", target_config=target, topology="1x1x8").devices
    return Mesh(mesh_utils.create_device_mesh(tuple(SIZES.values()), devices), tuple(SIZES))


def repeat(body: Callable[[jax.Array], jax.Array], times: int) -> Callable[[jax.Array], jax.Array]:
    return lambda x: jax.lax.scan(lambda x, _: (body(x), None), x, length=times)[0]


def gather_and_sum(x: jax.Array) -> jax.Array:
    """Gathers an array of which each device keeps its rows of the sum of each column."""
    whole = jax.lax.all_gather(x, "model", axis=0, tiled=True)
    return jnp.sin(x) * jnp.cumsum(whole, 0)[-1:]


def make_shard_map_programs(mesh: Mesh) -> dict[str, Program]:
    """Returns jitted functions of the shards of an array of float32, and the array's shape."""
    perm = [(i, (i + 1) % 4) for i in range(4)]
    add_up = functools.partial(jax.lax.psum, axis_name="model")
    rotate = functools.partial(jax.lax.ppermute, axis_name="model", perm=perm)
    gather = functools.partial(jax.lax.all_gather, axis_name="data", axis=0, tiled=True)
    scatter = functools.partial(jax.lax.psum_scatter, axis_name="model", scatter_dimension=0, tiled=True)
    exchange = functools.partial(jax.lax.all_to_all, axis_name="model", split_axis=1, concat_axis=0, tiled=True)
    both, rows, columns, whole = P("data", "model"), P("data", None), P(None, "model"), P(None, None)
    turned = P("model", "data")
    bodies: dict[str, tuple[Callable[..., Any], P, P]] = {
        "all-reduce": (lambda x: jnp.sin(add_up(x)), both, rows),
        "all-reduce over both axes": (lambda x: jnp.sin(jax.lax.psum(x, ("data", "model"))), both, whole),
        "all-gather": (lambda x: jnp.sin(gather(x)), both, columns),
        "reduce-scatter": (lambda x: jnp.sin(scatter(x)), rows, P(("data", "model"), None)),
        "all-to-all": (lambda x: jnp.sin(exchange(x)), P("model", None), columns),
        "collective-permute": (lambda x: jnp.sin(rotate(x)), both, both),
        "all-reduce in a loop": (repeat(lambda x: jnp.sin(add_up(x)), 5), both, rows),
        "all-gather in two loops": (repeat(repeat(gather_and_sum, 3), 4), turned, turned),
        "collective-permute in a loop": (
            lambda x: jax.lax.fori_loop(2, 9, lambda _, x: jnp.sin(rotate(x)), x),
            both,
            both,
        ),
    }
    shape = jax.ShapeDtypeStruct((512, 1024), jnp.float32)
    map_shards = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
    return {
        name: (jax.jit(map_shards(body, in_specs=into, out_specs=out)), (shape,))
        for name, (body, into, out) in bodies.items()
    }


Batch, Embed, Mlp, Layers = nym.make_axes(batch=64, embed=512, mlp=2048, layers=4)
COMPUTE = {"batch": "data", "mlp": "model"}
STORED = {**COMPUTE, "embed": "data"}


class Block(eqx.Module):
    up: nym.nn.Linear
    down: nym.nn.Linear

    @staticmethod
    def init(key: jax.Array) -> "Block":
        up = nym.nn.Linear.init(Embed, Mlp, key=key, use_bias=False)
        return Block(up, nym.nn.Linear.init(Mlp, Embed, key=key, use_bias=False))

    def __call__(self, x: nym.NamedArray) -> nym.NamedArray:
        return x + self.down(nym.nn.gelu(self.up(x)))  # the line that the reports name


def compute_loss(stack: nym.nn.Stacked[Block], x: nym.NamedArray) -> jax.Array:
    return nym.mean(stack.fold(x.rename({"inputs": "embed"})) ** 2).scalar()


def update(stack: nym.nn.Stacked[Block], x: nym.NamedArray) -> Any:
    loss, gradients = jax.value_and_grad(compute_loss)(stack, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, stack, gradients), loss


def make_named_programs() -> dict[str, Program]:
    """Returns functions of named arrays; they are lowered while the mesh is set."""
    stack = jax.eval_shape(
        lambda: nym.nn.Stacked.init(Layers, Block, gradient_checkpointing=True)(key=jax.random.key(0))
    )
    x = nym.NamedArray(jax.ShapeDtypeStruct((Batch.size, Embed.size), jnp.float32), ("batch", "inputs"))
    return {
        "tensor parallel layers": (
            nym.named_jit(lambda s, x: s.fold(x.rename({"inputs": "embed"})), COMPUTE),
            (stack, x),
        ),
        "train step": (nym.fsdp(update, STORED, COMPUTE), (stack, x)),
    }


def compile_programs(platform: str) -> dict[str, Any]:
    """Returns the compiled programs by name."""
    mesh = make_mesh(platform)
    with jax.set_mesh(mesh):
        programs = {**make_shard_map_programs(mesh), **make_named_programs()}
        return {name: fn.lower(*args).compile() for name, (fn, args) in programs.items()}


def read_recorded(platform: str) -> dict[str, str]:
    """Returns the recorded texts of a platform by the names of the programs."""
    return json.loads(gzip.decompress((RECORDED / f"{platform}.json.gz").read_bytes()))


def main() -> None:
    platform, into = sys.argv[1:]
    texts = {name: compiled.as_text() for name, compiled in compile_programs(platform).items()}
    Path(into).write_bytes(gzip.compress(json.dumps(texts).encode(), mtime=0))


if __name__ == "__main__":
    main()

"""What pipelines and rings send, with names and by hand in `shard_map`, on described TPUs.

`python -m benchmarks.compiled_parallelism` compiles the gradients of blocks in stages, and of attention in a ring, for
8 chips of TPU v5p that are not there. `make tpu` installs the compiler, into the folder that AXONYM_LIBTPU names. By
hand both are written as one does: `shard_map` over the mesh axis of the stages, with all others left to the compiler,
and over that of the context. Nothing is run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import axonym as nym
from axonym.nn import AttentionMask, Linear, Stacked
from axonym.planner import communication_report, compile_for, described_devices


TOPOLOGY = "v5p:2x2x2"
LAYERS, STAGES, MICROBATCHES = 8, 2, 4
Layers, Batch, Embed, Mlp = nym.make_axes(layers=LAYERS, batch=512, embed=1024, mlp=4096)
Pos, Heads, HeadDim = nym.make_axes(pos=32768, heads=8, head_dim=128)
CONTEXT_BATCH = 2
BLOCK = 512  # queries and keys in a block of attention


class Block(eqx.Module):
    up: Linear
    down: Linear

    @staticmethod
    def init(*, key: jax.Array) -> "Block":
        options: Any = {"key": key, "use_bias": False, "dtype": jnp.bfloat16}
        return Block(Linear.init(Embed, Mlp, **options), Linear.init(Mlp, Embed, **options))

    def __call__(self, x: nym.NamedArray) -> nym.NamedArray:
        return x + self.down(nym.tanh(self.up(x)))


def make_pipeline(mesh: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Returns the gradient of layers in stages, with names, and its arguments."""

    def compute_loss(stack: Any, x: Any) -> Any:
        return nym.mean(stack.fold(x).astype(jnp.float32) ** 2).scalar()

    stack = eqx.filter_eval_shape(Stacked.init(Layers, Block, gradient_checkpointing=True), key=jax.random.key(0))
    x = eqx.filter_eval_shape(lambda: nym.zeros((Batch, Embed), dtype=jnp.bfloat16))
    mapping = {"batch": "data", "layers": "stage", "mlp": "model"}
    policy = nym.Policy(microbatches={"batch": MICROBATCHES})
    step = nym.named_jit(jax.value_and_grad(compute_loss), mapping, in_axis_resources=mapping, policy=policy)
    return step, [stack, x]


def make_pipeline_by_hand(mesh: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Returns the same without names, in `shard_map` over the stages."""

    def apply_block(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        up, down = weights
        return x + jnp.tanh(x @ up.T) @ down.T, None

    def run_stage(weights: Any, x: jax.Array) -> jax.Array:
        return jax.lax.scan(jax.checkpoint(apply_block), x, weights)[0]

    def run_pipeline(weights: Any, x: jax.Array) -> jax.Array:
        stage = jax.lax.axis_index("stage")
        pairs = [(i, (i + 1) % STAGES) for i in range(STAGES)]

        def run_turn(state: jax.Array, new: jax.Array) -> tuple[jax.Array, jax.Array]:
            result = run_stage(weights, jnp.where(stage == 0, new, state))
            return jax.lax.ppermute(result, "stage", pairs), result

        padding = jnp.zeros((STAGES - 1, *x.shape[1:]), x.dtype)
        state = jax.lax.pcast(jnp.zeros_like(x[0]), ("stage",), to="varying")
        _, results = jax.lax.scan(run_turn, state, jnp.concatenate([x, padding]))
        is_last = stage == STAGES - 1
        return jax.lax.psum(jnp.where(is_last, results[STAGES - 1 :], 0), "stage")

    def compute_loss(weights: Any, x: jax.Array) -> jax.Array:
        microbatches = jnp.swapaxes(x.reshape(-1, MICROBATCHES, Embed.size), 0, 1)
        map_stages = jax.shard_map(run_pipeline, in_specs=(P("stage"), P()), out_specs=P(), axis_names={"stage"})
        return jnp.mean(map_stages(weights, microbatches).astype(jnp.float32) ** 2)

    def shape(spec: P, *sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, jnp.bfloat16, sharding=NamedSharding(mesh, spec))

    up = shape(P("stage", "model", None), LAYERS, Mlp.size, Embed.size)
    down = shape(P("stage", None, "model"), LAYERS, Embed.size, Mlp.size)
    return jax.jit(jax.value_and_grad(compute_loss)), [(up, down), shape(P("data", None), Batch.size, Embed.size)]


def make_ring(mesh: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Returns the gradient of causal attention in a ring, with names, and its arguments."""

    def compute_loss(query: Any, key: Any, value: Any) -> Any:
        key, value = (x.rename({"pos": "key_pos"}) for x in (key, value))
        mask = AttentionMask.causal()
        out = nym.nn.dot_product_attention("key_pos", "head_dim", query, key, value, mask, QPos="pos", context="ring")
        return nym.sum(out.astype(jnp.float32) ** 2).scalar()

    axes = nym.Axis("batch", CONTEXT_BATCH), Pos, Heads, HeadDim
    operands = [eqx.filter_eval_shape(lambda: nym.zeros(axes, dtype=jnp.bfloat16)) for _ in range(3)]
    mapping = {"batch": "data", "pos": "context"}
    return nym.named_jit(jax.grad(compute_loss, (0, 1, 2)), mapping, in_axis_resources=mapping), operands


def make_ring_by_hand(mesh: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Returns the same without names: an online softmax of blocks, and a backward pass that goes around once more."""

    def score(query: jax.Array, keys: jax.Array, block: jax.Array, owner: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the scores of a block of keys of another device, and these keys."""
        part = jax.lax.dynamic_slice_in_dim(keys, block * BLOCK, BLOCK, 1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, part, preferred_element_type=jnp.float32)
        local = query.shape[1]
        query_places = jax.lax.axis_index("context") * local + jnp.arange(local)
        key_places = owner * local + block * BLOCK + jnp.arange(BLOCK)
        is_seen = query_places[:, None] >= key_places[None]
        return jnp.where(is_seen[None, None], scores * HeadDim.size**-0.5, -1e30), part

    def go_around(compute: Callable[..., Any], sent: Any, state: Any) -> Any:
        """Computes with the arrays of each device; all arrays come back to their own at the end."""
        size, device = jax.lax.axis_size("context"), jax.lax.axis_index("context")
        pairs = [(i, (i + 1) % size) for i in range(size)]

        def turn(carry: Any, step: jax.Array) -> tuple[Any, None]:
            sent, state = compute(*carry, (device - step) % size)
            return (jax.tree.map(lambda x: jax.lax.ppermute(x, "context", pairs), sent), state), None

        return jax.lax.scan(turn, (sent, state), jnp.arange(size))[0]

    def attend_forward(query: jax.Array, key: jax.Array, value: jax.Array) -> Any:
        def add_shard(keys: Any, state: Any, owner: jax.Array) -> Any:
            def add_block(state: Any, block: jax.Array) -> tuple[Any, None]:
                highest, total, average = state
                scores, _ = score(query, keys[0], block, owner)
                new_highest = jnp.maximum(highest, scores.max(-1))
                weights, decay = jnp.exp(scores - new_highest[..., None]), jnp.exp(highest - new_highest)
                part = jax.lax.dynamic_slice_in_dim(keys[1], block * BLOCK, BLOCK, 1)
                new = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(part.dtype), part)
                average = average * jnp.swapaxes(decay, 1, 2)[..., None] + new.astype(jnp.float32)
                return (new_highest, total * decay + weights.sum(-1), average), None

            return keys, jax.lax.scan(add_block, state, jnp.arange(key.shape[1] // BLOCK))[0]

        zeros = jnp.einsum("bqhd->bhq", query).astype(jnp.float32) * 0
        initial = zeros - 1e30, zeros, query.astype(jnp.float32) * 0
        _, (highest, total, average) = go_around(add_shard, (key, value), initial)
        average = (average / jnp.swapaxes(total, 1, 2)[..., None]).astype(query.dtype)
        return average, (query, key, value, average, highest + jnp.log(total))

    def attend_backward(saved: Any, gradient: jax.Array) -> Any:
        query, key, value, average, log_sums = saved
        shift = jnp.einsum("bqhd,bqhd->bhq", average.astype(jnp.float32), gradient.astype(jnp.float32))

        def add_shard(sent: Any, d_query: jax.Array, owner: jax.Array) -> Any:
            key, value, d_key, d_value = sent

            def add_block(totals: Any, block: jax.Array) -> tuple[Any, None]:
                d_query, d_key, d_value = totals
                scores, part_key = score(query, key, block, owner)
                part_value = jax.lax.dynamic_slice_in_dim(value, block * BLOCK, BLOCK, 1)
                weights = jnp.exp(scores - log_sums[..., None])
                d_weights = jnp.einsum("bqhd,bkhd->bhqk", gradient, part_value, preferred_element_type=jnp.float32)
                d_scores = (weights * (d_weights - shift[..., None]) * HeadDim.size**-0.5).astype(query.dtype)
                new_value = jnp.einsum("bhqk,bqhd->bkhd", weights.astype(query.dtype), gradient)
                new_key = jnp.einsum("bhqk,bqhd->bkhd", d_scores, query)
                d_query = d_query + jnp.einsum("bhqk,bkhd->bqhd", d_scores, part_key).astype(jnp.float32)

                def add(total: jax.Array, new: jax.Array) -> jax.Array:
                    old = jax.lax.dynamic_slice_in_dim(total, block * BLOCK, BLOCK, 1)
                    return jax.lax.dynamic_update_slice_in_dim(total, old + new.astype(jnp.float32), block * BLOCK, 1)

                return (d_query, add(d_key, new_key), add(d_value, new_value)), None

            blocks = jnp.arange(key.shape[1] // BLOCK)
            (d_query, d_key, d_value), _ = jax.lax.scan(add_block, (d_query, d_key, d_value), blocks)
            return (key, value, d_key, d_value), d_query

        zeros = [x.astype(jnp.float32) * 0 for x in (query, key, value)]
        (_, _, d_key, d_value), d_query = go_around(add_shard, (key, value, *zeros[1:]), zeros[0])
        return tuple(x.astype(query.dtype) for x in (d_query, d_key, d_value))

    attend = jax.custom_vjp(lambda *operands: attend_forward(*operands)[0])
    attend.defvjp(attend_forward, attend_backward)

    def compute_loss(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        spec = P("data", "context")
        out = jax.shard_map(attend, in_specs=(spec, spec, spec), out_specs=spec)(query, key, value)
        return jnp.sum(out.astype(jnp.float32) ** 2)

    sizes = CONTEXT_BATCH, Pos.size, Heads.size, HeadDim.size
    sharding = NamedSharding(mesh, P("data", "context", None, None))
    operands = [jax.ShapeDtypeStruct(sizes, jnp.bfloat16, sharding=sharding)] * 3
    return jax.jit(jax.grad(compute_loss, (0, 1, 2))), operands


CASES = {
    "pipeline": ({"stage": 2, "data": 2, "model": 2}, make_pipeline, make_pipeline_by_hand),
    "ring": ({"context": 4, "data": 2}, make_ring, make_ring_by_hand),
}


def compile_case(make: Callable[..., Any], sizes: dict[str, int], kind: AxisType) -> Sequence[str]:
    """Returns what a program sends, how often it does, and the memory of a device."""
    mesh = nym.create_mesh(
        tuple(sizes.values()), tuple(sizes), devices=described_devices(TOPOLOGY), axis_types=(kind,) * len(sizes)
    )
    step, arguments = make(mesh)
    with jax.set_mesh(mesh):
        program = compile_for(step, *arguments, devices=TOPOLOGY, mesh=mesh, cache=False)
    collectives = [collective for collective in communication_report(program).collectives if collective.bytes > 4096]
    sent, runs = sum(x.sent_bytes * x.runs for x in collectives), sum(x.runs for x in collectives)
    return f"{sent / 2**20:.1f} MiB", str(runs), f"{program.memory.peak_bytes / 2**20:.0f} MiB"


def main() -> None:
    """Prints a table."""
    print("| | | sent by a device | collectives run | memory |\n|---|---|---:|---:|---:|")
    for name, (sizes, make, make_by_hand) in CASES.items():
        for contender, kind, make_step in (
            ("by hand", AxisType.Auto, make_by_hand),
            ("Axonym, Auto", AxisType.Auto, make),
            ("Axonym, Explicit", AxisType.Explicit, make),
        ):
            cells = compile_case(make_step, sizes, kind)
            print(f"| {name} | {contender} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

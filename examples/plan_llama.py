"""Plans the training or serving of a Llama or of Mixtral on a machine that is not there.

The whole train step is described by shapes alone: AdamW, parameters and moments in float32, computing in bfloat16, and
the loss without the logits. `axonym.planner.plan` searches the mesh, the mappings from the names of axes to it, and
what the backward pass recomputes. With `--serve`, it plans decoding with caches of these lengths, and reading a prompt
with the parameters where they are for it, all in bfloat16. The table is printed; `--out DIR` writes a page with tables
and pictures. Nothing is run, and no device is needed, but the compiler of the machine is: `pip install
axonym[plan-tpu]` or `[plan-gpu]`.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from models import llama, mixtral

import axonym as nym
from axonym import NamedArray


HEADS = {"heads": 8, "head_dim": 128}
MODELS = {
    "llama3-8b": {"vocab": 128256, "layers": 32, "embed": 4096, "group": 4, "mlp": 14336, **HEADS},
    "llama3-70b": {"vocab": 128256, "layers": 80, "embed": 8192, "group": 8, "mlp": 28672, **HEADS},
    "llama3-405b": {"vocab": 128256, "layers": 126, "embed": 16384, "group": 16, "mlp": 53248, **HEADS},
    "mixtral-8x7b": {"vocab": 32000, "layers": 32, "embed": 4096, "group": 4, "mlp": 14336, "experts": 8, **HEADS},
}
POLICIES = {"none": False, "layers": True, "nested": "nested", "offload": "offload"}  # of the layers
ADAMW = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4, b2=0.95, weight_decay=0.1))
OPTIMIZER: Any = nym.offloaded_optimizer(ADAMW)  # whose state is on the device or on the host, as it is given


def compute_loss(model: Any, tokens: NamedArray, targets: NamedArray) -> jax.Array:
    """Returns the cross entropy of the next token, in bfloat16; Mixtral adds the losses of its routers."""
    model = jax.tree.map(lambda x: x.astype(jnp.bfloat16), model)
    x, found = model.blocks.scan(model.embedding(tokens), None)
    x = model.norm(x)
    if isinstance(model.blocks.stacked, llama.SequenceParallelBlock):  # the vocabulary can be sharded as the MLP is
        x, targets = (nym.shard(array.rename({"pos": "token"})) for array in (x, targets))
    loss = nym.nn.fused_cross_entropy(x, model.head.weight, targets, "embed", "vocab").scalar()
    if found is not None:
        _, metrics = found
        loss += nym.mean(0.01 * metrics.load_balance_loss + 0.001 * metrics.router_z_loss).scalar()
    return loss


@nym.named_jit(donate_args=(True, True))
def train_step(model: Any, state: Any, tokens: NamedArray, targets: NamedArray, *, microbatches: int = 1) -> Any:
    compute_gradients = nym.microbatch(jax.value_and_grad(compute_loss), "batch", microbatches)
    loss, gradients = compute_gradients(model, tokens, targets)
    updates, state = OPTIMIZER.update(gradients, state, model)
    return eqx.apply_updates(model, updates), state, loss


@nym.named_jit(donate_args=(False, True, False))
def decode_step(model: Any, cache: Any, tokens: NamedArray) -> tuple[Any, NamedArray]:
    """Returns the cache with the new tokens, and the most probable next token of each sequence."""
    logits, cache = model.decode(tokens, cache, last_only=True)
    token = logits["pos", -1].argmax("vocab").astype(tokens.dtype)
    return cache, token.broadcast_axis(nym.Axis("pos", 1)).rearrange(("batch", "pos"))


def describe_served(sizes: dict[str, int], batch: int, context: int, length: int = 1) -> tuple[Any, ...]:
    """Returns the arguments of `decode_step` for `length` tokens of each sequence, as shapes."""
    model = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), make_model(sizes))
    Batch, KPos = nym.make_axes(batch=batch, key_pos=context)
    cache = eqx.filter_eval_shape(lambda: model.init_cache(Batch, KPos, dtype=jnp.bfloat16))
    return model, cache, jax.eval_shape(lambda: nym.zeros({"batch": batch, "pos": length}, jnp.int32))


def make_model(sizes: dict[str, int]) -> Any:
    """Returns a model with these axes, as shapes."""
    axes = {name: nym.Axis(name, size) for name, size in sizes.items()}
    model_class, module = (mixtral.Mixtral, mixtral) if "experts" in axes else (llama.Llama, llama)
    return eqx.filter_eval_shape(model_class.init, module.Config(**axes), key=jax.random.key(0))


def describe_arguments(
    sizes: dict[str, int], batch: int, length: int, *, context_parallel: bool = False
) -> tuple[Any, ...]:
    """Returns the arguments of the train step of a model with these axes, as shapes.

    The layers of Llama have names for sequence parallelism, which is a mapping of `pos` to the mesh axis of heads and
    the MLP. With `context_parallel`, that mapping shards their attention, too.
    """
    model = make_model(sizes)
    if isinstance(model, llama.Llama) and not context_parallel:
        model = model.use_sequence_parallelism()
    tokens = jax.eval_shape(lambda: nym.zeros({"batch": batch, "pos": length}, jnp.int32))
    return model, eqx.filter_eval_shape(OPTIMIZER.init, model), tokens, tokens


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Plans the training of a model on a machine that is not there.")
    parser.add_argument("--model", choices=MODELS, default="llama3-8b")
    parser.add_argument("--layers", type=int, help="another number of layers")
    parser.add_argument("--devices", default="v5e:16x16", help="the machine, such as v5p:4x8x8, h100:32x8 or cpu:8")
    parser.add_argument("--batch", type=int, nargs="+", help="sequences of a step, of which several are tried")
    parser.add_argument("--length", type=int, default=4096, help="tokens of a sequence, or of a prompt")
    parser.add_argument("--serve", type=int, nargs="+", metavar="CONTEXT", help="serve with caches of these lengths")
    parser.add_argument("--policy", nargs="+", choices=[*POLICIES, "auto"], default=["auto"])
    parser.add_argument("--microbatches", type=int, nargs="+", help="numbers to try, such as 1 2 4; 1 if left out")
    parser.add_argument("--context-parallel", action="store_true", help="shard attention over positions, for long ones")
    parser.add_argument("--offload-state", action="store_true", help="also try the optimizer state on the host")
    parser.add_argument("--published-flags", action="store_true", help="also try flags of XLA that are published")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="how long the search may take")
    parser.add_argument("--out", type=Path, metavar="DIR", help="a folder for plan.html, plan.json and pictures")
    return parser.parse_args(argv)


def plan_serving(sizes: dict[str, int], devices: Any, args: argparse.Namespace) -> int:
    """Prints a plan for decoding, and one for reading a prompt with the parameters as they are for decoding."""
    batches = args.batch or [len(devices)]
    plan = nym.planner.plan(
        decode_step,
        *describe_served(sizes, batches[0], args.serve[0]),
        devices=devices,
        serve="batch",
        sizes={"batch": batches, "key_pos": args.serve},
        budget=args.budget,
    )
    print(f"{args.model}, decoding\n\n{plan}")
    write_files(plan, args)
    if not plan.fits:
        return 1
    fixed = {"mesh": plan.best.candidate.mesh, "compute": {**plan.compute}, "parameters": {**plan.parameters}}
    for mapping in (fixed["compute"], fixed["parameters"]):
        mapping.pop("batch", None)  # a single prompt is sharded in another way
    prompt = describe_served(sizes, 1, max(args.length, plan.sizes["key_pos"]), args.length)
    prefill = nym.planner.plan(decode_step, *prompt, devices=devices, serve="batch", fixed=fixed, budget=args.budget)
    print(f"\n{args.model}, reading a prompt of {args.length:,} tokens\n\n{prefill}")
    return 0 if prefill.fits else 1


def write_files(plan: nym.planner.Plan, args: argparse.Namespace) -> None:
    """Writes the plan, its page and its pictures, if there is a folder for them."""
    if args.out is None:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    plan.to_json(args.out / "plan.json")
    plan.to_html(args.out / "plan.html", title=f"{args.model} on {args.devices}")
    plan.draw(args.out / "plan.svg")
    if plan.best.time.timelines:
        plan.draw_timeline(args.out / "timeline.svg")
    print(f"results are in {args.out}")


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    try:
        devices = nym.planner.described_devices(args.devices)
        sizes = {**MODELS[args.model], **({} if args.layers is None else {"layers": args.layers})}
        if args.serve:
            return plan_serving(sizes, devices, args)
        how = {"context_parallel": args.context_parallel}
        batches = args.batch or [len(devices)]
        shapes = describe_arguments(sizes, batches[0], args.length, **how)
        choices = {
            "policies": "auto" if "auto" in args.policy else {name: POLICIES[name] for name in args.policy},
            "options": {"microbatches": args.microbatches} if args.microbatches else None,
            "sizes": {"batch": batches} if len(batches) > 1 else None,
            "offload_state": args.offload_state,
            "compiler_options": "published" if args.published_flags else None,
        }
        plan = nym.planner.plan(train_step, *shapes, devices=devices, budget=args.budget, **choices)
        print(f"{args.model}, {plan.tokens:,} tokens a step\n\n{plan}")
        write_files(plan, args)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        print(f"plan_llama: {error}", file=sys.stderr)
        return 2
    return 0 if plan.fits else 1


if __name__ == "__main__":
    sys.exit(main())

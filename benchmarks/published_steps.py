"""The step times that `estimate_step_time` predicts for training runs whose step times are published.

`python -m benchmarks.published_steps [--only NAME ...] [--page FILE]` compiles the step of `examples/models/llama.py`
whole, in the sizes, on the devices and with the mapping of each published run, and compares the estimate with the
published time. `make tpu` and `make gpu-plugins` install the compilers, into the folders that AXONYM_LIBTPU and
AXONYM_GPU_PLUGINS name. A run on TPUs takes up to eight minutes of CPU time, one on GPUs a quarter of a minute; nothing
is run. With `--page`, the tables replace those in a page of the documentation.

The model is Llama's in all runs, in bfloat16 with AdamW on float32. Under tensor parallelism the values between layers
are sharded over the positions, as MaxText shards them over an axis, too.
"""

import argparse
import collections
import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import axonym as nym
from axonym.planner import CompiledProgram, StepTime, compile_for, described_devices, estimate_step_time
from examples.models import llama

from .compiled_steps import replace_table


FSDP = {"batch": "data"}
TENSOR = {**FSDP, "heads": "model", "mlp": "model", "pos": "model", "vocab": "model"}
WITHIN_LAYERS = ("query", "key", "value", "attention_out", "gate", "up")
SAVED = nym.ScanCheckpointPolicy(save_block_internals=WITHIN_LAYERS)  # MaxText's `minimal`
OFFLOADED = nym.ScanCheckpointPolicy(offload_block_internals=WITHIN_LAYERS)  # MaxText's `minimal_offloaded`
QUERIES_OFFLOADED = nym.ScanCheckpointPolicy(offload_block_internals=WITHIN_LAYERS[:3])
LAYERS_OFFLOADED = nym.ScanCheckpointPolicy(save_carries="offload")
LAYERS_AND_QUERIES_OFFLOADED = nym.ScanCheckpointPolicy(
    save_carries="offload", offload_block_internals=WITHIN_LAYERS[:3]
)
WITHOUT_MLP = nym.ScanCheckpointPolicy(save_block_internals=WITHIN_LAYERS[:4])  # `save_dot_with_context_except_mlp`
ALL_OFFLOADED = nym.ScanCheckpointPolicy(save_carries="offload", offload_block_internals=WITHIN_LAYERS[:4])
# The flags of each run, as far as libtpu takes them as options of a compilation.
DATA_PARALLEL = {
    "xla_tpu_enable_data_parallel_all_reduce_opt": True,
    "xla_tpu_data_parallel_opt_different_sized_ops": True,
}
FUSED_COLLECTIVES = {
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    "xla_enable_async_all_gather": True,
    **DATA_PARALLEL,
}
ON_V6E = {  # without the fusion of gathers, which libtpu 0.0.50 refuses for v6e
    "xla_enable_async_all_gather": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    "xla_tpu_scoped_vmem_limit_kib": 98304,
}
SCATTER_LAYOUT = {
    "xla_tpu_use_minor_sharding_for_major_trivial_input": True,
    "xla_tpu_relayout_group_size_threshold_for_reduce_scatter": 1,
    "xla_tpu_assign_all_reduce_scatter_layout": True,
}
HOST_TRANSFERS = {
    "xla_tpu_enable_all_experimental_scheduler_features": True,
    "xla_tpu_enable_scheduler_memory_pressure_tracking": True,
    "xla_tpu_host_transfer_overlap_limit": 24,
    "xla_tpu_aggressive_opt_barrier_removal": "ENABLED",
    "xla_lhs_prioritize_async_depth_over_stall": "ENABLED",
    "xla_tpu_enable_ag_backward_pipelining": True,
    "xla_should_allow_loop_variant_parameter_in_chain": "ENABLED",
    "xla_should_add_loop_invariant_op_in_chain": "ENABLED",
    "xla_max_concurrent_host_send_recv": 100,
    "xla_tpu_scheduler_percent_shared_memory_limit": 100,
    "xla_latency_hiding_scheduler_rerun": 2,
}
LLAMA_ON_V6E = {**ON_V6E, **DATA_PARALLEL, **SCATTER_LAYOUT, **HOST_TRANSFERS}
SUMS_ON_SPARSE_CORES = {
    "xla_tpu_enable_all_reduce_offload_tracing": True,
    "xla_tpu_use_tc_device_shape_on_sc": True,
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
    "xla_sc_disable_megacore_partitioning": True,
    "xla_sc_enable_instruction_fusion": False,
}
SPARSE_CORES = {
    **SUMS_ON_SPARSE_CORES,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": False,
    "xla_tpu_enable_all_gather_offload_tracing": True,
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": True,
}
ON_GPUS = {
    "xla_gpu_all_gather_combine_threshold_bytes": 134217728,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": 67108864,
    "xla_gpu_all_reduce_combine_threshold_bytes": 134217728,
    "xla_gpu_enable_pipelined_all_gather": True,
    "xla_gpu_enable_pipelined_reduce_scatter": True,
    "xla_gpu_enable_pipelined_all_reduce": True,
}
COPIES = {"batch": ("replica", "data")}
LLAMA_2_7B = {"vocab": 32000, "heads": 32, "group": 1, "head_dim": 128, "pos": 4096}
LLAMA_2_7B |= {"layers": 32, "embed": 4096, "mlp": 11008}
LLAMA_2_7B_TFLOPS = 755.08  # of a device in a step with 4 sequences, as MaxText counts them
LLAMA_3 = {"vocab": 128256, "heads": 8, "head_dim": 128, "pos": 8192}
LLAMA_3_8B = {**LLAMA_3, "layers": 32, "embed": 4096, "group": 4, "mlp": 14336}
LLAMA_3_70B = {**LLAMA_3, "layers": 80, "embed": 8192, "group": 8, "mlp": 28672}
LLAMA_3_405B = {**LLAMA_3, "layers": 126, "embed": 16384, "group": 16, "mlp": 53248}
MAXTEXT = {"vocab": 32000, "group": 1, "head_dim": 128, "pos": 2048}


@dataclasses.dataclass(frozen=True)
class Run:
    """A published training run.

    Attributes:
        title: What it is, as in the table.
        devices: The machine.
        sizes: The size of each axis of the model and of the batch.
        mesh: The sizes of the mesh axes.
        seconds: The published time of a step.
        compute: From axes to mesh axes, for computing; between steps, `embed` is sharded over `data` as well.
        policy: What the backward pass recomputes.
        compiler_options: Flags of XLA that the run is published with.
    """

    title: str
    devices: str
    sizes: Mapping[str, int]
    mesh: Mapping[str, int]
    seconds: float
    compute: Mapping[str, str | tuple[str, ...]] = dataclasses.field(default_factory=lambda: FSDP)
    policy: Any = True
    compiler_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def stored(self) -> dict[str, str | tuple[str, ...]]:
        """From axes to mesh axes, between steps."""
        return {**self.compute, "embed": "data"}


RUNS = {
    "16b-v5e": Run(
        *("16B, FSDP 256, batch 6 a chip", "v5e:16x16"),
        {**MAXTEXT, "layers": 32, "embed": 4096, "heads": 64, "mlp": 28672, "batch": 6 * 256},
        {"data": 256},
        10.31,
        compiler_options=FUSED_COLLECTIVES,
    ),
    "128b-v5e": Run(
        *("128B, FSDP 16 x TP 16, batch 1 a chip", "v5e:16x16"),
        {**MAXTEXT, "layers": 64, "embed": 8192, "heads": 128, "mlp": 57344, "batch": 256},
        {"data": 16, "model": 16},
        14.42,
        TENSOR,
        OFFLOADED,
        FUSED_COLLECTIVES,
    ),
    "32b-v5p": Run(
        *("32B, FSDP 16 x TP 4, batch 6 a chip", "v5p:4x4x4"),
        {**MAXTEXT, "layers": 32, "embed": 8192, "heads": 64, "mlp": 28672, "batch": 6 * 64},
        {"data": 16, "model": 4},
        7.30,
        TENSOR,
        SAVED,
        SPARSE_CORES,
    ),
    "8b-v6e": Run(
        *("Llama 3.1 8B, FSDP 8, offloaded, batch 3 a chip, 8192 tokens", "v6e:2x4"),
        {**LLAMA_3_8B, "batch": 3 * 8},
        {"data": 8},
        3.443,
        policy=ALL_OFFLOADED,
        compiler_options=LLAMA_ON_V6E,
    ),
    "32b-v5e": Run(
        *("32B, FSDP 256, batch 4 a chip", "v5e:16x16"),
        {**MAXTEXT, "layers": 32, "embed": 8192, "heads": 64, "mlp": 28672, "batch": 4 * 256},
        {"data": 256},
        12.09,
        compiler_options=FUSED_COLLECTIVES,
    ),
    "64b-v5e": Run(
        *("64B, FSDP 256, batch 2 a chip", "v5e:16x16"),
        {**MAXTEXT, "layers": 64, "embed": 8192, "heads": 64, "mlp": 28672, "batch": 2 * 256},
        {"data": 256},
        13.47,
        compiler_options=FUSED_COLLECTIVES,
    ),
    "64b-v5p": Run(
        *("64B, FSDP 16 x TP 4, batch 3 a chip", "v5p:4x4x4"),
        {**MAXTEXT, "layers": 64, "embed": 8192, "heads": 64, "mlp": 28672, "batch": 3 * 64},
        {"data": 16, "model": 4},
        7.38,
        TENSOR,
        SAVED,
        SPARSE_CORES,
    ),
    "128b-v5p": Run(
        *("128B, FSDP 16 x TP 8, batch 1 a chip", "v5p:4x4x8"),
        {**MAXTEXT, "layers": 64, "embed": 8192, "heads": 128, "mlp": 57344, "batch": 128},
        {"data": 16, "model": 8},
        5.04,
        TENSOR,
        SAVED,
        SPARSE_CORES,
    ),
    "256b-v5p": Run(
        *("256B, FSDP 64 x TP 8, batch 1 a chip", "v5p:8x8x8"),
        {**MAXTEXT, "layers": 64, "embed": 16384, "heads": 128, "mlp": 57344, "batch": 512},
        {"data": 64, "model": 8},
        10.13,
        TENSOR,
        SAVED,
        SPARSE_CORES,
    ),
    "512b-v5p": Run(
        *("512B, FSDP 64 x TP 8, batch 2 a chip", "v5p:8x8x8"),
        {**MAXTEXT, "layers": 128, "embed": 16384, "heads": 128, "mlp": 57344, "batch": 1024},
        {"data": 64, "model": 8},
        42.41,
        TENSOR,
        compiler_options=SPARSE_CORES,
    ),
    "8b-v6e-pod": Run(
        *("Llama 3.1 8B, FSDP 256, offloaded, batch 4 a chip, 8192 tokens", "v6e:16x16"),
        {**LLAMA_3_8B, "batch": 4 * 256},
        {"data": 256},
        4.546,
        policy=ALL_OFFLOADED,
        compiler_options={**LLAMA_ON_V6E, **SUMS_ON_SPARSE_CORES},
    ),
    "70b-v6e-64": Run(
        *("Llama 3.1 70B, FSDP 64, offloaded, batch 2 a chip, 8192 tokens", "v6e:8x8"),
        {**LLAMA_3_70B, "batch": 2 * 64},
        {"data": 64},
        18.688,
        policy=LAYERS_AND_QUERIES_OFFLOADED,
        compiler_options=LLAMA_ON_V6E,
    ),
    "70b-v6e": Run(
        *("Llama 3.1 70B, FSDP 256, offloaded, batch 5 a chip, 8192 tokens", "v6e:16x16"),
        {**LLAMA_3_70B, "batch": 5 * 256},
        {"data": 256},
        42.656,
        policy=LAYERS_AND_QUERIES_OFFLOADED,
        compiler_options=LLAMA_ON_V6E,
    ),
    "llama2-70b-v6e": Run(
        *("Llama 2 70B, FSDP 256, offloaded, batch 2 a chip, 4096 tokens", "v6e:16x16"),
        {**LLAMA_3_70B, "vocab": 32000, "pos": 4096, "batch": 2 * 256},
        {"data": 256},
        9.052,
        policy=QUERIES_OFFLOADED,
        compiler_options={**ON_V6E, **SUMS_ON_SPARSE_CORES},
    ),
    "405b-v6e": Run(
        *("Llama 3.1 405B, FSDP 512, offloaded, batch 1 a chip, 8192 tokens", "2 x v6e:16x16"),
        {**LLAMA_3_405B, "batch": 512},
        {"data": 512},
        54.803,
        policy=LAYERS_OFFLOADED,
        compiler_options={**ON_V6E, **HOST_TRANSFERS},
    ),
    **{
        f"7b-a3-{hosts}": Run(
            *(f"Llama 2 7B, {hosts} x FSDP 8, batch 4 a GPU", f"a3_high:{hosts}x8"),
            {**LLAMA_2_7B, "batch": 4 * 8 * hosts},
            {"replica": hosts, "data": 8},
            LLAMA_2_7B_TFLOPS / tflops,
            COPIES,
            SAVED,
            ON_GPUS,
        )
        for hosts, tflops in {1: 492, 2: 422, 4: 407, 8: 409, 16: 375}.items()
    },
    "7b-a3-mega": Run(
        *("Llama 2 7B, 32 x FSDP 8, batch 4 a GPU", "a3_mega:32x8"),
        {**LLAMA_2_7B, "batch": 4 * 256},
        {"replica": 32, "data": 8},
        1.5,
        COPIES,
        SAVED,
        ON_GPUS,
    ),
    "70b-a3-ultra": Run(
        *("Llama 3.1 70B, 2 x FSDP 128, batch 2 a GPU, 8192 tokens", "h200:32x8"),
        {**LLAMA_3_70B, "batch": 2 * 256},
        {"replica": 2, "data": 128},
        15.516,
        COPIES,
        WITHOUT_MLP,
        ON_GPUS,
    ),
}
GPU_RUNS = tuple(name for name, run in RUNS.items() if nym.planner.get_hardware(run.devices).platform == "gpu")


def init_model(run: Run) -> Any:
    """Makes the model of a run."""
    axes = {name: nym.Axis(name, run.sizes[name]) for name in llama.Config._fields if name in run.sizes}
    model = llama.Llama.init(llama.Config(**axes), key=jax.random.key(0))
    blocks = dataclasses.replace(model.blocks, gradient_checkpointing=run.policy)
    return dataclasses.replace(model, blocks=blocks).use_sequence_parallelism()


def compute_loss(model: Any, tokens: nym.NamedArray, targets: nym.NamedArray) -> jax.Array:
    """Returns the loss in bfloat16, whose logits are sharded over the vocabulary."""
    model = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x, model)
    x, _ = model.blocks.scan(model.embedding(tokens), None)
    logits = model.head(nym.shard(model.norm(x).rename({"pos": "token"})))
    return nym.nn.cross_entropy_loss(logits, "vocab", targets.rename({"pos": "token"})).scalar()


def describe_step(run: Run) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step of a run, and the shapes of its arguments."""
    optimizer = optax.adamw(3e-4, b2=0.95, weight_decay=0.1)

    @nym.fsdp(run.stored, run.compute, donate_args=(True, True), retrace_warning=False)
    def train_step(model: Any, state: Any, tokens: nym.NamedArray, targets: nym.NamedArray) -> Any:
        loss, gradients = jax.value_and_grad(compute_loss)(model, tokens, targets)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    model = eqx.filter_eval_shape(init_model, run)
    tokens = jax.eval_shape(lambda: nym.zeros({"batch": run.sizes["batch"], "pos": run.sizes["pos"]}, jnp.int32))
    return train_step, (model, eqx.filter_eval_shape(optimizer.init, model), tokens, tokens)


def compile_run(run: Run, *, stop_early: bool = False) -> CompiledProgram:
    """Returns the compiled step of a run."""
    step, arguments = describe_step(run)
    mesh = nym.create_mesh(run.mesh, devices=described_devices(run.devices))
    options = {"stop_early": stop_early, "compiler_options": run.compiler_options}
    return compile_for(step, *arguments, mesh=mesh, mapping=run.stored, **options)


def format_row(run: Run, program: CompiledProgram, time: StepTime) -> str:
    """Returns the row of the table for a run."""
    waiting = sum(time.waiting.values())
    parts = (time.compute, time.attention, waiting, time.host, sum(time.hidden.values()))
    memory = f"{program.memory.peak_bytes / 2**30:.1f} of {program.hardware.hbm_available / 2**30:.1f}"
    off = 100 * (time.total / run.seconds - 1)
    cells = [f"{run.title}, {run.devices}", f"{run.seconds:.2f}", f"{time.total:.2f}", f"{off:+.1f} %"]
    return f"| {' | '.join([*cells, *(f'{part:.2f}' for part in parts), memory])} |"


def format_table(rows: Sequence[str], program: CompiledProgram) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in program.versions.items())
    heads = ("published s", "predicted s", "difference", "compute", "attention", "waiting", "host", "hidden", "GiB")
    return "\n".join(
        [
            f"Compiled {datetime.date.today()} with {versions}.",
            "",
            f"| run | {' | '.join(heads)} |",
            f"|---|{'---:|' * len(heads)}",
            *rows,
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="which runs; default: all")
    parser.add_argument("--page", type=Path, help="a page whose table is replaced")
    given = parser.parse_args(arguments)
    rows: dict[str, list[str]] = collections.defaultdict(list)  # by the name of the table
    programs: dict[str, CompiledProgram] = {}
    for name in given.only:
        table = "gpus" if name in GPU_RUNS else "table"
        programs[table] = compile_run(RUNS[name])
        rows[table].append(format_row(RUNS[name], programs[table], estimate_step_time(programs[table])))
        print(rows[table][-1], flush=True)
    for table in rows:
        text = format_table(rows[table], programs[table])
        print(text)
        if given.page:
            given.page.write_text(replace_table(given.page.read_text(), text, table))


if __name__ == "__main__":
    main()

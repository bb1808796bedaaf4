"""The training runs whose step times are published, with their settings, for `published_steps.py`.

Those on v5e and v5p are in the tables of MaxText's pages for these, and those on v6e and tpu7x are Google Cloud's
recipes (AI-Hypercomputer/tpu-recipes). Those of Llama 2 7B on GPUs are in MaxText's table for A3 machines, the last of
these and Llama 3.1 70B on H200s are recipes (AI-Hypercomputer/gpu-recipes), and the others torchtitan's.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

import axonym as nym


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
SELECTED = nym.ScanCheckpointPolicy(save_block_internals=("query", "value", "gate"))  # torchtitan's `op`
CARRIES_OFFLOADED_KEYS_SAVED = nym.ScanCheckpointPolicy(save_carries="offload", save_block_internals=("key", "value"))


def save_attention(prim: Any, *args: Any, **params: Any) -> Any:
    """Saves queries, keys and values, and of a kernel of attention what its backward pass needs: MaxText's `context`.

    A kernel returns its log-sum-exps 128 times over; it is their slice that is kept.
    """
    save_names = jax.checkpoint_policies.save_only_these_names("query", "key", "value")
    return prim.name in ("pallas_call", "slice", "squeeze", "gather") or save_names(prim, *args, **params)


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
ON_TPU7X = {
    "xla_tpu_scoped_vmem_limit_kib": 65536,
    "xla_tpu_bf16_emission_mode": "NATIVE_EMISSION",
    "xla_tpu_enable_sparse_core_reduce_scatter_v2": True,
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_2d_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_3d_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": True,
    "xla_tpu_use_single_sparse_core_for_all_gather_offload": True,
    "xla_tpu_enable_all_gather_offload_tracing": True,
    "xla_tpu_use_tc_device_shape_on_sc": True,
    "xla_sc_disable_megacore_partitioning": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": False,
    "xla_enable_async_all_gather": True,
    "xla_tpu_prefer_async_allgather_to_allreduce": True,
}
FLOAT8_ON_TPU7X = {
    "xla_tpu_scoped_vmem_limit_kib": 61440,
    "xla_tpu_bf16_emission_mode": "NATIVE_EMISSION",
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
    "xla_tpu_use_single_sparse_core_for_all_gather_offload": True,
}
QWEN_ON_TPU7X = {
    **HOST_TRANSFERS,
    "xla_tpu_scoped_vmem_limit_kib": 61440,
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": True,
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
    "xla_tpu_use_single_sparse_core_for_all_gather_offload": True,
}
ON_GPUS = {
    "xla_gpu_all_gather_combine_threshold_bytes": 134217728,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": 67108864,
    "xla_gpu_all_reduce_combine_threshold_bytes": 134217728,
    "xla_gpu_pipeline_all_gather": "COLLECTIVE_PIPELINING_MODE_ON",
    "xla_gpu_pipeline_reduce_scatter": "COLLECTIVE_PIPELINING_MODE_ON",
    "xla_gpu_pipeline_all_reduce": "COLLECTIVE_PIPELINING_MODE_ON",
}
COPIES = {"batch": ("replica", "data")}
LLAMA_2_7B = {"vocab": 32000, "heads": 32, "group": 1, "head_dim": 128, "pos": 4096}
LLAMA_2_7B |= {"layers": 32, "embed": 4096, "mlp": 11008}
LLAMA_2_7B_TFLOPS = 755.08  # of a device in a step with 4 sequences, as MaxText counts them
LLAMA_3 = {"vocab": 128256, "heads": 8, "head_dim": 128, "pos": 8192}
LLAMA_3_8B = {**LLAMA_3, "layers": 32, "embed": 4096, "group": 4, "mlp": 14336}
LLAMA_3_70B = {**LLAMA_3, "layers": 80, "embed": 8192, "group": 8, "mlp": 28672}
LLAMA_3_405B = {**LLAMA_3, "layers": 126, "embed": 16384, "group": 16, "mlp": 53248}
LLAMA_2_13B = {**LLAMA_2_7B, "layers": 40, "embed": 5120, "heads": 40, "mlp": 13824}
LLAMA_2_70B = {**LLAMA_3_70B, "vocab": 32000, "pos": 4096}
MAXTEXT = {"vocab": 32000, "group": 1, "head_dim": 128, "pos": 2048}
QWEN_3_235B = {"vocab": 151936, "layers": 94, "embed": 4096, "heads": 4, "group": 16, "head_dim": 128, "pos": 4096}
QWEN_3_235B |= {"mlp": 1536, "experts": 128}


@dataclasses.dataclass(frozen=True)
class Run:
    """A published training run.

    Attributes:
        title: What it is, as in the table.
        devices: The machine.
        sizes: The size of each axis of the model and of the batch.
        mesh: The sizes of the mesh axes.
        seconds: The published time of a step; None before a prediction is compared with it.
        compute: From axes to mesh axes, for computing; between steps, `embed` is sharded over `data` as well.
        policy: What the backward pass recomputes.
        compiler_options: Flags of XLA that the run is published with.
        is_float8: Whether the linear layers but the head multiply 8-bit floats.
        options: Other numbers and choices of the model's configuration.
    """

    title: str
    devices: str
    sizes: Mapping[str, int]
    mesh: Mapping[str, int]
    seconds: float | None
    compute: Mapping[str, str | tuple[str, ...]] = dataclasses.field(default_factory=lambda: FSDP)
    policy: Any = True
    compiler_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_float8: bool = False
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def stored(self) -> dict[str, str | tuple[str, ...]]:
        """From axes to mesh axes, between steps."""
        return {**self.compute, "embed": "data"}

    @property
    def label(self) -> str:
        """The first cell of its rows."""
        return f"{self.title}, {self.devices}"

    @property
    def table(self) -> str:
        """The name of its table in the documentation."""
        if nym.planner.get_hardware(self.devices).platform == "gpu":
            return "gpus"
        if self.devices.startswith("tpu7x"):
            return "tpu7x"
        return "slices" if "replica" in self.mesh else "table"


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
    "70b-tpu7x-64": Run(
        *("Llama 3.1 70B, FSDP 128, batch 2 a device, 8192 tokens", "tpu7x:4x4x4"),
        {**LLAMA_3_70B, "batch": 2 * 128},
        {"data": 128},
        12.20,
        policy=save_attention,
        compiler_options=ON_TPU7X,
    ),
    "70b-tpu7x": Run(
        *("Llama 3.1 70B, FSDP 512, batch 2 a device, 8192 tokens", "tpu7x:4x8x8"),
        {**LLAMA_3_70B, "batch": 2 * 512},
        {"data": 512},
        12.27,
        policy=save_attention,
        compiler_options=ON_TPU7X,
    ),
    "405b-tpu7x": Run(
        *("Llama 3.1 405B, FSDP 512, offloaded, batch 3 a device, 8192 tokens", "tpu7x:4x8x8"),
        {**LLAMA_3_405B, "batch": 3 * 512},
        {"data": 512},
        98.34,
        policy=CARRIES_OFFLOADED_KEYS_SAVED,
        compiler_options=ON_TPU7X,
    ),
    "70b-tpu7x-64-float8": Run(
        *("Llama 3.1 70B in 8-bit floats, FSDP 128, batch 2 a device, 8192 tokens", "tpu7x:4x4x4"),
        {**LLAMA_3_70B, "batch": 2 * 128},
        {"data": 128},
        7.93,
        policy=save_attention,
        compiler_options=FLOAT8_ON_TPU7X,
        is_float8=True,
    ),
    "70b-tpu7x-float8": Run(
        *("Llama 3.1 70B in 8-bit floats, FSDP 512, batch 2 a device, 8192 tokens", "tpu7x:4x8x8"),
        {**LLAMA_3_70B, "batch": 2 * 512},
        {"data": 512},
        7.95,
        policy=save_attention,
        compiler_options=FLOAT8_ON_TPU7X,
        is_float8=True,
    ),
    "405b-tpu7x-float8": Run(
        *("Llama 3.1 405B in 8-bit floats, FSDP 512, offloaded, batch 3 a device, 8192 tokens", "tpu7x:4x8x8"),
        {**LLAMA_3_405B, "batch": 3 * 512},
        {"data": 512},
        64.37,
        policy=LAYERS_OFFLOADED,
        compiler_options=ON_TPU7X,
        is_float8=True,
    ),
    "qwen3-235b-tpu7x": Run(
        *("Qwen 3 235B, FSDP 512, offloaded, batch 16 a device, 4096 tokens", "tpu7x:4x8x8"),
        {**QWEN_3_235B, "batch": 16 * 512},
        {"data": 512},
        30.87,
        policy=LAYERS_OFFLOADED,
        compiler_options=QWEN_ON_TPU7X,
        options={"top_k": 8},
    ),
    "1024b-v5p": Run(
        *("1024B, FSDP 64 x TP 16, batch 2 a chip", "v5p:8x8x16"),
        {**MAXTEXT, "layers": 128, "embed": 16384, "heads": 256, "mlp": 114688, "batch": 2048},
        {"data": 64, "model": 16},
        98.12,
        TENSOR,
        compiler_options=SPARSE_CORES,
    ),
    "1024b-v5p-4096": Run(
        *("1024B, FSDP 128 x TP 16, batch 2 a chip", "v5p:8x16x16"),
        {**MAXTEXT, "layers": 128, "embed": 16384, "heads": 256, "mlp": 114688, "batch": 4096},
        {"data": 128, "model": 16},
        83.91,
        TENSOR,
        compiler_options=SPARSE_CORES,
    ),
    "16b-v5e-slices": Run(
        *("16B, 2 x FSDP 256, batch 6 a chip", "2 x v5e:16x16"),
        {**MAXTEXT, "layers": 32, "embed": 4096, "heads": 64, "mlp": 28672, "batch": 6 * 512},
        {"replica": 2, "data": 256},
        10.57,
        COPIES,
        compiler_options=FUSED_COLLECTIVES,
    ),
    "32b-v5e-slices": Run(
        *("32B, 2 x FSDP 256, batch 4 a chip", "2 x v5e:16x16"),
        {**MAXTEXT, "layers": 32, "embed": 8192, "heads": 64, "mlp": 28672, "batch": 4 * 512},
        {"replica": 2, "data": 256},
        12.47,
        COPIES,
        compiler_options=FUSED_COLLECTIVES,
    ),
    "64b-v5e-slices": Run(
        *("64B, 2 x FSDP 256, batch 2 a chip", "2 x v5e:16x16"),
        {**MAXTEXT, "layers": 64, "embed": 8192, "heads": 64, "mlp": 28672, "batch": 2 * 512},
        {"replica": 2, "data": 256},
        14.19,
        COPIES,
        compiler_options=FUSED_COLLECTIVES,
    ),
    "128b-v5e-slices": Run(
        *("128B, 2 x FSDP 16 x TP 16, batch 1 a chip", "2 x v5e:16x16"),
        {**MAXTEXT, "layers": 64, "embed": 8192, "heads": 128, "mlp": 57344, "batch": 512},
        {"replica": 2, "data": 16, "model": 16},
        14.42,
        {**TENSOR, **COPIES},
        OFFLOADED,
        FUSED_COLLECTIVES,
    ),
    "32b-v5p-slices": Run(
        *("32B, 2 x FSDP 16 x TP 4, batch 6 a chip", "2 x v5p:4x4x4"),
        {**MAXTEXT, "layers": 32, "embed": 8192, "heads": 64, "mlp": 28672, "batch": 6 * 128},
        {"replica": 2, "data": 16, "model": 4},
        7.51,
        {**TENSOR, **COPIES},
        SAVED,
        SPARSE_CORES,
    ),
    "64b-v5p-slices": Run(
        *("64B, 2 x FSDP 16 x TP 4, batch 3 a chip", "2 x v5p:4x4x4"),
        {**MAXTEXT, "layers": 64, "embed": 8192, "heads": 64, "mlp": 28672, "batch": 3 * 128},
        {"replica": 2, "data": 16, "model": 4},
        7.71,
        {**TENSOR, **COPIES},
        SAVED,
        SPARSE_CORES,
    ),
    "128b-v5p-slices": Run(
        *("128B, 2 x FSDP 16 x TP 8, batch 1 a chip", "2 x v5p:4x4x8"),
        {**MAXTEXT, "layers": 64, "embed": 8192, "heads": 128, "mlp": 57344, "batch": 256},
        {"replica": 2, "data": 16, "model": 8},
        5.20,
        {**TENSOR, **COPIES},
        SAVED,
        SPARSE_CORES,
    ),
    "256b-v5p-slices": Run(
        *("256B, 2 x FSDP 64 x TP 8, batch 1 a chip", "2 x v5p:8x8x8"),
        {**MAXTEXT, "layers": 64, "embed": 16384, "heads": 128, "mlp": 57344, "batch": 1024},
        {"replica": 2, "data": 64, "model": 8},
        10.80,
        {**TENSOR, **COPIES},
        SAVED,
        SPARSE_CORES,
    ),
    "512b-v5p-slices": Run(
        *("512B, 2 x FSDP 64 x TP 8, batch 2 a chip", "2 x v5p:8x8x8"),
        {**MAXTEXT, "layers": 128, "embed": 16384, "heads": 128, "mlp": 57344, "batch": 2048},
        {"replica": 2, "data": 64, "model": 8},
        44.21,
        {**TENSOR, **COPIES},
        compiler_options=SPARSE_CORES,
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
    "8b-h100-8": Run(
        *("Llama 3.1 8B, FSDP 8, batch 2 a GPU, 8192 tokens", "h100:1x8"),
        {**LLAMA_3_8B, "batch": 2 * 8},
        {"data": 8},
        2 * 8192 / 6667,
        policy=SELECTED,
        compiler_options=ON_GPUS,
    ),
    "8b-h100": Run(
        *("Llama 3.1 8B, FSDP 128, batch 2 a GPU, 8192 tokens", "h100:16x8"),
        {**LLAMA_3_8B, "batch": 2 * 128},
        {"data": 128},
        2 * 8192 / 6514,
        policy=SELECTED,
        compiler_options=ON_GPUS,
    ),
    "8b-a100": Run(
        *("Llama 3 8B, FSDP 64, batch 1 a GPU, 8192 tokens", "a100:8x8"),
        {**LLAMA_3_8B, "batch": 64},
        {"data": 64},
        8192 / 2973,
        policy=SELECTED,
        compiler_options=ON_GPUS,
    ),
    "70b-a100": Run(
        *("Llama 3 70B, FSDP 64, batch 1 a GPU, 8192 tokens", "a100:8x8"),
        {**LLAMA_3_70B, "batch": 64},
        {"data": 64},
        8192 / 331,
        compiler_options=ON_GPUS,
    ),
    "llama2-13b-a100": Run(
        *("Llama 2 13B, FSDP 64, batch 2 a GPU, 4096 tokens", "a100:8x8"),
        {**LLAMA_2_13B, "batch": 2 * 64},
        {"data": 64},
        2 * 4096 / 1904,
        policy=SELECTED,
        compiler_options=ON_GPUS,
    ),
    "llama2-70b-a100": Run(
        *("Llama 2 70B, FSDP 64, batch 1 a GPU, 4096 tokens", "a100:8x8"),
        {**LLAMA_2_70B, "batch": 64},
        {"data": 64},
        4096 / 355,
        policy=SELECTED,
        compiler_options=ON_GPUS,
    ),
    "llama2-70b-a100-full": Run(
        *("Llama 2 70B, FSDP 64, layers recomputed, batch 2 a GPU, 4096 tokens", "a100:8x8"),
        {**LLAMA_2_70B, "batch": 2 * 64},
        {"data": 64},
        2 * 4096 / 353,
        compiler_options=ON_GPUS,
    ),
    "8b-h100-8-float8": Run(
        *("Llama 3.1 8B in 8-bit floats, FSDP 8, batch 2 a GPU, 8192 tokens", "h100:1x8"),
        {**LLAMA_3_8B, "batch": 2 * 8},
        {"data": 8},
        2 * 8192 / 8532,
        policy=SELECTED,
        compiler_options=ON_GPUS,
        is_float8=True,
    ),
    "8b-h100-float8": Run(
        *("Llama 3.1 8B in 8-bit floats, FSDP 128, batch 2 a GPU, 8192 tokens", "h100:16x8"),
        {**LLAMA_3_8B, "batch": 2 * 128},
        {"data": 128},
        2 * 8192 / 8380,
        policy=SELECTED,
        compiler_options=ON_GPUS,
        is_float8=True,
    ),
    "70b-h100-float8": Run(
        *("Llama 3.1 70B in 8-bit floats, FSDP 32 x TP 8, batch 16 a host, 8192 tokens", "h100:32x8"),
        {**LLAMA_3_70B, "batch": 16 * 32},
        {"data": 32, "model": 8},
        2 * 8192 / 829,
        TENSOR,
        compiler_options=ON_GPUS,
        is_float8=True,
    ),
    **{
        f"8b-h200-{hosts}-float8": Run(
            *(f"Llama 3.1 8B in 8-bit floats, FSDP {8 * hosts}, batch 2 a GPU, 8192 tokens", f"h200:{hosts}x8"),
            {**LLAMA_3_8B, "batch": 2 * 8 * hosts},
            {"data": 8 * hosts},
            2 * 8192 / rate,
            policy=SELECTED,
            compiler_options=ON_GPUS,
            is_float8=True,
        )
        for hosts, rate in {4: 10938, 8: 10753}.items()  # tokens a second
    },
}

"""`compiler_options="published"`: flags of XLA that training runs on TPUs are published with, and their sources."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


PUBLISHED = "published"


@dataclass(frozen=True)
class PublishedFlags:
    """Flags of XLA that go together.

    Attributes:
        name: A name for tables.
        source: Where they are published.
        hardware: The names of the devices that they are published for.
        options: The flags, as far as libtpu takes them as options of a compilation.
    """

    name: str
    source: str
    hardware: tuple[str, ...]
    options: Mapping[str, Any]


_DATA_PARALLEL = {
    "xla_tpu_enable_data_parallel_all_reduce_opt": True,
    "xla_tpu_data_parallel_opt_different_sized_ops": True,
}
_ASYNC_GATHERS = {
    "xla_tpu_overlap_compute_collective_tc": True,
    "xla_enable_async_all_gather": True,
}
_FUSED_GATHERS = {
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    **_ASYNC_GATHERS,
    **_DATA_PARALLEL,
}
_PIPELINED_GATHERS = {  # without the fusion of gathers, which libtpu 0.0.50 takes for v5e alone
    **_ASYNC_GATHERS,
    **_DATA_PARALLEL,
    "xla_tpu_megacore_fusion_allow_ags": False,
    "xla_enable_async_collective_permute": True,
    "xla_tpu_enable_ag_backward_pipelining": True,
}
_LARGE_VMEM = {
    **_ASYNC_GATHERS,
    "xla_tpu_scoped_vmem_limit_kib": 98304,
}
_SCATTER_LAYOUT = {
    "xla_tpu_use_minor_sharding_for_major_trivial_input": True,
    "xla_tpu_relayout_group_size_threshold_for_reduce_scatter": 1,
    "xla_tpu_assign_all_reduce_scatter_layout": True,
}
_LIBRARY = "MaxText, benchmarks/xla_flags_library.py"
PUBLISHED_FLAGS = (
    PublishedFlags("fused gathers", "MaxText, configs/v5e/llama3/llama3_8b.sh", ("v5e",), _FUSED_GATHERS),
    PublishedFlags("pipelined gathers", "MaxText, configs/v5p/llama2_70b.sh", ("v5p",), _PIPELINED_GATHERS),
    PublishedFlags("large vmem", _LIBRARY, ("v6e",), _LARGE_VMEM),
    PublishedFlags(
        "large vmem, scatter layout", _LIBRARY, ("v6e",), {**_LARGE_VMEM, **_DATA_PARALLEL, **_SCATTER_LAYOUT}
    ),
)


def find_published_flags(hardware: str) -> dict[str, PublishedFlags]:
    """Returns the flags that are published for a device, by name.

    Raises:
        ValueError: If there are none.
    """
    published = {flags.name: flags for flags in PUBLISHED_FLAGS if hardware in flags.hardware}
    if not published:
        chips = ", ".join(sorted({name for flags in PUBLISHED_FLAGS for name in flags.hardware}))
        raise ValueError(
            f"`compiler_options={PUBLISHED!r}` has no flags for '{hardware}', but for {chips}; give the options by name"
        )
    return published


def describe_flags(flags: PublishedFlags) -> str:
    """Returns a note on where flags are from and what they are."""
    options = ", ".join(f"{name}={value}" for name, value in flags.options.items())
    return f"flags {flags.name!r} ({flags.source}): {options}"

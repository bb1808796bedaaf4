"""What XLA's compiler for NVIDIA GPUs has to know of a GPU that is not there, in the text of its own message.

Multiprocessors, caches and clocks are those of NVIDIA's whitepapers on Ampere, Hopper and Blackwell; what a
multiprocessor holds is in the CUDA C++ programming guide, by compute capability.
"""

from typing import NamedTuple

from ._hardware import Hardware


class _Multiprocessors(NamedTuple):
    """The multiprocessors of a GPU, the capability that they have, and sizes in bytes."""

    capability: tuple[int, int]
    number: int
    fpus: int
    shared_memory: int
    shared_memory_of_block: int
    level_2_cache: int


_MULTIPROCESSORS = {
    "a100": _Multiprocessors((8, 0), 108, 64, 167936, 166912, 40 * 2**20),
    "h100": _Multiprocessors((9, 0), 132, 128, 233472, 232448, 50 * 2**20),
    "h200": _Multiprocessors((9, 0), 132, 128, 233472, 232448, 50 * 2**20),
    "b200": _Multiprocessors((10, 0), 148, 128, 233472, 232448, 126 * 2**20),
}


def format_gpu_target(hardware: Hardware) -> str:
    """Returns the description of a GPU as the text of XLA's `GpuTargetConfigProto`."""
    if hardware.name not in _MULTIPROCESSORS:
        raise ValueError(
            f"programs cannot be compiled for GPU {hardware.name!r}, of whose multiprocessors nothing is known here; "
            f"there are {', '.join(_MULTIPROCESSORS)}"
        )
    parts = _MULTIPROCESSORS[hardware.name]
    major, minor = parts.capability
    return f"""\
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {parts.shared_memory_of_block}
  shared_memory_per_core: {parts.shared_memory}
  threads_per_core_limit: 2048 core_count: {parts.number} fpus_per_core: {parts.fpus}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {int(hardware.hbm_bandwidth)} l2_cache_size: {parts.level_2_cache}
  clock_rate_ghz: {hardware.clock / 1e9:g} device_memory_size: {hardware.hbm_available}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 12 minor: 9 }}
device_description_str: "{hardware.device_kind}"
"""

"""How long kernels of GPUs take: products by shape, attention by head size and length, and what moves through memory.

Each figure is a published measurement of kernels, on an H100 unless said otherwise. None comes from a training run.

- Products reach at most 0.869 of the peak in bfloat16 on A100s, 0.803 on H100s and 0.776 on B200s, and 0.709 of that in
  8-bit floats on H100s: the best of many shapes, measured by Bekman, "Machine Learning Engineering", 2025 (tables
  "Maximum Achievable Matmul FLOPS").
- Each multiprocessor computes one tile of a product at a time, so that the last wave of tiles takes as long as a full
  one (NVIDIA, "Matrix Multiplication Background User's Guide"). Tiles of 64 x 128 and 5 µs for the start and the end of
  a kernel are within 8 % on average of cuBLAS's speeds for 54 shapes from XLA's table of an H100
  (`matmul_interpolator_data.h` of 2025, sizes of 256 to 4096, up to 4 products in a batch).
- Attention reaches the speeds of cuDNN in figures 5 and 6 of Shah et al., "FlashAttention-3", arXiv:2407.08608: forward
  with a causal mask and without; backward without one, times what the mask costs forward.
- Other kernels read and write memory at 0.8 of its published bandwidth: 2.6 to 2.8 of 3.35 TB/s, measured on an H100
  with jax 0.11.2 in November 2026. XLA counts 1 µs for the launch of a kernel (`gpu_performance_model_base.h`).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from .._machine._hardware import Hardware
from .._program._gpu_instructions import ProductShape


_PRODUCT_PARTS: Mapping[int, float] = {8: 0.869, 9: 0.803, 10: 0.776}  # of the peak, by compute capability
_FLOAT8_PRODUCT_PARTS: Mapping[int, float] = {9: 0.709}
_OTHER_PRODUCT_PART = 0.8
_TILE = (64, 128)
_PRODUCT_SECONDS = 5e-6
_MEMORY_PART = 0.8
_LAUNCH_SECONDS = 1e-6

_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
_MEASURED_PEAK = 989.4  # of the H100 that the speeds below were measured on, in the same unit
# In 10^12 operations a second at these lengths, by head size. Those of a backward pass count five products.
_FORWARD: Mapping[int, Sequence[float]] = {
    64: (225, 288, 334, 363, 379, 388),
    128: (315, 410, 484, 518, 529, 539),
    256: (308, 391, 450, 483, 497, 509),
}
_FORWARD_UNMASKED: Mapping[int, Sequence[float]] = {
    64: (335, 373, 395, 408, 412, 413),
    128: (497, 574, 617, 609, 600, 595),
    256: (470, 546, 580, 581, 580, 581),
}
_BACKWARD_UNMASKED: Mapping[int, Sequence[float]] = {
    64: (266, 348, 395, 417, 432, 433),
    128: (305, 408, 465, 499, 518, 516),
    256: (305, 408, 465, 499, 518, 516),  # not published; that of 128
}


def estimate_kernel_seconds(hardware: Hardware, products: Sequence[ProductShape], moved_bytes: int) -> float:
    """Returns the seconds of a kernel: of its products, or of the memory if that takes longer.

    Args:
        hardware: The GPU.
        products: The products that it computes, if any.
        moved_bytes: The bytes that it reads from memory and writes there; 0 if it is no kernel.
    """
    memory = moved_bytes / (_MEMORY_PART * hardware.hbm_bandwidth)
    if products:
        return max(sum(_estimate_product(hardware, product) for product in products), memory) + _PRODUCT_SECONDS
    return memory + _LAUNCH_SECONDS if moved_bytes else 0.0


def _estimate_product(hardware: Hardware, product: ProductShape) -> float:
    """Returns the seconds in which the multiprocessors compute the tiles of a product, wave by wave."""
    target = hardware.gpu_target
    multiprocessors = target.multiprocessors if target else 1
    capability = target.compute_capability[0] if target else 0
    part = _PRODUCT_PARTS.get(capability, _OTHER_PRODUCT_PART)
    if product.dtype.startswith("f8"):
        part = _FLOAT8_PRODUCT_PARTS.get(capability, part)
    tiles = min(
        math.ceil(product.rows / height) * math.ceil(product.columns / width) for height, width in (_TILE, _TILE[::-1])
    )
    waves = math.ceil(product.batch * tiles / multiprocessors)
    tile_flops = 2.0 * math.prod(_TILE) * product.contracted
    return waves * multiprocessors * tile_flops / (part * _find_peak(hardware, product.dtype))


def _find_peak(hardware: Hardware, dtype: str) -> float:
    if dtype.startswith("f8"):
        return hardware.fp8_flops
    if dtype in ("s8", "u8"):
        return hardware.int8_flops
    return hardware.bf16_flops / (2 if dtype == "f32" else 1)  # XLA multiplies 32-bit floats in TF32


def estimate_attention_seconds(
    hardware: Hardware, flops: float, head_dim: int, length: int, *, is_backward: bool, is_masked: bool
) -> float:
    """Returns the seconds of attention, at the same part of the peak as on an H100.

    Args:
        hardware: The GPU.
        flops: The floating-point operations without what a mask hides: backward, those of five products.
        head_dim: The size of a head.
        length: The number of keys.
        is_backward: Whether the gradients are computed.
        is_masked: Whether there is a causal mask.
    """
    size = next((size for size in _FORWARD if size >= head_dim), max(_FORWARD))
    table_index = np.interp(math.log2(max(length, 1)), np.log2(_LENGTHS), np.arange(len(_LENGTHS)))

    def find_speed(speeds: Mapping[int, Sequence[float]]) -> float:
        return float(np.interp(table_index, np.arange(len(_LENGTHS)), speeds[size]))

    speed = find_speed(_BACKWARD_UNMASKED if is_backward else _FORWARD_UNMASKED)
    if is_masked:
        speed *= find_speed(_FORWARD) / find_speed(_FORWARD_UNMASKED)
    return flops / (speed / _MEASURED_PEAK * hardware.bf16_flops)

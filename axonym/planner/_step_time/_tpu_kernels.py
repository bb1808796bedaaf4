"""How long Pallas kernels take on TPUs, for which compilers have no estimates of cycles.

- Attention takes its operations at half of the peak in bfloat16, which its kernels reach more or less. That is the one
  figure here that is neither published nor the compiler's.
- A `ragged_dot` multiplies tiles, of the sizes that the compiler writes into the program. Each visit of a tile of rows
  reads what has changed since the visit before, in the order of the kernel in JAX's `pallas/ops/tpu/megablox/gmm.py`:
  by tiles of columns, of rows, and of what is summed, of which the last changes fastest.
- Other kernels take what their authors write into `cost_estimate`, at the peak and the bandwidth of the memory.
"""

import math
import re

from .._compiler._compiled_program import CompiledProgram
from .._program import _xla_text as xla
from .._program._hlo_program import HloArray, HloInstruction, parse_arrays


_ATTENTION_PART = 0.5  # of the peak
_FLOATS = ("bf16", "f16", "f32", "f8e4m3fn", "f8e5m2")


def estimate_tpu_kernel(program: CompiledProgram, kernel: HloInstruction) -> tuple[float, float]:
    """Returns how many seconds a Pallas kernel computes outside of attention, and within it."""
    hardware = program.hardware
    if flops := count_attention_flops(kernel):
        return 0.0, flops / (_ATTENTION_PART * hardware.bf16_flops)
    arrays = (*_list_operands(kernel), *kernel.results)
    matrices = [array for array in arrays if len(array.shape) >= 2]
    ranks = [len(array.shape) for array in matrices]
    tiles = xla.RAGGED_DOT_TILES.search(kernel.attributes)
    if tiles and ranks in ([2, 3, 2], [2, 2, 3]):  # others are fused with something
        x, second_operand, result = matrices
        part = _find_expected_part(program, kernel, x.shape[0])
        flops, moved = count_ragged_dot(x, second_operand, result, part, *map(int, tiles.groups()))
    elif costs := xla.COST_ESTIMATE.search(kernel.attributes):
        flops, moved = map(int, costs.groups())
    else:
        flops, moved = 0, sum(array.bytes for array in arrays)
    return max(flops / hardware.bf16_flops, moved / hardware.hbm_bandwidth), 0.0


def count_attention_flops(kernel: HloInstruction) -> float:
    """Returns the floating-point operations of a kernel of attention; 0 for another kernel.

    With queries of Q elements and T keys, each product takes 2 Q T operations. Forward there are two of them: scores
    and averages. Backward there are four: one for each gradient of query, key and value, and one for that of the
    weights. The kernel that gives the gradient of the values has the last; what it recomputes does not count. A kernel
    that reads a mask, of which blocks are skipped, does half of it, as causal attention does.
    """
    operands = _list_operands(kernel)
    arrays = [array for array in operands if array.dtype in _FLOATS and len(array.shape) >= 3]
    if not xla.ATTENTION_KERNEL.search(kernel.name + kernel.op_name) or len(arrays) < 3:
        return 0.0
    query, key = arrays[:2]
    product_flops = 2.0 * math.prod(query.shape) * key.shape[-2]
    is_masked = any(array.dtype not in _FLOATS for array in operands)
    return product_flops * _count_products(kernel) * (0.5 if is_masked else 1.0)


def count_ragged_dot(
    x: HloArray,
    second_operand: HloArray,
    result: HloArray,
    part: float,
    row_tile: int,
    summed_tile: int,
    column_tile: int,
) -> tuple[float, float]:
    """Returns the floating-point operations of a `ragged_dot`, and the bytes that it moves.

    A tile of rows is multiplied once for each group that has some of them. Groups are taken to end within tiles, so
    that there is a tile more for each group but the first. Groups without rows are not visited, but for the gradient of
    their matrices.

    Args:
        x: The rows.
        second_operand: The matrices, or for their gradient, that of the products.
        result: The products, or the gradient of the matrices.
        part: The part of the rows that are of groups on this device.
        row_tile: How many rows a tile has.
        summed_tile: How many elements that are summed over it has.
        column_tile: How many columns it has.
    """
    rows, summed = x.shape
    is_gradient = len(result.shape) == 3
    groups, columns = (result if is_gradient else second_operand).shape[0], result.shape[-1]
    filled_groups = groups if is_gradient else min(groups, math.ceil(part * rows))
    visits = math.ceil(part * rows / row_tile) + filled_groups - 1
    summed_tiles, column_tiles = math.ceil(summed / summed_tile), math.ceil(columns / column_tile)
    flops = 2.0 * visits * row_tile * summed_tiles * summed_tile * column_tiles * column_tile
    if is_gradient:
        return flops, part * (x.bytes * column_tiles + second_operand.bytes * summed_tiles) + result.bytes
    row_reads, matrix_reads = part, filled_groups  # with one tile of what is summed, both stay while their group does
    if summed_tiles > 1:
        row_reads, matrix_reads = visits * row_tile / rows, visits
    moved = row_reads * x.bytes * column_tiles + matrix_reads / groups * second_operand.bytes + part * result.bytes
    return flops, moved


def _find_expected_part(program: CompiledProgram, kernel: HloInstruction, rows: int) -> float:
    """Returns the part of the rows that are of groups on this device, if all groups have equally many.

    Scopes tell it. The compiler drops that of the gradient of the rows, so another product of as many rows tells it.
    """
    pattern = xla.EXPECTED_ROWS.format(rows=rows)
    match = re.search(pattern, kernel.op_name) or re.search(pattern, program.text)
    return int(match[1]) / rows if match else 1.0


def _list_operands(kernel: HloInstruction) -> tuple[HloArray, ...]:
    match = xla.KERNEL_OPERANDS.search(kernel.attributes)
    return parse_arrays(match[1]) if match else ()


def _count_products(kernel: HloInstruction) -> int:
    """Returns how many products a kernel of attention counts for."""
    name = f"{kernel.name} {kernel.op_name.rpartition('/jit(')[2]}"
    if "dkv" in name:  # the gradients that it returns, and that of the weights
        return len(kernel.results) + 1
    if "dq" in name:
        return 1
    return 2

"""The floating-point operations of attention in a compiled program, of which compilers have no good estimate."""

import math
import re

from ._hlo_program import HloArray, HloInstruction, HloProgram, parse_arrays


ATTENTION_SCOPE = "dot_product_attention("  # in the path of scopes of what `nn.dot_product_attention` computes

_OPERANDS = re.compile(r"operand_layout_constraints=\{((?:[^{}]|\{[^{}]*\})*)\}")
_KERNEL_NAMES = re.compile(r"attention|splash|flash|mha")
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([\d,"]*)[}\]]')
_FLOATS = ("bf16", "f16", "f32", "f8e4m3fn", "f8e5m2")
_PRODUCTS = ("dot", "custom-call")


def count_kernel_flops(one: HloInstruction) -> float:
    """Returns the floating-point operations of a Pallas kernel of attention; 0 for another kernel.

    With queries of Q elements and T keys, each product takes 2 Q T operations. Forward there are two of them: scores
    and averages. Backward there are four: one for each gradient of query, key and value, and one for that of the
    weights. The kernel that gives the gradient of the values has the last; what it computes once more is not counted. A
    kernel that reads a mask, of which blocks are skipped, does half of it, as causal attention does.
    """
    operands = list_kernel_operands(one)
    shaped = [array for array in operands if array.dtype in _FLOATS and len(array.shape) >= 3]
    if not _KERNEL_NAMES.search(one.name + one.op_name) or len(shaped) < 3:
        return 0.0
    query, key = shaped[:2]
    is_masked = any(array.dtype not in _FLOATS for array in operands)
    product = 2.0 * math.prod(query.shape) * key.shape[-2]
    return product * _count_products(one, len(key.shape)) * (0.5 if is_masked else 1.0)


def list_kernel_operands(one: HloInstruction) -> tuple[HloArray, ...]:
    """Returns the arrays that a kernel takes."""
    found = _OPERANDS.search(one.rest)
    return parse_arrays(found[1]) if found else ()


def count_product_flops(program: HloProgram, one: HloInstruction) -> float:
    """Returns the floating-point operations of the products in an instruction of a program for GPUs."""
    inside = [other for name in program.find_called(one) for other in program.by_computation[name]]
    return sum(_count_dot_flops(program, other) for other in (one, *inside) if other.opcode in _PRODUCTS)


def _count_products(one: HloInstruction, rank: int) -> int:
    """Returns how many products a kernel counts for, with keys of that rank."""
    name = f"{one.name} {one.op_name.rpartition('/jit(')[2]}"
    if "dkv" in name:
        return sum(len(array.shape) >= rank for array in one.results) + 1  # others hold sums, up to jax 0.10
    return 1 if "dq" in name else 2


def _count_dot_flops(program: HloProgram, one: HloInstruction) -> float:
    contracted, operands = _CONTRACTED.search(one.rest), program.find_operands(one)
    if contracted is None or not operands or not one.results:
        return 0.0
    sizes = operands[0].results[0].shape
    summed = math.prod(sizes[int(at)] for at in re.findall(r"\d+", contracted[1]))
    return 2.0 * math.prod(one.results[0].shape) * summed

"""The products of an instruction of a program for GPUs, and the bytes that it reads and writes."""

import collections
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import _xla_text as xla
from ._hlo_program import HloInstruction, HloProgram


# Opcodes that move no data on their own.
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id")
_SLICES = ("dynamic-slice", "slice", "gather")  # they read as much of their first operand as they give
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # they write their first operand in place: where the update stands


class ProductShape(NamedTuple):
    """The sizes of `batch` products of an array of `rows` x `contracted` with one of `contracted` x `columns`.

    `dtype` is that of the operands, in XLA's words.
    """

    batch: int
    rows: int
    columns: int
    contracted: int
    dtype: str

    @property
    def flops(self) -> float:
        """The floating-point operations."""
        return 2.0 * self.batch * self.rows * self.columns * self.contracted


def find_products(hlo: HloProgram, instruction: HloInstruction) -> list[ProductShape]:
    """Returns the products of an instruction: one of XLA or cuBLAS, a convolution of cuDNN, or those in a fusion."""
    fused = [part for name in hlo.find_called(instruction) for part in hlo.by_computation[name]]
    readers = (_read_product, _read_convolution)
    products = (read_product(hlo, candidate) for candidate in (instruction, *fused) for read_product in readers)
    return [product for product in products if product is not None]


def _read_product(hlo: HloProgram, instruction: HloInstruction) -> ProductShape | None:
    if instruction.opcode != "dot" and xla.CUBLAS_CALL not in instruction.attributes:
        return None
    contracted, operands = xla.CONTRACTED_DIMS.search(instruction.attributes), hlo.find_operands(instruction)
    if contracted is None or len(operands) < 2 or not instruction.results:
        return None
    first, second = (operand.results[0] for operand in operands[:2])
    summed = math.prod(first.shape[int(number.strip('"'))] for number in contracted[1].split(",") if number)
    first_size, second_size, size = (math.prod(array.shape) for array in (first, second, instruction.results[0]))
    if not summed or not size:
        return None
    # With B products of M x K and K x N, the sizes of the three arrays are BMK, BKN and BMN.
    batch = first_size * second_size // (size * summed**2)
    if not batch:
        return None
    return ProductShape(batch, first_size // (batch * summed), second_size // (batch * summed), summed, first.dtype)


def _read_convolution(hlo: HloProgram, instruction: HloInstruction) -> ProductShape | None:
    """Returns the product that a convolution of cuDNN is: of a window around each position with the kernel."""
    direction, kernel_dims = (
        pattern.search(instruction.attributes) for pattern in (xla.CUDNN_CONVOLUTION, xla.KERNEL_DIMS)
    )
    operands = hlo.find_operands(instruction)
    if direction is None or kernel_dims is None or len(operands) < 2 or not instruction.results:
        return None
    first, second, result = operands[0].results[0], operands[1].results[0], instruction.results[0]
    # The kernel, and the result of the forward pass or the gradient of it.
    kernel, output = {"BackwardInput": (second, first), "BackwardFilter": (result, second)}.get(
        direction[1], (second, result)
    )
    features = kernel.shape[kernel_dims[1].index("o")]
    positions, window = math.prod(output.shape) // features, math.prod(kernel.shape) // features
    return ProductShape(1, positions, features, window, first.dtype)


def count_moved_bytes(hlo: HloProgram, instruction: HloInstruction) -> int:
    """Returns the bytes that an instruction reads from memory and writes there.

    Of an array of which it takes slices, or which it updates in place, only these count.
    """
    if instruction.opcode in _FREE:
        return 0
    if not instruction.is_fusion:
        users = {name: [instruction] for name in instruction.operands}
        arrays, written = [*dict.fromkeys(hlo.find_operands(instruction))], [instruction]
    else:
        fused = [inner for name in hlo.find_called(instruction) for inner in hlo.by_computation[name]]
        users = collections.defaultdict(list)
        for inner in fused:
            for name in inner.operands:
                users[name].append(inner)
        arrays = [inner for inner in fused if inner.opcode == "parameter"]
        roots = [hlo.find_root(name) for name in hlo.find_called(instruction)]
        written = [part for root in roots if root is not None for part in _list_elements(hlo, root)]
    read_bytes = sum(_count_read_bytes(array, users) for array in arrays)
    return read_bytes + sum(_count_written_bytes(hlo, part) for part in written)


def _list_elements(hlo: HloProgram, root: HloInstruction) -> Sequence[HloInstruction]:
    return hlo.find_operands(root) if root.opcode == "tuple" else [root]


def _count_read_bytes(array: HloInstruction, users: Mapping[str, Sequence[HloInstruction]]) -> int:
    whole, total = sum(result.bytes for result in array.results), 0
    for user in users.get(array.name, ()):
        is_first = user.operands[:1] == (array.name,)
        if user.opcode == "bitcast":
            total += _count_read_bytes(user, users)
        elif is_first and user.opcode in _SLICES:
            total += sum(result.bytes for result in user.results)
        elif not (is_first and user.opcode in _UPDATES):
            return whole
    return min(total, whole)


def _count_written_bytes(hlo: HloProgram, instruction: HloInstruction) -> int:
    operands = hlo.find_operands(instruction)
    if instruction.opcode == "bitcast" and operands:
        return _count_written_bytes(hlo, operands[0])
    if instruction.opcode == "parameter":  # passed on
        return 0
    if xla.CUBLAS_CALL in instruction.attributes and len(instruction.results) > 1:
        return sum(result.bytes for result in instruction.results[:-1])  # the last one is room to work in
    update_index = _UPDATES.get(instruction.opcode, len(operands))
    if update_index < len(operands):
        instruction = operands[update_index]
    return sum(result.bytes for result in instruction.results)

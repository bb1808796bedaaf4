"""What loops of layers keep for the backward pass, read from a program, with the names that the function gives it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from jax.extend.core import Literal as LiteralValue

from ...report._time_by_layer import is_in_backward_pass, split_op_name
from ._hlo_program import HloInstruction, HloProgram
from ._named_program import list_inner_jaxprs
from ._origin import walk_sources


_WRITE = "dynamic_update_"  # in the names of what writes a slice of an array
_ROUNDING = "/reduce_precision"  # which JAX adds to what is saved by name
# Primitives between what is computed and what is saved.
_ROUNDED = ("reduce_precision", "device_put", "sharding_constraint", "reshard", "convert_element_type")


@dataclass(frozen=True, slots=True)
class SavedActivation:
    """An array that the forward pass of a loop of layers keeps for the backward pass.

    Attributes:
        layer: The scopes of what is saved; empty for the input of a layer.
        operation: The operation whose result it is; empty for the input of a layer.
        dtype: In XLA's words, such as `bf16`.
        shape: Its shape on one device, that of the layers included.
        bytes: Its bytes on one device.
        name: Its name in `tree_checkpoint_name` or `jax.ad_checkpoint.checkpoint_name`; empty if it has none, or if the
            program was lowered before, since only the function tells.
        memory: Where it is: in the memory of the device, of the host, or of the chip, beside the device's.

    Example:
        >>> import axonym as nym
        >>> nym.planner.SavedActivation("Block/up", "dot(embed -> mlp)", "bf16", (4, 32, 512), 131072).bytes
        131072
    """

    layer: str
    operation: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    name: str = ""
    memory: Literal["device", "host", "chip"] = "device"


class SavedName(NamedTuple):
    """A name that a function gives to what a loop saves, the shape of all turns on all devices, and what computes it.

    `primitive` is JAX's name of the last operation, empty for the input of a layer.
    """

    name: str
    shape: tuple[int, ...]
    primitive: str


def find_saved_names(jaxpr: Any) -> tuple[SavedName, ...]:
    """Returns the names of what loops of a traced function give for each turn.

    Args:
        jaxpr: The jaxpr of a function that has been differentiated.
    """
    saved_names: list[SavedName] = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            body = equation.params["jaxpr"]
            for stacked, result in zip(equation.outvars, body.outvars, strict=True):
                name, primitive = _trace_back(body, result)
                is_carry = len(stacked.aval.shape) == len(result.aval.shape)
                if name and not is_carry:
                    saved_names.append(SavedName(name, tuple(stacked.aval.shape), primitive))
        for inner in list_inner_jaxprs(equation):
            saved_names += find_saved_names(inner)
    return tuple(saved_names)


def _trace_back(jaxpr: Any, value: Any) -> tuple[str, str]:
    """Returns the name of a value in a jaxpr, empty for none, and the primitive that computes it."""
    producers = {result: equation for equation in jaxpr.eqns for result in equation.outvars}
    name = ""
    while not isinstance(value, LiteralValue) and (producer := producers.get(value)) is not None:
        index, primitive = producer.outvars.index(value), producer.primitive.name
        if primitive == "name":
            name = name or producer.params["name"]
        elif primitive not in _ROUNDED:
            inner = next(list_inner_jaxprs(producer), None)
            if inner is None or primitive == "scan" or len(inner.outvars) != len(producer.outvars):
                return name, primitive
            inner_name, inner_primitive = _trace_back(inner, inner.outvars[index])
            return name or inner_name, inner_primitive or primitive
        value = producer.invars[index]
    return name, ""


def find_saved_activations(hlo: HloProgram, names: Sequence[SavedName]) -> tuple[tuple[SavedActivation, ...], int]:
    """Returns what loops of layers save, the largest first, and the bytes of the gradients that they collect."""
    saved: list[tuple[SavedActivation, str]] = []
    gradient_bytes = 0
    for write in hlo.instructions:
        if write.opcode != "dynamic-update-slice":
            continue
        is_differentiated = "jvp(" in write.op_name and _WRITE in write.op_name
        # What goes to the host loses its scopes on the way.
        if not (is_differentiated or write.is_on_host) or not _has_slice_per_iteration(hlo, write):
            continue
        if write.is_on_host or not is_in_backward_pass(write.op_name):
            saved.append(_describe_saved(hlo, write))
        elif not write.memory_space:
            gradient_bytes += write.results[0].bytes
    named = sorted(_add_names(saved, names), key=lambda array: (-array.bytes, array.layer, array.operation))
    return tuple(named), gradient_bytes


def _add_names(saved: Sequence[tuple[SavedActivation, str]], names: Sequence[SavedName]) -> list[SavedActivation]:
    """Returns saved activations with names: of the same shape and, if there is such a one, the same last operation."""
    name_by_index: dict[int, str] = {}
    unused = [*names]
    # Names of the same operation first, then any: what goes to the host loses its scopes on the way.
    for needs_same_operation in (True, False):
        for index, (array, primitive) in enumerate(saved):
            if index in name_by_index or not (needs_same_operation or primitive or array.memory == "host"):
                continue
            for name in unused:
                is_same = name.primitive == primitive or not needs_same_operation
                if is_same and _is_shard_of(array.shape, name.shape):
                    unused.remove(name)
                    name_by_index[index] = name.name
                    break
    return [replace(array, name=name_by_index.get(index, "")) for index, (array, _) in enumerate(saved)]


def _has_slice_per_iteration(hlo: HloProgram, write: HloInstruction) -> bool:
    """Returns whether an array has one slice per iteration of its loop; some iterations may run before the loop."""
    iterations = hlo.count_turns(write.computation)
    slices = hlo.find_operands(write)[1].results
    if iterations < 2 or not slices:
        return False
    whole, part = write.results[0].shape, slices[0].shape
    return len(whole) == len(part) and any(
        size == 1 and whole_size >= iterations for whole_size, size in zip(whole, part, strict=True)
    )


def _describe_saved(hlo: HloProgram, write: HloInstruction) -> tuple[SavedActivation, str]:
    """Returns what is written, described by the operation that it is the result of, and JAX's name of that."""
    array, value = write.results[0], hlo.find_operands(write)[1]
    op_names = (source.op_name for source in walk_sources(hlo, [value]))
    op_name = next((name for name in op_names if name and _WRITE not in name and not name.endswith(_ROUNDING)), "")
    memory: Literal["device", "host", "chip"] = "device"
    if write.memory_space:
        memory = "host" if write.is_on_host else "chip"
    layer, operation = split_op_name(op_name)
    activation = SavedActivation(layer, operation, array.dtype, array.shape, array.bytes, memory=memory)
    return activation, op_name.rpartition("/")[2]


def _is_shard_of(part: Sequence[int], whole: Sequence[int]) -> bool:
    return len(part) == len(whole) and all(
        size and whole_size % size == 0 for size, whole_size in zip(part, whole, strict=True)
    )

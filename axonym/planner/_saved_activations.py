"""What loops of layers keep for the backward pass, read from a program, with the names that the function gives it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from jax.extend.core import Literal as LiteralValue

from ..report._op_name import is_in_backward_pass, split_op_name
from ._argument_groups import find_memory_space, is_on_host
from ._hlo_program import HloInstruction, HloProgram
from ._named_program import list_inner_jaxprs
from ._origin import walk_sources


_WRITE = "dynamic_update_"  # in the names of what writes a part of an array
_ROUNDING = "/reduce_precision"  # which JAX adds to what is saved by name
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
    found: list[SavedName] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            body = eqn.params["jaxpr"].jaxpr
            for out, inner in zip(eqn.outvars, body.outvars, strict=True):
                name, primitive = _trace_back(body, inner)
                if name and len(out.aval.shape) > len(inner.aval.shape):  # of all turns, so it is no carry
                    found.append(SavedName(name, tuple(out.aval.shape), primitive))
        for inner in list_inner_jaxprs(eqn):
            found += find_saved_names(inner)
    return tuple(found)


def _trace_back(jaxpr: Any, value: Any) -> tuple[str, str]:
    """Returns the name of a value in a jaxpr, empty for none, and the primitive that computes it."""
    makers = {out: one for one in jaxpr.eqns for out in one.outvars}
    name = ""
    while not isinstance(value, LiteralValue) and (maker := makers.get(value)) is not None:
        at, primitive = maker.outvars.index(value), maker.primitive.name
        inner = next(list_inner_jaxprs(maker), None)
        if primitive == "name":
            name = name or maker.params["name"]
        elif primitive not in _ROUNDED:
            found = ("", primitive)
            if inner is not None and primitive != "scan" and len(inner.outvars) == len(maker.outvars):
                found = _trace_back(inner, inner.outvars[at])
            return name or found[0], found[1] or primitive
        value = maker.invars[at]
    return name, ""


def find_saved_activations(program: HloProgram, names: Sequence[SavedName]) -> tuple[tuple[SavedActivation, ...], int]:
    """Returns what loops of layers save, the largest first, and the bytes of the gradients that they collect."""
    stacked = [*_find_stacked(program)]
    is_gradient = [not is_on_host(one) and is_in_backward_pass(one.op_name) for one in stacked]
    gradients = (one for one, is_one in zip(stacked, is_gradient, strict=True) if is_one)
    saved = [_make_saved(program, one) for one, is_one in zip(stacked, is_gradient, strict=True) if not is_one]
    named = sorted(_add_names(saved, names), key=lambda one: (-one.bytes, one.layer, one.operation))
    return tuple(named), sum(one.results[0].bytes for one in gradients if not find_memory_space(one))


def _add_names(saved: Sequence[tuple[SavedActivation, str]], names: Sequence[SavedName]) -> list[SavedActivation]:
    """Returns saved activations with names: of the same shape and, if there is such a one, the same last operation."""
    found, left = {}, [*names]
    for is_sure in (True, False):
        for at, (one, primitive) in enumerate(saved):
            may_differ = not is_sure and (
                primitive or one.memory == "host"
            )  # on its way to the host it loses its scopes
            same = (
                name
                for name in left
                if at not in found
                and _is_shard_of(one.shape, name.shape)
                and (may_differ or (is_sure and name.primitive == primitive))
            )
            if name := next(same, None):
                left.remove(name)
                found[at] = name.name
    return [replace(one, name=found.get(at, "")) for at, (one, _) in enumerate(saved)]


def _find_stacked(program: HloProgram) -> Iterator[HloInstruction]:
    """Yields the writes of each turn of a differentiated loop into an array with a part for each turn."""
    for one in program.instructions:
        if one.opcode != "dynamic-update-slice":
            continue
        is_saved = "jvp(" in one.op_name and _WRITE in one.op_name
        if (is_saved or is_on_host(one)) and _has_part_for_turns(program, one):
            yield one


def _has_part_for_turns(program: HloProgram, one: HloInstruction) -> bool:
    """Returns whether an array has a part for each turn of the loop that writes it, of which some may run before it."""
    turns = program.count_turns(one.computation)
    written = program.find_operands(one)[1].results
    if turns < 2 or not written:
        return False
    whole, part = one.results[0].shape, written[0].shape
    return len(whole) == len(part) and any(n == 1 and size >= turns for size, n in zip(whole, part, strict=True))


def _make_saved(program: HloProgram, one: HloInstruction) -> tuple[SavedActivation, str]:
    """Returns what is written, described by the operation that it is the result of, and JAX's name of that."""
    array, written = one.results[0], program.find_operands(one)[1]
    op_names = (source.op_name for source in walk_sources(program, [written]))
    op_name = next((name for name in op_names if name and _WRITE not in name and not name.endswith(_ROUNDING)), "")
    memory = "host" if is_on_host(one) else "chip" if find_memory_space(one) else "device"
    activation = SavedActivation(*split_op_name(op_name), array.dtype, array.shape, array.bytes, memory=memory)
    return activation, op_name.rpartition("/")[2]


def _is_shard_of(part: Sequence[int], whole: Sequence[int]) -> bool:
    return len(part) == len(whole) and all(n and size % n == 0 for n, size in zip(part, whole, strict=True))

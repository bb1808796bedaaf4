"""What XLA writes of the memory that it has assigned to a program, before code generation.

The format is XLA's own and private: seen in libtpu 0.0.42 and 0.0.50. Should it change, programs are compiled whole.
"""

import re
from dataclasses import asdict, dataclass

from ._hlo_program import HOST_SPACE


_ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(.*):$", re.MULTILINE)
_NUMBER = re.compile(r", parameter (\d+)")
_COLOR = re.compile(r", color (\d+)")
_HBM = 0  # a color, the number of a memory space in libtpu; those that are neither this nor the host are on the chip


@dataclass(frozen=True, slots=True)
class ProgramMemory:
    """The memory that a compiled program takes on one device, in bytes.

    On TPUs the figures are those of XLA's buffer assignment: `peak_bytes` is what the compiler compares with the memory
    of the device, and what `memory_analysis()` of JAX 0.12 calls `total_allocation_bytes`. On other devices they are
    those of `memory_analysis()`.

    Attributes:
        argument_bytes: The arguments.
        output_bytes: The results, with those that take the place of a donated argument.
        alias_bytes: The results that take the place of a donated argument.
        temp_bytes: What is stored in between, as in activations.
        peak_bytes: All that the program takes at a time.
        host_argument_bytes: The arguments in the memory of the host.
        host_output_bytes: The results in the memory of the host.
        host_temp_bytes: What is stored in the memory of the host in between.
        argument_sizes: The bytes of each argument that the program takes, with what its layout adds, in order; empty if
            not known.

    Example:
        >>> import axonym as nym
        >>> nym.planner.ProgramMemory(argument_bytes=64, output_bytes=32, alias_bytes=32, temp_bytes=8, peak_bytes=72)
        ... # doctest: +ELLIPSIS
        ProgramMemory(argument_bytes=64, output_bytes=32, alias_bytes=32, temp_bytes=8, peak_bytes=72, ...)
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak_bytes: int
    host_argument_bytes: int = 0
    host_output_bytes: int = 0
    host_temp_bytes: int = 0
    argument_sizes: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, int]:
        """Returns the figures by name."""
        return {name: size for name, size in asdict(self).items() if name != "argument_sizes"}


def read_buffer_assignment(text: str) -> ProgramMemory | None:
    """Returns the memory of a program from the dump of its buffer assignment; None if it cannot be read."""
    found: dict[str, int] = {}
    arguments: dict[int, int] = {}
    total = 0
    for size, rest in _ALLOCATION.findall(text):
        color = _COLOR.search(rest)
        space = int(color[1]) if color else _HBM
        if space not in (_HBM, HOST_SPACE):
            continue
        total += int(size) if space == _HBM else 0
        if number := _NUMBER.search(rest):
            arguments[int(number[1])] = int(size)
        for kind in _list_kinds(rest):
            name = f"host_{kind}" if space == HOST_SPACE else kind
            found[name] = found.get(name, 0) + int(size)
    if not total:
        return None
    names = ("argument", "output", "alias", "temp", "host_argument", "host_output", "host_temp")
    figures = {f"{name}_bytes": found.get(name, 0) for name in names}
    sizes = tuple(arguments.get(number, 0) for number in range(max(arguments, default=-1) + 1))
    return ProgramMemory(peak_bytes=total, **figures, argument_sizes=sizes)


def _list_kinds(rest: str) -> list[str]:
    """Returns what an allocation is for, from the rest of its line."""
    is_argument, is_output = ", parameter " in rest, "maybe-live-out" in rest
    return [
        *(["argument"] if is_argument else []),
        *(["output"] if is_output else []),
        *(["alias"] if is_argument and is_output else []),
        *(["temp"] if "preallocated-temp" in rest and not is_argument and not is_output else []),
    ]

"""What XLA writes beside a compiled program: its memory, and warnings of its partitioner."""

from dataclasses import asdict, dataclass

from ...report._time_by_layer import split_op_name
from . import _xla_text as xla
from ._hlo_program import HOST_SPACE, parse_arrays, read_op_name


# A color is the number of a memory space. Colors other than this one and `HOST_SPACE` are of memory on the chip.
_DEVICE_COLOR = 0


@dataclass(frozen=True, slots=True)
class ProgramMemory:
    """The memory that a compiled program takes on one device, in bytes.

    On TPUs the figures are those of XLA's buffer assignment: `peak_bytes` is what the compiler compares with the memory
    of the device, and what `memory_analysis()` of JAX calls `total_allocation_bytes`. On other devices they are
    those of `memory_analysis()`.

    Attributes:
        argument_bytes: The arguments.
        output_bytes: The results, with those that take the place of a donated argument.
        alias_bytes: The results that take the place of a donated argument.
        temp_bytes: Values between arguments and results, such as activations.
        peak_bytes: The most memory that the program takes at any time.
        host_argument_bytes: The arguments in the memory of the host.
        host_output_bytes: The results in the memory of the host.
        host_temp_bytes: Values between arguments and results in the memory of the host.
        argument_sizes: The bytes of each argument that the program takes, in order, with the padding of its layout;
            empty if not known.

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
    sizes = ProgramMemory(0, 0, 0, 0, 0).to_dict()
    argument_sizes: dict[int, int] = {}
    for size_text, attributes in xla.ALLOCATION.findall(text):
        size = int(size_text)
        match = xla.ALLOCATION_COLOR.search(attributes)
        color = int(match[1]) if match else _DEVICE_COLOR
        if color not in (_DEVICE_COLOR, HOST_SPACE):
            continue
        is_on_host = color == HOST_SPACE
        prefix = "host_" if is_on_host else ""
        if not is_on_host:
            sizes["peak_bytes"] += size
        parameter = xla.ALLOCATION_PARAMETER.search(attributes)
        is_output = "maybe-live-out" in attributes
        if parameter:
            argument_sizes[int(parameter[1])] = size
            sizes[f"{prefix}argument_bytes"] += size
        if is_output:
            sizes[f"{prefix}output_bytes"] += size
        if parameter and is_output and not is_on_host:
            sizes["alias_bytes"] += size
        if not parameter and not is_output and "preallocated-temp" in attributes:
            sizes[f"{prefix}temp_bytes"] += size
    if not sizes["peak_bytes"]:
        return None
    arguments = range(max(argument_sizes, default=-1) + 1)
    return ProgramMemory(**sizes, argument_sizes=tuple(argument_sizes.get(argument, 0) for argument in arguments))


@dataclass(frozen=True, slots=True)
class Rematerialization:
    """An array that the compiler replicates and slices again, since it knows no way from one sharding to the other.

    Attributes:
        source: The sharding that it has, in XLA's words.
        target: The sharding that is asked for.
        bytes: The bytes of its shard on a device, before it is replicated.
        layer: The scopes that it is in.
        operation: The operation that asks for it.

    Example:
        >>> import axonym as nym
        >>> nym.planner.Rematerialization("{devices=[8,1]<=[8]}", "{devices=[1,8]<=[8]}", 64, "", "reshape").bytes
        64
    """

    source: str
    target: str
    bytes: int
    layer: str
    operation: str


def read_rematerializations(lines: list[str]) -> tuple[Rematerialization, ...]:
    """Returns the arrays that the partitioner says it has replicated, each once, from the lines of its log."""
    rematerializations: dict[Rematerialization, None] = {}
    for line in lines:
        if match := xla.REMATERIALIZATION.search(line):
            source, target, shape, attributes = match.groups()
            layer, operation = split_op_name(read_op_name(attributes))
            size = sum(array.bytes for array in parse_arrays(shape))
            rematerializations[Rematerialization(source, target, size, layer, operation)] = None
    return tuple(rematerializations)

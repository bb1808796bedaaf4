"""`time_by_layer`: which layers the devices spent their time on, from a trace of JAX's profiler."""

import os
import re
import warnings
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from jax.profiler import ProfileData

from .._ground.formats import format_count
from ._explanation import to_plain
from ._format import check_count
from ._table import Grid, GridPage, GridRow, PrintedReport, format_html_page, format_page


_CONTROL_FLOW = (
    r"while|body|cond|branch_\d+_fun|closed_call|eval_jaxpr|checkpoint|rematted_computation|shard_map"
    r"|rows\(\d+ of \d+\)"  # of `nn.ragged_dot`, for the planner
)
_CONTROL_FLOW_SCOPE = re.compile(_CONTROL_FLOW)
# The path of a `Stacked`, which is outside of its loop and inside: `loss/blocks/while/body/blocks/up`.
_REPEATED_PATH = re.compile(rf"(?<=/)((?:[^/]+/)+?)(?:(?:{_CONTROL_FLOW})/)+\1")
# A transformation around a part of the path: `jvp(Stacked)`.
_TRANSFORM = re.compile(
    r"\b(?:jit|jvp|vmap|transpose|remat|checkpoint|custom_jvp|custom_vjp)\(([^()]*(?:\([^()]*\)[^()]*)*)\)"
)
# Several paths that the compiler has merged: `jit(step)/(up/dot:down/dot)`, or `jit(step)/up/dot;jit(step)/down/dot`
# (jaxlib 0.11). Groups: what they share, the paths.
_MERGED_PATHS = re.compile(r"((?:.*/)?)\((.*)\)")
# The scope of an operation of Axonym, `dot(embed -> mlp)`; its group holds the axes.
AXES_SCOPE = re.compile(r"\w+\(([^()]*)\)")

# Names in the traces of JAX's profiler.
_METADATA_PLANE = b"/host:metadata"
_OPERATIONS, _MODULES = "XLA Ops", "XLA Modules"
_INSTRUCTION_NAME = re.compile(r"%?([\w.-]*)")
_NUMBER_SUFFIX = re.compile(r"(\.\d+)+$")
_PROGRAM_ID = re.compile(r"\(\d+\)$")

_MOST_ROWS = 40
_CONTAINERS = ("while", "call", "conditional")  # the instructions in them are in the trace as well
_COMMUNICATION = re.compile(r"(?<![a-z])all-|reduce-scatter|collective-|^(?:send|recv)\b")
_CUDA_GRAPH = re.compile(r"command_buffer(_\d+)?")  # of its kernels a trace of GPUs has no instruction but this
_WITHOUT_GRAPHS = "--xla_gpu_enable_command_buffer="
_COMPILED_CALL = re.compile(r"(?<=/)jit\([^()]*\)/")  # of functions that JAX itself compiles, such as `jnp.where`


def is_in_backward_pass(op_name: str) -> bool:
    """Returns whether a path of scopes belongs to a backward pass."""
    return "transpose(" in op_name


def split_op_name(op_name: str) -> tuple[str, str]:
    """Returns the layer and the operation that a path of scopes names.

    Example: `jit(step)/jvp(Stacked)/while/body/closed_call/Stacked/up/dot(embed -> mlp)/dot_general` is `Stacked/up`
    and `dot(embed -> mlp)`.
    """
    path, previous = op_name, ""  # transformations may be nested: `jvp(vmap(Linear))`
    while path != previous:
        previous, path = path, _TRANSFORM.sub(r"\1", path)
    path = _REPEATED_PATH.sub(r"\1", path)
    merged = _MERGED_PATHS.fullmatch(path)
    if merged:
        branches = [merged[1] + branch for branch in merged[2].split(":")]
    else:
        branches = path.split(";")
    if merged or len(branches) > 1:
        pairs = [split_op_name(branch) for branch in branches]
        layers = dict.fromkeys(layer for layer, _ in pairs if layer)
        operations = dict.fromkeys(operation for _, operation in pairs if operation)
        return " + ".join(layers), " + ".join(operations)
    scopes = [scope for scope in path.split("/")[1:] if scope and not _CONTROL_FLOW_SCOPE.fullmatch(scope)]
    if not scopes:
        return "", ""
    # What follows an operation of Axonym is JAX's name for a part of it.
    end = next((index for index, scope in enumerate(scopes) if AXES_SCOPE.fullmatch(scope)), len(scopes) - 1)
    layers = scopes[:end]
    while layers and layers[0] in layers[1:]:  # the transformation of a loop and the loop's body both name the layer
        layers = layers[layers.index(layers[0], 1) :]
    return "/".join(layers), scopes[end]


class Instruction(NamedTuple):
    """An instruction of a program: its kind in XLA's words, and its path of scopes, which may be empty."""

    opcode: str
    op_name: str


class InstructionRun(NamedTuple):
    """One run of an instruction on a device."""

    device: str
    program: str
    name: str
    seconds: float
    instruction: Instruction


Program: TypeAlias = Mapping[str, Instruction]


def read_trace_file(file: Path) -> list[InstructionRun]:
    """Returns every run of an instruction in a file, on all devices of its host."""
    content = file.read_bytes()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "builtin type .* has no __module__", DeprecationWarning)  # of ProfileData
        try:
            planes = ProfileData.from_serialized_xspace(content).planes
        except RuntimeError:
            raise ValueError(f"{str(file)!r} is not a trace of `jax.profiler.trace`, or only a part of one") from None
        programs = _read_programs(content)
        return [run for plane in planes for run in _read_plane(plane, file.name, programs)]


def _read_plane(plane: Any, host: str, programs: Mapping[str, Program]) -> Iterator[InstructionRun]:
    """Yields the runs of instructions on a device, or on all devices that are threads of a host.

    CPUs and GPUs state instruction and program with each event. A TPU has a line on which each event is an instruction,
    and another one for the programs; the rest of its lines show the same time again.
    """
    lines = {line.name: line for line in plane.lines}
    if _OPERATIONS in lines:
        find_program = _make_program_finder(lines.get(_MODULES))
        for event in lines[_OPERATIONS].events:
            name = _INSTRUCTION_NAME.match(event.name)[1]  # pyright: ignore[reportOptionalSubscript]
            yield _make_run(f"{host} {plane.name}", find_program(event.start_ns), name, event, programs)
        return
    for line in plane.lines:
        for event in line.events:
            stats = dict(event.stats)
            if "hlo_op" in stats:
                name = str(stats["hlo_op"]).rpartition("::")[2]  # after the instructions that contain it
                program = f"{stats.get('hlo_module')}({stats.get('program_id')})"
                device = f"{host} {plane.name} {stats.get('device_ordinal', '')}"
                yield _make_run(device, program, name, event, programs)


def _make_run(device: str, program: str, name: str, event: Any, programs: Mapping[str, Program]) -> InstructionRun:
    module = _PROGRAM_ID.sub("", program)
    instructions = programs.get(program) or programs.get(module) or {}
    instruction = instructions.get(name) or Instruction(_NUMBER_SUFFIX.sub("", name), "")
    return InstructionRun(device, module, name, event.duration_ns / 1e9, instruction)


def _make_program_finder(line: Any) -> Callable[[float], str]:
    """Returns a function that gives the program running at a time, from the line with the programs of a device."""
    events = sorted(((event.start_ns, event.name) for event in line.events) if line else ())
    starts = [start for start, _ in events]

    def find_program(time: float) -> str:
        index = bisect_right(starts, time) - 1
        return events[index][1] if index >= 0 else ""

    return find_program


def _read_programs(content: bytes) -> dict[str, Program]:
    """Returns the instructions of each program, under its name with its number, `jit_step(7)`, and under `jit_step`.

    `ProfileData` leaves out the metadata of planes, so they are read from the protocol buffers. The numbers are those
    of the fields in XLA's `xplane.proto` and `hlo.proto`.
    """
    programs: dict[str, Program] = {}
    for plane in _find_fields(memoryview(content), 1):  # XSpace.planes
        if [bytes(name) for name in _find_fields(plane, 2)] != [_METADATA_PLANE]:
            continue
        for entry in _find_fields(plane, 4):  # XPlane.event_metadata, a map of which 2 is the value
            for metadata in _find_fields(entry, 2):
                name = _get_text(metadata, 2)
                # XEventMetadata.stats and XStat.bytes_value: a serialized HloProto
                hlo = [blob for stat in _find_fields(metadata, 5) for blob in _find_fields(stat, 6)]
                if hlo:
                    programs[name] = programs[_PROGRAM_ID.sub("", name)] = _read_program(hlo[0])
    return programs


def _read_program(hlo: memoryview) -> Program:
    program: dict[str, Instruction] = {}
    for module in _find_fields(hlo, 1):  # HloProto.hlo_module
        for computation in _find_fields(module, 3):  # HloModuleProto.computations
            for instruction in _find_fields(computation, 2):  # HloComputationProto.instructions
                op_names = [_get_text(metadata, 2) for metadata in _find_fields(instruction, 7)]
                name, opcode = _get_text(instruction, 1), _get_text(instruction, 2)
                program[name] = Instruction(opcode, op_names[0] if op_names else "")
    return program


def _get_text(message: memoryview, number: int) -> str:
    return "".join(bytes(text).decode() for text in _find_fields(message, number))


def _find_fields(message: memoryview, number: int) -> Sequence[memoryview]:
    """Returns the values of a field of a serialized protocol buffer: texts, bytes and inner messages."""
    values, position = [], 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        wire_type = tag & 7
        if wire_type == 0:  # an integer of variable length
            _, position = _read_varint(message, position)
        elif wire_type == 2:  # a length and as many bytes
            length, position = _read_varint(message, position)
            if tag >> 3 == number:
                values.append(message[position : position + length])
            position += length
        else:
            position += 8 if wire_type == 1 else 4  # a number of 64 or of 32 bits
    return values


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift  # seven bits of the number; the eighth one says that more follow
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


@dataclass(frozen=True, slots=True)
class LayerTime:
    """The time that devices spent on a layer, added up over devices, runs, and the forward and the backward pass.

    Attributes:
        layer: The path of the layer, as in `blocks/up`; several that the compiler computes together are joined by
            ` + `. Empty for what the compiler adds outside of layers.
        computing: Seconds of computing.
        communication: Seconds of exchanges between devices, and of waiting for the other devices in them.
        share: The seconds of both as a share of those of all layers.
        runs: How often instructions of the layer ran.

    Example:
        >>> from axonym.report import LayerTime
        >>> LayerTime("blocks/up", computing=0.25, communication=0.5, share=0.1, runs=16).seconds
        0.75
    """

    layer: str
    computing: float
    communication: float
    share: float
    runs: int

    @property
    def seconds(self) -> float:
        """The seconds of computing and communication."""
        return self.computing + self.communication


@dataclass(frozen=True, repr=False)
class TimeByLayer(PrintedReport):
    """The time that devices spent on each layer: printed, a table; in a notebook, one as HTML.

    Attributes:
        layers: The time of each layer, the longest first.
        devices: The number of devices in the trace.
        programs: The names of the compiled programs that ran.
        in_graphs: Seconds of computing in CUDA graphs, for which a trace of GPUs does not say what each kernel belongs
            to. They are part of the layer without a name.

    Example:
        >>> from axonym.report import LayerTime, TimeByLayer
        >>> up = LayerTime("blocks/up", computing=0.25, communication=0.5, share=0.75, runs=16)
        >>> down = LayerTime("blocks/down", computing=0.25, communication=0.0, share=0.25, runs=16)
        >>> print(TimeByLayer((up, down), devices=8, programs=("jit_step",)))
        1,000.00 ms of 8 devices in jit_step: computing 500.00 ms, communication 500.00 ms
        <BLANKLINE>
        layer        computing ms  communication ms  share  runs
        --------------------------------------------------------
        blocks/up          250.00            500.00  75.0%    16
        blocks/down        250.00              0.00  25.0%    16
    """

    layers: tuple[LayerTime, ...]
    devices: int
    programs: tuple[str, ...]
    in_graphs: float = 0.0

    @property
    def computing(self) -> float:
        """The seconds of computing, added up over devices."""
        return sum(time.computing for time in self.layers)

    @property
    def communication(self) -> float:
        """The seconds of exchanges between devices and of waiting for others in them, added up over devices."""
        return sum(time.communication for time in self.layers)

    @property
    def seconds(self) -> float:
        """The seconds of computing and communication."""
        return self.computing + self.communication

    def table(self, limit: int | None = _MOST_ROWS) -> str:
        """Returns the table as text, at most 120 columns wide.

        Args:
            limit: How many layers to show; all of them if None. The totals are always of all layers.

        Raises:
            TypeError: If the limit is not an integer.
            ValueError: If the limit is negative.
        """
        if limit is not None:
            check_count("limit", limit, "the number of layers to show, or None for all")
        return format_page(self._make_page(limit))

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as dictionaries, lists, strings and numbers, for tests and for files."""
        totals = {"seconds": self.seconds, "computing": self.computing, "communication": self.communication}
        return {**to_plain(self), **totals}

    def _repr_html_(self) -> str:
        return format_html_page(self._make_page(_MOST_ROWS))

    def _make_page(self, limit: int | None) -> GridPage:
        heads = ("layer", "computing ms", "communication ms", "share", "runs")
        rows = [
            GridRow((
                time.layer or "(no layer)",
                _format_milliseconds(time.computing),
                _format_milliseconds(time.communication),
                f"{time.share:.1%}",
                f"{time.runs:,}",
            ))
            for time in self.layers[:limit]
        ]  # fmt: skip
        title = (
            f"{_format_milliseconds(self.seconds)} ms of {format_count(self.devices, 'device')} in "
            f"{', '.join(self.programs)}: computing {_format_milliseconds(self.computing)} ms, communication "
            f"{_format_milliseconds(self.communication)} ms"
        )
        hidden_count = len(self.layers) - len(rows)
        notes = [f"… {hidden_count} more; `.table(limit=None)` shows all"] if hidden_count > 0 else []
        if self.in_graphs:
            notes.append(
                f"{_format_milliseconds(self.in_graphs)} ms ran in CUDA graphs, of which the trace has no layers; set "
                f"`XLA_FLAGS={_WITHOUT_GRAPHS}` to trace without them"
            )
        return GridPage(title, [Grid("", heads, rows, texts=("layer",))], notes)


def time_by_layer(trace_folder: str | os.PathLike[str]) -> TimeByLayer:
    """Adds up the time that devices spent on each layer, from what `jax.profiler.trace` has recorded.

    Layers of `axonym.nn` have their paths in a model as names, and so does what `axonym.named_call` decorates. A trace
    of CPUs, GPUs or TPUs is read, of all hosts whose files are in the folder. Run the function once before the trace,
    so that it is compiled, and wait for its results within.

    Args:
        trace_folder: The folder that was passed to `jax.profiler.trace`, whose latest trace is read, or the file of a
            trace, `*.xplane.pb`.

    Returns:
        The time of each layer, as a `TimeByLayer`.

    Raises:
        TypeError: If the folder is not a path.
        FileNotFoundError: If there is no such folder, or it has no trace.
        ValueError: If no compiled program ran during the trace, or a file is not a trace.

    Example:
        >>> import axonym as nym
        >>> import jax, tempfile
        >>> Embed, Mlp = nym.make_axes(embed=64, mlp=256)
        >>> model = {"up": nym.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))}
        >>> step = nym.named_jit(lambda model, x: model["up"](x))
        >>> y = jax.block_until_ready(step(model, nym.ones(Embed)))
        >>> folder = tempfile.mkdtemp()
        >>> with jax.profiler.trace(folder):
        ...     y = jax.block_until_ready(step(model, nym.ones(Embed)))
        >>> times = nym.report.time_by_layer(folder)
        >>> [time.layer for time in times.layers if time.layer], times.communication
        (['up'], 0.0)
    """
    runs = [run for file in _find_trace_files(trace_folder) for run in read_trace_file(file)]
    if not runs:
        raise ValueError(
            f"no compiled program ran during the trace in {os.fspath(trace_folder)!r}; call it within "
            "`with jax.profiler.trace(folder):`, and wait there for its results with `jax.block_until_ready`"
        )
    return _add_up_runs(runs)


def _find_trace_files(folder: str | os.PathLike[str]) -> list[Path]:
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(
            f"`time_by_layer` takes the folder of a trace, as `jax.profiler.trace` does, not a {type(folder).__name__}."
        )
    path = Path(folder)
    if not path.exists():
        raise FileNotFoundError(f"there is no folder {str(path)!r}; pass the one that `jax.profiler.trace` was given")
    files = [path] if path.is_file() else sorted(path.rglob("*.xplane.pb"))
    if not files:
        raise FileNotFoundError(
            f"the folder {str(path)!r} has no trace, which is a file *.xplane.pb; record one with "
            f"`with jax.profiler.trace({str(path)!r}):`"
        )
    # Folders of traces are named by time, and the latest trace has a file for each host.
    return [file for file in files if file.parent == files[-1].parent]


def _add_up_runs(runs: Sequence[InstructionRun]) -> TimeByLayer:
    computing: dict[str, float] = defaultdict(float)
    communication: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    in_graphs = 0.0
    for run in runs:
        if run.instruction.opcode in _CONTAINERS:
            continue
        if _CUDA_GRAPH.fullmatch(run.name):
            in_graphs += run.seconds
        layers, _ = split_op_name(_COMPILED_CALL.sub("", run.instruction.op_name))
        layer = " + ".join(dict.fromkeys(map(_merge_repetitions, layers.split(" + "))))
        is_communication = _COMMUNICATION.search(run.instruction.opcode) or _COMMUNICATION.search(run.name)
        if is_communication:
            communication[layer] += run.seconds
        else:
            computing[layer] += run.seconds
        counts[layer] += 1
    seconds = {layer: computing[layer] + communication[layer] for layer in counts}
    total = sum(seconds.values()) or 1.0  # a clock may be too coarse for a small program
    times = [
        LayerTime(layer, computing[layer], communication[layer], seconds[layer] / total, counts[layer])
        for layer in seconds
    ]
    return TimeByLayer(
        tuple(sorted(times, key=lambda time: -time.seconds)),
        devices=len({run.device for run in runs}),
        programs=tuple(sorted({run.program for run in runs})),
        in_graphs=in_graphs,
    )


def _merge_repetitions(layer: str) -> str:
    """Removes repeated scopes from a path: a loop and its body may both have the scopes of a layer."""
    parts = layer.split("/")
    for length in range(len(parts) // 2, 0, -1):
        for start in range(len(parts) - 2 * length, -1, -1):
            middle = start + length
            if parts[start:middle] == parts[middle : middle + length]:
                del parts[start:middle]
    return "/".join(parts)


def _format_milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"

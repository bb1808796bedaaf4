"""Reads what devices did from the files of `jax.profiler.trace`: each instruction, its time, and its path of scopes.

`jax.profiler.ProfileData` reads the events. The programs are stored in the same files, as the metadata of a plane of
the host, which it does not show; their few fields are read here. Field numbers are those of `xplane.proto` and
`hlo.proto` of XLA, seen in jax 0.10.2 and 0.12.0.1. Should they change, instructions have no layer.
"""

import re
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from jax.profiler import ProfileData


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

_METADATA_PLANE = b"/host:metadata"
_OPERATIONS, _MODULES = "XLA Ops", "XLA Modules"
_INSTRUCTION_NAME = re.compile(r"%?([\w.-]*)")
_NUMBER = re.compile(r"(\.\d+)+$")
_PROGRAM_ID = re.compile(r"\(\d+\)$")


def list_trace_files(folder: Path) -> list[Path]:
    """Returns the files of the latest trace in a folder: one for each host."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.xplane.pb"))
    return [file for file in files if file.parent == files[-1].parent]  # folders of traces are named by time


def read_trace_file(file: Path) -> list[InstructionRun]:
    """Returns each run of an instruction that a file has, on all devices of its host."""
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
    instruction = instructions.get(name) or Instruction(_NUMBER.sub("", name), "")
    return InstructionRun(device, module, name, event.duration_ns / 1e9, instruction)


def _make_program_finder(line: Any) -> Callable[[float], str]:
    """Returns a function from a time to the program that a device was running, by its line of programs."""
    events = sorted(((event.start_ns, event.name) for event in line.events) if line else ())
    starts = [start for start, _ in events]

    def find_program(time: float) -> str:
        index = bisect_right(starts, time) - 1
        return events[index][1] if index >= 0 else ""

    return find_program


def _read_programs(content: bytes) -> dict[str, Program]:
    """Returns the instructions of each program, which is named as in `jit_step(7)`, and also without the number."""
    programs: dict[str, Program] = {}
    for plane in _find_fields(memoryview(content), 1):
        if [bytes(name) for name in _find_fields(plane, 2)] != [_METADATA_PLANE]:
            continue
        for entry in _find_fields(plane, 4):
            for metadata in _find_fields(entry, 2):
                name = _get_text(metadata, 2)
                hlo = [blob for stat in _find_fields(metadata, 5) for blob in _find_fields(stat, 6)]
                if hlo:
                    programs[name] = programs[_PROGRAM_ID.sub("", name)] = _read_program(hlo[0])
    return programs


def _read_program(hlo: memoryview) -> Program:
    program: dict[str, Instruction] = {}
    for module in _find_fields(hlo, 1):
        for computation in _find_fields(module, 3):
            for instruction in _find_fields(computation, 2):
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
        kind = tag & 7
        if kind == 0:
            _, position = _read_varint(message, position)
        elif kind == 2:
            length, position = _read_varint(message, position)
            if tag >> 3 == number:
                values.append(message[position : position + length])
            position += length
        else:
            position += 8 if kind == 1 else 4
    return values


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position

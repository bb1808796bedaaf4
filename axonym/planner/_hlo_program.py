"""The text of a program that XLA has optimized: its computations, their instructions, and how often each of them runs.

The format is XLA's own and private. Seen in jaxlib 0.10.2 and 0.12.0 for CPUs, in libtpu 0.0.50 for TPUs and in
jax-cuda12-plugin 0.10.2 for GPUs. What cannot be read is counted once (a loop) or left out (a source line).
"""

import collections
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple


HOST_SPACE = 5  # the number of the memory of the host in layouts, as in `f32[8]{0:T(128)S(5)}`

_BITS = {
    **{"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64},
    **{"u64": 64, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128, "s2": 2, "u2": 2},
    **{"f4e2m1fn": 4, "f8e8m0fnu": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e4m3b11fnuz": 8},
    **{"f8e3m4": 8, "f8e5m2": 8, "f8e5m2fnuz": 8},
}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*)?\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_CALLED = re.compile(
    r"\b(calls|body|condition|to_apply|branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_LAYOUT = re.compile(r"\{[^{}]*\}|/\*.*?\*/")
_OPERAND = re.compile(r"%([\w.\-#]+)")
_ELEMENT = re.compile(r"%([\w.\-]+)#(\d+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CHANNEL = re.compile(r"channel_id=(\d+)")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_ENTRY = re.compile(r"^(\d+) (.*)$")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


class HloArray(NamedTuple):
    """An array in a program: its dtype in XLA's words, such as `bf16`, and its shape on one device."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The bytes of it on one device; 0 for tokens and other values without data."""
        return -(-_BITS.get(self.dtype, 0) * math.prod(self.shape) // 8)


class HloInstruction(NamedTuple):
    """An instruction: the computation it is in, its name, its results on one device, its opcode, and all after that.

    `shape` is the text of the result, which may be a nested tuple; `rest` has operands, attributes and metadata.
    """

    computation: str
    name: str
    shape: str
    opcode: str
    rest: str

    @property
    def results(self) -> tuple[HloArray, ...]:
        """The arrays that it gives, those of nested tuples in order."""
        return parse_arrays(self.shape)

    @property
    def op_name(self) -> str:
        """The path of scopes and transformations of JAX that it comes from; empty if the program does not say."""
        return read_op_name(self.rest)

    @property
    def channel(self) -> str:
        """The number that the places in which one collective is written have in common; empty if it has none."""
        found = _CHANNEL.search(self.rest)
        return found[1] if found else ""

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the instructions whose results it takes."""
        return tuple(_OPERAND.findall(self.rest.partition(")")[0]))


class HloProgram:
    """An optimized program.

    Args:
        text: What `compiled.as_text()` gives.

    Attributes:
        instructions: All of them, in the order of the text.
        entry: The name of the computation that the program starts with.
    """

    def __init__(self, text: str) -> None:
        self.instructions: list[HloInstruction] = []
        self.entry = ""
        self._roots: dict[str, HloInstruction] = {}
        self._tables: dict[str, dict[int, str]] = {table: {} for table in _TABLES}
        computation, table = "", ""
        shapes: dict[tuple[str, str], str] = {}
        text = text.replace('{\n"', '{"').replace('"\n}}', '"}}')  # kernels have attributes of several lines
        for line in text.splitlines():
            if found := _COMPUTATION.match(line):
                computation, table = found[2], ""
                self.entry = computation if found[1] else self.entry
            elif computation and (found := _INSTRUCTION.match(line)):
                one = HloInstruction(computation, *found.group(2, 3, 4, 5))
                self.instructions += [*self._list_elements(one, shapes), one]
                shapes[computation, one.name] = one.shape
                if found[1]:
                    self._roots[computation] = self.instructions[-1]
            elif line in _TABLES:
                table = line
            elif table and (found := _ENTRY.match(line)):
                self._tables[table][int(found[1])] = found[2]
        self._calls = self._find_calls()
        self._runs: dict[str, int] = {}

    @functools.cached_property
    def by_computation(self) -> Mapping[str, Sequence[HloInstruction]]:
        """The instructions of each computation."""
        found = collections.defaultdict(list)
        for one in self.instructions:
            found[one.computation].append(one)
        return found

    def count_runs(self, computation: str) -> int:
        """Returns how often a computation runs; loops of unknown length count as one turn, branches as taken."""
        if computation not in self._runs:
            calls = self.find_calls(computation)
            turns = [self.count_trips(one) if self.find_body(one) == computation else 1 for one in calls]
            runs = [n * self.count_runs(one.computation) for n, one in zip(turns, calls, strict=True)]
            self._runs[computation] = sum(runs) if calls else 1
        return self._runs[computation]

    def count_turns(self, computation: str) -> int:
        """Returns how many turns the innermost loop has that a computation is in; 1 if it is in none."""
        call = next(iter(self.find_calls(computation)), None)
        if call is None:
            return 1
        return self.count_trips(call) if self.find_body(call) == computation else self.count_turns(call.computation)

    def count_trips(self, loop: HloInstruction) -> int:
        """Returns how often a loop runs: as the program says, or from what it counts, as programs for TPUs need it."""
        if known := _TRIPS.search(loop.rest):
            return int(known[1])
        condition = dict(_CALLED.findall(loop.rest)).get("condition", "").strip("%")
        root = self._roots.get(condition)
        if root is None or root.opcode != "compare" or not re.search(r"direction=L[TE]", root.rest):
            return 1
        counter, limit = self._find_source(condition, root.operands[0]), self._read_number(condition, root.operands[1])
        if counter is None or counter.opcode != "get-tuple-element" or limit is None:
            return 1
        index = int(re.findall(r"index=(\d+)", counter.rest)[0])
        step = self._read_step(loop, index)
        turns = limit - self._read_initial(loop, index) + ("direction=LE" in root.rest)
        return max(-(-turns // step), 0) if step > 0 else 1

    def find_operands(self, one: HloInstruction) -> list[HloInstruction]:
        """Returns the instructions whose results an instruction takes."""
        found = (self._find(one.computation, name) for name in one.operands)
        return [operand for operand in found if operand is not None]

    def find_called(self, one: HloInstruction) -> list[str]:
        """Returns the computations that an instruction calls."""
        found = (name for _, names in _CALLED.findall(one.rest) for name in re.findall(r"[\w.\-]+", names))
        return [name for name in found if name in self.by_computation]

    def find_body(self, loop: HloInstruction) -> str:
        """Returns the computation of a turn of a loop."""
        return dict(_CALLED.findall(loop.rest)).get("body", "").strip("%")

    def find_calls(self, computation: str) -> list[HloInstruction]:
        """Returns the instructions that call a computation."""
        return self._calls.get(computation, [])

    def find_frames(self, one: HloInstruction) -> list[tuple[str, int]]:
        """Returns file and line of each call that led to an instruction, the innermost first."""
        if found := _SOURCE.search(one.rest):
            return [(found[1], int(found[2]))]
        found = _FRAME.search(one.rest)
        frames, frame = [], int(found[1]) if found else 0
        while frame in self._frames:
            file, line, parent = self._frames[frame]
            frames.append((file, line))
            frame = parent if parent < frame else 0
        return frames

    @functools.cached_property
    def _frames(self) -> Mapping[int, tuple[str, int, int]]:
        """The file, the line and the caller of each frame; read once, since timelines look up each instruction."""
        stack, locations, files = (self._tables[name] for name in ("StackFrames", "FileLocations", "FileNames"))
        offset = _read_field(stack.get(1, ""), "parent_frame_id")  # 1 where identities are written with 1 added
        frames: dict[int, tuple[str, int, int]] = {}
        for frame, text in stack.items():
            location = locations.get(_read_field(text, "file_location_id"), "")
            file = files.get(_read_field(location, "file_name_id"), "").strip('"')
            frames[frame] = file, _read_field(location, "line"), _read_field(text, "parent_frame_id") - offset
        return frames

    def _list_elements(self, one: HloInstruction, shapes: dict[tuple[str, str], str]) -> Iterator[HloInstruction]:
        """Yields an instruction for each element of a tuple that is an operand, as `%loop#2` of libtpu 0.0.50."""
        for name, index in _ELEMENT.findall(one.rest.partition(")")[0]):
            key, parts = (one.computation, f"{name}#{index}"), split_tuple(shapes.get((one.computation, name), ""))
            if key not in shapes and int(index) < len(parts):
                shapes[key] = parts[int(index)]
                yield HloInstruction(*key, parts[int(index)], "get-tuple-element", f"%{name}), index={index}")

    def _find_calls(self) -> dict[str, list[HloInstruction]]:
        calls = collections.defaultdict(list)
        for one in self.instructions:
            if one.opcode not in ("async-update", "async-done"):  # which name what the start has called
                for _, names in _CALLED.findall(one.rest):
                    for name in re.findall(r"[\w.\-]+", names):
                        calls[name].append(one)
        return dict(calls)

    def _read_initial(self, loop: HloInstruction, index: int) -> int:
        """Returns the number with which a part of a loop's tuple starts; 0, as in JAX's own loops, if unknown."""
        given = self._find(loop.computation, loop.operands[0])
        parts = given.operands if given is not None and given.opcode == "tuple" else ()
        return (self._read_number(loop.computation, parts[index]) if index < len(parts) else None) or 0

    def _read_step(self, loop: HloInstruction, index: int) -> int:
        """Returns the constant that a turn of a loop adds to a part of its tuple; 0 if it does something else to it."""
        body = self.find_body(loop)
        root = self._roots.get(body)
        given = root.operands if root is not None and root.opcode == "tuple" else ()
        new = self._find_source(body, given[index]) if index < len(given) else None
        if new is None or new.opcode != "add":
            return 0
        numbers = [self._read_number(body, name) for name in new.operands]
        olds = [self._find_source(body, name) for name in new.operands]
        is_kept = any(old is not None and re.search(rf"\bindex={index}\b", old.rest) for old in olds)
        return next((number for number in numbers if number is not None), 0) if is_kept else 0

    def _read_number(self, computation: str, name: str) -> int | None:
        """Returns the constant that an instruction is or copies; None if it is not one."""
        one = self._find_source(computation, name)
        found = re.match(r"(-?\d+)\)", one.rest) if one is not None and one.opcode == "constant" else None
        return int(found[1]) if found else None

    def _find_source(self, computation: str, name: str) -> HloInstruction | None:
        """Returns the instruction of a name, or what it copies."""
        one = self._find(computation, name)
        is_copy = one is not None and one.opcode in ("copy", "bitcast", "convert")
        return self._find_source(computation, one.operands[0]) if one is not None and is_copy else one

    def _find(self, computation: str, name: str) -> HloInstruction | None:
        return self._by_name.get((computation, name))

    @functools.cached_property
    def _by_name(self) -> dict[tuple[str, str], HloInstruction]:
        return {(one.computation, one.name): one for one in self.instructions}


def read_op_name(attributes: str) -> str:
    """Returns the path of scopes in the text of an instruction's attributes; empty if it is not there."""
    found = _OP_NAME.search(attributes)
    return found[1] if found else ""


def parse_arrays(text: str) -> tuple[HloArray, ...]:
    """Returns the arrays in the text of a shape; layouts are left out."""
    while text != (text := _LAYOUT.sub("", text)):
        pass
    return tuple(
        HloArray(dtype, tuple(map(int, sizes.split(","))) if sizes else ()) for dtype, sizes in _ARRAY.findall(text)
    )


def split_tuple(text: str) -> list[str]:
    """Returns the parts of the text of a tuple at its own level; the text itself if it is not a tuple."""
    if not text.startswith("("):
        return [text]
    parts, depth, start = [], 0, 1
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if (letter == "," and depth == 1) or depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
            if depth == 0:
                break
    return [part for part in parts if part]


def _read_field(text: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", text)
    return int(found[1]) if found else 0

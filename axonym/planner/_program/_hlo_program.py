"""The text of an optimized program: its computations, their instructions, and how often each of them runs."""

import collections
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from . import _xla_text as xla


HOST_SPACE = 5  # the number of the memory of the host in layouts, as in `f32[8]{0:T(128)S(5)}`
_BITS = {  # of an element, by XLA's name of its dtype
    **{"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64},
    **{"u64": 64, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128, "s2": 2, "u2": 2},
    **{"f4e2m1fn": 4, "f8e8m0fnu": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e4m3b11fnuz": 8},
    **{"f8e3m4": 8, "f8e5m2": 8, "f8e5m2fnuz": 8},
}


class HloArray(NamedTuple):
    """An array in a program: its dtype in XLA's words, such as `bf16`, and its shape on one device."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The bytes of it on one device; 0 for tokens and other values without data."""
        return -(-_BITS.get(self.dtype, 0) * math.prod(self.shape) // 8)


class HloInstruction(NamedTuple):
    """An instruction of a program.

    Attributes:
        computation: The computation that it is in.
        name: Its name, which is unique in the computation.
        shape: The text of its result on one device, which may be a nested tuple.
        opcode: What it does, in XLA's words.
        attributes: The text after the opcode: its operands, attributes and metadata.
    """

    computation: str
    name: str
    shape: str
    opcode: str
    attributes: str

    @property
    def results(self) -> tuple[HloArray, ...]:
        """The arrays that it gives, those of nested tuples in order."""
        return parse_arrays(self.shape)

    @property
    def op_name(self) -> str:
        """The path of scopes and transformations of JAX that it comes from; empty if the program does not say."""
        return read_op_name(self.attributes)

    @property
    def channel(self) -> str:
        """What the places in which one collective is written have in common; empty if the program does not say."""
        channel, chain = xla.CHANNEL.search(self.attributes), xla.CHAIN.search(self.attributes)
        if channel is None:
            return ""
        return channel[1] if chain is None else f"{channel[1]}, chain {chain[1]}"

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the instructions whose results it takes."""
        return tuple(xla.OPERAND.findall(self.attributes.partition(")")[0]))

    @property
    def is_fusion(self) -> bool:
        """Whether it computes several instructions at once; XLA for GPUs starts some of these and ends them later."""
        return self.opcode in ("fusion", "fusion-start")

    @property
    def parameter_number(self) -> int:
        """Of a parameter, its place among the arguments of the computation."""
        return int(self.attributes.partition(")")[0])

    @property
    def memory_space(self) -> int:
        """The number of the memory that its result is in: 0 for that of the device."""
        match = xla.MEMORY_SPACE.search(self.shape)
        return int(match[1]) if match else 0

    @property
    def is_on_host(self) -> bool:
        """Whether its result is in the memory of the host."""
        return self.memory_space == HOST_SPACE


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
        self._tables: dict[str, dict[int, str]] = {table: {} for table in xla.SOURCE_TABLES}
        self._runs: dict[str, int] = {}
        computation, table = "", ""
        shapes: dict[tuple[str, str], str] = {}
        text = text.replace('{\n"', '{"').replace('"\n}}', '"}}')  # kernels have attributes of several lines
        for line in text.splitlines():
            if match := xla.COMPUTATION.match(line):
                computation, table = match[2], ""
                if match[1]:
                    self.entry = computation
            elif computation and (match := xla.INSTRUCTION.match(line)):
                instruction = HloInstruction(computation, *match.group(2, 3, 4, 5))
                self.instructions += [*self._list_elements(instruction, shapes), instruction]
                shapes[computation, instruction.name] = instruction.shape
                if match[1]:
                    self._roots[computation] = instruction
            elif line in xla.SOURCE_TABLES:
                table = line
            elif table and (match := xla.TABLE_ROW.match(line)):
                self._tables[table][int(match[1])] = match[2]

    @functools.cached_property
    def by_computation(self) -> Mapping[str, Sequence[HloInstruction]]:
        """The instructions of each computation."""
        by_computation = collections.defaultdict(list)
        for instruction in self.instructions:
            by_computation[instruction.computation].append(instruction)
        return by_computation

    def count_runs(self, computation: str) -> int:
        """Returns how often a computation runs; loops of unknown length count as one turn, branches as taken."""
        if computation not in self._runs:
            calls = self.find_calls(computation)
            runs = 0
            for call in calls:
                turns = self.count_trips(call) if self.find_body(call) == computation else 1
                runs += turns * self.count_runs(call.computation)
            self._runs[computation] = runs if calls else 1
        return self._runs[computation]

    def count_turns(self, computation: str) -> int:
        """Returns how many turns the innermost loop has that a computation is in; 1 if it is in none."""
        call = next(iter(self.find_calls(computation)), None)
        if call is None:
            return 1
        if self.find_body(call) == computation:
            return self.count_trips(call)
        return self.count_turns(call.computation)

    def count_trips(self, loop: HloInstruction) -> int:
        """Returns how often a loop runs: as the program says, or from what it counts, as programs for TPUs need it."""
        if trip_count := xla.TRIP_COUNT.search(loop.attributes):
            return int(trip_count[1])
        condition = dict(xla.CALLED.findall(loop.attributes)).get("condition", "").strip("%")
        root = self._roots.get(condition)
        if root is None or root.opcode != "compare" or not xla.COUNTS_UP.search(root.attributes):
            return 1
        counter, limit = self._find_source(condition, root.operands[0]), self._read_number(condition, root.operands[1])
        if counter is None or counter.opcode != "get-tuple-element" or limit is None:
            return 1
        # A loop that counts up runs (limit - initial) / step times, rounded up.
        index = _read_tuple_index(counter) or 0
        step = self._read_step(loop, index)
        distance = limit - self._read_initial(loop, index) + ("direction=LE" in root.attributes)
        return max(-(-distance // step), 0) if step > 0 else 1

    def find_operands(self, instruction: HloInstruction) -> list[HloInstruction]:
        """Returns the instructions whose results an instruction takes."""
        operands = (self._by_name.get((instruction.computation, name)) for name in instruction.operands)
        return [operand for operand in operands if operand is not None]

    def find_users(self, instruction: HloInstruction) -> list[HloInstruction]:
        """Returns the instructions that take the result of another one, in fusions and after copies too."""
        users: list[HloInstruction] = []
        for user in self._users.get((instruction.computation, instruction.name), []):
            if user.is_fusion:
                number = user.operands.index(instruction.name)
                body = [inner for name in self.find_called(user) for inner in self.by_computation[name]]
                for inner in body:
                    if inner.opcode == "parameter" and inner.parameter_number == number:
                        users += self.find_users(inner)
            elif user.opcode in ("copy", "bitcast") or user.opcode.endswith("-done"):
                users += self.find_users(user)
            else:
                users.append(user)
        if self._roots.get(instruction.computation) is instruction:
            for call in self.find_calls(instruction.computation):
                users += self.find_users(call) if call.is_fusion else []
        return users

    @functools.cached_property
    def _users(self) -> dict[tuple[str, str], list[HloInstruction]]:
        users = collections.defaultdict(list)
        for instruction in self.instructions:
            for name in dict.fromkeys(instruction.operands):
                users[instruction.computation, name].append(instruction)
        return dict(users)

    def find_called(self, instruction: HloInstruction) -> list[str]:
        """Returns the computations that an instruction calls."""
        return [name for name in _list_called_names(instruction) if name in self.by_computation]

    def find_root(self, computation: str) -> HloInstruction | None:
        """Returns the instruction whose result is that of a computation; None if the text does not say."""
        return self._roots.get(computation)

    def find_body(self, loop: HloInstruction) -> str:
        """Returns the computation of a turn of a loop."""
        return dict(xla.CALLED.findall(loop.attributes)).get("body", "").strip("%")

    def find_calls(self, computation: str) -> list[HloInstruction]:
        """Returns the instructions that call a computation."""
        return self._calls.get(computation, [])

    def find_frames(self, instruction: HloInstruction) -> list[tuple[str, int, str]]:
        """Returns file, line and function of each call that led to an instruction, the innermost first."""
        match = xla.STACK_FRAME.search(instruction.attributes)
        frames, frame = [], int(match[1]) if match else 0
        while frame in self._frames:
            file, line_number, function, parent = self._frames[frame]
            frames.append((file, line_number, function))
            frame = parent if parent < frame else 0  # callers have smaller numbers; others would make a circle
        return frames

    @functools.cached_property
    def _frames(self) -> Mapping[int, tuple[str, int, str, int]]:
        """File, line, function and caller of each frame; read once, since timelines look up each instruction."""
        files, functions, locations, stack = (self._tables[name] for name in xla.SOURCE_TABLES)
        frames: dict[int, tuple[str, int, str, int]] = {}
        for frame, text in stack.items():
            location = locations.get(xla.read_field(text, "file_location_id"), "")
            file = files.get(xla.read_field(location, "file_name_id"), "").strip('"')
            function = functions.get(xla.read_field(location, "function_name_id"), "").strip('"')
            parent = xla.read_field(text, "parent_frame_id") - 1  # it is written with 1 added
            frames[frame] = file, xla.read_field(location, "line"), function, parent
        return frames

    def _list_elements(
        self, instruction: HloInstruction, shapes: dict[tuple[str, str], str]
    ) -> Iterator[HloInstruction]:
        """Yields an instruction for each element of a tuple that is an operand, as `%loop#2` of libtpu 0.0.50."""
        computation = instruction.computation
        for name, index in xla.TUPLE_ELEMENT.findall(instruction.attributes.partition(")")[0]):
            key, elements = (computation, f"{name}#{index}"), split_tuple(shapes.get((computation, name), ""))
            if key not in shapes and int(index) < len(elements):
                shapes[key] = elements[int(index)]
                yield HloInstruction(*key, elements[int(index)], "get-tuple-element", f"%{name}), index={index}")

    @functools.cached_property
    def _calls(self) -> dict[str, list[HloInstruction]]:
        calls = collections.defaultdict(list)
        for instruction in self.instructions:
            if instruction.opcode not in ("async-update", "async-done"):  # which name what the start has called
                for name in _list_called_names(instruction):
                    calls[name].append(instruction)
        return dict(calls)

    def _read_initial(self, loop: HloInstruction, index: int) -> int:
        """Returns the number with which an element of a loop's tuple starts; 0, as in JAX's own loops, if unknown."""
        initial = self._by_name.get((loop.computation, loop.operands[0]))
        if initial is None or initial.opcode != "tuple" or index >= len(initial.operands):
            return 0
        return self._read_number(loop.computation, initial.operands[index]) or 0

    def _read_step(self, loop: HloInstruction, index: int) -> int:
        """Returns the constant that a turn adds to an element of a loop's tuple; 0 if it does something else to it."""
        body = self.find_body(loop)
        root = self._roots.get(body)
        if root is None or root.opcode != "tuple" or index >= len(root.operands):
            return 0
        new = self._find_source(body, root.operands[index])
        if new is None or new.opcode != "add":
            return 0
        sources = [self._find_source(body, name) for name in new.operands]
        if not any(source is not None and _read_tuple_index(source) == index for source in sources):
            return 0
        numbers = (self._read_number(body, name) for name in new.operands)
        return next((number for number in numbers if number is not None), 0)

    def _read_number(self, computation: str, name: str) -> int | None:
        """Returns the constant that an instruction is or copies; None if it is not one."""
        source = self._find_source(computation, name)
        if source is None or source.opcode != "constant":
            return None
        match = xla.CONSTANT.match(source.attributes)
        return int(match[1]) if match else None

    def _find_source(self, computation: str, name: str) -> HloInstruction | None:
        """Returns the instruction of a name, or what it copies."""
        instruction = self._by_name.get((computation, name))
        if instruction is not None and instruction.opcode in ("copy", "bitcast", "convert"):
            return self._find_source(computation, instruction.operands[0])
        return instruction

    @functools.cached_property
    def _by_name(self) -> dict[tuple[str, str], HloInstruction]:
        return {(instruction.computation, instruction.name): instruction for instruction in self.instructions}


def read_op_name(attributes: str) -> str:
    """Returns the path of scopes in the text of an instruction's attributes; empty if it is not there."""
    match = xla.OP_NAME.search(attributes)
    return match[1] if match else ""


def parse_arrays(text: str) -> tuple[HloArray, ...]:
    """Returns the arrays in the text of a shape; layouts are left out."""
    while text != (text := xla.LAYOUT.sub("", text)):  # a layout may be in another
        pass
    return tuple(
        HloArray(dtype, tuple(map(int, sizes.split(","))) if sizes else ()) for dtype, sizes in xla.ARRAY.findall(text)
    )


def split_tuple(text: str) -> list[str]:
    """Returns the elements of the text of a tuple, nested ones as they are; the text itself if it is not a tuple."""
    if not text.startswith("("):
        return [text]
    elements, depth, start = [], 0, 1
    for position, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if (letter == "," and depth == 1) or depth == 0:
            elements.append(text[start:position].strip())
            start = position + 1
            if depth == 0:
                break
    return [element for element in elements if element]


def _list_called_names(instruction: HloInstruction) -> list[str]:
    lists = xla.CALLED.findall(instruction.attributes)
    return [name for _, names in lists for name in xla.COMPUTATION_NAME.findall(names)]


def _read_tuple_index(instruction: HloInstruction) -> int | None:
    match = xla.TUPLE_INDEX.search(instruction.attributes)
    return int(match[1]) if match else None

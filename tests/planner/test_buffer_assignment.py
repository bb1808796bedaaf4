"""The memory that is read from libtpu's dumps is that of `memory_analysis()` of the same programs."""

import pytest

from axonym.planner import ProgramMemory
from axonym.planner._program._compiler_output import read_buffer_assignment

from . import described_programs as programs


@pytest.mark.parametrize("name", ["step", "offload", "fetch"])
def test_recorded_memory_is_that_of_the_compiler(name: str):
    recorded = programs.read_recorded(name)
    memory = read_buffer_assignment(recorded["dumps"]["after_optimizations-buffer-assignment"])
    assert memory is not None
    figures = memory.to_dict()
    assert {kind: figures[f"{kind}_bytes"] for kind in recorded["memory"]} == recorded["memory"]
    rest = memory.argument_bytes + memory.output_bytes - memory.alias_bytes + memory.temp_bytes
    assert 0 <= memory.peak_bytes - rest < 2**16  # constants and scalars


def test_other_text_is_not_read():
    assert read_buffer_assignment("") is None
    assert read_buffer_assignment("BufferAssignment v2\n{size: 8}") is None
    one = "allocation 0: size 64, parameter 0, shape |f32[16]| at ShapeIndex {}, maybe-live-out:\n"
    assert read_buffer_assignment(one) == ProgramMemory(64, 64, 64, 0, 64, argument_sizes=(64,))

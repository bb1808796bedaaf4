"""The memory that is read from libtpu's dumps: that of `memory_analysis()`, and of the layouts of arguments."""

import jax.numpy as jnp
import pytest

from axonym.planner import ProgramMemory, get_hardware
from axonym.planner._program._arguments import ArgumentArray, count_argument_groups
from axonym.planner._program._compiler_output import read_buffer_assignment
from axonym.planner._program._hlo_program import HloProgram

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


def test_recorded_programs_fit_or_not_as_the_compiler_said():
    for name, recorded in programs.read_recorded("limits").items():
        memory = read_buffer_assignment(recorded["allocations"])
        assert memory is not None, name
        assert (memory.peak_bytes <= get_hardware("v5e").hbm_available) == recorded["fits"], name
        assert abs(memory.peak_bytes / get_hardware("v5e").hbm_available - 1) < 0.05, name
    assert sum(recorded["fits"] for recorded in programs.read_recorded("limits").values()) == 6


def test_arguments_of_a_recorded_program_have_the_sizes_of_its_layout():
    dumps = programs.read_recorded("step")["dumps"]
    text = HloProgram(dumps["after_optimizations_after_buffer_assignment"])
    memory = read_buffer_assignment(dumps["after_optimizations-buffer-assignment"])
    kinds = [("moments", "optimizer state"), ("weights", "parameters"), ("x", "inputs")]
    shapes = {"weights": ((3, 128, 128),) * 2, "moments": ((3, 128, 128),) * 2, "x": ((8, 64, 256),)}
    paths = {"weights": ("[0]", "[1]"), "moments": ("[0]", "[1]"), "x": ("",)}
    arrays = [
        ArgumentArray(path, None, shape, jnp.bfloat16, None, kind)
        for name, kind in sorted(kinds, key=lambda pair: "wmx".index(pair[0][0]))
        for path, shape in zip(paths[name], shapes[name], strict=True)
    ]
    groups = count_argument_groups(text, arrays, memory.argument_sizes)
    assert groups == {"parameters": 2 * 98304, "optimizer state": 2 * 196608, "inputs": 262144}

"""Programs around the memory of a TPU: whether they fit, and groups that add up to the compiler's figure."""

import os
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest

import axonym as nym
from axonym.planner import assert_fits, compile_for, described_devices, get_hardware, memory_report
from axonym.planner._program._arguments import ArgumentArray, count_argument_groups
from axonym.planner._program._compiler_output import read_buffer_assignment
from axonym.planner._program._hlo_program import HloProgram
from tests.planner.described_programs import MESH, TOPOLOGY, read_recorded
from tests.planner.memory_programs import ROWS, make_program
from tests.planner.programs import COMPUTE, STORED, update
from tests.planner.test_memory_report import ROWS as SAVED, WEIGHTS, X, make_stack


needs_libtpu = pytest.mark.skipif(
    not os.environ.get("AXONYM_LIBTPU"), reason="This needs libtpu: `make tpu` installs it."
)


def test_recorded_programs_fit_or_not_as_the_compiler_said():
    for name, recorded in read_recorded("limits").items():
        memory = read_buffer_assignment(recorded["allocations"])
        assert memory is not None, name
        assert (memory.peak_bytes <= get_hardware("v5e").hbm_available) == recorded["fits"], name
        assert abs(memory.peak_bytes / get_hardware("v5e").hbm_available - 1) < 0.05, name
    assert sum(recorded["fits"] for recorded in read_recorded("limits").values()) == 6


def test_arguments_of_a_recorded_program_have_the_sizes_of_its_layout():
    dumps = read_recorded("step")["dumps"]
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


@needs_libtpu
def test_programs_for_tpus_fit_or_not_as_the_compiler_says():
    mesh = nym.create_mesh(MESH, devices=described_devices(TOPOLOGY))
    limits = [(name, rows, fits) for name, both in ROWS.items() for rows, fits in zip(both, (True, False), strict=True)]

    def compile_limit(name, rows):
        fn, args = make_program(name, rows, mesh.abstract_mesh)
        return compile_for(fn, *args, mesh=mesh, cache=False)

    with ThreadPoolExecutor(2) as pool:
        programs = pool.map(lambda limit: compile_limit(*limit[:2]), limits)
    for (name, rows, fits), program in zip(limits, programs, strict=True):
        report = memory_report(program)
        assert program.is_out_of_memory != fits, (name, rows)
        assert (program.memory.peak_bytes <= program.hardware.hbm_available) == fits, (name, rows)
        assert abs(program.memory.peak_bytes / program.hardware.hbm_available - 1) < 0.05, (name, rows)
        assert report.total == sum(report.groups.values()) == program.memory.peak_bytes, (name, rows)
        assert min(report.groups.values()) >= 0, (name, rows)
        assert report.fits == fits, (name, rows)


@needs_libtpu
def test_offloaded_activations_have_their_names_and_are_on_the_host():
    policy = nym.ScanCheckpointPolicy(save_carries="offload")
    stack = make_stack(policy)
    with jax.set_mesh(nym.create_mesh(MESH, devices=described_devices(TOPOLOGY))):
        program = compile_for(nym.fsdp(update, STORED, COMPUTE), stack, X, cache=False)
    report = memory_report(program)
    assert report.count_saved("memory").get("host") == report.host == SAVED
    assert report.groups["parameters"] == WEIGHTS
    assert report.total == program.memory.peak_bytes
    with pytest.raises(AssertionError, match="parameters"):
        assert_fits(program, (), 2**20)

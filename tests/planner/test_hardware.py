"""The presets of hardware: that they agree with one another, and how they are found."""

import dataclasses
from pathlib import Path

import pytest

import axonym as nym
from axonym.planner import HARDWARE, Hardware, get_hardware
from axonym.planner._gpu_targets import format_gpu_target


# The multiply-and-add units of a device: matrix units x their rows x their columns.
UNITS = {
    "v4": 8 * 128 * 128,
    "v5e": 4 * 128 * 128,
    "v5p": 8 * 128 * 128,
    "v6e": 4 * 256 * 256,
    "tpu7x": 4 * 256 * 256,
}


@pytest.mark.parametrize("hardware", HARDWARE.values(), ids=list(HARDWARE))
def test_figures_of_a_preset_agree(hardware: Hardware):
    assert hardware.bf16_flops <= hardware.fp8_flops
    assert hardware.bf16_flops <= hardware.int8_flops
    assert 0.9 < hardware.hbm_available / hardware.hbm_bytes < 1.1
    assert hardware.hbm_bandwidth > hardware.link_bandwidth
    assert hardware.links == 2 * hardware.torus_dims
    if hardware.name in UNITS:
        assert 2 * UNITS[hardware.name] * hardware.clock == pytest.approx(hardware.bf16_flops, rel=0.003)


def test_hardware_is_found_by_name_and_description():
    assert get_hardware("H100") is get_hardware("h100:32x8") is HARDWARE["h100"]
    assert nym.planner.get_hardware("v5e").hbm_available == 15.75 * 2**30
    with pytest.raises(ValueError, match=r"no hardware 'v5x'; did you mean 'v5[ep]'\?; there are v4, v5e, v5p"):
        get_hardware("v5x:4x4")
    with pytest.raises(TypeError, match="does not support item assignment"):
        HARDWARE["v5e"] = get_hardware("v4")  # pyright: ignore[reportIndexIssue]


def test_ends_of_a_torus_are_connected_as_in_machines_of_that_size():
    v5e, v5p = get_hardware("v5e"), get_hardware("v5p")
    assert v5e.find_wrap((16, 16)) == (True, True)
    assert v5e.find_wrap((8, 16)) == (False, True)
    assert v5p.find_wrap((4, 8, 8)) == (True, True, True)
    assert v5p.find_wrap((2, 4, 4)) == (False, False, False)
    assert get_hardware("h100").find_wrap((2, 8)) == (False, False)


def test_table_of_the_documentation_has_the_figures():
    page = (Path(__file__).parents[2] / "docs" / "compile-for.md").read_text()
    rows = {
        cells[0]: list(map(float, cells[1:])) for cells in map(split_row, page.splitlines()) if cells[0] in HARDWARE
    }
    assert list(rows) == list(HARDWARE)
    for name, row in rows.items():
        one = HARDWARE[name]
        rates = [one.bf16_flops / 1e12, one.int8_flops / 1e12, one.fp8_flops / 1e12]
        memory = [one.hbm_bytes / 2**30, one.hbm_available / 2**30, one.hbm_bandwidth / 1e9, one.clock / 1e9]
        network = [one.links, one.link_bandwidth / 1e9, one.network_bandwidth / 1e9, one.host_bandwidth / 1e9]
        assert row == pytest.approx([*rates, *memory, *network, one.devices_per_host], abs=0.006), name


def split_row(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else [""]


def test_hardware_is_named_by_text():
    with pytest.raises(TypeError, match="hardware is given by its name, such as 'v5e' or 'H100', not by 3"):
        get_hardware(3)  # pyright: ignore[reportArgumentType]


def test_programs_are_compiled_for_every_gpu_with_figures():
    gpus = [hardware for hardware in HARDWARE.values() if hardware.platform == "gpu"]
    assert len(gpus) == 4
    for hardware in gpus:
        assert f'device_description_str: "{hardware.device_kind}"' in format_gpu_target(hardware)
    with pytest.raises(ValueError, match=r"cannot be compiled for GPU 'b300', .*; there are a100, h100, h200, b200$"):
        format_gpu_target(dataclasses.replace(gpus[0], name="b300"))

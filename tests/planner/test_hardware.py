"""The presets of hardware: that they agree with one another, and how they are found."""

import dataclasses
import re
from pathlib import Path

import jax
import pytest

import axonym as nym
from axonym.planner import HARDWARE, Hardware, compile_for, described_devices, get_hardware, register_hardware
from axonym.planner._compiler._compile_cache import make_cache_key
from axonym.planner._compiler._compiler_process import CompileJob, describe_topology
from axonym.planner._machine import _hardware
from axonym.planner._search._nearest_fits import choose_larger_devices


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
    assert re.fullmatch("[a-z][a-z0-9_]*", hardware.name)
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


@pytest.fixture
def register(monkeypatch):
    """Registers devices for one test."""
    monkeypatch.setattr(_hardware, "_registered", {})
    return lambda preset, **changes: register_hardware(dataclasses.replace(get_hardware(preset), **changes))


def test_a_registered_device_is_planned_for(register, monkeypatch):
    def loss(weight, x):
        return nym.mean(nym.dot(x, weight, axis="embed")).array

    register("cpu", name="small_cpu", bf16_flops=1e9, hbm_available=2**20)
    weight = nym.NamedArray(jax.ShapeDtypeStruct((512, 256), "float32"), ("embed", "mlp"))
    x = nym.NamedArray(jax.ShapeDtypeStruct((1024, 512), "float32"), ("batch", "embed"))
    fixed = {"mesh": {"data": 4}, "compute": {"batch": "data"}, "parameters": {"mlp": "data"}}
    monkeypatch.setattr("axonym.planner._search._nearest_fits._CHANGES", {})  # what would fit is not asked here
    plans = [
        nym.planner.plan(loss, weight, x, devices=devices, fixed=fixed, cache=False)
        for devices in ("cpu:4", "small_cpu:4")
    ]
    assert [plan.fits for plan in plans] == [True, False] and plans[1].hardware.hbm_available == 2**20
    before, after = (plan.best.time.compute for plan in plans)
    assert after > 1e3 * before and str(plans[1].topology) == "small_cpu:4"
    program = compile_for(lambda x: x * 2, x, devices="Small_CPU:4", mesh={"data": 4}, cache=False)
    assert not program.fits and nym.planner.memory_report(program, device="small_cpu").available == 2**20


def test_a_registered_device_has_all_that_a_preset_has(register):
    target = dataclasses.replace(get_hardware("b200").gpu_target, multiprocessors=160)
    register("b200", name="b300", gpu_target=target, aliases=("gb300",))
    name, options = describe_topology(described_devices("gb300:4x8")[0].topology)
    assert name == "b300" and "core_count: 160" in options["target_config"]
    register("v4", name="v4_small", max_chips=8, compiler_name="v4")
    devices = described_devices("v4_small:2x2x2")
    name, options = describe_topology(devices[0].topology)
    assert name == "v4:2x2x2" and options["chip_config_name"] == "megacore" and devices[0].num_cores == 2
    assert choose_larger_devices(devices)[0].topology.slices == 2
    with pytest.raises(
        ValueError, match=r"no hardware 'b301'; did you mean 'b300'\?; there are .*, cpu, b300, v4_small"
    ):
        get_hardware("b301")


def test_cache_tells_devices_of_one_name_apart(register, monkeypatch):
    keys = set()
    for capability in ((10, 0), (10, 3)):
        monkeypatch.setattr(_hardware, "_registered", {})
        target = dataclasses.replace(get_hardware("b200").gpu_target, compute_capability=capability)
        register("b200", name="b300", gpu_target=target)
        topology = described_devices("b300:1x8")[0].topology
        keys.add(make_cache_key(CompileJob(b"", "", topology, (), (), (), {}, False), {}))
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("v5e", {"name": "TPU v9"}, "'TPU v9' cannot stand in a description such as 'v5e:16x16'; name the device with"),
        ("v5e", {"name": "v5p"}, "'v5p' is the name of another device; give this one a name of its own"),
        ("v5e", {"name": "v5litepod"}, "'v5litepod' is the name of another device"),
        ("v5e", {"name": "tpu"}, "'tpu' is the name of another device"),
        (
            "v5e",
            {"name": "v9", "compiler_name": ""},
            "'v9' is a TPU without `compiler_name`",
        ),
        ("h100", {"name": "b300", "gpu_target": None}, "'b300' is a GPU without `gpu_target`, .*; give a `GpuTarget`"),
        ("tpu7x", {"name": "v9", "links_in_chip": 0}, "'v9' has 2 devices on a chip; give `links_in_chip`"),
    ],
)
def test_a_device_that_cannot_be_registered(register, preset, changes, message):
    with pytest.raises(ValueError, match=message):
        register(preset, **changes)


def test_a_device_is_registered_once(register):
    register("h100", name="h100_nvl", hbm_available=93 * 2**30)
    register("h100", name="h100_nvl", hbm_available=93 * 2**30)
    with pytest.raises(ValueError, match="'h100_nvl' is the name of another device"):
        register("h100", name="h100_nvl", hbm_available=94 * 2**30)
    with pytest.raises(TypeError, match="`hardware` is a `Hardware`, not a dict"):
        register_hardware({})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="XLA cannot compile for 'b300' without its `gpu_target`"):
        _hardware.format_gpu_target(dataclasses.replace(get_hardware("b200"), name="b300", gpu_target=None))

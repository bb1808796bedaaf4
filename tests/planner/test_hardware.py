"""The presets of hardware: that they agree with one another, and how they are found."""

import dataclasses
import json
import math
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
from tests.refusals import refusal


# The multiply-and-add units of a device: matrix units x their rows x their columns.
UNITS = {"v4": 8 * 128 * 128, "v5e": 4 * 128 * 128, "v5p": 8 * 128 * 128, "v6e": 4 * 256 * 256, "tpu7x": 4 * 256 * 256}


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
    with pytest.raises(ValueError, match=r"no hardware 'v5x'; there are v4, v5e, v5p, .*; did you mean 'v5[ep]'\?$"):
        get_hardware("v5x:4x4")
    with pytest.raises(ValueError, match=r"no hardware 'a3'; .*; did you mean 'a3_high' or 'a3_mega'\?$"):
        get_hardware("a3:4x8")
    with refusal("no hardware 'quantum'; there are v4, v5e"):
        get_hardware("quantum")
    with refusal("hardware is given by its name, such as 'v5e' or 'H100', not by 3", TypeError):
        get_hardware(3)  # pyright: ignore[reportArgumentType]
    with refusal("does not support item assignment", TypeError):
        HARDWARE["v5e"] = get_hardware("v4")  # pyright: ignore[reportIndexIssue]


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


WEIGHT = nym.NamedArray(jax.ShapeDtypeStruct((512, 256), "float32"), ("embed", "mlp"))
X = nym.NamedArray(jax.ShapeDtypeStruct((1024, 512), "float32"), ("batch", "embed"))


def loss(weight, x):
    return nym.mean(nym.dot(x, weight, axis="embed")).array


@pytest.fixture
def register(monkeypatch):
    """Registers devices for one test."""
    monkeypatch.setattr(_hardware, "_registered", {})
    return lambda preset, **changes: register_hardware(dataclasses.replace(get_hardware(preset), **changes))


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
        ValueError, match=r"no hardware 'b301'; there are .*, cpu, b300, v4_small; did you mean 'b300'\?"
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
        ("v5e", {"name": "v9", "compiler_name": ""}, "'v9' is a TPU without `compiler_name`"),
        ("h100", {"name": "b300", "bf16_flops": 0.0}, "'b300' has the bf16_flops 0.0; it is a number above 0"),
        (
            "v5e",
            {"name": "fat_v5e", "hbm_available": 64 * 2**30},
            "'fat_v5e' has 64.00 GiB as `hbm_available`, but libtpu compiles for 'v5e' with 15.75 GiB, .* give at most "
            "16911433728 bytes, or the `compiler_name` of a TPU that has more",
        ),
        (
            "v5e",
            {"name": "v9", "torus_dims": 4},
            "'v9' has 4 as `torus_dims`; the torus of a TPU has 2 or 3 dimensions",
        ),
        ("tpu7x", {"name": "v9", "links_in_chip": 0}, "'v9' has 2 devices on a chip; give `links_in_chip`"),
    ],
)
def test_a_device_that_cannot_be_registered(register, preset, changes, message):
    with pytest.raises(ValueError, match=message):
        register(preset, **changes)


def test_a_torus_of_a_device_without_a_limit_has_a_nearest_one(register):
    register("v5p", name="v9", max_chips=0)
    with pytest.raises(ValueError, match=r"made of cubes of 4 x 4 x 4 chips.*; the nearest is 'v9:32x64x124'$"):
        described_devices("v9:64x64x62")


def test_a_device_is_registered_once(register):
    for _ in range(2):
        register("h100", name="h100_nvl", hbm_available=93 * 2**30)
    with refusal("'h100_nvl' is the name of another device"):
        register("h100", name="h100_nvl", hbm_available=94 * 2**30)
    with refusal("`hardware` is a `Hardware`, not a dict", TypeError):
        register_hardware({})  # pyright: ignore[reportArgumentType]


def test_a_gpu_without_a_compiler_is_screened_and_fits_programs():
    message = "there is no compiler for 'mi300x': XLA's plugin compiles for GPUs of NVIDIA, those with a `gpu_target`"
    with pytest.raises(ValueError, match=message):
        compile_for(loss, WEIGHT, X, devices="mi300x:1x8", mesh={"data": 8})
    plan = nym.planner.plan(loss, WEIGHT, X, devices="mi300x:1x8")
    assert {one.stage for one in plan.evaluations} == {"screened"} and not plan.fits and not plan.versions
    assert "which candidates fit is not known, since there is no compiler for mi300x" in " ".join(str(plan).split())
    program = compile_for(loss, WEIGHT, X, devices="cpu:8", mesh={"data": 8}, mapping={"batch": "data"}, cache=False)
    report = nym.planner.memory_report(program, device="mi300x")
    assert report.available == get_hardware("mi300x").hbm_available


def nest(depth):
    return {"x": nest(depth - 1)} if depth else {}


def write_hardware(folder, content, ending=".json"):
    path = folder / f"machines{ending}"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_file_has_devices_with_the_figures_that_differ(register, tmp_path):
    path = write_hardware(
        tmp_path,
        """
        [slow_v5e]
        base = "v5e"
        network_bandwidth = 1_000_000_000

        [h100_cut]
        base = "H100"
        hbm_available = 60e9
        gpu_target.multiprocessors = 100
        """,
        ".toml",
    )
    v5e, h100 = nym.planner.read_hardware(path)
    assert v5e == dataclasses.replace(get_hardware("v5e"), name="slow_v5e", network_bandwidth=1e9, aliases=())
    target = dataclasses.replace(get_hardware("h100").gpu_target, multiprocessors=100)
    assert h100 == dataclasses.replace(
        get_hardware("h100"), name="h100_cut", hbm_available=60 * 10**9, gpu_target=target
    )
    assert isinstance(h100.hbm_available, int) and isinstance(v5e.network_bandwidth, float)
    assert str(described_devices("2 x slow_v5e:4x4")[0].topology) == "2 x slow_v5e:4x4"
    assert nym.planner.read_hardware(path) == (v5e, h100)  # the same ones


def test_a_file_has_devices_that_no_preset_is_like(register, tmp_path):
    fields = {**dataclasses.asdict(get_hardware("b200")), "name": "b300", "aliases": ["gb300"]}
    del fields["name"], fields["chip_config"]
    [b300, half] = nym.planner.read_hardware(
        write_hardware(tmp_path, {"b300": fields, "half": {"base": "b300", "network_bandwidth": 25e9}})
    )
    assert b300 == dataclasses.replace(get_hardware("b200"), name="b300", aliases=("gb300",))
    assert get_hardware("gb300") is b300 and half.network_bandwidth == 25e9
    del fields["clock"], fields["platform"]
    with pytest.raises(ValueError, match=r"'b301' in '.*' lacks platform, clock; give them, or a `base` that has them"):
        nym.planner.read_hardware(write_hardware(tmp_path, {"b301": fields}))


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("[x", ValueError, r"machines.json' cannot be read as JSON: "),
        ("[1]", ValueError, r'does not have a table for each device by its name, such as\n\{"h100_ethernet": \{"base'),
        ({"x": {"base": "h10"}}, ValueError, r"the base of 'x' in '.*' is not known: no hardware 'h10'; there are v4,"),
        ({"x": {"base": "h100", "network_bandwith": 1e9}}, ValueError,
         r"'x' in '.*' has a field 'network_bandwith' that there is not; did you mean 'network_bandwidth'\?"),
        ({"x": {"base": "h100", "watts": 700}}, ValueError,
         "a field 'watts' that there is not; there are platform, device_kind, bf16_flops, .*, gpu_target$"),
        ({"x": {"base": "h100", "network_bandwidth": 10}}, ValueError,
         "'x' has the network_bandwidth 10; bandwidths are in bytes a second, such as 12.5e9 for 12.5 GB/s"),
        ({"x": {"base": "h100", "clock": "fast"}}, TypeError, r"'clock' of 'x' in '.*' is a number, not 'fast'"),
        ({"x": {"base": "h100", "links": 1.5}}, TypeError, r"'links' of .* is a whole number, not 1.5"),
        ({"x": {"base": "h100", "cores": True}}, TypeError, r"'cores' of .* is a whole number, not True"),
        ({"x": {"base": "h100", "platform": "rocm"}}, ValueError, r"is one of 'tpu', 'gpu', 'cpu', not 'rocm'"),
        ({"x": {"base": "h100", "aliases": "y"}}, TypeError, r"'aliases' of .* is a list, not 'y'"),
        ({"x": {"base": "h100", "gpu_target": 9}}, TypeError, r"'gpu_target' of .* is a table of the fields of `Gpu"),
        ({"x": {"base": "mi300x", "gpu_target": {"l2_cache": 9}}}, ValueError,
         r"'gpu_target' of 'x' in '.*' lacks compute_capability, multiprocessors, "),
        ({"x": {"base": "h100", "hbm_bytes": math.nan}}, TypeError, r"'hbm_bytes' of .* is a whole number, not nan"),
        ({"x": {"base": "h100", "clock": 10**400}}, TypeError, r"'clock' of .* is a number, not 1000"),
        ({"x": {"base": "h100", "clock": nest(900)}}, TypeError, r"'clock' of .* not a dict in which too many others"),
        ({"x": {"base": "h100", "gpu_target": {"compute_capability": [9]}}}, TypeError,
         r"'compute_capability' of 'gpu_target' of 'x' in '.*' is a list of length 2, not a list of length 1"),
        ("[" * 100_000, ValueError, r"machines.json' cannot be read as JSON: maximum recursion depth"),
    ],
)  # fmt: skip
def test_a_file_that_describes_no_devices_is_refused(register, tmp_path, content, error, message):
    with pytest.raises(error, match=message):
        nym.planner.read_hardware(write_hardware(tmp_path, content))


def test_a_file_of_hardware_is_there_and_says_its_format(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file of hardware '.*/machines.toml'"):
        nym.planner.read_hardware(tmp_path / "machines.toml")
    with pytest.raises(
        ValueError, match=r'by its name, such as\n\[h100_ethernet\]\nbase = "h100"\nnetwork_bandwidth ='
    ):
        nym.planner.read_hardware(write_hardware(tmp_path, 'base = "h100"', ".toml"))
    with pytest.raises(ValueError, match=r"a file of hardware ends in .toml or .json, .*; the path is 'machines.yaml'"):
        nym.planner.read_hardware("machines.yaml")

"""Devices of machines that are not there: as libtpu describes them, and on meshes."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym.planner import DescribedDevice, described_devices, get_hardware

from ..refusals import refusal
from . import described_programs as programs


def describe(name: str) -> list[list[object]]:
    slices = {"slices": int(name.split()[0])} if " " in name else {}
    devices = described_devices(name.split()[-1], **slices)
    rows = [
        [one.id, one.process_index, one.device_kind, list(one.coords), one.core_on_chip, one.slice_index]
        for one in devices
    ]
    return [*rows, devices[0].num_cores]


def check_machines(machines: dict[str, list[object]]) -> None:
    for name, found in machines.items():
        *rows, cores = found
        listed = sorted([[*row[:5], row[5] or 0] for row in rows])  # pyright: ignore[reportIndexIssue]
        assert [*listed, cores] == describe(name), name


def test_devices_are_those_that_libtpu_describes():
    check_machines(programs.read_recorded("machines"))


@pytest.mark.skipif(not os.environ.get("AXONYM_LIBTPU"), reason="This needs libtpu: `make tpu` installs it.")
def test_devices_are_those_that_this_libtpu_describes():
    check_machines(programs.run_apart("tests.planner.described_programs", "--machines"))


def find_dims(devices: np.ndarray) -> set[int]:
    """Returns the dimensions of the torus in which devices differ."""
    coords = np.array([device.coords for device in devices.flat])
    return {dim for dim in range(3) if len(set(coords[:, dim])) > 1}


def test_mesh_axes_follow_dimensions_of_the_torus():
    mesh = nym.create_mesh({"data": 16, "model": 16}, devices=described_devices("v5e:16x16"))
    assert {len(find_dims(mesh.devices[0, :])), len(find_dims(mesh.devices[:, 0]))} == {1}
    mesh = nym.create_mesh({"data": 32, "model": 8}, devices=described_devices("v5p:4x8x8"))
    assert len(find_dims(mesh.devices[0, :])) == 1
    assert len(find_dims(mesh.devices[:, 0])) == 2
    mesh = nym.create_mesh({"data": 64, "model": 4}, devices=described_devices("v5e:16x16"))
    assert mesh.devices.shape == (64, 4)
    assert len({device.id for device in mesh.devices.flat}) == 256


def test_slow_network_is_crossed_by_the_first_mesh_axis():
    mesh = nym.create_mesh({"data": 2, "model": 8}, devices=described_devices("v5e:2x4", slices=2))
    assert [{device.slice_index for device in row} for row in mesh.devices] == [{0}, {1}]
    mesh = nym.create_mesh({"data": 4, "model": 8}, devices=described_devices("h100:4x8"))
    assert [{device.process_index for device in row} for row in mesh.devices] == [{0}, {1}, {2}, {3}]


def test_mesh_of_described_devices_has_their_platform():
    for name, platform in (("v5e:2x4", "tpu"), ("h100:1x8", "gpu"), ("cpu:8", "cpu")):
        mesh = nym.create_mesh({"data": 8}, devices=described_devices(name))
        with jax.set_mesh(mesh):
            assert nym.shard(jax.ShapeDtypeStruct((8,), "float32"), {}) is not None
            assert mesh.abstract_mesh.abstract_device.platform == platform
            with refusal(" is described and not there, so nothing runs on it", AttributeError):
                jnp.ones(8) + 1


def test_several_slices_are_described_as_they_are_printed():
    devices = described_devices("2 x v5e:2x4")
    assert devices == described_devices("v5e:2x4", slices=2) == described_devices("2xV5E:2x4", slices=2)
    assert described_devices(str(devices[0].topology)) == devices and len(devices) == 16
    assert get_hardware("2 x v5e:2x4") is get_hardware("v5e")


def test_machines_that_clouds_offer_are_described():
    for description in (
        *("v5e:1x1", "v6e:2x2", "v5e:8x4", "v5e:16x16", "v4:2x2x1", "v5p:2x4x4", "v5p:4x4x12", "v5p:16x16x24"),
        *("tpu7x:16x24x24", "3 x v6e:16x16", "h100:1x2", "gb200:2x72", "a3_mega:4x8", "mi300x:1x8"),
    ):
        assert str(described_devices(description)[0].topology) == description


def test_topology_tells_the_connected_ends():
    def find_wrap(name: str, **options: object) -> tuple[bool, ...]:
        return described_devices(name, **options)[0].topology.wrap  # pyright: ignore[reportArgumentType]

    assert find_wrap("v5e:8x16") == (False, True)
    assert find_wrap("v5p:2x2x4", wrap=(0, 0, 1)) == (False, False, True)
    assert isinstance(described_devices("cpu:2")[1], DescribedDevice)
    assert get_hardware(described_devices("cpu:2")[1].topology.hardware).platform == "cpu"


@pytest.mark.parametrize(
    ("description", "options", "message"),
    [
        ("v5e", {}, r"'v5e' does not describe a machine: v5e takes chips along each dimension, as in 'v5e:16x16'"),
        ("v5p:8x8", {}, r"chips along each dimension, as in 'v5p:4x8x8'"),
        ("h100:64", {}, r"hosts and GPUs in each, as in 'h100:8x8'"),
        ("v5litepod-8", {}, r"'v5litepod-8' does not describe a machine: v5e takes .* as in 'v5e:2x4'"),
        ("v5p-128", {}, r"as in 'v5p:4x4x4'"),  # 128 cores, two of each chip
        ("v6e:256", {}, r"as in 'v6e:16x16'"),
        ("cpu:2x2", {}, r"the number of devices, as in 'cpu:64'"),
        ("v5litepod-1", {}, r"as in 'v5e:1x1'"),
        ("cpu:99999999999999", {}, r"has 99,999,999,999,999 devices; a machine has 1,000,000 at most$"),
        ("10000000 x v5e:2x2", {}, r"'10000000 x v5e:2x2' has 40,000,000 devices; a machine has 1,000,000 at most$"),
        ("v5e:16x16", {"slices": 4000}, r"has 1,024,000 devices"),
        ("cpu:" + 5000 * "9", {}, r"the number of devices, as in 'cpu:64'"),
        ("v5e:3x4", {}, r"hosts have 2 x 2 chips, so the first two sizes are even; the nearest is 'v5e:4x4'$"),
        (
            "v5e:32x32",
            {},
            r"does not describe a machine: a torus has at most 256 chips; the nearest is '4 x v5e:16x16'$",
        ),
        ("v5e:2x8", {}, r"powers of two, of which the longer is at most twice the shorter; the nearest is 'v5e:4x4'$"),
        ("v5p:4x4x6", {}, r"made of cubes of 4 x 4 x 4 chips, or a part of one; the nearest is 'v5p:4x4x8'$"),
        ("h100:4x16", {}, r"a host has at most 8 GPUs; the nearest is 'h100:8x8'$"),
        ("v100:1x8", {}, r"no hardware 'v100'; there are v4, v5e, .*; did you mean 'h100'\?$"),
        ("2 slices of v5e:4x4", {}, r"no hardware '2 slices of v5e'"),
        ("2 x v5e:16x16", {"slices": 4}, r"'2 x v5e:16x16' has 2 slices, but `slices` is 4; give one of them"),
        ("2 x h100:4x8", {}, r"2 slices, which are tori of TPUs; for more of 'h100', describe 'h100:8x8'"),
        ("gpu:8", {}, r"'gpu' does not say which GPUs; name one of a100, h100, a3_high, "),
        ("h100:1x8", {"slices": 2}, r"there are 2 slices, which are tori of TPUs; .* 'h100:2x8'"),
        ("v5e:4x4", {"slices": 0}, r"there are 0 slices; give 1 or more"),
        ("h100:1x8", {"wrap": (True,)}, r"`wrap` is of the torus of TPUs, and h100 has none"),
        ("v5p:4x4x4", {"wrap": (True, True)}, r"`wrap` has 2 entries, but the torus has 3 dimensions"),
    ],
)
def test_description_of_no_machine_is_explained(description: str, options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        described_devices(description, **options)  # pyright: ignore[reportArgumentType]
    with refusal("a description is a string such as 'v5e:16x16', not a int", TypeError):
        described_devices(8)  # pyright: ignore[reportArgumentType]

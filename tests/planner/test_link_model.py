"""Seconds of collectives, counted by hand from the links between the devices of a group."""

import jax
import pytest

import axonym as nym
from axonym.planner import described_devices
from axonym.planner._step_time._link_model import LinkModel


SIZE = 10**9
V5E, V5P, TPU7X = 45e9, 90e9, 90e9


def estimate(machine: str, mesh: dict[str, int], axes: tuple[str, ...], kind: str = "all-gather", slices: int = 1):
    devices = described_devices(machine, slices=slices)
    return LinkModel(nym.create_mesh(mesh, devices=devices)).estimate_seconds(kind, SIZE, axes)


@pytest.mark.parametrize(
    ("machine", "mesh", "axes", "seconds"),
    [
        ("v5e:16x16", {"data": 16, "model": 16}, ("model",), 15 / 16 * SIZE / (2 * V5E)),  # a closed ring
        ("v5e:16x16", {"data": 16, "model": 16}, ("data", "model"), 255 / 256 * SIZE / (4 * V5E)),
        ("v5e:16x16", {"data": 32, "model": 8}, ("model",), 7 / 8 * SIZE / V5E),  # half a dimension
        ("v5e:16x16", {"data": 32, "model": 8}, ("data",), 31 / 32 * SIZE / (2.25 * V5E)),  # 8 groups share a ring
        ("v5e:8x8", {"data": 16, "model": 4}, ("data",), 15 / 16 * SIZE / (1.25 * V5E)),  # 4 groups share a line
        ("v6e:2x4", {"data": 8}, ("data",), 7 / 8 * SIZE / (2 * 90e9)),
        ("v5p:4x8x8", {"data": 32, "model": 8}, ("model",), 7 / 8 * SIZE / (2 * V5P)),
        ("v5p:4x8x8", {"data": 32, "model": 8}, ("data",), 31 / 32 * SIZE / (4 * V5P)),
        ("v5p:4x8x8", {"data": 32, "model": 8}, ("data", "model"), 255 / 256 * SIZE / (6 * V5P)),
        ("tpu7x:2x2x1", {"data": 4, "model": 2}, ("model",), 1 / 2 * SIZE / (6 * TPU7X)),  # the devices of a chip
        (
            *("tpu7x:4x4x4", {"data": 128}, ("data",)),
            1 / 2 * SIZE / (6 * TPU7X) + 63 / 64 * SIZE / 2 / (6 * TPU7X / 2),
        ),
        ("h100:4x8", {"data": 4, "model": 8}, ("model",), 7 / 8 * SIZE / 450e9),
        ("h100:4x8", {"data": 4, "model": 8}, ("data",), 3 / 4 * SIZE / 50e9),
        ("h100:16x8", {"data": 128}, ("data",), 15 / 16 * SIZE / 8 / 50e9),  # at the same time as NVLink, 7 / 8 / 450e9
        ("cpu:4", {"data": 4}, ("data",), 3 / 4 * SIZE / 62e9),
        ("v5e:16x16", {"data": 16, "model": 16}, (), 0.0),
    ],
)
def test_gather_takes_as_long_as_its_links(machine, mesh, axes, seconds):
    assert estimate(machine, mesh, axes) == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "axes", "seconds"),
    [
        ("all-reduce", ("model",), 2 * 15 / 16 * SIZE / (2 * V5E)),
        ("reduce-scatter", ("model",), 15 * SIZE / (2 * V5E)),
        ("all-to-all", ("model",), 16 / 8 * SIZE / V5E),  # on the way to others, 4 links on average, over 2 at once
        ("all-to-all", ("half",), 4 / 4 * SIZE / V5E),  # half of each half goes over the link in the middle
        ("collective-permute", ("model",), SIZE / V5E),
        ("collective-permute", ("data",), 4 * SIZE / V5E),
    ],
)
def test_each_kind_has_its_formula(kind, axes, seconds):
    mesh = {"data": 4, "half": 4, "model": 16}
    assert estimate("v5e:16x16", mesh, axes, kind) == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "axes", "seconds"),
    [
        ("all-reduce", ("replica",), SIZE / 3.125e9),
        ("all-reduce", ("replica", "data"), 2 * 255 / 256 * SIZE / (4 * V5E) + SIZE / 256 / 3.125e9),
        ("collective-permute", ("replica", "data"), SIZE / 3.125e9),
    ],
)
def test_slices_exchange_over_the_data_center_network(kind, axes, seconds):
    mesh = {"replica": 2, "data": 256}
    assert estimate("v5e:16x16", mesh, axes, kind, slices=2) == pytest.approx(seconds, rel=1e-6)


def test_open_torus_has_half_the_links():
    mesh = {"data": 16, "model": 16}
    devices = described_devices("v5e:16x16", wrap=(False, False))
    open_torus = LinkModel(nym.create_mesh(mesh, devices=devices)).estimate_seconds("all-gather", SIZE, ("data",))
    assert open_torus == pytest.approx(2 * estimate("v5e:16x16", mesh, ("data",)))


def test_chips_that_are_no_rectangle_are_an_open_line():
    devices = [device for device in described_devices("v5e:4x4") if device.coords != (3, 3, 0)]
    mesh = jax.sharding.Mesh(devices, ("data",))
    assert LinkModel(mesh).estimate_seconds("all-gather", SIZE, ("data",)) == pytest.approx(14 / 15 * SIZE / V5E)


@pytest.mark.parametrize(
    ("group", "seconds"),
    [
        (range(0, 256, 2), 127 / 128 * SIZE / (3 * V5E)),  # every other column; two groups share the rows
        ((0, 1), 1 / 2 * SIZE / V5E),  # neighbors
    ],
)
def test_groups_of_a_part_of_a_mesh_axis(group, seconds):
    links = LinkModel(nym.create_mesh({"data": 256}, devices=described_devices("v5e:16x16")))
    assert links.estimate_seconds("all-gather", SIZE, ("data",), tuple(group)) == pytest.approx(seconds, rel=1e-6)

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
        ("v5p:4x8x8", {"data": 32, "model": 8}, ("data",), 31 / 32 * SIZE / (4 * V5P)),
        ("v5p:4x8x8", {"data": 32, "model": 8}, ("data", "model"), 255 / 256 * SIZE / (6 * V5P)),
        ("tpu7x:2x2x1", {"data": 4, "model": 2}, ("model",), 1 / 2 * SIZE / (6 * TPU7X)),  # the devices of a chip
        (*("tpu7x:4x4x4", {"data": 128}, ("data",)), 1 / 2 * SIZE / (6 * TPU7X) + 63 / 64 * SIZE / 2 / (6 * TPU7X / 2)),
        (
            "h100:4x8",
            {"data": 4, "model": 8},
            ("model",),
            8.4e-6 + 7 * 3.4e-6 + 7 / 8 * SIZE / 370.8e9,
        ),  # of NCCL's ring
        ("h100:4x8", {"data": 4, "model": 8}, ("data",), 8.4e-6 + 3 * 14e-6 + 3 / 4 * SIZE / 47e9),
        # Over NVLink at the same time as between hosts, which takes longer.
        ("h100:4x8", {"data": 32}, ("data",), 8.4e-6 + 28 * 3.4e-6 + 3 * 14e-6 + 7 / 8 * SIZE / 370.8e9),
        ("h100:16x8", {"data": 128}, ("data",), 14e-6 + 112 * 1.9e-6 + 15 * 4e-6 + 15 / 16 * SIZE / 8 / 47e9 / 0.92),
        ("a100:1x8", {"data": 8}, ("data",), 8.4e-6 + 7 * 3.4e-6 + 7 / 8 * SIZE / 240e9),
        ("b200:1x8", {"data": 8}, ("data",), 8.4e-6 + 7 * 3.4e-6 + 7 / 8 * SIZE / 721.8e9),
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


# Times of NCCL on 8 H100s, from XLA's own table of them, in microseconds.
@pytest.mark.parametrize(
    ("kind", "result_bytes", "seconds"),
    [
        ("all-gather", 2**28, 729e-6),
        ("reduce-scatter", 2**25, 772e-6),
        ("all-reduce", 2**26, 404e-6),
        ("all-reduce", 2**29, 2462e-6),
    ],
)
def test_collectives_of_gpus_take_about_as_long_as_measured(kind, result_bytes, seconds):
    links = LinkModel(nym.create_mesh({"data": 8}, devices=described_devices("h100:1x8")))
    assert links.estimate_seconds(kind, result_bytes, ("data",)) == pytest.approx(seconds, rel=0.15)


def test_small_sums_of_gpus_go_through_a_tree():
    links = LinkModel(nym.create_mesh({"data": 256}, devices=described_devices("h100:32x8")))
    assert links.estimate_seconds("all-reduce", 4, ("data",)) == pytest.approx(
        6.8e-6 + 14 * 0.6e-6 + 10 * 5e-6, rel=1e-4
    )
    assert links.estimate_seconds("all-to-all", 256, ("data",)) == pytest.approx(6.6e-6 + 2.7e-6, rel=0.01)
    assert links.estimate_seconds("all-gather", 4, ()) == 0.0

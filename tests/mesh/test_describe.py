"""Descriptions of meshes: what lies where, what a step along an axis crosses, and how it is shown."""

import dataclasses
import re
import textwrap

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from axonym.mesh import MeshAxis, MeshDevice, create_abstract_mesh, create_mesh, describe_mesh

from ..refusals import refusal


@dataclasses.dataclass(frozen=True)
class Device:
    """What is asked of a device to describe it."""

    id: int
    process_index: int
    slice_index: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H200"


def devices(slices, processes, each):
    """Devices of so many slices of so many processes of so many devices."""
    return [Device(i, i // each, i // (each * processes)) for i in range(slices * processes * each)]


def text(mesh=None):
    return str(describe_mesh(mesh))


def written(lines):
    return textwrap.dedent(lines).strip("\n")


def test_a_mesh_of_one_process_is_a_grid_of_ids():
    mesh = create_mesh((4, 2), ("data", "model"), axis_types=("auto", "explicit"))
    assert text(mesh) == written(r"""
        mesh (data: 4, model: 2): 8 cpu devices, 1 process

          data   4  Auto      within a process
          model  2  Explicit  within a process

        data \ model | 0  1
        -------------+-----
                   0 | 0  1
                   1 | 2  3
                   2 | 4  5
                   3 | 6  7
        """)


def test_a_mesh_over_slices_shows_processes_and_slices():
    mesh = create_mesh((2, 1, 4), ("data", "expert", "model"), devices=devices(2, 2, 2))
    assert text(mesh) == written(r"""
        mesh (data: 2, expert: 1, model: 4): 8 gpu devices (NVIDIA H200), 4 processes, 2 slices

          data    2  Auto  across 2 slices
          expert  1  Auto  one device
          model   4  Auto  across 2 processes of a slice

        data \ model |       0        1        2        3
        -------------+-----------------------------------
                   0 | 0 p0 s0  1 p0 s0  2 p1 s0  3 p1 s0
                   1 | 4 p2 s1  5 p2 s1  6 p3 s1  7 p3 s1

        (in each cell: device id, p: process, s: slice)
        """)


def test_an_axis_that_is_alone_is_one_row():
    assert text(create_mesh()).endswith(
        written("""
        fsdp | 0  1  2  3  4  5  6  7
        -----+-----------------------
             | 0  1  2  3  4  5  6  7
        """)
    )
    long = text(create_mesh((64,), ("fsdp",), devices=devices(1, 8, 8)))
    assert re.findall(r"^fsdp \|\s+(\d+)", long, re.MULTILINE) == ["0", "8", "16", "24", "32", "40", "48", "56"]
    assert max(map(len, long.splitlines())) <= 100


def test_one_device_and_sixty_four_are_shown_one_by_one():
    lines = text(create_mesh((1,), ("a",), devices=jax.devices()[3:4])).splitlines()
    assert lines[0] == "mesh (a: 1): 1 cpu device, 1 process"
    assert lines[-1] == " | 3"
    lines = text(create_mesh((8, 8), ("data", "model"), devices=devices(1, 8, 8))).splitlines()
    assert lines[-3] == "           7 | 56 p7  57 p7  58 p7  59 p7  60 p7  61 p7  62 p7  63 p7"


def test_more_devices_are_shown_by_process():
    shown = text(create_mesh((128, 8), ("data", "model"), devices=devices(4, 32, 8)))
    assert shown.startswith("mesh (data: 128, model: 8): 1,024 gpu devices (NVIDIA H200), 128 processes, 4 slices\n")
    assert "  data   128  Auto  across 4 slices, 128 processes\n  model    8  Auto  within a process\n" in shown
    lines = shown.splitlines()[5:]
    assert lines[0] == "process 0    slice 0  data 0    model 0-7  ids 0-7"
    assert lines[8] == "... 118 more processes ..."
    assert lines[-1] == "process 127  slice 3  data 127  model 0-7  ids 1016-1023"
    assert len(lines) == 11


def test_a_process_whose_devices_are_no_block_is_shown_within_one():
    held = np.array(devices(1, 8, 10), dtype=object)
    lines = text(Mesh(held.reshape(20, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)).splitlines()
    assert lines[2:4] == ["  a  20  Auto  across 8 processes", "  b   4  Auto  across up to 2 processes"]
    assert lines[5].split() == ["process", "0", "within", "a", "0-2", "b", "0-3", "ids", "0-9"]


def test_an_abstract_mesh_is_described_without_devices():
    described = describe_mesh(create_abstract_mesh((128, 8), ("data", "model"), axis_types=("auto", "explicit")))
    assert str(described) == written("""
        abstract mesh (data: 128, model: 8) for 1,024 devices

          data   128  Auto
          model    8  Explicit
        """)
    assert described.devices == described.processes == described.platforms == ()
    assert described.size == 1024
    assert described.axes[0] == MeshAxis("data", 128, AxisType.Auto, 0, 0, "")


def test_a_description_answers_for_each_axis_and_device():
    described = describe_mesh(create_mesh((4, 4), ("data", "model"), devices=devices(2, 2, 4)))
    assert described.axes == (
        MeshAxis("data", 4, AxisType.Auto, 4, 2, "across 2 slices, 4 processes"),
        MeshAxis("model", 4, AxisType.Auto, 1, 1, "within a process"),
    )
    assert described.devices[9] == MeshDevice(9, 2, 1, "gpu", "NVIDIA H200", (2, 1))
    assert (described.processes, described.slices) == ((0, 1, 2, 3), (0, 1))
    assert (described.platforms, described.device_kinds) == (("gpu",), ("NVIDIA H200",))
    described = describe_mesh(create_mesh((4, 2), ("data", "model")))
    same, other = (describe_mesh(create_mesh(sizes, ("data", "model"))) for sizes in ((4, 2), (2, 4)))
    assert (described, hash(described)) == (same, hash(same))
    assert described != other
    with pytest.raises(dataclasses.FrozenInstanceError, match="devices"):
        described.devices = ()


def test_the_active_mesh_is_described_unless_one_is_given(mesh):
    assert describe_mesh() == describe_mesh(mesh)
    assert describe_mesh(create_mesh()).axes[1].name == "fsdp"
    inside = []
    jax.jit(lambda: inside.append(describe_mesh()))()
    assert inside == [describe_mesh(mesh.abstract_mesh)]
    with jax.set_mesh(None):
        planned = create_abstract_mesh((128, 8), ("data", "model"))
        with jax.sharding.use_abstract_mesh(planned):
            assert describe_mesh() == describe_mesh(planned)
        with refusal("has no mesh to describe; pass one, or set one with `set_mesh(mesh)`"):
            describe_mesh()
    with refusal("`describe_mesh` takes a mesh, not a dict; make one with `create_mesh`", TypeError):
        describe_mesh({"data": 8})


@pytest.mark.parametrize("letter", ["\n", "\x00", "\x1b", "\ud800", "<b>&\"'"], ids=ascii)
def test_letters_that_cannot_be_shown_are_escaped(letter):
    escaped = letter.encode("unicode_escape").decode()
    kind = [dataclasses.replace(device, device_kind=f"H{letter}") for device in devices(1, 4, 2)]
    described = describe_mesh(create_mesh((2, 2, 2), (f"p{letter}", f"d{letter}", f"m{letter}"), devices=kind))
    lines = str(described).splitlines()
    sizes = ", ".join(f"{name}{escaped}: 2" for name in "pdm")
    assert lines[0] == f"mesh ({sizes}): 8 gpu devices (H{escaped}), 4 processes"
    assert f"p{escaped} 1:" in lines
    assert sum(line.startswith(f"d{escaped} \\ m{escaped} | ") for line in lines) == 2
    assert all(line.isprintable() for line in str(described).split("\n"))
    assert described.axes[0].name == f"p{letter}"

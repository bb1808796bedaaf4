"""Meshes over slices, processes and TPU blocks that are described and not there."""

import dataclasses
import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from axonym.mesh import calculate_host_mesh_shape, create_mesh, parse_mesh_from_string

from ..refusals import refusal


quick = settings(deadline=None, max_examples=40)


@dataclasses.dataclass(frozen=True)
class Device:
    """What JAX looks at in a device, to place it."""

    id: int
    process_index: int = 0
    slice_index: int = 0
    coords: tuple[int, ...] = (0, 0, 0)
    core_on_chip: int = 0
    platform: str = "gpu"
    device_kind: str = "described"


def slices(number, each, processes_each=1):
    """Devices of so many slices of so many devices, each slice with so many processes."""
    per_process = each // processes_each
    return [Device(i, i // per_process, i // each) for i in range(number * each)]


def processes(number, each):
    """Devices of a platform that knows no slices."""
    sliceless = dataclasses.make_dataclass("Sliceless", ["id", "process_index", "platform", "device_kind"], frozen=True)
    return [sliceless(i, i // each, "cpu", "cpu") for i in range(number * each)]


def tpus(*block, slice_index=0):
    """A slice of TPU devices that fill a block."""
    places = itertools.product(*(range(size) for size in block))
    return [
        Device(1000 * slice_index + i, i // 4, slice_index, (x, y, z), 0, "tpu", "TPU v4")
        for i, (z, y, x) in enumerate(places)
    ]


def ids(mesh):
    return [device.id for device in mesh.devices.flat]


def crossed(mesh, attribute):
    """How many slices or processes each mesh axis goes through, the same on every line of the mesh."""
    counts = []
    for axis in range(mesh.devices.ndim):
        lines = np.moveaxis(mesh.devices, axis, 0).reshape(mesh.devices.shape[axis], -1).T
        (count,) = {len({getattr(device, attribute) for device in line}) for line in lines}
        counts.append(count)
    return tuple(counts)


@pytest.mark.parametrize(
    ("number", "sizes", "expected"),
    [
        (2, (2, 4), (2, 1)),
        (2, (1, 8), (1, 2)),
        (2, (3, 8), (1, 2)),
        (2, (3, 2, 4), (1, 2, 1)),
        (4, (2, 12), (2, 2)),
        (4, (24,), (4,)),
        (6, (3, 1, 4), (3, 1, 2)),
        (6, (4, 9), (2, 3)),
    ],
)
def test_the_axes_that_can_cross_the_slices_do(number, sizes, expected):
    devices = slices(number, prod(sizes) // number)
    for use_jax in (False, True):
        mesh = create_mesh(sizes, tuple("abc"[: len(sizes)]), devices=devices, use_jax=use_jax)
        assert mesh.devices.shape == sizes
        assert crossed(mesh, "slice_index") == expected


def test_factors_are_given_by_name_too():
    for factors in ({"model": 2}, {"model": -1}, {"model": 2, "data": 1}):
        mesh = create_mesh((4, 4), ("data", "model"), factors, devices=slices(2, 8))
        assert crossed(mesh, "slice_index") == (1, 2)
    for text in ("model:2", "1, 2", "model:-1"):
        assert parse_mesh_from_string("4,4", ["data", "model"], devices=slices(2, 8), dcn_mesh_dims=text) == mesh
    with refusal("no mesh axis 'modle' for `dcn_mesh_dims`; did you mean 'model'?"):
        create_mesh((4, 4), ("data", "model"), {"modle": 2}, devices=slices(2, 8))


@given(data=st.data(), use_jax=st.booleans(), by_slice=st.booleans(), count=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_factors_are_on_the_axes_that_were_asked_throughout_the_mesh(data, use_jax, by_slice, count):
    def split(number):
        """A random split of a number into one factor per axis."""
        factors = []
        for _ in range(count - 1):
            factors.append(data.draw(st.sampled_from([n for n in range(1, number + 1) if number % n == 0])))
            number //= factors[-1]
        return data.draw(st.permutations([*factors, number]))

    few = st.integers(1, 3)
    number, each, held = data.draw(few), data.draw(few), data.draw(st.sampled_from([1, 2, 4]))
    devices = slices(number, each * held, processes_each=each)
    granules = number if by_slice else number * each
    factors = split(granules)
    sizes = [factor * within for factor, within in zip(factors, split(len(devices) // granules), strict=True)]
    mesh = create_mesh(sizes, ("a", "b", "c")[:count], factors, devices=devices, use_jax=use_jax)
    assert mesh.devices.shape == tuple(sizes)
    assert sorted(ids(mesh)) == list(range(len(devices)))
    assert crossed(mesh, "slice_index" if by_slice else "process_index") == tuple(factors)


@pytest.mark.parametrize("sizes", [(4, 4), (16, 1), (1, 16), (2, 8), (2, 2, 4), (3, 5)])
def test_the_builder_changes_neither_arrangement_nor_types(sizes):
    names, devices = tuple("abc"[: len(sizes)]), tpus(1, 4, 4)[: prod(sizes)]
    try:
        jaxs = create_mesh(sizes, names, axis_types="explicit", devices=devices, use_jax=True)
    except ValueError as error:
        assert f"cannot lay out mesh (a: {sizes[0]}, b: {sizes[1]}" in str(error)
        assert "complete blocks of the network, other sizes, or `use_jax=False`. JAX's error: " in str(error)
        assert sizes in [(2, 8), (2, 2, 4), (3, 5)]
    else:
        ours = create_mesh(sizes, names, axis_types="explicit", devices=devices)
        assert (ours, ids(ours)) == (jaxs, ids(jaxs))
        assert sizes in [(4, 4), (16, 1), (1, 16)]


@pytest.mark.parametrize("use_jax", [False, True])
def test_the_environment_does_not_say_how_many_slices_there_are(monkeypatch, use_jax):
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "2")
    mesh = create_mesh((2, 4), ("data", "model"), use_jax=use_jax)
    assert ids(mesh) == list(range(8))
    mesh = create_mesh((2, 4), ("data", "model"), devices=slices(4, 2), use_jax=use_jax)
    assert crossed(mesh, "slice_index") == (2, 2)


def test_slices_and_processes_are_in_the_order_of_their_index_unless_told_otherwise():
    devices = slices(2, 2)[::-1]
    assert ids(create_mesh((2, 2), ("a", "b"), devices=devices)) == [0, 1, 2, 3]
    mesh = create_mesh((2, 2), ("a", "b"), None, False, devices=devices)
    assert ids(mesh) == [2, 3, 0, 1]
    assert ids(create_mesh((4, 4), ("data", "model"), (2, 1), devices=slices(2, 8))) == list(range(16))
    mesh = create_mesh((4, 4), ("data", "model"), (1, 2), devices=slices(2, 8))
    assert [[device.slice_index for device in row] for row in mesh.devices] == [[0, 0, 1, 1]] * 4
    for sizes, use_jax in itertools.product([(2, 5), (10,), (2, 1, 5)], (False, True)):
        mesh = create_mesh(sizes, tuple("abc"[: len(sizes)]), devices=processes(5, 2), use_jax=use_jax)
        assert mesh.devices.shape == sizes
        assert ids(mesh) == list(range(10))


def test_factors_may_count_processes():
    devices = slices(2, 4, processes_each=2)
    assert crossed(create_mesh((4, 2), ("a", "b"), (4, 1), devices=devices), "process_index") == (4, 1)
    assert crossed(create_mesh((4, 2), ("a", "b"), (-1, 1), devices=devices), "slice_index") == (2, 1)
    names, sizes = ("dp", "fsdp", "ep", "tp", "sp"), (1, 4, 1, 2, 1)
    for factors in [(1, 1, 1, 2, 1), (1, 2, 1, 1, 1), (1, 1, 1, -1, 1)]:
        mesh = create_mesh(sizes, names, factors, devices=processes(2, 4))
        assert mesh.devices.shape == sizes
        assert crossed(mesh, "process_index") == tuple(abs(2 if factor == -1 else factor) for factor in factors)
    assert ids(create_mesh((2, 4), ("a", "b"), (1, 1), devices=processes(2, 4))) == list(range(8))


def test_factors_multiply_to_the_number_of_slices():
    for first, second in [(1, 1), (4, 1), (2, 2), (-1, -1), (0, 2), (-2, -1), (3, -1)]:
        with refusal(
            f"`dcn_mesh_dims` (data: {first}, model: {second}) must multiply to the number of slices, with at most one "
            "`-1`, for mesh (data: 4, model: 4) over 2 slices; (data: 2, model: 1) would do"
        ):
            create_mesh((4, 4), ("data", "model"), (first, second), devices=slices(2, 8))


def test_impossible_factors_are_an_error():
    names, devices = ("a", "b"), processes(2, 4)
    with refusal(
        "`dcn_mesh_dims` divides mesh axis 'a' of size 3 by 2, for mesh (a: 3, b: 4) over 2 slices; (a: 1, b: 2) "
    ):
        create_mesh((3, 4), names, (2, 1), devices=slices(2, 6))
    with refusal("must multiply to the number of processes"):
        create_mesh((4, 2), names, (4, 1), devices=devices)
    with refusal("`dcn_mesh_dims` (2,) and mesh (a: 4, b: 2) have 1 and 2 entries"):
        create_mesh((4, 2), names, (2,), devices=devices)
    with refusal("over 1 slice; (a: 1, b: 1) would do"):
        create_mesh((4, 2), names, (2, 1), devices=processes(1, 8))
    for factors in ((2.0, 1), {"a": 2.0}):
        with refusal("`dcn_mesh_dims` holds 2.0, which is not an integer", TypeError):
            create_mesh((4, 2), names, factors, devices=devices)
    with refusal("`dcn_mesh_dims` is a sequence of integers", TypeError):
        create_mesh((4, 2), names, 2, devices=devices)


def test_slices_have_equally_many_devices():
    with refusal(
        "a mesh over several slices needs the same number of devices in each, and there are 4 in slice 0, 2 in "
        "slice 1; pass `devices` with the same number from each"
    ):
        create_mesh((2, 3), ("a", "b"), devices=slices(2, 4)[:6])
    with refusal("there are 4 in process 0, 2 in process 1"):
        create_mesh((2, 3), ("a", "b"), (2, 1), devices=processes(2, 4)[:6])
    with refusal("mesh (a: 3, b: 2) needs 6 devices, but there are 8; the nearest fit is"):
        create_mesh((3, 2), ("a", "b"), devices=slices(2, 4))
    devices = [device for device in slices(2, 4) if device.id % 4 < 2]
    assert crossed(create_mesh((2, 2), ("a", "b"), devices=devices), "slice_index") == (2, 1)


def test_a_mesh_follows_the_networks_of_slices():
    for sizes in [(4, 4), (2, 8), (16, 1), (2, 2, 4), (1, 16)]:
        mesh = create_mesh(sizes, tuple("abc"[: len(sizes)]), devices=tpus(1, 4, 4))
        assert mesh.devices.shape == sizes
        assert sorted(ids(mesh)) == list(range(16))
    mesh = create_mesh((4, 8), ("data", "model"), devices=tpus(1, 4, 4) + tpus(1, 4, 4, slice_index=1))
    assert mesh.devices.shape == (4, 8)
    assert crossed(mesh, "slice_index") == (2, 1)
    with refusal("JAX cannot lay out mesh (a: 3, b: 5) on the network of these devices"):
        create_mesh((3, 5), ("a", "b"), devices=tpus(1, 4, 4)[:15])
    with refusal("other sizes, or `allow_split_physical_axes=True`"):
        create_mesh((2, 8), ("a", "b"), None, True, False, devices=tpus(1, 4, 4))


@pytest.mark.parametrize("number", [1, 2])
def test_a_described_device_has_what_jax_asks_of_it(number):
    devices = [device for index in range(number) for device in tpus(1, 2, 4, slice_index=index)]

    def described(left_out):
        fields = [
            field for field in ("id", "process_index", "slice_index", "coords", "core_on_chip") if field != left_out
        ]
        known = dataclasses.make_dataclass("Described", fields, frozen=True)
        known.platform, known.device_kind = "tpu", "TPU v4"
        return [known(**{field: getattr(device, field) for field in fields}) for device in devices]

    for use_jax in (False, True):
        assert create_mesh((number, 8), ("a", "b"), devices=described(None), use_jax=use_jax).size == 8 * number
        for name in ("coords", "core_on_chip"):
            text = f"`devices` holds a `Described` without `{name}`, which JAX needs to lay out the mesh"
            with refusal(text, TypeError):
                create_mesh((number, 8), ("a", "b"), devices=described(name), use_jax=use_jax)


def test_a_host_has_its_part_of_the_mesh():
    for shape, each, number, expected in [
        ((2, 4), 4, 2, (1, 4)),
        ((1, 4, 3), 4, 3, (1, 4, 1)),
        ((4, 6), 4, 6, (2, 2)),
        ((2, 6), 4, 3, (2, 2)),
        ((2, 5), 2, 5, (2, 1)),
        ((8, 4, 4), 8, 16, (1, 2, 4)),
        ((1, 8), 8, 1, (1, 8)),
        ((), 1, 1, ()),
    ]:
        assert calculate_host_mesh_shape(shape, each, number) == expected
        if shape:  # `create_mesh` places them so
            factors = tuple(size // within for size, within in zip(shape, expected, strict=True))
            mesh = create_mesh(shape, tuple("abc"[: len(shape)]), factors, devices=processes(number, each))
            assert crossed(mesh, "process_index") == factors
    assert calculate_host_mesh_shape((2, 4)) == (2, 4)
    assert calculate_host_mesh_shape((2, 8), num_processes=2) == (1, 8)


def test_a_mesh_that_is_not_over_all_hosts_is_an_error():
    with refusal("mesh shape (2, 4) does not fit 6 devices, 3 in each of 2 processes; the nearest fit is (2, 3)"):
        calculate_host_mesh_shape((2, 4), 3, 2)
    with refusal("mesh shape (2, -1) does not fit 8 devices"):
        calculate_host_mesh_shape((2, -1), 4, 2)
    with refusal("`total_devices` is 0 and `num_processes` is 2; both must be positive"):
        calculate_host_mesh_shape((2, 4), 0, 2)
    with refusal("`total_devices` holds 4.0, which is not an integer", TypeError):
        calculate_host_mesh_shape((2, 4), 4.0, 2)

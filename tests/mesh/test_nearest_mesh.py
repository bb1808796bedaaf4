"""Sizes and names that do not fit the devices, and the nearest mesh that does."""

import itertools
import re
from math import prod

import jax
import pytest
from hypothesis import assume, example, given, settings, strategies as st

from axonym.mesh import create_mesh, parse_mesh_from_string


quick = settings(deadline=None, max_examples=60)
fit_in = re.compile(r"the nearest fit is \((.*?)\)")


@given(
    sizes=st.lists(st.integers(-2, 20) | st.just(10**12), min_size=1, max_size=5),
    count=st.integers(1, 8),
)
@quick
def test_an_impossible_mesh_has_a_nearest_fit_that_can_be_made(sizes, count):
    names, devices = "abcde"[: len(sizes)], jax.devices()[:count]
    try:
        mesh = create_mesh(sizes, tuple(names), devices=devices)
    except ValueError as error:
        fit = fit_in.search(str(error))
        assert fit is not None
        mesh = parse_mesh_from_string(fit[1], tuple(names), devices=devices)
        assert mesh.axis_names == tuple(names)
    else:
        assert all(size in (-1, got) for size, got in zip(sizes, mesh.devices.shape, strict=True))
    assert mesh.devices.size == count


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            (3, 4),
            "mesh (data: 3, model: 4) needs 12 devices, but there are 8; the nearest fit is (data: 2, model: 4)",
        ),
        (
            (3, -1),
            "mesh (data: 3, model: -1) needs a multiple of 3 devices, but there are 8; "
            "the nearest fit is (data: 4, model: 2)",
        ),
        ((2, 2), "the nearest fit is (data: 4, model: 2), or pass 4 of them as `devices`"),
        ((4, 4), "the nearest fit is (data: 2, model: 4)"),
        ((16, -1), "the nearest fit is (data: 8, model: 1)"),
        ((9, 1), "needs 9 devices, but there are 8; the nearest fit is (data: 8, model: 1)"),
        (
            (-1, -1),
            "mesh (data: -1, model: -1) over 8 devices has more than one `-1`; the nearest fit is (data: 1, model: 8)",
        ),
        (
            (-2, 4),
            "mesh axis 'data' has size -2 in mesh (data: -2, model: 4) over 8 devices; "
            "sizes are positive, or -1 to infer one; the nearest fit is (data: 2, model: 4)",
        ),
        ((2, -3), "mesh axis 'model' has size -3"),
        ((0, 8), "mesh axis 'data' has size 0"),
        ((0, -1), "mesh axis 'data' has size 0"),
        (
            (2,),
            "`axis_dims` (2,) and `axis_names` ('data', 'model') for a mesh over 8 devices have "
            "1 and 2 entries; the nearest fit is (data: 2, model: 4)",
        ),
        ((2, 2, 2), "have 3 and 2 entries; the nearest fit is (data: 4, model: 2)"),
        ((), "have 0 and 2 entries; the nearest fit is (data: 1, model: 8)"),
    ],
)
def test_sizes_that_do_not_fit_are_an_error_with_the_nearest_fit(sizes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        create_mesh(sizes, ("data", "model"))


@pytest.mark.parametrize(
    ("sizes", "example"),
    [
        ((8,), '`create_mesh((8,), ("data",))`'),
        ((4, 2), '`create_mesh((4, 2), ("data", "model"))`'),
        ((2, 2, 2), '`create_mesh((2, 2, 2), ("data", "model", ...))`'),
    ],
)
def test_sizes_without_names_are_an_error_that_asks_for_names(sizes, example):
    text = f"('dp', 'fsdp', 'ep', 'tp', 'sp') have {len(sizes)} and 5 entries; give names too, as in {example}"
    with pytest.raises(ValueError, match=re.escape(text) + "$"):
        create_mesh(sizes)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3), count=st.integers(1, 8))
@example(sizes=[2, 2, 4], count=4)
@quick
def test_no_mesh_keeps_more_of_the_sizes_than_the_nearest_fit(sizes, count):
    def kept(others):
        return sum(size == other for size, other in zip(sizes, others, strict=True))

    assume(prod(sizes) != count)
    names, devices = ("a", "b", "c")[: len(sizes)], jax.devices()[:count]
    with pytest.raises(ValueError, match=fit_in) as caught:
        create_mesh(sizes, names, devices=devices)
    fit = fit_in.search(str(caught.value))
    assert fit is not None
    mesh = parse_mesh_from_string(fit[1], names, devices=devices)
    possible = itertools.product(range(1, count + 1), repeat=len(sizes))
    assert kept(mesh.devices.shape) == max(kept(some) for some in possible if prod(some) == count)


def test_one_device_is_written_in_the_singular():
    message = "mesh (a: 2) needs 2 devices, but there is 1; the nearest fit is (a: 1)"
    with pytest.raises(ValueError, match=re.escape(message)):
        create_mesh((2,), ("a",), devices=jax.devices()[:1])
    with pytest.raises(ValueError, match="needs 1 device, but there are 8"):
        create_mesh((1,), ("a",))


def test_two_wildcards_are_an_error_even_with_one_device():
    with pytest.raises(ValueError, match="over 1 device has more than one `-1`"):
        create_mesh((-1, -1), ("a", "b"), devices=jax.devices()[:1])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "a"), "more than one axis called 'a'; the nearest fit is (a: 2, a_2: 4)"),
        (("a", ""), "an axis with an empty name; the nearest fit is (a: 2, axis_2: 4)"),
        ((" ", "axis_2"), "an axis with an empty name; the nearest fit is (axis_3: 2, axis_2: 4)"),
        ((), "have 2 and 0 entries; the nearest fit is (data: 8)"),
    ],
)
def test_empty_and_repeated_names_are_an_error(names, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        create_mesh((2, 4), names)


def test_a_mesh_has_an_axis():
    with pytest.raises(ValueError, match=r"at least one axis; the nearest fit is \(data: 8\)"):
        create_mesh((), ())

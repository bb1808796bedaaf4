"""Sizes, names, axis types and strings: what is checked before a mesh is made, and the nearest mesh."""

import itertools
import re
from math import prod

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from jax.sharding import AxisType

from axonym.mesh import create_mesh, parse_mesh_from_string

from ..refusals import refusal


quick = settings(deadline=None, max_examples=100)
fit_in = re.compile(r"the nearest fit is \((.*?)\)")


def test_sizes_and_names_are_sequences_of_integers_and_strings():
    for sizes in (8, None, {2, 4}, "2,4"):
        with refusal("`axis_dims` is a sequence of integers", TypeError):
            create_mesh(sizes, ("a", "b"))
    for names in ("ab", 3, {"a", "b"}):
        with refusal("`axis_names` is a sequence of strings", TypeError):
            create_mesh((2, 4), names)
    with refusal("`axis_names` holds 1, which is not a string", TypeError):
        create_mesh((2, 4), ("a", 1))
    for sizes in ([2, 4], np.array([2, 4]), (np.int64(2), np.int8(4))):
        assert create_mesh(sizes, ["a", "b"]).devices.shape == (2, 4)
    for sizes in [(2.0, 4), (True, 8), ("2", 4), (None, 4), (np.bool_(True), 8)]:
        with pytest.raises(TypeError, match=r"`axis_dims` holds .*, which is not an integer"):
            create_mesh(sizes, ("a", "b"))


def test_axis_types_are_taken_in_every_form():
    auto, explicit, manual = AxisType.Auto, AxisType.Explicit, AxisType.Manual
    for axis_types, expected in [
        (None, (auto, auto)),
        ("auto", (auto, auto)),
        (" Explicit ", (explicit, explicit)),
        ("MANUAL", (manual, manual)),
        (explicit, (explicit, explicit)),
        (["auto", explicit], (auto, explicit)),
        (("Manual", "explicit"), (manual, explicit)),
    ]:
        for builder in (False, True):
            assert create_mesh((2, 4), ("a", "b"), axis_types=axis_types, use_jax=builder).axis_types == expected


def test_axis_types_that_cannot_be_read_are_an_error():
    for axis_types, text in [
        ("explict", "no axis type 'explict'; did you mean 'explicit'"),
        (["auto", "-"], "no axis type '-'; the choices are 'auto', 'explicit'"),
        (["auto"], "(a, b) have 1 and 2 entries; give one type per axis"),
    ]:
        with refusal(text):
            create_mesh((2, 4), ("a", "b"), axis_types=axis_types)
    for axis_types, text in [(3, "`axis_types` is an `AxisType`, one of"), ([3, 4], "`axis_types` holds 3")]:
        with refusal(text, TypeError):
            create_mesh((2, 4), ("a", "b"), axis_types=axis_types)


def test_a_string_is_read():
    for text, expected in [
        ("dp:2,tp:4", (2, 4)),
        ("  dp : 2 ,\ttp :4\n", (2, 4)),
        ("tp:4,dp:2", (2, 4)),
        ("tp:-1", (1, 8)),
        (" 2 , -1 ", (2, 4)),
    ]:
        mesh = parse_mesh_from_string(text, ["dp", "tp"])
        assert (mesh.axis_names, mesh.devices.shape) == (("dp", "tp"), expected), text


def test_names_in_a_string_may_be_in_any_order_hold_colons_or_be_left_out():
    for order in itertools.permutations([("a", 1), ("b", 2), ("c", 4)]):
        text = ", ".join(f"{name}:{size}" for name, size in order)
        assert parse_mesh_from_string(text, ("a", "b", "c")) == create_mesh((1, 2, 4), ("a", "b", "c"))
    assert parse_mesh_from_string("fsdp:8", ("dp", "fsdp", "ep", "tp", "sp")).devices.shape == (1, 8, 1, 1, 1)
    assert dict(parse_mesh_from_string("a:b:8", ["a:b"]).shape) == {"a:b": 8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the mesh string '' is empty"),
        ("2,4,", "entry 3 of the mesh string '2,4,' is empty"),
        ("dp:2,,tp:4", "entry 2 of the mesh string 'dp:2,,tp:4' is empty"),
        ("dp=2", "'dp=2' in 'dp=2' is not `name:size`; write 'dp:2'"),
        ("dp:2,tp", "'tp' in 'dp:2,tp' is not `name:size`; give every entry a name, or none"),
        ("dp:2,tpp:4", "no mesh axis 'tpp' for 'dp:2,tpp:4'; did you mean 'tp'?"),
        ("expert:2", "no mesh axis 'expert' for 'expert:2'; the choices are 'dp', 'tp'"),
        (":2", "no mesh axis '' for ':2'"),
        ("dp:2,dp:4", "mesh axis 'dp' is in 'dp:2,dp:4' twice"),
        ("dp:x", "'dp:x' in the mesh string 'dp:x' has no integer for a size"),
        ("2,1_0", "'1_0' in the mesh string '2,1_0' has no integer for a size"),
        ("2", "'2' and the names ('dp', 'tp') have 1 and 2 entries; give one size per name"),
    ],
)
def test_a_string_that_cannot_be_read_is_an_error_that_quotes_it(text, message):
    with refusal(message):
        parse_mesh_from_string(text, ["dp", "tp"])


def test_a_mesh_string_is_a_string():
    with refusal("`axis_dims` is a string such as '2,4'", TypeError):
        parse_mesh_from_string((2, 4), ["dp", "tp"])
    with refusal("`names` is a sequence of strings", TypeError):
        parse_mesh_from_string("2,4", "dp")


@given(sizes=st.lists(st.integers(-2, 9) | st.just(10**12), min_size=1, max_size=3), count=st.integers(1, 8))
@example(sizes=[2, 2, 4], count=4)
@quick
def test_an_impossible_mesh_has_a_nearest_fit_that_can_be_made_and_keeps_most_of_the_sizes(sizes, count):
    def kept(others):
        return sum(size == other for size, other in zip(sizes, others, strict=True))

    names, devices = tuple("abc"[: len(sizes)]), jax.devices()[:count]
    try:
        mesh = create_mesh(sizes, names, devices=devices)
    except ValueError as error:
        fit = fit_in.search(str(error))
        assert fit is not None
        mesh = parse_mesh_from_string(fit[1], names, devices=devices)
        possible = [
            shape for shape in itertools.product(range(1, count + 1), repeat=len(sizes)) if prod(shape) == count
        ]
        assert min(sizes) < 1 or kept(mesh.devices.shape) == max(map(kept, possible))
    else:
        assert all(size in (-1, got) for size, got in zip(sizes, mesh.devices.shape, strict=True))
    assert mesh.devices.size == count
    assert mesh.axis_names == names


SIZES = "sizes are positive, or -1 to infer one"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((3, 4), "mesh (data: 3, model: 4) needs 12 devices, but there are 8; the nearest fit is (data: 2, model: 4)"),
        ((3, -1), "needs a multiple of 3 devices, but there are 8; the nearest fit is (data: 4, model: 2)"),
        ((2, 2), "the nearest fit is (data: 4, model: 2), or pass 4 of them as `devices`"),
        ((-1, -1), "over 8 devices has more than one `-1`; the nearest fit is (data: 1, model: 8)"),
        ((-2, 4), f"mesh axis 'data' has size -2 in mesh (data: -2, model: 4) over 8 devices; {SIZES}; the nearest"),
        ((2,), "`axis_dims` (2,) and `axis_names` ('data', 'model') for a mesh over 8 devices have 1 and 2"),
        ((), "have 0 and 2 entries; the nearest fit is (data: 1, model: 8)"),
    ],
)
def test_sizes_that_do_not_fit_are_an_error_with_the_nearest_fit(sizes, message):
    with refusal(message):
        create_mesh(sizes, ("data", "model"))


def test_sizes_without_names_are_an_error_that_asks_for_names():
    names = {1: '("data",)', 2: '("data", "model")', 3: '("data", "model", ...)'}
    for sizes in ((8,), (4, 2), (2, 2, 2)):
        count = len(sizes)
        text = f"have {count} and 5 entries; give names too, as in `create_mesh({sizes}, {names[count]})`"
        with pytest.raises(ValueError, match=re.escape(text) + "$"):
            create_mesh(sizes)


def test_one_device_is_written_in_the_singular():
    device = jax.devices()[:1]
    with refusal("mesh (a: 2) needs 2 devices, but there is 1; the nearest fit is (a: 1)"):
        create_mesh((2,), ("a",), devices=device)
    with refusal("needs 1 device, but there are 8"):
        create_mesh((1,), ("a",))
    with refusal("over 1 device has more than one `-1`"):
        create_mesh((-1, -1), ("a", "b"), devices=device)


def test_empty_repeated_and_missing_names_are_an_error():
    for sizes, names, text in [
        ((2, 4), ("a", "a"), "more than one axis called 'a'; the nearest fit is (a: 2, a_2: 4)"),
        ((2, 4), ("a", ""), "an axis with an empty name; the nearest fit is (a: 2, axis_2: 4)"),
        ((2, 4), (" ", "axis_2"), "an axis with an empty name; the nearest fit is (axis_3: 2, axis_2: 4)"),
        ((2, 4), (), "have 2 and 0 entries; the nearest fit is (data: 8)"),
        ((), (), "at least one axis; the nearest fit is (data: 8)"),
    ]:
        with refusal(text):
            create_mesh(sizes, names)

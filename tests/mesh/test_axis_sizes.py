"""Sizes, names, axis types and strings: what is parsed and checked before a mesh is made."""

import re

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import AxisType

from axonym.mesh import create_mesh, parse_mesh_from_string


quick = settings(deadline=None, max_examples=60)


def sizes_of(mesh):
    return dict(mesh.shape)


@given(data=st.data())
@quick
def test_a_wildcard_takes_what_the_other_sizes_leave(data):
    devices = jax.devices()[: data.draw(st.integers(1, 8))]
    first = data.draw(st.sampled_from([n for n in range(1, 9) if len(devices) % n == 0]))
    left = len(devices) // first
    second = data.draw(st.sampled_from([n for n in range(1, 9) if left % n == 0]))
    sizes = [first, second, left // second]
    asked = list(sizes)
    asked[data.draw(st.integers(0, 2))] = -1
    assert create_mesh(asked, ("a", "b", "c"), devices=devices).devices.shape == tuple(sizes)


@pytest.mark.parametrize("sizes", [(2.0, 4), (True, 8), ("2", 4), (None, 4), (np.bool_(True), 8)])
def test_a_size_is_an_integer(sizes):
    with pytest.raises(TypeError, match=r"`axis_dims` holds .*, which is not an integer"):
        create_mesh(sizes, ("a", "b"))


@pytest.mark.parametrize("sizes", [8, None, {2, 4}, "2,4"])
def test_sizes_are_a_sequence_of_integers(sizes):
    with pytest.raises(TypeError, match="`axis_dims` is a sequence of integers"):
        create_mesh(sizes, ("a", "b"))


def test_integers_and_sequences_of_other_kinds_are_taken():
    for sizes in ([2, 4], np.array([2, 4]), (np.int64(2), np.int8(4))):
        assert create_mesh(sizes, ["a", "b"]).devices.shape == (2, 4)


@pytest.mark.parametrize("names", ["ab", "data", 3, {"a", "b"}])
def test_names_are_a_sequence_of_strings(names):
    with pytest.raises(TypeError, match="`axis_names` is a sequence of strings"):
        create_mesh((2, 4), names)


def test_a_name_is_a_string():
    with pytest.raises(TypeError, match="`axis_names` holds 1, which is not a string"):
        create_mesh((2, 4), ("a", 1))


@pytest.mark.parametrize("builder", [False, True])
@pytest.mark.parametrize(
    ("axis_types", "expected"),
    [
        (None, (AxisType.Auto, AxisType.Auto)),
        ("auto", (AxisType.Auto, AxisType.Auto)),
        (" Explicit ", (AxisType.Explicit, AxisType.Explicit)),
        ("MANUAL", (AxisType.Manual, AxisType.Manual)),
        (AxisType.Explicit, (AxisType.Explicit, AxisType.Explicit)),
        (["auto", AxisType.Explicit], (AxisType.Auto, AxisType.Explicit)),
        (("Manual", "explicit"), (AxisType.Manual, AxisType.Explicit)),
    ],
)
def test_axis_types_are_taken_in_every_form(axis_types, expected, builder):
    mesh = create_mesh((2, 4), ("a", "b"), axis_types=axis_types, use_jax=builder)
    assert mesh.axis_types == expected


def test_axis_types_that_cannot_be_read_are_an_error():
    with pytest.raises(ValueError, match="no axis type 'explict'; did you mean 'explicit'"):
        create_mesh((2, 4), ("a", "b"), axis_types="explict")
    with pytest.raises(ValueError, match="no axis type '-'; the choices are 'auto', 'explicit'"):
        create_mesh((2, 4), ("a", "b"), axis_types=["auto", "-"])
    with pytest.raises(ValueError, match=r"\(a, b\) have 1 and 2 entries; give one type per axis"):
        create_mesh((2, 4), ("a", "b"), axis_types=["auto"])
    with pytest.raises(TypeError, match="`axis_types` is an `AxisType`, one of"):
        create_mesh((2, 4), ("a", "b"), axis_types=3)
    with pytest.raises(TypeError, match="`axis_types` holds 3"):
        create_mesh((2, 4), ("a", "b"), axis_types=[3, 4])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dp:2,tp:4", {"dp": 2, "tp": 4}),
        ("dp:2, tp:4", {"dp": 2, "tp": 4}),
        ("  dp : 2 ,\ttp :4\n", {"dp": 2, "tp": 4}),
        ("tp:4,dp:2", {"dp": 2, "tp": 4}),
        ("tp:-1", {"dp": 1, "tp": 8}),
        ("dp:+2,tp:- 1", {"dp": 2, "tp": 4}),
        ("dp:8", {"dp": 8, "tp": 1}),
        ("2,4", {"dp": 2, "tp": 4}),
        (" 2 , -1 ", {"dp": 2, "tp": 4}),
    ],
)
def test_a_string_is_read(text, expected):
    mesh = parse_mesh_from_string(text, ["dp", "tp"])
    assert sizes_of(mesh) == expected
    assert mesh.axis_names == ("dp", "tp")


def test_names_that_the_string_leaves_out_get_size_one():
    mesh = parse_mesh_from_string("fsdp:8", ("dp", "fsdp", "ep", "tp", "sp"))
    assert mesh.devices.shape == (1, 8, 1, 1, 1)


def test_a_name_may_hold_a_colon():
    assert sizes_of(parse_mesh_from_string("a:b:8", ["a:b"])) == {"a:b": 8}


@given(sizes=st.permutations([1, 2, 4]), order=st.permutations(range(3)), space=st.booleans())
@quick
def test_the_order_of_the_names_is_the_order_of_the_mesh(sizes, order, space):
    names = ("a", "b", "c")
    text = ("  , " if space else ",").join(f"{names[i]}:{sizes[i]}" for i in order)
    assert parse_mesh_from_string(text, names) == create_mesh(sizes, names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the mesh string '' is empty"),
        ("  ", "the mesh string '  ' is empty"),
        ("2,4,", "entry 3 of the mesh string '2,4,' is empty"),
        ("dp:2,,tp:4", "entry 2 of the mesh string 'dp:2,,tp:4' is empty"),
        (",", "entry 1 of the mesh string ',' is empty"),
        ("dp=2", "'dp=2' in 'dp=2' is not `name:size`; write 'dp:2'"),
        ("dp:2,tp = 4", "'tp = 4' in 'dp:2,tp = 4' is not `name:size`; write 'tp:4'"),
        ("dp:2,tp", "'tp' in 'dp:2,tp' is not `name:size`; give every entry a name, or none"),
        ("dp:2,4", "'4' in 'dp:2,4' is not `name:size`"),
        ("dp:2,tpp:4", "no mesh axis 'tpp' for 'dp:2,tpp:4'; did you mean 'tp'?"),
        ("expert:2", "no mesh axis 'expert' for 'expert:2'; the choices are 'dp', 'tp'"),
        (":2", "no mesh axis '' for ':2'"),
        ("dp:2,dp:4", "mesh axis 'dp' is in 'dp:2,dp:4' twice"),
        ("dp:x", "'dp:x' in the mesh string 'dp:x' has no integer for a size"),
        ("dp:", "'dp:' in the mesh string 'dp:' has no integer for a size"),
        ("dp:2.0", "'dp:2.0' in the mesh string 'dp:2.0' has no integer for a size"),
        ("2,1_0", "'1_0' in the mesh string '2,1_0' has no integer for a size"),
        ("2 4", "'2 4' in the mesh string '2 4' has no integer for a size"),
        ("2", "'2' and the names ('dp', 'tp') have 1 and 2 entries; give one size per name"),
        ("2,2,2", "'2,2,2' and the names ('dp', 'tp') have 3 and 2 entries"),
        ("dp:-2,tp:4", "mesh axis 'dp' has size -2"),
        ("dp:-1,tp:-1", "has more than one `-1`"),
        ("dp:3,tp:4", "mesh (dp: 3, tp: 4) needs 12 devices, but there are 8"),
    ],
)
def test_a_string_that_cannot_be_read_is_an_error_that_quotes_it(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_mesh_from_string(text, ["dp", "tp"])


def test_a_mesh_string_is_a_string():
    with pytest.raises(TypeError, match="`axis_dims` is a string such as '2,4'"):
        parse_mesh_from_string((2, 4), ["dp", "tp"])
    with pytest.raises(TypeError, match="`names` is a sequence of strings"):
        parse_mesh_from_string("2,4", "dp")

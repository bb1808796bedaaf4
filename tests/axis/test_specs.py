"""The forms in which axes are given, turned into one another, looked up and compared; and the algebra of axes."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import axonym as nym
from axonym import Axis, axis
from tests.refusals import refusal


Batch, Pos, Embed = nym.make_axes(batch=2, pos=4, embed=3)
SIZES = {"batch": 2, "pos": 4, "embed": 3}
BINARY = [axis.concat_axes, axis.union_axes, axis.intersect_axes, axis.eliminate_axes, axis.without_axes]
NO_SIZE = "give `Axis('batch', size)` instead of 'batch'"
NO_AXIS = "An axis is given by an `Axis` or by its name, not by "
SIZE_OF_POS = "axis 'pos' has size 4 here, 5 was asked for"


@pytest.mark.parametrize(
    "spec",
    [(Batch, Embed), [Batch, Embed], {"batch": 2, "embed": 3}, nym.ones((Batch, Embed)).shape],
    ids=["tuple", "list", "mapping", "shape"],
)
def test_every_form_of_a_spec_gives_the_same(spec):
    assert axis.axis_size(spec) == 6
    assert axis.axis_spec_to_tuple(spec) == (Batch, Embed)
    assert axis.axis_spec_to_shape_dict(spec) == {"batch": 2, "embed": 3}
    assert axis.to_jax_shape(spec) == (2, 3)
    assert axis.axis_name(spec) == ("batch", "embed")
    assert axis.resolve_axis(spec, "embed") == axis.resolve_axis(spec, Embed) == Embed


def test_one_axis_and_no_axes_are_specs():
    assert axis.axis_size(Embed) == 3
    assert axis.axis_spec_to_tuple(Embed) == (Embed,)
    assert axis.axis_spec_to_shape_dict(Embed) == {"embed": 3}
    assert axis.to_jax_shape(Embed) == (3,)
    assert axis.axis_size(()) == axis.axis_size({}) == 1
    assert axis.to_jax_shape(()) == axis.axis_spec_to_tuple({}) == axis.axis_name(()) == ()


@pytest.mark.parametrize("function", [axis.axis_size, axis.axis_spec_to_tuple, axis.axis_spec_to_shape_dict])
def test_a_spec_has_sizes_and_unique_names(function):
    with refusal(NO_SIZE, TypeError):
        function((Embed, "batch"))
    with refusal("with a name and a size, not by 3", TypeError):
        function((Embed, 3))
    with refusal("axis 'embed' occurs more than once in (embed, embed)"):
        function((Embed, Axis("embed", 4)))


def test_axis_name():
    assert axis.axis_name is nym.axis_name
    assert nym.axis_name(Batch) == nym.axis_name("batch") == "batch"
    assert nym.axis_name(["embed", Batch]) == nym.axis_name({"embed": None, "batch": 2}) == ("embed", "batch")
    for wrong, shown in (
        (3, "3"),
        (("batch", 3), "3"),
        ((("batch",),), "('batch')"),
        (jnp.ones(2), "an array of shape (2,)"),
        (np.array(["batch"]), "an array of shape (1,)"),
    ):
        with refusal(f"{NO_AXIS}{shown}.", TypeError):
            nym.axis_name(wrong)


def test_to_jax_shape_takes_integers():
    assert axis.to_jax_shape(4) == axis.to_jax_shape(np.int64(4)) == (4,)  # pyright: ignore[reportArgumentType]
    assert axis.to_jax_shape((4, Embed, np.int64(2), Batch)) == (4, 3, 2, 2)
    assert all(type(size) is int for size in axis.to_jax_shape((np.int64(2),)))
    for wrong in ((4, "batch"), "batch"):
        with refusal(NO_SIZE, TypeError):
            axis.to_jax_shape(wrong)  # pyright: ignore[reportArgumentType]
    with refusal("with a name and a size, not by 2.5", TypeError):
        axis.to_jax_shape((2.5,))  # pyright: ignore[reportArgumentType]


def test_resolve_axis_answers_in_the_form_of_the_selection():
    axes = (Batch, Embed)
    assert axis.resolve_axis(axes, ("embed", Batch)) == (Embed, Batch)
    assert axis.resolve_axis(axes, {"embed": None, "batch": 2}) == {"embed": 3, "batch": 2}
    assert axis.resolve_axis({"batch": 2, "embed": 3}, ["embed"]) == (Embed,)
    assert axis.resolve_axis(axes, ()) == ()
    assert axis.resolve_axis(Embed, "embed") == Embed


def test_unsize_axes():
    assert axis.unsize_axes((Batch, Embed)) == ("batch", "embed")
    assert axis.unsize_axes((Batch, Embed), "embed") == (Batch, "embed")
    assert axis.unsize_axes((Batch, "embed"), ()) == (Batch, "embed")
    assert axis.unsize_axes(Embed) == ("embed",)
    assert axis.unsize_axes({"batch": 2, "embed": 3}) == {"batch": None, "embed": None}
    assert axis.unsize_axes({"batch": 2, "embed": None}, Batch) == {"batch": None, "embed": None}


def test_an_axis_is_selected_by_its_name_and_the_size_if_one_is_given():
    both = (Batch, "embed")
    pairs = [("embed", "embed"), ("embed", Embed), (Embed, "embed"), (both, Embed), (both, {"embed": None, "batch": 2})]
    for selector, selected in (*pairs, ("embed", ())):
        assert axis.selects_axis(selector, selected) is True
    pairs = [(Embed, Axis("embed", 4)), ("embed", "batch"), (both, {"batch": 4}), ("embed", ("batch", "embed"))]
    for selector, selected in pairs:
        assert axis.selects_axis(selector, selected) is False
    assert axis.is_axis_compatible("embed", Embed) and axis.is_axis_compatible(Embed, Embed)
    assert not axis.is_axis_compatible(Embed, Axis("embed", 4))
    assert not axis.is_axis_compatible(Embed, Axis("batch", 3))


def test_the_namespace_has_the_names_of_others():
    assert axis.Axis is Axis and axis.make_axes is nym.make_axes and axis.dslice is nym.dslice
    assert axis.ds is nym.ds and axis.dblock is nym.dblock
    assert axis.concat_axis_specs is axis.concat_axes


specs = st.lists(st.sampled_from("abcde"), unique=True).map(lambda names: {name: ord(name) for name in names})


@given(specs, specs)
def test_names_form_sets_in_order(first, second):
    union, common = axis.union_axes(first, second), axis.intersect_axes(first, second)
    left = axis.without_axes(first, second)
    assert list(union) == [*first, *(name for name in second if name not in first)] and union == first | second
    assert list(common) == [name for name in first if name in second]
    assert list(left) == [name for name in first if name not in second]
    assert axis.concat_axes(left, second) == left | second
    assert axis.eliminate_axes(union, second) == left
    assert axis.union_axes(left, common) == first
    assert first == {name: ord(name) for name in first}


@pytest.mark.parametrize("function", BINARY, ids=lambda function: function.__name__)
def test_the_first_spec_gives_the_form(function):
    first, second = (Pos,) if function is axis.concat_axes else (Pos, Batch), (Batch,)
    sizes, shape = {each.name: each.size for each in first}, nym.zeros(first).shape
    expected = function(first, second)
    assert type(expected) is tuple and all(type(each) is Axis for each in expected)
    as_dict = {each.name: each.size for each in expected}
    for spec in (sizes, shape):
        for other in (second, {"batch": 2}, Batch):
            result = function(spec, other)
            assert type(result) is dict and result == as_dict and list(result) == list(as_dict)
    for other in ({"batch": 2}, Batch, [Batch]):
        assert function(list(first), other) == expected


@pytest.mark.parametrize("function", BINARY, ids=lambda function: function.__name__)
def test_what_is_no_axis_is_an_error(function):
    for pair in ((3, Batch), (Batch, 3), ((Batch, 3), "pos"), (Batch, ["pos", 3])):
        with refusal(f"{NO_AXIS}3", TypeError):
            function(*pair)
    with refusal("axis 'batch' is given more than once in (batch, batch)"):
        function((Batch, "batch"), "batch")


def test_axes_without_sizes():
    assert axis.union_axes(("batch", Pos), (Batch, "embed")) == (Batch, Pos, "embed")
    assert axis.union_axes({"batch": None}, {"batch": 2, "pos": None}) == {"batch": 2, "pos": None}
    assert axis.intersect_axes(("batch", "pos"), Pos) == (Pos,)
    assert axis.concat_axes("batch", Pos) == ("batch", Pos)
    assert axis.eliminate_axes(("batch", "pos"), Batch) == ("pos",)
    assert axis.replace_axis({"batch": 2, "pos": None}, "batch", "embed") == {"embed": None, "pos": None}


def test_what_is_left_of_axes():
    assert axis.concat_axes((), ()) == () and axis.concat_axes({}, Batch) == {"batch": 2}
    assert axis.eliminate_axes(Batch, Batch) == ()
    assert axis.eliminate_axes(SIZES, {"pos": None, "batch": 2}) == {"embed": 3}
    assert axis.without_axes(SIZES, ("pos", "other")) == {"batch": 2, "embed": 3}
    assert axis.without_axes((Batch, Pos), Axis("pos", 5), allow_mismatched_sizes=True) == (Batch,)


def test_replace_axis():
    assert axis.replace_axis((Batch, Pos), "batch", Embed) == (Embed, Pos)
    assert axis.replace_axis((Batch, Pos), Batch, Axis("batch", 8)) == (Axis("batch", 8), Pos)
    assert axis.replace_axis(SIZES, "pos", {"x": 2, "y": 2}) == {"batch": 2, "x": 2, "y": 2, "embed": 3}
    assert list(axis.replace_axis(SIZES, "batch", (Axis("x", 2), Axis("y", 1)))) == ["x", "y", "pos", "embed"]
    assert axis.replace_axis(Batch, "batch", ()) == ()


@pytest.mark.parametrize(
    ("partial", "order"),
    [
        (("embed", ...), ["embed", "batch", "pos"]),
        ((..., Batch), ["pos", "embed", "batch"]),
        (("pos", ..., "batch"), ["pos", "embed", "batch"]),
        (["pos", Embed, "batch"], ["pos", "embed", "batch"]),
        ((...,), ["batch", "pos", "embed"]),
        (..., ["batch", "pos", "embed"]),
    ],
)
def test_rearrange_for_partial_order(partial, order):
    result = axis.rearrange_for_partial_order(partial, SIZES)
    assert type(result) is dict and list(result) == order and result == SIZES
    as_tuple = tuple(Axis(name, SIZES[name]) for name in order)
    assert axis.rearrange_for_partial_order(partial, (Batch, Pos, Embed)) == as_tuple
    assert axis.rearrange_for_partial_order("batch", Batch) == (Batch,)


@pytest.mark.parametrize(
    ("partial", "expected"),
    [
        (("batch", "x", "embed"), ("batch", ..., "embed")),
        (("x", "y", Pos, ..., "z"), (..., Pos, ...)),
        ((Batch, Pos), (Batch, Pos)),
        (("x",), (...,)),
        ("x", (...,)),
        (..., (...,)),
        ((), ()),
    ],
)
def test_replace_missing_with_ellipsis(partial, expected):
    assert axis.replace_missing_with_ellipsis(partial, SIZES) == expected
    assert axis.replace_missing_with_ellipsis(partial, ("batch", Pos, "embed")) == expected


TWO_SIZES = "axis 'pos' has size 4 and size 5 in (batch: 2, pos: 4) and (pos: 5)"
IN_BOTH = "axis 'pos' is in both (batch: 2, pos: 4) and (pos, embed: 3); `union_axes` keeps it once"
UNKNOWN = "no axis 'emebd' in (batch: 2, pos: 4, embed: 3); did you mean 'embed'?"


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        (axis.union_axes, ((Batch, Pos), Axis("pos", 5)), ValueError, TWO_SIZES),
        (axis.intersect_axes, ((Batch, Pos), Axis("pos", 5)), ValueError, TWO_SIZES),
        (axis.concat_axes, ((Batch, Pos), ("pos", Embed)), ValueError, IN_BOTH),
        (axis.eliminate_axes, ((Batch, Pos), "pso"), ValueError, "no axis 'pso' in (batch: 2, pos: 4); did you mean "),
        (axis.eliminate_axes, ((Batch, Pos), Axis("pos", 5)), ValueError, SIZE_OF_POS),
        (axis.without_axes, (SIZES, (Axis("other", 1), Axis("pos", 5))), ValueError, SIZE_OF_POS),
        (axis.replace_axis, ((Batch, Pos), "embed", "x"), ValueError, "no axis 'embed' in (batch: 2, pos: 4)"),
        (axis.replace_axis, ((Batch, Pos), Axis("pos", 5), Embed), ValueError, SIZE_OF_POS),
        (axis.replace_axis, ((Batch, Pos), "batch", Pos), ValueError, "axis 'pos' occurs more than once in (pos, pos)"),
        (axis.replace_axis, ((Batch, Pos), ("batch",), Embed), TypeError, "not by ('batch')"),
        (axis.rearrange_for_partial_order, (("emebd", ...), SIZES), ValueError, UNKNOWN),
        (axis.rearrange_for_partial_order, ((Axis("pos", 5), ...), SIZES), ValueError, SIZE_OF_POS),
        (axis.rearrange_for_partial_order, (("pos",), SIZES), ValueError, "(pos) leaves out (batch, embed); add `...`"),
        (axis.rearrange_for_partial_order, (("pos", ..., "pos"), SIZES), ValueError, "is given more than once in (pos"),
        (
            axis.rearrange_for_partial_order,
            ((..., "pos", ...), SIZES),
            ValueError,
            "`...` may occur only once in an or",
        ),
        (axis.rearrange_for_partial_order, ((3, ...), SIZES), TypeError, "not by 3; the axes are (batch, pos, embed)."),
        (axis.replace_missing_with_ellipsis, ((Axis("pos", 5),), SIZES), ValueError, SIZE_OF_POS),
        (axis.replace_missing_with_ellipsis, ((3,), SIZES), TypeError, "not by 3"),
        (axis.resolve_axis, ((Batch, Embed), "imbed"), ValueError, "no axis 'imbed' in (batch: 2, embed: 3); did you"),
        (axis.resolve_axis, ((Batch, Pos), {"pos": 5}), ValueError, SIZE_OF_POS),
        (
            axis.resolve_axis,
            ((Batch, Pos), ("pos", Pos)),
            ValueError,
            "axis 'pos' is given more than once in (pos, pos)",
        ),
        (axis.resolve_axis, ((Batch, Embed), 1), TypeError, f"{NO_AXIS}1"),
        (axis.resolve_axis, ("batch", "batch"), TypeError, NO_SIZE),
        (axis.unsize_axes, ((Batch, "embed"), "pos"), ValueError, "no axis 'pos' in (batch: 2, embed)"),
        (axis.unsize_axes, ((Batch, Pos), Axis("pos", 5)), ValueError, SIZE_OF_POS),
        (axis.is_axis_compatible, (Embed, 3), TypeError, "not by 3"),
    ],
)
def test_a_wrong_axis_says_what_is_wrong(function, arguments, error, message):
    with refusal(message, error):
        function(*arguments)

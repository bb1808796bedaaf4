"""The algebra of axes: union, intersection, difference, replacement, orders."""

from re import escape

import pytest
from hypothesis import given, strategies as st

import axonym as nym
from axonym import Axis, axis


Batch, Pos, Embed = nym.make_axes(batch=2, pos=4, embed=3)
SIZES = {"batch": 2, "pos": 4, "embed": 3}
BINARY = [axis.concat_axes, axis.union_axes, axis.intersect_axes, axis.eliminate_axes, axis.without_axes]
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
    sizes, shape = {one.name: one.size for one in first}, nym.zeros(first).shape
    expected = function(first, second)
    assert type(expected) is tuple and all(type(one) is Axis for one in expected)
    as_dict = {one.name: one.size for one in expected}
    for spec in (sizes, shape):
        for other in (second, {"batch": 2}, Batch):
            found = function(spec, other)
            assert type(found) is dict and found == as_dict and list(found) == list(as_dict)
    for other in ({"batch": 2}, Batch, [Batch]):
        assert function(list(first), other) == expected


@pytest.mark.parametrize("function", BINARY, ids=lambda function: function.__name__)
def test_what_is_no_axis_is_an_error(function):
    for pair in ((3, Batch), (Batch, 3), ((Batch, 3), "pos"), (Batch, ["pos", 3])):
        with pytest.raises(TypeError, match="An axis is given by an `Axis` or by its name, not by 3"):
            function(*pair)
    with pytest.raises(ValueError, match=escape("axis 'batch' is given more than once in (batch, batch)")):
        function((Batch, "batch"), "batch")


@pytest.mark.parametrize("function", [axis.union_axes, axis.intersect_axes], ids=lambda function: function.__name__)
def test_two_sizes_of_an_axis_are_an_error(function):
    message = "axis 'pos' has size 4 and size 5 in (batch: 2, pos: 4) and (pos: 5)"
    with pytest.raises(ValueError, match=escape(message)):
        function((Batch, Pos), Axis("pos", 5))


def test_axes_without_sizes():
    assert axis.union_axes(("batch", Pos), (Batch, "embed")) == (Batch, Pos, "embed")
    assert axis.union_axes({"batch": None}, {"batch": 2, "pos": None}) == {"batch": 2, "pos": None}
    assert axis.intersect_axes(("batch", "pos"), Pos) == (Pos,)
    assert axis.concat_axes("batch", Pos) == ("batch", Pos)
    assert axis.eliminate_axes(("batch", "pos"), Batch) == ("pos",)
    assert axis.replace_axis({"batch": 2, "pos": None}, "batch", "embed") == {"embed": None, "pos": None}


def test_concat_axes_takes_each_axis_once():
    assert axis.concat_axis_specs is axis.concat_axes
    assert axis.concat_axes((), ()) == () and axis.concat_axes({}, Batch) == {"batch": 2}
    message = "axis 'pos' is in both (batch: 2, pos: 4) and (pos, embed: 3); `union_axes` keeps it once"
    with pytest.raises(ValueError, match=escape(message)):
        axis.concat_axes((Batch, Pos), ("pos", Embed))


def test_eliminate_axes_needs_them_all():
    assert axis.eliminate_axes(Batch, Batch) == ()
    assert axis.eliminate_axes(SIZES, {"pos": None, "batch": 2}) == {"embed": 3}
    with pytest.raises(ValueError, match=escape("no axis 'pso' in (batch: 2, pos: 4); did you mean 'pos'?")):
        axis.eliminate_axes((Batch, Pos), "pso")
    with pytest.raises(ValueError, match="axis 'pos' has size 4 here, 5 was asked for"):
        axis.eliminate_axes((Batch, Pos), Axis("pos", 5))


def test_without_axes_checks_sizes_unless_told():
    assert axis.without_axes(SIZES, ("pos", "other")) == {"batch": 2, "embed": 3}
    with pytest.raises(ValueError, match="axis 'pos' has size 4 here, 5 was asked for"):
        axis.without_axes(SIZES, (Axis("other", 1), Axis("pos", 5)))
    assert axis.without_axes((Batch, Pos), Axis("pos", 5), allow_mismatched_sizes=True) == (Batch,)


def test_replace_axis():
    assert axis.replace_axis((Batch, Pos), "batch", Embed) == (Embed, Pos)
    assert axis.replace_axis((Batch, Pos), Batch, Axis("batch", 8)) == (Axis("batch", 8), Pos)
    assert axis.replace_axis(SIZES, "pos", {"x": 2, "y": 2}) == {"batch": 2, "x": 2, "y": 2, "embed": 3}
    assert list(axis.replace_axis(SIZES, "batch", (Axis("x", 2), Axis("y", 1)))) == ["x", "y", "pos", "embed"]
    assert axis.replace_axis(Batch, "batch", ()) == ()


def test_replace_axis_needs_the_old_one_and_a_free_name():
    with pytest.raises(ValueError, match=escape("no axis 'embed' in (batch: 2, pos: 4)")):
        axis.replace_axis((Batch, Pos), "embed", "x")
    with pytest.raises(ValueError, match="axis 'pos' has size 4 here, 5 was asked for"):
        axis.replace_axis((Batch, Pos), Axis("pos", 5), Embed)
    with pytest.raises(ValueError, match=escape("axis 'pos' occurs more than once in (pos, pos)")):
        axis.replace_axis((Batch, Pos), "batch", Pos)
    with pytest.raises(TypeError, match=escape("not by ('batch')")):
        axis.replace_axis((Batch, Pos), ("batch",), Embed)  # pyright: ignore[reportCallIssue, reportArgumentType]


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
    found = axis.rearrange_for_partial_order(partial, SIZES)
    assert type(found) is dict and list(found) == order and found == SIZES
    as_tuple = tuple(Axis(name, SIZES[name]) for name in order)
    assert axis.rearrange_for_partial_order(partial, (Batch, Pos, Embed)) == as_tuple


def test_one_axis_is_an_order():
    assert axis.rearrange_for_partial_order("batch", Batch) == (Batch,)


@pytest.mark.parametrize(
    ("partial", "kind", "message"),
    [
        (("emebd", ...), ValueError, "no axis 'emebd' in (batch: 2, pos: 4, embed: 3); did you mean 'embed'?"),
        ((Axis("pos", 5), ...), ValueError, "axis 'pos' has size 4 here, 5 was asked for"),
        (("pos",), ValueError, "the order (pos) leaves out (batch, embed); add `...` for the others"),
        (("pos", ..., "pos"), ValueError, "axis 'pos' is given more than once in (pos, pos)"),
        ((..., "pos", ...), ValueError, "`...` may occur only once in an order of axes"),
        (
            (3, ...),
            TypeError,
            "An axis is given by an `Axis` or by its name, not by 3; the axes are (batch, pos, embed).",
        ),
    ],
)
def test_a_wrong_order_says_what_is_wrong(partial, kind, message):
    with pytest.raises(kind, match=escape(message)):
        axis.rearrange_for_partial_order(partial, SIZES)


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


def test_replace_missing_with_ellipsis_checks_sizes():
    with pytest.raises(ValueError, match="axis 'pos' has size 4 here, 5 was asked for"):
        axis.replace_missing_with_ellipsis((Axis("pos", 5),), SIZES)
    with pytest.raises(TypeError, match="not by 3"):
        axis.replace_missing_with_ellipsis((3,), SIZES)  # pyright: ignore[reportArgumentType]

"""`Axis`, the ways to give axes, and what is said when they do not fit."""

import copy
import pickle
from re import escape

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import axonym as nym
from axonym import Axis


Batch, Embed = nym.make_axes(batch=2, embed=3)
names = st.text(min_size=1, max_size=5)


@given(names, st.integers(0, 10**12))
def test_an_axis_is_its_name_and_size(name, size):
    axis = Axis(name, size)
    assert (axis.name, axis.size) == (name, size)
    assert axis == Axis(name, size) and hash(axis) == hash(Axis(name, size))
    assert axis != Axis(name, size + 1) and axis != Axis(name + "'", size)
    assert pickle.loads(pickle.dumps(axis)) == copy.deepcopy(axis) == axis
    assert axis.resize(7) == Axis(name, 7)
    assert axis.alias("other") == Axis("other", size)
    assert str(axis) == f"{name}: {size}"


def test_an_axis_never_changes():
    with pytest.raises(AttributeError, match="cannot assign"):
        Batch.size = 5  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(Batch, "__dict__")


@pytest.mark.parametrize("size", [np.int64(3), np.uint8(3), jnp.int32(3), nym.named(3, ())])
def test_a_size_may_be_any_integer(size):
    axis = Axis("a", size)
    assert axis == Axis("a", 3) and type(axis.size) is int


@pytest.mark.parametrize("size", [3.0, "3", None, True, np.float32(3), jnp.float32(3.5), (3,)])
def test_a_size_is_an_integer(size):
    with pytest.raises(TypeError, match="size of axis 'a' must be an integer"):
        Axis("a", size)


def test_errors_show_arrays_by_their_shape():
    with pytest.raises(TypeError, match=escape("not an array of shape (2,).")):
        Axis("a", jnp.array([7, 7]))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", [3, None, b"a", Batch])
def test_a_name_is_a_string(name):
    with pytest.raises(TypeError, match="name of an `Axis` must be a string"):
        Axis(name, 3)


def test_an_axis_has_a_name_and_no_negative_size():
    with pytest.raises(ValueError, match="name of an axis must not be empty"):
        Axis("", 3)
    with pytest.raises(ValueError, match="size of axis 'a' must not be negative, -1 was given"):
        Axis("a", -1)
    assert Axis("a", 0).size == 0


def test_names_are_interned():
    one, other = Axis("".join(["ba", "tch"]), 2), Axis("".join(["bat", "ch"]), 2)
    assert one.name is other.name


def test_make_axes_keeps_the_order():
    assert nym.make_axes(b=1, a=2) == (Axis("b", 1), Axis("a", 2))
    assert nym.make_axes() == ()


def test_axis_name():
    assert nym.axis_name(Batch) == nym.axis_name("batch") == "batch"
    with pytest.raises(TypeError, match="given by an `Axis` or by its name, not by 3"):
        nym.axis_name(3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "spec",
    [
        (Batch, Embed),
        [Batch, Embed],
        {"batch": 2, "embed": 3},
        nym.ones((Batch, Embed)).shape,
        nym.ones((Batch, Embed)).axes,
        iter((Batch, Embed)),
    ],
    ids=["tuple", "list", "mapping", "shape", "axes", "iterator"],
)
def test_the_axes_of_a_new_array_are_given_in_many_ways(spec):
    assert nym.zeros(spec).axes == (Batch, Embed)


def test_a_new_axis_needs_a_size():
    for spec in ("batch", ("batch",), (Batch, "batch")):
        with pytest.raises(TypeError, match=escape("give `Axis('batch', size)` instead of 'batch'")):
            nym.zeros(spec)  # pyright: ignore[reportArgumentType]
    for spec, shown in ((3, "3"), ((2, 3), "2"), (None, "None"), (np.ones((4, 1)), "an array of shape (4, 1)")):
        with pytest.raises(TypeError, match=escape(f"with a name and a size, not by {shown}.")):
            nym.zeros(spec)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="size of axis 'a' must be an integer, not None"):
        nym.zeros({"a": None})  # pyright: ignore[reportArgumentType]


def test_names_are_unique_within_an_array():
    with pytest.raises(ValueError, match=escape("axis 'batch' occurs more than once in (batch, embed, batch)")):
        nym.zeros((Batch, Embed, Axis("batch", 5)))


@pytest.mark.parametrize(
    "selection",
    [
        ("batch", "embed"),
        ["embed", Batch],
        (Embed, Batch),
        {"batch": 2, "embed": None},
        {"batch": None, "embed": None},
        nym.ones((Batch, Embed)).shape,
        iter(("batch", "embed")),
        None,
    ],
    ids=["names", "list", "axes", "mapping", "unsized", "shape", "iterator", "none"],
)
def test_axes_are_selected_in_many_ways(selection):
    assert nym.ones((Batch, Embed)).sum(selection).item() == 6


KNOWN = "the axes are (batch, embed)."


@pytest.mark.parametrize(
    ("selection", "kind", "text"),
    [
        ("imbed", ValueError, "no axis 'imbed' in (batch: 2, embed: 3); did you mean 'embed'?"),
        ("zzz", ValueError, "no axis 'zzz' in (batch: 2, embed: 3)"),
        (("batch", "bach"), ValueError, "no axis 'bach' in (batch: 2, embed: 3); did you mean 'batch'?"),
        (Axis("embed", 4), ValueError, "axis 'embed' has size 3 here, 4 was asked for"),
        ({"embed": 4}, ValueError, "axis 'embed' has size 3 here, 4 was asked for"),
        (("embed", "embed"), ValueError, "axis 'embed' is given more than once in (embed, embed)"),
        ((Embed, "embed"), ValueError, "axis 'embed' is given more than once in (embed, embed)"),
        (0, TypeError, f"An axis is given by an `Axis` or by its name, not by 0; {KNOWN}"),
        (("batch", -1), TypeError, f"An axis is given by an `Axis` or by its name, not by -1; {KNOWN}"),
        ((("batch",),), TypeError, f"An axis is given by an `Axis` or by its name, not by ('batch'); {KNOWN}"),
        ((["batch"],), TypeError, f"An axis is given by an `Axis` or by its name, not by a list of length 1; {KNOWN}"),
        (
            jnp.arange(2),
            TypeError,
            f"An axis is given by an `Axis` or by its name, not by an array of shape (2,); {KNOWN}",
        ),
    ],
)
def test_a_wrong_selection_says_what_is_wrong(selection, kind, text):
    with pytest.raises(kind, match=f"^{escape(text)}$"):
        nym.ones((Batch, Embed)).sum(selection)


@given(st.permutations(["a", "b", "c", "d"]), st.integers(0, 4), st.integers(0, 4))
def test_a_partial_order_keeps_what_it_does_not_name(order, cut, rest):
    x = nym.zeros(nym.make_axes(a=1, b=2, c=3, d=4))
    front, back = order[: min(cut, rest)], order[max(cut, rest) :]
    middle = [name for name in "abcd" if name not in (*front, *back)]
    assert x.rearrange((*front, ..., *back)).names == (*front, *middle, *back)
    assert x.rearrange(order).shape == {name: x.shape[name] for name in order}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("embed", True),
        (Embed, True),
        (Axis("embed", 4), False),
        ("x", False),
        (("batch", "embed"), True),
        (("embed", "x"), False),
        (("x", "embed"), False),
        ((Batch, Axis("embed", 4)), False),
        ({"batch": 2, "embed": None}, True),
        ({"batch": 3}, False),
        ((), True),
    ],
)
def test_has_axis_is_of_all_axes_selected(selection, expected):
    assert nym.ones((Batch, Embed)).has_axis(selection) is expected

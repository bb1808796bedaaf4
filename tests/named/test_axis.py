"""`Axis`, the ways to give axes and to describe them, and what is said when they do not fit."""

import copy
import pickle
from re import escape

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis
from tests.refusals import refusal


Batch, Embed = nym.make_axes(batch=2, embed=3)
x = nym.ones((Batch, Embed))


@pytest.mark.parametrize(("name", "size"), [("a", 0), ("é\x00 b", 10**12)])
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


def test_a_size_is_an_integer_of_any_kind():
    for size in (np.int64(3), np.uint8(3), jnp.int32(3), nym.named(3, ())):
        axis = Axis("a", size)
        assert axis == Axis("a", 3) and type(axis.size) is int
    for size in (3.0, "3", None, True, np.float32(3), jnp.float32(3.5), (3,)):
        with refusal("size of axis 'a' must be an integer", TypeError):
            Axis("a", size)  # pyright: ignore[reportArgumentType]
    with refusal("not an array of shape (2,).", TypeError):
        Axis("a", jnp.array([7, 7]))  # pyright: ignore[reportArgumentType]
    with refusal("size of axis 'a' must not be negative, -1 was given"):
        Axis("a", -1)


def test_a_name_is_a_string_that_is_interned():
    assert Axis("".join(["ba", "tch"]), 2).name is Axis("".join(["bat", "ch"]), 2).name
    for name in (3, None, b"a", Batch):
        with refusal("name of an `Axis` must be a string", TypeError):
            Axis(name, 3)  # pyright: ignore[reportArgumentType]
    with refusal("name of an axis must not be empty"):
        Axis("", 3)


def test_a_new_axis_needs_a_size():
    for spec in ("batch", ("batch",), (Batch, "batch")):
        with refusal("give `Axis('batch', size)` instead of 'batch'", TypeError):
            nym.zeros(spec)  # pyright: ignore[reportArgumentType]
    for spec, shown in ((3, "3"), ((2, 3), "2"), (None, "None"), (np.ones((4, 1)), "an array of shape (4, 1)")):
        with refusal(f"with a name and a size, not by {shown}.", TypeError):
            nym.zeros(spec)  # pyright: ignore[reportArgumentType]
    with refusal("size of axis 'a' must be an integer, not None", TypeError):
        nym.zeros({"a": None})  # pyright: ignore[reportArgumentType]
    with refusal("axis 'batch' occurs more than once in (batch, embed, batch)"):
        nym.zeros((Batch, Embed, Axis("batch", 5)))


def test_axes_are_selected_in_many_ways():
    collections = ("batch", "embed"), ["embed", Batch], {"batch": 2, "embed": None}, x.shape, iter(("batch", "embed"))
    for selection in (*collections, None):
        assert x.sum(selection).item() == 6


NO_AXIS = "An axis is given by an `Axis` or by its name, not by "
KNOWN = "the axes are (batch, embed)."


@pytest.mark.parametrize(
    ("selection", "kind", "text"),
    [
        ("imbed", ValueError, "no axis 'imbed' in (batch: 2, embed: 3); did you mean 'embed'?"),
        (("batch", "bach"), ValueError, "no axis 'bach' in (batch: 2, embed: 3); did you mean 'batch'?"),
        (Axis("embed", 4), ValueError, "axis 'embed' has size 3 here, 4 was asked for"),
        ((Embed, "embed"), ValueError, "axis 'embed' is given more than once in (embed, embed)"),
        (("batch", -1), TypeError, f"{NO_AXIS}-1; {KNOWN}"),
        ((("batch",),), TypeError, f"{NO_AXIS}('batch'); {KNOWN}"),
        (jnp.arange(2), TypeError, f"{NO_AXIS}an array of shape (2,); {KNOWN}"),
    ],
)
def test_a_wrong_selection_says_what_is_wrong(selection, kind, text):
    with pytest.raises(kind, match=f"^{escape(text)}$"):
        x.sum(selection)


def test_has_axis_is_of_all_axes_selected():
    for selection in ("embed", Embed, ("batch", "embed"), {"batch": 2, "embed": None}, ()):
        assert x.has_axis(selection) is True
    for selection in (
        *("x", Axis("embed", 4), {"batch": 3}, {"x": None}),
        *(("embed", "x"), ("x", "embed"), (Batch, Axis("embed", 4))),
    ):
        assert x.has_axis(selection) is False
    with refusal("given by an `Axis` or by its name, not by 0", TypeError):
        x.has_axis(0)  # pyright: ignore[reportArgumentType]


def test_axes_that_fit_a_description():
    y = nym.ones({"batch": 2, "pos": 3, "embed": 4})
    for axes in (
        *("batch pos embed", "batch ...", "... embed", "batch ... embed", "...", "batch ... pos embed"),
        *(("batch", ..., Axis("embed", 4)), ["batch", "pos", "embed"]),
        *({"embed", "pos", "batch"}, {"embed", ...}, {Axis("pos", 3), ...}, nym.typing.Named["batch ..."]),
    ):
        assert y.matches_axes(axes), axes
    for axes in (
        *("", "batch pos", "batch embed pos", "pos ...", "... pos", "batch ... pos", "batch pos embed mlp ..."),
        *(("batch", ..., Axis("embed", 5)), {"embed", "pos"}, {"mlp", ...}, {Axis("pos", 4), ...}),
        nym.typing.f32[nym.NamedArray, "embed ..."],
    ):
        assert not y.matches_axes(axes), axes
    assert nym.named(1.0, ()).matches_axes("") and nym.named(1.0, ()).matches_axes("...")
    assert nym.ones({"a": 2}).matches_axes(Axis("a", 2))


def test_what_describes_no_axes_is_refused():
    for axes, kind, text in (
        ("a a", ValueError, "axis 'a' is given more than once in (a, a)"),
        ("a ... b ...", ValueError, "`...` may occur only once in a description of axes"),
        (3, TypeError, "Axes are described by a string such as 'batch embed ...', not by 3."),
        (("a", 3), TypeError, f"{NO_AXIS}3."),
        *((words, ValueError, "is not a name; names are separated by spaces") for words in ("a, b", "*a", "a=3")),
    ):
        with refusal(text, kind):
            x.matches_axes(axes)

from re import escape

import pytest

import axonym as nym
from axonym import Axis


def written(axes):
    return str(axes) if not isinstance(axes, set) else " or ".join(sorted(map(str, axes)))


x = nym.ones({"batch": 2, "pos": 3, "embed": 4})


@pytest.mark.parametrize(
    "axes",
    [
        "batch pos embed",
        "batch ...",
        "... embed",
        "batch ... embed",
        "...",
        "batch ... pos embed",
        ("batch", ..., Axis("embed", 4)),
        ["batch", "pos", "embed"],
        {"embed", "pos", "batch"},
        {"embed", ...},
        {Axis("pos", 3), ...},
    ],
    ids=written,
)
def test_axes_that_fit_a_description(axes):
    assert x.matches_axes(axes)


@pytest.mark.parametrize(
    "axes",
    [
        "",
        "batch pos",
        "batch embed pos",
        "pos ...",
        "... pos",
        "batch ... pos",
        "batch pos embed mlp ...",
        ("batch", ..., Axis("embed", 5)),
        {"embed", "pos"},
        {"mlp", ...},
        {Axis("pos", 4), ...},
    ],
    ids=written,
)
def test_axes_that_do_not(axes):
    assert not x.matches_axes(axes)


def test_no_axes_are_described_by_nothing():
    assert nym.named(1.0, ()).matches_axes("")
    assert nym.named(1.0, ()).matches_axes("...")
    assert nym.ones({"a": 2}).matches_axes(Axis("a", 2))


def test_an_annotation_describes_axes():
    assert x.matches_axes(nym.typing.Named["batch ..."])
    assert not x.matches_axes(nym.typing.f32[nym.NamedArray, "embed ..."])


@pytest.mark.parametrize(
    ("axes", "kind", "text"),
    [
        ("a a", ValueError, "axis 'a' is given more than once in (a, a)"),
        ("a ... b ...", ValueError, "`...` may occur only once in a description of axes"),
        (3, TypeError, "Axes are described by a string such as 'batch embed ...', not by 3."),
        (("a", 3), TypeError, "An axis is given by an `Axis` or by its name, not by 3."),
    ],
    ids=["twice", "ellipses", "number", "number within"],
)
def test_what_describes_no_axes_is_refused(axes, kind, text):
    with pytest.raises(kind, match=escape(text)):
        x.matches_axes(axes)


@pytest.mark.parametrize("axes", ["batch, embed", "*batch", "batch=3"])
def test_words_that_can_be_no_names_are_refused(axes):
    with pytest.raises(ValueError, match="is not a name; names are separated by spaces"):
        x.matches_axes(axes)

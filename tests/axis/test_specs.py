"""The forms in which axes are given, turned into one another, looked up and compared."""

from re import escape

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis, axis


Batch, Embed = nym.make_axes(batch=2, embed=3)
SPECS = {
    "tuple": (Batch, Embed),
    "list": [Batch, Embed],
    "mapping": {"batch": 2, "embed": 3},
    "shape": nym.ones((Batch, Embed)).shape,
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_every_form_of_a_spec_gives_the_same(spec):
    assert axis.axis_size(spec) == 6
    assert axis.axis_spec_to_tuple(spec) == (Batch, Embed)
    assert axis.axis_spec_to_shape_dict(spec) == {"batch": 2, "embed": 3}
    assert axis.to_jax_shape(spec) == (2, 3)
    assert axis.axis_name(spec) == ("batch", "embed")
    assert axis.resolve_axis(spec, "embed") == axis.resolve_axis(spec, Embed) == Embed


def test_one_axis_is_a_spec():
    assert axis.axis_size(Embed) == 3
    assert axis.axis_spec_to_tuple(Embed) == (Embed,)
    assert axis.axis_spec_to_shape_dict(Embed) == {"embed": 3}
    assert axis.to_jax_shape(Embed) == (3,)


def test_no_axes_are_a_spec():
    assert axis.axis_size(()) == axis.axis_size({}) == 1
    assert axis.to_jax_shape(()) == axis.axis_spec_to_tuple({}) == axis.axis_name(()) == ()


@pytest.mark.parametrize("function", [axis.axis_size, axis.axis_spec_to_tuple, axis.axis_spec_to_shape_dict])
def test_a_spec_has_sizes_and_unique_names(function):
    with pytest.raises(TypeError, match=escape("give `Axis('batch', size)` instead of 'batch'")):
        function((Embed, "batch"))
    with pytest.raises(TypeError, match="with a name and a size, not by 3"):
        function((Embed, 3))
    with pytest.raises(ValueError, match=escape("axis 'embed' occurs more than once in (embed, embed)")):
        function((Embed, Axis("embed", 4)))


def test_axis_name():
    assert axis.axis_name is nym.axis_name
    assert nym.axis_name(Batch) == nym.axis_name("batch") == "batch"
    assert nym.axis_name(["embed", Batch]) == nym.axis_name({"embed": None, "batch": 2}) == ("embed", "batch")


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (3, "3"),
        (("batch", 3), "3"),
        ((("batch",),), "('batch')"),
        (jnp.ones(2), "an array of shape (2,)"),
        (np.array(["batch"]), "an array of shape (1,)"),
    ],
    ids=["integer", "item", "nested", "array", "strings"],
)
def test_what_has_no_name_is_no_axis(wrong, shown):
    with pytest.raises(TypeError, match=escape(f"An axis is given by an `Axis` or by its name, not by {shown}.")):
        nym.axis_name(wrong)


def test_to_jax_shape_takes_integers():
    assert axis.to_jax_shape(4) == axis.to_jax_shape(np.int64(4)) == (4,)  # pyright: ignore[reportArgumentType]
    assert axis.to_jax_shape((4, Embed, np.int64(2), Batch)) == (4, 3, 2, 2)
    assert all(type(size) is int for size in axis.to_jax_shape((np.int64(2),)))
    with pytest.raises(TypeError, match=escape("give `Axis('batch', size)` instead of 'batch'")):
        axis.to_jax_shape((4, "batch"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=escape("give `Axis('batch', size)` instead of 'batch'")):
        axis.to_jax_shape("batch")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=escape("with a name and a size, not by 2.5")):
        axis.to_jax_shape((2.5,))  # pyright: ignore[reportArgumentType]


def test_resolve_axis_answers_in_the_form_of_the_selection():
    axes = (Batch, Embed)
    assert axis.resolve_axis(axes, ("embed", Batch)) == (Embed, Batch)
    assert axis.resolve_axis(axes, {"embed": None, "batch": 2}) == {"embed": 3, "batch": 2}
    assert axis.resolve_axis({"batch": 2, "embed": 3}, ["embed"]) == (Embed,)
    assert axis.resolve_axis(axes, ()) == ()
    assert axis.resolve_axis(Embed, "embed") == Embed


def test_resolve_axis_finds_only_what_is_there():
    with pytest.raises(ValueError, match=escape("no axis 'imbed' in (batch: 2, embed: 3); did you mean 'embed'?")):
        axis.resolve_axis((Batch, Embed), "imbed")
    with pytest.raises(ValueError, match="axis 'embed' has size 3 here, 4 was asked for"):
        axis.resolve_axis((Batch, Embed), {"embed": 4})
    with pytest.raises(ValueError, match=escape("axis 'embed' is given more than once in (embed, embed)")):
        axis.resolve_axis((Batch, Embed), ("embed", Embed))
    with pytest.raises(TypeError, match="An axis is given by an `Axis` or by its name, not by 1"):
        axis.resolve_axis((Batch, Embed), 1)  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(TypeError, match=escape("give `Axis('batch', size)` instead of 'batch'")):
        axis.resolve_axis("batch", "batch")  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_unsize_axes():
    assert axis.unsize_axes((Batch, Embed)) == ("batch", "embed")
    assert axis.unsize_axes((Batch, Embed), "embed") == (Batch, "embed")
    assert axis.unsize_axes((Batch, "embed"), ()) == (Batch, "embed")
    assert axis.unsize_axes(Embed) == ("embed",)
    assert axis.unsize_axes({"batch": 2, "embed": 3}) == {"batch": None, "embed": None}
    assert axis.unsize_axes({"batch": 2, "embed": None}, Batch) == {"batch": None, "embed": None}
    with pytest.raises(ValueError, match=escape("no axis 'pos' in (batch: 2, embed)")):
        axis.unsize_axes((Batch, "embed"), "pos")
    with pytest.raises(ValueError, match="axis 'embed' has size 3 here, 4 was asked for"):
        axis.unsize_axes((Batch, Embed), Axis("embed", 4))


@pytest.mark.parametrize(
    ("selector", "selected", "expected"),
    [
        ("embed", "embed", True),
        ("embed", Embed, True),
        (Embed, "embed", True),
        (Embed, Axis("embed", 4), False),
        ("embed", "batch", False),
        ((Batch, "embed"), Embed, True),
        ((Batch, "embed"), {"embed": None, "batch": 2}, True),
        ((Batch, "embed"), {"batch": 4}, False),
        ("embed", ("batch", "embed"), False),
        ("embed", (), True),
    ],
)
def test_selects_axis(selector, selected, expected):
    assert axis.selects_axis(selector, selected) is expected


def test_is_axis_compatible():
    assert axis.is_axis_compatible("embed", Embed) and axis.is_axis_compatible(Embed, Embed)
    assert not axis.is_axis_compatible(Embed, Axis("embed", 4))
    assert not axis.is_axis_compatible(Embed, Axis("batch", 3))
    with pytest.raises(TypeError, match="not by 3"):
        axis.is_axis_compatible(Embed, 3)  # pyright: ignore[reportArgumentType]


def test_the_namespace_has_the_names_of_others():
    assert axis.Axis is Axis and axis.make_axes is nym.make_axes and axis.dslice is nym.dslice
    assert axis.ds is nym.ds and axis.dblock is nym.dblock

"""Axes merged and split, and axes of size 1, against what NumPy does by position."""

import math
from re import escape

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import axonym as nym
from axonym import Axis


x = nym.named(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4), ("a", "b", "c"))
v = nym.named(np.arange(3.0, dtype=np.float32), "b")


def same(one, array, names):
    return one.names == names and np.array_equal(one.array, array)


@pytest.mark.parametrize(
    ("old", "names", "array"),
    [
        (("b", "c"), ("a", "new"), x.array.reshape(2, 12)),
        (("c", "b"), ("a", "new"), x.array.transpose(0, 2, 1).reshape(2, 12)),
        (("a", "c"), ("new", "b"), x.array.transpose(0, 2, 1).reshape(8, 3)),
        (("c", "a"), ("new", "b"), x.array.transpose(2, 0, 1).reshape(8, 3)),
        (("a", "b", "c"), ("new",), x.array.reshape(24)),
        ("b", ("a", "new", "c"), x.array),
        ((Axis("a", 2), "b"), ("new", "c"), x.array.reshape(6, 4)),
    ],
)
def test_flatten_axes_merges_in_the_order_given(old, names, array):
    assert same(x.flatten_axes(old, "new"), array, names)
    assert same(x.flatten_axes(old, Axis("new", array.shape[names.index("new")])), array, names)
    assert same(jax.jit(lambda x: x.flatten_axes(old, "new"))(x), array, names)


def test_flatten_axes_may_reuse_a_name():
    assert x.flatten_axes(("b", "c"), "c").shape == {"a": 2, "c": 12}


def test_flatten_axes_merges_all_axes_as_reductions_take_all():
    assert same(nym.flatten_axes(x, None, "all"), x.array.ravel(), ("all",))  # pyright: ignore[reportArgumentType]


def test_flatten_axes_of_none_adds_an_axis_of_size_1_in_front(mapped):
    assert same(x.flatten_axes((), Axis("new", 1)), x.array[None], ("new", "a", "b", "c"))
    assert nym.ones({}).flatten_axes((), "new").shape == {"new": 1}
    y = nym.shard(nym.ones({"batch": 8}))
    assert jax.jit(lambda y: y.flatten_axes((), "new"))(y).shape == {"new": 1, "batch": 8}
    with pytest.raises(ValueError, match=escape("axes () of (a: 2, b: 3, c: 4) have 1 elements, not 2")):
        x.flatten_axes((), Axis("new", 2))


def test_flatten_axes_refuses():
    with pytest.raises(ValueError, match=escape("no axis 'z' in (a: 2, b: 3, c: 4)")):
        x.flatten_axes(("a", "z"), "new")
    with pytest.raises(ValueError, match="axis 'a' is given more than once"):
        x.flatten_axes(("a", "a"), "new")
    with pytest.raises(ValueError, match=r"axes \(b, c\) of .* have 12 elements, not 5"):
        x.flatten_axes(("b", "c"), Axis("new", 5))
    with pytest.raises(ValueError, match=escape("axis 'a' occurs more than once in (a, a)")):
        x.flatten_axes(("b", "c"), "a")
    for axes, new in ((("b", ["c"]), "new"), (("b", "c"), ["new"])):
        with pytest.raises(TypeError, match="given by an `Axis` or by its name, not by a list of length 1"):
            x.flatten_axes(axes, new)  # pyright: ignore[reportArgumentType]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
@settings(max_examples=8)
def test_unflatten_axis_undoes_flatten_axes(sizes):
    new = tuple(Axis(f"n{i}", size) for i, size in enumerate(sizes))
    whole = nym.arange(Axis("whole", math.prod(sizes))).broadcast_axis(Axis("a", 2))
    split = whole.unflatten_axis("whole", new)
    assert same(split, whole.array.reshape(2, *sizes), ("a", *(axis.name for axis in new)))
    assert same(split.flatten_axes(new, "whole"), whole.array, whole.names)


def test_unflatten_axis_takes_sizes_by_name():
    assert x.unflatten_axis("c", {"d": 2, "c": 2}).shape == {"a": 2, "b": 3, "d": 2, "c": 2}
    assert x.unflatten_axis(Axis("c", 4), Axis("d", 4)).names == ("a", "b", "d")


def test_unflatten_axis_refuses():
    with pytest.raises(ValueError, match=r"axis 'c' of \(a: 2, b: 3, c: 4\) has 4 elements, \(d: 2, e: 3\) have 6"):
        x.unflatten_axis("c", {"d": 2, "e": 3})
    with pytest.raises(ValueError, match=escape("axis 'a' occurs more than once in (a, b, a, d)")):
        x.unflatten_axis("c", {"a": 2, "d": 2})
    with pytest.raises(ValueError, match="axis 'c' has size 4 here, 5 was asked for"):
        x.unflatten_axis(Axis("c", 5), {"d": 5})
    with pytest.raises(TypeError, match="A new axis needs a size"):
        x.unflatten_axis("c", ("d", "e"))  # pyright: ignore[reportArgumentType]


def test_ravel_and_flatten_merge_all_axes():
    for result in (nym.ravel(x, "i"), x.ravel(Axis("i", 24)), x.flatten("i"), nym.flatten(x, Axis("i", 24))):
        assert same(result, np.arange(24), ("i",))
    assert same(nym.ravel(nym.named(3, ()), "i"), [3], ("i",)) and same(v.ravel("b"), v.array, ("b",))
    with pytest.raises(ValueError, match=escape("axes (a, b, c) of (a: 2, b: 3, c: 4) have 24 elements, not 23")):
        x.flatten(Axis("i", 23))
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.ravel(x.array, "i")


@pytest.mark.parametrize(
    ("keep", "front", "names", "order"),
    [
        ("b", False, ("i", "b"), (0, 2, 1)),
        ("a", False, ("a", "i"), (0, 1, 2)),
        ("a", True, ("i", "a"), (1, 2, 0)),
        (("c", Axis("a", 2)), False, ("a", "i", "c"), (0, 1, 2)),
        ((), False, ("i",), (0, 1, 2)),
        (("a", "b", "c"), False, ("i", "a", "b", "c"), (0, 1, 2)),
    ],
)
def test_flatten_all_axes_but_can_be_undone(keep, front, names, order):
    flat, unflatten = nym.flatten_all_axes_but(x, "i", keep, reorder_to_front=front)
    sizes = [x.shape[name] if name in x.names else -1 for name in names]
    assert same(flat, x.array.transpose(order).reshape(sizes), names)
    assert same(unflatten(flat), x.array, x.names)


def test_what_was_flattened_comes_in_place_of_the_axis():
    flat, unflatten = nym.flatten_all_axes_but(x, Axis("i", 8), "b")
    assert same(unflatten(flat.sum("b")), x.array.sum(1), ("a", "c"))
    assert unflatten(nym.ones({"d": 5, "i": 8})).names == ("d", "a", "c")
    with pytest.raises(ValueError, match=escape("no axis 'i' in (b: 3)")):
        unflatten(v)
    for fn, text in (
        (lambda: nym.flatten_all_axes_but(x, "b", "b"), "axis 'b' occurs more than once in (b, b)"),
        (lambda: nym.flatten_all_axes_but(x, "i", "z"), "no axis 'z' in (a: 2, b: 3, c: 4)"),
        (lambda: nym.flatten_all_axes_but(x, Axis("i", 7), "b"), "have 8 elements, not 7"),
    ):
        with pytest.raises(ValueError, match=escape(text)):
            fn()


def test_squeeze_removes_axes_of_size_1():
    y = nym.named(np.arange(3).reshape(1, 3, 1), ("a", "b", "c"))
    assert same(y.squeeze(), [0, 1, 2], ("b",)) and same(nym.squeeze(y, ("c", "a")), [0, 1, 2], ("b",))
    assert same(y.squeeze(Axis("a", 1)), [[0], [1], [2]], ("b", "c"))
    assert x.squeeze() is x and x.squeeze(()) is x
    with pytest.raises(ValueError, match=escape("axis 'b' of (a: 1, b: 3, c: 1) has size 3, `squeeze` removes size 1")):
        y.squeeze("b")
    with pytest.raises(ValueError, match=escape("no axis 'z' in (a: 1, b: 3, c: 1)")):
        y.squeeze("z")


def test_expand_adds_axes_of_size_1_in_front():
    assert same(v.expand(("c", Axis("a", 1))), [[[0, 1, 2]]], ("c", "a", "b"))
    assert same(nym.expand(v, "a"), [[0, 1, 2]], ("a", "b")) and v.expand(()) is v
    with pytest.raises(ValueError, match="axis 'a' has size 2, `expand` adds axes of size 1; use `broadcast_axis`"):
        v.expand(Axis("a", 2))
    with pytest.raises(ValueError, match=escape("axis 'b' occurs more than once in (b, b)")):
        v.expand("b")


@given(order=st.permutations(["a", "b", "c"]), count=st.integers(1, 3))
@settings(max_examples=20)
def test_flattening_any_axes_can_be_undone(order, count):
    chosen = [x.resolve_axis(name) for name in order[:count]]
    back = x.flatten_axes(chosen, "i").unflatten_axis("i", chosen)
    assert same(back.rearrange(x.names), x.array, x.names)


def test_without_a_mapping_merged_axes_are_sharded_by_their_first_part(explicit_mesh, draw):
    x = draw(batch=8, pos=3, embed=4)
    with jax.set_mesh(explicit_mesh):
        with nym.axis_mapping({"batch": "data", "embed": "model"}):
            sharded = nym.shard(x)
        for fn, spec in (
            (lambda x: x.ravel("i"), jax.P("data")),
            (lambda x: x.flatten_axes(("pos", "embed"), "i"), jax.P("data", None)),
            (lambda x: x.flatten_axes(("embed", "batch"), "i"), jax.P("model", None)),
            (lambda x: x.unflatten_axis("batch", {"a": 4, "b": 2}), jax.P("data", None, None, "model")),
            (lambda x: x.unflatten_axis("batch", {"a": 1, "b": 8}), jax.P(None, "data", None, "model")),
            (lambda x: x.unflatten_axis("batch", {"a": 2, "b": 4}), jax.P(None, None, None, "model")),
        ):
            expected, result = fn(x), fn(sharded)
            assert same(result, expected.array, expected.names) and result.sharding.spec == spec

"""Axes merged and split, and axes of size 1, against what NumPy does by position."""

import jax
import numpy as np
import pytest

import axonym as nym
from axonym import Axis
from tests.named.comparing import assert_same
from tests.refusals import refusal


base = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
x = nym.named(base, ("a", "b", "c"))
v = nym.named(np.arange(3.0, dtype=np.float32), "b")


def test_flatten_axes_merges_in_the_order_given():
    cases = [
        (("b", "c"), ("a", "new"), base.reshape(2, 12)),
        (("c", "b"), ("a", "new"), base.transpose(0, 2, 1).reshape(2, 12)),
        (("a", "c"), ("new", "b"), base.transpose(0, 2, 1).reshape(8, 3)),
        (("c", "a"), ("new", "b"), base.transpose(2, 0, 1).reshape(8, 3)),
        (("a", "b", "c"), ("new",), base.ravel()),
        (None, ("new",), base.ravel()),  # as reductions take all
        ("b", ("a", "new", "c"), base),
        ((Axis("a", 2), "b"), ("new", "c"), base.reshape(6, 4)),
        ((), ("new", "a", "b", "c"), base[None]),
    ]
    sizes = [values.shape[names.index("new")] for _, names, values in cases]

    @jax.jit
    def flatten(x):
        sized = [x.flatten_axes(old, Axis("new", size)) for (old, *_), size in zip(cases, sizes, strict=True)]
        return [x.flatten_axes(old, "new") for old, *_ in cases], sized

    for (_, names, values), result, sized in zip(cases, *flatten(x), strict=True):
        assert_same(result, names, values)
        assert_same(sized, names, values)
    assert x.flatten_axes(("b", "c"), "c").shape == {"a": 2, "c": 12}  # which reuses a name
    assert nym.ones({}).flatten_axes((), "new").shape == {"new": 1}


def test_flatten_axes_of_none_adds_an_axis_to_a_sharded_array(mapped):
    y = nym.shard(nym.ones({"batch": 8}))
    assert jax.jit(lambda y: y.flatten_axes((), "new"))(y).shape == {"new": 1, "batch": 8}


def test_unflatten_axis_undoes_flatten_axes():
    cases = [(Axis("p", 2), Axis("q", 2)), (Axis("p", 1), Axis("q", 4)), Axis("d", 4), {"p": 2, "c": 2}]

    @jax.jit
    def split(x):
        parts = [x.unflatten_axis("c", new) for new in cases]
        return parts, [y.flatten_axes(y.names[2:], "c") for y in parts], x.unflatten_axis(Axis("c", 4), cases[0])

    parts, merged, sized = split(x)
    for part, shape in zip((*parts, sized), ((2, 2), (1, 4), (4,), (2, 2), (2, 2)), strict=True):
        assert_same(part, part.names, base.reshape(2, 3, *shape))
    assert [part.names[2:] for part in parts] == [("p", "q"), ("p", "q"), ("d",), ("p", "c")]
    for back in merged:
        assert_same(back, "abc", base)


def test_merging_and_splitting_refuse():
    for axes, new, error, text in (
        (("a", "z"), "new", ValueError, "no axis 'z' in (a: 2, b: 3, c: 4)"),
        (("b", "c"), Axis("new", 5), ValueError, "axes (b, c) of (a: 2, b: 3, c: 4) have 12 elements, not 5"),
        ((), Axis("new", 2), ValueError, "axes () of (a: 2, b: 3, c: 4) have 1 elements, not 2"),
        (("b", "c"), "a", ValueError, "axis 'a' occurs more than once in (a, a)"),
        (("b", "c"), ["new"], TypeError, "given by an `Axis` or by its name, not by a list of length 1"),
    ):
        with refusal(text, error):
            x.flatten_axes(axes, new)
    for old, new, error, text in (
        ("c", {"d": 2, "e": 3}, ValueError, "axis 'c' of (a: 2, b: 3, c: 4) has 4 elements, (d: 2, e: 3) have 6"),
        ("c", {"a": 2, "d": 2}, ValueError, "axis 'a' occurs more than once in (a, b, a, d)"),
        ("c", ("d", "e"), TypeError, "A new axis needs a size"),
    ):
        with refusal(text, error):
            x.unflatten_axis(old, new)


def test_ravel_and_flatten_merge_all_axes():
    for result in (nym.ravel(x, "i"), x.flatten(Axis("i", 24))):
        assert_same(result, "i", np.arange(24))
    assert_same(nym.ravel(nym.named(3, ()), "i"), "i", [3])
    assert_same(v.ravel("b"), "b", v.array)
    with refusal("axes (a, b, c) of (a: 2, b: 3, c: 4) have 24 elements, not 23"):
        x.flatten(Axis("i", 23))


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
    @jax.jit
    def compute(x):
        flat, unflatten = nym.flatten_all_axes_but(x, "i", keep, reorder_to_front=front)
        return flat, unflatten(flat)

    flat, back = compute(x)
    sizes = [x.shape[name] if name in x.names else -1 for name in names]
    assert_same(flat, names, base.transpose(order).reshape(sizes))
    assert_same(back, "abc", base)


def test_what_was_flattened_comes_in_place_of_the_axis():
    _, unflatten = nym.flatten_all_axes_but(x, Axis("i", 8), "b")
    assert_same(unflatten(nym.named(base.sum(1).ravel(), "i")), "ac", base.sum(1))
    assert unflatten(nym.ones({"d": 5, "i": 8})).names == ("d", "a", "c")
    with refusal("no axis 'i' in (b: 3)"):
        unflatten(v)
    for fn, text in (
        (lambda: nym.flatten_all_axes_but(x, "b", "b"), "axis 'b' occurs more than once in (b, b)"),
        (lambda: nym.flatten_all_axes_but(x, Axis("i", 7), "b"), "have 8 elements, not 7"),
    ):
        with refusal(text):
            fn()


def test_squeeze_removes_axes_of_size_1():
    y = nym.named(np.arange(3).reshape(1, 3, 1), ("a", "b", "c"))
    assert_same(y.squeeze(), "b", [0, 1, 2])
    assert_same(nym.squeeze(y, ("c", "a")), "b", [0, 1, 2])
    assert_same(y.squeeze(Axis("a", 1)), "bc", [[0], [1], [2]])
    assert x.squeeze() is x and x.squeeze(()) is x
    with refusal("axis 'b' of (a: 1, b: 3, c: 1) has size 3, `squeeze` removes size 1"):
        y.squeeze("b")


def test_expand_adds_axes_of_size_1_in_front():
    assert_same(v.expand(("c", Axis("a", 1))), "cab", [[[0, 1, 2]]])
    assert_same(nym.expand(v, "a"), "ab", [[0, 1, 2]])
    assert v.expand(()) is v
    with refusal("axis 'a' has size 2, `expand` adds axes of size 1; use `broadcast_axis`"):
        v.expand(Axis("a", 2))


def test_without_a_mapping_merged_axes_are_sharded_by_their_first_part(explicit_mesh, draw):
    x = draw(batch=8, pos=3, embed=4)
    with jax.set_mesh(explicit_mesh):
        with nym.axis_mapping({"batch": "data", "embed": "model"}):
            sharded = nym.shard(x)
        cases = {
            jax.P("data"): lambda x: x.ravel("i"),
            jax.P("data", None): lambda x: x.flatten_axes(("pos", "embed"), "i"),
            jax.P("model", None): lambda x: x.flatten_axes(("embed", "batch"), "i"),
            jax.P("data", None, None, "model"): lambda x: x.unflatten_axis("batch", {"a": 4, "b": 2}),
            jax.P(None, "data", None, "model"): lambda x: x.unflatten_axis("batch", {"a": 1, "b": 8}),
            jax.P(None, None, None, "model"): lambda x: x.unflatten_axis("batch", {"a": 2, "b": 4}),
        }
        results = jax.jit(lambda x: [fn(x) for fn in cases.values()])(sharded)
        expected = jax.jit(lambda x: [fn(x) for fn in cases.values()])(x)
        for spec, result, other in zip(cases, results, expected, strict=True):
            assert_same(result, other.names, other.array)
            assert result.sharding.spec == spec

"""Operations that change which axes an array has, against what NumPy does by position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis
from tests.refusals import refusal


x = nym.named(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4), ("a", "b", "c"))
v = nym.named(np.arange(3.0, dtype=np.float32), "b")


def same(result, array, names):
    return result.names == names and np.array_equal(result.array, array)


SHOWN = "(a: 2, b: 3, c: 4)"


def test_rename_moves_no_data():
    renamed = x.rename({"a": "z", Axis("c", 4): Axis("y", 4)})
    assert renamed.names == ("z", "b", "y") and renamed.array is x.array
    assert x.rename({"a": "b", "b": "a"}).names == ("b", "a", "c")
    assert x.rename({}).names == x.names and x.rename({"a": "a"}).names == x.names


def test_rename_refuses():
    for names, text, error in (
        ({"d": "e"}, f"no axis 'd' in {SHOWN}", ValueError),
        ({Axis("a", 3): "z"}, "axis 'a' has size 2 here, 3 was asked for", ValueError),
        ({"a": Axis("z", 3)}, "axis 'a' has size 2, it cannot become (z: 3)", ValueError),
        ({"a": "b"}, "axis 'b' occurs more than once in (b, b, c)", ValueError),
        ({"a": ""}, "name of an axis must not be empty", ValueError),
        ({"a": 0}, "given by an `Axis` or by its name, not by 0", TypeError),
    ):
        with refusal(text, error):
            x.rename(names)


def test_rearrange_to_the_same_order_is_nothing(equations):
    assert x.rearrange(("a", "b", "c")) is x and x.rearrange((...,)) is x and x.rearrange(("a", ...)) is x
    assert equations(lambda x: x.rearrange(("a", ..., "c")), x) == []
    assert equations(lambda x: x.rearrange(("c", ...)), x) == [("transpose", (4, 2, 3))]


def test_rearrange_refuses():
    selector, sequence = "given by an `Axis` or by its name, not by ", "`rearrange` takes a sequence of axes"
    for order, text, error in (
        ((Axis("a", 3), ...), "axis 'a' has size 2 here, 3 was asked for", ValueError),
        (("a", "a", ...), "axis 'a' is given more than once in (a, a)", ValueError),
        (("a", "b"), "the order (a, b) leaves out (c); add `...` for the others", ValueError),
        ((..., "a", ...), "`...` may occur only once in an order of axes", ValueError),
        (Axis("a", 2), sequence, TypeError),
        (..., sequence, TypeError),
        ((..., {"a": 2}), selector + "{'a': 2}.", TypeError),
    ):
        with refusal(text, error):
            x.rearrange(order)


def test_broadcast_axis_adds_leading_axes(equations):
    result = v.broadcast_axis({"d": 2, "b": 3, "a": 4})
    assert same(result, np.broadcast_to(v.array, (2, 4, 3)), ("d", "a", "b"))
    assert v.broadcast_axis(Axis("b", 3)) is v and v.broadcast_axis(()) is v
    assert equations(lambda v: v.broadcast_axis({"a": 2}), v)[-1] == ("broadcast_in_dim", (2, 3))
    with refusal("axis 'b' has size 3 and size 4 in (b: 3) and (a: 2, b: 4)"):
        v.broadcast_axis({"a": 2, "b": 4})


def test_broadcast_to_has_the_order_given():
    sizes = {"a": 2, "b": 3, "c": 4, "d": 5}
    y = nym.named(np.transpose(x, (2, 0, 1)), ("c", "a", "b"))
    orders = ["abcd", "dcba", "bdac"]
    results = jax.jit(lambda y: [y.broadcast_to({name: sizes[name] for name in order}) for order in orders])(y)
    for order, result in zip(orders, results, strict=True):
        expected = np.broadcast_to(np.asarray(x)[..., None], (2, 3, 4, 5)).transpose(["abcd".index(n) for n in order])
        assert same(result, expected, tuple(order))
    assert x.broadcast_to(x.axes) is x
    with refusal("(a: 2, b: 3, c: 4) cannot be broadcast to (a: 2, c: 4), which lacks (b)"):
        x.broadcast_to({"a": 2, "c": 4})
    with refusal("axis 'a' has size 2 and size 3 in"):
        x.broadcast_to({"a": 3, "b": 3, "c": 4})


def test_broadcast_to_may_leave_the_order_and_further_axes():
    y = nym.ones({"c": 4, "a": 2})
    assert y.broadcast_to({"a": 2, "b": 3, "c": 4}, ensure_order=False).names == ("b", "c", "a")
    assert y.broadcast_to({"a": 2, "c": 4}, ensure_order=False) is y
    assert y.broadcast_to({"b": 3, "a": 2}, enforce_no_extra_axes=False).shape == {"b": 3, "a": 2, "c": 4}
    assert y.broadcast_to({"b": 3}, ensure_order=False, enforce_no_extra_axes=False).names == ("b", "c", "a")
    with refusal("axis 'a' has size 2 and size 3 in"):
        y.broadcast_to({"a": 3}, enforce_no_extra_axes=False)


def test_broadcast_arrays():
    first, second, number, nothing = nym.broadcast_arrays(v, x, 2.0, None)
    assert same(first, np.broadcast_to(v.array[:, None], (2, 3, 4)), x.names) and second is x
    assert number == 2.0 and nothing is None and nym.broadcast_arrays() == ()
    y, z = x.rearrange(("c", "b", "a")), v.broadcast_axis({"c": 4})
    assert [array.names for array in nym.broadcast_arrays(y, x, z)] == [("c", "b", "a")] * 3
    loose = nym.broadcast_arrays(y, x, z, ensure_order=False)
    assert [array.names for array in loose] == [("c", "b", "a"), ("a", "b", "c"), ("a", "c", "b")]


def test_broadcast_arrays_of_different_axes():
    u = nym.named([1.0, 2.0], "d")
    arrays, axes = nym.broadcast_arrays_and_return_axes(v, u, require_subset=False)
    assert axes == nym.make_axes(b=3, d=2) and nym.broadcast_arrays_and_return_axes(1) == ((1,), ())
    for result, expected in zip(arrays, np.broadcast_arrays(v.array[:, None], u.array[None]), strict=True):
        assert same(result, expected, ("b", "d"))
    with refusal("cannot broadcast (b: 3) and (d: 2)"):
        nym.broadcast_arrays(v, u)
    for require_subset in (True, False):
        with refusal("axis 'b' has size 3 and size 4 in (b: 3) and (b: 4)"):
            nym.broadcast_arrays(v, nym.ones({"b": 4}), require_subset=require_subset)
    with refusal("A plain array of shape (3,) has no axis names", TypeError):
        nym.broadcast_arrays(x, v.array)


def test_stack_puts_the_new_axis_first():
    y = x.rearrange(("c", "a", "b"))
    for arrays in ([x, y], (x, y), iter([x, y])):
        assert same(nym.stack("n", arrays), np.stack([x.array, x.array]), ("n", "a", "b", "c"))
    assert same(nym.stack(Axis("n", 1), [y]), y.array[None], ("n", "c", "a", "b"))
    assert same(nym.stack("n", [nym.named(1, ()), nym.named(2, ())]), [1, 2], ("n",))


def test_concatenate_joins_along_an_axis():
    y = nym.ones({"c": 1, "b": 3, "a": 2})
    for arrays in ([x, y], iter((x, y))):
        joined = nym.concatenate("c", arrays)
        assert same(joined, np.concatenate([x.array, np.ones((2, 3, 1))], 2), ("a", "b", "c"))
    assert nym.concatenate(Axis("c", 5), [y, x]).names == ("c", "b", "a")
    mixed = nym.concatenate("b", [v.astype(jnp.bfloat16), v])
    assert mixed.dtype == jnp.concatenate([v.array.astype(jnp.bfloat16), v.array]).dtype


@pytest.mark.parametrize(("join", "axis"), [(nym.stack, "n"), (nym.concatenate, "c")])
def test_joining_refuses(join, axis):
    name, plain = join.__name__, np.asarray(x)
    for arrays, text, error in (
        ([], f"`{name}` along '{axis}' needs at least one array", ValueError),
        ([x, v], f"`{name}` takes arrays of the same axes, not {SHOWN} and (b: 3)", ValueError),
        ([x, nym.ones({"a": 2, "b": 5, "c": 4})], "axis 'b' has size 3 and size 5 in", ValueError),
        ([x, plain], "A named array is needed, not ", TypeError),
        (x, "needs an axis; use `unbind", TypeError),
    ):
        with refusal(text, error):
            join(axis, arrays)


def test_stack_and_concatenate_refuse_wrong_axes():
    for join, axis, arrays, text in (
        (nym.stack, Axis("n", 3), [x, x], "axis 'n' has size 3, 2 arrays were given to `stack`"),
        (nym.stack, "a", [x, x], "axis 'a' occurs more than once in (a, a, b, c)"),
        (nym.stack, "n", [x, nym.ones({"a": 2, "b": 3, "c": 3})], "axis 'c' has size 4 and size 3 in"),
        (nym.concatenate, Axis("c", 9), [x, x], "axis 'c' has size 9, the arrays given to `concatenate` have 8"),
        (nym.concatenate, "n", [x, x], f"no axis 'n' in {SHOWN}"),
    ):
        with refusal(text):
            join(axis, arrays)


def test_unbind_takes_apart_what_stack_joins():
    for i, name in enumerate(x.names):
        pieces = x.unbind(name)
        assert len(pieces) == x.axis_size(name)
        for at, piece in enumerate(pieces):
            assert same(piece, np.take(np.asarray(x), at, i), tuple(n for n in x.names if n != name))
        assert np.array_equal(nym.stack(name, pieces).array, np.moveaxis(x.array, i, 0))
    assert nym.zeros({"a": 0, "b": 2}).unbind("a") == ()
    with refusal("axis 'a' has size 2 here, 3 was asked for"):
        x.unbind(Axis("a", 3))


def test_split_cuts_pieces():
    head, middle, tail = x.split("c", nym.make_axes(head=1, c=2, tail=1))
    assert same(head, x.array[:, :, :1], ("a", "b", "head")) and same(middle, x.array[:, :, 1:3], ("a", "b", "c"))
    assert same(tail, x.array[:, :, 3:], ("a", "b", "tail"))
    halves = x.split(Axis("c", 4), [Axis("half", 2)] * 2)
    assert np.array_equal(nym.concatenate("half", halves).array, x.array)


def test_split_refuses():
    for axis, pieces, text, error in (
        ("c", nym.make_axes(d=1, e=2), f"axis 'c' of {SHOWN} cannot be split into pieces of (1, 2)", ValueError),
        ("c", nym.make_axes(a=2, d=2), "axis 'a' occurs more than once in (a, b, a)", ValueError),
        ("c", ["d", "e"], "A new axis needs a size", TypeError),
        ("c", 2, "`split` takes the axes of the pieces, as in make_axes(head=2, tail=3), not 2", TypeError),
    ):
        with refusal(text, error):
            x.split(axis, pieces)


OPERATIONS = {
    "rename": (lambda x, v: x.rename({"pos": "other"}), "dpm"),
    "rearrange": (lambda x, v: x.rearrange(("embed", ...)), "mdp"),
    "flatten_axes": (lambda x, v: x.flatten_axes(("pos", "embed"), "embed"), "dm"),
    "flatten_other": (lambda x, v: x.flatten_axes(("batch", "pos"), "token"), "pm"),
    "flatten_across": (lambda x, v: x.flatten_axes(("embed", "batch"), "batch"), "dp"),
    "ravel": (lambda x, v: x.ravel("batch"), "d"),
    "flatten_all_axes_but": (lambda x, v: nym.flatten_all_axes_but(x, "batch", "embed")[0], "dm"),
    "unflatten_all": (
        lambda x, v: (lambda flat, back: back(flat * 2))(*nym.flatten_all_axes_but(x, "i", "pos")),
        "dpm",
    ),
    "squeeze": (lambda x, v: x["pos", :1].squeeze("pos"), "dm"),
    "expand": (lambda x, v: x.expand(("copy", "more")), "ppdpm"),
    "broadcast_arrays": (lambda x, v: nym.broadcast_arrays(x, v)[1], "dpm"),
    "unflatten_axis": (lambda x, v: x.unflatten_axis("batch", {"batch": 4, "group": 2}), "dppm"),
    "unflatten_other": (lambda x, v: x.unflatten_axis("embed", {"heads": 2, "size": 2}), "dppp"),
    "broadcast_axis": (lambda x, v: v.broadcast_axis({"batch": 8}), "dm"),
    "broadcast_to": (lambda x, v: v.broadcast_to({"embed": 4, "pos": 3, "batch": 8}), "mpd"),
    "stack": (lambda x, v: nym.stack("copy", [x, x + 1]), "pdpm"),
    "concatenate": (lambda x, v: nym.concatenate("batch", [x, x + 1]), "dpm"),
    "concatenate_other": (lambda x, v: nym.concatenate("pos", [x, x + 1]), "dpm"),
    "concatenate_to_fit": (
        lambda x, v: nym.concatenate(
            "batch", [y.rename({y.names[0]: "batch"}) for y in x.split("batch", nym.make_axes(head=2, tail=6))]
        ),
        "dpm",
    ),
    "unbind": (lambda x, v: x.unbind("batch")[5], "pm"),
    "split": (lambda x, v: x.split("embed", nym.make_axes(half=2, embed=2))[0], "dpp"),
    "split_same": (lambda x, v: x.split("batch", [Axis("batch", 4)] * 2)[1], "dpm"),
}


def test_sharded_arrays(check_sharded, draw):
    operands = draw(batch=8, pos=3, embed=4), draw(embed=4)
    check_sharded(OPERATIONS, *operands, outside=("concatenate", "flatten_axes", "split_same", "unbind"))

"""Operations that change which axes an array has, against what NumPy does by position."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import AxisType

import axonym as nym
from axonym import Axis


x = nym.named(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4), ("a", "b", "c"))
v = nym.named(np.arange(3.0, dtype=np.float32), "b")


def same(one, array, names):
    return one.names == names and np.array_equal(one.array, array)


def test_rename_moves_no_data():
    renamed = x.rename({"a": "z", Axis("c", 4): Axis("y", 4)})
    assert renamed.names == ("z", "b", "y") and renamed.array is x.array
    assert x.rename({"a": "b", "b": "a"}).names == ("b", "a", "c")
    assert x.rename({}).names == x.names and x.rename({"a": "a"}).names == x.names


def test_rename_refuses():
    with pytest.raises(ValueError, match=escape("no axis 'd' in (a: 2, b: 3, c: 4)")):
        x.rename({"d": "e"})
    with pytest.raises(ValueError, match="axis 'a' has size 2 here, 3 was asked for"):
        x.rename({Axis("a", 3): "z"})
    with pytest.raises(ValueError, match=escape("axis 'a' has size 2, it cannot become (z: 3)")):
        x.rename({"a": Axis("z", 3)})
    with pytest.raises(ValueError, match=escape("axis 'b' occurs more than once in (b, b, c)")):
        x.rename({"a": "b"})
    with pytest.raises(ValueError, match="name of an axis must not be empty"):
        x.rename({"a": ""})
    with pytest.raises(TypeError, match="given by an `Axis` or by its name, not by 0"):
        x.rename({"a": 0})


@given(st.permutations(["a", "b", "c"]), st.booleans())
@settings(max_examples=20)
def test_rearrange_is_a_transpose(order, sized):
    chosen = [Axis(name, x.axis_size(name)) for name in order] if sized else order
    assert same(x.rearrange(chosen), x.array.transpose([x.names.index(name) for name in order]), tuple(order))


def test_rearrange_to_the_same_order_is_nothing(equations):
    assert x.rearrange(("a", "b", "c")) is x and x.rearrange((...,)) is x and x.rearrange(("a", ...)) is x
    assert equations(lambda x: x.rearrange(("a", ..., "c")), x) == []
    assert equations(lambda x: x.rearrange(("c", ...)), x) == [("transpose", (4, 2, 3))]


def test_rearrange_refuses():
    for order, text in (
        (("a", "z", ...), "no axis 'z' in (a: 2, b: 3, c: 4)"),
        ((Axis("a", 3), ...), "axis 'a' has size 2 here, 3 was asked for"),
        (("a", "a", ...), "axis 'a' is given more than once in (a, a)"),
        (("a", "b"), "the order (a, b) leaves out (c); add `...` for the others"),
        ((), "the order () leaves out (a, b, c); add `...` for the others"),
        ((..., "a", ...), "`...` may occur only once in an order of axes"),
    ):
        with pytest.raises(ValueError, match=escape(text)):
            x.rearrange(order)
    for order in (Axis("a", 2), 0, ...):
        with pytest.raises(TypeError, match="`rearrange` takes a sequence of axes"):
            x.rearrange(order)
    for order, shown in (([["a"], ...], "a list of length 1"), ((..., {"a": 2}), "{'a': 2}"), ((0, ...), "0")):
        with pytest.raises(TypeError, match=escape(f"given by an `Axis` or by its name, not by {shown}.")):
            x.rearrange(order)


def test_broadcast_axis_adds_leading_axes(equations):
    result = v.broadcast_axis({"d": 2, "b": 3, "a": 4})
    assert same(result, np.broadcast_to(v.array, (2, 4, 3)), ("d", "a", "b"))
    assert v.broadcast_axis(Axis("b", 3)) is v and v.broadcast_axis(()) is v
    assert equations(lambda v: v.broadcast_axis({"a": 2}), v)[-1] == ("broadcast_in_dim", (2, 3))
    with pytest.raises(ValueError, match=escape("axis 'b' has size 3 and size 4 in (b: 3) and (a: 2, b: 4)")):
        v.broadcast_axis({"a": 2, "b": 4})


@given(st.permutations(["a", "b", "c", "d"]))
@settings(max_examples=12)
def test_broadcast_to_has_the_order_given(order):
    sizes = {"a": 2, "b": 3, "c": 4, "d": 5}
    y = x.rearrange(("c", "a", "b"))
    result = y.broadcast_to({name: sizes[name] for name in order})
    expected = np.broadcast_to(np.asarray(x)[..., None], (2, 3, 4, 5)).transpose(["abcd".index(n) for n in order])
    assert same(result, expected, tuple(order))


def test_broadcast_to_refuses():
    with pytest.raises(
        ValueError, match=r"\(a: 2, b: 3, c: 4\) cannot be broadcast to \(a: 2, c: 4\), which lacks \(b\)"
    ):
        x.broadcast_to({"a": 2, "c": 4})
    with pytest.raises(ValueError, match="axis 'a' has size 2 and size 3 in"):
        x.broadcast_to({"a": 3, "b": 3, "c": 4})
    assert x.broadcast_to(x.axes) is x


def test_broadcast_to_may_leave_the_order_and_further_axes():
    y = nym.ones({"c": 4, "a": 2})
    assert y.broadcast_to({"a": 2, "b": 3, "c": 4}, ensure_order=False).names == ("b", "c", "a")
    assert y.broadcast_to({"a": 2, "c": 4}, ensure_order=False) is y
    assert y.broadcast_to({"b": 3, "a": 2}, enforce_no_extra_axes=False).shape == {"b": 3, "a": 2, "c": 4}
    assert y.broadcast_to({"b": 3}, ensure_order=False, enforce_no_extra_axes=False).names == ("b", "c", "a")
    with pytest.raises(ValueError, match="axis 'a' has size 2 and size 3 in"):
        y.broadcast_to({"a": 3}, enforce_no_extra_axes=False)


def test_broadcast_arrays():
    one, two, three, none = nym.broadcast_arrays(v, x, 2.0, None)
    assert same(one, np.broadcast_to(v.array[:, None], (2, 3, 4)), x.names) and two is x
    assert three == 2.0 and none is None and nym.broadcast_arrays() == ()
    y, z = x.rearrange(("c", "b", "a")), v.broadcast_axis({"c": 4})
    assert [one.names for one in nym.broadcast_arrays(y, x, z)] == [("c", "b", "a")] * 3
    loose = nym.broadcast_arrays(y, x, z, ensure_order=False)
    assert [one.names for one in loose] == [("c", "b", "a"), ("a", "b", "c"), ("a", "c", "b")]


def test_broadcast_arrays_of_different_axes():
    u = nym.named([1.0, 2.0], "d")
    arrays, axes = nym.broadcast_arrays_and_return_axes(v, u, require_subset=False)
    assert axes == nym.make_axes(b=3, d=2) and nym.broadcast_arrays_and_return_axes(1) == ((1,), ())
    for result, expected in zip(arrays, np.broadcast_arrays(v.array[:, None], u.array[None]), strict=True):
        assert same(result, expected, ("b", "d"))
    with pytest.raises(ValueError, match=escape("cannot broadcast (b: 3) and (d: 2)")):
        nym.broadcast_arrays(v, u)
    for require_subset in (True, False):
        with pytest.raises(ValueError, match=escape("axis 'b' has size 3 and size 4 in (b: 3) and (b: 4)")):
            nym.broadcast_arrays(v, nym.ones({"b": 4}), require_subset=require_subset)
    with pytest.raises(TypeError, match=escape("A plain array of shape (3,) has no axis names")):
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


@pytest.mark.parametrize("join", [nym.stack, nym.concatenate])
def test_joining_refuses(join):
    axis = "c" if join is nym.concatenate else "n"
    with pytest.raises(ValueError, match=f"`{join.__name__}` along '{axis}' needs at least one array"):
        join(axis, [])
    with pytest.raises(
        ValueError, match=rf"`{join.__name__}` takes arrays of the same axes, not \(a: 2, b: 3, c: 4\) and \(b"
    ):
        join(axis, [x, v])
    with pytest.raises(ValueError, match="axis 'b' has size 3 and size 5 in"):
        join(axis, [x, nym.ones({"a": 2, "b": 5, "c": 4})])
    for plain in (x.array, np.asarray(x), 1.0):
        with pytest.raises(TypeError, match="A named array is needed, not "):
            join(axis, [x, plain])
        with pytest.raises(TypeError, match="A named array is needed, not "):
            join(axis, [plain, x])
    with pytest.raises(TypeError, match="needs an axis; use `unbind"):
        join(axis, x)


def test_stack_and_concatenate_refuse_wrong_axes():
    with pytest.raises(ValueError, match="axis 'n' has size 3, 2 arrays were given to `stack`"):
        nym.stack(Axis("n", 3), [x, x])
    with pytest.raises(ValueError, match=escape("axis 'a' occurs more than once in (a, a, b, c)")):
        nym.stack("a", [x, x])
    with pytest.raises(ValueError, match="axis 'c' has size 9, the arrays given to `concatenate` have 8"):
        nym.concatenate(Axis("c", 9), [x, x])
    with pytest.raises(ValueError, match=escape("no axis 'n' in (a: 2, b: 3, c: 4)")):
        nym.concatenate("n", [x, x])
    with pytest.raises(ValueError, match="axis 'c' has size 4 and size 3 in"):
        nym.stack("n", [x, x["c", :3]])


def test_unbind_takes_apart_what_stack_joins():
    for i, name in enumerate(x.names):
        pieces = x.unbind(name)
        assert len(pieces) == x.axis_size(name)
        for at, piece in enumerate(pieces):
            assert same(piece, np.take(np.asarray(x), at, i), tuple(n for n in x.names if n != name))
        assert np.array_equal(nym.stack(name, pieces).array, np.moveaxis(x.array, i, 0))
    assert nym.zeros({"a": 0, "b": 2}).unbind("a") == ()
    with pytest.raises(ValueError, match=escape("no axis 'z' in (a: 2, b: 3, c: 4)")):
        x.unbind("z")
    with pytest.raises(ValueError, match="axis 'a' has size 2 here, 3 was asked for"):
        x.unbind(Axis("a", 3))


def test_split_cuts_pieces():
    head, middle, tail = x.split("c", nym.make_axes(head=1, c=2, tail=1))
    assert same(head, x.array[:, :, :1], ("a", "b", "head")) and same(middle, x.array[:, :, 1:3], ("a", "b", "c"))
    assert same(tail, x.array[:, :, 3:], ("a", "b", "tail"))
    halves = x.split(Axis("c", 4), [Axis("half", 2)] * 2)
    assert np.array_equal(nym.concatenate("half", halves).array, x.array)


def test_split_refuses():
    with pytest.raises(
        ValueError, match=r"axis 'c' of \(a: 2, b: 3, c: 4\) cannot be split into pieces of \(1, 2\) elements"
    ):
        x.split("c", nym.make_axes(d=1, e=2))
    with pytest.raises(ValueError, match=escape("axis 'a' occurs more than once in (a, b, a)")):
        x.split("c", nym.make_axes(a=2, d=2))
    with pytest.raises(TypeError, match="A new axis needs a size"):
        x.split("c", ["d", "e"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no axis 'z' in"):
        x.split("z", nym.make_axes(d=4))


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

EAGER = {"concatenate", "flatten_axes", "ravel", "split_same", "squeeze", "unbind"}


def test_sharded_arrays(mapped, draw):
    operands = draw(batch=8, pos=3, embed=4), draw(embed=4)
    sharded = nym.shard(operands)
    inside = jax.jit(lambda *operands: {name: operation(*operands) for name, (operation, _) in OPERATIONS.items()})(
        *sharded
    )
    for name, (operation, letters) in OPERATIONS.items():
        expected = operation(*operands)
        outside = [operation(*sharded)] if name in EAGER else []
        for result in (inside[name], *outside):
            assert same(result, expected.array, expected.names), name
            if mapped.axis_types[0] == AxisType.Explicit:
                spec = jax.P(*({"d": "data", "m": "model", "p": None}[letter] for letter in letters))
                assert result.sharding.spec == spec, name


def test_split_takes_axes_and_no_number():
    with pytest.raises(
        TypeError, match=r"`split` takes the axes of the pieces, as in make_axes\(head=2, tail=3\), not 2"
    ):
        nym.split(nym.ones({"i": 4}), "i", 2)

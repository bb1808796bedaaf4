"""Windows of an array, read and replaced, against `jax.lax.dynamic_slice` and `dynamic_update_slice`."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
import axonym.haliax as hax
from axonym import Axis
from tests.refusals import refusal


x = nym.named(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4), ("a", "b", "c"))


def same(result, array, names=("a", "b", "c")):
    return result.names == names and result.dtype == np.asarray(array).dtype and np.array_equal(result.array, array)


STARTS = (0, 1, 2, 3, 9, -1, -2, np.int32(1))


def test_a_slice_is_moved_back_inside():
    traced = jax.jit(lambda starts: [x.slice("c", start=start, length=2) for start in starts])(STARTS)
    for start, result in zip(STARTS, traced, strict=True):
        first = min(max(start + 4 if start < 0 else start, 0), 2)
        expected = x.array[:, :, first : first + 2]
        assert same(result, expected) and same(x.slice("c", None, start, 2), expected)
    assert same(x.slice("c", start=nym.named(9, ()), length=2), x.array[:, :, 2:])


def test_slice_names_the_axis_anew():
    expected = x.array[:, 1:3]
    for result in (
        nym.slice(x, "b", Axis("d", 2), 1),
        nym.slice(x, Axis("b", 3), "d", 1, 2),
        nym.slice(x, "b", new_axis=Axis("d", 2), start=1, length=2),
        nym.slice(x, "b", start=1, length=Axis("d", 2)),
        nym.slice(x, start={"b": 1}, length={"b": Axis("d", 2)}),
        nym.slice(x, {Axis("b", 3): 1}, {"b": Axis("d", 2)}),
    ):
        assert same(result, expected, ("a", "d", "c"))


def test_slice_of_several_axes():
    result = nym.slice(x, start={"c": 1, "a": jnp.int32(1)}, length={"a": 1, "c": Axis("d", 2), "b": 2})
    assert same(result, x.array[1:, :2, 1:3], ("a", "b", "d"))
    assert same(nym.slice(x, {"c": 2}, length={"c": 2}), x.array[:, :, 2:])
    assert same(nym.slice(x, length={"c": 2}), x.array[:, :, :2]) and nym.slice(x, {}, {}) is x
    assert same(nym.slice(x, start={"a": 0}, length={"a": Axis("b", 2), "b": Axis("a", 3)}), x.array, ("b", "a", "c"))


SHOWN = "(a: 2, b: 3, c: 4)"
NEEDS = "`slice` along 'b' needs `length`, or an `Axis` as `new_axis`"
MAPPINGS = "`slice` takes an axis, or the mappings `start` and `length`"
REFUSED_SLICES = [
    (("z",), {"length": 2}, f"no axis 'z' in {SHOWN}", ValueError),
    (("b",), {"length": 4}, f"4 elements, given to `slice`, do not fit into axis 'b' of {SHOWN}", ValueError),
    (("b",), {"length": -1}, "The size of axis 'b' must not be negative, -1 was given.", ValueError),
    (("b",), {}, NEEDS, ValueError),
    (("b", Axis("d", 2)), {"length": 3}, "axis 'd' has size 2, a `length` of 3 was given to `slice`", ValueError),
    (("b", Axis("a", 2)), {}, "axis 'a' occurs more than once in (a, a, c)", ValueError),
    (({"b": 1}, {"c": 2}), {}, f"`slice` of axes (b) of {SHOWN} needs their `length`", ValueError),
    (("b", None, 1.5, 1), {}, f"`slice` along 'b' of {SHOWN} starts at an integer, not at 1.5", TypeError),
    (("b", None, np.ones(2, int), 1), {}, "starts at an integer, not at an array of shape (2,)", TypeError),
    (({"b": 1},), {"length": 2}, MAPPINGS, TypeError),
    ((), {"start": 2, "length": {"b": 2}}, MAPPINGS, TypeError),
]


@pytest.mark.parametrize(("args", "options", "text", "error"), REFUSED_SLICES)
def test_slice_refuses(args, options, text, error):
    with refusal(text, error):
        nym.slice(x, *args, **options)


def test_updated_slice(draw):
    update = draw(c=2, a=2, b=3)
    plain = np.transpose(update, (1, 2, 0))
    traced = jax.jit(lambda starts: [x.updated_slice({"c": start}, update) for start in starts])(STARTS)
    for start, result in zip(STARTS, traced, strict=True):
        first = min(max(start + 4 if start < 0 else start, 0), 2)
        expected = np.array(x.array)
        expected[:, :, first : first + 2] = plain
        assert same(result, expected) and same(x.updated_slice({Axis("c", 4): start}, update), expected)


def test_an_update_is_repeated_along_the_axes_that_it_lacks(draw):
    update = draw(b=2)
    expected = np.array(x.array)
    expected[:, 1:3, :] = np.asarray(update)[None, :, None]
    assert same(x.updated_slice({"b": nym.named(1, ())}, update), expected)
    expected = np.array(x.array)
    expected[1, 1:3, :] = np.asarray(update)[:, None]
    assert same(nym.updated_slice(x, start={"a": 1, "b": 1}, update=update), expected)
    assert same(x.updated_slice({}, nym.ones({"c": 4})), np.ones((2, 3, 4), np.float32))


def test_updated_slice_keeps_the_element_type():
    y = nym.zeros({"i": 3}, jnp.bfloat16)
    assert y.updated_slice({"i": 1}, nym.ones({"i": 2})).dtype == jnp.bfloat16
    with refusal("Elements of int32 cannot take values of float32", TypeError):
        nym.arange(Axis("i", 3)).updated_slice({"i": 0}, nym.ones({"i": 2}))


def test_updated_slice_refuses():
    two = nym.ones({"c": 2})
    for start, update, text, error in (
        ({"c": 0}, nym.ones({"d": 2}), f"the update, (d: 2), has axes (d) that {SHOWN} lacks", ValueError),
        ({"a": 0}, two, f"axis 'c' has size 2 in the update and size 4 in {SHOWN}; give its `start`", ValueError),
        ({"c": 0}, nym.ones({"c": 5}), "5 elements, given to `updated_slice`, do not fit into axis 'c'", ValueError),
        ({"c": 0.5}, two, f"`updated_slice` along 'c' of {SHOWN} starts at an integer, not at 0.5", TypeError),
        ("c", two, "takes a mapping from axis to start, such as {'pos': 2}, not 'c'", TypeError),
        ({"c": 0}, 1.0, "A named array is needed", TypeError),
    ):
        with refusal(text, error):
            x.updated_slice(start, update)
    with refusal("A named array is needed", TypeError):
        nym.slice(x.array, "b", length=2)


OPERATIONS = {
    "slice": (lambda x, u: x.slice("pos", start=1, length=2), "dpm"),
    "slice_divided": (lambda x, u: x.slice("batch", start=jnp.int32(3), length=4), "dpm"),
    "slice_renamed": (lambda x, u: x.slice("batch", Axis("row", 3), start=2), "ppm"),
    "slice_several": (lambda x, u: nym.slice(x, start={"embed": 1}, length={"embed": 2, "pos": Axis("key", 1)}), "dpm"),
    "updated_slice": (lambda x, u: x.updated_slice({"pos": 1}, u), "dpm"),
    "updated_divided": (lambda x, u: x.updated_slice({"batch": jnp.int32(2), "pos": 0}, u["batch", :4]), "dpm"),
    "updated_row": (lambda x, u: x.updated_slice({"embed": 1, "pos": 0}, u["embed", 0]), "dpm"),
}


def test_sharded_arrays(check_sharded, draw):
    operands = draw(batch=8, pos=3, embed=4), draw(pos=2, embed=4, batch=8)
    check_sharded(OPERATIONS, *operands, outside=("slice_renamed", "updated_divided"))


def test_slices_past_the_end_of_a_sharded_axis_are_moved_back_inside(compute_sharded, draw):
    def run(x, update, start):
        row = x["embed", 0]
        starts = nym.arange(Axis("step", 2)) + start
        return {
            "slice": x.slice("batch", start=start, length=4),
            "several": nym.slice(x, start={"batch": start, "embed": start}, length={"batch": 4, "embed": 2}),
            "fold": nym.fold(lambda total, i: total + row.slice("batch", start=i, length=4), "step")(update, starts),
            "vmap": nym.vmap(lambda x: x.slice("batch", start=start, length=4), "embed")(x),
            "haliax": hax.named(row.array, "batch").slice("batch", start=start, length=4),
            "update": x.updated_slice({"batch": start, "embed": start}, update),
            "gradient": nym.grad(lambda update: (row.updated_slice({"batch": start}, update) * row).sum())(update),
        }

    operands = draw(batch=8, embed=4), draw(batch=4)
    for start in (7, -1):
        compute_sharded(run, *operands, start)


@pytest.mark.parametrize(
    ("mesh", "mapping"),
    [("auto", {"batch": "data"}), ("explicit", {"batch": "data"}), ("explicit", None)],
    indirect=["mesh"],
)
def test_an_axis_of_a_size_that_does_not_fit_is_whole_until_it_is_sliced(mesh, draw, mapping):
    def run(x):
        padded = nym.pad(x, {"batch": 1}, mode="wrap")
        return {
            "wrap": padded["batch", 2:] - padded["batch", :-2],
            "constant": nym.pad(x, {"batch": (0, 1)})["batch", 1:],
            "roll": nym.roll(nym.pad(x, {"batch": 1}, mode="edge"), 1, "batch")["batch", 1:9],
            "repeat": nym.repeat(x, 3, "batch", total_repeat_length=18)["batch", 2:10],
        }

    def compute_loss(x):
        return sum((array**2).sum() for array in run(x).values())

    x = draw(batch=8, embed=4)
    with jax.set_mesh(None):
        expected = jax.jit(lambda x: (run(x), nym.grad(compute_loss)(x)))(x)
    sharded = nym.shard(x, {"batch": "data"})
    with nym.axis_mapping(mapping) if mapping else contextlib.nullcontext():
        results = jax.jit(lambda x: (run(x), nym.grad(compute_loss)(x)))(sharded)
        outside = nym.pad(sharded, {"batch": 1}, mode="wrap")["batch", 1:-1]
    for result, other in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-5)
    assert same(outside, x.array, x.names)

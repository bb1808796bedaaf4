"""Padding, repeating, rolling and reversing, against what NumPy does by position."""

import jax
import jax.numpy as jnp
import numpy as np

import axonym as nym
from axonym import Axis
from tests.named.comparing import assert_close, assert_same
from tests.refusals import refusal


base = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
x = nym.named(base, ("a", "b", "c"))


def test_repeat():
    cases = [(2, None), (0, None), (np.int32(3), None), ([1, 0, 2], None), ([1, 2, 3], 4), ([1, 1, 1], 5)]
    known_counts = nym.named([1, 0, 2], "b")

    @jax.jit
    def repeat(x, counts, count):
        known = [nym.repeat(x, repeats, "b", total) for repeats, total in cases]
        known.append(nym.repeat(x, known_counts, "b"))
        traced = nym.repeat(x, nym.named(counts, "b"), "b", 3), nym.repeat(x, count, "b", total_repeat_length=6)
        return known, traced

    known, traced = repeat(x, np.array([2, 0, 1]), 2)
    assert_same(known.pop(), "abc", np.repeat(base, [1, 0, 2], 1))
    for (repeats, total), result in zip(cases, known, strict=True):
        expected = np.repeat(base, repeats, 1)
        if total is not None:  # the last element is repeated
            expected = np.concatenate([expected[:, :total], base[:, [2] * max(0, total - expected.shape[1])]], 1)
        assert_same(result, "abc", expected)
    assert_same(nym.repeat(x, nym.named([1, 0, 2], "b"), Axis("b", 3)), "abc", base[:, [0, 2, 2]])
    assert_same(traced[0], "abc", base[:, [0, 0, 2]])
    assert_same(traced[1], "abc", np.repeat(base, 2, 1))


def test_repeat_refuses():
    for repeats, error, text in (
        (-1, ValueError, "axis 'b' of (a: 2, b: 3, c: 4) cannot be repeated a negative number of times"),
        ([1, -1, 2], ValueError, "cannot be repeated a negative number of times"),
        ([1, 2], ValueError, "axis 'b' of (a: 2, b: 3, c: 4) has 3 elements, `repeats` has shape (2,)"),
        (nym.named([1, 2, 3], "c"), ValueError, "`repeats` along 'b' must have just that axis, it has (c: 3)"),
        (1.5, TypeError, "axis 'b' of (a: 2, b: 3, c: 4) is repeated by integers, not by 1.5"),
    ):
        with refusal(text, error):
            nym.repeat(x, repeats, "b")
    with refusal("axis 'b' of (a: 2, b: 3, c: 4) is traced"):
        jax.jit(lambda counts: nym.repeat(x, counts, "b"))(np.arange(3))


def test_tile():
    assert_same(nym.tile(x, {"c": 2, Axis("a", 2): 3}), "abc", np.tile(base, (3, 1, 2)))
    assert nym.tile(x, {"b": 0}).shape == (2, 0, 4) and nym.tile(x, {}) is x
    for reps, error, text in (
        ({"a": 2, Axis("a", 2): 2}, ValueError, "axis 'a' is given more than once in (a, a)"),
        ({"b": -1}, ValueError, "axes (b) of (a: 2, b: 3, c: 4) cannot be repeated a negative number of times"),
        (2, TypeError, "takes a mapping from axis to number, such as {'pos': 2}, not 2"),
        ({"a": 1.5}, TypeError, "tile: a number of repetitions must be an integer, not 1.5"),
    ):
        with refusal(text, error):
            nym.tile(x, reps)


def test_roll_and_flip():
    shifts = [(1, "b", 1), (-5, Axis("c", 4), 2), ((1, -2), ("a", "c"), (0, 2)), (2, ("c", "b"), (2, 1)), ([1], "a", 0)]
    flips = [("b", 1), (("a", Axis("c", 4)), (0, 2)), (None, None)]

    @jax.jit
    def compute(x, shift):
        traced = nym.roll(x, shift, "b"), nym.roll(x, (shift, 1), ("b", "c")), nym.roll(x, nym.named(2, ()), "b")
        return [nym.roll(x, *case[:2]) for case in shifts], traced, [nym.flip(x, axis) for axis, _ in flips]

    rolled, traced, flipped = compute(x, -1)
    for (shift, _, dims), result in zip(shifts, rolled, strict=True):
        assert_same(result, "abc", np.roll(base, shift, dims))
    for (shift, dims), result in zip(((-1, 1), ((-1, 1), (1, 2)), (2, 1)), traced, strict=True):
        assert_same(result, "abc", np.roll(base, shift, dims))
    for (_, dims), result in zip(flips, flipped, strict=True):
        assert_same(result, "abc", np.flip(base, dims))
    assert_same(nym.roll(x, np.int64(2), "b"), "abc", np.roll(base, 2, 1))
    for same in (nym.roll(x, 1, ()), nym.flip(x, ())):
        assert_same(same, "abc", base)


def test_roll_refuses():
    with refusal("3 shifts were given for the axes (a, b)"):
        nym.roll(x, (1, 2, 3), ("a", "b"))
    for shift, shown in ((1.5, "1.5"), (nym.ones({"a": 2}), "an array of shape (2,)"), (jnp.ones(()), "an array of")):
        with refusal(f"(a: 2, b: 3, c: 4) is rolled by an integer along each axis, not by {shown}", TypeError):
            nym.roll(x, shift, "a")


def test_pad():
    modes = [
        {},
        {"constant_values": 2},
        {"mode": "edge"},
        {"mode": "reflect", "reflect_type": "odd"},
        {"mode": "linear_ramp", "end_values": -1.0},
        {"mode": "mean", "stat_length": 2},
    ]

    @jax.jit
    def pad(x, value):
        padded = [nym.pad(x, {"c": 1, Axis("b", 3): (2, 1)}, **options) for options in modes]
        pair = nym.pad(x, {"b": (1, 2)}, constant_values=(5, nym.named(6, ())))
        left = nym.pad_left(x, "b", Axis("b", 5), 9), nym.pad_left(x, Axis("b", 3), Axis("d", 5), value=9)
        return padded, pair, nym.pad(x, {"b": [1, 2]}, constant_values=value), left

    padded, pair, traced, left = pad(x, 7.0)
    for options, result in zip(modes, padded, strict=True):
        assert_close(result, "abc", np.pad(base, ((0, 0), (2, 1), (1, 1)), **options))
    widths = (0, 0), (1, 2), (0, 0)
    assert_same(pair, "abc", np.pad(base, widths, constant_values=[(0, 0), (5, 6), (0, 0)]))
    assert_same(traced, "abc", np.pad(base, widths, constant_values=7))
    for names, result in zip(("abc", "adc"), left, strict=True):
        assert_same(result, names, np.pad(base, ((0, 0), (2, 0), (0, 0)), constant_values=9))
    assert nym.pad(x, {}) is x
    assert_same(nym.pad_left(x, "b", Axis("b", 3)), "abc", base)


def test_pad_refuses():
    one_value = "`end_values` of `pad` is one value for all axes, known before compilation, not a"
    scalar = "`constant_values` must be a scalar, not an array with axes (b: 3)"
    for widths, options, error, text in (
        ({"a": -1}, {}, ValueError, "axis 'a' of (a: 2, b: 3, c: 4) cannot be padded by a negative number of elements"),
        ({"a": (1, 2, 3)}, {}, ValueError, "axis 'a' is padded by a number, or by a pair of them, not by (1, 2, 3)"),
        ({"a": 1}, {"constant_values": (1, 2, 3)}, ValueError, "is a scalar, or a pair of them, not (1, 2, 3)"),
        ({"a": 1}, {"constant_values": nym.ones({"b": 3})}, ValueError, scalar),
        ({"a": 1}, {"stat_length": 2}, ValueError, "unsupported keyword arguments for mode 'constant'"),
        (1, {}, TypeError, "`pad` takes a mapping from axis to widths, such as {'pos': (0, 2)}, not 1"),
        ({"a": 1.5}, {}, TypeError, "pad: a width must be an integer, not 1.5"),
        ({"a": 1}, {"mode": "linear_ramp", "end_values": [1, 2]}, TypeError, one_value),
        ({"a": 1}, {"constant_values": np.ones(2)}, TypeError, "A plain array of shape (2,) has no axis names"),
    ):
        with refusal(text, error):
            nym.pad(x, widths, **options)
    for new, error, text in (
        (Axis("b", 2), ValueError, "axis 'b' of (a: 2, b: 3, c: 4) is longer than 2, to which it was pad"),
        (Axis("a", 5), ValueError, "axis 'a' occurs more than once in (a, a, c)"),
        ("d", TypeError, "A new axis needs a size"),
    ):
        with refusal(text, error):
            nym.pad_left(x, "b", new)


OPERATIONS = {
    "repeat": (lambda x, _: nym.repeat(x, 2, "batch"), "dpm"),
    "repeat_by": (lambda x, _: nym.repeat(x, [1, 3] * 4, "batch"), "dpm"),
    "tile": (lambda x, _: nym.tile(x, {"embed": 2, "pos": 2}), "dpm"),
    "roll": (lambda x, _: nym.roll(x, 3, "batch"), "dpm"),
    "roll_by": (lambda x, _: nym.roll(x, jnp.int32(1), ("embed", "pos")), "dpm"),
    "flip": (lambda x, _: nym.flip(x, ("batch", "pos")), "dpm"),
    "pad": (lambda x, _: nym.pad(x, {"batch": (3, 1), "pos": 1}, constant_values=2.0), "dpm"),
    "pad_mean": (lambda x, _: nym.pad(x, {"embed": (0, 2)}, mode="mean"), "dpm"),
    "gradient": (lambda x, w: nym.grad(lambda x: (nym.roll(nym.pad(x, {"batch": 4}), 1, "batch") * w).sum())(x), "dpm"),
}


def test_sharded_arrays(check_sharded, draw):
    check_sharded(OPERATIONS, draw(batch=8, pos=3, embed=4), draw(batch=16, pos=3, embed=4), outside=["pad_mean"])

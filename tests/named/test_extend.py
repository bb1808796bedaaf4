"""Padding, repeating, rolling and reversing, against what `jax.numpy` does by position."""

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


def same(one, array, names=("a", "b", "c")):
    return one.names == names and one.dtype == np.asarray(array).dtype and np.array_equal(one.array, array)


@pytest.mark.parametrize(
    ("repeats", "total"), [(2, None), (0, None), (np.int32(3), None), ([1, 0, 2], None), ([1, 2, 3], 4), ([1, 1, 1], 5)]
)
def test_repeat(repeats, total):
    expected = jnp.repeat(x.array, np.asarray(repeats), 1, total_repeat_length=total)
    assert same(nym.repeat(x, repeats, "b", total), expected)
    assert same(nym.repeat(x, repeats, Axis("b", 3), total_repeat_length=total), expected)
    if np.ndim(repeats):
        assert same(nym.repeat(x, nym.named(repeats, "b"), "b", total), expected)


def test_repeat_by_a_traced_number():
    counts = jnp.array([2, 0, 1])
    run = jax.jit(lambda counts: nym.repeat(x, nym.named(counts, "b"), "b", 3))
    assert same(run(counts), jnp.repeat(x.array, counts, 1))
    run = jax.jit(lambda count: nym.repeat(x, count, "b", total_repeat_length=6))
    assert same(run(2), jnp.repeat(x.array, 2, 1))
    with pytest.raises(ValueError, match=escape("axis 'b' of (a: 2, b: 3, c: 4) is traced")):
        jax.jit(lambda counts: nym.repeat(x, counts, "b"))(counts)


def test_repeat_refuses():
    for repeats, error, text in (
        (-1, ValueError, "axis 'b' of (a: 2, b: 3, c: 4) cannot be repeated a negative number of times"),
        ([1, -1, 2], ValueError, "cannot be repeated a negative number of times"),
        ([1, 2], ValueError, "axis 'b' of (a: 2, b: 3, c: 4) has 3 elements, `repeats` has shape (2,)"),
        (nym.named([1, 2, 3], "c"), ValueError, "`repeats` along 'b' must have just that axis, it has (c: 3)"),
        (1.5, TypeError, "axis 'b' of (a: 2, b: 3, c: 4) is repeated by integers, not by 1.5"),
    ):
        with pytest.raises(error, match=escape(text)):
            nym.repeat(x, repeats, "b")
    with pytest.raises(ValueError, match=escape("no axis 'z' in (a: 2, b: 3, c: 4)")):
        nym.repeat(x, 2, "z")
    with pytest.raises(TypeError, match="A named array is needed"):
        nym.repeat(x.array, 2, "b")


def test_tile():
    assert same(nym.tile(x, {"c": 2, Axis("a", 2): 3}), np.tile(x.array, (3, 1, 2)))
    assert same(nym.tile(x, {"b": 0}), np.tile(x.array, (1, 0, 1))) and nym.tile(x, {}) is x


def test_tile_refuses():
    for reps, text in (
        ({"z": 2}, "no axis 'z' in (a: 2, b: 3, c: 4)"),
        ({Axis("a", 3): 2}, "axis 'a' has size 2 here, 3 was asked for"),
        ({"a": 2, Axis("a", 2): 2}, "axis 'a' is given more than once in (a, a)"),
        ({"a": 2, "b": -1}, "axes (b) of (a: 2, b: 3, c: 4) cannot be repeated a negative number of times"),
    ):
        with pytest.raises(ValueError, match=escape(text)):
            nym.tile(x, reps)
    with pytest.raises(TypeError, match=escape("takes a mapping from axis to number, such as {'pos': 2}, not 2")):
        nym.tile(x, 2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"tile: a number of repetitions must be an integer, not 1\.5"):
        nym.tile(x, {"a": 1.5})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("shift", "axis", "dims"),
    [
        (1, "b", 1),
        (-5, Axis("c", 4), 2),
        ((1, -2), ("a", "c"), (0, 2)),
        (2, ("c", "b"), (2, 1)),
        ([1], "a", 0),
        (1, (), ()),
    ],
)
def test_roll(shift, axis, dims):
    expected = np.roll(x.array, shift, dims) if dims != () else x.array
    assert same(nym.roll(x, shift, axis), expected)


def test_roll_by_a_traced_number():
    assert same(jax.jit(lambda shift: nym.roll(x, shift, "b"))(jnp.int32(-1)), np.roll(x.array, -1, 1))
    assert same(jax.jit(lambda shift: nym.roll(x, (shift, 1), ("b", "c")))(2), np.roll(x.array, (2, 1), (1, 2)))
    assert same(nym.roll(x, nym.named(2, ()), "b"), np.roll(x.array, 2, 1))
    assert same(nym.roll(x, np.int64(2), "b"), np.roll(x.array, 2, 1))


def test_roll_refuses():
    with pytest.raises(ValueError, match=escape("3 shifts were given for the axes (a, b)")):
        nym.roll(x, (1, 2, 3), ("a", "b"))
    for shift, shown in ((1.5, "1.5"), (nym.ones({"a": 2}), "an array of shape (2,)"), (jnp.ones(()), "an array of")):
        with pytest.raises(
            TypeError, match=escape(f"(a: 2, b: 3, c: 4) is rolled by an integer along each axis, not by {shown}")
        ):
            nym.roll(x, shift, "a")
    with pytest.raises(ValueError, match=escape("no axis 'z' in (a: 2, b: 3, c: 4)")):
        nym.roll(x, 1, "z")


def test_flip():
    for axis, dims in (("b", 1), (("a", Axis("c", 4)), (0, 2)), (None, None), ((), ())):
        assert same(nym.flip(x, axis), np.flip(x.array, dims))
    with pytest.raises(ValueError, match="axis 'b' has size 3 here, 5 was asked for"):
        nym.flip(x, Axis("b", 5))


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("constant", {}),
        ("constant", {"constant_values": 2}),
        ("edge", {}),
        ("reflect", {"reflect_type": "odd"}),
        ("linear_ramp", {"end_values": -1.0}),
        ("mean", {"stat_length": 2}),
    ],
)
def test_pad(mode, options):
    expected = jnp.pad(x.array, ((0, 0), (2, 1), (1, 1)), mode=mode, **options)
    assert same(nym.pad(x, {"c": 1, Axis("b", 3): (2, 1)}, mode=mode, **options), expected)


def test_pad_with_values_of_arrays():
    expected = jnp.pad(x.array, ((0, 0), (1, 2), (0, 0)), constant_values=(5, 6))
    assert same(nym.pad(x, {"b": (1, 2)}, constant_values=(5, nym.named(6, ()))), expected)
    traced = jax.jit(lambda value: nym.pad(x, {"b": [1, 2]}, constant_values=value))(7.0)
    assert same(traced, jnp.pad(x.array, ((0, 0), (1, 2), (0, 0)), constant_values=7))
    assert nym.pad(x, {}) is x


def test_pad_refuses():
    for widths, options, text in (
        ({"z": 1}, {}, "no axis 'z' in (a: 2, b: 3, c: 4)"),
        ({"a": -1}, {}, "axis 'a' of (a: 2, b: 3, c: 4) cannot be padded by a negative number of elements"),
        ({"a": (1, 2, 3)}, {}, "axis 'a' is padded by a number, or by a pair of them, not by (1, 2, 3)"),
        ({"a": 1}, {"constant_values": (1, 2, 3)}, "`constant_values` is a scalar, or a pair of them, not (1, 2, 3)"),
        (
            {"a": 1},
            {"constant_values": nym.ones({"b": 3})},
            "`constant_values` must be a scalar, not an array with axes (b: 3)",
        ),
        ({"a": 1}, {"stat_length": 2}, "unsupported keyword arguments for mode 'constant'"),
    ):
        with pytest.raises(ValueError, match=escape(text)):
            nym.pad(x, widths, **options)
    with pytest.raises(
        TypeError, match=escape("`pad` takes a mapping from axis to widths, such as {'pos': (0, 2)}, not 1")
    ):
        nym.pad(x, 1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"pad: a width must be an integer, not 1\.5"):
        nym.pad(x, {"a": 1.5})  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        TypeError, match="`end_values` of `pad` is one value for all axes, known before compilation, not a"
    ):
        nym.pad(x, {"a": 1}, mode="linear_ramp", end_values=[1, 2])
    with pytest.raises(TypeError, match=escape("A plain array of shape (2,) has no axis names")):
        nym.pad(x, {"a": 1}, constant_values=np.ones(2))


def test_pad_left():
    expected = np.pad(x.array, ((0, 0), (2, 0), (0, 0)), constant_values=9)
    assert same(nym.pad_left(x, "b", Axis("b", 5), 9), expected)
    assert same(nym.pad_left(x, Axis("b", 3), Axis("d", 5), value=9), expected, ("a", "d", "c"))
    assert same(nym.pad_left(x, "b", Axis("b", 3)), x.array)
    with pytest.raises(
        ValueError, match=escape("axis 'b' of (a: 2, b: 3, c: 4) is longer than 2, to which it was pad")
    ):
        nym.pad_left(x, "b", Axis("b", 2))
    with pytest.raises(ValueError, match=escape("axis 'a' occurs more than once in (a, a, c)")):
        nym.pad_left(x, "b", Axis("a", 5))
    with pytest.raises(TypeError, match="A new axis needs a size"):
        nym.pad_left(x, "b", "d")  # pyright: ignore[reportArgumentType]


def test_gradients_of_pad_and_roll(draw):
    weights = draw(a=2, b=6, c=4)
    gradient = jax.grad(lambda x: (nym.roll(nym.pad(x, {"b": (1, 2)}), 1, "b") * weights).sum().scalar())(x)
    assert same(gradient, np.roll(weights.array, -1, 1)[:, 1:4])


@given(shift=st.integers(-5, 5), axes=st.permutations(["a", "b", "c"]), count=st.integers(1, 3))
@settings(max_examples=20)
def test_rolling_back_and_forth_changes_nothing(shift, axes, count):
    chosen = tuple(axes[:count])
    assert same(nym.roll(nym.roll(x, shift, chosen), -shift, chosen), x.array)


@given(before=st.integers(0, 3), after=st.integers(0, 3), axis=st.sampled_from(["a", "b", "c"]))
@settings(max_examples=20)
def test_a_slice_takes_away_what_pad_adds(before, after, axis):
    padded = nym.pad(x, {axis: (before, after)}, constant_values=-1)
    assert same(padded.slice(axis, start=before, length=x.axis_size(axis)), x.array)


OPERATIONS = {
    "repeat": lambda x: nym.repeat(x, 2, "batch"),
    "repeat_other": lambda x: nym.repeat(x, [1, 0, 2], "pos"),
    "repeat_by": lambda x: nym.repeat(x, [1, 3] * 4, "batch"),
    "tile": lambda x: nym.tile(x, {"embed": 2, "pos": 2}),
    "roll": lambda x: nym.roll(x, 3, "batch"),
    "roll_by": lambda x: nym.roll(x, jnp.int32(1), ("embed", "pos")),
    "flip": lambda x: nym.flip(x, ("batch", "pos")),
    "pad": lambda x: nym.pad(x, {"batch": (3, 1), "pos": 1}, constant_values=2.0),
    "pad_edge": lambda x: nym.pad(x, {"pos": 1}, mode="edge"),
    "pad_mean": lambda x: nym.pad(x, {"embed": (0, 2)}, mode="mean"),
    "pad_left": lambda x: nym.pad_left(x, "pos", Axis("embed2", 5)),
}


def test_sharded_arrays(mapped, draw):
    x = draw(batch=8, pos=3, embed=4)
    sharded = nym.shard(x)
    inside = jax.jit(lambda x: {name: operation(x) for name, operation in OPERATIONS.items()})(sharded)
    for name, operation in OPERATIONS.items():
        expected = operation(x)
        outside = [operation(sharded)] if name in ("pad_mean", "repeat_by", "roll_by", "tile") else []
        for result in (inside[name], *outside):
            assert result.names == expected.names and np.allclose(result.array, expected.array), name
            if mapped.axis_types[0] == AxisType.Explicit:
                assert result.sharding.spec == jax.P("data", None, "model"), name


def test_without_a_mapping_results_are_sharded_as_the_operand(explicit_mesh, draw):
    x = draw(batch=8, pos=3, embed=4)
    with jax.set_mesh(explicit_mesh):
        with nym.axis_mapping({"batch": "data", "embed": "model"}):
            sharded = nym.shard(x)
        for name in ("roll", "pad", "tile", "repeat_by"):
            expected, result = OPERATIONS[name](x), OPERATIONS[name](sharded)
            assert np.array_equal(result.array, expected.array), name
            assert result.sharding.spec == jax.P("data", None, "model"), name

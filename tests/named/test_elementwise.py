"""Elementwise functions beyond what they share with those of JAX, which `test_parity.py` compares."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from tests.named.comparing import assert_close, assert_same
from tests.refusals import refusal


FUNCTIONS = {name: fn for name, fn in vars(nym).items() if inspect.isfunction(fn)}
PUBLIC = {name: fn for name, fn in FUNCTIONS.items() if fn.__module__.startswith("axonym.named._elementwise.")}
AXES = ("batch", "embed")
SYNONYMS = """
    abs absolute, arccos acos, arctan2 atan2, bitwise_not bitwise_invert invert, conj conjugate, deg2rad radians,
    left_shift bitwise_left_shift, power pow, rad2deg degrees, right_shift bitwise_right_shift, round around, trunc fix
"""


def test_synonyms_are_one_function():
    for names in SYNONYMS.split(","):
        assert len({getattr(nym, name) for name in names.split()}) == 1, names


def test_scalars_go_with_named_arrays():
    x = nym.ones({"i": 2}, int)
    for name, fn in PUBLIC.items():
        required = [each for each in inspect.signature(fn).parameters.values() if each.default is each.empty]
        if len(required) != 2 or name in ("divmod", "select"):
            continue
        plain = getattr(jnp, name, None) or getattr(jax.nn, name, None) or getattr(jax.scipy.special, name)
        for first, second in ((x, 3), (2, x)):
            result = jax.eval_shape(lambda first, second, fn=fn: fn(first, second), first, second)
            arrays = [getattr(operand, "array", operand) for operand in (first, second)]
            expected = jax.eval_shape(lambda first, second, fn=plain: fn(first, second), *arrays)
            assert result.names == ("i",) and result.dtype == expected.dtype, name


def test_plain_scalars_pass_through():
    assert nym.exp(0.0) == 1 and nym.where(False, 1, 2) == 2 and nym.maximum(2, 3) == 3
    assert nym.where(np.array([True, False]), 1, 2).tolist() == [1, 2]
    assert [int(part) for part in nym.divmod(7, 2)] == [3, 1]


def test_clip_refuses_bounds_that_integers_cannot_have():
    x = nym.arange(nym.Axis("i", 3), dtype=jnp.int8)
    for call in (nym.clip, nym.named_jit(nym.clip)):
        with refusal("elements of int8 are from -128 to 127 and cannot take 200"):
            call(x, 0, 200)
    with refusal("elements of int32 are from -2147483648 to 2147483647 and cannot"):
        x.astype(int).clip(min=-(2**40))


def test_clip_with_bounds_of_several_kinds(draw):
    x, low, high = draw(batch=2, pos=3), draw(-1, 0, pos=3), draw(0, 1, batch=2)
    plain, least, most = np.asarray(x), np.asarray(low), np.asarray(high)[:, None]

    @jax.jit
    def compute(x, low, high):
        bounded = x.clip(low, high), x.clip(min=0.5), x.clip(max=0.5), x.clip(), nym.clip(x, low, high)
        return bounded, low.clip(x, None)

    results, reflected = compute(x, low, high)
    expected = np.clip(plain, least, most), np.maximum(plain, 0.5), np.minimum(plain, 0.5), plain
    for result, values in zip(results, (*expected, expected[0]), strict=True):
        assert_same(result, ("batch", "pos"), values)
    assert reflected.names == ("batch", "pos")


def test_round_takes_decimals(draw):
    x = draw(a=5)
    assert_close(x.round(1), "a", np.round(x.array, 1))
    np.testing.assert_allclose(nym.round(x.array, 1), np.round(x.array, 1), rtol=1e-6)
    with refusal("round: `decimals` must be an integer, not 0.5.", TypeError):
        nym.round(x, 0.5)  # pyright: ignore[reportArgumentType]


def test_complex_numbers():
    plain = np.array([1 + 2j, -0.5j, 3], np.complex64)
    x = nym.named(plain, "a")

    @jax.jit
    def compute(x):
        named = {name: getattr(nym, name)(x) for name in ("angle", "iscomplex", "isreal", "abs", "exp")}
        named |= {"real": x.real, "imag": x.imag, "conj": x.conj(), "conjugate": x.conjugate()}
        return named, nym.angle(x, deg=True), nym.angle(x.array, deg=True)

    named, degrees, plain_degrees = compute(x)
    for name, result in named.items():
        assert_close(result, "a", getattr(np, name)(plain))
    assert_close(degrees, "a", np.angle(plain, deg=True))
    np.testing.assert_array_equal(plain_degrees, degrees.array)


@pytest.mark.parametrize("name", ["frexp", "modf", "divmod"])
def test_results_are_two_named_arrays(name, mapped, draw):
    x, y, fn = draw.integers(-9, 9, batch=8, embed=4), draw.integers(1, 5, embed=4), getattr(nym, name)
    if name != "divmod":
        x = nym.named(np.asarray(x) / np.float32(4), AXES)
    operands = (x, y) if name == "divmod" else (x,)
    expected = getattr(np, name)(*map(np.asarray, operands))
    parts = (jax.jit(fn) if name == "frexp" else fn)(*nym.shard(operands))
    assert isinstance(parts, tuple)
    for part, values in zip(parts, expected, strict=True):
        assert_same(part, AXES, values)
        assert part.dtype == values.dtype and part.sharding.spec == jax.P("data", "model")
    plain = jax.eval_shape(fn, *(operand.array for operand in operands[:1] * len(operands)))
    assert type(plain) is tuple and all(type(part) is jax.ShapeDtypeStruct for part in plain)


def test_ndim_is_a_plain_integer(draw):
    assert nym.ndim(draw(a=2, b=3)) == 2 and type(nym.ndim(draw(a=2, b=3))) is int
    assert (nym.ndim(3.0), nym.ndim(jnp.zeros((1, 2, 3)))) == (0, 3)
    assert jax.eval_shape(lambda x: x * nym.ndim(x), draw(a=2)).names == ("a",)


def test_copy_has_memory_of_its_own(draw):
    x = draw(a=2)
    y = x.copy()
    assert np.array_equal(x.array, y.array) and y.array is not x.array
    assert x.array.unsafe_buffer_pointer() != y.array.unsafe_buffer_pointer()


def test_what_is_no_finite_number_is_told_and_replaced():
    plain = np.array([np.nan, np.inf, -np.inf, -0.0, 2.0], np.float32)
    unary = ("isnan", "isinf", "isposinf", "isneginf", "signbit", "nan_to_num")

    @jax.jit
    def compute(x):
        named = {name: getattr(nym, name)(x) for name in unary}
        named |= {name: getattr(nym, name)(x, 1.0) for name in ("fmax", "fmin")}
        return named, nym.nan_to_num(x, nan=7.0, posinf=8.0, neginf=9.0), nym.nan_to_num(x.array, 7.0)

    named, replaced, plain_replaced = compute(nym.named(plain, "i"))
    for name, result in named.items():
        assert_same(result, "i", getattr(np, name)(plain, *(() if name in unary else (np.float32(1),))))
    assert_same(replaced, "i", [7.0, 8.0, 9.0, 0.0, 2.0])
    assert plain_replaced[0] == 7


def test_isclose_takes_tolerances_and_nan():
    values, row = np.array([[1.0, 2.0, np.nan], [1.1, 2.1, 0.0]]), np.array([1.0, 2.0, np.nan])
    x, y, tolerance = nym.named(values, ("a", "b")), nym.named(row, "b"), nym.named([0.0, 0.2], "a")

    @jax.jit
    def compute(x, y, tolerance):
        named = nym.isclose(x, y), nym.isclose(x, y, equal_nan=True), nym.isclose(x, y, 0.0, tolerance)
        return (*named, nym.isclose(x, 1.0, rtol=0.2)), nym.isclose(x.array, x.array + 0.1, atol=0.2)

    named, plain = compute(x, y, tolerance)
    expected = (
        *(np.isclose(values, row), np.isclose(values, row, equal_nan=True)),
        *(np.isclose(values, row, 0.0, np.array([[0.0], [0.2]])), np.isclose(values, 1.0, rtol=0.2)),
    )
    for result, truth in zip(named, expected, strict=True):
        assert_same(result, "ab", truth)
    np.testing.assert_array_equal(plain, ~np.isnan(values))


def test_select_takes_the_first_choice_whose_condition_holds(mapped, draw):
    x, y = draw(batch=8, embed=4), draw(embed=4)
    plain, row = np.asarray(x), np.asarray(y)
    expected = np.where(plain > 1, plain, np.where(row > 0, row, -5.0))

    def select(x, y):
        return nym.select([x > 1, y > 0], [x, y], default=-5.0)

    result = jax.jit(select)(*nym.shard((x, y)))
    assert_same(result, AXES, expected)
    assert result.sharding.spec == jax.P("data", "model")
    assert jax.eval_shape(lambda x: nym.select([x.array > 1], [x.array]), x).shape == (8, 4)
    assert jax.eval_shape(lambda x: nym.select([x > 1], [1]), x).dtype == jnp.int32


def test_select_needs_a_choice_for_each_condition(draw):
    x = draw(a=2)
    with refusal("one choice for each condition, at least one: 2 conditions and 1 choices"):
        nym.select([x > 0, x > 1], [x])
    with refusal("`select` takes a list of conditions and a list of choices, not None", TypeError):
        nym.select(None, [x])  # pyright: ignore[reportArgumentType]


def test_where_of_a_condition_alone_says_where_it_holds(mapped, draw):
    condition = nym.named(np.asarray(draw(batch=8, embed=4)) > 0, AXES)

    @jax.jit
    def find(condition):
        few = nym.where(condition, new_axis=nym.Axis("found", 2))
        return nym.where(condition, fill_value=(8, 4), new_axis=nym.Axis("found", 40)), few

    for place, two, expected, fill in zip(*find(nym.shard(condition)), np.nonzero(condition), (8, 4), strict=True):
        assert_same(place, ("found",), np.concatenate([expected, np.full(40 - expected.size, fill)]))
        assert_same(two, ("found",), expected[:2])


def test_where_takes_both_choices_or_neither(draw):
    x, places = draw(a=2), nym.Axis("found", 2)
    for wrong in (
        lambda: nym.where(x > 0, x),
        lambda: nym.where(x > 0),
        lambda: nym.where(x > 0, x, x, new_axis=places),
    ):
        with refusal("needs both `x` and `y`, or neither of them and a `new_axis`"):
            wrong()
    with refusal("a condition without axes has no positions"):
        nym.where(nym.named(True, ()), new_axis=places)
    with refusal("A named array is needed, not an array of shape (2,)", TypeError):
        nym.where(x.array > 0, new_axis=places)

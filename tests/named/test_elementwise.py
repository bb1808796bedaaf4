"""Every elementwise function against the function of its name in JAX: found by itself, not listed here."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


package = importlib.import_module("axonym.named._elementwise")
PUBLIC = {
    name: fn for name, fn in vars(nym).items() if inspect.isfunction(fn) and fn.__module__.startswith(package.__name__)
}
AXES = ("batch", "pos", "embed")
DOMAINS = {
    "arccosh": (1.1, 3.0),
    "ldexp": (0, 5),
    "left_shift": (0, 5),
    "right_shift": (0, 5),
    "spacing": (1e6, 9e6),
}  # where the usual one does not do
ARITIES = {"where": 3}  # of those that can do with fewer operands and are another function then
NEIGHBOURS = {"nextafter", "spacing"}  # exact or wrong, and without a gradient in JAX
CONSTANT = {"imag", "iscomplex", "isreal"}  # for real numbers; the compiler may put a constant where it likes
OTHERS = {"divmod", "frexp", "modf", "ndim", "select"}  # called in another way, or two results: with tests of their own


class Function(NamedTuple):
    """An elementwise function, the one of its name in JAX, and how many operands it needs."""

    name: str
    named: Callable[..., Any]
    plain: Callable[..., Any]
    arity: int

    @property
    def integral(self) -> bool:
        """Whether it refuses floats."""
        try:
            jax.eval_shape(self.plain, *[jax.ShapeDtypeStruct((), jnp.float32)] * self.arity)
        except (TypeError, ValueError):
            return True
        return False

    def operands(self, draw: Any) -> list[Any]:
        """Operands of which each needs another kind of lining up with the first."""
        low, high = DOMAINS.get(self.name, (0.2, 0.9))
        sizes = ({"batch": 8, "pos": 3, "embed": 4}, {"embed": 4, "batch": 8}, {"pos": 3})[: self.arity]
        if self.integral:
            return [draw.integers(*DOMAINS.get(self.name, (0, 100)), **own) for own in sizes]
        return [draw(low, high, **own) for own in sizes]

    def expected(self, *operands: Any) -> Any:
        """What JAX makes of the operands once they are lined up by hand."""
        x, *rest = operands
        lined = (lambda y: y.T[:, None, :], lambda z: z[None, :, None])
        return self.plain(x, *(fn(one) for fn, one in zip(lined, rest, strict=False)))


def in_jax(name: str) -> Callable[..., Any]:
    found = [vars(module)[name] for module in (jnp, jax.nn, jax.lax, jax.scipy.special) if name in vars(module)]
    assert found, f"JAX has no function `{name}`"
    return found[0]


def needed(name: str, fn: Callable[..., Any]) -> int:
    return ARITIES.get(name) or sum(one.default is one.empty for one in inspect.signature(fn).parameters.values())


def found() -> list[Function]:
    """All but synonyms, which are the same function."""
    own = {fn.__name__: fn for fn in PUBLIC.values() if fn.__name__ not in OTHERS}
    return [Function(name, fn, in_jax(name), needed(name, fn)) for name, fn in sorted(own.items())]


FUNCTIONS = found()
each = pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.name)


def test_every_function_of_every_group_is_public():
    groups = [
        importlib.import_module(f"{package.__name__}.{one.name}") for one in pkgutil.iter_modules(package.__path__)
    ]
    own = {
        name
        for group in groups
        for name, fn in vars(group).items()
        if inspect.isfunction(fn) and fn.__module__ == group.__name__ and not name.startswith("_")
    }
    own -= {"split_pair"}  # what the groups share
    assert len(own) > 110 and {getattr(nym, name).__name__ for name in own} == {fn.name for fn in FUNCTIONS} | OTHERS
    assert own <= PUBLIC.keys()


def agrees(fn: Function, result: nym.NamedArray, operands: list[Any]) -> bool:
    expected = fn.expected(*(x.array for x in operands))
    assert isinstance(result, nym.NamedArray) and result.names == AXES, fn.name
    assert result.dtype == expected.dtype, fn.name
    close = {"rtol": 0, "atol": 0} if fn.name in NEIGHBOURS else {"rtol": 1e-5, "atol": 1e-6}
    assert np.allclose(result.array, expected, **close), fn.name
    return True


@each
def test_plain_arrays_and_scalars_pass_through(fn, draw):
    operands = [x.array for x in fn.operands(draw)]
    same = [operands[0]] * fn.arity
    result = fn.named(*same)
    assert isinstance(result, jax.Array) and np.array_equal(result, fn.plain(*same), equal_nan=True)
    if FUNCTIONS.index(fn) % 5 == 0:  # they all go the same way
        numbers = [np.asarray(x).flat[0].item() for x in same]
        assert fn.named(*numbers) == fn.plain(*numbers)


@each
def test_scalars_go_with_named_arrays(fn, draw):
    operands = fn.operands(draw)
    for at in range(fn.arity if fn.arity > 1 else 0):
        mixed = [operands[0] if i == at else np.asarray(operands[i]).flat[0].item() for i in range(fn.arity)]
        plain = [x.array if isinstance(x, nym.NamedArray) else x for x in mixed]
        result, expected = fn.named(*mixed), fn.plain(*plain)
        assert result.names == AXES and result.dtype == expected.dtype and np.allclose(result.array, expected)


def test_some_of_them_on_a_mesh_outside_of_jit(mapped, draw):
    for fn in FUNCTIONS[::10]:
        operands = fn.operands(draw)
        computed = fn.named(*nym.shard(operands))
        assert agrees(fn, computed, operands)
        assert fn.name in CONSTANT or computed.sharding.spec == jax.P("data", None, "model"), fn.name


def test_clip_refuses_bounds_that_integers_cannot_have():
    x = nym.arange(nym.Axis("i", 3), dtype=jnp.int8)
    for call in (nym.clip, nym.named_jit(nym.clip)):
        with pytest.raises(ValueError, match="elements of int8 are from -128 to 127 and cannot take 200"):
            call(x, 0, 200)
    with pytest.raises(ValueError, match="elements of int32 are from -2147483648 to 2147483647 and cannot"):
        x.astype(int).clip(min=-(2**40))


def test_clip_with_bounds_of_several_kinds(draw):
    x, low, high = draw(batch=2, pos=3), draw(-1, 0, pos=3), draw(0, 1, batch=2)
    expected = jnp.clip(x.array, low.array[None], high.array[:, None])
    assert np.array_equal(nym.clip(x, low, high).array, expected) and np.array_equal(x.clip(low, high).array, expected)
    assert np.array_equal(x.clip(min=0.5).array, jnp.clip(x.array, 0.5, None))
    assert np.array_equal(x.clip(max=0.5).array, jnp.clip(x.array, None, 0.5))
    assert np.array_equal(x.clip().array, x.array)
    assert low.clip(x, None).names == ("batch", "pos")


def test_round_takes_decimals(draw):
    x = draw(a=5)
    assert np.array_equal(x.round(1).array, jnp.round(x.array, 1)) and x.round(1).names == ("a",)
    assert np.array_equal(nym.round(x).array, jnp.round(x.array))
    assert np.array_equal(nym.round(x.array, 1), jnp.round(x.array, 1))


def test_where_chooses_by_condition(draw):
    x, y = draw(a=2, b=3), draw(b=3)
    chosen = nym.where(y > 0, x, y)
    assert chosen.names == ("a", "b") and np.array_equal(chosen.array, jnp.where(y.array > 0, x.array, y.array[None]))
    assert nym.where(True, x, 0.0).names == ("a", "b") and np.array_equal(nym.where(True, x, 0.0).array, x.array)
    assert np.array_equal(nym.where(x > 0, 1.0, -1.0).array, jnp.where(x.array > 0, 1.0, -1.0))
    assert isinstance(nym.where(x.array > 0, x.array, 0.0), jax.Array)
    assert nym.where(False, 1, 2) == 2


def test_complex_numbers(draw):
    x = draw(a=3) + 1j * draw(a=3)
    assert x.dtype == jnp.complex64
    for name in ("real", "imag", "conj", "conjugate", "angle", "iscomplex", "isreal", "abs", "exp"):
        assert np.array_equal(getattr(nym, name)(x).array, getattr(jnp, name)(x.array)), name

    assert np.array_equal(nym.angle(x, deg=True).array, jnp.angle(x.array, deg=True))
    assert np.array_equal(nym.angle(x.array, deg=True), jnp.angle(x.array, deg=True))
    assert np.array_equal(x.real.array, x.array.real) and np.array_equal(x.imag.array, x.array.imag)
    assert x.real.names == x.conj().names == ("a",) and np.array_equal(x.conjugate().array, x.array.conj())


def test_synonyms_are_one_function():
    for names in (
        "abs absolute",
        "arccos acos",
        "arctan2 atan2",
        "bitwise_not bitwise_invert invert",
        "conj conjugate",
        "deg2rad radians",
        "left_shift bitwise_left_shift",
        "power pow",
        "rad2deg degrees",
        "right_shift bitwise_right_shift",
        "round around",
        "trunc fix",
    ):
        assert len({getattr(nym, name) for name in names.split()}) == 1, names


def both(results: Any, expected: Any, names: tuple[str, ...]) -> None:
    assert isinstance(results, tuple) and len(results) == len(expected) == 2
    for one, other in zip(results, expected, strict=True):
        assert one.names == names and one.dtype == other.dtype and np.array_equal(one.array, other)


@pytest.mark.parametrize("name", ["frexp", "modf"])
def test_numbers_are_taken_apart_into_two_named_arrays(name, mapped, draw):
    x, fn = draw(-9, 9, batch=8, embed=4), getattr(nym, name)
    expected = getattr(jnp, name)(x.array)
    both(fn(x), expected, ("batch", "embed"))
    both(jax.jit(fn)(nym.shard(x)), expected, ("batch", "embed"))
    assert all(one.sharding.spec == jax.P("data", "model") for one in fn(nym.shard(x)))
    plain = fn(x.array)
    assert type(plain) is tuple and all(isinstance(one, jax.Array) for one in plain)


def test_divmod_returns_quotient_and_remainder_as_two_named_arrays(mapped, draw):
    x, y = draw.integers(-9, 9, batch=8, embed=4), draw.integers(1, 5, embed=4)
    expected = jnp.divmod(x.array, y.array[None])
    both(nym.divmod(x, y), expected, ("batch", "embed"))
    both(divmod(x, y), expected, ("batch", "embed"))
    both(jax.jit(nym.divmod)(*nym.shard((x, y))), expected, ("batch", "embed"))
    both(divmod(7, y), jnp.divmod(7, y.array), ("embed",))
    both(divmod(y, 2), jnp.divmod(y.array, 2), ("embed",))
    assert [int(one) for one in nym.divmod(7, 2)] == [3, 1]


def test_ndim_is_a_plain_integer(draw):
    assert nym.ndim(draw(a=2, b=3)) == 2 and type(nym.ndim(draw(a=2, b=3))) is int
    assert (nym.ndim(3.0), nym.ndim(jnp.zeros((1, 2, 3)))) == (0, 3)
    assert jax.jit(lambda x: x * nym.ndim(x))(draw(a=2)).names == ("a",)


def test_copy_has_memory_of_its_own(draw):
    x = draw(a=2)
    y = x.copy()
    assert np.array_equal(x.array, y.array) and y.array is not x.array
    assert x.array.unsafe_buffer_pointer() != y.array.unsafe_buffer_pointer()


def test_what_is_no_finite_number_is_told_and_replaced():
    x = nym.named([jnp.nan, jnp.inf, -jnp.inf, -0.0, 2.0], "i")
    for name in ("isnan", "isinf", "isposinf", "isneginf", "signbit", "nan_to_num", "fmax", "fmin"):
        operands = (x, 1.0) if name.startswith("fm") else (x,)
        plain = (x.array, 1.0) if name.startswith("fm") else (x.array,)
        assert np.array_equal(getattr(nym, name)(*operands).array, getattr(jnp, name)(*plain)), name
    replaced = nym.nan_to_num(x, nan=7.0, posinf=8.0, neginf=9.0)
    assert np.array_equal(replaced.array, [7.0, 8.0, 9.0, 0.0, 2.0]) and replaced.names == ("i",)
    assert np.array_equal(nym.nan_to_num(x.array, 7.0), jnp.nan_to_num(x.array, nan=7.0))


def test_isclose_takes_tolerances_and_nan(draw):
    x = nym.named([[1.0, 2.0, jnp.nan], [1.1, 2.1, 0.0]], ("a", "b"))
    y, tolerance = nym.named([1.0, 2.0, jnp.nan], "b"), nym.named([0.0, 0.2], "a")
    wide = jnp.broadcast_to(y.array, (2, 3))
    assert np.array_equal(nym.isclose(x, y).array, jnp.isclose(x.array, wide))
    assert np.array_equal(nym.isclose(x, y, equal_nan=True).array, jnp.isclose(x.array, wide, equal_nan=True))
    expected = jnp.isclose(x.array, wide, rtol=0.0, atol=tolerance.array[:, None])
    assert np.array_equal(nym.isclose(x, y, 0.0, tolerance).array, expected)
    assert np.array_equal(nym.isclose(x.array, wide, atol=0.2), jnp.isclose(x.array, wide, atol=0.2))
    assert nym.isclose(x, 1.0, rtol=0.2).names == ("a", "b")


def test_select_takes_the_first_choice_whose_condition_holds(mapped, draw):
    x, y = draw(batch=8, embed=4), draw(embed=4)
    expected = jnp.select([x.array > 1, (y.array > 0)[None]], [x.array, y.array[None]], -5.0)

    def chosen(x, y):
        return nym.select([x > 1, y > 0], [x, y], default=-5.0)

    for result in (chosen(x, y), chosen(*nym.shard((x, y))), jax.jit(chosen)(*nym.shard((x, y)))):
        assert result.names == ("batch", "embed") and np.array_equal(result.array, expected)
    assert chosen(*nym.shard((x, y))).sharding.spec == jax.P("data", "model")
    assert np.array_equal(nym.select([x.array > 1], [x.array]), jnp.select([x.array > 1], [x.array]))
    assert nym.select([x > 1], [1]).dtype == jnp.int32


def test_select_needs_a_choice_for_each_condition(draw):
    x = draw(a=2)
    with pytest.raises(ValueError, match="one choice for each condition, at least one: 2 conditions and 1 choices"):
        nym.select([x > 0, x > 1], [x])
    with pytest.raises(ValueError, match="0 conditions and 0 choices"):
        nym.select([], [])


def test_where_of_a_condition_alone_says_where_it_holds(mapped, draw):
    condition, found = draw(batch=8, embed=4) > 0, nym.Axis("found", 40)
    expected = jnp.where(condition.array, size=40, fill_value=-1)
    for given in (condition, nym.shard(condition)):
        result = nym.where(given, fill_value=-1, new_axis=found)
        jitted = jax.jit(lambda x: nym.where(x, fill_value=-1, new_axis=found))(given)
        for one, other, plain in zip(result, jitted, expected, strict=True):
            assert one.names == other.names == ("found",)
            assert np.array_equal(one.array, plain) and np.array_equal(other.array, plain)
    few = nym.where(condition, new_axis=nym.Axis("found", 2))
    assert np.array_equal(few[1].array, jnp.where(condition.array, size=2, fill_value=0)[1])
    each = nym.where(condition, fill_value=(8, 4), new_axis=found)
    assert int(each[0].array[-1]) == 8 and int(each[1].array[-1]) == 4


def test_where_takes_both_choices_or_neither(draw):
    x, found = draw(a=2), nym.Axis("found", 2)
    for wrong in (
        lambda: nym.where(x > 0, x),
        lambda: nym.where(x > 0),
        lambda: nym.where(x > 0, x, x, new_axis=found),
    ):
        with pytest.raises(ValueError, match="needs both `x` and `y`, or neither of them and a `new_axis`"):
            wrong()
    with pytest.raises(ValueError, match="a condition without axes has no positions"):
        nym.where(nym.named(True, ()), new_axis=found)
    with pytest.raises(TypeError, match=r"A named array is needed, not an array of shape \(2,\)"):
        nym.where(x.array > 0, new_axis=found)
    with pytest.raises(TypeError, match="A new axis needs a size"):
        nym.where(x > 0, new_axis="found")


@pytest.mark.parametrize("wrong", ["a", None, object()])
def test_what_is_no_number_is_refused(wrong, draw):
    for call in (lambda: draw(a=2) + wrong, lambda: nym.exp(wrong), lambda: nym.add(wrong, 1.0)):
        with pytest.raises(TypeError, match="An operand is a named array or a number, not "):
            call()

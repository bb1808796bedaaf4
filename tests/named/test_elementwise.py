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
AXES = ("batch", "pos", "embed")
DOMAINS = {"arccosh": (1.1, 3.0), "left_shift": (0, 5), "right_shift": (0, 5)}  # where the usual one does not do


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
        except TypeError:
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


def needed(fn: Callable[..., Any]) -> int:
    return sum(one.default is one.empty for one in inspect.signature(fn).parameters.values())


def found() -> list[Function]:
    own = {name: fn for name, fn in vars(package).items() if inspect.isfunction(fn)}
    return [Function(name, fn, in_jax(name), needed(fn)) for name, fn in sorted(own.items())]


FUNCTIONS = found()
each = pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.name)
differentiable = [fn for fn in FUNCTIONS if not fn.integral]


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
    assert len(own) > 40 and own == {fn.name for fn in FUNCTIONS}
    assert all(getattr(nym, fn.name) is fn.named for fn in FUNCTIONS)


def agrees(fn: Function, result: nym.NamedArray, operands: list[Any]) -> bool:
    expected = fn.expected(*(x.array for x in operands))
    assert isinstance(result, nym.NamedArray) and result.names == AXES, fn.name
    assert result.dtype == expected.dtype, fn.name
    assert np.allclose(result.array, expected, rtol=1e-5, atol=1e-6), fn.name
    return True


@each
def test_it_is_the_function_of_jax(fn, draw):
    operands = fn.operands(draw)
    assert agrees(fn, fn.named(*operands), operands)


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


def results(operands: dict[str, list[Any]]) -> dict[str, Any]:
    return {fn.name: fn.named(*operands[fn.name]) for fn in FUNCTIONS if fn.name in operands}


def test_all_of_them_under_jit(draw):
    operands = {fn.name: fn.operands(draw) for fn in FUNCTIONS}
    computed = jax.jit(results)(operands)
    assert all(agrees(fn, computed[fn.name], operands[fn.name]) for fn in FUNCTIONS)


def test_all_of_them_under_grad(draw):
    operands = {fn.name: fn.operands(draw) for fn in differentiable}
    floating = [fn for fn in differentiable if jnp.issubdtype(fn.named(*operands[fn.name]).dtype, jnp.floating)]
    weights = draw(batch=8, pos=3, embed=4)

    def named_loss(operands):
        return sum((fn.named(*operands[fn.name]) * weights).sum().scalar() for fn in floating)

    def plain_loss(operands):
        return sum(jnp.sum(fn.expected(*operands[fn.name]) * weights.array) for fn in floating)

    operands = {fn.name: operands[fn.name] for fn in floating}
    gradients = jax.jit(jax.grad(named_loss))(operands)
    expected = jax.jit(jax.grad(plain_loss))({name: [x.array for x in own] for name, own in operands.items()})
    assert len(floating) > 25
    for fn in floating:
        for own, gradient, plain in zip(operands[fn.name], gradients[fn.name], expected[fn.name], strict=True):
            assert gradient.names == own.names, fn.name
            assert np.allclose(gradient.array, plain, rtol=1e-4, atol=1e-5), fn.name


def test_all_of_them_on_a_mesh(mapped, draw):
    operands = {fn.name: fn.operands(draw) for fn in FUNCTIONS}
    computed = jax.jit(results)(nym.shard(operands))
    for fn in FUNCTIONS:
        assert agrees(fn, computed[fn.name], operands[fn.name])
        if fn.name != "imag":  # a constant for real numbers, which the compiler may put where it likes
            assert computed[fn.name].sharding.spec == jax.P("data", None, "model"), fn.name


def test_some_of_them_on_a_mesh_outside_of_jit(mapped, draw):
    for fn in FUNCTIONS[::10]:
        operands = fn.operands(draw)
        computed = fn.named(*nym.shard(operands))
        assert agrees(fn, computed, operands) and computed.sharding.spec == jax.P("data", None, "model"), fn.name


def test_clip_with_bounds_of_several_kinds(draw):
    x, low, high = draw(batch=2, pos=3), draw(-1, 0, pos=3), draw(0, 1, batch=2)
    expected = jnp.clip(x.array, low.array[None], high.array[:, None])
    assert np.array_equal(nym.clip(x, low, high).array, expected) and np.array_equal(x.clip(low, high).array, expected)
    assert np.array_equal(x.clip(min=0.5).array, jnp.clip(x.array, 0.5, None))
    assert np.array_equal(x.clip(max=0.5).array, jnp.clip(x.array, None, 0.5))
    assert x.clip() is x
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
    for name in ("real", "imag", "conj", "abs", "exp"):
        assert np.array_equal(getattr(nym, name)(x).array, getattr(jnp, name)(x.array)), name


@pytest.mark.parametrize("wrong", ["a", None, object()])
def test_what_is_no_number_is_refused(wrong, draw):
    with pytest.raises(TypeError, match="argument"):
        draw(a=2) + wrong
    with pytest.raises(TypeError, match="argument"):
        nym.exp(wrong)

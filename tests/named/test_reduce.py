"""Every reduction and every function along an axis against the function of its name in JAX: found by itself."""

import inspect
from collections.abc import Callable
from re import escape
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis


AXES = ("batch", "pos", "embed")
SIZES = {"batch": 8, "pos": 3, "embed": 4}
EMPTY = {"max": -np.inf, "min": np.inf, "nanmax": -np.inf, "nanmin": np.inf}  # what JAX has to be told
QUANTILES = {"quantile": 0.3, "percentile": 30.0, "nanquantile": 0.3, "nanpercentile": 30.0}
WITHOUT_NAMESAKE = {"cov", "corrcoef"}  # in JAX, or called in another way: see test_statistics.py


class Function(NamedTuple):
    """A function over axes and the one of its name in JAX."""

    name: str
    named: Callable[..., Any]
    plain: Callable[..., Any]

    @property
    def parameters(self) -> Any:
        return inspect.signature(self.named).parameters

    @property
    def takes_several(self) -> bool:
        """Whether several axes can be given, as the function in JAX has it."""
        try:
            jax.eval_shape(lambda x: self.plain(x, axis=(0, 1)), jax.ShapeDtypeStruct((2, 2), jnp.float32))
        except TypeError:
            return False
        return True

    def drawn(self, draw: Any) -> nym.NamedArray:
        return draw(**SIZES) > 0.5 if self.name in ("any", "all") else draw(**SIZES)

    def expected(self, x: Any, dims: Any, **options: Any) -> Any:
        return self.plain(x.array, axis=dims, **options)


def public() -> dict[str, Callable[..., Any]]:
    functions = {name: fn for name, fn in vars(nym).items() if inspect.isfunction(fn)}
    return {name: fn for name, fn in functions.items() if fn.__module__.startswith("axonym.named._reduce.")}


def at(q: float, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of quantiles as a reduction."""
    return lambda x, axis=None: fn(x, q, axis)


def found() -> list[Function]:
    """All but synonyms, which are the same function."""
    missing = [name for name in named if not hasattr(jnp, name) and not hasattr(jax.nn, name)]
    assert not missing, f"JAX has no {missing}: name them in `WITHOUT_NAMESAKE`, and write tests of their own"
    both = {fn.__name__: (fn, getattr(jnp, name, None) or getattr(jax.nn, name)) for name, fn in named.items()}
    both |= {name: tuple(at(q, fn) for fn in both[name]) for name, q in QUANTILES.items()}
    return [Function(name, *both[name]) for name in sorted(both)]


named = {name: fn for name, fn in public().items() if name == fn.__name__ and name not in WITHOUT_NAMESAKE}
FUNCTIONS = found()
SEVERAL = [fn for fn in FUNCTIONS if fn.takes_several]
each = pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.name)
several = pytest.mark.parametrize("fn", SEVERAL, ids=lambda fn: fn.name)


def agrees(result: Any, expected: Any, x: nym.NamedArray, dims: tuple[int, ...]) -> bool:
    rest = tuple(name for i, name in enumerate(x.names) if i not in dims)
    assert result.names == (x.names if expected.ndim == x.ndim else rest)
    assert result.dtype == expected.dtype
    return np.allclose(result.array, expected, rtol=1e-5, atol=1e-6)


def test_every_function_is_public_and_there_are_enough():
    assert len(FUNCTIONS) > 35 and len(SEVERAL) > 20
    assert all(getattr(nym, name) is fn for name, fn in public().items())
    assert {fn.__name__ for fn in public().values()} == {fn.name for fn in FUNCTIONS} | WITHOUT_NAMESAKE
    methods = {name for name in public() if hasattr(nym.NamedArray, name)}
    assert all(getattr(nym.NamedArray, name) is getattr(nym, name) for name in methods)
    assert methods >= {"sum", "mean", "max", "min", "prod", "std", "var", "any", "all", "argmax", "argmin", "cumsum"}
    assert methods >= {"argsort", "cumprod", "product", "ptp"}
    assert nym.amax is nym.max and nym.amin is nym.min and nym.product is nym.prod


@each
def test_it_is_the_function_of_jax(fn, draw):
    x = fn.drawn(draw)
    choices = {"pos": 1}
    if fn.takes_several:
        choices |= {("embed", "batch"): (2, 0), (): ()}
    if fn.parameters["axis"].default is None:
        choices[None] = None
    expected = jax.jit(lambda array: [fn.plain(array, axis=dims) for dims in choices.values()])(x.array)
    for (axis, dims), one in zip(choices.items(), expected, strict=True):
        reduced = (0, 1, 2) if dims is None else (dims,) if isinstance(dims, int) else dims
        assert agrees(fn.named(x, axis), one, x, reduced)
    for axis in (Axis("pos", 3), *([["pos"], {"pos": 3}, (Axis("pos", 3),)] if fn.takes_several else [])):
        assert agrees(fn.named(x, axis=axis), expected[0], x, (1,))
    if fn.takes_several:
        for axis in (["embed", Axis("batch", 8)], {"embed": None, "batch": 8}):
            assert agrees(fn.named(x, axis), expected[1], x, (2, 0))


@each
def test_no_axis_given_means_all_of_them(fn, draw):
    x = fn.drawn(draw)
    if fn.parameters["axis"].default is None:
        assert np.array_equal(fn.named(x).array, fn.named(x, None).array)
    else:
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'axis'"):
            fn.named(x)


def masked_ptp(x: Any, axis: Any, where: Any) -> Any:
    bounds = ((jnp.max, -np.inf), (jnp.min, np.inf))
    highest, lowest = [fn(x, axis=axis, where=where, initial=initial) for fn, initial in bounds]
    return highest - lowest


OWN_MASK = {
    "count_nonzero": lambda x, axis, where: jnp.sum(x != 0, axis=axis, where=where),
    "ptp": masked_ptp,
}  # JAX has no `where` here


@each
def test_where_leaves_elements_out(fn, draw):
    if "where" not in fn.parameters:
        return
    if fn.name in OWN_MASK:
        fn = fn._replace(plain=OWN_MASK[fn.name])
    options = {"initial": EMPTY[fn.name]} if fn.name in EMPTY else {}
    masks = draw(pos=3, batch=8) > -1, draw(embed=4) > -1, nym.named(True, ())
    lined = [masks[0].array.T[:, :, None], masks[1].array[None, None, :], masks[2].array]
    x = fn.drawn(draw)
    named = jax.jit(lambda x, masks: [fn.named(x, ("embed", "batch"), where=mask) for mask in masks])
    plain = jax.jit(lambda x, masks: [fn.plain(x, axis=(2, 0), where=mask, **options) for mask in masks])
    for result, expected in zip(named(x, masks), plain(x.array, lined), strict=True):
        assert result.names == (AXES if expected.ndim == 3 else ("pos",))
        assert np.allclose(result.array, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert np.allclose(
        fn.named(x, ("embed", "batch"), where=masks[0]).array, plain(x.array, lined)[0], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8, jnp.uint8, jnp.bool_])
def test_bounds_of_nothing_are_those_of_the_element_type(name, dtype, draw):
    x = draw.integers(0, 2, a=2, b=3).astype(dtype)
    nothing = getattr(x, name)("b", where=nym.zeros({"a": 2}, bool))
    lowest, highest = (
        (-jnp.inf, jnp.inf)
        if jnp.issubdtype(dtype, jnp.floating)
        else (False, True)
        if dtype == jnp.bool_
        else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    )
    assert nothing.dtype == dtype
    assert np.array_equal(nothing.array, jnp.full(2, lowest if name == "max" else highest, dtype))


def test_initial_bounds_the_result(draw):
    x = draw(a=2, b=3)
    assert np.array_equal(x.max("b", initial=5.0).array, jnp.max(x.array, axis=1, initial=5.0))
    assert np.array_equal(x.min("b", initial=jnp.float32(-5.0)).array, jnp.min(x.array, axis=1, initial=-5.0))
    masked = x.max("b", where=x > 9, initial=-1.0)
    assert np.array_equal(masked.array, [-1.0, -1.0])


def test_dtype_and_ddof(draw):
    x = draw.integers(-3, 3, a=2, b=3)
    for name in ("sum", "prod", "mean", "var", "std"):
        result, expected = getattr(x, name)("b", dtype=jnp.float32), getattr(jnp, name)(x.array, axis=1, dtype="f")
        assert result.dtype == jnp.float32 and np.allclose(result.array, expected)
    assert x.astype(jnp.int8).sum("b").dtype == jnp.sum(x.array.astype(jnp.int8), axis=1).dtype
    assert x.cumsum("b", dtype=jnp.float32).dtype == jnp.float32
    for name in ("var", "std"):
        expected = getattr(jnp, name)(x.array, axis=1, ddof=1)
        assert np.allclose(getattr(x, name)("b", ddof=1).array, expected)


def everything(x: Any, axes: Any) -> dict[str, Any]:
    return {fn.name: [fn.named(own(fn, x), axis) for axis in axes if accepts(fn, axis)] for fn in FUNCTIONS}


def everything_expected(x: Any, axes: Any) -> dict[str, Any]:
    return {fn.name: [positional(fn, own(fn, x), axis) for axis in axes if accepts(fn, axis)] for fn in FUNCTIONS}


def own(fn: Function, x: Any) -> Any:
    return x > 0.5 if fn.name in ("any", "all") else x


def accepts(fn: Function, axis: Any) -> bool:
    return axis is not None or fn.parameters["axis"].default is None


def positional(fn: Function, x: Any, axis: Any) -> Any:
    return fn.plain(x.array, axis=None if axis is None else AXES.index(axis))


def entries(spec: Any) -> list[Any]:
    """The entries of a spec without those at the end that say nothing."""
    found = list(spec)
    while found and found[-1] is None:
        found.pop()
    return found


def test_all_of_them_over_axes_that_are_sharded(mapped, draw):
    x, axes = draw(**SIZES), ("batch", None)
    with jax.set_mesh(None):
        expected = jax.jit(lambda x: everything_expected(x, axes))(x)
    computed = jax.jit(lambda x: everything(x, axes))(nym.shard(x))
    for name in ("cumsum", "argsort"):
        computed[f"{name} outside of jit"] = [getattr(nym, name)(nym.shard(x), "batch")]
        expected[f"{name} outside of jit"] = expected[name][:1]
    for name, results in computed.items():
        for result, other in zip(results, expected[name], strict=True):
            assert np.allclose(result.array, other, rtol=1e-5, atol=1e-5), name
            sharded = {"batch": "data", "embed": "model"}
            sharded = {axis: sharded.get(axis) if result.shape[axis] == SIZES[axis] else None for axis in result.names}
            spec = list(sharded.values())
            assert entries(result.sharding.spec) == entries(spec), name


@each
def test_errors_name_the_axis(fn, draw):
    x = fn.drawn(draw)
    with pytest.raises(
        ValueError, match=escape("no axis 'imbed' in (batch: 8, pos: 3, embed: 4); did you mean 'embed'?")
    ):
        fn.named(x, "imbed")
    with pytest.raises(ValueError, match="axis 'embed' has size 4 here, 5 was asked for"):
        fn.named(x, Axis("embed", 5))
    with pytest.raises(TypeError, match="given by an `Axis` or by its name, not by -1"):
        fn.named(x, -1)
    if fn in SEVERAL:
        with pytest.raises(ValueError, match=escape("axis 'pos' is given more than once in (pos, pos)")):
            fn.named(x, ("pos", "pos"))
    else:
        with pytest.raises(TypeError, match=escape("given by an `Axis` or by its name, not by ('pos', 'embed')")):
            fn.named(x, ("pos", "embed"))


@several
def test_where_has_to_be_named_and_to_fit(fn, draw):
    x = fn.drawn(draw)
    if "where" not in fn.parameters:
        return
    with pytest.raises(TypeError, match=r"`where` must be a named array .*, not an array of shape \(4,\)"):
        fn.named(x, "embed", where=np.ones(4, bool))
    with pytest.raises(TypeError, match="not True"):
        fn.named(x, "embed", where=True)
    with pytest.raises(ValueError, match=escape("must have axes of (batch: 8, pos: 3, embed: 4) only, it has (i: 4)")):
        fn.named(x, "embed", where=nym.ones({"i": 4}, bool))
    with pytest.raises(ValueError, match="axis 'embed' has size 4 and size 1 in"):
        fn.named(x, "embed", where=nym.ones({"embed": 1}, bool))


NAN = [fn for fn in FUNCTIONS if fn.name.startswith("nan")]


def test_the_mean_of_numbers_that_are_not_nan_and_all_its_kin(draw):
    x = draw(**SIZES)
    x = nym.where(draw(**SIZES) > 1, jnp.nan, x)
    mask = draw(embed=4) > -1
    assert len(NAN) == 14 and bool(nym.isnan(x).any()) and not bool(nym.isnan(x).all())
    for fn in NAN:
        choices = {"pos": 1, ("pos", "batch"): (1, 0)} if fn in SEVERAL else {"pos": 1}
        for axis, dims in choices.items():
            result, expected = fn.named(x, axis), fn.plain(x.array, axis=dims)
            assert result.dtype == expected.dtype, fn.name
            assert np.allclose(result.array, expected, rtol=1e-5, atol=1e-6, equal_nan=True), fn.name
        if "where" in fn.parameters:
            options = {"initial": EMPTY[fn.name]} if fn.name in EMPTY else {}
            expected = fn.plain(x.array, axis=1, where=mask.array[None, None], **options)
            result = fn.named(x, "pos", where=mask)
            assert np.allclose(result.array, expected, rtol=1e-5, atol=1e-6, equal_nan=True), fn.name


def test_sorting_in_descending_order(draw):
    x = draw.integers(0, 3, a=2, b=7)
    for options in ({"descending": True}, {"descending": True, "stable": False}, {"stable": True}):
        assert np.array_equal(x.sort("b", **options).array, jnp.sort(x.array, axis=1, **options))
    assert np.array_equal(x.argsort("b", descending=True).array, jnp.argsort(x.array, axis=1, descending=True))
    assert np.array_equal(x.argsort("b").array, jnp.argsort(x.array, axis=1, stable=True))


def test_booleans_are_counted_where_jax_forbids_implicit_conversions():
    with jax.numpy_dtype_promotion("strict"):
        x = nym.named([True, False, True], "i")
        assert nym.count_nonzero(x).item() == 2 and nym.count_nonzero(x, where=~x).item() == 0
        assert nym.var(x, where=x).item() == 0

"""Every elementwise function, reduction and function along an axis against the one of its name in JAX.

The functions are found by themselves. Values, element types and axes are compared on random arrays, then under `jit`,
`grad` and `vmap`, and with sharded operands on both kinds of mesh.
"""

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import axonym as nym
from axonym import Axis


SPACES = (jnp, jax.nn, jax.lax)
NAMES = ("a", "b", "c")
DTYPES = (jnp.float32, jnp.int32, jnp.bool_, jnp.complex64, jnp.bfloat16, jnp.uint8)
REFUSED = (TypeError, ValueError, NotImplementedError)
GIVEN = {"q": 0.25}  # what a function needs besides arrays and axes
OTHERWISE = {"select", "cov", "corrcoef"}  # take lists, or two kinds of axes, and are tested where they are


class Function(NamedTuple):
    """A function and the one of its name in JAX."""

    named: Callable[..., Any]
    plain: Callable[..., Any]

    @property
    def parameters(self) -> list[str]:
        return list(inspect.signature(self.named).parameters)

    @property
    def operands(self) -> int:
        return sum(name in ("condition", "x", "y") for name in self.parameters)

    @property
    def runs_over_axes(self) -> bool:
        return "axis" in self.parameters

    @property
    def given(self) -> dict[str, float]:
        return {name: value for name, value in GIVEN.items() if name in self.parameters}

    @property
    def may_leave_out_axis(self) -> bool:
        return inspect.signature(self.named).parameters["axis"].default is None

    @property
    def takes_several_axes(self) -> bool:
        try:
            x = jax.ShapeDtypeStruct((2, 2), jnp.float32)
            jax.eval_shape(lambda x: self.plain(x, axis=(0, 1), **self.given), x)
        except REFUSED:
            return False
        return True


def found(package: str) -> list[Any]:
    public = [fn for fn in vars(nym).values() if inspect.isfunction(fn)]
    functions = {fn.__name__: fn for fn in public if fn.__module__.startswith(f"axonym.named.{package}.")}
    chosen = {name: fn for name, fn in sorted(functions.items()) if name not in OTHERWISE}
    return [pytest.param(Function(fn, plain_of(name)), id=name) for name, fn in chosen.items()]


def plain_of(name: str) -> Callable[..., Any]:
    return next(getattr(space, name) for space in SPACES if hasattr(space, name))


ELEMENTWISE, OVER_AXES = found("_elementwise"), found("_reduce")
ALL = [*ELEMENTWISE, *OVER_AXES]


def test_all_are_found():
    assert len(ELEMENTWISE) > 85 and len(OVER_AXES) > 30
    assert all(param.values[0].runs_over_axes for param in OVER_AXES)
    assert not any(param.values[0].runs_over_axes for param in ELEMENTWISE)
    for param in ALL:
        public = {id(thing) for thing in vars(nym).values()}
        assert id(param.values[0].named) in public


def outcome(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function returns, or that it refuses what it is given."""
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # JAX's own, of integers in `softmax`
            return fn(*args, **kwargs)
    except REFUSED:
        return None


def check(result: Any, expected: Any, names: tuple[str, ...] | None = None) -> None:
    """Checks that results are those of JAX, value by value, of the same element types, and with the names given."""
    assert (result is None) == (expected is None)
    for one, wanted in zip(jax.tree.leaves(result, is_leaf=is_named), jax.tree.leaves(expected), strict=True):
        if is_named(one):
            assert names is None or one.names == names
            assert one.dtype == wanted.dtype and one.array.shape == wanted.shape
            one = one.array
        tolerance = 0.02 if jnp.result_type(wanted) == jnp.bfloat16 else 2e-5
        as_numbers = [np.asarray(x, complex if jnp.iscomplexobj(x) else float) for x in (one, wanted)]
        np.testing.assert_allclose(*as_numbers, rtol=tolerance, atol=tolerance)


def is_named(x: Any) -> bool:
    return isinstance(x, nym.NamedArray)


@st.composite
def arrays(draw: Any, names: tuple[str, ...], sizes: dict[str, int], dtype: Any = None) -> nym.NamedArray:
    shape = tuple(sizes[name] for name in names)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = random.integers(-4, 5, shape) / 2
    dtype = draw(st.sampled_from(DTYPES)) if dtype is None else dtype
    if jnp.issubdtype(dtype, jnp.floating):
        values = np.where(random.random(shape) < 0.1, draw(st.sampled_from([np.nan, np.inf, 0.0])), values)
    whole = jnp.issubdtype(dtype, jnp.integer)
    return nym.named(jax.device_put((abs(values) if whole else values).astype(dtype)), names)


def positional(x: nym.NamedArray, names: tuple[str, ...]) -> Any:
    """The plain array with its axes where `names` has them, and axes of size 1 for those that it lacks."""
    order = [x.names.index(name) for name in names if name in x.names]
    array = np.transpose(np.asarray(x.array), order)
    return jax.device_put(np.expand_dims(array, [i for i, name in enumerate(names) if name not in x.names]))


@pytest.mark.parametrize("function", ELEMENTWISE)
@settings(max_examples=5)
@given(st.data())
def test_elementwise_on_random_arrays(function: Function, data: Any):
    sizes = {name: data.draw(st.integers(0, 3)) for name in NAMES}
    names = tuple(data.draw(st.permutations(NAMES))[: data.draw(st.integers(0, 3))])
    operands = [data.draw(arrays(names, sizes))]
    for _ in range(function.operands - 1):
        fewer = tuple(data.draw(st.permutations(names))[: data.draw(st.integers(0, len(names)))])
        operands.append(data.draw(arrays(fewer, sizes, data.draw(st.sampled_from([None, operands[0].dtype])))))
    if data.draw(st.booleans()):
        operands.reverse()
    widest = max((x.names for x in operands), key=len)
    plain = [positional(x, widest) for x in operands]
    check(outcome(function.named, *operands), outcome(function.plain, *plain), widest)


@pytest.mark.parametrize("function", OVER_AXES)
@settings(max_examples=5)
@given(st.data())
def test_functions_over_axes_on_random_arrays(function: Function, data: Any):
    sizes = {name: data.draw(st.integers(1, 3)) for name in NAMES}
    names = tuple(data.draw(st.permutations(NAMES))[: data.draw(st.integers(1, 3))])
    x = data.draw(arrays(names, sizes))
    count = data.draw(st.integers(1, len(names))) if function.takes_several_axes else 1
    axis: Any = data.draw(st.permutations(names))[:count]
    if function.may_leave_out_axis and data.draw(st.booleans()):
        axis = None
    dims = None if axis is None else names.index(axis[0]) if count == 1 else tuple(map(names.index, axis))
    expected = outcome(function.plain, x.array, axis=dims, **function.given)
    result = outcome(function.named, x, axis=axis if axis is None or count > 1 else axis[0], **function.given)
    left = tuple(name for name in names if axis is not None and name not in axis)
    check(result, expected, names if expected is not None and expected.ndim == len(names) else left)


@pytest.mark.parametrize("function", OVER_AXES)
def test_plain_arrays_pass_through(function: Function):
    (x,) = examples(function, a=3, b=2)
    axes: list[Any] = [0, 1, -1, *([(0, 1)] if function.takes_several_axes else [])]
    axes += [None] if function.may_leave_out_axis else []

    def run(fn: Callable[..., Any], x: Any) -> list[Any]:
        return [fn(x, axis=axis, **function.given) for axis in axes]

    wanted = jax.jit(functools.partial(run, function.plain))(x.array)
    jitted = jax.jit(functools.partial(run, function.named))
    for array in (x.array, np.asarray(x)):
        for found, direct, expected in zip(jitted(array), run(function.named, array), wanted, strict=True):
            assert not is_named(found)
            check(found, expected)
            check(direct, expected)


@pytest.mark.parametrize("function", OVER_AXES)
def test_plain_arrays_take_no_names(function: Function):
    (x,) = examples(function, a=3, b=2)
    for name in ("a", Axis("a", 3)):
        with pytest.raises(
            TypeError, match=r"shape \(3, 2\) has no names, so .*a.* is none of its axes; give positions"
        ):
            function.named(x.array, axis=name, **function.given)
    with pytest.raises(ValueError, match="out of bounds for array of dimension 2"):
        function.named(x.array, axis=2, **function.given)
    if "where" in function.parameters:
        mask = x.array > 0.5
        masked = function.named(x.array, 0, where=mask)
        check(masked, function.named(x, "a", where=nym.named(mask, ("a", "b"))).array)
        with pytest.raises(TypeError, match=r"A plain array of shape \(3, 2\) takes a plain `where`, not a named one"):
            function.named(x.array, 0, where=nym.named(mask, ("a", "b")))


def test_plain_arguments_of_plain_arrays():
    x = jnp.arange(6.0).reshape(2, 3)
    assert np.array_equal(nym.average(x, 0, weights=jnp.array([1.0, 3.0])), jnp.average(x, 0, jnp.array([1.0, 3.0])))
    assert np.array_equal(nym.diff(x, 1, n=2, prepend=0.0), jnp.diff(x, 2, 1, jnp.zeros((2, 1))))
    assert np.array_equal(nym.quantile(x, jnp.array([0.1, 0.5]), 1), jnp.quantile(x, jnp.array([0.1, 0.5]), 1))
    assert np.array_equal(nym.cumulative_sum(x, 1, include_initial=True)[:, 1:], jnp.cumsum(x, 1))
    assert (
        nym.sum(2.0) == 2 and nym.all(True) and nym.max(np.float32(3)) == 3 and nym.sum(nym.ones({"i": 2})).item() == 2
    )
    one = nym.ones({"i": 2})
    for run in (lambda: nym.average(x, 0, weights=one), lambda: nym.quantile(x, one, 0)):
        with pytest.raises(TypeError, match=r"A plain array of shape \(2, 3\) takes plain .*, not named ones"):
            run()
    for other in (None, "text", [1, 2]):
        with pytest.raises(TypeError, match="A named array is needed, not"):
            nym.sum(other)  # pyright: ignore[reportArgumentType]


def test_plain_sharded_arrays(mesh):
    x = jax.device_put(jnp.arange(32.0).reshape(8, 4), jax.NamedSharding(mesh, jax.P("data", "model")))
    for fn in (nym.sum, nym.prod, nym.sort, nym.max, nym.softmax, nym.std):
        loss = lambda x, fn=fn: jnp.sum(fn(x, axis=1) ** 2)  # noqa: E731
        assert np.allclose(jax.jit(jax.grad(loss))(x), jax.grad(loss)(np.asarray(x)), rtol=1e-3), fn


def examples(function: Function, **sizes: int) -> list[nym.NamedArray]:
    """Operands of real numbers between 0 and 1: the first of all axes, the others of the last one."""
    random = np.random.default_rng(0)
    rows = [random.uniform(0.1, 0.9, tuple(sizes.values())), *random.uniform(0.1, 0.9, (2, [*sizes.values()][-1]))]
    names = [tuple(sizes), tuple(sizes)[-1:], tuple(sizes)[-1:]]
    kind = np.float32 if takes_floats(function) else np.int32
    pairs = [*zip(rows, names, strict=True)][: function.operands]
    return [nym.named(jax.device_put((row * (1 if kind == np.float32 else 9)).astype(kind)), own) for row, own in pairs]


def takes_floats(function: Function) -> bool:
    shapes = (jax.ShapeDtypeStruct((2,), jnp.float32),) * function.operands
    return outcome(jax.eval_shape, lambda *xs: function.plain(*xs, **extra(function, 0)), *shapes) is not None


def extra(function: Function, axis: Any) -> dict[str, Any]:
    return {**function.given, "axis": axis} if function.runs_over_axes else function.given


def total(results: Any) -> Any:
    """The sum of all real numbers in results, to be differentiated."""
    arrays = [getattr(x, "array", x) for x in jax.tree.leaves(results, is_leaf=is_named)]
    return sum(jnp.sum(x) for x in arrays if jnp.issubdtype(jnp.result_type(x), jnp.floating))


def chunks(params: list[Any], size: int) -> list[Any]:
    """Functions in groups, each of which is compiled as one program: much quicker than one by one."""
    functions = [param.values[0] for param in params]
    groups = [functions[i : i + size] for i in range(0, len(functions), size)]
    names = [[fn.named.__name__ for fn in group] for group in groups]
    return [pytest.param(group, id=f"{own[0]}-{own[-1]}") for group, own in zip(groups, names, strict=True)]


@contextlib.contextmanager
def concerning(function: Function) -> Iterator[None]:
    """Says in a failure which function it is about."""
    try:
        yield
    except Exception as error:
        error.add_note(f"This is about `{function.named.__name__}`.")
        raise


def named_call(function: Function, axis: str) -> Callable[..., Any]:
    return lambda *operands: function.named(*operands, **extra(function, axis))


def plain_call(function: Function, axis: int) -> Callable[..., Any]:
    return lambda *arrays: function.plain(*arrays, **extra(function, axis))


@pytest.mark.parametrize("functions", chunks(ALL, 12))
def test_under_jit_grad_and_vmap(functions: list[Function]):
    operands = [examples(function, a=2, b=3) for function in functions]
    arrays = [[positional(x, ("a", "b")) for x in own] for own in operands]

    def computed(fn: Callable[..., Any], own: list[Any]) -> Any:
        if own[0].dtype != jnp.float32:
            return fn(*own), None
        at = tuple(range(len(own)))
        return fn(*own), outcome(jax.grad(lambda *operands: 1.0 * total(fn(*operands)), argnums=at), *own)

    def named(operands: Any) -> Any:
        calls = [named_call(function, "b") for function in functions]
        pairs = [computed(call, own) for call, own in zip(calls, operands, strict=True)]
        return pairs, [nym.vmap(call, "a")(*own) for call, own in zip(calls, operands, strict=True)]

    def plain(arrays: Any) -> Any:
        return [computed(plain_call(function, 1), own) for function, own in zip(functions, arrays, strict=True)]

    (results, mapped), expected = jax.jit(named)(operands), jax.jit(plain)(arrays)
    for function, own, (result, gradients), rows, (other, wanted) in zip(
        functions, operands, results, mapped, expected, strict=True
    ):
        with concerning(function):
            check(result, other)
            assert (gradients is None) == (wanted is None)
            for x, gradient, one in zip(own, gradients, wanted, strict=True) if wanted else ():
                np.testing.assert_allclose(gradient.array, one.reshape(x.array.shape), rtol=1e-5, atol=1e-6)
            leaves = [one for one in jax.tree.leaves(result, is_leaf=is_named) if is_named(one)]
            for one, row in zip(leaves, jax.tree.leaves(rows, is_leaf=is_named), strict=False):
                check(row.rearrange(one.names), one.array)


def squares_gradient(fn: Callable[..., Any], operands: list[Any]) -> Any:
    """The gradient of the sum of the squares of what a function returns, None if it has none."""

    def loss(*operands: Any) -> Any:
        return 1.0 * total(jax.tree.map(jnp.square, fn(*operands)))

    return outcome(jax.grad(loss, argnums=tuple(range(len(operands)))), *operands)


ON_MESHES = [("batch", chunks(ALL, 24)), ("embed", chunks(OVER_AXES, 24))]


@pytest.mark.parametrize(
    ("axis", "functions"),
    [pytest.param(axis, *group.values, id=f"{axis}-{group.id}") for axis, groups in ON_MESHES for group in groups],
)
def test_on_both_meshes_with_sharded_operands(axis: str, functions: list[Function], mapped: Any):
    operands = [examples(function, batch=8, embed=4) for function in functions]
    dim = ("batch", "embed").index(axis)

    def computed(operands: Any) -> Any:
        return [named_call(function, axis)(*own) for function, own in zip(functions, operands, strict=True)]

    def computed_by_jax(arrays: Any) -> Any:
        return [plain_call(function, dim)(*own) for function, own in zip(functions, arrays, strict=True)]

    def differentiated(operands: Any) -> Any:
        pairs = [(function, own) for function, own in zip(functions, operands, strict=True) if function.runs_over_axes]
        return {function.named.__name__: squares_gradient(named_call(function, axis), own) for function, own in pairs}

    results, gradients = jax.jit(lambda operands: (computed(operands), differentiated(operands)))(nym.shard(operands))
    arrays = [[positional(x, ("batch", "embed")) for x in own] for own in operands]
    with jax.set_mesh(None):
        wanted, others = jax.jit(lambda xs, arrays: (differentiated(xs), computed_by_jax(arrays)))(operands, arrays)
    for function, result, expected in zip(functions, results, others, strict=True):
        with concerning(function):
            check(*(found.get(function.named.__name__) for found in (gradients, wanted)))
            check(result, expected)
            if is_named(result) and not function.runs_over_axes and len(np.unique(expected)) > 1:
                assert tuple(result.sharding.spec) == ("data", "model")

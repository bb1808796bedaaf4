"""Every elementwise function, reduction and function along an axis against the one of its name in JAX.

The functions are found by themselves. Those of a group are compiled as one program, much quicker than one by one.
"""

import functools
import inspect
import itertools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis
from tests.refusals import refusal


SPACES = (jnp, jax.nn, jax.lax)
AXES = ("batch", "pos", "embed")
SIZES = {"batch": 8, "pos": 3, "embed": 4}
DTYPES = (jnp.float32, jnp.int32, jnp.bool_, jnp.complex64, jnp.bfloat16, jnp.uint8)
REFUSED = (TypeError, ValueError, NotImplementedError)
GIVEN = {"q": 0.25}  # what a function needs besides arrays and axes
WITHOUT_NAMESAKE = {"cov", "corrcoef"}  # in JAX, or called in another way: see test_reduce.py
OTHERWISE = {"select", "ndim", *WITHOUT_NAMESAKE}  # take lists or return a number: see test_elementwise.py
# These are computed as `quantile`, `nanstd`, `nanmin`, `nanargmin`, `cumsum` and `cumprod` are.
ALIKE = {"percentile", "nanpercentile", "nanquantile", "median", "nanmedian", "nanvar", "nanmax", "nanargmax"}
ALIKE |= {"cumulative_sum", "cumulative_prod"}
MAPPING = {"batch": "data", "embed": "model"}
EMPTY = {"max": -np.inf, "min": np.inf, "nanmax": -np.inf, "nanmin": np.inf}  # what JAX has to be told


class Function(NamedTuple):
    """A function and the one of its name in JAX."""

    named: Callable[..., Any]
    plain: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.named.__name__

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.named).parameters)

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
        return self.parameters["axis"].default is None

    @property
    def takes_several_axes(self) -> bool:
        return outcome(jax.eval_shape, self.over_dims((0, 1)), np.ones((2, 2), np.float32)) is not None

    def over(self, axis: Any, **options: Any) -> Callable[[Any], Any]:
        return functools.partial(self.named, axis=axis, **self.given, **options)

    def over_dims(self, dims: Any, **options: Any) -> Callable[[Any], Any]:
        return functools.partial(self.plain, axis=dims, **self.given, **options)


def find_functions(package: str) -> list[Function]:
    public = [fn for fn in vars(nym).values() if inspect.isfunction(fn)]
    functions = {fn.__name__: fn for fn in public if fn.__module__.startswith(f"axonym.named.{package}.")}
    return [Function(fn, find_namesake(name)) for name, fn in sorted(functions.items()) if name not in OTHERWISE]


def find_namesake(name: str) -> Callable[..., Any]:
    namesake = next((getattr(space, name) for space in SPACES if hasattr(space, name)), None)
    assert namesake, f"JAX has no {name}: name it in `WITHOUT_NAMESAKE`, and write tests of its own"
    return namesake


ELEMENTWISE, OVER_AXES = find_functions("_elementwise"), find_functions("_reduce")


def each(functions: list[Function]) -> Any:
    return pytest.mark.parametrize("function", functions, ids=lambda function: function.name)


def in_groups(functions: list[Function], size: int) -> Any:
    groups = [functions[i : i + size] for i in range(0, len(functions), size)]
    return pytest.mark.parametrize("functions", groups, ids=lambda group: f"{group[0].name}-{group[-1].name}")


def outcome(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function returns, or None if it refuses what it is given."""
    try:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # JAX's own, of integers in `softmax`
            return fn(*args, **kwargs)
    except REFUSED:
        return None


def name_axes(results: Any, names: tuple[str, ...]) -> Any:
    """Results of JAX as named arrays: of these axes, or of all or none as their number says."""
    by_number = {0: (), len(AXES): AXES}
    return jax.tree.map(lambda array: nym.NamedArray(array, by_number.get(array.ndim, names)), results)


def check_parity(result: Any, expected: Any, case: Any = "") -> None:
    """Checks that results are those of JAX: value by value, of the same element types and names."""
    assert jax.tree.structure(result) == jax.tree.structure(expected), case
    for array, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert array.dtype == other.dtype and array.shape == other.shape, case
        if isinstance(other, jax.ShapeDtypeStruct):
            continue
        tolerance = 0.02 if other.dtype == jnp.bfloat16 else 2e-5
        kind = complex if jnp.iscomplexobj(other) else float
        array, other = array.astype(kind), other.astype(kind)
        np.testing.assert_allclose(array, other, rtol=tolerance, atol=tolerance, err_msg=str(case))


def differentiate_squares(fn: Callable[..., Any], *operands: Any) -> Any:
    """The gradient of the sum of the squares of what a function returns, None if it has none."""

    def compute_loss(*operands: Any) -> Any:
        arrays = [array for array in jax.tree.leaves(fn(*operands)) if jnp.issubdtype(array.dtype, jnp.floating)]
        return 1.0 * sum(jnp.sum(array**2) for array in arrays)

    return outcome(jax.grad(compute_loss, argnums=tuple(range(len(operands)))), *operands)


def test_all_functions_are_found_and_public():
    assert len(ELEMENTWISE) > 85 and len(OVER_AXES) > 38
    assert all(function.runs_over_axes for function in OVER_AXES)
    assert not any(function.runs_over_axes for function in ELEMENTWISE)
    assert sum(function.takes_several_axes for function in OVER_AXES) > 20
    assert sum(function.name.startswith("nan") for function in OVER_AXES) == 14
    assert all(getattr(nym, function.name) is function.named for function in [*ELEMENTWISE, *OVER_AXES])
    methods = {function.name for function in OVER_AXES if hasattr(nym.NamedArray, function.name)}
    assert methods >= {"sum", "mean", "max", "min", "prod", "std", "var", "any", "all", "argmax", "argmin", "cumsum"}
    assert methods >= {"argsort", "cumprod", "ptp"}
    assert all(getattr(nym.NamedArray, name) is getattr(nym, name) for name in methods)
    assert nym.amax is nym.max and nym.amin is nym.min and nym.product is nym.prod is nym.NamedArray.product


def list_selections(function: Function) -> dict[Any, Any]:
    """Axes to run over, and their positions in `AXES`."""
    selections: dict[Any, Any] = {"pos": 1}
    if function.takes_several_axes:
        selections |= {("embed", Axis("batch", 8)): (2, 0), (): ()}
    if function.may_leave_out_axis:
        selections[None] = None
    return selections


def list_remaining(dims: Any) -> tuple[str, ...]:
    removed = (0, 1, 2) if dims is None else dims if isinstance(dims, tuple) else (dims,)
    return tuple(name for dim, name in enumerate(AXES) if dim not in removed)


def make_operands(function: Function, dtype: Any) -> list[nym.NamedArray]:
    """Operands of numbers between 0 and 1, or of integers: the first of all axes, the others of some, in any order."""
    random, scale = np.random.default_rng(0), 1 if jnp.issubdtype(dtype, jnp.inexact) else 9
    operands = []
    for names in (AXES, ("embed", "pos"), ("embed",))[: function.operands]:
        values = random.uniform(0.1, 0.9, [SIZES[name] for name in names]) * scale
        operands.append(nym.NamedArray(values.astype(dtype), names))
    return operands


def positional(x: nym.NamedArray) -> Any:
    """The plain array with its axes where `AXES` has them, and axes of size 1 for those that it lacks."""
    lacking = {name: 1 for name in AXES if name not in x.names}
    return nym.rearrange(x.broadcast_axis(lacking), AXES).array


@each(ELEMENTWISE)
def test_element_types_and_axes_of_elementwise_functions(function: Function):
    cases = [make_operands(function, dtype) for dtype in DTYPES]
    cases += [[*other[1:], *case[:1]] for case, other in itertools.pairwise(cases) if len(case) > 1]
    for operands in cases:
        expected = outcome(jax.eval_shape, lambda *xs: function.plain(*map(positional, xs)), *operands)
        check_parity(outcome(jax.eval_shape, function.named, *operands), name_axes(expected, AXES))


def check_pairs(compute: Callable[..., Any], functions: list[Function], *args: Any) -> None:
    """Compares what functions return with what those of JAX do: pairs that one program computes for a group."""
    groups = jax.jit(lambda args: [compute(function, *own) for function, *own in zip(functions, *args, strict=True)])
    for function, pairs in zip(functions, groups(args), strict=True):
        for case, (result, expected) in pairs.items():
            check_parity(result, expected, (function.name, case))


def compute_elementwise(function: Function, operands: list[nym.NamedArray]) -> dict[str, tuple[Any, Any]]:
    arrays = [positional(x) for x in operands]
    expected = name_axes(function.plain(*arrays), AXES)
    pairs = {"as it is": (function.named(*operands), expected)}
    pairs["in vmap"] = nym.vmap(function.named, "batch")(*operands), expected
    if arrays[0].dtype == jnp.float32:
        gradients = jax.tree.map(positional, differentiate_squares(function.named, *operands), is_leaf=is_named)
        pairs["differentiated"] = gradients, differentiate_squares(function.plain, *arrays)
    return pairs


@in_groups(ELEMENTWISE, 25)
def test_values_and_gradients_of_elementwise_functions(functions: list[Function]):
    check_pairs(compute_elementwise, functions, [make_examples(function) for function in functions])


def make_examples(function: Function) -> list[nym.NamedArray]:
    """Operands of floats if the function takes them."""
    floats = make_operands(function, np.float32)
    taken = outcome(jax.eval_shape, function.named, *floats) is not None
    return floats if taken else make_operands(function, np.int32)


def is_named(x: Any) -> bool:
    return isinstance(x, nym.NamedArray)


def masked_ptp(x: Any, axis: Any, where: Any) -> Any:
    highest, lowest = (fn(x, axis=axis, where=where, initial=EMPTY[fn.__name__]) for fn in (jnp.max, jnp.min))
    return highest - lowest


OWN_MASK = {
    "count_nonzero": lambda x, axis, where: jnp.sum(x != 0, axis=axis, where=where),
    "ptp": masked_ptp,
}  # JAX has no `where` here


@each(OVER_AXES)
def test_element_types_of_functions_over_axes(function: Function):
    for dtype in DTYPES:
        x = nym.NamedArray(np.ones((8, 3, 4), dtype), AXES)
        expected = outcome(jax.eval_shape, function.over_dims(1), x.array)
        check_parity(outcome(jax.eval_shape, function.over("pos"), x), name_axes(expected, ("batch", "embed")))
        if dtype == jnp.float32:
            check_parity(
                jax.eval_shape(nym.vmap(function.over("pos"), "batch"), x), name_axes(expected, ("batch", "embed"))
            )


def compute_over_axes(function: Function, x: Any, spoilt: Any, masks: list[Any]) -> dict[str, tuple[Any, Any]]:
    pairs = {}
    for axis, dims in list_selections(function).items():
        expected = function.over_dims(dims)(x.array)
        pairs[f"over {axis}"] = function.over(axis)(x), name_axes(expected, list_remaining(dims))
        pairs[f"of a plain array over {dims}"] = function.over(dims)(x.array), expected
    expected = name_axes(function.over_dims(1)(spoilt.array), ("batch", "embed"))
    pairs["with NaN"] = function.over("pos")(spoilt), expected
    for mask in masks if "where" in function.parameters else ():
        options = {"initial": EMPTY[function.name]} if function.name in EMPTY else {}
        reference = function._replace(plain=OWN_MASK.get(function.name, function.plain))
        expected = reference.over_dims((2, 0), where=positional(mask), **options)(x.array)
        pairs[f"where {mask.axes}"] = function.over(("embed", "batch"), where=mask)(x), name_axes(expected, ("pos",))
    if jnp.issubdtype(x.dtype, jnp.floating):
        gradients = differentiate_squares(function.over("embed"), x)
        pairs["differentiated"] = gradients, name_axes(differentiate_squares(function.over_dims(2), x.array), AXES)
    return pairs


def draw_array(function: Function, draw: Any) -> nym.NamedArray:
    values = np.asarray(draw(**SIZES))
    return nym.NamedArray(values > 0.5 if function.name in ("any", "all") else values, AXES)


@in_groups(OVER_AXES, 14)
def test_values_and_gradients_of_functions_over_axes(functions: list[Function], draw: Any):
    arrays = [draw_array(function, draw) for function in functions]
    has_nan = np.asarray(draw(**SIZES)) > 1
    spoilt = [x if x.dtype == bool else nym.NamedArray(np.where(has_nan, np.nan, x), AXES) for x in arrays]
    masks = [draw(pos=3, batch=8) > -1, draw(embed=4) > -1, nym.named(True, ())]
    check_pairs(compute_over_axes, functions, arrays, spoilt, [masks] * len(functions))


def check_sharding(x: nym.NamedArray) -> None:
    """Checks that axes of unchanged sizes are sharded by the mapping."""
    mesh_axes = [MAPPING.get(name) if size == SIZES[name] else None for name, size in x.shape.items()]
    assert x.sharding.is_equivalent_to(jax.NamedSharding(jax.sharding.get_mesh(), jax.P(*mesh_axes)), x.ndim)


@in_groups([function for function in OVER_AXES if function.name not in ALIKE], 14)
def test_functions_over_sharded_axes(functions: list[Function], mapped: Any, compute_sharded: Any, draw: Any):
    explicit = mapped.axis_types[0] == jax.sharding.AxisType.Explicit
    arrays = [draw_array(function, draw) for function in functions]

    def compute(arrays: list[Any]) -> Any:
        results, gradients = {}, {}
        for function, x in zip(functions, arrays, strict=True):
            run = function.over("embed")
            results[function.name] = run(x)
            if x.dtype == jnp.float32:
                gradients[function.name] = differentiate_squares(run, x)
            if function.may_leave_out_axis:
                results[f"{function.name} over all"] = function.over(None)(x)
        return results, gradients

    results, gradients = compute_sharded(compute, arrays, tolerance=2e-5)
    for result in [*results.values(), *(jax.tree.leaves(gradients, is_leaf=is_named) if explicit else [])]:
        check_sharding(result)


def test_elementwise_functions_of_sharded_arrays(compute_sharded: Any):
    operands = {function.name: make_examples(function) for function in ELEMENTWISE}
    run = lambda operands: {name: getattr(nym, name)(*own) for name, own in operands.items()}  # noqa: E731
    for result in compute_sharded(run, operands, tolerance=2e-5).values():
        if is_named(result) and len(np.unique(result)) > 1:  # the compiler replicates constants
            check_sharding(result)


def test_functions_over_sharded_axes_run_outside_of_jit(mapped: Any, draw: Any):
    x = draw(**SIZES)
    for function, expected in ((nym.cumsum, np.cumsum), (nym.cumprod, np.cumprod), (nym.argsort, np.argsort)):
        result = function(nym.shard(x), "batch")
        np.testing.assert_allclose(result.array, expected(np.asarray(x), axis=0), rtol=1e-5, atol=1e-5)
        check_sharding(result)


def test_gradients_of_plain_sharded_arrays(mapped: Any, draw: Any):
    x = np.asarray(draw(data=8, model=4))
    functions = (nym.sum, nym.prod, nym.sort, nym.max, nym.softmax, nym.std)

    def differentiate(x: Any) -> list[Any]:
        return [jax.grad(lambda x, fn=fn: jnp.sum(fn(x, axis=1) ** 2))(x) for fn in functions]

    with jax.set_mesh(None):
        expected = jax.jit(differentiate)(x)
    sharded = jax.device_put(x, jax.NamedSharding(mapped, jax.P("data", "model")))
    for function, result, other in zip(functions, jax.jit(differentiate)(sharded), expected, strict=True):
        np.testing.assert_allclose(result, other, rtol=1e-3, atol=1e-5, err_msg=function.__name__)


@each(OVER_AXES)
def test_errors_name_the_axis(function: Function):
    x = nym.ones(SIZES)
    with refusal("no axis 'imbed' in (batch: 8, pos: 3, embed: 4); did you mean 'embed'?"):
        function.over("imbed")(x)
    with refusal("axis 'embed' has size 4 here, 5 was asked for"):
        function.over(Axis("embed", 5))(x)
    with refusal("given by an `Axis` or by its name, not by -1", TypeError):
        function.over(-1)(x)
    if function.takes_several_axes:
        with refusal("axis 'pos' is given more than once in (pos, pos)"):
            function.over(("pos", "pos"))(x)
    else:
        with refusal("given by an `Axis` or by its name, not by ('pos', 'embed')", TypeError):
            function.over(("pos", "embed"))(x)


@each(OVER_AXES)
def test_plain_arrays_take_no_names(function: Function):
    x = np.ones((3, 2), np.float32)
    for name in ("a", Axis("a", 3)):
        with pytest.raises(
            TypeError, match=r"shape \(3, 2\) has no names, so .*a.* is none of its axes; give positions"
        ):
            function.over(name)(x)
    with refusal("out of bounds for array of dimension 2"):
        function.over(2)(x)
    if "where" in function.parameters:
        with refusal("A plain array of shape (3, 2) takes a plain `where`, not a named one", TypeError):
            function.over(0, where=nym.ones({"a": 3}, bool))(x)


@each([function for function in OVER_AXES if "where" in function.parameters])
def test_where_has_to_be_named_and_to_fit(function: Function):
    x = nym.ones(SIZES)
    for mask, text, error in (
        (
            np.ones(4, bool),
            "must be a named array with axes of (batch: 8, pos: 3, embed: 4), not an array of",
            TypeError,
        ),
        (True, "not True", TypeError),
        (nym.ones({"i": 4}, bool), "must have axes of (batch: 8, pos: 3, embed: 4) only, it has (i: 4)", ValueError),
        (nym.ones({"embed": 1}, bool), "axis 'embed' has size 4 and size 1 in", ValueError),
    ):
        with refusal(text, error):
            function.over("embed", where=mask)(x)

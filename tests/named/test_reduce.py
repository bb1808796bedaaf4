"""What reductions take besides an axis, and those that JAX calls in another way, or gets wrong.

`test_parity.py` compares all of them with JAX.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis
from tests.refusals import refusal


def close(result, expected, names, tolerance=1e-5):
    assert result.names == names
    np.testing.assert_allclose(result.array, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8, jnp.uint8, jnp.bool_])
def test_bounds_of_nothing_are_those_of_the_element_type(dtype):
    x, nothing = nym.ones({"a": 2, "b": 3}, dtype), nym.zeros({"a": 2}, bool)
    if dtype == jnp.bool_:
        bounds = False, True
    elif jnp.issubdtype(dtype, jnp.floating):
        bounds = -np.inf, np.inf
    else:
        bounds = jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
    for result, bound in zip((x.max("b", where=nothing), x.min("b", where=nothing)), bounds, strict=True):
        assert result.dtype == dtype and result.tolist() == [bound] * 2


def test_initial_bounds_the_result(draw):
    x = draw(a=2, b=3)
    plain = np.asarray(x)
    assert np.array_equal(x.max("b", initial=5.0).array, plain.max(axis=1, initial=5.0))
    assert np.array_equal(x.min("b", initial=jnp.float32(-5.0)).array, plain.min(axis=1, initial=-5.0))
    assert np.array_equal(x.max("b", where=x > 9, initial=-1.0).array, [-1.0, -1.0])


def test_dtype_and_ddof(draw):
    x = draw.integers(-3, 3, a=2, b=3)
    plain = np.asarray(x)
    for name in ("sum", "prod", "mean", "var", "std"):
        result = getattr(x, name)("b", dtype=jnp.float32)
        assert result.dtype == jnp.float32
        np.testing.assert_allclose(result.array, getattr(plain, name)(axis=1, dtype=np.float32), rtol=1e-5)
    assert x.cumsum("b", dtype=jnp.float32).dtype == jnp.float32
    for name in ("var", "std"):
        expected = getattr(plain, name)(axis=1, ddof=1)
        np.testing.assert_allclose(getattr(x, name)("b", ddof=1).array, expected, rtol=1e-5)


def test_sorting_in_descending_order(draw):
    x = draw.integers(0, 3, a=2, b=7)
    ascending = np.sort(np.asarray(x), axis=1)
    for options in ({"descending": True}, {"descending": True, "stable": False}):
        assert np.array_equal(x.sort("b", **options).array, ascending[:, ::-1])
    assert np.array_equal(x.sort("b", stable=True).array, ascending)
    # Equal elements stay in their order, in a descending sort as well.
    assert np.array_equal(x.argsort("b", descending=True).array, np.argsort(-np.asarray(x), axis=1, stable=True))
    assert np.array_equal(x.argsort("b").array, np.argsort(np.asarray(x), axis=1, stable=True))


def test_booleans_are_counted_where_jax_forbids_implicit_conversions():
    with jax.numpy_dtype_promotion("strict"):
        x = nym.named([True, False, True], "i")
        assert nym.count_nonzero(x).item() == 2 and nym.count_nonzero(x, where=~x).item() == 0
        assert nym.var(x, where=x).item() == 0


def test_plain_arguments_of_plain_arrays():
    x = jax.device_put(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    plain, named = np.asarray(x), nym.ones({"i": 2})
    weights = np.array([1.0, 3.0], np.float32)
    np.testing.assert_allclose(nym.average(x, 0, weights=weights), np.average(plain, 0, weights))
    np.testing.assert_array_equal(nym.diff(x, 1, n=2, prepend=0.0), np.diff(plain, 2, 1, np.zeros((2, 1))))
    ranks = np.array([0.1, 0.5], np.float32)
    np.testing.assert_allclose(nym.quantile(x, jax.device_put(ranks), 1), np.quantile(plain, ranks, 1), rtol=1e-6)
    np.testing.assert_array_equal(nym.cumulative_sum(x, 1, include_initial=True)[:, 1:], np.cumsum(plain, 1))
    np.testing.assert_array_equal(nym.sum(x, 0, where=plain > 1), [3, 4, 7])
    np.testing.assert_array_equal(nym.prod(plain, 0), [0, 4, 10])
    np.testing.assert_array_equal(nym.sort(-plain, -1), [[-2, -1, 0], [-5, -4, -3]])
    assert nym.sum(2.0) == 2 and nym.all(True) and nym.max(np.float32(3)) == 3
    with refusal("A plain array of shape (2, 3) takes plain `weights`, not named ones", TypeError):
        nym.average(x, 0, weights=named)
    with refusal("A plain array of shape (2, 3) takes plain quantiles, not named ones", TypeError):
        nym.quantile(x, named, 0)
    for other in (None, "text", [1, 2]):
        with refusal("A named array is needed, not", TypeError):
            nym.sum(other)  # pyright: ignore[reportArgumentType]


RANKED = {"quantile": 1, "percentile": 100, "nanquantile": 1, "nanpercentile": 100}


@pytest.mark.parametrize("name", RANKED)
def test_the_axes_of_the_ranks_come_first(name, draw):
    x, q = draw(batch=8, pos=3, embed=4), RANKED[name] * draw(0, 1, rank=2, other=3)
    plain, ranks, fn = np.asarray(x), np.asarray(q), getattr(np, name)
    named = getattr(nym, name)
    results = jax.jit(lambda x, q: (named(x, q, "pos"), named(x, q), named(x, q["other", 0], ("embed", "batch"))))(x, q)
    close(results[0], fn(plain, ranks, axis=1), ("rank", "other", "batch", "embed"))
    close(results[1], fn(plain, ranks), ("rank", "other"))
    close(results[2], fn(plain, ranks[:, 0], axis=(2, 0)), ("rank", "pos"))


METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def test_quantiles_take_a_method_and_are_nan_where_a_rank_is(draw):
    x, q = draw(a=2, b=5), nym.named([0.3, np.nan], "q")

    @jax.jit
    def compute(x, q):
        return [nym.quantile(x, q, "b", method=method) for method in METHODS], nym.nanquantile(x, q, "b")

    results, without_nan = compute(x, q)
    for result, method in zip([*results, without_nan], [*METHODS, "linear"], strict=True):
        close(result["q", 0], np.quantile(np.asarray(x), 0.3, axis=1, method=method), ("a",))
        assert np.isnan(result.array[1]).all()


# Float16 holds neither the sum of all, nor of the two in the middle, nor a square.
LARGE = np.array([5000.0, 33000.0, 34000.0, 35000.0])
REDUCED = {
    "median": (nym.median, np.median),
    "nanmedian": (nym.nanmedian, np.median),
    "quantile": (lambda x: nym.quantile(x, 0.5, method="midpoint"), np.median),
    "nanmean": (nym.nanmean, np.mean),
    "average": (lambda x: nym.average(x, weights=nym.full_like(x, 2)), np.mean),
    "std": (nym.std, np.std),
    "std, where": (lambda x: nym.std(x, where=x > 0), np.std),
    "nanstd": (nym.nanstd, np.std),
    "norm": (nym.linalg.norm, np.linalg.norm),
    "corrcoef": (lambda x: nym.corrcoef(nym.stack("j", (x, -x)), "j", "i", other="k")["j", 0, "k", 1], lambda _: -1.0),
}


def test_what_fits_float16_does_not_overflow_on_the_way():
    x = nym.named(LARGE.astype(np.float16), "i")
    results = jax.jit(lambda x: {name: fn(x) for name, (fn, _) in REDUCED.items()})(x)
    for name, result in results.items():
        assert result.dtype == jnp.float16
        np.testing.assert_allclose(result.item(), REDUCED[name][1](LARGE), rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_positions_of_quantiles_are_exact_for_ranks_in_16_bits(dtype):
    x, q = nym.named(np.arange(70_000, dtype=np.float32), "i"), nym.named(np.array([0.25, 1.0], dtype), "q")
    np.testing.assert_array_equal(nym.quantile(x, q).array, [17499.75, 69999])


def test_quantiles_need_elements_and_ranks_in_range(draw):
    x = draw(a=2, b=5)
    for fn in (nym.quantile, nym.nanquantile):
        for q in (float("nan"), 1.5, -1):
            for run in (fn, jax.jit(fn, static_argnums=1)):
                with refusal(f"`{fn.__name__}` takes numbers from 0 to 1, not {q}"):
                    run(x, q)
    for q, text in ((np.float32(2), "np.float32(2.0)"), (np.array(2.0), "an array of shape ()")):
        with refusal(f"`quantile` takes numbers from 0 to 1, not {text}"):
            nym.quantile(x, q)
    assert nym.percentile(x, 100).item() == x.array.max()
    with refusal("`percentile` takes numbers from 0 to 100, not 101"):
        nym.percentile(x, 101)
    for fn in (nym.median, nym.nanmedian, lambda x, axis: nym.quantile(x, 0.5, axis)):
        with refusal("needs elements along axis 'b', and (a: 2, b: 0) has none"):
            fn(nym.ones({"a": 2, "b": 0}), "b")
        assert jax.eval_shape(lambda x, fn=fn: fn(x, "a"), nym.ones({"a": 2, "b": 0})).shape == {"b": 0}


def test_ranks_have_names_that_no_axis_left_has(draw):
    x, q = draw(a=2, b=5), np.array([0.1, 0.9], np.float32)
    close(nym.quantile(x, nym.named(q, "b"), "b"), np.quantile(np.asarray(x), q, axis=1), ("b", "a"))
    with refusal("axis 'a' of (a: 2) is a core axis here and a loop axis of another"):
        nym.quantile(x, nym.named(q, "a"), "b")
    with refusal("A plain array of shape (2,) has no axis names; give it some", TypeError):
        nym.quantile(x, q, "b")


def compute_matrices(fn, plain, **options):
    """What a function of NumPy makes of each element of the first axis."""
    return np.stack([fn(matrix, **options) for matrix in plain])


def test_cov_pairs_each_variable_with_each_other(draw):
    x = draw(time=5, batch=2, variable=3)
    plain, names = np.transpose(x, (1, 2, 0)), ("batch", "variable", "with")

    @jax.jit
    def compute(x):
        return (
            nym.cov(x, "variable", "time", other="with"),
            nym.cov(x, "variable", "time", other=Axis("with", 3), ddof=0),
            nym.corrcoef(x, "variable", ["time"], other="with"),
            nym.cov(x, "variable", ("time", "batch"), other="with"),
            nym.cov(x["variable", 0:1], "variable", "time", other="with"),
        )

    cov, cov_of_all, corrcoef, both, single = compute(x)
    close(cov, compute_matrices(np.cov, plain), names)
    close(cov_of_all, compute_matrices(np.cov, plain, ddof=0), names)
    close(corrcoef, compute_matrices(np.corrcoef, plain), names)
    close(both, np.cov(np.transpose(x, (2, 0, 1)).reshape(3, 10)), ("variable", "with"))
    close(single, np.var(plain[:, 0], axis=-1, ddof=1)[:, None, None], names)


def test_observations_have_weights(draw):
    x, often, heavy = draw(variable=3, time=5), draw.integers(1, 4, time=5), draw(0.5, 1.5, time=5)
    weights = ({"fweights": often}, {"aweights": heavy}, {"fweights": often, "aweights": heavy})

    @jax.jit
    def compute(x, weights):
        return [[nym.cov(x, "variable", "time", other="with", ddof=ddof, **w) for ddof in (0, 1)] for w in weights]

    for results, given in zip(compute(x, weights), weights, strict=True):
        plain = {name: np.asarray(array) for name, array in given.items()}
        for ddof, result in enumerate(results):
            close(result, np.cov(np.asarray(x), ddof=ddof, **plain), ("variable", "with"))


def test_covariances_of_complex_numbers_and_integers(draw):
    whole = draw.integers(0, 9, variable=3, time=5)
    numbers = nym.named(np.asarray(draw(variable=3, time=5)) + 1j * np.asarray(draw(variable=3, time=5)), whole.axes)

    @jax.jit
    def compute(numbers, whole):
        cov = [nym.cov(x, "variable", "time", other="with") for x in (numbers, whole)]
        return *cov, nym.corrcoef(numbers, "variable", "time", other="with")

    results = compute(numbers, whole)
    close(results[0], np.cov(np.asarray(numbers)), ("variable", "with"))
    close(results[1], np.cov(np.asarray(whole)), ("variable", "with"))
    close(results[2], np.corrcoef(np.asarray(numbers)), ("variable", "with"))
    assert [result.dtype for result in results] == [jnp.complex64, jnp.float32, jnp.complex64]


def test_averages_are_weighed(draw):
    x, weights = draw.integers(0, 9, a=2, b=3), draw.integers(1, 5, b=3)
    averages = jax.jit(lambda x, w: (nym.average(x, "b", w), nym.average(x, "a", w), nym.average(x)))(x, weights)
    plain = np.asarray(x)
    close(averages[0], np.average(plain, axis=1, weights=np.asarray(weights)), ("a",))
    close(averages[1], plain.mean(0), ("b",))
    close(averages[2], plain.mean(), ())
    half = x.astype(jnp.bfloat16)
    assert jax.eval_shape(lambda x, w: nym.average(x, "b", w), half, weights).dtype == jnp.bfloat16


def test_differences_of_joined_arrays_are_lined_up_by_name(draw):
    x, front, back = draw(a=2, b=5), draw(b=3, a=2), draw(a=2)

    @jax.jit
    def compute(x, front, back):
        joined = nym.diff(x, "b", prepend=front, append=back), nym.diff(x, "a", append=0.0)
        return nym.diff(x, "b", n=2), nym.diff(x, "b", n=0), *joined

    results = compute(x, front, back)
    plain = np.asarray(x)
    expected = np.diff(plain, axis=1, prepend=np.asarray(front).T, append=np.asarray(back)[:, None])
    for result, other in zip(
        results, (np.diff(plain, n=2, axis=1), plain, expected, np.diff(plain, axis=0, append=0.0)), strict=True
    ):
        close(result, other, ("a", "b"))


X, ROWS, PLAIN = nym.ones({"batch": 2, "variable": 3, "time": 5}), nym.ones({"a": 2, "b": 3}), np.ones(3)
SHOWN = "(a: 2, b: 3)"
REFUSALS = [
    (lambda: nym.cov(X, "variable", "time", other="variable"), "axis 'variable' occurs more than once in"),
    (lambda: nym.cov(X, "variable", "time", other=Axis("k", 4)), "axis 'variable' has size 3 here, 4 was asked for"),
    (lambda: nym.cov(X, "variable", "time", other="k", fweights=X["time", 0]), "no axis 'time' in (batch: 2, variable"),
    (lambda: nym.average(ROWS, "a", nym.ones({"c": 2})), f"must have axes of {SHOWN} only, they have (c: 2)"),
    (lambda: nym.average(ROWS, "b", nym.ones({"b": 4})), "axis 'b' has size 3 and size 4 in"),
    (lambda: nym.diff(ROWS, "b", n=-1), "must not be negative, -1 was given"),
    (lambda: nym.diff(ROWS, "b", prepend=nym.ones({"c": 2})), f"must have axes of {SHOWN} only, not (c: 2)"),
    (lambda: nym.diff(ROWS, "b", append=nym.ones({"a": 3, "b": 1})), "axis 'a' has size 2 and size 3 in"),
]


@pytest.mark.parametrize(("call", "text"), REFUSALS)
def test_axes_that_do_not_fit_are_refused(call, text):
    with refusal(text):
        call()


def test_plain_weights_and_ends_are_refused():
    with refusal("given by an `Axis` or by its name, not by a list of length 1", TypeError):
        nym.median(ROWS, [["a"]])  # pyright: ignore[reportArgumentType]
    with refusal("A named array is needed, not an array of shape (3,)", TypeError):
        nym.average(ROWS, "b", PLAIN)
    with refusal("A plain array of shape (3,) has no axis names", TypeError):
        nym.diff(ROWS, "b", append=PLAIN)


def make_operands(draw):
    x, mask = draw(batch=8, pos=3, embed=4), draw(embed=4, batch=8) > -1
    operands = {"x": x, "mask": mask, "q": draw(0, 1, rank=2), "weights": draw(0.1, 1, pos=3, batch=8)}
    return operands | {"row": draw(pos=3, embed=4), "column": draw(embed=4, batch=8)}


# What each computes, and whether it is also run outside of jit.
SHARDED = {
    "quantile": (lambda x, q, **_: nym.quantile(x, q, "batch"), True),
    "quantile, whole axis": (lambda x, q, **_: nym.quantile(x, q, "pos"), False),
    "median": (lambda x, **_: nym.median(x, "embed"), False),
    "cov": (lambda x, **_: nym.cov(x, "embed", "pos", other="with"), True),
    "corrcoef": (lambda x, **_: nym.corrcoef(x, "embed", ("pos", "batch"), other="with"), False),
    "average": (lambda x, weights, **_: nym.average(x, "pos", weights), True),
    "average, sharded axis": (lambda x, weights, **_: nym.average(x, ("batch", "pos"), weights), False),
    "var": (lambda x, mask, **_: nym.var(x, "pos", where=mask), False),
    "nanstd": (lambda x, mask, **_: nym.nanstd(x, ("batch", "embed"), where=mask), False),
    "ptp": (lambda x, mask, **_: nym.ptp(x, ("batch", "embed"), where=mask), False),
    "cumulative_sum": (lambda x, **_: nym.cumulative_sum(x, "batch", include_initial=True), False),
    "cumulative_prod": (lambda x, **_: nym.cumulative_prod(x, "embed", include_initial=True), False),
    "cumulative, same size": (lambda x, **_: (nym.cumulative_sum(x, "batch"), nym.cumulative_prod(x, "batch")), False),
    "diff": (lambda x, **_: nym.diff(x, "batch"), False),
    "diff, joined": (lambda x, row, **_: nym.diff(x, "batch", prepend=row), True),
    "diff, joined whole axis": (lambda x, column, **_: nym.diff(x, "pos", prepend=column), False),
}


def test_results_are_the_same_sharded(compute_sharded, draw):
    operands = make_operands(draw)
    run = lambda operands: {name: fn(**operands) for name, (fn, _) in SHARDED.items()}  # noqa: E731
    inside = compute_sharded(run, operands, tolerance=1e-4)
    outside = {name: fn(**nym.shard(operands)) for name, (fn, is_eager) in SHARDED.items() if is_eager}
    for name, result in outside.items():
        close(result, inside[name].array, inside[name].names, tolerance=1e-4)
    for computed in (inside, outside):
        assert computed["cov"].sharding.spec[0] == "data" and computed["quantile"].sharding.spec[-1] == "model"


def test_ends_are_joined_to_arrays_that_no_mapping_shards(explicit_mesh, draw):
    x, front = draw(batch=8, embed=4), draw(batch=8, embed=2)
    plain, names = np.asarray(x), ("batch", "embed")
    expected = np.diff(plain, axis=1, prepend=np.asarray(front))
    with jax.set_mesh(explicit_mesh):
        with nym.axis_mapping({"batch": "data", "embed": "model"}):
            sharded = nym.shard((x, front))
        for end in (front, sharded[1]):
            joined = nym.diff(sharded[0], "embed", prepend=end)
            close(joined, expected, names)
            assert joined.sharding.spec[0] == "data"
        begun = nym.cumulative_sum(sharded[0], "embed", include_initial=True)
        close(begun["embed", 1:], np.cumsum(plain, axis=1), names)
        assert begun.sharding.spec[0] == "data"
        close(nym.diff(x, "embed", append=sharded[1]), np.diff(plain, axis=1, append=np.asarray(front)), names)


MASKED = ("sum", "prod", "mean", "var", "std", "max", "min", "ptp", "logsumexp", "softmax", "log_softmax")
MASKED += ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin")


def test_what_is_masked_out_spoils_no_gradient(draw):
    mask = nym.named([[True, True, True, False], [False] * 4, [True, False, True, True]], ("a", "b"))
    x, weights = draw(a=3, b=4), draw(a=3, b=4)

    def compute_loss(x, name):
        result = getattr(nym, name)(x, "b", where=mask)
        kept = result if result.names == ("a",) else nym.where(mask, result * weights, 0.0)
        return nym.where(nym.isfinite(kept), kept, 0.0).sum().scalar()

    compute = jax.jit(lambda x: {name: jax.value_and_grad(compute_loss)(x, name) for name in MASKED})
    expected = compute(x)
    for spoilt in (np.nan, np.inf, 1e30):
        for name, (value, gradient) in compute(nym.where(mask, x, spoilt)).items():
            assert gradient.names == ("a", "b") and np.allclose(value, expected[name][0], rtol=1e-5), (name, spoilt)
            plain = np.asarray(gradient)
            assert np.all(np.isfinite(plain)) and np.all(plain[~np.asarray(mask)] == 0), (name, spoilt)
            np.testing.assert_allclose(plain, expected[name][1], rtol=1e-4, atol=1e-6, err_msg=f"{name}, {spoilt}")


def test_gradients_of_masked_reductions_are_those_of_what_is_left(draw):
    x, weights, names = draw(a=2, b=5), draw(a=2, b=3), ("std", "var", "logsumexp", "softmax")
    mask, kept = nym.named([True, False, True, True, False], "b"), nym.named([0, 2, 3], "b")

    def compute_loss(x, name, where):
        result = getattr(nym, name)(x, "b", where=where)
        if "b" in result.names and where is not None:
            result = result["b", kept]
        return (result * weights).sum().scalar()

    def differentiate(x, where):
        return [jax.grad(compute_loss)(x, name, where) for name in names]

    masked, expected = jax.jit(lambda x: (differentiate(x, mask), differentiate(x["b", kept], None)))(x)
    for name, gradient, other in zip(names, masked, expected, strict=True):
        np.testing.assert_allclose(gradient.array[:, [0, 2, 3]], other.array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_masked_variances_keep_the_element_type_and_take_ddof(draw):
    x, mask = draw(a=3, b=6), draw(a=3, b=6) > -1
    names, plain = ("var", "std", "nanvar", "nanstd"), (np.asarray(x), np.asarray(mask))
    compute = jax.jit(lambda *xs: [[getattr(nym, name)(x, "b", where=mask, ddof=1) for name in names] for x in xs])
    for x_of_dtype, results in zip((x, x.astype(jnp.bfloat16)), compute(x, x.astype(jnp.bfloat16)), strict=True):
        for name, result in zip(names, results, strict=True):
            assert result.dtype == x_of_dtype.dtype
            expected = getattr(np, name)(plain[0], axis=1, where=plain[1], ddof=1)
            tolerance = 3e-2 if result.dtype == jnp.bfloat16 else 1e-5
            np.testing.assert_allclose(result.array.astype(float), expected, rtol=tolerance)
    assert np.isnan(nym.std(x, "b", where=nym.named(False, ())).array).all()

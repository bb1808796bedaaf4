"""Quantiles, covariances, averages, differences and masks: reductions that JAX calls in another way, or gets wrong."""

from re import escape

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import Axis


def close(result, expected, names, tolerance=1e-5):
    assert result.names == names and result.dtype == expected.dtype
    np.testing.assert_allclose(result.array, expected, rtol=tolerance, atol=tolerance)


RANKED = {"quantile": 1, "percentile": 100, "nanquantile": 1, "nanpercentile": 100}


@pytest.mark.parametrize("name", RANKED)
def test_the_axes_of_the_ranks_come_first(name, draw):
    x, q = draw(batch=8, pos=3, embed=4), RANKED[name] * draw(0, 1, rank=2, other=3)
    fn = getattr(nym, name)

    scalar = RANKED[name] * 0.25

    def plain(array, q, **options):
        ranks = [getattr(jnp, name)(array, one, **options) for one in q.reshape(-1)]  # JAX takes no more than one axis
        return jnp.stack(ranks).reshape(*q.shape, *ranks[0].shape)

    @jax.jit
    def compute_expected(x, q):
        several = plain(x, q, axis=1), plain(x, q), plain(x, q[:, 0], axis=(2, 0))
        return *several, getattr(jnp, name)(x, scalar, axis=1)

    expected = compute_expected(x.array, q.array)
    close(fn(x, q, "pos"), expected[0], ("rank", "other", "batch", "embed"))
    close(fn(x, q), expected[1], ("rank", "other"))
    close(fn(x, q["other", 0], ("embed", "batch")), expected[2], ("rank", "pos"))
    close(fn(x, scalar, Axis("pos", 3)), expected[3], ("batch", "embed"))


def test_quantiles_take_a_method_and_keep_the_element_type(draw):
    x = draw(a=2, b=5)
    for method in ("lower", "higher", "midpoint", "nearest"):
        close(nym.quantile(x, 0.3, "b", method=method), jnp.quantile(x.array, 0.3, axis=1, method=method), ("a",))
    half = x.astype(jnp.bfloat16)
    assert nym.quantile(half, 0.5, "b").dtype == jnp.quantile(half.array, 0.5, axis=1).dtype
    assert nym.median(draw.integers(0, 9, a=3)).dtype == jnp.float32


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


@pytest.mark.parametrize("name", REDUCED)
def test_what_fits_float16_does_not_overflow_on_the_way(name):
    fn, reference = REDUCED[name]
    result = fn(nym.named(LARGE, "i").astype(jnp.float16))
    assert result.dtype == jnp.float16
    np.testing.assert_allclose(result.item(), reference(LARGE), rtol=1e-3)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_positions_of_quantiles_are_exact_for_ranks_in_16_bits(dtype):
    x, q = nym.arange(Axis("i", 70_000)), nym.named([0.25, 1.0], "q").astype(dtype)
    np.testing.assert_array_equal(nym.quantile(x.astype(jnp.float32), q).array, [17499.75, 69999])


def test_quantiles_need_elements_and_ranks_in_range(draw):
    x = draw(a=2, b=5)
    for fn in (nym.quantile, nym.nanquantile):
        for q in (float("nan"), 1.5, -1):
            for run in (fn, jax.jit(fn, static_argnums=1)):
                with pytest.raises(ValueError, match=escape(f"`{fn.__name__}` takes numbers from 0 to 1, not {q}")):
                    run(x, q)
        for method in ("linear", "lower", "higher", "midpoint", "nearest"):  # an array of ranks is not read
            ranks = nym.named([0.5, float("nan")], "q")
            result = fn(x, ranks, "b", method=method)
            np.testing.assert_array_equal(jnp.isnan(result.array), [[False, False], [True, True]])
    assert nym.percentile(x, 100).item() == x.array.max()
    with pytest.raises(ValueError, match="`percentile` takes numbers from 0 to 100, not 101"):
        nym.percentile(x, 101)
    for fn in (nym.median, nym.nanmedian, lambda x, axis: nym.quantile(x, 0.5, axis)):
        with pytest.raises(ValueError, match=escape("needs elements along axis 'b', and (a: 2, b: 0) has none")):
            fn(x["b", :0], "b")
        assert fn(x["b", :0], "a").shape == {"b": 0}


def test_a_rank_may_have_the_name_of_an_axis_that_is_reduced(draw):
    x, q = draw(a=2, b=5), nym.named([0.1, 0.9], "b")
    close(nym.quantile(x, q, "b"), jnp.quantile(x.array, q.array, axis=1), ("b", "a"))


def test_ranks_have_names_that_no_axis_left_has(draw):
    x = draw(a=2, b=5)
    with pytest.raises(ValueError, match=escape("axis 'a' of (a: 2) is a core axis here and a loop axis of another")):
        nym.quantile(x, nym.named([0.1, 0.9], "a"), "b")
    with pytest.raises(TypeError, match=escape("A plain array of shape (2,) has no axis names; give it some")):
        nym.quantile(x, jnp.array([0.1, 0.9]), "b")


def test_quantiles_of_sharded_arrays(mapped, draw):
    x, q = draw(batch=8, pos=3, embed=4), draw(0, 1, rank=2)
    for axis, dims, names in (("pos", 1, ("batch", "embed")), ("batch", 0, ("pos", "embed"))):
        with jax.set_mesh(None):
            expected, middle = jnp.quantile(x.array, q.array, axis=dims), jnp.median(x.array, axis=dims)
        close(jax.jit(lambda x, q, axis=axis: nym.quantile(x, q, axis))(nym.shard(x), q), expected, ("rank", *names))
        result = nym.quantile(nym.shard(x), q, axis)
        close(result, expected, ("rank", *names))
        close(nym.median(nym.shard(x), axis), middle, names)
    assert result.sharding.spec[-1] == "model"


def matrices(fn, x, **options):
    """What a function of JAX makes of each element of the first axis."""
    return jax.jit(lambda x: jnp.stack([fn(one, **options) for one in x]))(x)


def test_cov_pairs_each_variable_with_each_other(draw):
    x = draw(time=5, batch=2, variable=3)
    plain = jnp.transpose(x.array, (1, 2, 0))
    names = ("batch", "variable", "with")
    close(nym.cov(x, "variable", "time", other="with"), matrices(jnp.cov, plain), names)
    close(nym.cov(x, "variable", "time", other=Axis("with", 3), ddof=0), matrices(jnp.cov, plain, ddof=0), names)
    close(nym.corrcoef(x, "variable", ["time"], other="with"), matrices(jnp.corrcoef, plain), names)
    both = nym.cov(x, "variable", ("time", "batch"), other="with")
    close(both, jnp.cov(jnp.transpose(x.array, (2, 0, 1)).reshape(3, 10)), ("variable", "with"))
    one = nym.cov(x["variable", 0:1], "variable", "time", other="with")
    close(one, jnp.var(plain[:, 0], axis=-1, ddof=1)[:, None, None], names)


def test_observations_have_weights(draw):
    x = draw(variable=3, time=5)
    often, heavy = draw.integers(1, 4, time=5), draw(0.5, 1.5, time=5)
    for options in ({"fweights": often}, {"aweights": heavy}, {"fweights": often, "aweights": heavy}):
        for ddof in (0, 1):
            plain = {key: one.array for key, one in options.items()}
            result = nym.cov(x, "variable", "time", other="with", ddof=ddof, **options)
            close(result, jnp.cov(x.array, ddof=ddof, **plain), ("variable", "with"))


def test_covariances_of_complex_numbers(draw):
    x = draw(variable=3, time=5) + 1j * draw(variable=3, time=5)
    close(nym.cov(x, "variable", "time", other="with"), jnp.cov(x.array), ("variable", "with"))
    close(nym.corrcoef(x, "variable", "time", other="with"), jnp.corrcoef(x.array), ("variable", "with"))


def test_covariances_of_integers_are_floats(draw):
    x = draw.integers(0, 9, variable=3, time=5)
    close(nym.cov(x, "variable", "time", other="with"), jnp.cov(x.array), ("variable", "with"))


def test_covariances_of_sharded_arrays(mapped, draw):
    x = draw(batch=8, embed=4, time=5)
    expected = matrices(jnp.cov, x.array)
    names = ("batch", "embed", "with")

    def cov(x):
        return nym.cov(x, "embed", "time", other="with")

    close(cov(nym.shard(x)), expected, names)
    close(jax.jit(cov)(nym.shard(x)), expected, names)
    assert cov(nym.shard(x)).sharding.spec[0] == "data"
    reduced = nym.corrcoef(nym.shard(x), "embed", ("time", "batch"), other="with")
    plain = jnp.transpose(x.array, (1, 2, 0)).reshape(4, 40)
    close(reduced, jnp.corrcoef(plain), ("embed", "with"), tolerance=1e-4)


def test_the_second_axis_of_a_covariance_has_a_name_of_its_own(draw):
    x = draw(batch=2, variable=3, time=5)
    for other in ("variable", "batch"):
        with pytest.raises(ValueError, match=f"axis '{other}' occurs more than once in"):
            nym.cov(x, "variable", "time", other=other)
    with pytest.raises(ValueError, match="axis 'variable' has size 3 here, 4 was asked for"):
        nym.cov(x, "variable", "time", other=Axis("with", 4))
    with pytest.raises(ValueError, match="no axis 'times' in"):
        nym.cov(x, "variable", "times", other="with")
    with pytest.raises(ValueError, match=escape("no axis 'time' in (batch: 2)")):
        nym.cov(x, "variable", "time", other="with", fweights=nym.ones({"batch": 2}))


@pytest.mark.parametrize("axes", [("pos",), ("batch", "pos"), ("batch", "pos", "embed")])
def test_averages_are_weighed_along_any_axes(axes, mapped, draw):
    x, weights = draw(batch=8, pos=3, embed=4), draw(0.1, 1, pos=3, batch=8)
    dims = tuple(x.names.index(name) for name in axes)
    rest = tuple(name for name in x.names if name not in axes)
    full = np.broadcast_to(np.asarray(weights.array).T[:, :, None], x.array.shape)
    expected = np.average(np.asarray(x.array), axis=dims, weights=full)
    close(nym.average(x, axes, weights), expected, rest)
    sharded = nym.shard((x, weights))
    close(nym.average(sharded[0], axes, sharded[1]), expected, rest)
    close(jax.jit(lambda x, weights: nym.average(x, axes, weights))(*sharded), expected, rest)


def test_averages_of_integers_are_floats(draw):
    x, weights = draw.integers(0, 9, a=2, b=3), draw.integers(1, 5, b=3)
    close(nym.average(x, "b", weights), jnp.average(x.array, axis=1, weights=weights.array), ("a",))
    close(nym.average(x, "a", weights), jnp.mean(x.array, axis=0), ("b",))
    close(nym.average(x), jnp.mean(x.array), ())
    half = x.astype(jnp.bfloat16)
    assert nym.average(half, "b", weights).dtype == jnp.average(half.array, axis=1, weights=weights.array).dtype


def test_weights_are_named_and_have_axes_of_the_array(draw):
    x = draw(a=2, b=3)
    with pytest.raises(ValueError, match=escape("must have axes of (a: 2, b: 3) only, they have (c: 2)")):
        nym.average(x, "a", draw(c=2))
    with pytest.raises(TypeError, match=escape("A named array is needed, not an array of shape (3,)")):
        nym.average(x, "b", jnp.ones(3))
    with pytest.raises(ValueError, match="axis 'b' has size 3 and size 4 in"):
        nym.average(x, "b", draw(b=4))
    with pytest.raises(ValueError, match="no axis 'c' in"):
        nym.average(x, "c", draw(b=3))


def test_differences_of_joined_arrays_are_lined_up_by_name(draw):
    x, front, back = draw(a=2, b=5), draw(b=3, a=2), draw(a=2)
    close(nym.diff(x, "b", n=2), jnp.diff(x.array, n=2, axis=1), ("a", "b"))
    assert np.array_equal(nym.diff(x, "b", n=0).array, x.array)
    expected = jnp.diff(x.array, axis=1, prepend=front.array.T, append=back.array[:, None])
    close(nym.diff(x, "b", prepend=front, append=back), expected, ("a", "b"))
    close(nym.diff(x, "a", append=0.0), jnp.diff(x.array, axis=0, append=0.0), ("a", "b"))
    close(nym.diff(x, "a", prepend=draw(b=5) * 0), jnp.diff(x.array, axis=0, prepend=0.0), ("a", "b"))


def test_differences_need_what_fits(draw):
    x = draw(a=2, b=5)
    with pytest.raises(ValueError, match="must not be negative, -1 was given"):
        nym.diff(x, "b", n=-1)
    with pytest.raises(
        ValueError, match=escape("`prepend` and `append` must have axes of (a: 2, b: 5) only, not (c: 2)")
    ):
        nym.diff(x, "b", prepend=draw(c=2))
    with pytest.raises(ValueError, match="axis 'a' has size 2 and size 3 in"):
        nym.diff(x, "b", append=draw(a=3, b=1))
    with pytest.raises(TypeError, match=escape("A plain array of shape (2,) has no axis names")):
        nym.diff(x, "b", append=jnp.ones(2))


@pytest.mark.parametrize("axis", ["batch", "pos"])
def test_what_makes_an_axis_longer_or_shorter_runs_on_a_mesh(axis, mapped, draw):
    x = draw(batch=8, pos=3)
    dim = x.names.index(axis)
    edge = draw(**{name: size for name, size in x.shape.items() if name != axis})
    array, end = np.asarray(x), np.expand_dims(edge, dim)
    begun = np.insert(array, 0, 0.0, dim), np.insert(array, 0, 1.0, dim)
    expected = np.cumsum(begun[0], dim), np.cumprod(begun[1], dim)
    expected += np.diff(array, axis=dim), np.diff(array, axis=dim, prepend=end)

    def compute(x, edge):
        sums, products = (fn(x, axis, include_initial=True) for fn in (nym.cumulative_sum, nym.cumulative_prod))
        return sums, products, nym.diff(x, axis), nym.diff(x, axis, prepend=edge)

    sharded = nym.shard((x, edge))
    for results in (compute(*sharded), jax.jit(compute)(*sharded)):
        for result, other in zip(results, expected, strict=True):
            close(result, other, ("batch", "pos"))


def test_ends_are_joined_to_arrays_that_no_mapping_shards(explicit_mesh, draw):
    x, front = draw(batch=8, embed=4), draw(batch=8, embed=2)
    with jax.set_mesh(explicit_mesh):
        with nym.axis_mapping({"batch": "data", "embed": "model"}):
            sharded = nym.shard((x, front))
        for end in (front, sharded[1]):
            joined = nym.diff(sharded[0], "embed", prepend=end)
            close(joined, jnp.diff(x.array, axis=1, prepend=front.array), ("batch", "embed"))
            assert joined.sharding.spec[0] == "data"
        begun = nym.cumulative_sum(sharded[0], "embed", include_initial=True)
        close(begun, jnp.cumulative_sum(x.array, axis=1, include_initial=True), ("batch", "embed"))
        assert begun.sharding.spec[0] == "data"
        close(
            nym.diff(x, "embed", append=sharded[1]), jnp.diff(x.array, axis=1, append=front.array), ("batch", "embed")
        )


def test_sums_and_products_over_one_sharded_axis_keep_apart(mapped, draw):
    x = draw(batch=8, embed=4)
    for sums, products in ((nym.cumsum, nym.cumprod), (nym.cumulative_sum, nym.cumulative_prod)):
        both = jax.jit(lambda x, sums=sums, products=products: (sums(x, "batch"), products(x, "batch")))(nym.shard(x))
        close(both[0], np.cumsum(x, axis=0), ("batch", "embed"))
        close(both[1], np.cumprod(x, axis=0), ("batch", "embed"))


MASKED = ("sum", "prod", "mean", "var", "std", "max", "min", "ptp", "logsumexp", "softmax", "log_softmax")
MASKED += ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin")


@pytest.mark.parametrize("name", MASKED)
def test_what_is_masked_out_spoils_no_gradient(name, draw):
    fn = getattr(nym, name)
    mask = nym.named([[True, True, True, False], [False] * 4, [True, False, True, True]], ("a", "b"))
    x, weights = draw(a=3, b=4), draw(a=3, b=4)

    def loss(x):
        result = fn(x, "b", where=mask)
        kept = result if result.names == ("a",) else nym.where(mask, result * weights, 0.0)
        return nym.where(nym.isfinite(kept), kept, 0.0).sum().scalar()

    compute = jax.jit(jax.value_and_grad(loss))
    expected, plain = compute(x)
    for spoilt in (np.nan, np.inf, 1e30):
        value, gradient = compute(nym.where(mask, x, spoilt))
        assert gradient.names == ("a", "b") and np.allclose(value, expected, rtol=1e-5), spoilt
        found = np.asarray(gradient)
        assert np.all(np.isfinite(found)) and np.all(found[~np.asarray(mask)] == 0), spoilt
        assert np.allclose(found, plain, rtol=1e-4, atol=1e-6), spoilt


@pytest.mark.parametrize("name", ["std", "var", "logsumexp", "softmax"])
def test_gradients_of_masked_reductions_are_those_of_what_is_left(name, draw):
    x, fn, weights = draw(a=2, b=5), getattr(nym, name), draw(a=2, b=3)
    mask = nym.named([True, False, True, True, False], "b")

    def loss(result):
        result = result.take("b", nym.named([0, 2, 3], "b")) if result.axis_size("b") == 5 else result
        return (result * weights).sum().scalar()

    def along(x, where=None):
        result = fn(x, "b", where=where)
        return result if "b" in result.names else result.broadcast_axis(Axis("b", 3))

    left = x.take("b", nym.named([0, 2, 3], "b"))
    masked = jax.jit(jax.grad(lambda x: loss(along(x, mask))))(x)
    expected = jax.jit(jax.grad(lambda x: loss(along(x))))(left)
    assert np.allclose(np.asarray(masked)[:, [0, 2, 3]], expected.array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["var", "nanstd", "ptp", "count_nonzero"])
def test_masks_are_lined_up_on_a_mesh(name, mapped, draw):
    x, mask = draw(batch=8, pos=3, embed=4), draw(embed=4, batch=8) > -1
    fn = getattr(nym, name)
    for axis in ("pos", ("batch", "embed")):
        expected = fn(x, axis, where=mask)
        close(fn(nym.shard(x), axis, where=nym.shard(mask)), expected.array, expected.names)
        jitted = jax.jit(lambda x, mask, axis=axis: fn(x, axis, where=mask))(*nym.shard((x, mask)))
        close(jitted, expected.array, expected.names)


def test_masked_variances_keep_the_element_type_and_take_ddof(draw):
    x, mask = draw(a=3, b=6), draw(a=3, b=6) > -1
    for name in ("var", "std", "nanvar", "nanstd"):
        for dtype in (jnp.float32, jnp.bfloat16):
            given = x.astype(dtype)
            expected = getattr(jnp, name)(given.array, axis=1, where=mask.array, ddof=1)
            result = getattr(nym, name)(given, "b", where=mask, ddof=1)
            assert result.dtype == expected.dtype == dtype
            assert np.allclose(
                result.array.astype("f"), expected.astype("f"), rtol=1e-2 if dtype == jnp.bfloat16 else 1e-5
            )
    assert np.isnan(nym.std(x, "b", where=nym.named(False, ())).array).all()

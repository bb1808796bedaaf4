"""Fits of polynomials: what jnp fits to each set of points, whatever the order of the axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


def close(found, expected):
    assert found.array.shape == expected.shape
    np.testing.assert_allclose(found.array, expected, rtol=2e-3, atol=2e-3)


def test_powers_are_those_of_jnp(draw):
    x, new = draw(a=2, b=3), nym.Axis("k", 4)
    for increasing in (False, True):
        found = nym.poly.vander(x, new, increasing)
        assert found.names == ("a", "b", "k")
        close(found, jnp.stack([jnp.vander(row, 4, increasing) for row in x.array]))
    whole = nym.poly.vander(nym.named([2, 3], "x"), new)
    assert np.array_equal(whole.array, jnp.vander(jnp.array([2, 3]), 4)) and whole.dtype == jnp.int32


def test_fits_are_those_of_jnp(draw):
    x, y = draw(t=8), draw(a=2, t=8, b=3)
    found = nym.poly.polyfit(x, y, 2)
    assert found.names == ("a", "b", "t")
    columns = jnp.transpose(y.array, (1, 0, 2)).reshape(8, 6)
    close(found, jnp.polyfit(x.array, columns, 2).T.reshape(2, 3, 3))
    named = nym.poly.polyfit(x, nym.named(columns[:, 0], "t"), 2, rcond=0.1, new_axis="k")
    assert named.names == ("k",)
    close(named, jnp.polyfit(x.array, columns[:, 0], 2, rcond=0.1))


def test_points_and_weights_may_have_other_axes_too(draw):
    x, y, w = draw(t=8, a=2), draw(b=2, a=2, t=8), nym.abs(draw(a=2, t=8)) + 0.5
    found = nym.poly.polyfit(x, y, 1, w=w, axis="t", new_axis="k")
    assert found.names == ("b", "a", "k")
    for b, a in np.ndindex(2, 2):
        close(found["b", b]["a", a], jnp.polyfit(x.array[:, a], y.array[b, a], 1, w=w.array[a]))


def test_all_that_a_fit_finds_is_that_of_jnp(draw):
    x, y = draw(t=8), draw(t=8, a=3)
    found = nym.poly.polyfit(x, y, 2, full=True, new_axis="k")
    assert [one.names for one in found] == [("a", "k"), ("a",), ("a",), ("a", "k"), ("a",)]
    coefficients, residuals, rank, singular, rcond = jnp.polyfit(x.array, y.array, 2, full=True)
    close(found[0], coefficients.T)
    close(found[1], residuals)
    for one, expected in zip(found[2:], (rank, singular, rcond), strict=True):
        np.testing.assert_allclose(one["a", 1].array, expected, rtol=1e-4)


@pytest.mark.parametrize("cov", [True, "unscaled"])
def test_covariances_are_those_of_jnp(draw, cov):
    x, y = draw(t=8), draw(t=8, a=2)
    found = nym.poly.polyfit(x, y, 1, cov=cov, new_axis="k", other="l")
    assert [one.names for one in found] == [("a", "k"), ("a", "k", "l")]
    for a in range(2):
        for one, expected in zip(found, jnp.polyfit(x.array, y.array[:, a], 1, cov=cov), strict=True):
            close(one["a", a], expected)


def test_integers_are_fitted_as_numbers():
    x, y = nym.named([0, 1, 2], "t"), nym.named([1, 3, 5], "t")
    close(nym.poly.polyfit(x, y, 1), jnp.array([2.0, 1.0]))


def test_sharded_arrays_are_fitted(mapped, draw):
    x, y = draw(t=8), draw(i=2, t=8, batch=4)
    expected = jax.device_get(jnp.polyfit(x.array, y.array[1], 1).T)
    found = nym.poly.polyfit(nym.shard(x), nym.shard(y), 1)
    np.testing.assert_allclose(found["i", 1].array, expected, rtol=2e-3, atol=2e-3)
    assert nym.poly.vander(nym.shard(y), nym.Axis("k", 3)).names == ("i", "t", "batch", "k")


def test_errors_say_what_does_not_fit(draw):
    x, y = draw(time=4), draw(batch=2, time=4)
    with refusal("no axis 'time' in (tiem: 4); did you mean 'tiem'?"):
        nym.poly.polyfit(x, draw(tiem=4), 1)
    with refusal("axis 'time' has size 4 and size 3 in (time: 4) and (time: 3)"):
        nym.poly.polyfit(x, draw(time=3), 1)
    with refusal("which axis of (batch: 2, time: 4) has the points? Give it as `axis`"):
        nym.poly.polyfit(y, y, 1)
    with refusal("there are 0 points along axis 'time' of (time: 0), at least one is needed"):
        nym.poly.polyfit(draw(time=0), draw(time=0), 1)
    with refusal("A named array is needed, not an array of shape (2, 4)", TypeError):
        nym.poly.polyfit(x, y.array, 1)
    with refusal("axis 'batch' occurs more than once in (batch, batch)"):
        nym.poly.polyfit(x, y, 1, new_axis="batch")


def test_errors_of_covariances_and_degrees_say_what_they_need(draw):
    x, y = draw(time=4), draw(batch=2, time=4)
    with refusal("there are 4 points along axis 'time' of (time: 4), more than 4 are needed to scale the covariance"):
        nym.poly.polyfit(x, y, 3, cov=True, other="k")
    with refusal("the covariance has axis 'k' of the coefficients twice: name the second as `other`"):
        nym.poly.polyfit(x, y, 1, cov=True, new_axis="k")
    with refusal("axis 'k' is given more than once in (k, k)"):
        nym.poly.polyfit(x, y, 1, cov=True, new_axis="k", other="k")
    with refusal("`deg` must not be negative, it is -1"):
        nym.poly.polyfit(x, y, -1)
    with refusal("`deg` must be an integer, not float.", TypeError):
        nym.poly.polyfit(x, y, 1.0)


def test_errors_of_powers_say_which_axis(draw):
    with refusal("A new axis needs a size: give `Axis('k', size)` instead of 'k'", TypeError):
        nym.poly.vander(draw(x=2), "k")
    with refusal("axis 'x' occurs more than once in (x, x)"):
        nym.poly.vander(draw(x=2), nym.Axis("x", 3))
    with refusal("A named array is needed, not an array of shape (2,)", TypeError):
        nym.poly.vander(jnp.ones(2), nym.Axis("k", 3))

"""Polynomials: what NumPy computes for each, whatever the order of the axes, sharded arrays, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym
from axonym import poly

from ..refusals import refusal


@pytest.fixture
def mapped(mesh):
    """Both meshes, with a mapping in force that divides `batch` by 4 and `i` by 2."""
    with nym.axis_mapping({"batch": "data", "i": "model"}):
        yield mesh


def close(found, expected, tolerance=1e-4):
    assert found.array.shape == np.shape(expected)
    np.testing.assert_allclose(found.array, expected, rtol=tolerance, atol=tolerance)


def put(values, *names):
    return nym.named(jax.device_put(np.asarray(values)), names)


@pytest.mark.parametrize("name", ["polyadd", "polysub", "polymul"])
def test_each_pair_is_computed_as_numpy_does(draw, name):
    theirs = getattr(np, name)
    for p, q in (
        (draw(a=2, k=3, b=2), draw(k=2, b=2)),
        (draw(k=2, a=2), draw(b=2, k=4, a=2)),
        (draw(k=3), draw(k=3, a=2)),
    ):
        found = getattr(poly, name)(p, q, "k")
        names = tuple(label for label in max(p.names, q.names, key=len) if label != "k")
        assert found.names == (*names, "k")
        for places in np.ndindex(found.array.shape[:-1]):
            index = dict(zip(names, places, strict=True))
            pair = [np.asarray(x.array)[tuple(index.get(label, slice(None)) for label in x.names)] for x in (p, q)]
            np.testing.assert_allclose(np.asarray(found.array)[places], theirs(*pair), rtol=1e-5, atol=1e-5)
    p, q = put([1, 2, 3], "k"), put([1, 4], "k")  # the only axis is that of the coefficients
    found = getattr(poly, name)(p, q)
    assert found.names == ("k",) and found.dtype == jax.eval_shape(getattr(jnp, name), p.array, q.array).dtype
    np.testing.assert_array_equal(found.array, theirs(p.array, q.array))


def test_quotients_and_remainders_are_those_of_numpy(draw):
    p, q = draw(k=4, a=2), draw(1.0, 2.0, b=2, a=2, k=2)
    quotient, remainder = poly.polydiv(p, q, "k")
    assert quotient.shape == {"b": 2, "a": 2, "k": 3} and remainder.shape == {"b": 2, "a": 2, "k": 4}
    for b, a in np.ndindex(2, 2):
        expected = np.polydiv(np.asarray(p.array)[:, a], np.asarray(q.array)[b, a])
        close(nym.named(np.asarray(quotient.array)[b, a], "k"), expected[0])
        np.testing.assert_allclose(np.asarray(remainder.array)[b, a][-1:], expected[1][-1:], rtol=1e-3, atol=1e-3)
    assert [x.shape for x in poly.polydiv(q, p, "k")] == [(2, 2, 1), (2, 2, 2)]


def test_values_are_those_of_numpy(draw):
    p, x = draw(k=4), draw(a=2, b=3)
    found = poly.polyval(p, x)
    assert found.names == ("a", "b")
    close(found, np.polyval(p.array, x.array))
    for number in (2.0, np.float32(2), nym.named(2.0, ())):
        close(poly.polyval(p, number), np.polyval(p.array, 2.0))
    assert poly.polyval(put([1, 2, 3], "k"), 2).dtype == jnp.int32


def test_each_polynomial_has_its_values(draw):
    p, x = draw(a=2, k=4, b=3), draw(b=3, c=2, a=2)
    found = poly.polyval(p, x["c", 0], "k")
    assert found.names == ("a", "b")
    expected = np.polyval(np.transpose(p.array, (1, 2, 0))[:, :, None, :], np.asarray(x.array))
    close(found, expected[:, 0].T)
    found = poly.polyval(p, x, nym.Axis("k", 4))
    assert found.names == ("b", "c", "a")
    close(found, expected)


@pytest.mark.parametrize("m", [0, 1, 2, 5])
def test_derivatives_and_integrals_are_those_of_numpy(draw, m):
    p, k, several = draw(a=2, k=4, b=3), draw(b=3), draw(b=3, k=m)
    for found, theirs in (
        (poly.polyder(p, m, "k"), lambda x, b: np.polyder(x, m)),
        (poly.polyint(p, m, axis="k"), lambda x, b: np.polyint(x, m)),
        (poly.polyint(p, m, 3.0, "k"), lambda x, b: np.polyint(x, m, 3.0)),
        (poly.polyint(p, m, k, "k"), lambda x, b: np.polyint(x, m, k.array[b].item())),
        (poly.polyint(p, m, several, "k"), lambda x, b: np.polyint(x, m, list(several.array[b]) if m else None)),
    ):
        assert found.names == ("a", "b", "k")
        plain = np.asarray(p.array)
        close(found, np.stack([np.stack([theirs(plain[a, :, b], b) for b in range(3)]) for a in range(2)]))


def test_zeros_at_the_ends_are_cut_off():
    x = put([[0, 0, 0, 0], [0, 1, 0, 0], [0, 2, 3, 0]], "a", "k")
    for trim in ("f", "b", "fb", "bf"):
        for axis, dims in (("k", 1), ("a", 0), (("k", "a"), (0, 1)), (None, None)):
            found = poly.trim_zeros(x, trim, axis)
            assert found.names == x.names
            np.testing.assert_array_equal(found.array, np.trim_zeros(np.asarray(x.array), trim, axis=dims))
    assert poly.trim_zeros(x, axis=()).shape == x.shape
    assert poly.trim_zeros(nym.zeros({"k": 3})).shape == {"k": 0}


def test_roots_are_those_of_jnp(draw):
    values = np.array(draw(a=2, k=4, b=2).array)
    values[0, 0, 1], values[1, :2, 0] = 0, 0
    p = put(values, "a", "k", "b")
    found = poly.roots(p, "k")
    assert found.names == ("a", "b", "k") and found.dtype == jnp.complex64
    roots = jax.jit(jax.vmap(jax.vmap(lambda p: jnp.roots(p, strip_zeros=False))))
    close(found, roots(values.transpose(0, 2, 1)))
    assert np.isnan(found.array).sum() == 3
    assert poly.roots(draw(k=1, a=2), "k").shape == {"a": 2, "k": 0}
    assert np.isnan(poly.roots(nym.zeros({"k": 3})).array).all()


def test_coefficients_are_those_of_numpy(draw):
    zeros = draw(k=3, a=2)
    found = poly.poly(zeros, "k")
    assert found.names == ("a", "k")
    close(found, np.stack([np.poly(column) for column in np.asarray(zeros.array).T]))
    close(poly.poly(put([1, 2], "k")), np.poly([1, 2]))
    close(poly.poly(draw(k=0)), np.ones(1))
    found = jax.jit(lambda x: poly.roots(poly.poly(x)).real)(zeros["a", 0])
    np.testing.assert_allclose(np.sort(found.array), np.sort(zeros["a", 0].array), atol=0.05)


def test_powers_are_those_of_numpy(draw):
    x, new = draw(a=2, b=3), nym.Axis("k", 4)
    for increasing in (False, True):
        found = poly.vander(x, new, increasing)
        assert found.names == ("a", "b", "k")
        close(found, np.stack([np.vander(row, 4, increasing) for row in np.asarray(x.array)]))
    whole = poly.vander(put([2, 3], "x"), new)
    assert np.array_equal(whole.array, np.vander([2, 3], 4)) and whole.dtype == jnp.int32


def test_fits_are_those_of_numpy(draw):
    x, y = draw(t=8), draw(a=2, t=8, b=3)
    found = poly.polyfit(x, y, 2)
    assert found.names == ("a", "b", "t")
    columns = np.asarray(y.array).transpose(1, 0, 2).reshape(8, 6)
    close(found, np.polyfit(x.array, columns, 2).T.reshape(2, 3, 3), 2e-3)
    named = poly.polyfit(x, put(columns[:, 0], "t"), 2, rcond=0.1, new_axis="k")
    assert named.names == ("k",)
    close(named, jnp.polyfit(x.array, columns[:, 0], 2, rcond=0.1), 2e-3)
    close(poly.polyfit(put([0, 1, 2], "t"), put([1, 3, 5], "t"), 1), np.array([2.0, 1.0]), 2e-3)


def test_points_and_weights_may_have_other_axes_too(draw):
    x, y, w = draw(t=8, a=2), draw(b=2, a=2, t=8), draw(0.5, 2.5, a=2, t=8)
    found = poly.polyfit(x, y, 1, w=w, axis="t", new_axis="k")
    assert found.names == ("b", "a", "k")
    plain_x, plain_y, plain_w = (np.asarray(array.array) for array in (x, y, w))
    expected = [[np.polyfit(plain_x[:, a], plain_y[b, a], 1, w=plain_w[a]) for a in range(2)] for b in range(2)]
    close(found, expected, 2e-3)


def test_all_that_a_fit_finds_is_that_of_jnp(draw):
    x, y = draw(t=8), draw(t=8, a=3)
    found = poly.polyfit(x, y, 2, full=True, new_axis="k")
    assert [part.names for part in found] == [("a", "k"), ("a",), ("a",), ("a", "k"), ("a",)]
    coefficients, residuals, rank, singular, rcond = jnp.polyfit(x.array, y.array, 2, full=True)
    close(found[0], coefficients.T, 2e-3)
    close(found[1], residuals, 2e-3)
    for part, expected in zip(found[2:], (rank, singular, rcond), strict=True):
        np.testing.assert_allclose(np.asarray(part.array)[1], expected, rtol=1e-4)


@pytest.mark.parametrize("cov", [True, "unscaled"])
def test_covariances_are_those_of_numpy(draw, cov):
    x, y = draw(t=8), draw(t=8, a=2)
    found = poly.polyfit(x, y, 1, cov=cov, new_axis="k", other="l")
    assert [part.names for part in found] == [("a", "k"), ("a", "k", "l")]
    expected = [np.polyfit(x.array, column, 1, cov=cov) for column in np.asarray(y.array).T]
    for part, columns in zip(found, zip(*expected, strict=True), strict=True):
        close(part, np.stack(columns), 2e-3)


def test_sharded_arrays_give_the_same(mapped, draw):
    p, q, x, t = draw(k=4, batch=4, i=2), draw(i=2, k=2, batch=4), draw(batch=4, i=2), draw(k=4)
    fitted = draw(i=2, k=4, batch=4)

    def compute(p, q, x, t, fitted):
        product, fit = poly.polymul(p, q, "k"), poly.polyfit(t, fitted, 1)
        coefficients = poly.poly(q, "k")
        at_roots = poly.polyval(coefficients, q["k", 1], "k")
        assert poly.roots(coefficients, "k").shape == {"i": 2, "batch": 4, "k": 2}
        assert poly.polyint(p, 2, axis="k").shape == {"batch": 4, "i": 2, "k": 6}
        assert poly.vander(fitted, nym.Axis("n", 3)).names == ("i", "k", "batch", "n")
        return product, fit, poly.polyval(p, x, "k"), at_roots

    arrays = p, q, x, t, fitted
    with jax.set_mesh(None):
        expected = jax.device_get(jax.jit(compute)(*arrays))
    assert expected[0].names == ("batch", "i", "k")
    np.testing.assert_allclose(expected[3].array, np.zeros((2, 4)), atol=1e-4)
    for found, array in zip(compute(*nym.shard(arrays)), expected, strict=True):
        assert found.names == array.names
        np.testing.assert_allclose(found.array, array.array, rtol=2e-3, atol=2e-3)


def test_zeros_of_sharded_arrays_are_cut_off(mapped):
    values = np.zeros((4, 6), np.float32)
    values[:, 1:4] = 1
    assert poly.trim_zeros(nym.shard(put(values, "batch", "i")), axis="i").shape == {"batch": 4, "i": 3}


P, D = (put(np.ones(sizes, np.float32), *names) for sizes, names in (((2, 3), ("batch", "power")), ((2,), ("power",))))
X, Y = (put(np.ones(sizes, np.float32), *names) for sizes, names in (((4,), ("time",)), ((2, 4), ("batch", "time"))))
MISSING = "which axis of (batch: 2, power: 3) has the"
REFUSED = [
    (lambda: poly.polyadd(P, P), f"{MISSING} coefficients? Give it as `axis`"),
    (lambda: poly.polymul(D, P), f"{MISSING} coefficients? Give it as `axis`"),
    (lambda: poly.polyder(P), f"{MISSING} coefficients? Give it as `axis`"),
    (lambda: poly.roots(P), f"{MISSING} coefficients? Give it as `axis`"),
    (lambda: poly.poly(P), f"{MISSING} roots? Give it as `axis`"),
    (
        lambda: poly.polysub(D, put(np.ones(3), "degree")),
        "the coefficients are along axis 'power' of (power: 2) and axis 'degree' of (degree: 3); `rename` one of them",
    ),
    (lambda: poly.polydiv(P, P, "powr"), "no axis 'powr' in (batch: 2, power: 3); did you mean 'power'?"),
    (lambda: poly.trim_zeros(P, axis="powr"), "no axis 'powr' in (batch: 2, power: 3); did you mean 'power'?"),
    (lambda: poly.roots(P, "powr"), "no axis 'powr' in (batch: 2, power: 3); did you mean 'power'?"),
    (
        lambda: poly.polyadd(P, put(np.ones((2, 3)), "other", "power"), "power"),
        "cannot broadcast (batch: 2) and (other: ",
    ),
    (lambda: poly.trim_zeros(P, "x"), "`trim` must be 'f', 'b' or 'fb', not 'x'"),
    (
        lambda: poly.polyval(P, D, "power"),
        "axis 'power' of (power: 2) is the axis of the coefficients (batch: 2, power: 3); `rename` one of them",
    ),
    (
        lambda: poly.polyint(P, 3, D, "power"),
        "3 integrations need 3 constants along axis 'power', not 2 as in (power: 2)",
    ),
    (lambda: poly.polyder(D, -1), "`m` must not be negative, it is -1"),
    (lambda: poly.polyint(D, -2), "`m` must not be negative, it is -2"),
    (lambda: poly.polyfit(X, put(np.ones(4), "tiem"), 1), "no axis 'time' in (tiem: 4); did you mean 'tiem'?"),
    (
        lambda: poly.polyfit(X, put(np.ones(3), "time"), 1),
        "axis 'time' has size 4 and size 3 in (time: 4) and (time: 3)",
    ),
    (lambda: poly.polyfit(Y, Y, 1), "which axis of (batch: 2, time: 4) has the points? Give it as `axis`"),
    (
        lambda: poly.polyfit(put([], "time"), put([], "time"), 1),
        "there are 0 points along axis 'time' of (time: 0), at least one is needed",
    ),
    (lambda: poly.polyfit(X, Y, 1, new_axis="batch"), "axis 'batch' occurs more than once in (batch, batch)"),
    (
        lambda: poly.polyfit(X, Y, 3, cov=True, other="k"),
        "there are 4 points along axis 'time' of (time: 4), more than 4 are needed to scale the covariance",
    ),
    (
        lambda: poly.polyfit(X, Y, 1, cov=True, new_axis="k"),
        "the covariance has axis 'k' of the coefficients twice: name the second as `other`",
    ),
    (
        lambda: poly.polyfit(X, Y, 1, cov=True, new_axis="k", other="k"),
        "axis 'k' is given more than once in (k, k)",
    ),
    (lambda: poly.polyfit(X, Y, -1), "`deg` must not be negative, it is -1"),
    (lambda: poly.vander(X, nym.Axis("time", 3)), "axis 'time' occurs more than once in (time, time)"),
]
NOT_NAMED, NO_NAMES = "A named array is needed, not an array of shape", "A plain array of shape (2,) has no axis names"
OF_ANOTHER_TYPE = [
    (lambda: poly.polyadd(P, P.array, "power"), f"{NOT_NAMED} (2, 3)"),
    (lambda: poly.roots(P.array), f"{NOT_NAMED} (2, 3)"),
    (lambda: poly.poly(P.array), f"{NOT_NAMED} (2, 3)"),
    (lambda: poly.polyfit(X, Y.array, 1), f"{NOT_NAMED} (2, 4)"),
    (lambda: poly.vander(D.array, nym.Axis("k", 3)), f"{NOT_NAMED} (2,)"),
    (lambda: poly.polyval(P, D.array, "power"), NO_NAMES),
    (lambda: poly.polyint(P, 2, D.array, "power"), NO_NAMES),
    (lambda: poly.polyder(D, 1.5), "`m` must be an integer, not float."),
    (lambda: poly.polyfit(X, Y, 1.0), "`deg` must be an integer, not float."),
    (lambda: poly.vander(X, "k"), "A new axis needs a size: give `Axis('k', size)` instead of 'k'"),
    (lambda: jax.jit(poly.trim_zeros)(P), "`trim_zeros` of (batch: 2, power: 3) has a size that depends on values"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_errors_say_which_axis_is_meant_and_what_does_not_fit(call, message):
    with refusal(message):
        call()


@pytest.mark.parametrize(("call", "message"), OF_ANOTHER_TYPE)
def test_what_is_of_another_type_is_refused(call, message):
    with refusal(message, TypeError):
        call()

"""Sums, products and quotients of polynomials: what jnp computes for each, whatever the order of the axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


@pytest.mark.parametrize("name", ["polyadd", "polysub", "polymul"])
def test_each_pair_is_computed_as_jnp_does(draw, name):
    theirs = getattr(jnp, name)
    for p, q in (
        (draw(a=2, k=3, b=2), draw(k=2, b=2)),
        (draw(k=2, a=2), draw(b=2, k=4, a=2)),
        (draw(k=3), draw(k=3, a=2)),
    ):
        found = getattr(nym.poly, name)(p, q, "k")
        loop = tuple(one for one in max(p.names, q.names, key=len) if one != "k")
        assert found.names == (*loop, "k")
        sizes = {axis.name: axis.size for axis in found.axes}
        for at in np.ndindex(*(sizes[one] for one in loop)):
            index = dict(zip(loop, at, strict=True))
            one, other = (x[{n: i for n, i in index.items() if n in x.names}].array for x in (p, q))
            np.testing.assert_allclose(found[index].array, theirs(one, other), rtol=1e-5, atol=1e-5)


def test_quotients_and_remainders_are_those_of_jnp(draw):
    p, q = draw(k=4, a=2), nym.abs(draw(b=2, a=2, k=2)) + 1
    quotient, remainder = nym.poly.polydiv(p, q, "k")
    assert quotient.shape == {"b": 2, "a": 2, "k": 3} and remainder.shape == {"b": 2, "a": 2, "k": 4}
    for b, a in np.ndindex(2, 2):
        expected = jnp.polydiv(p["a", a].array, q.array[b, a])
        for found, one in zip((quotient, remainder), expected, strict=True):
            np.testing.assert_allclose(found.array[b, a], one, rtol=1e-4, atol=1e-4)
    assert [x.shape for x in nym.poly.polydiv(q, p, "k")] == [(2, 2, 1), (2, 2, 2)]


def test_the_only_axis_is_that_of_the_coefficients():
    p, q = nym.named([1, 2, 3], "k"), nym.named([1, 4], "k")
    for name in ("polyadd", "polysub", "polymul"):
        found = getattr(nym.poly, name)(p, q)
        expected = getattr(jnp, name)(p.array, q.array)
        assert found.names == ("k",) and found.dtype == expected.dtype and np.array_equal(found.array, expected)


def test_sharded_polynomials_are_multiplied(mapped, draw):
    p, q = draw(k=4, batch=4, i=2), draw(i=2, k=2, batch=4)
    found = nym.poly.polymul(nym.shard(p), nym.shard(q), "k")
    with jax.set_mesh(None):
        expected = nym.poly.polymul(*jax.device_get((p, q)), "k")
    assert found.names == ("batch", "i", "k")
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-5, atol=1e-5)


def test_zeros_at_the_ends_are_cut_off():
    x = nym.named([[0, 0, 0, 0], [0, 1, 0, 0], [0, 2, 3, 0]], ("a", "k"))
    for trim in ("f", "b", "fb", "bf"):
        for axis, dims in (("k", 1), ("a", 0), (("k", "a"), (0, 1)), (None, None)):
            found = nym.poly.trim_zeros(x, trim, axis)
            assert found.names == x.names
            np.testing.assert_array_equal(found.array, jnp.trim_zeros(x.array, trim, axis=dims))
    assert nym.poly.trim_zeros(x, axis=()).shape == x.shape
    assert nym.poly.trim_zeros(nym.zeros({"k": 3})).shape == {"k": 0}


def test_zeros_of_sharded_arrays_are_cut_off(mapped):
    x = nym.shard(nym.named(jnp.zeros((4, 6)).at[:, 1:4].set(1.0), ("batch", "i")))
    assert nym.poly.trim_zeros(x, axis="i").shape == {"batch": 4, "i": 3}


def test_errors_say_which_axis_is_meant(draw):
    p = draw(batch=2, power=3)
    for wrong in (lambda: nym.poly.polyadd(p, p), lambda: nym.poly.polymul(draw(power=2), p)):
        with refusal("which axis of (batch: 2, power: 3) has the coefficients? Give it as `axis`"):
            wrong()
    with refusal(
        "the coefficients are along axis 'power' of (power: 2) and axis 'degree' of (degree: 3); `rename` one of them"
    ):
        nym.poly.polysub(draw(power=2), draw(degree=3))
    with refusal("no axis 'powr' in (batch: 2, power: 3); did you mean 'power'?"):
        nym.poly.polydiv(p, p, "powr")
    with refusal("cannot broadcast (batch: 2) and (other: 2)"):
        nym.poly.polyadd(p, draw(other=2, power=3), "power")
    with refusal("A named array is needed, not an array of shape (2, 3)", TypeError):
        nym.poly.polyadd(p, p.array, "power")


def test_errors_of_trim_zeros_say_what_it_needs(draw):
    p = draw(batch=2, power=3)
    with refusal("`trim` must be 'f', 'b' or 'fb', not 'x'"):
        nym.poly.trim_zeros(p, "x")
    with refusal("`trim_zeros` of (batch: 2, power: 3) has a size that depends on values", TypeError):
        jax.jit(nym.poly.trim_zeros)(p)
    with refusal("no axis 'powr' in (batch: 2, power: 3); did you mean 'power'?"):
        nym.poly.trim_zeros(p, axis="powr")

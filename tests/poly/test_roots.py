"""Roots of polynomials and polynomials of roots: what jnp finds for each, whatever the order of the axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


def close(found, expected):
    assert found.array.shape == expected.shape and found.dtype == expected.dtype
    np.testing.assert_allclose(found.array, expected, rtol=1e-4, atol=1e-4)


def test_roots_are_those_of_jnp(draw):
    p = draw(a=2, k=4, b=2)
    p = nym.named(p.array.at[0, 0, 1].set(0.0).at[1, :2, 0].set(0.0), p.names)
    found = nym.poly.roots(p, "k")
    assert found.names == ("a", "b", "k")
    expected = [[jnp.roots(p.array[a, :, b], strip_zeros=False) for b in range(2)] for a in range(2)]
    close(found, jnp.asarray(expected))
    assert jnp.isnan(found.array).sum() == 3


def test_constants_have_no_roots(draw):
    assert nym.poly.roots(draw(k=1, a=2), "k").shape == {"a": 2, "k": 0}
    assert jnp.isnan(nym.poly.roots(nym.zeros({"k": 3})).array).all()


def test_coefficients_are_those_of_jnp(draw):
    zeros = draw(k=3, a=2)
    found = nym.poly.poly(zeros, "k")
    assert found.names == ("a", "k")
    close(found, jnp.stack([jnp.poly(zeros.array[:, a]) for a in range(2)]))
    close(nym.poly.poly(nym.named([1, 2], "k")), jnp.poly(jnp.array([1, 2])))
    close(nym.poly.poly(draw(k=0)), jnp.ones(1))


def test_roots_are_found_inside_jit(draw):
    zeros = nym.sort(draw(k=3), "k")
    found = jax.jit(lambda x: nym.poly.roots(nym.poly.poly(x)).real)(zeros)
    np.testing.assert_allclose(np.sort(found.array), zeros.array, atol=0.05)


def test_roots_of_sharded_arrays_are_the_same(mapped, draw):
    zeros = draw(batch=4, k=3, i=2)
    coefficients = nym.poly.poly(nym.shard(zeros), "k")
    values = nym.poly.polyval(coefficients, nym.shard(zeros["k", 1]), "k")
    np.testing.assert_allclose(values.array, np.zeros((4, 2)), atol=1e-4)
    assert nym.poly.roots(coefficients, "k").shape == {"batch": 4, "i": 2, "k": 3}


@pytest.mark.parametrize(("name", "what"), [("roots", "coefficients"), ("poly", "roots")])
def test_errors_say_which_axis_is_meant(draw, name, what):
    x, find = draw(batch=2, power=3), getattr(nym.poly, name)
    with refusal(f"which axis of (batch: 2, power: 3) has the {what}? Give it as `axis`"):
        find(x)
    with refusal("no axis 'powr' in (batch: 2, power: 3); did you mean 'power'?"):
        find(x, "powr")
    with refusal("A named array is needed, not an array of shape (2, 3)", TypeError):
        find(x.array)

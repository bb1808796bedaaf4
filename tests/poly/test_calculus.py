"""Values, derivatives and integrals of polynomials: what jnp computes for each, whatever the order of the axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


def close(found, expected):
    assert found.array.shape == expected.shape
    np.testing.assert_allclose(found.array, expected, rtol=1e-4, atol=1e-5)


def test_values_are_those_of_jnp(draw):
    p, x = draw(k=4), draw(a=2, b=3)
    found = nym.poly.polyval(p, x)
    assert found.names == ("a", "b")
    close(found, jnp.polyval(p.array, x.array))
    for one in (2.0, np.float32(2), nym.named(2.0, ())):
        close(nym.poly.polyval(p, one), jnp.polyval(p.array, 2.0))
    whole = nym.named([1, 2, 3], "k")
    assert nym.poly.polyval(whole, 2).dtype == jnp.polyval(whole.array, 2).dtype == jnp.int32


def test_each_polynomial_has_its_values(draw):
    p, x = draw(a=2, k=4, b=3), draw(b=3)
    found = nym.poly.polyval(p, x, "k")
    assert found.names == ("a", "b")
    close(found, jnp.polyval(jnp.moveaxis(p.array, 1, 0), x.array[None]))
    more = draw(b=3, c=2, a=2)
    found = nym.poly.polyval(p, more, nym.Axis("k", 4))
    assert found.names == ("b", "c", "a")
    close(found, jnp.polyval(jnp.transpose(p.array, (1, 2, 0))[:, :, None, :], more.array))


@pytest.mark.parametrize("m", [0, 1, 2, 5])
def test_derivatives_and_integrals_are_those_of_jnp(draw, m):
    p, k = draw(a=2, k=4, b=3), draw(b=3)
    several = draw(b=3, k=m)
    for found, theirs in (
        (nym.poly.polyder(p, m, "k"), lambda one, b: jnp.polyder(one, m)),
        (nym.poly.polyint(p, m, axis="k"), lambda one, b: jnp.polyint(one, m)),
        (nym.poly.polyint(p, m, 3.0, "k"), lambda one, b: jnp.polyint(one, m, 3.0)),
        (nym.poly.polyint(p, m, k, "k"), lambda one, b: jnp.polyint(one, m, k.array[b])),
        (nym.poly.polyint(p, m, several, "k"), lambda one, b: jnp.polyint(one, m, several.array[b] if m else None)),
    ):
        assert found.names == ("a", "b", "k")
        close(found, jnp.stack([jnp.stack([theirs(p.array[a, :, b], b) for b in range(3)]) for a in range(2)]))


def test_derivatives_undo_integrals(draw):
    p = draw(k=4)
    close(nym.poly.polyder(nym.poly.polyint(p, 2, 1.0), 2), p.array)


def test_values_of_sharded_arrays_are_the_same(mapped, draw):
    p, x = draw(i=2, k=4), draw(batch=4, i=2)
    expected = jnp.polyval(p.array.T[:, None], x.array)
    found = nym.poly.polyval(nym.shard(p), nym.shard(x), "k")
    np.testing.assert_allclose(found.array, jax.device_get(expected), rtol=1e-4, atol=1e-5)
    assert nym.poly.polyint(nym.shard(p), 2, axis="k").shape == {"i": 2, "k": 6}


def test_errors_say_what_does_not_fit(draw):
    p = draw(batch=2, power=3)
    with refusal("which axis of (batch: 2, power: 3) has the coefficients? Give it as `axis`"):
        nym.poly.polyder(p)
    with refusal(
        "axis 'power' of (power: 3) is the axis of the coefficients (batch: 2, power: 3); `rename` one of them"
    ):
        nym.poly.polyval(p, draw(power=3), "power")
    with refusal("A plain array of shape (3,) has no axis names", TypeError):
        nym.poly.polyval(p, jnp.ones(3), "power")
    with refusal("2 integrations need 2 constants along axis 'power', not 3 as in (power: 3)"):
        nym.poly.polyint(p, 2, draw(power=3), "power")
    with refusal("A plain array of shape (2,) has no axis names", TypeError):
        nym.poly.polyint(p, 2, jnp.ones(2), "power")


def test_errors_say_how_often_is_possible(draw):
    p = draw(power=3)
    with refusal("`m` must not be negative, it is -1"):
        nym.poly.polyder(p, -1)
    with refusal("`m` must not be negative, it is -2"):
        nym.poly.polyint(p, -2)
    with refusal("`m` must be an integer, not float.", TypeError):
        nym.poly.polyder(p, 1.5)

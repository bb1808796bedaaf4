"""Every function that takes a key, a shape and parameters draws what that of `jax.random` draws for positions."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym


A, B = nym.Axis("a", 3), nym.Axis("b", 2)
KEY = jax.random.key(3)

# Values that any parameter of these names may have; other parameters are between 0 and 1.
RANGES = {"minval": (-9, 0), "maxval": (1, 9), "lower": (-2, 0), "upper": (0, 2), "n": (1, 20), "lam": (0, 20)}
RANGES |= {"left": (-3, -1), "mode": (-1, 1), "right": (1, 3)}
# These have axes that are no axes of the shape, and tests of their own.
STRUCTURED = {"ball", "categorical", "choice", "dirichlet", "multinomial", "multivariate_normal", "orthogonal"}
STRUCTURED |= {"permutation", "split", "fold_in"}


def public():
    return {name for name, thing in vars(nym.random).items() if inspect.isfunction(thing) and not name.startswith("_")}


def parameters(name):
    return [
        one for one in inspect.signature(getattr(nym.random, name)).parameters if one not in ("key", "shape", "dtype")
    ]


def value(name, parameter, shape):
    kind = np.int32 if name == "randint" else np.float32
    low, high = RANGES.get(parameter, (0.1, 0.9))
    drawn = np.random.default_rng(len(parameter)).uniform(low, high, size=shape)
    return jnp.asarray(drawn.astype(kind))


def expected(name, values, dtype=None):
    return getattr(jax.random, name)(KEY, shape=(3, 2), **values, **({} if dtype is None else {"dtype": dtype}))


def agree(found, wanted):
    assert found.names == ("a", "b") and found.dtype == wanted.dtype
    np.testing.assert_allclose(found.array, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", sorted(public() - STRUCTURED))
def test_values_are_those_of_jax(name):
    draw, known = getattr(nym.random, name), parameters(name)
    first = {one: value(name, one, (3, 2) if i == 0 else (1, 2)) for i, one in enumerate(known)}
    named = {
        one: nym.named(array.T if i == 0 else array[0], ("b", "a") if i == 0 else "b")
        for i, (one, array) in enumerate(first.items())
    }
    agree(draw(KEY, (A, B), **named), expected(name, first))


@pytest.mark.parametrize("name", sorted(public() - STRUCTURED))
def test_signatures_have_the_key_the_shape_and_then_the_parameters(name):
    own, theirs = (inspect.signature(getattr(one, name)).parameters for one in (nym.random, jax.random))
    assert list(own)[:2] == ["key", "shape"]
    assert [one for one in theirs if one in own and one not in ("shape", "dtype")] == ["key", *parameters(name)]
    assert ("dtype" in own) == ("dtype" in theirs)


@pytest.mark.parametrize(("name", "dtype"), [("randint", jnp.int16), ("gumbel", jnp.float16)], ids=["int", "float"])
def test_values_in_16_bits_are_rounded(name, dtype):
    values = {one: value(name, one, ()).item() for one in parameters(name)}
    agree(getattr(nym.random, name)(KEY, (A, B), **values, dtype=dtype), expected(name, values).astype(dtype))

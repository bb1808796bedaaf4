"""The transforms: what `jnp.fft` computes, over axes found by name, in any order, of any number of points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft

import axonym as nym

from ..refusals import refusal


COMPLEX = ["fft", "ifft", "irfft", "hfft"]
REAL = ["rfft", "ihfft"]
NORMS = [None, "backward", "ortho", "forward"]


def equal(found, expected):
    assert found.dtype == expected.dtype and found.array.shape == expected.shape
    np.testing.assert_allclose(found.array, expected, atol=1e-4, rtol=1e-4)


def given(name, x):
    return x + 1j * x**2 if name in COMPLEX else x


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", COMPLEX + REAL)
def test_one_axis_is_transformed_wherever_it_is(draw, name, norm):
    x = given(name, draw(a=2, t=6, b=3))
    found = getattr(nym.fft, name)(x, "t", norm)
    assert found.names == x.names
    equal(found, getattr(jnp.fft, name)(x.array, axis=1, norm=norm))


@pytest.mark.parametrize("points", [4, 9])
@pytest.mark.parametrize("name", COMPLEX + REAL)
def test_the_number_of_points_is_given_by_an_axis_or_a_mapping(draw, name, points):
    x = given(name, draw(t=6, a=2))
    expected = getattr(jnp.fft, name)(x.array, n=points, axis=0)
    for axis in (nym.Axis("t", points), {"t": points}):
        equal(getattr(nym.fft, name)(x, axis), expected)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", COMPLEX + REAL)
def test_floats_of_16_bits_are_transformed_in_float32(draw, name, dtype):
    x = draw(t=6, a=2).astype(dtype)
    equal(getattr(nym.fft, name)(x, "t"), getattr(jnp.fft, name)(x.array.astype(jnp.float32), axis=0))


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_several_axes_are_transformed_in_the_order_given(draw, name):
    x, transform, theirs = given(name, draw(t=4, a=3, b=6)), getattr(nym.fft, name), getattr(jnp.fft, f"{name}n")
    for axis, dims, sizes in (
        (("b", "t"), (2, 0), None),
        (("t", "b"), (0, 2), None),
        ({"b": 4, "a": 5}, (2, 1), (4, 5)),
        (None, (0, 1, 2), None),
    ):
        found = transform(x, axis)
        assert found.names == x.names
        equal(found, theirs(x.array, s=sizes, axes=dims))
    equal(transform(x, {"t": None, "b": 8}), theirs(x.array, s=(4, 8), axes=(0, 2)))


@pytest.mark.parametrize("norm", NORMS)
def test_several_axes_of_symmetric_arrays_are_transformed_as_scipy_does(draw, norm):
    x = draw(t=4, a=3, b=6)
    equal(nym.fft.ihfft(x, ("b", "t"), norm), scipy.fft.ihfftn(np.asarray(x.array), axes=(2, 0), norm=norm))
    y = given("hfft", x)
    equal(nym.fft.hfft(y, ("b", "t"), norm), scipy.fft.hfftn(np.asarray(y.array), axes=(2, 0), norm=norm))


def test_transforms_and_their_inverses_undo_each_other(draw):
    T = nym.Axis("t", 5)
    x = draw(a=2, t=5)
    for forth, back in (("rfft", "irfft"), ("ihfft", "hfft"), ("fft", "ifft")):
        found = getattr(nym.fft, back)(getattr(nym.fft, forth)(x, T), T)
        np.testing.assert_allclose(found.array, x.array, atol=1e-5)


def test_transforms_are_those_of_jnp_inside_jit_and_under_grad(draw):
    x = draw(t=6, a=2)

    def power(x):
        return nym.square(nym.abs(nym.fft.rfft(x, "t"))).sum().array

    def theirs(x):
        return jnp.square(jnp.abs(jnp.fft.rfft(x, axis=0))).sum()

    np.testing.assert_allclose(jax.jit(power)(x), theirs(x.array), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(power))(x).array, jax.grad(theirs)(x.array), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", ["t", ("i", "t")], ids=["other", "divided"])
@pytest.mark.parametrize("name", ["fft", "irfft"])
def test_sharded_arrays_are_transformed(mapped, draw, name, axis):
    x = nym.shard(draw(t=4, batch=4, i=6))
    found = getattr(nym.fft, name)(x, axis)
    dims = (0,) if axis == "t" else (2, 0)
    assert found.names == x.names
    equal(found, getattr(jnp.fft, f"{name}n")(jax.device_get(x.array), axes=dims))
    if jax.typeof(x.array).sharding.spec[1]:
        assert tuple(found.sharding.spec)[1:] == ("data", "model")


def test_errors_say_what_cannot_be_transformed(draw):
    x = draw(time=1, batch=2)
    with refusal("no axis 'tiem' in (time: 1, batch: 2); did you mean 'time'?"):
        nym.fft.fft(x, "tiem")
    with refusal("axis 'time' is given more than once in (time, time)"):
        nym.fft.fft(x, ("time", "time"))
    with refusal("there is no axis to transform in (time: 1, batch: 2)"):
        nym.fft.fft(x, ())
    with refusal(
        "a transform along axis 'time' of (time: 1, batch: 2) needs at least one point; give their number with "
        "`Axis('time', size)`"
    ):
        nym.fft.irfft(x, "time")
    with refusal("`norm` must be 'backward', 'ortho' or 'forward', not 'other'"):
        nym.fft.fft(x, "time", norm="other")
    for name, instead in (("rfft", "fft"), ("ihfft", "ifft")):
        with refusal(f"`{name}` needs a real array, not complex64 (time: 1, batch: 2); use `{instead}`", TypeError):
            getattr(nym.fft, name)(x * 1j, "time")
    with refusal("A named array is needed, not an array of shape (1, 2)", TypeError):
        nym.fft.fft(x.array)

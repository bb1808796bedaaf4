"""The frequencies of transforms and their order: what `jnp.fft` says, along axes found by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as nym

from ..refusals import refusal


@pytest.mark.parametrize("size", [1, 4, 5])
def test_frequencies_are_those_of_jnp(size):
    T = nym.Axis("t", size)
    for d in (1.0, 0.25, nym.named(0.5, ())):
        plain = d.array if isinstance(d, nym.NamedArray) else d
        for own, theirs in ((nym.fft.fftfreq, jnp.fft.fftfreq), (nym.fft.rfftfreq, jnp.fft.rfftfreq)):
            found, expected = own(T, d), theirs(size, plain)
            assert found.names == ("t",) and found.dtype == expected.dtype
            np.testing.assert_array_equal(found.array, expected)


def test_frequencies_belong_to_the_elements_of_transforms():
    T = nym.Axis("t", 6)
    x = nym.ones((nym.Axis("a", 2), T))
    assert nym.fft.fftfreq(T).axes == nym.fft.fft(x, T).axes[1:]
    assert nym.fft.rfftfreq(T).axes == nym.fft.rfft(x, T).axes[1:]


def test_the_axis_of_half_the_frequencies_may_have_another_name():
    T = nym.Axis("t", 6)
    for new in ("f", nym.Axis("f", 4)):
        assert nym.fft.rfftfreq(T, new_axis=new).axes == (nym.Axis("f", 4),)
    with refusal("the axis of the frequencies of (t: 6) has size 4, not 6 as in (f: 6)"):
        nym.fft.rfftfreq(T, new_axis=nym.Axis("f", 6))


@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
def test_errors_say_what_has_no_frequencies(name):
    make = getattr(nym.fft, name)
    with refusal("A new axis needs a size: give `Axis('t', size)` instead of 't'", TypeError):
        make("t")
    with refusal("axis (t: 0) needs at least one point to have frequencies"):
        make(nym.Axis("t", 0))
    with refusal("`d` must be a scalar, not an array with axes (t: 4)"):
        make(nym.Axis("t", 4), nym.ones({"t": 4}))
    with refusal("A plain array of shape (4,) has no axis names", TypeError):
        make(nym.Axis("t", 4), jnp.ones(4))


@pytest.mark.parametrize("name", ["fftshift", "ifftshift"])
def test_shifts_are_those_of_jnp(draw, name):
    x, shift, theirs = draw(a=3, t=5, b=4), getattr(nym.fft, name), getattr(jnp.fft, name)
    for axis, dims in (("t", 1), (("b", "a"), (2, 0)), (None, None), ({"t": 5}, 1), ((), ())):
        found = shift(x, axis)
        assert found.names == x.names
        np.testing.assert_array_equal(found.array, theirs(x.array, axes=dims))


def test_sharded_arrays_are_shifted(mapped, draw):
    x = nym.shard(draw(t=5, batch=4, i=6))
    found = nym.fft.fftshift(x, ("t", "i"))
    np.testing.assert_array_equal(found.array, jnp.fft.fftshift(jax.device_get(x.array), axes=(0, 2)))
    assert found.sharding.is_equivalent_to(x.sharding, 3) or not jax.typeof(x.array).sharding.spec[1]


def test_frequencies_are_sharded_by_the_mapping(mapped):
    for found in (nym.fft.fftfreq(nym.Axis("i", 6)), nym.fft.rfftfreq(nym.Axis("t", 6), new_axis="batch")):
        wanted = nym.sharding_for_axis(found.axes)
        assert any(wanted.spec) and found.sharding.is_equivalent_to(wanted, 1)


def test_errors_of_shifts_say_which_axis(draw):
    x = draw(time=3, batch=2)
    with refusal("no axis 'tiem' in (time: 3, batch: 2); did you mean 'time'?"):
        nym.fft.fftshift(x, "tiem")
    with refusal("axis 'time' has size 3 here, 4 was asked for"):
        nym.fft.ifftshift(x, nym.Axis("time", 4))
    with refusal("A named array is needed, not an array of shape (3, 2)", TypeError):
        nym.fft.fftshift(x.array)

"""Transforms, frequencies and shifts: what NumPy and SciPy compute, over axes found by name, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft

import axonym as nym

from ..refusals import refusal


COMPLEX = ["fft", "ifft", "irfft", "hfft"]
REAL = ["rfft", "ihfft"]
NORMS = ["backward", "ortho", "forward"]
each_transform = pytest.mark.parametrize("name", COMPLEX + REAL)
T = nym.Axis("t", 6)


@pytest.fixture
def mapped(mesh):
    """Both meshes, with a mapping in force that divides `batch` by 4 and `i` by 2."""
    with nym.axis_mapping({"batch": "data", "i": "model"}):
        yield mesh


def equal(found, expected):
    expected = np.asarray(expected)
    assert (found.dtype.kind, found.array.shape) == (expected.dtype.kind, expected.shape)
    assert found.dtype in (jnp.float32, jnp.complex64)
    np.testing.assert_allclose(found.array, expected, atol=1e-4, rtol=1e-4)


def given(name, x):
    values = np.asarray(x.array)
    return nym.named(jax.device_put(values + 1j * values**2), x.names) if name in COMPLEX else x


@each_transform
def test_one_axis_is_transformed_wherever_it_is(draw, name):
    x = given(name, draw(a=2, t=6, b=3))
    transform, theirs = getattr(nym.fft, name), getattr(np.fft, name)
    for norm in NORMS:
        found = transform(x, "t", norm)
        assert found.names == x.names
        equal(found, theirs(x.array, axis=1, norm=norm))
    equal(transform(x, "t"), theirs(x.array, axis=1))
    for points, axis in ((4, nym.Axis("t", 4)), (9, {"t": 9})):
        equal(transform(x, axis), theirs(x.array, n=points, axis=1))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@each_transform
def test_floats_of_16_bits_are_transformed_in_float32(draw, name, dtype):
    values = np.asarray(draw(t=6, a=2).array).astype(dtype)
    x = nym.named(jax.device_put(values), ("t", "a"))
    equal(getattr(nym.fft, name)(x, "t"), getattr(np.fft, name)(values.astype(np.float32), axis=0))


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_several_axes_are_transformed_in_the_order_given(draw, name):
    x, transform, theirs = given(name, draw(t=4, a=3, b=6)), getattr(nym.fft, name), getattr(scipy.fft, f"{name}n")
    for axis, dims, sizes in (
        (("b", "t"), (2, 0), None),
        (("t", "b"), (0, 2), None),
        ({"b": 4, "a": 5}, (2, 1), (4, 5)),
        (None, (0, 1, 2), None),
        ({"t": None, "b": 8}, (0, 2), (4, 8)),
    ):
        found = transform(x, axis)
        assert found.names == x.names
        equal(found, theirs(np.asarray(x.array), s=sizes, axes=dims))
    equal(transform(x, ("b", "t"), "ortho"), theirs(np.asarray(x.array), axes=(2, 0), norm="ortho"))


def test_transforms_and_their_inverses_undo_each_other(draw):
    x = draw(a=2, t=5)
    for forth, back in (("rfft", "irfft"), ("ihfft", "hfft"), ("fft", "ifft")):
        found = getattr(nym.fft, back)(getattr(nym.fft, forth)(x, "t"), nym.Axis("t", 5))
        np.testing.assert_allclose(found.array, x.array, atol=1e-5)


def test_transforms_are_those_of_jnp_inside_jit_and_under_grad(draw):
    def power(x):
        return nym.square(nym.abs(nym.fft.rfft(x, "t"))).sum().array

    def theirs(x):
        return jnp.square(jnp.abs(jnp.fft.rfft(x, axis=0))).sum()

    x = draw(t=6, a=2)
    found, expected = jax.jit(lambda x: (jax.value_and_grad(power)(x), jax.value_and_grad(theirs)(x.array)))(x)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1].array, expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", ["t", ("i", "t")], ids=["other", "divided"])
@pytest.mark.parametrize("name", ["fft", "irfft"])
def test_sharded_arrays_are_transformed(mapped, draw, name, axis):
    x = nym.shard(draw(t=4, batch=4, i=6))
    found = getattr(nym.fft, name)(x, axis)
    assert found.names == x.names
    equal(found, getattr(np.fft, f"{name}n")(np.asarray(x.array), axes=(0,) if axis == "t" else (2, 0)))
    if jax.typeof(x.array).sharding.spec[1]:
        assert tuple(found.sharding.spec)[1:] == ("data", "model")


@pytest.mark.parametrize("size", [1, 4, 5])
def test_frequencies_are_those_of_numpy(size):
    axis = nym.Axis("t", size)
    for d, plain in ((1.0, 1.0), (nym.named(0.5, ()), 0.5)):
        for name in ("fftfreq", "rfftfreq"):
            found, expected = getattr(nym.fft, name)(axis, d), getattr(np.fft, name)(size, plain)
            assert found.names == ("t",) and found.dtype == jnp.float32
            np.testing.assert_allclose(found.array, expected, rtol=1e-6)


def test_frequencies_belong_to_the_elements_of_transforms():
    x = nym.ones((nym.Axis("a", 2), T))
    assert nym.fft.fftfreq(T).axes == nym.fft.fft(x, T).axes[1:]
    assert nym.fft.rfftfreq(T).axes == nym.fft.rfft(x, T).axes[1:]
    for new in ("f", nym.Axis("f", 4)):
        assert nym.fft.rfftfreq(T, new_axis=new).axes == (nym.Axis("f", 4),)


def test_frequencies_are_sharded_by_the_mapping(mapped):
    for found in (nym.fft.fftfreq(nym.Axis("i", 6)), nym.fft.rfftfreq(T, new_axis="batch")):
        wanted = nym.sharding_for_axis(found.axes)
        assert any(wanted.spec) and found.sharding.is_equivalent_to(wanted, 1)


@pytest.mark.parametrize("name", ["fftshift", "ifftshift"])
def test_shifts_are_those_of_numpy(draw, name):
    x, shift, theirs = draw(a=3, t=5, b=4), getattr(nym.fft, name), getattr(np.fft, name)
    for axis, dims in (("t", 1), (("b", "a"), (2, 0)), (None, None), ({"t": 5}, 1), ((), ())):
        found = shift(x, axis)
        assert found.names == x.names
        np.testing.assert_array_equal(found.array, theirs(x.array, axes=dims))


def test_sharded_arrays_are_shifted(mapped, draw):
    x = nym.shard(draw(t=5, batch=4, i=6))
    found = nym.fft.fftshift(x, ("t", "i"))
    np.testing.assert_array_equal(found.array, np.fft.fftshift(x.array, axes=(0, 2)))
    assert found.sharding.is_equivalent_to(x.sharding, 3) or not jax.typeof(x.array).sharding.spec[1]


X = nym.named(np.ones((1, 2), np.float32), ("time", "batch"))
REFUSED = [
    (lambda: nym.fft.fft(X, "tiem"), "no axis 'tiem' in (time: 1, batch: 2); did you mean 'time'?"),
    (lambda: nym.fft.fft(X, ("time", "time")), "axis 'time' is given more than once in (time, time)"),
    (lambda: nym.fft.fft(X, ()), "there is no axis to transform in (time: 1, batch: 2)"),
    (
        lambda: nym.fft.irfft(X, "time"),
        "a transform along axis 'time' of (time: 1, batch: 2) needs at least one point; give their number with "
        "`Axis('time', size)`",
    ),
    (lambda: nym.fft.fft(X, "time", norm="other"), "`norm` must be 'backward', 'ortho' or 'forward', not 'other'"),
    (lambda: nym.fft.fftshift(X, "tiem"), "no axis 'tiem' in (time: 1, batch: 2); did you mean 'time'?"),
    (lambda: nym.fft.ifftshift(X, nym.Axis("time", 4)), "axis 'time' has size 1 here, 4 was asked for"),
    (
        lambda: nym.fft.rfftfreq(T, new_axis=nym.Axis("f", 6)),
        "the axis of the frequencies of (t: 6) has size 4, not 6 as in (f: 6)",
    ),
    (lambda: nym.fft.fftfreq(T, nym.ones({"t": 4})), "`d` must be a scalar, not an array with axes (t: 4)"),
    (lambda: nym.fft.fftfreq(nym.Axis("t", 0)), "axis (t: 0) needs at least one point to have frequencies"),
    (lambda: nym.fft.rfftfreq(nym.Axis("t", 0)), "axis (t: 0) needs at least one point to have frequencies"),
]
REAL_NEEDED = "needs a real array, not complex64 (time: 1, batch: 2); use"
OF_ANOTHER_TYPE = [
    (lambda: nym.fft.rfft(X * 1j, "time"), f"`rfft` {REAL_NEEDED} `fft`"),
    (lambda: nym.fft.ihfft(X * 1j, "time"), f"`ihfft` {REAL_NEEDED} `ifft`"),
    (lambda: nym.fft.fft(X.array), "A named array is needed, not an array of shape (1, 2)"),
    (lambda: nym.fft.fftshift(X.array), "A named array is needed, not an array of shape (1, 2)"),
    (lambda: nym.fft.fftfreq("t"), "A new axis needs a size: give `Axis('t', size)` instead of 't'"),
    (lambda: nym.fft.rfftfreq("t"), "A new axis needs a size: give `Axis('t', size)` instead of 't'"),
    (lambda: nym.fft.fftfreq(T, np.ones(4)), "A plain array of shape (4,) has no axis names"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_errors_say_what_cannot_be_transformed(call, message):
    with refusal(message):
        call()


@pytest.mark.parametrize(("call", "message"), OF_ANOTHER_TYPE)
def test_what_is_no_named_array_or_no_axis_is_refused(call, message):
    with refusal(message, TypeError):
        call()

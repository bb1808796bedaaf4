"""Element types, integers and numbers that do not fit are refused by a sentence with their name and value."""

import pytest

import axonym as nym
from axonym import Axis
from tests.refusals import refusal


x = nym.ones({"i": 2, "j": 2})


@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: nym.zeros({"i": 2}, dtype),
        lambda dtype: nym.full({"i": 2}, 1.0, dtype),
        lambda dtype: nym.ones_like(x, dtype),
        lambda dtype: nym.full_like(x, 1.0, dtype),
        lambda dtype: nym.arange({"i": 2}, dtype=dtype),
        lambda dtype: nym.eye(Axis("i", 2), "j", dtype=dtype),
        lambda dtype: nym.linspace("i", start=0, stop=1, dtype=dtype),
        lambda dtype: x.astype(dtype),
    ],
)
def test_what_is_no_element_type_is_refused(make):
    for dtype, shown in (("fp8", "'fp8'."), ([1], "a list of length 1")):
        with refusal(f"`dtype` must be an element type such as `jnp.float32` or 'bfloat16', not {shown}", TypeError):
            make(dtype)


def test_numbers_that_do_not_fit_are_refused():
    ints, bins = nym.zeros({"i": 2}, int), Axis("n", 2)
    for call, error, message in (
        (lambda: nym.bincount(ints, bins, minlength=None), TypeError, "bincount: `minlength` must be an integer, not"),
        (
            lambda: nym.histogram(x, bins, range=(1.0, 0.0)),
            ValueError,
            "the lower limit of `range`, 1.0, is above the upper one, 0.0",
        ),
        (
            lambda: nym.linalg.matrix_rank(x, "i", "j", rtol=-1.0),
            ValueError,
            "matrix_rank: `rtol` must be at least 0, not -1.0",
        ),
        (lambda: nym.linalg.pinv(x, "i", "j", rtol="0"), TypeError, "pinv: `rtol` must be a number, not '0'."),
        (lambda: nym.fft.fft(x, norm=["ortho"]), ValueError, "`norm` must be 'backward', 'ortho' or 'forward', not a"),
        (lambda: nym.fft.fftfreq(Axis("i", 2), object()), TypeError, "An operand is a named array or a number"),
    ):
        with refusal(message, error):
            call()

"""Operands, dtypes and numbers of operations that do not fit are refused by a sentence with their name and value."""

import re

import jax
import jax.numpy as jnp
import pytest

import axonym as nym


X = nym.ones({"i": 2, "j": 2})
DTYPE = "`dtype` must be an element type such as `jnp.float32` or 'bfloat16', not 'fp8'."


MISTAKES = {
    "object": (lambda: X + object(), TypeError, "An operand is a named array or a number, not <object object at"),
    "mapping": (lambda: X * {"i": 1}, TypeError, "An operand is a named array or a number, not {'i': 1}."),
    "axis": (lambda: nym.Axis("i", 2) + X, TypeError, "An operand is a named array or a number, not Axis(name='i'"),
    "type": (lambda: nym.where(X > 0, float, X), TypeError, "An operand is a named array or a number, not `float`."),
    "sin of text": (lambda: nym.sin("x"), TypeError, "An operand is a named array or a number, not 'x'."),
    "abs of a function": (lambda: nym.abs(nym.sin), TypeError, "An operand is a named array or a number, not `sin`."),
    "sum of text": (lambda: nym.add("x", 1), TypeError, "An operand is a named array or a number, not 'x'."),
    "sum with text": (lambda: nym.add(1, "x"), TypeError, "An operand is a named array or a number, not 'x'."),
    "zeros": (lambda: nym.zeros({"i": 2}, "fp8"), TypeError, DTYPE),
    "zeros, list": (
        lambda: nym.zeros({"i": 2}, [1]),
        TypeError,
        "element type such as `jnp.float32` or 'bfloat16', not a",
    ),
    "full": (lambda: nym.full({"i": 2}, 1.0, "fp8"), TypeError, DTYPE),
    "ones_like": (lambda: nym.ones_like(X, "fp8"), TypeError, DTYPE),
    "full_like": (lambda: nym.full_like(X, 1.0, "fp8"), TypeError, DTYPE),
    "arange": (lambda: nym.arange({"i": 2}, dtype="fp8"), TypeError, DTYPE),
    "eye": (lambda: nym.eye(nym.Axis("i", 2), "j", dtype="fp8"), TypeError, DTYPE),
    "linspace": (lambda: nym.linspace("i", start=0, stop=1, dtype="fp8"), TypeError, DTYPE),
    "astype": (lambda: X.astype("fp8"), TypeError, DTYPE),
    "dot": (
        lambda: nym.dot(X, X, axis="i", preferred_element_type="fp8"),
        TypeError,
        "dot: `preferred_element_type` must be an element type such as `jnp.float32` or 'bfloat16', not 'fp8'.",
    ),
    "dot, order": (
        lambda: nym.dot(X, X, axis="i", out_axes=0),
        TypeError,
        "An axis is given by an `Axis` or by its name",
    ),
    "dot_general": (
        lambda: nym.dot(X, X, axis="i", dot_general="int8"),
        TypeError,
        "A `dot_general` must be a function",
    ),
    "named, swapped": (lambda: nym.named("i", X.array), TypeError, "`named` takes an array or numbers first, not 'i'."),
    "named, None": (lambda: nym.named(None, "i"), TypeError, "`named` takes an array or numbers first, not None."),
    "round": (lambda: nym.round(X, 0.5), TypeError, "round: `decimals` must be an integer, not 0.5."),
    "dslice": (lambda: X["i", nym.ds(0, 1.5)], TypeError, "the length of a `dslice` must be an integer, not 1.5."),
    "dblock": (lambda: nym.dblock(0.5, 2), TypeError, "The number of a block must be an integer, not 0.5."),
    "select": (
        lambda: nym.select(None, [X]),
        TypeError,
        "`select` takes a list of conditions and a list of choices, not None",
    ),
    "bincount": (
        lambda: nym.bincount(nym.zeros({"i": 2}, int), nym.Axis("n", 2), minlength=None),
        TypeError,
        "bincount: `minlength` must be an integer, not None.",
    ),
    "histogram": (
        lambda: nym.histogram(X, nym.Axis("bin", 2), range=(1.0, 0.0)),
        ValueError,
        "the lower limit of `range`, 1.0, is above the upper one, 0.0",
    ),
    "histogram, number": (
        lambda: nym.histogram(X, nym.Axis("bin", 2), range=3),
        ValueError,
        "`range` must be two numbers, a lower and an upper limit, not 3",
    ),
    "fft": (
        lambda: nym.fft.fft(X, norm=["ortho"]),
        ValueError,
        "`norm` must be 'backward', 'ortho' or 'forward', not a list",
    ),
    "fftfreq": (
        lambda: nym.fft.fftfreq(nym.Axis("i", 2), object()),
        TypeError,
        "An operand is a named array or a number",
    ),
    "matrix_power": (
        lambda: nym.linalg.matrix_power(X, "i", "j", 0.5),
        TypeError,
        "matrix_power: `n` must be an integer, not 0.5.",
    ),
    "matrix_rank": (
        lambda: nym.linalg.matrix_rank(X, "i", "j", rtol=-1.0),
        ValueError,
        "matrix_rank: `rtol` must be at least 0, not -1.0",
    ),
    "pinv": (lambda: nym.linalg.pinv(X, "i", "j", rtol="0"), TypeError, "pinv: `rtol` must be a number, not '0'."),
    "trim_zeros": (lambda: nym.poly.trim_zeros(X["i", 0], 3), ValueError, "`trim` must be 'f', 'b' or 'fb', not 3"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_has_the_name_and_the_value(mistake):
    call, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_what_jax_takes_as_an_array_is_an_operand():
    assert (X * jnp.asarray(2.0)).sum().item() == 8
    assert jax.eval_shape(lambda scale: X * scale, 2.0).shape == {"i": 2, "j": 2}

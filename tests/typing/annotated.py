"""Annotations as a type checker sees them: pyright and mypy check the assertions here; nothing runs it."""

from typing import assert_type

import jaxtyping

from axonym import NamedArray
from axonym.typing import Named, Shaped, f32


def annotated(
    a: Named["batch embed"],
    b: Named["batch embed ..."],
    c: f32[NamedArray, "batch embed ..."],
    d: Shaped[NamedArray, "batch"],
    e: jaxtyping.Float[NamedArray, "b d"],
) -> Named["batch embed"]:
    assert_type(a, NamedArray)
    assert_type(b, NamedArray)
    assert_type(c, NamedArray)
    assert_type(d, NamedArray)
    assert_type(e, NamedArray)
    assert_type(a + b, NamedArray)
    return a

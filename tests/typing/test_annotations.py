"""Annotations at run time: what they accept under `jaxtyped`, by names, element type and sizes."""

import beartype
import jax
import jax.numpy as jnp
import jaxtyping
import pytest
from jaxtyping import TypeCheckError, jaxtyped

import axonym as nym
from axonym import Axis, NamedArray
from axonym.typing import Bool, Float, Named, Num, Shaped, bf16, f32, i32
from tests.refusals import refusal


checked = jaxtyped(typechecker=beartype.beartype)
x = nym.ones({"batch": 2, "embed": 3})
w = nym.ones({"embed": 3, "mlp": 4})


@checked
def project(x: Named["batch embed"], w: f32[NamedArray, "embed ..."]) -> Named["batch ..."]:
    return nym.dot(x, w, axis="embed")


def test_what_fits_passes_in_and_out_of_jit():
    assert project(x, w).shape == {"batch": 2, "mlp": 4}
    assert jax.jit(project)(x, w).names == ("batch", "mlp")


@pytest.mark.parametrize(
    ("x", "w", "parameter"),
    [
        (x.rearrange(("embed", "batch")), w, "x"),
        (x.rename({"embed": "embedding"}), w, "x"),
        (x, w.rearrange(("mlp", "embed")), "w"),
        (x, w.astype(jnp.int32), "w"),
        (x, nym.ones({"embed": 5, "mlp": 4}), "w"),
        (x, w.array, "w"),
    ],
    ids=["order", "name", "rest", "element type", "size", "no names"],
)
def test_what_does_not_fit_is_refused(x, w, parameter):
    with refusal(f"typechecking parameter '{parameter}'", TypeCheckError):
        project(x, w)


def test_the_result_is_checked():
    @checked
    def wrong(x: Named["batch embed"]) -> Named["batch"]:
        return x

    with refusal("checking the return value", TypeCheckError):
        wrong(x)


def test_jaxtyping_itself_knows_named_arrays():
    @checked
    def f(x: jaxtyping.Float[NamedArray, "b d"], y: jaxtyping.Float[NamedArray, "d"]) -> None: ...

    f(x, nym.ones({"embed": 3}))
    # They compare words with one another, not with names.
    assert isinstance(x, jaxtyping.Float[NamedArray, "embed batch"])
    assert not isinstance(x, Float[NamedArray, "embed batch"])
    with refusal("typechecking parameter 'y'", TypeCheckError):
        f(x, nym.ones({"embed": 4}))
    with refusal("typechecking parameter 'x'", TypeCheckError):
        f(x.astype(jnp.int32), nym.ones({"embed": 3}))


def test_a_set_describes_axes_in_any_order():
    for axes in ({"embed", "batch"}, {"batch", ...}, {Axis("embed", 3), "batch"}):
        assert isinstance(x, Named[axes])
    for axes in ({"embed"}, {"mlp", ...}, {Axis("embed", 4), "batch"}):
        assert not isinstance(x, Named[axes])


def test_kinds_of_elements():
    kinds = {jnp.float32: {Float, f32, Num, Shaped}, jnp.bool_: {Bool, Shaped}, jnp.int32: {i32, Num, Shaped}}
    for dtype, fitting in kinds.items():
        for kind in (Float, f32, bf16, Num, Bool, i32, Shaped):
            assert isinstance(x.astype(dtype), kind[NamedArray, "batch embed"]) == (kind in fitting)


def test_other_arrays_are_annotated_as_jaxtyping_does():
    assert repr(i32[jax.Array, "4"]) == repr(jaxtyping.Int32[jax.Array, "4"])
    assert isinstance(jnp.ones(4, jnp.int32), i32[jax.Array, "4"])


def test_annotations_are_types_that_go_into_unions_and_print_as_written():
    assert isinstance(x, Named["batch embed"] | None)
    assert not isinstance(x, Named["pos"] | None)
    assert repr(f32[NamedArray, "batch ..."]) == "axonym.typing.f32[NamedArray, 'batch ...']"
    assert repr(f32) == "axonym.typing.f32"


def test_what_is_no_annotation_is_refused():
    with refusal("`f32` takes an array class and axes: f32[NamedArray, 'batch embed']", TypeError):
        f32["batch embed"]
    with refusal("axis 'a' is given more than once"):
        Named["a a"]


def test_names_that_are_no_identifiers_are_compared_and_bind_no_size():
    y = nym.ones({"head-dim": 2, "a b": 3})
    assert isinstance(y, Named[("head-dim", "a b")])
    assert not isinstance(y, Named[("head-dim", "b")])
